"""Locks and files of one owner."""

import os
import stat
import subprocess
import sys
import threading

import pytest

from dpjax import private_files

HOLDS = """
import sys
from dpjax import private_files
with private_files.locked(sys.argv[1], "here", shared=len(sys.argv) > 2):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_lock_ends_with_its_process_however_that_ends(tmp_path):
    path = str(tmp_path / "lock")
    for shared in ([], ["shared"]):
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDS, path, *shared],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert holder.stdout.readline() == b"held\n"
        refused = pytest.raises(private_files.InUseError, match="another process works in here")
        with refused, private_files.locked(path, "here"):
            pass
        if shared:
            with private_files.locked(path, "here", shared=True):
                pass
            assert os.path.exists(path), "the file of a lock that another one holds was removed"
        holder.kill()
        holder.communicate()
        assert os.path.exists(path)
        with private_files.locked(path, "here"), private_files.locked(path, "here"):
            assert os.path.exists(path)
        assert not os.path.exists(path)


def test_threads_keep_each_other_out(tmp_path):
    path, ends = str(tmp_path / "lock"), []

    def other():
        try:
            with private_files.locked(path, "here"):
                ends.append("in")
        except private_files.InUseError:
            ends.append("out")

    with private_files.locked(path, "here"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    other()
    assert ends == ["out", "in"]


def test_writing_leaves_no_other_file(tmp_path):
    path = tmp_path / "file"
    private_files.write_once(path, b"first")
    private_files.write_once(path, b"second")
    assert private_files.read_private(path) == b"first"
    private_files.write_anew(path, b"third")
    assert private_files.read_private(path) == b"third"
    assert os.listdir(tmp_path) == ["file"] and path.stat().st_mode & 0o077 == 0


BITS = [1 << place for place in range(12)]
"""Every bit of a file's mode."""
OF_OTHERS = [bit for bit in BITS if bit & (stat.S_IRWXG | stat.S_IRWXO)]


@pytest.mark.parametrize("bit", BITS, ids=oct)
def test_a_folder_is_refused_for_each_bit_that_lets_others_in(tmp_path, bit):
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(0o700 | bit)
    if bit in OF_OTHERS:
        with pytest.raises(
            ValueError, match=rf"mode {0o700 | bit:04o}\).*pass another folder"
        ) as caught:
            private_files.private_folder(folder)
        assert "\n" not in str(caught.value)
    else:
        private_files.private_folder(folder)


@pytest.mark.parametrize("bit", BITS, ids=oct)
def test_a_file_is_refused_for_each_bit_that_lets_others_write(tmp_path, bit):
    """What others may read lies in a folder closed to them; what they may write is not read."""
    path = tmp_path / "file"
    path.write_bytes(b"key")
    path.chmod(0o600 | bit)
    if bit in (stat.S_IWGRP, stat.S_IWOTH):
        with pytest.raises(ValueError, match=rf"mode {0o600 | bit:04o}\)"):
            private_files.read_private(path)
    else:
        assert private_files.read_private(path) == b"key"


@pytest.mark.parametrize("mask", [0, *BITS[:9]], ids=oct)
def test_what_is_made_has_no_bit_for_others_whatever_the_umask(tmp_path, mask):
    old = os.umask(mask & ~0o700)  # The owner's own are needed to write at all.
    try:
        private_files.private_folder(tmp_path / "folder")
        private_files.write_once(tmp_path / "folder" / "file", b"key")
        private_files.write_anew(tmp_path / "folder" / "other", b"key")
        with private_files.locked(tmp_path / "folder" / "lock", "here"):
            for path in (tmp_path / "folder").rglob("*"):
                assert not path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO), path
        assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o700
    finally:
        os.umask(old)
