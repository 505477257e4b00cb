"""A run folder belongs to one process from its start to its end, whatever ends it."""

import os
import threading
from concurrent import futures

import pytest
from processes import python

from dpjax.commands import command_line, run_folder


def write(folder):
    with run_folder.written_whole(folder) as partial:
        os.mkdir(os.path.join(partial, "curator"))
        with open(os.path.join(partial, "curator", "ledger.jsonl"), "w") as file:
            file.write("what this run cost\n")


def in_another_process(folder):
    """What a second process with the same --out_dir ends in."""
    program = (
        "import sys; from dpjax.commands import run_folder\n"
        "with run_folder.claimed(sys.argv[1], 'x', resumed=True): print('claimed')"
    )
    return python("-c", program, folder)


def test_a_claim_keeps_other_processes_out_and_leaves_nothing(tmp_path):
    folder = str(tmp_path / "deep" / "run")
    with run_folder.claimed(folder, "x") as claimed:
        assert claimed == folder
        second = in_another_process(folder)
        assert second.returncode == 1
        assert f"another process works in {folder}" in second.stderr.splitlines()[-1]
        write(folder)
    assert os.listdir(tmp_path / "deep") == ["run"]
    # What a killed process leaves locks nothing.
    (tmp_path / "deep" / "other.lock").touch()
    with run_folder.claimed(str(tmp_path / "deep" / "other"), "x"):
        pass
    assert os.listdir(tmp_path / "deep") == ["run"]


def test_two_runs_of_one_second_get_a_folder_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    meet = threading.Barrier(8)

    def work(_):
        with run_folder.claimed(None, "digits") as folder:
            meet.wait(600)
            write(folder)
            return os.path.basename(folder)

    with futures.ThreadPoolExecutor(8) as pool:
        names = sorted(pool.map(work, range(8)))
    assert sorted(os.listdir("runs")) == names
    # A second may end between two claims; eight claims take less than eight seconds.
    firsts = [name for name in names if name.endswith("Z")]
    assert len(firsts) < 8
    for first in firsts:
        same = [name for name in names if name.startswith(first)]
        assert same == [first, *(f"{first}-{number}" for number in range(2, len(same) + 1))]


@pytest.mark.parametrize("taken", ["folder", "file", "empty folder"])
def test_a_final_name_taken_meanwhile_loses_nothing(tmp_path, taken):
    folder = tmp_path / "run"
    (tmp_path / "run.complete").mkdir()
    with (
        pytest.raises(ValueError, match=r"took the name .*run meanwhile.*run.complete-2$"),
        run_folder.claimed(str(folder), "x"),
        run_folder.written_whole(str(folder)) as partial,
    ):
        os.mkdir(os.path.join(partial, "curator"))
        if taken == "file":
            folder.touch()
        else:
            folder.mkdir()
        if taken == "folder":
            (folder / "theirs").touch()
    assert os.listdir(tmp_path / "run.complete-2") == ["curator"]
    assert folder.exists() and not (tmp_path / "run.partial").exists()


def test_an_error_while_writing_leaves_nothing(tmp_path):
    with (
        pytest.raises(KeyError),
        run_folder.claimed(str(tmp_path / "run"), "x") as folder,
        run_folder.written_whole(folder),
    ):
        raise KeyError
    assert os.listdir(tmp_path) == []


def test_what_an_interrupted_run_left_is_gone_on_with_or_refused(tmp_path):
    folder = str(tmp_path / "run")
    partial, working = tmp_path / "run.partial", tmp_path / "run.curator"

    def refused(message, **options):
        with pytest.raises(ValueError, match=message), run_folder.claimed(folder, "x", **options):
            pass
        assert not os.path.lexists(f"{folder}.lock")

    working.mkdir(mode=0o700)
    with run_folder.claimed(folder, "x"):
        pass  # empty: nothing of anybody's
    (working / "drawn.npz").touch()
    refused("run.curator belongs to an interrupted run and holds its secrets: pass --resume")
    partial.mkdir()
    (partial / run_folder.NOTICE).touch()
    refused("run.partial exists already")
    with run_folder.claimed(folder, "x", resumed=True):
        assert not partial.exists() and working.exists()
    # Killed when everything was written, before it took its name.
    (partial / "curator").mkdir(parents=True)
    with run_folder.claimed(folder, "x", resumed=True):
        assert run_folder.is_finished(folder) and not partial.exists()
    partial.mkdir()
    (partial / "someone's").touch()
    refused("run.partial exists already", resumed=True)
    refused("run exists already")


def test_ctrl_c_gives_the_claim_back(tmp_path):
    """The program then ends without unwinding."""
    with run_folder.claimed(str(tmp_path / "run"), "x"):
        assert os.listdir(tmp_path) == ["run.lock"]
        for clean_up in command_line._ON_INTERRUPTION:
            clean_up()
        assert os.listdir(tmp_path) == []
    assert command_line._ON_INTERRUPTION == []


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    below = run_folder.claimed(str(tmp_path / "file" / "run"), "x")
    with pytest.raises(ValueError, match="cannot write .*: pass another --out_dir"), below:
        pass


@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_no_run_left_in_the_place_of_its_folder_is_named_and_stays(tmp_path, kind):
    partial, elsewhere = tmp_path / "run.partial", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / run_folder.NOTICE).touch()
    if kind == "link":
        partial.symlink_to(elsewhere)
    else:
        partial.touch()
    for resumed in (False, True):
        claim = run_folder.claimed(str(tmp_path / "run"), "x", resumed=resumed)
        with pytest.raises(ValueError, match="run.partial exists already"), claim:
            pass
    assert os.path.lexists(partial) and (elsewhere / run_folder.NOTICE).exists()


@pytest.mark.parametrize("resumed", [False, True])
def test_a_folder_that_no_run_finished_is_nobodys_to_write_in(tmp_path, resumed):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "someone's").touch()
    claim = run_folder.claimed(str(tmp_path / "run"), "x", resumed=resumed)
    with pytest.raises(ValueError, match="run exists already"), claim:
        pass
