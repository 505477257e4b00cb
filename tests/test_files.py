"""What is written over a file is all of it, or nothing of it."""

import os
import pathlib
import stat

import numpy as np
import pytest

from dpjax.files import aside, replacing


def test_a_block_that_fails_leaves_what_was_there_and_nothing_beside_it(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("before")
    with pytest.raises(KeyboardInterrupt), replacing(path) as partial:
        pathlib.Path(partial).write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "before" and os.listdir(tmp_path) == ["rows.csv"]


def test_until_the_block_ends_readers_find_what_was_there(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("before")
    with replacing(path) as partial:
        pathlib.Path(partial).write_text("after")
        assert path.read_text() == "before"
    assert path.read_text() == "after" and os.listdir(tmp_path) == ["rows.csv"]


def test_two_writers_at_once_do_not_share_a_file(tmp_path):
    path = tmp_path / "counts.npz"
    with replacing(path) as one, replacing(path) as other:
        assert one != other
        np.savez(one, counts=np.ones(2))  # Writers that add a missing ending add none.
        np.savez(other, counts=np.zeros(2))
    assert os.listdir(tmp_path) == ["counts.npz"]
    with np.load(path) as kept:
        assert kept["counts"].tolist() == [1.0, 1.0]  # The block that ended last.


def test_modes_are_as_asked(tmp_path):
    old = os.umask(0o022)
    try:
        for mode, expected in ((0o666, 0o644), (0o600, 0o600)):
            with aside(tmp_path / "a", mode) as partial:
                assert stat.S_IMODE(os.stat(partial).st_mode) == expected
    finally:
        os.umask(old)
