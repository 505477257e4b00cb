"""LIBSVM's encoding of Adult. 123 binary columns, so a record's norm is at most sqrt(14)."""

from __future__ import annotations

import pathlib

from dpjax.data import readers
from dpjax.data.published_files import PublishedFile
from dpjax.data.source import Arrays, Source, register

_ADDRESS = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
TRAIN_FILE = PublishedFile(
    "a9a",
    _ADDRESS + "a9a",
    "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
    2329875,
)
TEST_FILE = PublishedFile(
    "a9a.t",
    _ADDRESS + "a9a.t",
    "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9",
    1164628,
    # Copies in circulation state column 123 once, as an explicit zero, so that readers who take
    # the width from the largest index see 123 columns; the records are the same.
    equivalent=("1f7bae8e9729ad2bf9d18f66e5fa622e503e615114f92c37b274dfd24f2e5725",),
)
TRAIN_COUNT = 32_561
CLASS_NAMES = ("<=50K", ">50K")


def read(folder: pathlib.Path) -> Arrays:
    """Returns inputs (n, 123) and labels (n,) of both files, uint8."""
    arrays = {}
    for role, file in (("train", TRAIN_FILE), ("test", TEST_FILE)):
        arrays[f"{role}_inputs"], arrays[f"{role}_labels"] = readers.read_libsvm(folder / file.name)
    return arrays


register(
    Source(
        name="a9a",
        description=(
            "Adult as LIBSVM encodes it: 123 binary columns, 32,561 train and 16,281 test rows; "
            "does a person earn more than $50,000 a year?"
        ),
        classes=len(CLASS_NAMES),
        input_shape=(readers.LIBSVM_COLUMNS,),
        train_count=TRAIN_COUNT,
        test_count=16_281,
        read=read,
        files=(TRAIN_FILE, TEST_FILE),
        class_names=CLASS_NAMES,
    )
)
