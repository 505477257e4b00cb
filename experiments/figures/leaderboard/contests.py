"""What the leaderboard's methods compete on: data sets, models, and how records are divided."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np

import experiments.data_sets  # noqa: F401 - registers what is loaded below.
from dpjax import data, models, tuning
from experiments.figures.figure import DataFolders

WORDS, TOPICS, LENGTH = 1_000, 8, 30
"""Of the invented texts: vocabulary, classes, words of one text."""


@dataclasses.dataclass(frozen=True)
class Contest:
    """One data set with one model; the dataset is None for the texts drawn here.

    `widths` are those of the hidden layers, none for a linear model; `validation` is the expected
    share of the training records that a tuner keeps to score by.
    """

    dataset: str | None
    widths: tuple[int, ...] = ()
    validation: float = 0.1
    seeds: int = 20


CONTESTS: Mapping[str, Contest] = {
    "digits": Contest("digits", validation=0.2),
    "digits, 128 hidden": Contest("digits", widths=(128,), validation=0.2),
    "Adult": Contest("adult"),
    "a9a": Contest("a9a"),
    "Fertility": Contest("fertility"),
    "TV16": Contest("tv16"),
    "nassCDS": Contest("nass_cds"),
    "flights": Contest("flights", seeds=10),
    "MNIST, scattering": Contest("mnist_scattering", seeds=10),
    "MNIST, 128 hidden": Contest("mnist", widths=(128,), seeds=5),
    "CIFAR-10 subset, scattering": Contest("cifar10_subset_scattering", seeds=5),
    "invented texts": Contest(None),
}
"""By what tables and pictures call them."""


@functools.lru_cache(maxsize=1)
def loaded(name: str, folders: DataFolders) -> data.Dataset:
    """The records of a contest; the last one is kept."""
    dataset = CONTESTS[name].dataset
    return invented_texts() if dataset is None else data.load(dataset, **folders.folders)


def task(name: str, parts: data.Parts, classes: int) -> tuning.Task:
    """What is learned in a contest."""
    contest = CONTESTS[name]
    kind = "mlp" if contest.widths else "logistic_regression"
    module = models.build_module(kind, classes, widths=contest.widths)
    return tuning.classification(module, parts.train, parts.validation)


def invented_texts(records: int = 20_000, test_records: int = 5_000) -> data.Dataset:
    """Texts of 30 words by one of 8 topics, as counts of 1,000 words over the square root of 30.

    Words fall off like 1 / rank; each topic has them in an order of its own, and half of a text's
    words are everyone's. Drawn here by a fixed seed: no person wrote them.
    """
    generator = np.random.default_rng(0)
    weights = 1.0 / (10.0 + np.arange(WORDS))
    orders = [generator.permutation(WORDS) for _ in range(TOPICS + 1)]
    laws = np.stack([weights[np.argsort(order)] for order in orders])
    laws /= laws.sum(axis=1, keepdims=True)
    labels = generator.integers(TOPICS, size=records + test_records).astype(np.int32)
    counts = np.zeros((len(labels), WORDS), np.float32)
    for topic in range(TOPICS):
        member = labels == topic
        law = 0.5 * laws[topic] + 0.5 * laws[TOPICS]
        counts[member] = generator.multinomial(LENGTH, law, size=int(member.sum()))
    counts /= np.sqrt(np.float32(LENGTH))
    return data.from_arrays(
        counts[:records],
        labels[:records],
        test=(counts[records:], labels[records:]),
        public_size=records,
        classes=TOPICS,
        identifiers=np.arange(records),
        name="invented_texts",
    )
