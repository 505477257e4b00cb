"""Locks and files of one owner."""

import os
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
