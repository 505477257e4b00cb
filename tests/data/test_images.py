"""Reading idx and tar files, and the builders, on small files made here."""

import gzip
import hashlib
import io
import pathlib
import sys
import tarfile
import tempfile

import numpy as np
import pytest

from dpjax.data import loading, published_files, tfds_store
from dpjax.data.sources import image_builders, images

COUNTS = {"train": 23, "test": 7}


def idx_bytes(array):
    kind = {3: 2051, 1: 2049}[array.ndim]
    header = b"".join(number.to_bytes(4, "big") for number in (kind, *array.shape))
    return gzip.compress(header + array.tobytes(), mtime=0)


def random_arrays(shape):
    generator = np.random.default_rng(5)
    arrays = {}
    for role, count in COUNTS.items():
        arrays[f"{role}_images"] = generator.integers(0, 256, (count, *shape), np.uint8)
        arrays[f"{role}_labels"] = generator.integers(0, 10, count, np.uint8)
    return arrays


def idx_contents():
    arrays = random_arrays((28, 28, 1))
    contents = {
        images.TRAIN_IMAGES: idx_bytes(arrays["train_images"][..., 0]),
        images.TRAIN_LABELS: idx_bytes(arrays["train_labels"]),
        images.TEST_IMAGES: idx_bytes(arrays["test_images"][..., 0]),
        images.TEST_LABELS: idx_bytes(arrays["test_labels"]),
    }
    return arrays, contents


def cifar_contents():
    arrays = random_arrays((32, 32, 3))
    members = {"batches.meta.txt": "\n".join(images.CIFAR10.class_names).encode() + b"\n\n"}
    for role, cuts in (("train", (0, 5, 9, 14, 20, 23)), ("test", (0, 7))):
        flat = arrays[f"{role}_images"].transpose(0, 3, 1, 2).reshape(-1, 3072)
        records = np.concatenate([arrays[f"{role}_labels"][:, None], flat], axis=1)
        for number, (begin, end) in enumerate(zip(cuts, cuts[1:]), start=1):
            name = "test_batch.bin" if role == "test" else f"data_batch_{number}.bin"
            members[name] = records[begin:end].tobytes()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return arrays, {"cifar-10-binary.tar.gz": buffer.getvalue()}


SETS = {
    "mnist": (images.MNIST, image_builders.mnist_builder, idx_contents),
    "fashion_mnist": (images.FASHION_MNIST, image_builders.fashion_mnist_builder, idx_contents),
    "cifar10": (images.CIFAR10, image_builders.cifar10_builder, cifar_contents),
}


@pytest.fixture(params=SETS)
def small_set(request, tmp_path, monkeypatch):
    """A published set with few records, its files placed by hand, their checksums made known."""
    from tensorflow_datasets.core.download import checksums

    described, make_builder, make_contents = SETS[request.param]
    arrays, contents = make_contents()
    folder = tmp_path / "data" / "downloads" / "manual" / described.name
    folder.mkdir(parents=True)
    files = []
    for file in described.files:
        content = contents[file.name]
        (folder / file.name).write_bytes(content)
        sha256 = hashlib.sha256(content).hexdigest()
        files.append(published_files.PublishedFile(file.name, file.address, sha256, len(content)))
        monkeypatch.setitem(
            checksums.get_all_url_infos(),
            file.address,
            checksums.UrlInfo(len(content), sha256, file.name),
        )
    small = images.ImageSet(
        name=described.name,
        version=described.version,
        files=tuple(files),
        image_shape=described.image_shape,
        train_count=COUNTS["train"],
        test_count=COUNTS["test"],
        class_names=described.class_names,
        description=described.description,
    )
    monkeypatch.setitem(
        loading._SOURCES, described.name, loading._image_source(small, make_builder)
    )
    return small, arrays, tmp_path / "data"


def check(result, arrays):
    for role in COUNTS:
        split = getattr(result, role)
        np.testing.assert_array_equal(
            split.inputs, arrays[f"{role}_images"].astype(np.float32) / np.float32(255)
        )
        np.testing.assert_array_equal(split.labels, arrays[f"{role}_labels"])
        np.testing.assert_array_equal(split.identifiers, np.arange(COUNTS[role]))
        assert split.public_size == split.size_bound == COUNTS[role]
        assert 0.0 <= split.inputs.min() <= split.inputs.max() <= 1.0


def test_a_set_is_prepared_read_back_in_order_and_cached(small_set, monkeypatch, capsys):
    small, arrays, data_dir = small_set
    before = set(sys.modules)
    check(loading.load(small.name, data_dir), arrays)
    assert capsys.readouterr().out == ""
    prepared = data_dir / small.name / small.version
    assert len(list(prepared.glob("*.array_record*"))) == 2
    assert "tensorflow" not in set(sys.modules) - before

    def fail(*_):
        raise AssertionError("the cache was not used")

    monkeypatch.setattr(tfds_store, "open_builder", fail)
    check(loading.load(small.name, data_dir), arrays)


def test_nothing_is_left_among_temporary_files(small_set, monkeypatch):
    small, arrays, data_dir = small_set
    temporary = data_dir / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    check(loading.load(small.name, data_dir), arrays)
    assert list(temporary.iterdir()) == []


def test_prepared_data_needs_no_files(small_set):
    small, arrays, data_dir = small_set
    loading.load(small.name, data_dir)
    prepared = data_dir / small.name / small.version
    for path in (prepared / "dpjax_cache").iterdir():
        path.unlink()
    for file in small.files:
        (data_dir / "downloads" / "manual" / small.name / file.name).unlink()
    check(loading.load(small.name, data_dir, download=False), arrays)


def test_what_is_prepared_is_the_stock_data_set(small_set):
    import tensorflow_datasets as tfds

    small, arrays, data_dir = small_set
    loading.load(small.name, data_dir)
    stock = tfds.builder_from_directory(str(data_dir / small.name / small.version))
    assert stock.name == small.name
    records = stock.as_data_source("test", decoders={"image": tfds.decode.SkipDecoding()})
    stored = sorted(int(record["label"]) for record in records)
    assert stored == sorted(arrays["test_labels"].tolist())
    if small.name == "cifar10":
        by_id = {record["id"].decode(): int(record["label"]) for record in records}
        expected = {f"test_{k:05d}": int(v) for k, v in enumerate(arrays["test_labels"])}
        assert by_id == expected
        assert tuple(stock.info.features["label"].names) == small.class_names


def test_data_prepared_in_another_format_is_left_alone(small_set):
    small, arrays, data_dir = small_set
    prepared = data_dir / small.name / small.version
    loading.load(small.name, data_dir)
    statement = prepared / "dataset_info.json"
    foreign = statement.read_text().replace("array_record", "tfrecord")
    statement.write_text(foreign)
    for path in (prepared / "dpjax_cache").iterdir():
        path.unlink()
    check(loading.load(small.name, data_dir), arrays)
    assert statement.read_text() == foreign
    assert (data_dir / "array_record" / small.name / small.version).is_dir()


def test_prepared_data_with_another_count_is_refused(small_set, monkeypatch):
    small, _, data_dir = small_set
    loading.load(small.name, data_dir)
    builder = tfds_store.open_builder(SETS[small.name][1], data_dir)
    with pytest.raises(ValueError, match="delete that folder"):
        tfds_store.read(builder, "train", {"label": np.dtype(np.uint8)}, 24)


def test_a_corrupted_file_is_refused_before_anything_is_written(small_set):
    small, _, data_dir = small_set
    path = data_dir / "downloads" / "manual" / small.name / small.files[0].name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(published_files.DataCorruptedError, match=small.files[0].name):
        loading.load(small.name, data_dir)
    assert not (data_dir / small.name).exists()


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
    from tensorflow_datasets.core.download import checksums

    registered = checksums.get_all_url_infos()
    for file in SETS[name][0].files:
        stated = registered[file.address]
        assert (stated.checksum, stated.size) == (file.sha256, file.size)
        assert stated.filename == file.name


@pytest.mark.parametrize("name", SETS)
def test_name_and_version_are_the_stock_ones(name):
    described, make_builder, _ = SETS[name]
    builder_class = make_builder()
    assert builder_class.name == described.name
    assert str(builder_class.VERSION) == described.version
    stock = next(c for c in builder_class.mro() if c.__module__.startswith("tensorflow_datasets"))
    assert builder_class.VERSION == stock.VERSION and issubclass(builder_class, stock)
