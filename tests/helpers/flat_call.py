"""Tunes with one flat list of arguments: those of the tuner, of its run and of `tuning.tune`."""

from __future__ import annotations

import dataclasses
import inspect

from dpjax import tuning


def arguments(cls: type) -> set[str]:
    """Names that `tune` takes for a tuner."""
    fields = {field.name for one in (cls, tuning.RunOptions) for field in dataclasses.fields(one)}
    return fields | set(inspect.signature(tuning.tune).parameters) - {"tuner", "run"}


def tune(cls: type, /, task: tuning.Task, space: tuning.Space | None = None, **given):
    """Calls `tuning.tune`; the tuner and the run options take their fields, `tune` the rest."""

    def taken(by: type):
        names = [field.name for field in dataclasses.fields(by) if field.name in given]
        return by(**{name: given.pop(name) for name in names})

    return tuning.tune(task, space, taken(cls), run=taken(tuning.RunOptions), **given)
