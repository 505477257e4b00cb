"""CIFAR-10 (Krizhevsky 2009), from the binary version of the published archive."""

from __future__ import annotations

import pathlib
import tarfile

import numpy as np

from dpjax.data import readers
from dpjax.data.published_files import PublishedFile
from dpjax.data.source import Arrays, Source, register

FILE = PublishedFile(
    "cifar-10-binary.tar.gz",
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    170052171,
)
IMAGE_SHAPE = (32, 32, 3)
CLASS_NAMES = (
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
)
_MEMBERS = {
    "train": tuple(f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6)),
    "test": ("cifar-10-batches-bin/test_batch.bin",),
}


def read(folder: pathlib.Path) -> Arrays:
    """Returns images (n, 32, 32, 3) and labels (n,), uint8, in the order of the archive's batches.

    A record is one label byte, then 1024 red, 1024 green and 1024 blue bytes, row by row.

    Raises:
      ValueError: if a batch is missing or holds a part of a record.
    """
    arrays = {}
    with tarfile.open(folder / FILE.name, "r:gz") as archive:
        # In the archive's own order, because going back in a gzip file means unpacking it anew.
        contents = {
            entry.name: file.read()
            for entry in archive
            if entry.isfile() and (file := archive.extractfile(entry))
        }
    for role, members in _MEMBERS.items():
        missing = [member for member in members if member not in contents]
        if missing:
            raise ValueError(f"{folder / FILE.name} holds no {missing[0]}")
        batches = b"".join(contents[member] for member in members)
        records = np.frombuffer(batches, np.uint8).reshape(-1, 1 + 3 * 32 * 32)
        pixels = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        arrays[f"{role}_inputs"] = np.ascontiguousarray(pixels)
        arrays[f"{role}_labels"] = records[:, 0]
    return arrays


register(
    Source(
        name="cifar10",
        description="60,000 colour photographs, 32x32x3 pixels divided by 255 (50,000 train).",
        classes=len(CLASS_NAMES),
        input_shape=IMAGE_SHAPE,
        train_count=50_000,
        test_count=10_000,
        read=read,
        encode=readers.scaled_pixels,
        files=(FILE,),
        tfds_version="3.0.2",
        class_names=CLASS_NAMES,
    )
)
