"""A full disk: said with its path before the draw, and resumed after it; nothing is lost."""

import contextlib
import os
import resource

import jax
import numpy as np
import pytest
import tiny_tuners

from dpjax import tuning
from dpjax.after_the_draw import AfterTheDrawWarning
from dpjax.commands import run_folder


@contextlib.contextmanager
def _files_of_at_most(size):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _run(folder, name="random_repetitions", **more):
    job = tuning.Job(folder=str(folder), checkpoint_seconds=0.0)
    return tiny_tuners.run(name, job=job, seed=1, chunk_size=1, **more)


def _same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one.release.params, other.release.params)
    assert one.release.statement == other.release.statement


@pytest.mark.parametrize("name", tiny_tuners.NAMES)
def test_before_the_draw_it_is_refused_with_the_path_and_what_to_do(tmp_path, name):
    _run(tmp_path / "earlier", name)  # The tests' own files of prices are written by now.
    with _files_of_at_most(1 << 19), pytest.raises(OSError, match="make room there.*work"):
        _run(tmp_path / "work", name)
    left = [path for _, _, names in os.walk(tmp_path / "work") for path in names]
    assert left == [], "something was drawn, or half written"


@pytest.mark.parametrize("name", ["random_repetitions", "exponential"])
def test_a_disk_that_fills_after_the_draw_delays_the_release(tmp_path, name):
    limits = contextlib.ExitStack()

    def fills(done, total):
        limits.close()
        limits.enter_context(_files_of_at_most(10))

    with limits, pytest.raises(OSError, match="make room there.*work"):
        _run(tmp_path / "work", name, progress=fills)
    _same(_run(tmp_path / "work", name), _run(tmp_path / "other", name))


def test_checkpoints_that_cannot_be_saved_are_a_warning(tmp_path):
    from dpjax.training.sweep.checkpoints import Checkpoints

    kept = Checkpoints(tmp_path / "work")
    with _files_of_at_most(10), pytest.warns(AfterTheDrawWarning, match="no checkpoint.*work"):
        assert not kept.save({"slots": np.zeros(9)}, {"finished": np.zeros(9)})
    assert kept.save({"slots": np.zeros(9)}, {"finished": np.ones(9)})
    slots, finished = Checkpoints(tmp_path / "work").restore()
    assert slots["slots"].shape == (9,) and [one["finished"].sum() for one in finished] == [9.0]


def test_a_release_is_saved_whole_or_not_at_all(tmp_path):
    release = _run(tmp_path / "work").release
    with _files_of_at_most(10), pytest.raises(OSError, match="make room there.*release"):
        release.save(tmp_path / "release")
    assert sorted(os.listdir(tmp_path)) == ["work"]
    release.save(tmp_path / "release")


def test_a_folder_that_cannot_be_written_leaves_the_release_elsewhere(tmp_path):
    folder = tmp_path / "run"

    def save(path):
        if path.startswith(str(folder)):
            raise OSError(28, "No space left on device")
        os.makedirs(path)

    with (
        pytest.raises(ValueError, match="No space.*make room.*the release is whole, in") as caught,
        run_folder.written_whole(str(folder), save),
    ):
        raise AssertionError("nothing else is written")
    elsewhere = str(caught.value).partition("whole, in ")[2].partition(":")[0]
    assert os.path.isdir(elsewhere) and not folder.exists()
