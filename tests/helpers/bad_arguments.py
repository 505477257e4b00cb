"""What every kind of argument must refuse, and the check that it does, in one line that names it.

Each room has a table of its public functions: name -> (function, {argument: (good value, kind)}). A
kind ending in "?" may be None; no kind, nothing of its own to refuse.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

NOT_NUMBERS = [
    math.nan,
    -math.inf,
    "1",
    b"1",
    (1.0,),
    [1.0],
    {"a": 1},
    True,
    np.bool_(True),
    1j,
    np.array([1.0, 2.0]),
    np.array("a"),
    object(),
    None,
]
NOT_TEXTS = [3, None, b"a", math.nan, True, ("a",)]
BAD = {
    "number": [*NOT_NUMBERS, math.inf, 10**400],
    "positive": [*NOT_NUMBERS, math.inf, 0.0, -1],
    "not negative": [*NOT_NUMBERS, math.inf, -1],
    "whole": [*NOT_NUMBERS, math.inf, 2.5, np.float64(2.5), -1, 0],
    "count": [*NOT_NUMBERS, math.inf, 2.5, -1],
    "flag": ["True", "", None, 0, 1, 1.0, math.nan, (True,), np.array([True])],
    "text": NOT_TEXTS,
    "path": [3, None, math.nan, True, ("a",), 2.5],
}
"""Kinds that mean the same in every room; each adds its own."""


def spec(call, **arguments):
    """(function, {name: (good value, kind)}); a kind ending in "?" may be None."""
    return call, arguments


def good(arguments: Mapping[str, tuple[Any, str]]) -> dict[str, Any]:
    """The good values of a row."""
    return {name: value for name, (value, _) in arguments.items()}


def check_refusals(
    name: str,
    call: Callable[..., Any],
    usual: Mapping[str, Any],
    kinds: Mapping[str, str],
    bad: Mapping[str, list],
    *,
    also: Mapping[str, set[str]] | None = None,
    errors: type[Exception] | tuple[type[Exception], ...] = (TypeError, ValueError),
) -> Iterator[tuple[str, str, str]]:
    """Calls with one bad argument at a time, the others as usual.

    Args:
      name: of the function, for a failure's words.
      call: takes all arguments by name.
      usual: good arguments.
      kinds: of them.
      bad: what each kind refuses.
      also: other words that an argument may be named by.
      errors: what a refusal may be.

    Yields:
      The argument, its kind, and what the refusal said.
    """
    for argument, kind in kinds.items():
        for value in bad[kind.rstrip("?")] if kind else ():
            if value is None and kind.endswith("?"):
                continue
            with pytest.raises(errors) as caught:
                call(**{**usual, argument: value})
                pytest.fail(f"{name}({argument}={value!r}) was accepted")
            said = str(caught.value)
            words = {argument, argument.rstrip("s"), argument.replace("_", " ")}
            words |= (also or {}).get(argument, set())
            assert any(word in said for word in words), (name, argument, value, said)
            assert "\n" not in said and len(said) < 300, (name, argument, value, said)
            yield argument, kind.rstrip("?"), said
