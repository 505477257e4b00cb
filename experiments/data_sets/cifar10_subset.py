"""A subset of CIFAR-10 under a name of its own, so that no figure from it passes for CIFAR-10."""

from __future__ import annotations

import pathlib

import numpy as np

from dpjax.data.published_files import PublishedFile
from dpjax.data.source import Arrays, Source, register
from dpjax.data.sources import images

FILE = PublishedFile(
    "cifar10_subset.npz",
    "no public address: it is made from CIFAR-10's images (load 'cifar10' for the whole)",
    "3b1bd723ced4c5e6d870e4d80215d7bc72117de4e62e8bf030f2c49af216e388",
    33929820,
)
_ROLES = ("train", "test")
_PARTS = {"inputs": "images", "labels": "labels", "identifiers": "index"}


def read(folder: pathlib.Path) -> Arrays:
    """Returns images, labels and, as identifiers, indices in CIFAR-10."""
    with np.load(folder / FILE.name, allow_pickle=False) as archive:
        return {
            f"{role}_{part}": archive[f"{role}_{key}"]
            for role in _ROLES
            for part, key in _PARTS.items()
        }


register(
    Source(
        name="cifar10_subset",
        description="12,000 of CIFAR-10's photographs, 32x32x3 pixels divided by 255.",
        classes=len(images.CIFAR10_CLASSES),
        input_shape=images.CIFAR10_SHAPE,
        train_count=10_000,
        test_count=2_000,
        read=read,
        encode=images.scaled_pixels,
        files=(FILE,),
        class_names=images.CIFAR10_CLASSES,
        caveat=(
            "This is NOT CIFAR-10 but a subset of it (10,000 of 50,000 training and 2,000 of "
            "10,000 test images): no figure from it may be reported as CIFAR-10."
        ),
    )
)
