"""Image sets, read from their published files."""

import gzip
import io
import pathlib
import tarfile

import numpy as np
import pytest

from dpjax.data import loading, published_files, source
from dpjax.data.sources import images

COUNTS = {"train": 23, "test": 7}


def idx_bytes(array):
    kind = {3: 2051, 1: 2049}[array.ndim]
    header = b"".join(number.to_bytes(4, "big") for number in (kind, *array.shape))
    return gzip.compress(header + array.tobytes(), mtime=0)


def random_arrays(shape):
    generator = np.random.default_rng(5)
    arrays = {}
    for role, count in COUNTS.items():
        arrays[f"{role}_inputs"] = generator.integers(0, 256, (count, *shape), np.uint8)
        arrays[f"{role}_labels"] = generator.integers(0, 10, count, np.uint8)
    return arrays


def idx_contents(arrays):
    return {
        file: idx_bytes(arrays[name][..., 0] if name.endswith("inputs") else arrays[name])
        for name, file in images.IDX_NAMES.items()
    }


def cifar_contents(arrays, left_out=()):
    members = {"batches.meta.txt": "\n".join(images.CIFAR10_CLASSES).encode() + b"\n\n"}
    for role, cuts in (("train", (0, 5, 9, 14, 20, 23)), ("test", (0, 7))):
        flat = arrays[f"{role}_inputs"].transpose(0, 3, 1, 2).reshape(-1, 3072)
        records = np.concatenate([arrays[f"{role}_labels"][:, None], flat], axis=1)
        for number, (begin, end) in enumerate(zip(cuts, cuts[1:]), start=1):
            name = "test_batch.bin" if role == "test" else f"data_batch_{number}.bin"
            members[name] = records[begin:end].tobytes()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        # The archive's order is not that of the batches.
        for name in sorted(members.keys() - set(left_out), reverse=True):
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            entry.size = len(members[name])
            archive.addfile(entry, io.BytesIO(members[name]))
    return {images.CIFAR10_FILE.name: buffer.getvalue()}


SETS = {
    "mnist": ((28, 28, 1), idx_contents),
    "cifar10": ((32, 32, 3), cifar_contents),
}


@pytest.fixture(params=SETS)
def small_set(request, publish):
    """Name, arrays and data folder of a published set with few records."""
    shape, contents_of = SETS[request.param]
    arrays = random_arrays(shape)
    counts = {f"{role}_count": count for role, count in COUNTS.items()}
    return request.param, arrays, publish(request.param, contents_of(arrays), **counts)


def check(result, arrays):
    for role in COUNTS:
        split = getattr(result, role)
        np.testing.assert_array_equal(
            split.inputs, arrays[f"{role}_inputs"].astype(np.float32) / np.float32(255)
        )
        np.testing.assert_array_equal(split.labels, arrays[f"{role}_labels"])
        np.testing.assert_array_equal(split.identifiers, np.arange(COUNTS[role]))
        assert split.public_size == split.size_bound == COUNTS[role]
        assert 0.0 <= split.inputs.min() <= split.inputs.max() <= 1.0


def everything_below(folder):
    return sorted(str(path) for path in folder.rglob("*"))


def test_files_at_hand_are_read_in_order_and_nothing_else_is(small_set, temporary, capsys):
    name, arrays, data_dir = small_set
    before = everything_below(data_dir.parent)
    check(loading.load(name, data_dir), arrays)
    assert everything_below(data_dir.parent) == before and not everything_below(temporary)
    assert capsys.readouterr().out == ""


def test_a_corrupted_file_is_refused_before_anything_is_written(small_set):
    name, _, data_dir = small_set
    file = source.SOURCES[name].files[0].name
    path = data_dir / "downloads" / "manual" / name / file
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(published_files.DataCorruptedError, match=file):
        loading.load(name, data_dir)
    assert not (data_dir / name).exists()


def test_a_file_with_another_count_is_refused(publish):
    data_dir = publish("mnist", idx_contents(random_arrays((28, 28, 1))), train_count=24)
    with pytest.raises(ValueError, match=r"mnist: train inputs of shape \(23, 28, 28, 1\)"):
        loading.load("mnist", data_dir)
    assert not (data_dir / "mnist").exists()


def test_an_archive_without_a_batch_is_refused(publish):
    contents = cifar_contents(random_arrays((32, 32, 3)), left_out=["data_batch_4.bin"])
    with pytest.raises(ValueError, match="holds no .*data_batch_4"):
        loading.load("cifar10", publish("cifar10", contents))


@pytest.mark.parametrize("content", [b"", b"\0\0\x0d\x03" + b"\0" * 16, b"text, not numbers"])
def test_what_is_no_idx_file_is_refused(tmp_path, content):
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(content))
    with pytest.raises(ValueError, match="not an idx file"):
        images.read_idx(path)


def test_a_short_idx_file_is_refused(tmp_path):
    path = tmp_path / "file.gz"
    whole = gzip.decompress(idx_bytes(np.zeros((3, 4, 4), np.uint8)))
    path.write_bytes(gzip.compress(whole[:-1]))
    with pytest.raises(ValueError):
        images.read_idx(pathlib.Path(path))


@pytest.mark.parametrize("name", SETS)
def test_checksums_and_addresses_are_those_tfds_registers(name):
    import tensorflow_datasets as tfds

    known = source.SOURCES[name]
    stock = tfds.builder_cls(name)
    for file in known.files:
        stated = stock.url_infos[file.address]
        assert (stated.checksum, stated.size) == (file.sha256, file.size)
        assert stated.filename == file.name
