"""The doubling loop of Ding & Wu (2022, Algorithm 1) as a state machine in whole steps.

The loop climbs towards the best utility: it proposes a threshold, asks a noisy query whether some
candidate reaches it, doubles its step after a hit and halves it after a miss. Thresholds are whole
multiples of the granularity: with floating-point thresholds and a granularity of 0.1 the loop runs
longer than its own bound, so nothing here is ever a fraction.

No randomness in `ThresholdLoop`; whoever runs it on private data draws the noise (`dpjax.tuning`).
"""

from __future__ import annotations

import math
from fractions import Fraction

from dpjax.checks import number, one_of, whole

ITERATIONS = "iterations"
"""Fresh threshold noise in every iteration: each iteration is charged."""

SEGMENTS = "segments"
"""Threshold noise kept until a hit: each hit is charged, and a last run of misses half."""


def _decimal(name: str, value: object) -> Fraction:
    """The number a person wrote: 0.01 means 1/100, not its nearest binary fraction."""
    return value if isinstance(value, Fraction) else Fraction(repr(number(name, value)))


def threshold_levels(granularity: float | Fraction, lower_bound: float | Fraction = 0.0) -> int:
    """Number N of thresholds, ceil((1 - lower_bound) / granularity), computed in exact decimals.

    Example:
      >>> from dpjax import accounting
      >>> accounting.threshold_levels(0.25)
      4

    Args:
      granularity: the smallest step of the threshold, in (0, 1 - lower_bound].
      lower_bound: utility known to be reached, in [0, 1).
    """
    lower, step = _decimal("lower_bound", lower_bound), _decimal("granularity", granularity)
    if not 0 <= lower < 1:
        raise ValueError(f"lower_bound must lie in [0, 1), for example 0.0; got {lower_bound}")
    if not 0 < step <= 1 - lower:
        raise ValueError(
            f"granularity must lie in (0, {float(1 - lower)}], for example 0.01; got {granularity}"
        )
    return math.ceil((1 - lower) / step)


def max_iterations(granularity: float | Fraction, lower_bound: float | Fraction = 0.0) -> int:
    """The most iterations the doubling loop can take, 2 N - 1 with N = `threshold_levels(...)`.

    Formal guarantees: holds for every sequence of answers, so it is known before any data are seen
    (checked exhaustively for N up to 14). Worst case: N hits of one step each, a miss before each
    but the first.

    Example: `max_iterations(granularity=0.01)` is 199.

    Example:
      >>> from dpjax import accounting
      >>> accounting.max_iterations(0.25)
      7
    """
    return 2 * threshold_levels(granularity, lower_bound) - 1


class ThresholdLoop:
    """Ding & Wu's loop, one answer at a time.

    Formal guarantees: never runs more than `min(2 * levels - 1, maximum_iterations)` iterations,
    nor past `maximum_hits` hits. What it costs is `accounting.doubling_loop` with the same caps.

    Example:
      loop = ThresholdLoop(threshold_levels(0.01))
      while not loop.finished:
        threshold = lower_bound + granularity * loop.propose()
        loop.record(noisy_answer(threshold))

    Example:
      >>> from dpjax import accounting
      >>> loop = accounting.ThresholdLoop(accounting.threshold_levels(0.25))
      >>> while not loop.finished:
      ...     threshold = 0.25 * loop.propose()
      ...     loop.record(threshold <= 0.6)  # Stands for a noisy answer.
      >>> loop.level, loop.iterations
      (2, 5)

    Attributes:
      level: thresholds passed so far, in units of the granularity.
      step: the next increase; 0 once the search is over.
      iterations: answers recorded.
      hits: how many of them were hits.
    """

    def __init__(
        self,
        levels: int,
        maximum_iterations: int | None = None,
        maximum_hits: int | None = None,
    ):
        self._levels = whole("levels", levels)
        self._maximum_iterations = 2 * self._levels - 1
        if maximum_iterations is not None:
            cap = whole("maximum_iterations", maximum_iterations)
            self._maximum_iterations = min(self._maximum_iterations, cap)
        self._maximum_hits = self._levels
        if maximum_hits is not None:
            cap = whole("maximum_hits", maximum_hits)
            self._maximum_hits = min(self._maximum_hits, cap)
        self.level, self.step, self.iterations, self.hits = 0, 1, 0, 0
        self._last_was_hit = True

    @property
    def finished(self) -> bool:
        """Whether the loop is over: step 0, top level, or a cap reached."""
        return (
            self.step == 0
            or self.level >= self._levels
            or self.iterations >= self._maximum_iterations
            or self.hits >= self._maximum_hits
        )

    @property
    def starts_segment(self) -> bool:
        """Whether the segment variant draws fresh threshold noise now: at first and after hits."""
        return self._last_was_hit

    def propose(self) -> int:
        """The next threshold, in units of the granularity above the lower bound."""
        if self.finished:
            raise ValueError("the loop is over, a query would not be charged: start a new loop")
        return self.level + self.step

    def record(self, hit: bool) -> None:
        """Takes the noisy answer to the proposed threshold."""
        proposed = self.propose()
        self.iterations += 1
        self._last_was_hit = bool(hit)
        if hit:
            self.hits += 1
            self.level = proposed
            self.step *= 2
        else:
            self.step //= 2


def check_variant(variant: str) -> None:
    """Raises ValueError for anything but "iterations" and "segments"."""
    one_of("variant", variant, (ITERATIONS, SEGMENTS))
