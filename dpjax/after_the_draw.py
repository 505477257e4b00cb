"""Turns failures after the draw is spent into warnings: none of them costs the release.

A release cannot be made a second time without paying again. So whatever runs after the draw and is
no part of the release (cautions, plots, pages, callbacks, clearing up) runs in here.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

_LIBRARY = os.path.dirname(os.path.abspath(__file__)) + os.sep


class AfterTheDrawWarning(UserWarning):
    """Something beside the release failed, after the draw had been spent; the release is whole."""


def told(words: str | Warning, category: type[Warning] | None = None) -> None:
    """Warns after the draw, and never raises: a warning turned into an error goes to stderr."""
    try:
        warnings.warn(words, category, stacklevel=users_level())
    except (Exception, SystemExit):  # A closed terminal, too: rich exits there.
        with contextlib.suppress(Exception):
            print(f"warning: {words}", file=sys.stderr)


@contextlib.contextmanager
def beside_the_release(what: str) -> Iterator[None]:
    """Runs a block that the release does not need: if it fails, warns instead of raising.

    The warning names only the kind of error: its text may quote records.
    """
    try:
        yield
    except Exception as error:
        why = type(error).__name__
        if isinstance(error, OSError) and error.strerror:
            why = f"{error.strerror}{f', {error.filename}' if error.filename else ''}"
        told(f"{what} failed ({why}): the release is whole without it", AfterTheDrawWarning)


def harmless(what: str, function: Callable[..., object]) -> Callable[..., None]:
    """Wraps a caller's function: an `Exception` becomes a warning, its result is dropped."""

    def called(*arguments: Any) -> None:
        with beside_the_release(what):
            function(*arguments)

    return called


def users_level() -> int:
    """Returns the `stacklevel` of the nearest call from outside the library, for a warning."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARY):
        level, frame = level + 1, frame.f_back
    return level
