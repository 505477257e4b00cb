"""File formats that more than one data set is published in, and the scaling of pixels."""

from __future__ import annotations

import gzip
import pathlib

import numpy as np

IDX_NAMES = {
    "train_inputs": "train-images-idx3-ubyte.gz",
    "train_labels": "train-labels-idx1-ubyte.gz",
    "test_inputs": "t10k-images-idx3-ubyte.gz",
    "test_labels": "t10k-labels-idx1-ubyte.gz",
}
"""Arrays and files of MNIST and of what is published in its form."""

LIBSVM_COLUMNS = 123
_IDX_IMAGES, _IDX_LABELS = 2051, 2049
_LARGEST_PIXEL = 255.0


def scaled_pixels(pixels: np.ndarray) -> np.ndarray:
    """Returns float32 in [0, 1] from uint8, by the public constant 255."""
    return pixels.astype(np.float32) / np.float32(_LARGEST_PIXEL)


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


def read_idx_folder(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns images (n, height, width, 1) and labels (n,) of the four files `IDX_NAMES`, uint8."""
    arrays = {name: read_idx(folder / file) for name, file in IDX_NAMES.items()}
    # The axis of the channels, which grey images are published without.
    return {name: a[..., np.newaxis] if a.ndim == 3 else a for name, a in arrays.items()}


def read_libsvm(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """Reads LIBSVM's text of binary columns, as of a9a.

    Returns:
      Inputs (n, 123) uint8 of 0 and 1, and labels (n,) uint8 (0 for -1, 1 for +1).

    Raises:
      ValueError: for a label, column or value that the encoding cannot have.
    """
    lines = path.read_text(encoding="ascii").splitlines()
    inputs = np.zeros((len(lines), LIBSVM_COLUMNS), np.uint8)
    labels = np.zeros(len(lines), np.uint8)
    for row, line in enumerate(lines):
        label, *entries = line.split()
        if label not in ("-1", "+1"):
            raise ValueError(f"{path}, line {row + 1}: label {label!r}, expected -1 or +1")
        labels[row] = label == "+1"
        for entry in entries:
            column, _, value = entry.partition(":")
            if value not in ("0", "1") or not 1 <= int(column) <= LIBSVM_COLUMNS:
                raise ValueError(f"{path}, line {row + 1}: {entry!r} is not a binary column")
            inputs[row, int(column) - 1] = value == "1"
    return inputs, labels
