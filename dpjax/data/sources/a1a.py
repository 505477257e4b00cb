"""`a1a`: the division of LIBSVM's a9a that DPareto's authors used.

It needs no file of its own. LIBSVM's a1a (1,605 rows) and a1a.t (30,956) are the rows of a9a in
their order, chosen by the C run-time's pseudo-random generator: row i goes to a1a when the i-th
number of Microsoft's rand(), seeded with 1, is below floor(0.05 * 32767). Established for this
project: the same rule with 0.07, 0.1, 0.15, 0.2, 0.35, 0.5 and 0.7 gives the published sizes of a2a
to a8a to the row; the resulting a1a agrees with the published counts of each class and with the
rows and byte offsets of public copies of a1a that were looked at. What is not established is the
SHA-256 of LIBSVM's own a1a and a1a.t, which were out of reach; no figure depends on it.
"""

from __future__ import annotations

import pathlib

import numpy as np

from dpjax.data import readers, splitting
from dpjax.data.source import Arrays, Source, register
from dpjax.data.sources import a9a

_SHARE = 0.05


def in_a1a(count: int = a9a.TRAIN_COUNT, share: float = _SHARE) -> np.ndarray:
    """Returns (count,) bool: which rows of a9a LIBSVM's a1a consists of (see the module).

    Args:
      count: number of rows of a9a.
      share: 0.05 for a1a; 0.07 for a2a, and so on.
    """
    state, limit = 1, int(share * 32767)
    member = np.empty(count, dtype=bool)
    for row in range(count):
        state = (state * 214_013 + 2_531_011) & 0xFFFFFFFF
        member[row] = (state >> 16 & 0x7FFF) < limit
    return member


def divided(inputs: np.ndarray, labels: np.ndarray) -> Arrays:
    """Returns the rows of a9a with the roles of DPareto's authors, identified by row number."""
    test = in_a1a(len(labels))
    rows = splitting.slot_identifiers(len(labels))
    return {
        f"{role}_{part}": array[member]
        for role, member in (("train", ~test), ("test", test))
        for part, array in (("inputs", inputs), ("labels", labels), ("identifiers", rows))
    }


def read(folder: pathlib.Path) -> Arrays:
    """Returns inputs (n, 123) and labels (n,), uint8, and identifiers: row numbers in a9a."""
    return divided(*readers.read_libsvm(folder / a9a.TRAIN_FILE.name))


register(
    Source(
        name="a1a",
        description=(
            "The division of LIBSVM's a9a that DPareto's authors used: train on the 30,956 rows of "
            "a1a.t, test on the 1,605 rows of a1a (the published roles are the other way round)."
        ),
        classes=len(a9a.CLASS_NAMES),
        input_shape=(readers.LIBSVM_COLUMNS,),
        train_count=30_956,
        test_count=1_605,
        read=read,
        files=(a9a.TRAIN_FILE,),
        folder="a9a",
        class_names=a9a.CLASS_NAMES,
    )
)
