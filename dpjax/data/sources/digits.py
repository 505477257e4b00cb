"""scikit-learn's handwritten digits: real data that comes with the package, so no network."""

from __future__ import annotations

import numpy as np

from dpjax.data import dataset, splitting

DESCRIPTION = (
    "1,797 handwritten digits of 8x8 pixels (the test part of UCI's optical recognition set), as "
    "embedded in scikit-learn. Pixel counts 0..16 are divided by 16. Every fifth record, by "
    "position in the file, is test data: 1,438 train, 359 test."
)

_LARGEST_PIXEL = 16.0
_TEST_EVERY = 5


def load() -> dataset.Dataset:
    """Returns the digits, inputs (n, 8, 8, 1) in [0, 1]."""
    from sklearn import datasets  # Here, because importing it takes a second.

    bunch = datasets.load_digits()
    inputs = (bunch.images / _LARGEST_PIXEL).astype(np.float32)[..., np.newaxis]
    labels = bunch.target.astype(np.int32)
    identifiers = splitting.slot_identifiers(len(labels))
    # The published order and count are public, so this cut is too.
    is_test = identifiers % _TEST_EVERY == _TEST_EVERY - 1

    def part(member: np.ndarray) -> dataset.Split:
        size = int(member.sum())
        return dataset.Split(
            inputs[member],
            labels[member],
            size,
            size,
            identifiers[member],
            stable_under_replacement=True,
            stable_under_removal=True,
        )

    return dataset.Dataset(
        name="digits",
        description=DESCRIPTION,
        classes=10,
        train=part(~is_test),
        test=part(is_test),
        class_names=tuple("0123456789"),
    )
