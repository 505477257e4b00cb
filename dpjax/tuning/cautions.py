"""Warnings of what a release's reader would mind, from Python as from the command line."""

from __future__ import annotations

import os
import sys
import warnings

from dpjax.accounting.stated import large_delta

_LIBRARY = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class LargeDeltaWarning(UserWarning):
    """Delta is so large that publishing a whole record would be within it."""


class KnownRandomnessWarning(UserWarning):
    """A seed was given: the randomness is no secret, so nothing is guaranteed."""


class UntrainedReleaseWarning(UserWarning):
    """What is released was not trained; the release itself shows as much."""


def of_arguments(delta: float, public_size: int, seed: int | None) -> None:
    """Warns of a delta above one over the public number of training records, and of a seed."""
    words = large_delta(delta, public_size)
    if words is not None:
        warnings.warn(words, LargeDeltaWarning, stacklevel=users_level())
    if seed is not None:
        warnings.warn(
            "a seed makes the randomness known: no secret, no guarantee",
            KnownRandomnessWarning,
            stacklevel=users_level(),
        )


def of_untrained(why: str) -> None:
    """Warns that untrained parameters are released, and why."""
    warnings.warn(
        f"{why}: the model is an untrained default",
        UntrainedReleaseWarning,
        stacklevel=users_level(),
    )


def users_level() -> int:
    """Returns the `stacklevel` of the nearest call from outside the library, for a warning."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARY):
        level, frame = level + 1, frame.f_back
    return level
