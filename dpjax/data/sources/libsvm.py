"""LIBSVM's encodings of Adult: `a9a` (all of it) and `a1a` (the division DPareto's authors used).

Both have 123 binary columns, so a record's norm is at most sqrt(14); nothing is scaled.

`a1a` needs no file of its own. LIBSVM's a1a (1,605 rows) and a1a.t (30,956) are the rows of a9a in
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

from dpjax.data import dataset, published_files, splitting

_ADDRESS = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
FILES = (
    published_files.PublishedFile(
        "a9a",
        _ADDRESS + "a9a",
        "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
        2329875,
    ),
    published_files.PublishedFile(
        "a9a.t",
        _ADDRESS + "a9a.t",
        "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9",
        1164628,
        # Copies in circulation state column 123 once, as an explicit zero, so that readers who take
        # the width from the largest index see 123 columns; the records are the same.
        equivalent=("1f7bae8e9729ad2bf9d18f66e5fa622e503e615114f92c37b274dfd24f2e5725",),
    ),
)
COLUMNS = 123
COUNTS = {"train": 32_561, "test": 16_281}
CLASS_NAMES = ("<=50K", ">50K")
A9A_DESCRIPTION = (
    "Adult as LIBSVM encodes it: 123 binary columns, 32,561 train and 16,281 test rows; does a "
    "person earn more than $50,000 a year?"
)
A1A_DESCRIPTION = (
    "The division of LIBSVM's a9a that DPareto's authors used: train on the 30,956 rows of a1a.t, "
    "test on the 1,605 rows of a1a (the published roles are the other way round)."
)
_A1A_SHARE = 0.05


def read(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs (n, 123) uint8 of 0 and 1, and labels (n,) uint8 (0 for -1, 1 for +1).

    Raises:
      ValueError: for a label, column or value that the encoding cannot have.
    """
    lines = path.read_text(encoding="ascii").splitlines()
    inputs = np.zeros((len(lines), COLUMNS), np.uint8)
    labels = np.zeros(len(lines), np.uint8)
    for row, line in enumerate(lines):
        label, *entries = line.split()
        if label not in ("-1", "+1"):
            raise ValueError(f"{path}, line {row + 1}: label {label!r}, expected -1 or +1")
        labels[row] = label == "+1"
        for entry in entries:
            column, _, value = entry.partition(":")
            if value not in ("0", "1") or not 1 <= int(column) <= COLUMNS:
                raise ValueError(f"{path}, line {row + 1}: {entry!r} is not a binary column")
            inputs[row, int(column) - 1] = value == "1"
    return inputs, labels


def read_both(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns train and test inputs and labels of the files `a9a` and `a9a.t`."""
    arrays = {}
    for file, role in zip(FILES, ("train", "test")):
        arrays[f"{role}_inputs"], arrays[f"{role}_labels"] = read(folder / file.name)
        if len(arrays[f"{role}_labels"]) != COUNTS[role]:
            raise ValueError(f"{folder / file.name} has not {COUNTS[role]} rows")
    return arrays


def in_a1a(count: int = COUNTS["train"], share: float = _A1A_SHARE) -> np.ndarray:
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


def a9a_dataset(arrays: dict[str, np.ndarray]) -> dataset.Dataset:
    """Returns a9a with its published roles."""
    everything = {role: np.ones(count, dtype=bool) for role, count in COUNTS.items()}
    return dataset.Dataset(
        name="a9a",
        description=A9A_DESCRIPTION,
        classes=2,
        train=_split(arrays, "train", everything["train"]),
        test=_split(arrays, "test", everything["test"]),
        class_names=CLASS_NAMES,
    )


def a1a_dataset(arrays: dict[str, np.ndarray]) -> dataset.Dataset:
    """Returns a1a with the roles of DPareto's authors; identifiers are row numbers in a9a."""
    member = in_a1a()
    return dataset.Dataset(
        name="a1a",
        description=A1A_DESCRIPTION,
        classes=2,
        train=_split(arrays, "train", ~member),
        test=_split(arrays, "train", member),
        class_names=CLASS_NAMES,
    )


def _split(arrays: dict[str, np.ndarray], role: str, member: np.ndarray) -> dataset.Split:
    """`member` is a public rule on row numbers, so the count it leaves is public."""
    count = int(member.sum())
    return dataset.Split(
        inputs=arrays[f"{role}_inputs"][member].astype(np.float32),
        labels=arrays[f"{role}_labels"][member].astype(np.int32),
        public_size=count,
        size_bound=count,
        identifiers=splitting.slot_identifiers(len(member))[member],
        stable_under_replacement=True,
        stable_under_removal=True,
    )
