"""The subset of CIFAR-10, where its file is at hand."""

import pathlib

import numpy as np
import pytest

import experiments.data_sets  # noqa: F401 - registers it.
from dpjax import data

FILES = pathlib.Path(__file__).resolve().parents[4] / "shared" / "data"


@pytest.mark.skipif(
    not (FILES / "cifar10_subset").is_dir(), reason="the published file is not at hand"
)
def test_the_subset_goes_by_its_own_name(tmp_path):
    subset = data.load("cifar10_subset", FILES, cache_dir=tmp_path)
    assert subset.train.inputs.shape == (10_000, 32, 32, 3)
    assert subset.test.inputs.shape == (2000, 32, 32, 3)
    assert "NOT CIFAR-10" in subset.caveat
    assert len(np.unique(subset.train.identifiers)) == 10_000
    with pytest.raises(data.DataNotFoundError):
        data.load("cifar10", FILES, cache_dir=tmp_path, download=False)
