"""What the public default was chosen on: digits, MNIST and data that are drawn here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

import experiments.data_sets  # noqa: F401 - registers mnist_scattering.
from dpjax import data
from experiments.figures.figure import DataFolders
from experiments.figures.rows import select

TEST_RECORDS = 5000
"""Of the data that are drawn here."""

_SHARPNESS = 3.0
"""Deviation of the linear scores that labels are drawn by, beside Gumbel noise: the best accuracy
that any classifier reaches then lies between 0.75 and 0.9."""


@dataclasses.dataclass(frozen=True)
class Arrays:
    """A problem's public records: inputs (n, ...) float32, labels (n,) int32, some to judge by."""

    inputs: np.ndarray
    labels: np.ndarray
    test_inputs: np.ndarray
    test_labels: np.ndarray
    classes: int


@dataclasses.dataclass(frozen=True)
class Problem:
    """Something to learn, by a net with these hidden layers, in `seeds` runs of each setting."""

    load: Callable[[DataFolders], Arrays]
    widths: tuple[int, ...] = ()
    seeds: int = 3


def _published(name: str) -> Callable[[DataFolders], Arrays]:
    def load(folders: DataFolders) -> Arrays:
        loaded = data.load(name, **folders.folders)
        train, test = loaded.train, loaded.test
        assert test is not None
        return Arrays(train.inputs, train.labels, test.inputs, test.labels, loaded.classes)

    return load


def _drawn(
    inputs: Callable[[np.random.Generator, int], np.ndarray], records: int, classes: int
) -> Callable[[DataFolders], Arrays]:
    """Labels drawn by softmax of random linear scores of the inputs."""

    def load(_: DataFolders) -> Arrays:
        generator = np.random.default_rng(0)
        drawn = inputs(generator, records + TEST_RECORDS)
        scores = (drawn - drawn.mean(axis=0)) @ generator.normal(size=(drawn.shape[1], classes))
        scores *= _SHARPNESS / scores.std()
        labels = np.argmax(scores + generator.gumbel(size=scores.shape), axis=1).astype(np.int32)
        drawn = drawn.astype(np.float32)
        parts = drawn[:records], labels[:records], drawn[records:], labels[records:]
        return Arrays(*parts, classes)

    return load


def _gauss(generator: np.random.Generator, number: int) -> np.ndarray:
    return generator.normal(size=(number, 20))


def _unit(generator: np.random.Generator, number: int) -> np.ndarray:
    return generator.random((number, 50))


def _one_hot(generator: np.random.Generator, number: int) -> np.ndarray:
    columns = [np.eye(8)[generator.integers(0, 8, number)] for _ in range(13)]
    return np.concatenate(columns, axis=1)


PROBLEMS: Mapping[str, Problem] = {
    "digits": Problem(_published("digits")),
    "digits, 128 hidden": Problem(_published("digits"), (128,)),
    "MNIST": Problem(_published("mnist")),
    "MNIST, 128 hidden": Problem(_published("mnist"), (128,), seeds=1),
    "MNIST, scattering": Problem(_published("mnist_scattering"), seeds=1),
    "20 normal, 5,000": Problem(_drawn(_gauss, 5_000, 2)),
    "20 normal, 50,000": Problem(_drawn(_gauss, 50_000, 5)),
    "50 uniform, 20,000": Problem(_drawn(_unit, 20_000, 3)),
    "13 categories, 20,000": Problem(_drawn(_one_hot, 20_000, 2)),
    "13 categories, 200,000": Problem(_drawn(_one_hot, 200_000, 2)),
}
"""By what the pictures call them; drawn ones by their inputs and the number of records."""

_INPUTS = {"20 normal": "20 normal inputs", "50 uniform": "50 uniform inputs",
           "13 categories": "13 categories"}  # fmt: skip

QUICK = ("digits", "20 normal, 5,000")


def title(name: str, rows: Sequence[Mapping]) -> str:
    """A problem's inputs and records."""
    own = select(rows, problem=name)
    inputs = _INPUTS.get(name.split(", ")[0], name)
    return f"{inputs}; {own[0]['records']:,} records"
