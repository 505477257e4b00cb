"""Small problems made to reveal one record, its canary, as well as possible: audits run on them.

Each has two data sets, which differ by the canary. All are small enough for ten thousand trainings
at once, and every number of the model, its loss and its score is known, and so is what an adversary
would look at.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax import checks, training
from dpjax.auditing.executions import Released
from dpjax.training.optimizers import Optimizer
from dpjax.tuning.problem.task import Records, Task

RECORDS = 8
"""Public number of training records, the canary among them, unless an audit asks for another."""


@dataclasses.dataclass(frozen=True)
class Canary:
    """One record, and a problem that shows it.

    Attributes:
      name: unique.
      shows: how the problem reveals the record, as text.
      task: (whether the record is there, public number of training records) -> the task.
      numbers: released models -> (executions,) numbers, one each, that depend on the record.
      optimizer: the one with which the record shows best.
    """

    name: str
    shows: str
    task: Callable[[bool, int], Task]
    numbers: Callable[[Released], np.ndarray]
    optimizer: Optimizer = dataclasses.field(default_factory=training.sgd)


def _rates(released: Released) -> np.ndarray:
    """Returns the released learning rates; 1 if none was released."""
    rates = np.asarray(released.hyperparameters.get("learning_rate", np.ones(1)), np.float64)
    return np.where(np.isfinite(rates) & (rates > 0), rates, 1.0)


def _per_rate(place: Callable[[Any], np.ndarray]) -> Callable[[Released], np.ndarray]:
    """Makes an adversary that reads one parameter and divides it by the learning rate."""

    def numbers(released: Released) -> np.ndarray:
        return np.asarray(place(released.params), np.float64) / _rates(released)

    return numbers


def _records(rows: Any, public_size: int) -> Records:
    """Returns records identified by their place; the canary, if there, is the last."""
    number = len(jax.tree.leaves(rows)[0])
    return Records(
        rows,
        public_size=public_size,
        size_bound=public_size,
        identifiers=np.arange(number, dtype=np.int64),
        stable_under_removal=True,
    )


def _thresholds() -> Records:
    """Makes validation records, each predicted correctly by a number above its threshold."""
    return Records(np.linspace(-3.0, 3.0, 61, dtype=np.float32), public_size=61, size_bound=61)


def _gradient(with_record: bool, records: int = RECORDS) -> Task:
    """Makes a task whose one parameter only the canary moves."""
    values = np.zeros(records - 1 + with_record, np.float32)
    if with_record:
        values[-1] = 1.0
    return Task(
        initial=lambda key: jnp.zeros(()),
        loss=lambda params, value: -params * value,
        correct=lambda params, threshold: params > threshold,
        train=_records(values, records),
        validation=_thresholds(),
    )


def _logistic(inputs: np.ndarray, labels: np.ndarray, records: int, watched: int) -> Task:
    """Makes a linear model's task with two labels; the score prefers one weight large or small."""
    direction = 1.0 if watched else -1.0

    def loss(params: Any, record: Mapping[str, Any]) -> Any:
        return optax.sigmoid_binary_cross_entropy(record["inputs"] @ params, record["labels"])

    rows = {"inputs": inputs.astype(np.float32), "labels": labels.astype(np.float32)}
    return Task(
        initial=lambda key: jnp.zeros(2),
        loss=loss,
        correct=lambda params, threshold: direction * params[watched] > threshold,
        train=_records(rows, records),
        validation=_thresholds(),
    )


def _rare_feature(with_record: bool, records: int = RECORDS) -> Task:
    """Makes a task in which the canary alone has the second feature."""
    inputs = np.tile([1.0, 0.0], (records - 1 + with_record, 1))
    if with_record:
        inputs[-1] = [0.0, 10.0]
    return _logistic(inputs, np.ones(len(inputs)), records, watched=1)


def _mislabelled(with_record: bool, records: int = RECORDS) -> Task:
    """Makes a task in which the canary has the other label and a large input."""
    inputs = np.tile([1.0, 0.0], (records - 1 + with_record, 1))
    labels = np.ones(len(inputs))
    if with_record:
        inputs[-1] = [10.0, 0.0]
        labels[-1] = 0.0
    return _logistic(inputs, labels, records, watched=0)


def _validation(with_record: bool, records: int = RECORDS) -> Task:
    """Makes a task whose canary, a validation record, is predicted correctly by numbers above 0."""
    thresholds = np.array([-np.inf, 0.0] if with_record else [-np.inf], np.float32)
    return Task(
        initial=lambda key: jnp.zeros(()),
        loss=lambda params, value: -params * value,
        correct=lambda params, threshold: params > threshold,
        train=_records(np.zeros(records, np.float32), records),
        validation=Records(thresholds, public_size=2, size_bound=2),
    )


class _Canaries(dict[str, Canary]):
    """Canaries by name; an unknown name is refused."""

    def __missing__(self, name: object) -> Canary:
        raise ValueError(f"unknown canary {checks.shown(name)}: pass one of {tuple(self)}")


CANARIES = _Canaries(
    (canary.name, canary)
    for canary in (
        Canary(
            "gradient",
            "the model is one number and no other record moves it; the score prefers it larger",
            _gradient,
            _per_rate(lambda params: params),
        ),
        Canary(
            "rare feature",
            "a logistic model; the record alone has the second feature",
            _rare_feature,
            _per_rate(lambda params: params[:, 1]),
        ),
        Canary(
            "mislabelled record",
            "a logistic model; the record has the other label, and a large input",
            _mislabelled,
            _per_rate(lambda params: params[:, 0]),
        ),
        Canary(
            "validation record",
            "no training record moves the model; the record is right about positive numbers only",
            _validation,
            lambda released: np.sign(np.asarray(released.params, np.float64)),
        ),
    )
)
"""The canaries by name; a new one is one more entry."""
