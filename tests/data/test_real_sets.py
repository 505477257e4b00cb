"""The loaders on the published files, where they are at hand."""

import pathlib

import numpy as np
import pytest

import experiments.data_sets  # noqa: F401 - registers them.
from dpjax import data
from dpjax.data.sources import images

FILES = pathlib.Path(__file__).resolve().parents[3] / "shared" / "data"


def needs(folder):
    return pytest.mark.skipif(
        not (FILES / folder).is_dir(), reason=f"the published files of {folder} are not at hand"
    )


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("downloads")


@needs("adult")
def test_adult(cache_dir):
    adult = data.load("adult", FILES, cache_dir=cache_dir)
    assert adult.train.inputs.shape == (32_561, 104)
    assert adult.test.inputs.shape == (16_281, 104)
    # Counts of the larger income as published in adult.names' shares.
    assert (int(adult.train.labels.sum()), int(adult.test.labels.sum())) == (7841, 3846)
    norms = np.linalg.norm(adult.train.inputs, axis=1)
    assert 2.0 < norms.mean() < 3.5
    assert norms.max() <= np.sqrt(13.0) + 1e-6
    first = dict(zip(adult.feature_names, adult.train.inputs[0]))
    assert first["workclass=State-gov"] == first["education=Bachelors"] == first["sex=Male"] == 1.0


@needs("a9a")
def test_a9a_and_a1a(cache_dir):
    a9a = data.load("a9a", FILES, cache_dir=cache_dir)
    assert a9a.train.inputs.shape == (32_561, 123)
    assert a9a.test.inputs.shape == (16_281, 123)
    assert np.linalg.norm(a9a.train.inputs, axis=1).max() <= np.sqrt(14.0) + 1e-6
    a1a = data.load("a1a", FILES, cache_dir=cache_dir)
    assert (a1a.train.public_size, a1a.test.public_size) == (30_956, 1605)
    # LIBSVM's a1a has 395 rows of the larger income.
    assert (int(a1a.test.labels.sum()), int(a1a.train.labels.sum())) == (395, 7446)
    np.testing.assert_array_equal(a1a.test.inputs[1], a9a.train.inputs[15])


@needs("a9a")
@needs("adult")
def test_a9a_and_adult_are_the_same_people_in_the_same_order(cache_dir):
    adult = data.load("adult", FILES, cache_dir=cache_dir)
    a9a = data.load("a9a", FILES, cache_dir=cache_dir)
    for role in ("train", "test"):
        np.testing.assert_array_equal(getattr(adult, role).labels, getattr(a9a, role).labels)


@needs("mnist")
def test_mnist(cache_dir):
    mnist = data.load("mnist", FILES, cache_dir=cache_dir)
    for role in ("train", "test"):
        split = getattr(mnist, role)
        pixels = images.read_idx(FILES / "mnist" / images.IDX_NAMES[f"{role}_inputs"])
        np.testing.assert_array_equal(np.rint(split.inputs[..., 0] * 255).astype(np.uint8), pixels)
        labels = images.read_idx(FILES / "mnist" / images.IDX_NAMES[f"{role}_labels"])
        np.testing.assert_array_equal(split.labels, labels)
    train, validation = data.split_train_validation(mnist.train, 0.1, b"key")
    assert train.number_of_records + validation.number_of_records == 60_000
    assert (train.public_size, validation.public_size) == (54_000, 6000)
