"""Published images: MNIST, CIFAR-10 and scikit-learn's digits.

MNIST (LeCun, Cortes and Burges) comes from TFDS's mirror of the four published files, CIFAR-10
(Krizhevsky 2009) from the binary version of the published archive, `digits` with scikit-learn: real
data that needs no network.
"""

from __future__ import annotations

import gzip
import pathlib
import tarfile

import numpy as np

from dpjax.data import splitting
from dpjax.data.published_files import PublishedFile
from dpjax.data.source import Arrays, Source, register

IDX_NAMES = {
    "train_inputs": "train-images-idx3-ubyte.gz",
    "train_labels": "train-labels-idx1-ubyte.gz",
    "test_inputs": "t10k-images-idx3-ubyte.gz",
    "test_labels": "t10k-labels-idx1-ubyte.gz",
}
"""Arrays and files of MNIST, and of other data sets published in its format."""

_IDX_IMAGES, _IDX_LABELS = 2051, 2049
_LARGEST_PIXEL = 255.0


def scaled_pixels(pixels: np.ndarray) -> np.ndarray:
    """Returns float32 in [0, 1] from uint8, by the public constant 255."""
    return pixels.astype(np.float32) / np.float32(_LARGEST_PIXEL)


def read_idx(path: pathlib.Path) -> np.ndarray:
    """Returns the array of a gzipped idx file: (n, height, width) images or (n,) labels, uint8."""
    with gzip.open(path, "rb") as stream:
        content = stream.read()
    kind = int.from_bytes(content[:4], "big")
    if kind not in (_IDX_IMAGES, _IDX_LABELS):
        raise ValueError(f"{path} is not an idx file of images or labels: place the published file")
    axes = kind & 0xFF
    shape = tuple(np.frombuffer(content, ">u4", count=axes, offset=4).astype(int))
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)


def read_mnist(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns images (n, height, width, 1) and labels (n,) of the four files `IDX_NAMES`, uint8."""
    arrays = {name: read_idx(folder / file) for name, file in IDX_NAMES.items()}
    # Grey images are published without an axis of channels: add it.
    return {name: a[..., np.newaxis] if a.ndim == 3 else a for name, a in arrays.items()}


_MNIST_ADDRESS = "https://storage.googleapis.com/cvdf-datasets/mnist/"
MNIST_FILES = tuple(
    PublishedFile(name, _MNIST_ADDRESS + name, sha256, size)
    for name, sha256, size in (
        (
            "train-images-idx3-ubyte.gz",
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            9912422,
        ),
        (
            "train-labels-idx1-ubyte.gz",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            28881,
        ),
        (
            "t10k-images-idx3-ubyte.gz",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            1648877,
        ),
        (
            "t10k-labels-idx1-ubyte.gz",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            4542,
        ),
    )
)


CIFAR10_FILE = PublishedFile(
    "cifar-10-binary.tar.gz",
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    170052171,
)
CIFAR10_SHAPE = (32, 32, 3)
CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
_MEMBERS = {
    "train": tuple(f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6)),
    "test": ("cifar-10-batches-bin/test_batch.bin",),
}


def read_cifar10(folder: pathlib.Path) -> Arrays:
    """Returns images (n, 32, 32, 3) and labels (n,), uint8, in the order of the archive's batches.

    A record is one label byte, then 1024 red, 1024 green and 1024 blue bytes, row by row.
    """
    arrays = {}
    with tarfile.open(folder / CIFAR10_FILE.name, "r:gz") as archive:
        # In the archive's order, because going back in a gzip file means unpacking it anew.
        contents = {
            entry.name: file.read()
            for entry in archive
            if entry.isfile() and (file := archive.extractfile(entry))
        }
    for role, members in _MEMBERS.items():
        missing = [member for member in members if member not in contents]
        if missing:
            raise ValueError(f"{folder / CIFAR10_FILE.name} holds no {missing[0]}")
        batches = b"".join(contents[member] for member in members)
        records = np.frombuffer(batches, np.uint8).reshape(-1, 1 + 3 * 32 * 32)
        pixels = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        arrays[f"{role}_inputs"] = np.ascontiguousarray(pixels)
        arrays[f"{role}_labels"] = records[:, 0]
    return arrays


_LARGEST_COUNT = 16.0
_TEST_EVERY = 5


def read_digits(_: pathlib.Path) -> Arrays:
    """Returns pixel counts (n, 8, 8), labels (n,) and, as identifiers, places in the file."""
    from sklearn import datasets  # Here, because importing it takes a second.

    bunch = datasets.load_digits()
    identifiers = splitting.slot_identifiers(len(bunch.target))
    # The published order and count are public, so this cut is too.
    test = identifiers % _TEST_EVERY == _TEST_EVERY - 1
    columns = {"inputs": bunch.images, "labels": bunch.target, "identifiers": identifiers}
    return {
        f"{role}_{part}": array[member]
        for role, member in (("train", ~test), ("test", test))
        for part, array in columns.items()
    }


def encode_digits(counts: np.ndarray) -> np.ndarray:
    """Returns (n, 8, 8, 1) float32 in [0, 1]."""
    return (counts / _LARGEST_COUNT).astype(np.float32)[..., np.newaxis]


register(
    Source(
        name="cifar10",
        description="60,000 colour photographs, 32x32x3 pixels divided by 255 (50,000 train).",
        classes=len(CIFAR10_CLASSES),
        input_shape=CIFAR10_SHAPE,
        train_count=50_000,
        test_count=10_000,
        read=read_cifar10,
        encode=scaled_pixels,
        files=(CIFAR10_FILE,),
        class_names=CIFAR10_CLASSES,
    )
)

register(
    Source(
        name="digits",
        description=(
            "1,797 handwritten digits of 8x8 pixels (the test part of UCI's optical recognition "
            "set), as embedded in scikit-learn. Pixel counts 0..16 are divided by 16. Every fifth "
            "record, by position in the file, is test data: 1,438 train, 359 test."
        ),
        classes=10,
        input_shape=(8, 8, 1),
        train_count=1_438,
        test_count=359,
        read=read_digits,
        encode=encode_digits,
        class_names=tuple("0123456789"),
    )
)

register(
    Source(
        name="mnist",
        description="70,000 handwritten digits, 28x28 grey pixels divided by 255 (60,000 train).",
        classes=10,
        input_shape=(28, 28, 1),
        train_count=60_000,
        test_count=10_000,
        read=read_mnist,
        encode=scaled_pixels,
        files=MNIST_FILES,
        class_names=tuple("0123456789"),
    )
)
