"""Checks of arguments: each returns the value, or raises one line that names the argument.

Only numbers count as numbers, NumPy's scalars among them: no text, no True, no list of one, no NaN.
It imports NumPy only.
"""

from __future__ import annotations

import contextlib
import math
import numbers
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np


def number(name: str, value: object, wanted: str = "a finite number", finite: bool = True) -> float:
    """Checks and returns `value` as a float; the message says what is `wanted`."""
    scalar = value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value
    if isinstance(scalar, numbers.Real) and not isinstance(scalar, bool | np.bool_):
        try:
            found = float(scalar)
        except OverflowError:
            found = math.inf
        if not math.isnan(found) and not (finite and math.isinf(found)):
            return found
    raise ValueError(f"{name} must be {wanted}, not {shown(value)}")


def positive(name: str, value: object) -> float:
    """Checks and returns `value` as a float above 0."""
    wanted = "finite and > 0"
    found = number(name, value, wanted)
    if not found > 0.0:
        raise ValueError(f"{name} must be {wanted}, not {shown(value)}")
    return found


def not_negative(name: str, value: object) -> float:
    """Checks and returns `value` as a float of at least 0."""
    wanted = "finite and >= 0"
    found = number(name, value, wanted)
    if not found >= 0.0:
        raise ValueError(f"{name} must be {wanted}, not {shown(value)}")
    return found


def probability(
    name: str, value: object, *, zero: bool = False, one: bool = False, hint: str = ""
) -> float:
    """Checks and returns `value` as a float between 0 and 1; the message ends with the hint.

    `zero` and `one` say whether these are allowed.
    """
    wanted = f"in {'[' if zero else '('}0, 1{']' if one else ')'}{hint}"
    found = number(name, value, wanted)
    if not (0.0 <= found <= 1.0) or (found == 0.0 and not zero) or (found == 1.0 and not one):
        raise ValueError(f"{name} must be {wanted}, not {shown(value)}")
    return found


def whole(name: str, value: object, smallest: float = 1) -> int:
    """Checks and returns `value` as an int of at least `smallest`; 3.0 is whole."""
    wanted = f"a whole number >= {smallest}"
    scalar = value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value
    if isinstance(scalar, numbers.Integral) and not isinstance(scalar, bool | np.bool_):
        found = int(scalar)
    else:
        real = number(name, value, wanted)
        found = int(real)
        if found != real:
            raise ValueError(f"{name} must be {wanted}, not {shown(value)}")
    if found < smallest:
        raise ValueError(f"{name} must be {wanted}, not {shown(value)}")
    return found


def flag(name: str, value: object) -> bool:
    """Checks and returns `value` as a bool; no text or number is read as one."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False, not {shown(value)}")
    return bool(value)


def array(name: str, value: object, wanted: str = "numbers", nan: bool = False) -> np.ndarray:
    """Checks and returns `value` as a float64 array of any shape."""
    try:
        found = plain_array(name, value)
    except ValueError:
        found = np.empty(0, dtype=object)
    if found.dtype.kind not in "iuf" or (not nan and np.any(np.isnan(found))):
        raise ValueError(f"{name} must be {wanted}, not {shown(value)}")
    return found.astype(np.float64)


def plain_array(name: str, value: object) -> np.ndarray:
    """Checks and returns `value` as NumPy's array; no message shows it, as it may be records."""
    if isinstance(value, np.ma.MaskedArray):
        raise ValueError(f"{name} must not be masked, as masks are not read: pass filled(...)")
    try:
        return np.asarray(value)
    except (TypeError, ValueError):
        kind = type(value).__name__
        raise ValueError(
            f"{name} must be an array, which NumPy cannot make of this {kind}"
        ) from None


def record_array(name: str, leaf: Any) -> None:
    """Refuses arrays (n, ...) of records that no model is trained on; no message shows a value."""
    dtype = leaf.dtype if hasattr(leaf, "sharding") else plain_array(name, leaf).dtype
    if isinstance(dtype, np.dtype) and dtype.kind in "OUSMmc":
        raise ValueError(f"{name} are {dtype}: pass arrays of real numbers, texts as whole numbers")
    if 0 in np.shape(leaf)[1:]:
        raise ValueError(f"{name} have shape {np.shape(leaf)}: pass at least one number a record")


def vector(name: str, value: object, finite: bool = True) -> np.ndarray:
    """Checks and returns `value` as a float64 array of one dimension, not empty."""
    wanted = f"a list of {'finite ' if finite else ''}numbers"
    found = array(name, value, wanted)
    if found.ndim != 1 or found.size == 0 or (finite and not np.all(np.isfinite(found))):
        raise ValueError(f"{name} must be {wanted}, not {shown(value)}")
    return found


def one_of(name: str, value: object, choices: Sequence[str]) -> str:
    """Checks and returns `value` as one of the words."""
    if not (isinstance(value, str) and value in choices):
        raise ValueError(f"unknown {name} {shown(value)}: pass one of {tuple(choices)}")
    return value


def text(name: str, value: object) -> str:
    """Checks and returns `value` as text."""
    if not isinstance(value, str):
        raise ValueError(f"{name} must be text, not {shown(value)}")
    return value


def path(name: str, value: object) -> str | os.PathLike[str]:
    """Checks and returns `value` as the path of a file or folder."""
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise ValueError(f"{name} must be a path, not {shown(value)}")
    return value


def function(name: str, value: object, wanted: str) -> None:
    """Refuses a `value` that cannot be called; `wanted` says what to pass."""
    if not callable(value):
        raise ValueError(f"{name} must be a function, {wanted}, not {shown(value)}")


def listed(name: str, value: object, wanted: str) -> list:
    """Returns the entries of a list or another collection, but of no text and no mapping."""
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
        # A 0-d array counts as an Iterable, but iterating over it is a TypeError.
        with contextlib.suppress(TypeError):
            return list(value)
    raise ValueError(f"{name} must be a list of {wanted}, not {shown(value)}")


def mapping(name: str, value: object, wanted: str) -> None:
    """Refuses a `value` that is no mapping; `wanted` says from what to what it should map."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be a mapping, {wanted}, not {shown(value)}")


def instance(name: str, value: object, kind: type, example: str) -> None:
    """Refuses a `value` that is not a `kind`, with an example of what to pass."""
    if not isinstance(value, kind):
        raise ValueError(f"{name} must be a {kind.__name__}, such as {example}, not {shown(value)}")


def kept(value: Any, found: float) -> float:
    """Returns `value` if it is an int or a float, else `found`, the float that a check returned.

    A setting is then recorded and hashed as it was passed, and JSON can hold it.
    """
    return value if type(value) in (int, float) else found


def shown(value: object) -> str:
    """Writes the value in one short line."""
    text = str(value) if isinstance(value, numbers.Real) else repr(value)
    text = " ".join(text.split())
    return text if len(text) <= 80 else text[:77] + "..."


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Returns the names whose values differ between two mappings, or that one of them lacks."""
    return [name for name in {**other, **one} if name not in one or one[name] != other.get(name)]
