"""Tunes with one flat list of arguments: those of the tuner, of its run and of `tuning.tune`."""

from __future__ import annotations

import dataclasses
import inspect

from dpjax import tuning
from dpjax.tuning import deprecated_names

tune = deprecated_names.tune_flat


def arguments(cls: type) -> set[str]:
    """Names that `tune` takes for a tuner."""
    fields = {field.name for one in (cls, tuning.RunOptions) for field in dataclasses.fields(one)}
    return fields | set(inspect.signature(tuning.tune).parameters) - {"tuner", "run"}
