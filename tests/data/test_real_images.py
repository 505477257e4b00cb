"""The loaders on the published image files, where they are at hand."""

import pathlib
import shutil
import time

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
    assert (tmp_path / "mnist" / "3.0.1" / "dataset_info.json").is_file()
    for role, file, names in (
        ("train", images.TRAIN_IMAGES, images.TRAIN_LABELS),
        ("test", images.TEST_IMAGES, images.TEST_LABELS),
    ):
        split = getattr(mnist, role)
        pixels = images.read_idx(FILES / "mnist" / file)
        np.testing.assert_array_equal(np.rint(split.inputs[..., 0] * 255).astype(np.uint8), pixels)
        np.testing.assert_array_equal(split.labels, images.read_idx(FILES / "mnist" / names))
    begin = time.process_time()
    again = data.load("mnist", FILES, cache_dir=tmp_path)
    assert time.process_time() - begin < 2.0  # A tenth of a second where nothing else runs.
    np.testing.assert_array_equal(again.train.inputs, mnist.train.inputs)
    train, validation = data.split_train_validation(mnist.train, 0.1, b"key")
    assert train.number_of_records + validation.number_of_records == 60_000
    assert (train.public_size, validation.public_size) == (54_000, 6000)


@needs("mnist")
def test_mnist_does_not_pass_for_fashion_mnist(tmp_path):
    folder = tmp_path / "fashion_mnist"
    shutil.copytree(FILES / "mnist", folder)
    with pytest.raises(data.DataCorruptedError, match="not the published file"):
        data.load("fashion_mnist", tmp_path)


@needs("cifar10_subset")
def test_the_subset_goes_by_its_own_name(tmp_path):
    subset = data.load("cifar10_subset", FILES, cache_dir=tmp_path)
    assert subset.train.inputs.shape == (10_000, 32, 32, 3)
    assert subset.test.inputs.shape == (2000, 32, 32, 3)
    assert "NOT CIFAR-10" in subset.caveat
    assert len(np.unique(subset.train.identifiers)) == 10_000
    with pytest.raises(data.DataNotFoundError):
        data.load("cifar10", FILES, cache_dir=tmp_path, download=False)
