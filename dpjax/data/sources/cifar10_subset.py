"""A subset of CIFAR-10 under a name of its own, so that no figure from it passes for CIFAR-10."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np

from dpjax.data import dataset, published_files
from dpjax.data.sources import images

FILES = (
    published_files.PublishedFile(
        "cifar10_subset.npz",
        "no public address: it is made from CIFAR-10's images (load 'cifar10' for the whole)",
        "3b1bd723ced4c5e6d870e4d80215d7bc72117de4e62e8bf030f2c49af216e388",
        33929820,
    ),
)
CAVEAT = (
    "This is NOT CIFAR-10 but a subset of it (10,000 of 50,000 training and 2,000 of 10,000 test "
    "images): no figure from it may be reported as CIFAR-10."
)
_COUNTS = {"train": 10_000, "test": 2_000}


def read(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns the arrays of the file: images, labels and indices in CIFAR-10, train and test.

    Raises:
      ValueError: if an array has not the stated count.
    """
    with np.load(folder / FILES[0].name, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    for role, count in _COUNTS.items():
        if arrays[f"{role}_images"].shape != (count, *images.CIFAR10.image_shape):
            raise ValueError(f"{folder / FILES[0].name} does not hold {count} {role} images")
    return arrays


def as_dataset(arrays: dict[str, np.ndarray]) -> dataset.Dataset:
    """Returns the subset, inputs (n, 32, 32, 3) in [0, 1], identified by index in CIFAR-10."""
    return images.as_dataset(
        dataclasses.replace(images.CIFAR10, train_count=10_000, test_count=2_000),
        arrays,
        name="cifar10_subset",
        description="12,000 of CIFAR-10's photographs, 32x32x3 pixels divided by 255.",
        caveat=CAVEAT,
    )
