"""The tasks of `worth_registration`: their records, models, scores and metrics."""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from dpjax import models, tuning
from dpjax.data.tabular import Schema
from dpjax.tuning.problem.public_defaults import NET_FROM, WIDTHS
from dpjax.tuning.problem.targets import Targets
from experiments.data_sets import r_tables, word_vectors
from experiments.figures.leaderboard.worth_registration import (
    TASKS,
    TEST,
    TRAIN,
    TRAIN_OF_SLOW_NETS,
    Task,
)

WORDS, BUCKETS, LETTERS = 16, 2_000, 24
_ALPHABET = " abcdefghijklmnopqrstuvwxyz"

Arrays = tuple[np.ndarray, np.ndarray]


class BagOfEmbeddings(nn.Module):
    """The mean of learned word vectors, and a linear layer; words (..., WORDS) int32."""

    classes: int

    @nn.compact
    def __call__(self, words: jax.Array) -> jax.Array:
        """Returns logits (..., classes)."""
        return nn.Dense(self.classes)(nn.Embed(BUCKETS, 16)(words).mean(-2))


class CharacterLSTM(nn.Module):
    """The last state of an LSTM over letters (..., LETTERS) int32, and a linear layer."""

    classes: int

    @nn.compact
    def __call__(self, letters: jax.Array) -> jax.Array:
        """Returns logits (..., classes)."""
        states = nn.RNN(nn.LSTMCell(32))(nn.Embed(len(_ALPHABET) + 1, 16)(letters))
        return nn.Dense(self.classes)(states[..., -1, :])


class CharacterCNN(nn.Module):
    """A convolution of four letters, its mean over places, and a linear layer."""

    classes: int

    @nn.compact
    def __call__(self, letters: jax.Array) -> jax.Array:
        """Returns logits (..., classes) of letters (..., LETTERS) int32."""
        embedded = nn.Embed(len(_ALPHABET) + 1, 16)(letters)
        seen = nn.relu(nn.Conv(32, (4,), padding="VALID")(embedded))
        return nn.Dense(self.classes)(seen.mean(-2))


def words_of(texts: Sequence[str]) -> np.ndarray:
    """Returns (n, `WORDS`) int32: each text's first words by the hash of their letters."""
    found = np.zeros((len(texts), WORDS), np.int32)
    for row, text in enumerate(texts):
        kept = "".join(letter if letter.isalnum() else " " for letter in text.lower())
        for place, word in enumerate(kept.split()[:WORDS]):
            found[row, place] = 1 + zlib.crc32(word.encode()) % (BUCKETS - 1)
    return found


def letters_of(texts: Sequence[str], length: int) -> np.ndarray:
    """Returns (n, `length`) int32: first letters, padded in front; others are one number."""
    found = np.zeros((len(texts), length), np.int32)
    for row, text in enumerate(texts):
        places = [_ALPHABET.find(letter) for letter in text.lower()[:length]]
        numbers = [len(_ALPHABET) if place < 0 else place for place in places]
        found[row, length - len(numbers) :] = numbers
    return found


def _mean_vectors(texts: Sequence[str]) -> np.ndarray:
    """Returns (n, vector size) float32: the mean of the pretrained vectors of a text's words."""
    split = [text.split() or [""] for text in texts]
    vectors = word_vectors.of_words([word for words in split for word in words])
    starts = np.cumsum([0, *map(len, split)])
    sums = np.add.reduceat(vectors, starts[:-1], axis=0)
    return sums / np.diff(starts)[:, None].astype(np.float32)


def ranges_of(task: Task) -> dict[str, tuple[float, float]]:
    """Returns the public ranges of a table's numbers, by column: lists, and the age."""
    return {
        name: (ends[0], ends[1])
        for name, ends in task.columns.items()
        if isinstance(ends, list) or name == "age"
    }


@functools.lru_cache(maxsize=2)
def records_of(name: str) -> Arrays:
    """Returns all records of a task: inputs (n, ...) and labels (n,) int32 or targets float32."""
    task = TASKS[name]
    given = (task.text,) if task.text else tuple(task.columns)
    table = r_tables.columns(task.package, task.item, (*given, task.target))
    outcome = table[task.target].tolist()
    if task.target_range is None:
        places = {value: place for place, value in enumerate(task.values)}
        answers = np.array([places.get(value, -1) for value in outcome], np.int32)
        kept = answers >= 0
    else:
        answers = np.array(outcome, np.float32)
        kept = np.isfinite(answers)
    if task.text:
        kept &= np.array([isinstance(text, str) for text in table[task.text].tolist()])
        texts = table[task.text][kept].tolist()
        inputs = {
            "text": words_of,
            "recurrent": lambda these: letters_of(these, LETTERS // 2),
            "convolution": lambda these: letters_of(these, LETTERS),
            "head": _mean_vectors,
        }[task.kind](texts)
        return inputs, answers[kept]
    ranges = ranges_of(task)
    schema = Schema(
        ranges=ranges,
        vocabularies={one: ends for one, ends in task.columns.items() if one not in ranges},
        optional=tuple(ranges),
    )
    return schema.encode(schema.stored(table))[kept], answers[kept]


@dataclasses.dataclass(frozen=True)
class Split:
    """Training and test records of a task, by the number of the split alone."""

    train: Arrays
    test: Arrays


@functools.lru_cache(maxsize=8)
def split_of(name: str, number: int) -> Split:
    """Returns a split."""
    inputs, answers = records_of(name)
    order = np.random.default_rng([58, number]).permutation(len(answers))
    most = TRAIN_OF_SLOW_NETS if TASKS[name].slow else TRAIN
    train = min(most, len(answers) * 4 // 5)
    parts = order[:train], order[train : train + TEST]
    return Split(*((inputs[rows], answers[rows]) for rows in parts))


@dataclasses.dataclass(frozen=True)
class Learner:
    """How a task is learned.

    Attributes:
      task: the registered one.
      records: public number of training records.
      module: the model; what it gives is (n, outputs).
    """

    task: Task
    records: int
    module: nn.Module

    @property
    def targets(self) -> Targets:
        """Returns the map of a regression's targets."""
        return Targets.of(self.task.target_range)

    def loss(self, params: Any, example: tuple[jax.Array, jax.Array]) -> jax.Array:
        """Returns the loss of one example."""
        outputs = self.module.apply(params, example[0][None])[0]
        if self.task.target_range is None:
            return models.cross_entropy(outputs, example[1])
        squared = self.targets.in_loss(lambda one, other: jnp.square(one - other))
        return 0.5 * squared(outputs[0], example[1])

    def score(self, outputs: jax.Array, answers: jax.Array) -> jax.Array:
        """Returns the sum over records of a score in [0, 1], which selection counts by."""
        if self.task.metric == "r2":
            low, high = self.task.target_range or (0, 1)
            errors = jnp.abs(self.targets.predicted(outputs[:, 0]) - answers)
            return jnp.sum(1 - jnp.minimum(jnp.nan_to_num(4 * errors / (high - low), nan=1), 1))
        if self.task.metric == "accuracy":
            return jnp.sum(outputs.argmax(-1) == answers)
        losses = jax.vmap(models.cross_entropy)(outputs, answers)
        return jnp.sum(1 - jnp.clip(jnp.nan_to_num(losses, nan=jnp.inf), 0, 1))

    def value(self, outputs: np.ndarray, answers: np.ndarray) -> float:
        """Returns the metric on test records, in points; nothing below 0."""
        if self.task.metric == "r2":
            predicted = np.asarray(self.targets.predicted(jnp.asarray(outputs[:, 0])), np.float64)
            missed = np.mean(np.square(predicted - answers)) / np.var(answers)
            return 100 * max(0.0, 1 - float(missed)) if np.isfinite(missed) else 0.0
        if self.task.metric == "accuracy":
            return 100 * float(np.mean(outputs.argmax(-1) == answers))
        return 100 * average_precision(outputs[:, 1] - outputs[:, 0], answers == 1)


def average_precision(scores: np.ndarray, positive: np.ndarray) -> float:
    """Returns the mean over positive records of the precision down to their score."""
    order = np.argsort(-np.nan_to_num(scores, nan=-np.inf), kind="stable")
    found = positive[order]
    precision = np.cumsum(found) / np.arange(1, len(found) + 1)
    return float(precision[found].mean()) if found.any() else 0.0


@functools.lru_cache(maxsize=2)
def learner_of(name: str) -> Learner:
    """Returns the learner of a task; its model is public numbers' alone."""
    task, records = TASKS[name], len(split_of(name, 0).train[1])
    classes = len(task.values) or 1
    module: nn.Module
    if task.target_range is not None:
        module = models.MLP(WIDTHS, 1) if records >= NET_FROM else nn.Dense(1)
    elif task.kind == "table":
        module = tuning.public_model(records, classes)
    elif task.kind == "head":
        module = models.LogisticRegression(classes)
    else:
        module = {
            "text": BagOfEmbeddings, "recurrent": CharacterLSTM, "convolution": CharacterCNN
        }[task.kind](classes)  # fmt: skip
    return Learner(task, records, module)
