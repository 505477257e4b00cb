"""The loaders on the published image files, where they are at hand."""

import pathlib

import numpy as np
import pytest

from dpjax import data
from dpjax.data.sources import images

FILES = pathlib.Path(__file__).resolve().parents[3] / "shared" / "data"


def needs(folder):
    return pytest.mark.skipif(
        not (FILES / folder).is_dir(), reason=f"the published files of {folder} are not at hand"
    )


@needs("mnist")
def test_mnist(tmp_path):
    mnist = data.load("mnist", FILES, cache_dir=tmp_path)
    for role in ("train", "test"):
        split = getattr(mnist, role)
        pixels = images.read_idx(FILES / "mnist" / images.IDX_NAMES[f"{role}_inputs"])
        np.testing.assert_array_equal(np.rint(split.inputs[..., 0] * 255).astype(np.uint8), pixels)
        labels = images.read_idx(FILES / "mnist" / images.IDX_NAMES[f"{role}_labels"])
        np.testing.assert_array_equal(split.labels, labels)
    train, validation = data.split_train_validation(mnist.train, 0.1, b"key")
    assert train.number_of_records + validation.number_of_records == 60_000
    assert (train.public_size, validation.public_size) == (54_000, 6000)
