"""Rounds numbers that are stated: up at a fixed digit, the same on every machine.

Processors, compilers and library versions disagree about the last digits of a price. A stated price
is therefore rounded up at its sixth significant digit, and recomputed ones are compared there.
"""

from __future__ import annotations

import math

MARGIN = 1e-8
"""Relative margin: far above the differences between machines, far below the sixth digit."""

FIELD, EPSILON_IS = "epsilon_is", "rounded up at its sixth significant digit"
"""The field in which a statement says how its epsilon was rounded, and its text."""


def six_digits_up(value: float) -> float:
    """Rounds up at the sixth significant digit, a margin for other machines included."""
    if not 0.0 < value < math.inf:
        return value
    raised = value * (1.0 + MARGIN)
    digits, exponent = _six_digits(raised)
    if float(f"{digits}e{exponent}") < raised:
        digits += 1
    return float(f"{digits}e{exponent}")


def place(value: float) -> float:
    """Returns one unit of the sixth significant digit of a number above 0."""
    return float(f"1e{_six_digits(value)[1]}")


def aim_below(target: float) -> float:
    """Returns the largest price that every machine states as at most `target`, which is above 0."""
    digits, exponent = _six_digits(target)
    if float(f"{digits}e{exponent}") > target:
        digits -= 1
    return float(f"{digits}e{exponent}") / (1.0 + 3.0 * MARGIN)


def _six_digits(value: float) -> tuple[int, int]:
    """Returns the nearest six digits and the power of ten of the last of them."""
    mantissa, exponent = f"{value:.5e}".split("e")
    return int(mantissa.replace(".", "")), int(exponent) - 5


LARGE_DELTA = 1e-3
"""Least delta that counts as large if the number of records is not known."""


def no_epsilon(least: float | None, delta: float) -> str:
    """Returns the message that no epsilon holds at a delta; `least` sums up the runs' own deltas.

    >>> no_epsilon(None, 1e-9)
    'no epsilon holds at delta 1e-09: pass a larger delta, or another base'
    """
    why = ""
    if least is not None and least > delta:
        why = (
            f", since the runs' own deltas add up to {least:.3g} (if you know the runs' noise, "
            "rate and steps, accounting.dp_sgd holds at any)"
        )
    return f"no epsilon holds at delta {delta:g}{why}: pass a larger delta, or another base"


def large_delta(delta: float, public_size: int | None = None) -> str | None:
    """Returns a warning if delta is so large that a whole record may be published, else None.

    Publishing each record with probability delta is (0, delta)-private; if delta is 1 /
    `public_size`, that publishes one record on average (Dwork & Roth 2014, Section 2.3).
    """
    if public_size is not None:
        if not 1.0 / public_size < delta < 1.0:
            return None
        return (
            f"delta {delta:g} is above 1/{public_size}, one over the number of records: it "
            "allows publishing a whole record"
        )
    if not LARGE_DELTA <= delta < 1.0:
        return None
    return f"delta {delta:g} is large: it allows publishing one record in {1.0 / delta:.0f}"
