"""MNIST, Fashion-MNIST and CIFAR-10: their published files, how to read them, how to scale them."""

from __future__ import annotations

import dataclasses
import gzip
import pathlib
import tarfile

import numpy as np

from dpjax.data import dataset, published_files, splitting

_MNIST = "https://storage.googleapis.com/cvdf-datasets/mnist/"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_CIFAR = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
TRAIN_IMAGES = "train-images-idx3-ubyte.gz"
TRAIN_LABELS = "train-labels-idx1-ubyte.gz"
TEST_IMAGES = "t10k-images-idx3-ubyte.gz"
TEST_LABELS = "t10k-labels-idx1-ubyte.gz"
_IDX_IMAGES, _IDX_LABELS = 2051, 2049
_LARGEST_PIXEL = 255.0


@dataclasses.dataclass(frozen=True)
class ImageSet:
    """What is public about one published set of labelled images."""

    name: str
    version: str
    files: tuple[published_files.PublishedFile, ...]
    image_shape: tuple[int, int, int]
    train_count: int
    test_count: int
    class_names: tuple[str, ...]
    description: str


def _idx_files(address: str, checksums: dict[str, tuple[str, int]]):
    return tuple(
        published_files.PublishedFile(name, address + name, sha256, size)
        for name, (sha256, size) in checksums.items()
    )


MNIST = ImageSet(
    name="mnist",
    version="3.0.1",
    files=_idx_files(
        _MNIST,
        {
            TRAIN_IMAGES: (
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                9912422,
            ),
            TRAIN_LABELS: (
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                28881,
            ),
            TEST_IMAGES: (
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                1648877,
            ),
            TEST_LABELS: (
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                4542,
            ),
        },
    ),
    image_shape=(28, 28, 1),
    train_count=60_000,
    test_count=10_000,
    class_names=tuple("0123456789"),
    description="70,000 handwritten digits, 28x28 grey pixels divided by 255 (60,000 train).",
)

FASHION_MNIST = ImageSet(
    name="fashion_mnist",
    version="3.0.1",
    files=_idx_files(
        _FASHION,
        {
            TRAIN_IMAGES: (
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                26421880,
            ),
            TRAIN_LABELS: (
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                29515,
            ),
            TEST_IMAGES: (
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                4422102,
            ),
            TEST_LABELS: (
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                5148,
            ),
        },
    ),
    image_shape=(28, 28, 1),
    train_count=60_000,
    test_count=10_000,
    class_names=(
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    description="70,000 pictures of clothing, 28x28 grey pixels divided by 255 (60,000 train).",
)

CIFAR10 = ImageSet(
    name="cifar10",
    version="3.0.2",
    files=(
        published_files.PublishedFile(
            "cifar-10-binary.tar.gz",
            _CIFAR,
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            170052171,
        ),
    ),
    image_shape=(32, 32, 3),
    train_count=50_000,
    test_count=10_000,
    class_names=(
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    ),
    description="60,000 colour photographs, 32x32x3 pixels divided by 255 (50,000 train).",
)


def as_dataset(
    images: ImageSet,
    arrays: dict[str, np.ndarray],
    *,
    name: str | None = None,
    description: str | None = None,
    caveat: str | None = None,
) -> dataset.Dataset:
    """Returns a `Dataset` from pixels, scaled by the public constant 255.

    Args:
      images: what is public about the set.
      arrays: `train_images` (n, height, width, channels) uint8, `train_labels` (n,), likewise test,
        and optionally `train_index` and `test_index` (n,), positions in the published file where
        they are not 0..n-1.
      name, description: of the result, where they differ from those of `images`.
      caveat: see `Dataset`.
    """

    def part(role: str) -> dataset.Split:
        pixels = arrays[f"{role}_images"]
        count = len(pixels)
        index = arrays.get(f"{role}_index")
        identifiers = splitting.slot_identifiers(count) if index is None else index
        return dataset.Split(
            inputs=pixels.astype(np.float32) / np.float32(_LARGEST_PIXEL),
            labels=arrays[f"{role}_labels"].astype(np.int32),
            public_size=count,  # As published.
            size_bound=count,
            identifiers=identifiers,
            stable_under_replacement=True,
            stable_under_removal=True,
        )

    return dataset.Dataset(
        name=name or images.name,
        description=description or images.description,
        classes=len(images.class_names),
        train=part("train"),
        test=part("test"),
        class_names=images.class_names,
        caveat=caveat,
    )


def read_idx(path: pathlib.Path) -> np.ndarray:
    """Returns the array of a gzipped idx file: (n, height, width) images or (n,) labels, uint8.

    Raises:
      ValueError: if the file is neither, or shorter than its header says.
    """
    with gzip.open(path, "rb") as stream:
        content = stream.read()
    kind = int.from_bytes(content[:4], "big")
    if kind not in (_IDX_IMAGES, _IDX_LABELS):
        raise ValueError(f"{path} is not an idx file of images or labels")
    axes = kind & 0xFF
    shape = tuple(np.frombuffer(content, ">u4", count=axes, offset=4).astype(int))
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)


def read_cifar_tar(path: pathlib.Path, members: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns images (n, 32, 32, 3) uint8 and labels (n,) uint8 of the binary members, in order.

    A record is one label byte, then 1024 red, 1024 green and 1024 blue bytes, row by row.
    """
    with tarfile.open(path, "r:gz") as archive:
        content = b"".join(archive.extractfile(member).read() for member in members)
    records = np.frombuffer(content, np.uint8).reshape(-1, 1 + 3 * 32 * 32)
    return records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), records[:, 0]
