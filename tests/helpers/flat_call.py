"""Tunes with one flat list of arguments: those of the tuner, of its run and of `tuning.tune`."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from dpjax import tuning


def tune(cls: type, task: tuning.Task, space: tuning.Space | None = None, **given: Any) -> Any:
    """Returns `tuning.tune`'s result, each argument given to whichever of the three has it."""
    of_tuner, of_run = (
        {
            field.name: given.pop(field.name)
            for field in dataclasses.fields(one)
            if field.name in given
        }
        for one in (cls, tuning.RunOptions)
    )
    return tuning.tune(task, space, cls(**of_tuner), run=tuning.RunOptions(**of_run), **given)


def arguments(cls: type) -> set[str]:
    """Names that `tune` takes for a tuner."""
    fields = {field.name for one in (cls, tuning.RunOptions) for field in dataclasses.fields(one)}
    return fields | set(inspect.signature(tuning.tune).parameters) - {"tuner", "run"}
