"""Functions of earlier versions, one a tuner: each is `tune` with one flat list of arguments."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from typing import Any

from dpjax.tuning.problem.run_shape import RunOptions
from dpjax.tuning.problem.space import Space
from dpjax.tuning.problem.task import Task
from dpjax.tuning.tuner import Result, registered_tuners, tune

TUNERS = (
    "doubling",
    "exponential",
    "extrapolation",
    "permute_and_flip",
    "random_repetitions",
    "subset_tuning",
    "threshold_stopping",
    "untuned",
)
"""Kept for one version, each with a warning."""


def function(name: str) -> Any:
    """Returns the function that `tuning` had by this name."""
    return functools.partial(_called, name)


def _called(name: str, /, task: Task, space: Space | None = None, **given: Any) -> Result | None:
    cls = registered_tuners()[name]
    warnings.warn(
        f"tuning.{name}(task, space, ...) is deprecated: call "
        f"tuning.tune(task, space, tuning.{cls.__name__}(...), run=tuning.RunOptions(...), ...)",
        DeprecationWarning,
        stacklevel=2,
    )
    return tune_flat(cls, task, space, **given)


def tune_flat(
    cls: type[Any], /, task: Task, space: Space | None = None, **given: Any
) -> Result | None:
    """Calls `tune`, each argument given to whichever has it: the tuner, its run, or `tune`."""

    def taken(by: type[Any]) -> Any:
        names = [field.name for field in dataclasses.fields(by) if field.name in given]
        return by(**{name: given.pop(name) for name in names})

    return tune(task, space, taken(cls), run=taken(RunOptions), **given)
