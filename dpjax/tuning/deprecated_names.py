"""Names of earlier versions: functions with one flat list of arguments, and a tuner now folded."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from typing import Any

from dpjax.tuning.problem.problem import RunOptions
from dpjax.tuning.problem.space import Space
from dpjax.tuning.problem.task import Task
from dpjax.tuning.tuner import Result, registered_tuners, tune

TUNERS = (
    "doubling",
    "exponential",
    "permute_and_flip",
    "random_repetitions",
    "subset_tuning",
    "threshold_stopping",
    "untuned",
)
"""Functions, kept for one version, each with a warning."""

FOLDED = "PermuteAndFlip"
"""A tuner that is a setting of another, `exponential`; kept for one version, with a warning."""

_FLIPS = {"mechanism": "permute_and_flip"}


def named(name: str) -> Any:
    """Returns the deprecated function of this name."""
    return functools.partial(_folded if name == FOLDED else _called, name)


def _folded(name: str, *given: Any, **more: Any) -> Any:
    """Makes `Exponential` with permute-and-flip, under the old name of that tuner."""
    cls = registered_tuners()["exponential"]
    _warn(f"tuning.{name}(...)", f"{cls.__name__}(..., mechanism={_FLIPS['mechanism']!r})")
    return cls(*given, **more, **_FLIPS)


def _called(name: str, /, task: Task, space: Space | None = None, **given: Any) -> Result | None:
    """Tunes with the tuner that has the name of an old function."""
    own = _FLIPS if name == "permute_and_flip" else {}
    cls = registered_tuners()["exponential" if own else name]
    _warn(
        f"tuning.{name}(task, space, ...)",
        f"tune(task, space, tuning.{cls.__name__}({'mechanism=..., ' if own else ''}...), "
        "run=tuning.RunOptions(...), ...)",
    )
    return tune_flat(cls, task, space, **own, **given)


def _warn(old: str, new: str) -> None:
    warnings.warn(f"{old} is deprecated: call tuning.{new}", DeprecationWarning, stacklevel=3)


def tune_flat(
    cls: type[Any], /, task: Task, space: Space | None = None, **given: Any
) -> Result | None:
    """Calls `tune`; the tuner and the run options take their fields, `tune` the rest."""

    def taken(by: type[Any]) -> Any:
        names = [field.name for field in dataclasses.fields(by) if field.name in given]
        return by(**{name: given.pop(name) for name in names})

    return tune(task, space, taken(cls), run=taken(RunOptions), **given)
