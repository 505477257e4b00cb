"""scikit-learn's handwritten digits: real data that comes with the package, so no network."""

from __future__ import annotations

import pathlib

import numpy as np

from dpjax.data import splitting
from dpjax.data.source import Arrays, Source, register

_LARGEST_PIXEL = 16.0
_TEST_EVERY = 5


def read(_: pathlib.Path) -> Arrays:
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


def encode(counts: np.ndarray) -> np.ndarray:
    """Returns (n, 8, 8, 1) float32 in [0, 1]."""
    return (counts / _LARGEST_PIXEL).astype(np.float32)[..., np.newaxis]


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
        read=read,
        encode=encode,
        class_names=tuple("0123456789"),
    )
)
