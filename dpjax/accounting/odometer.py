"""A privacy odometer for loops that stop when the data say so.

An odometer says how much a run has cost so far. It is NOT an (epsilon, delta) guarantee of that
run: the number it shows depends on the data. What a release may claim is `accounting.doubling_loop`
with its cap. To keep the two apart, neither class here has the methods of a `Guarantee`, and asking
for one of them, or composing, is refused with a sentence.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NoReturn

import numpy as np

from dpjax.accounting.mechanisms.sparse_vector import doubling_loop
from dpjax.checks import positive, probability, whole

_REFUSED = frozenset(
    ("epsilon", "delta", "rdp", "to_pld", "pair", "renyi", "relation", "provenance", "pure_epsilon")
)
_REFUSAL = (
    "an odometer reading depends on the data and is no differential privacy guarantee: use "
    "accounting.doubling_loop with a cap for a Guarantee"
)


class NotAGuaranteeError(AttributeError, ValueError):
    """An odometer was asked for what only a Guarantee has."""


class _NoGuarantee:
    """Refuses, by name, everything that would make it pass for a Guarantee."""

    def __getattr__(self, name: str) -> Any:
        if name in _REFUSED:
            raise NotAGuaranteeError(_REFUSAL)
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    def __float__(self) -> NoReturn:
        raise NotAGuaranteeError(_REFUSAL)


@dataclasses.dataclass(frozen=True)
class OdometerReading(_NoGuarantee):
    """One reading; not a differential privacy guarantee.

    Example:
      >>> from dpjax import accounting
      >>> accounting.Odometer(0.1, failure_probability=1e-5).read(3).iterations
      3

    Attributes:
      privacy_loss_so_far: bound on the realised privacy loss, in nats.
      iterations: how many had happened.
      checkpoint: the number of iterations it was charged as.
      failure_probability: that any reading of this odometer, ever, is too small.
    """

    privacy_loss_so_far: float
    iterations: int
    checkpoint: int
    failure_probability: float

    def __repr__(self) -> str:
        return (
            f"OdometerReading(NOT a differential privacy guarantee: privacy loss at most "
            f"{self.privacy_loss_so_far:.4g} after {self.iterations} iterations, except with "
            f"probability {self.failure_probability:g} over all readings)"
        )


class Odometer(_NoGuarantee):
    """Running bound on the realised privacy loss of adaptively many pure mechanisms.

    Formal guarantees: with probability at least 1 - failure_probability over the mechanisms' own
    randomness, the realised privacy loss at the moment of stopping is at most the reading at that
    moment, for every data-dependent stopping rule. Proof: the i-th checkpoint T_i gets
    failure_probability / (i (i + 1)), which sum to the whole. A run stopped by then is a
    composition of T_i mechanisms padded with ones that do nothing, so its profile is at most H,
    that of T_i randomised responses; and P[loss > x] <= H(y) / (1 - e^{y - x}) for every y < x.
    Union bound over checkpoints (Rogers, Roth, Ullman & Vadhan 2016 for the notion).

    Example:
      >>> from dpjax import accounting
      >>> odometer = accounting.Odometer(0.1, failure_probability=1e-5)
      >>> print(f"{odometer.read(20).privacy_loss_so_far:.2f} so far, not a guarantee")
      2.00 so far, not a guarantee

    Args:
      epsilon_per_iteration: each mechanism's pure epsilon.
      failure_probability: total over all readings, in (0, 1).
      first_checkpoint: T_1, fixed beforehand; later ones double.

    Raises:
      ValueError: for arguments out of range.
    """

    def __init__(
        self,
        epsilon_per_iteration: float,
        failure_probability: float,
        *,
        first_checkpoint: int = 8,
    ):
        self._epsilon = positive("epsilon_per_iteration", epsilon_per_iteration)
        self._failure_probability = probability(
            "failure_probability", failure_probability, hint=", for example 1e-5"
        )
        self._first = whole("first_checkpoint", first_checkpoint)

    def __repr__(self) -> str:
        return (
            f"Odometer(NOT a differential privacy guarantee: epsilon {self._epsilon:g} an "
            f"iteration, failure probability {self._failure_probability:g})"
        )

    def read(self, iterations: int) -> OdometerReading:
        """The reading after some iterations.

        Raises:
          ValueError: unless iterations is a whole number of at least 1.
        """
        iterations = whole("iterations", iterations)
        number = 1
        while self._first << (number - 1) < iterations:
            number += 1
        checkpoint = self._first << (number - 1)
        share = self._failure_probability / (number * (number + 1))
        loss = min(_loss_quantile(self._epsilon, checkpoint, share), iterations * self._epsilon)
        return OdometerReading(loss, iterations, checkpoint, self._failure_probability)


@functools.lru_cache(maxsize=256)
def _loss_quantile(epsilon: float, count: int, probability: float) -> float:
    """x with P[loss > x] <= probability: min over y of y - log(1 - H(y) / probability)."""
    pair = doubling_loop(epsilon, count).pair
    start = pair.epsilon(0.999 * probability)
    # H falls fast, so the best y lies within a few units (or fractions of one) of the start.
    span = min(count * epsilon - start, 20.0)
    grid = np.append(start + span * np.geomspace(1e-6, 1.0, 400), start)
    share = pair.delta(grid) / probability
    below = share < 1.0
    if not below.any():
        return count * epsilon
    best = np.min(grid[below] - np.log1p(-share[below]))
    return min(float(best), count * epsilon) if math.isfinite(best) else count * epsilon
