"""Warnings of what a release's reader would mind, from Python as from the command line."""

from __future__ import annotations

import warnings


class LargeDeltaWarning(UserWarning):
    """Delta is so large that publishing a whole record would be within it."""


class KnownRandomnessWarning(UserWarning):
    """A seed was given: the randomness is no secret, so nothing is guaranteed."""


class UntrainedReleaseWarning(UserWarning):
    """What is released was not trained; the release itself shows as much."""


def of_arguments(delta: float, public_size: int, seed: int | None, *, stacklevel: int) -> None:
    """Warns of a delta above one over the public number of training records, and of a seed.

    Args:
      delta: of the whole procedure.
      public_size: of the training records.
      seed: None for the operating system's randomness.
      stacklevel: of the user's call, seen from the caller of this function.
    """
    if 1.0 / public_size < delta < 1.0:
        warnings.warn(
            f"delta {delta:g} is above 1/{public_size}, one over the number of records: publishing "
            "a whole record would be within it",
            LargeDeltaWarning,
            stacklevel=stacklevel + 1,
        )
    if seed is not None:
        warnings.warn(
            "a seed makes the randomness known: no secret, no guarantee",
            KnownRandomnessWarning,
            stacklevel=stacklevel + 1,
        )


def of_untrained(why: str, *, stacklevel: int) -> None:
    """Warns that untrained parameters are released, and why; arguments as above."""
    warnings.warn(
        f"{why}: the model is an untrained default", UntrainedReleaseWarning, stacklevel + 1
    )
