"""What a session of tests prices more than once is computed once, in whichever process needs it.

Tests of tuners differ in what they look at, and mostly run the same law of K over the same small
runs; computing its profiles anew is most of their time. Kept is what four pure functions return,
by all they are given, value for value (arrays by their hash): a run that is rebuilt, calibrated or
tampered with is another key as soon as one bit of it differs, so no check of a price is answered by
what it should be compared with. Tests of the accounting itself do without (`USED` is false).
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pathlib
import pickle
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from dpjax import accounting
from dpjax.accounting.numerics import composition
from dpjax.accounting.numerics.loss_distribution import LossDistribution, LossPair
from dpjax.accounting.selection import best_of, split, threshold

USED = True
"""Whether what was kept is looked up."""

KEPT = (
    (best_of, "_selected_pair"),
    (threshold, "_stopped_pair"),
    (split, "_split_pair"),
    (composition, "_copies"),
)
"""Functions of pairs, laws of K and numbers alone, by their modules."""

IN_MEMORY = 8
"""Results of each function that a process holds; the folder has them all. Without a bound they grow
to gigabytes: a pair keeps what was computed from it."""


class _OwnValue(Exception):
    """An argument that its values do not tell apart."""


def keep_in(folder: str | os.PathLike[str]) -> None:
    """From now on results are kept in this folder, for other processes too."""
    for module, name in KEPT:
        setattr(module, name, _kept(getattr(module, name), pathlib.Path(folder)))


def _kept(function: Callable[..., Any], folder: pathlib.Path) -> Callable[..., Any]:
    @functools.wraps(function)
    def once(*arguments: Any, **options: Any) -> Any:
        if not USED:
            return function(*arguments, **options)
        try:
            words = [function.__name__, _key(arguments), _key(sorted(options.items()))]
        except _OwnValue:
            return function(*arguments, **options)
        key = hashlib.sha256(json.dumps(words).encode()).hexdigest()
        found = known.pop(key, None)
        if found is None:
            path = folder / key
            try:
                found = pickle.loads(path.read_bytes())
            except FileNotFoundError:
                found = function(*arguments, **options)
                with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
                    file.write(pickle.dumps(found))
                os.replace(file.name, path)
        known[key] = found
        while len(known) > IN_MEMORY:
            del known[next(iter(known))]  # Of all that is kept, what was not asked for longest.
        return found

    known: dict[str, Any] = {}
    return once


def _key(value: Any) -> Any:
    """The value in JSON, every bit of it."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | np.floating):
        return float(value).hex()
    if isinstance(value, list | tuple):
        return [_key(one) for one in value]
    if isinstance(value, LossPair):
        return [_key(value.forward), None if value.symmetric else _key(value.backward)]
    if isinstance(value, LossDistribution):
        masses = hashlib.sha256(np.ascontiguousarray(value.masses).tobytes()).hexdigest()
        return [*map(_key, (value.interval, int(value.lowest), value.infinity_mass)), masses]
    if isinstance(value, accounting.RepetitionLaw):
        return _key([type(value).__qualname__, json.dumps(value.to_dict())])
    raise _OwnValue
