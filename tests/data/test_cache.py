"""The cache is whole and right, or it is absent."""

import json
import os

import numpy as np
import pytest

from dpjax.data import cache

ARRAYS = {"train": np.arange(12, dtype=np.uint8).reshape(3, 4), "test": np.zeros(2, np.int32)}


def folder_of(tmp_path):
    return tmp_path / "dpjax_cache"


def test_what_was_written_is_read(tmp_path):
    cache.write(tmp_path, "source", ARRAYS)
    arrays = cache.read(tmp_path, "source")
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array)
        assert arrays[name].dtype == array.dtype
    assert [path.name for path in tmp_path.iterdir()] == ["dpjax_cache"]


def test_another_source_is_not_read_and_replaces_the_old(tmp_path):
    cache.write(tmp_path, "old", ARRAYS)
    assert cache.read(tmp_path, "new") is None
    cache.write(tmp_path, "new", {"other": np.ones(1)})
    assert cache.read(tmp_path, "old") is None
    assert list(cache.read(tmp_path, "new")) == ["other"]


def truncate(folder):
    path = folder / "train.npy"
    path.write_bytes(path.read_bytes()[:-3])


def other_shape(folder):
    np.save(folder / "train.npy", ARRAYS["train"][:-1])


def other_type(folder):
    np.save(folder / "train.npy", ARRAYS["train"].astype(np.int8))


def pickled(folder):
    np.save(folder / "train.npy", np.array([{}], dtype=object), allow_pickle=True)


def broken_key(folder):
    (folder / "key.json").write_text("{")


def other_format(folder):
    key = json.loads((folder / "key.json").read_text())
    (folder / "key.json").write_text(json.dumps({**key, "format": 0}))


def empty_file(folder):
    (folder / "train.npy").write_bytes(b"")


def missing_file(folder):
    (folder / "train.npy").unlink()


def other_values(folder):
    np.save(folder / "train.npy", ARRAYS["train"] + 1)


def _renamed(folder, name):
    key = json.loads((folder / "key.json").read_text())
    key["arrays"][name] = key["arrays"].pop("train")
    (folder / "key.json").write_text(json.dumps(key))


def outside(folder):
    (folder / "train.npy").rename(folder.parent / "elsewhere.npy")
    _renamed(folder, "../elsewhere")


def absolute(folder):
    _renamed(folder, str(folder / "train"))


def pipe(folder):
    (folder / "train.npy").unlink()
    os.mkfifo(folder / "train.npy")


def much_longer(folder):
    with (folder / "train.npy").open("ab") as stream:
        stream.truncate(1 << 30)


def deep_key(folder):
    (folder / "key.json").write_text("[" * 50_000)


def endless_key(folder):
    (folder / "key.json").write_text(" " * (1 << 20))


def key_of_another_type(folder):
    (folder / "key.json").write_text("[1]")


@pytest.mark.parametrize(
    "damage",
    [
        other_values,
        outside,
        absolute,
        pipe,
        much_longer,
        deep_key,
        endless_key,
        key_of_another_type,
        truncate,
        other_shape,
        other_type,
        pickled,
        broken_key,
        other_format,
        empty_file,
        missing_file,
    ],
)
def test_a_damaged_cache_counts_as_absent(tmp_path, damage):
    cache.write(tmp_path, "source", ARRAYS)
    damage(folder_of(tmp_path))
    assert cache.read(tmp_path, "source") is None
    cache.write(tmp_path, "source", ARRAYS)  # And is written anew.
    assert cache.read(tmp_path, "source") is not None


def test_an_interrupted_writing_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "save", fail)
    with pytest.raises(KeyboardInterrupt):
        cache.write(tmp_path, "source", ARRAYS)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    cache.write(tmp_path / "file", "source", ARRAYS)
    assert cache.read(tmp_path / "file", "source") is None
