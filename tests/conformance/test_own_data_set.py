"""A data set in one file: defined here, nothing of the library edited; loaded, tuned, released.

Its flag is its name: `--dataset=own_flowers`, where this file is imported.
"""

import csv
import dataclasses
import hashlib

import flax.linen as nn
import numpy as np
import pytest

from dpjax import data, tuning
from dpjax.data import source

CONTENT = "".join(
    f"{x:.3f},{y:.3f},{int(x + y > 1)}\n"
    for x, y in np.random.default_rng(0).uniform(size=(150, 2))
).encode()
FLOWERS = data.Source(
    name="own_flowers",
    description="Two measurements of 150 flowers, in [0, 1] as published.",
    classes=2,
    input_shape=(2,),
    train_count=120,
    test_count=30,
    files=(
        data.PublishedFile(
            name="flowers.csv",
            address="https://example.invalid/flowers.csv",
            sha256=hashlib.sha256(CONTENT).hexdigest(),
            size=len(CONTENT),
        ),
    ),
    read=lambda folder: _read_flowers(folder / "flowers.csv"),
    encode=lambda stored, *, scale=1.0: (scale * stored).astype(np.float32),
)


def _read_flowers(path):
    with path.open(encoding="ascii", newline="") as stream:
        table = np.array(list(csv.reader(stream)), float)
    return {
        "train_inputs": table[:120, :2],
        "train_labels": table[:120, 2],
        "test_inputs": table[120:, :2],
        "test_labels": table[120:, 2],
    }


@pytest.fixture
def own_flowers(tmp_path):
    """Registers the set for one test and returns a data folder with its file."""
    data.register(FLOWERS)
    (tmp_path / "own_flowers").mkdir()
    (tmp_path / "own_flowers" / "flowers.csv").write_bytes(CONTENT)
    yield tmp_path
    del source.SOURCES["own_flowers"]


def test_it_is_loaded_by_its_name(own_flowers):
    assert "own_flowers" in data.NAMES
    flowers = data.load("own_flowers", own_flowers, download=False)
    assert (flowers.train.public_size, flowers.test.public_size) == (120, 30)
    assert flowers.input_shape == (2,)
    with pytest.raises(data.DataNotFoundError, match="flowers.csv"):
        data.load("own_flowers", own_flowers / "elsewhere", download=False)
    (own_flowers / "own_flowers" / "flowers.csv").write_bytes(CONTENT[:-1])
    with pytest.raises(data.DataCorruptedError, match="not the published file"):
        data.load("own_flowers", own_flowers, download=False)


def test_its_settings_are_arguments_of_its_encoding(own_flowers):
    plain = data.load("own_flowers", own_flowers)
    halved = data.load("own_flowers", own_flowers, settings={"scale": 0.5})
    np.testing.assert_array_equal(halved.train.inputs, 0.5 * plain.train.inputs)
    with pytest.raises(ValueError, match="own_flowers has no size: pass only scale"):
        data.load("own_flowers", own_flowers, settings={"size": 0.5})
    with pytest.raises(ValueError, match="digits has no scale: pass none"):
        data.load("digits", settings={"scale": 0.5})
    with pytest.raises(ValueError, match="leave it out for a file"):
        data.load("mine.npz", settings={"scale": 0.5})


@pytest.mark.parametrize("name", ["", "../up", "a/b", "mine.npz", ".hidden"])
def test_a_name_that_is_no_folder_is_refused(name):
    with pytest.raises(ValueError, match="pass letters, digits"):
        data.Source(
            name=name,
            description="",
            classes=2,
            input_shape=(1,),
            train_count=1,
            read=lambda folder: {},
        )


def test_a_name_is_given_once(own_flowers):
    with pytest.raises(ValueError, match="'own_flowers' is registered already"):
        data.register(FLOWERS)


def test_it_is_tuned_released_and_verified(own_flowers, tuned, released_and_verified):
    parts = data.load("own_flowers", own_flowers, download=False).parts(0.25, key=b"public")
    result = tuned(tuning.classification(nn.Dense(2), parts.train, parts.validation))
    assert released_and_verified(result).epsilon == result.guarantee.stated_epsilon(1e-6)


def test_a_setting_without_a_default_is_refused():
    with pytest.raises(ValueError, match="encode of own_flowers: scale is a setting, so give it a"):
        dataclasses.replace(FLOWERS, encode=lambda stored, *, scale: scale * stored)
