"""Checks of arguments: each returns the value, or raises one line that names the argument.

Only numbers count as numbers, NumPy's scalars among them: no text, no True, no list of one, no NaN.
The error is a `Refused`, which holds the argument's name and value as data. This module imports
NumPy only.
"""

from __future__ import annotations

import contextlib
import math
import numbers
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np


class Words:
    """Text of an error or a warning: names settings as Python does until `name_flags` is called.

    Each of `args` is a text or a setting, a tuple of up to three: the name, the value that was
    passed (`...` stands for any), and where Python writes it, such as "run=RunOptions({})".
    """

    args: tuple[Any, ...]

    def __str__(self) -> str:
        return "".join(one if isinstance(one, str) else _in_python(*one) for one in self.args)

    def name_flags(self, flags: Mapping[str, str]) -> None:
        """Names settings as the command line does, if `flags` (setting -> flag) has them."""
        self.args = tuple(
            one
            if isinstance(one, str) or one[0] not in flags
            else _as_flag(flags[one[0]], *one[1:])
            for one in self.args
        )


class Refused(Words, ValueError):
    """An argument cannot be used.

    Example:
      >>> print(Refused(("values", (1, 0)), ": pass numbers above 0"))
      values=(1, 0): pass numbers above 0

    The command line prints "--values=1,0: pass numbers above 0".
    """


_NAMED = object()
"""Stands for no value: only the setting's name is shown."""


def _in_python(name: str, value: object = _NAMED, where: str = "{}") -> str:
    found = "..." if value is ... else shown(value)
    return where.format(name if value is _NAMED else f"{name}={found}")


def _as_flag(flag: str, value: object = _NAMED, where: str = "") -> str:
    if value is _NAMED or value is True:
        return f"--{flag}"
    if value is False:
        return f"--no{flag}"
    if isinstance(value, list | tuple):
        value = ",".join(map(str, value))
    found = "..." if value is ... else value if isinstance(value, str) else shown(value)
    return f"--{flag}={found}"


def refused(name: str, value: object, wanted: str) -> Refused:
    """Returns the error for a `value` that is not what is `wanted`."""
    return Refused((name,), f" must be {wanted}, not {shown(value)}")


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
    raise refused(name, value, wanted)


LARGEST, LARGEST_WHOLE = 1e60, 10**100
"""Of numbers, and of 1 over a number above 0: their fourth powers are floats; of integers."""

LEAST_PROBABILITY = 1e-300
"""Least probability where 0 is refused: 1 over a much smaller one is infinite."""


def positive(name: str, value: object) -> float:
    """Checks and returns `value` as a float above 0, from 1e-60 to 1e60."""
    wanted = "finite and > 0"
    found = number(name, value, wanted)
    if not found > 0.0:
        raise refused(name, value, wanted)
    if not 1 / LARGEST <= found <= LARGEST:
        raise refused(name, value, f"from {1 / LARGEST:g} to {LARGEST:g}")
    return found


def not_negative(name: str, value: object) -> float:
    """Checks and returns `value` as a float: 0, or from 1e-60 to 1e60."""
    wanted = "finite and >= 0"
    found = number(name, value, wanted)
    if not found >= 0.0:
        raise refused(name, value, wanted)
    return positive(name, value) if found else 0.0


def probability(
    name: str, value: object, *, zero: bool = False, one: bool = False, hint: str = ""
) -> float:
    """Checks and returns `value` as a float between 0 and 1; the message ends with the hint.

    `zero` and `one` say whether these are allowed.
    """
    wanted = f"in {'[' if zero else '('}0, 1{']' if one else ')'}{hint}"
    found = number(name, value, wanted)
    if not (0.0 <= found <= 1.0) or (found == 0.0 and not zero) or (found == 1.0 and not one):
        raise refused(name, value, wanted)
    if found < LEAST_PROBABILITY and not zero:
        raise refused(name, value, f"at least {LEAST_PROBABILITY:g}")
    return found


def whole(name: str, value: object, smallest: float = 1) -> int:
    """Checks and returns `value` as an int from `smallest` to 1e100; 3.0 is whole."""
    wanted = f"a whole number >= {smallest}"
    scalar = value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value
    if isinstance(scalar, numbers.Integral) and not isinstance(scalar, bool | np.bool_):
        found = int(scalar)
    else:
        real = number(name, value, wanted)
        found = int(real)
        if found != real:
            raise refused(name, value, wanted)
    if found < smallest:
        raise refused(name, value, wanted)
    if found > LARGEST_WHOLE:
        raise refused(name, value, f"at most {LARGEST_WHOLE:.0e}")
    return found


def flag(name: str, value: object) -> bool:
    """Checks and returns `value` as a bool; no text or number is read as one."""
    if not isinstance(value, bool | np.bool_):
        raise refused(name, value, "True or False")
    return bool(value)


def array(name: str, value: object, wanted: str = "numbers", nan: bool = False) -> np.ndarray:
    """Checks and returns `value` as a float64 array of any shape."""
    try:
        found = plain_array(name, value)
    except ValueError:
        found = np.empty(0, dtype=object)
    if found.dtype.kind not in "iuf" or (not nan and np.any(np.isnan(found))):
        raise refused(name, value, wanted)
    return found.astype(np.float64)


def plain_array(name: str, value: object) -> np.ndarray:
    """Checks and returns `value` as a NumPy array; messages never show it: it may hold records."""
    if isinstance(value, np.ma.MaskedArray):
        raise Refused((name,), " must not be masked, as masks are not read: pass filled(...)")
    try:
        return np.asarray(value)
    except (TypeError, ValueError):
        kind = type(value).__name__
        wanted = f" must be an array, and NumPy cannot convert this {kind} to one"
        raise Refused((name,), wanted) from None


def record_array(name: str, leaf: Any) -> None:
    """Refuses record arrays (n, ...) that no model can train on; messages never show a value."""
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
        raise refused(name, value, wanted)
    return found


def one_of(name: str, value: object, choices: Sequence[str]) -> str:
    """Checks and returns `value` as one of the words."""
    if not (isinstance(value, str) and value in choices):
        raise Refused("unknown ", (name,), f" {shown(value)}: pass one of {tuple(choices)}")
    return value


def text(name: str, value: object) -> str:
    """Checks and returns `value` as text."""
    if not isinstance(value, str):
        raise refused(name, value, "text")
    return value


def path(name: str, value: object) -> str | os.PathLike[str]:
    """Checks and returns `value` as the path of a file or folder."""
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise refused(name, value, "a path")
    return value


def function(name: str, value: object, wanted: str) -> None:
    """Refuses a `value` that cannot be called; `wanted` says what to pass."""
    if not callable(value):
        raise refused(name, value, f"a function, {wanted}")


def listed(name: str, value: object, wanted: str) -> list:
    """Returns the entries of a list or another iterable; refuses text and mappings."""
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
        # A 0-d array counts as an Iterable, but iterating over it is a TypeError.
        with contextlib.suppress(TypeError):
            return list(value)
    raise refused(name, value, f"a list of {wanted}")


def mapping(name: str, value: object, wanted: str) -> None:
    """Refuses a `value` that is no mapping; `wanted` says what it should map to what."""
    if not isinstance(value, Mapping):
        raise refused(name, value, f"a mapping, {wanted}")


def instance(name: str, value: object, kind: type, example: str) -> None:
    """Refuses a `value` that is not a `kind`, with an example of what to pass."""
    if not isinstance(value, kind):
        raise refused(name, value, f"a {kind.__name__}, such as {example}")


def kept(value: Any, found: float) -> float:
    """Returns `value` if it is an int or a float, else `found`, the float that a check returned.

    A setting is then recorded and hashed as it was passed, and JSON can hold it.
    """
    return value if type(value) in (int, float) else found


def shown(value: object) -> str:
    """Writes the value in one short line."""
    try:
        text = str(value) if isinstance(value, numbers.Real) else repr(value)
    except Exception:  # Nested too deeply, or a mistake in somebody's own __repr__.
        text = f"a {type(value).__name__}"
    text = " ".join(text.split())
    return text if len(text) <= 80 else text[:77] + "..."


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Returns the names whose values differ between two mappings, or that one of them lacks."""
    return [name for name in {**other, **one} if name not in one or one[name] != other.get(name)]
