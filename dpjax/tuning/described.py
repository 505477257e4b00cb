"""What was trained, and how, in words and numbers for a release: code and public choices alone.

Nothing here reads a record, nor the value of a parameter: names of functions and of parameters,
shapes, and the settings that were fixed before the data was touched.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from dpjax.training import optimizers
from dpjax.training.dp_sgd import partition
from dpjax.tuning.evaluations.procedure import Optimizer
from dpjax.tuning.problem.run_settings import RunOptions, RunSetting
from dpjax.tuning.problem.task import Task

_COUNTS = ("lot_size", "steps")
"""Hyperparameters that are rounded to whole numbers where they are used."""

CANDIDATES = "a candidate, on all training records"
"""Which runs have the settings of a search, in words."""


def of_training(
    task: Task,
    optimizer: Optimizer,
    settings: Sequence[RunSetting],
    sampling: str,
    *,
    of: str = CANDIDATES,
) -> dict[str, Any]:
    """The arguments of `release.statement` that say what was trained.

    Args:
      task: what was learned; its loss and records are not looked at.
      optimizer: hyperparameters -> optax transformation.
      settings: the accounted settings that a run may have.
      sampling: "poisson" or "fixed".
      of: which runs have these settings, in words.
    """
    return {
        "model": task.description,
        "optimizer": of_optimizer(optimizer),
        "trained_parameters": trained_parameters(task),
        "settings": of_settings(settings, sampling, of=of),
        "training_records": {
            "public_size": task.train.public_size,
            "size_bound": task.train.size_bound,
            # Under replace-one the number is public: no neighbour has another.
            "number": task.train.number if sampling == "fixed" else None,
        },
    }


def of_settings(
    settings: Sequence[RunSetting], sampling: str, *, of: str = CANDIDATES
) -> list[dict[str, Any]]:
    """The accounted settings of runs; arguments as `of_training`'s."""
    return [
        {
            "lot_size": setting.lot_size,
            "steps": setting.steps,
            "noise_multiplier": setting.noise_multiplier,
            "probability": setting.probability,
            "sampling": sampling,
            "capacity": setting.lots.capacity,
            "of": of,
        }
        for setting in settings
    ]


def of_options(options: RunOptions) -> dict[str, Any]:
    """What was asked of a run beside the space, as plain numbers and words; None: not asked."""
    return {
        name: value if value is None or isinstance(value, str) else _plain(value)
        for name, value in dataclasses.asdict(options).items()
    }


def _plain(number: float) -> int | float:
    """A number without its NumPy type."""
    number = float(number)
    return int(number) if number.is_integer() else number


def of_optimizer(optimizer: Optimizer) -> dict[str, str]:
    """An optimiser's name, and its schedule where it is known.

    Returns:
      `name`, the public name of the function that made the optimiser, or of it; and for those of
      `dpjax.training` `learning_rate_schedule`. An optimiser with an attribute `description`, a
      mapping of strings, says both itself.
    """
    own = getattr(optimizer, "description", None)
    if isinstance(own, Mapping):
        return {str(name): str(words) for name, words in own.items()}
    described = {"name": _name(optimizer)}
    if getattr(optimizer, "__module__", None) == optimizers.__name__:
        # The functions of that module keep their schedule in this variable.
        schedule = inspect.getclosurevars(optimizer).nonlocals.get("schedule")
        described["learning_rate_schedule"] = "constant" if schedule is None else _name(schedule)
    return described


def _name(function: Callable[..., Any]) -> str:
    """Where a function's code stands; never its values, nor an address in memory."""
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__.split('.<locals>')[0]}"


def trained_parameters(task: Task) -> list[str]:
    """Names of the parameters that training changes, such as "params/Dense_0/kernel"."""
    trained = jax.eval_shape(
        lambda key: partition(task.initial(key), task.trainable)[0], jax.random.key(0)
    )
    return [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, _ in jax.tree_util.tree_leaves_with_path(trained)
    ]


def as_used(hyperparameters: Mapping[str, float | None]) -> dict[str, float | None]:
    """A candidate's hyperparameters as its run read them: lot size and steps are whole numbers."""
    return {
        name: int(round(value)) if name in _COUNTS and value is not None else value
        for name, value in hyperparameters.items()
    }
