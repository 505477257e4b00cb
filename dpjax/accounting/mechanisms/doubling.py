"""Sparse-vector selections: Ding & Wu's doubling loop (2022) and DPareto's example (2020).

The loop climbs towards the best utility: it proposes a threshold, asks whether some candidate's
noisy utility reaches a noisy threshold, doubles its step after a hit and halves it after a miss
(Algorithm 1). One iteration is AboveThreshold, epsilon-DP with Laplace noise of scale 2 Delta /
epsilon on the threshold and 4 Delta / epsilon on each utility, Delta = 1/k the sensitivity of a
utility. How many iterations there are depends on the data, so a cost "of the iterations that
happened" is no guarantee; what is charged here is a cap known beforehand.

Preconditions, which this module cannot check:
  - Delta: each record's partition must not depend on other records or on their number. Under
    add-or-remove one give each record an independent uniform label or a keyed hash of its id; under
    replace one the replacement keeps the slot's partition (a hash that moves with the record costs
    2/k). An empty partition gets a fixed score.
  - No hit at all releases a candidate fixed without the data. The final training is composed.
  - The noise is drawn exactly, or at least in float64; a float32 Laplace draw never exceeds 16.6
    scales.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import scipy

from dpjax.accounting import provenance
from dpjax.accounting.guarantee import Guarantee, pure_pair
from dpjax.accounting.mechanisms.elementary import pure
from dpjax.accounting.mechanisms.mechanism import mechanism
from dpjax.accounting.numerics.composition import composition
from dpjax.accounting.numerics.loss_distribution import LossDistribution, LossPair
from dpjax.accounting.numerics.renyi import RenyiCurve, pure_curve
from dpjax.checks import (
    LEAST_PROBABILITY,
    Refused,
    number,
    one_of,
    positive,
    probability,
    refused,
    whole,
)
from dpjax.neighbouring import ADD_OR_REMOVE_ONE, normalise_relation

ITERATIONS = "iterations"
"""Fresh threshold noise in every iteration: each iteration is charged."""

SEGMENTS = "segments"
"""Threshold noise kept until a hit: each hit is charged; misses after the last cost half a hit."""

MOST_RESPONSES = 1 << 17
"""Most randomised responses whose binomial losses are tabulated; more are composed as usual."""


def _decimal(name: str, value: object) -> Fraction:
    """Returns the number that a person wrote: 0.01 means 1/100, not its nearest binary fraction."""
    return value if isinstance(value, Fraction) else Fraction(repr(number(name, value)))


def threshold_levels(granularity: float | Fraction, lower_bound: float | Fraction = 0.0) -> int:
    """Returns the number of thresholds N, ceil((1 - lower_bound) / granularity), by exact decimals.

    Args:
      granularity: the smallest step of the threshold, in (0, 1 - lower_bound].
      lower_bound: utility known to be reached, in [0, 1).
    """
    lower, step = _decimal("lower_bound", lower_bound), _decimal("granularity", granularity)
    if not 0 <= lower < 1:
        raise refused("lower_bound", lower_bound, "in [0, 1), such as 0.0")
    if not LEAST_PROBABILITY <= step <= 1 - lower:
        raise refused("granularity", granularity, f"in (0, {float(1 - lower)}], such as 0.01")
    return math.ceil((1 - lower) / step)


def max_iterations(granularity: float | Fraction, lower_bound: float | Fraction = 0.0) -> int:
    """Returns the most iterations the doubling loop can take, 2 N - 1, N = `threshold_levels(...)`.

    Formal guarantees: holds for every sequence of answers, so it is known before any data are seen
    (checked exhaustively for N up to 14). Worst case: N hits of one step each, a miss before each
    but the first.
    """
    return 2 * threshold_levels(granularity, lower_bound) - 1


class ThresholdLoop:
    """Runs Ding & Wu's loop, one answer at a time.

    Formal guarantees: never runs more than `min(2 * levels - 1, maximum_iterations)` iterations,
    nor past `maximum_hits` hits. What it costs is `accounting.doubling_loop` with the same caps.

    Thresholds are whole multiples of the granularity: with floating-point thresholds and a
    granularity of 0.1 the loop runs longer than its own bound. No randomness here: whoever runs it
    on private data draws the noise.

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
        self, levels: int, maximum_iterations: int | None = None, maximum_hits: int | None = None
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
        """Returns whether the loop is over: step 0, top level, or a cap reached."""
        return (
            self.step == 0
            or self.level >= self._levels
            or self.iterations >= self._maximum_iterations
            or self.hits >= self._maximum_hits
        )

    @property
    def starts_segment(self) -> bool:
        """Returns whether a segment begins: first and after a hit, with fresh threshold noise."""
        return self._last_was_hit

    def propose(self) -> int:
        """Returns the next threshold, in units of the granularity above the lower bound."""
        if self.finished:
            raise ValueError("the loop is over, and a query would not be charged: start a new loop")
        return self.level + self.step

    def record(self, hit: bool) -> None:
        """Records the noisy answer to the proposed threshold, and sets the next step."""
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
    """Refuses anything but "iterations" and "segments"."""
    one_of("variant", variant, (ITERATIONS, SEGMENTS))


def doubling_loop(
    epsilon_per_iteration: float,
    iterations: int | None = None,
    *,
    granularity: float | None = None,
    lower_bound: float = 0.0,
    variant: str = ITERATIONS,
    hits: int | None = None,
    relation: object = ADD_OR_REMOVE_ONE,
) -> Guarantee:
    """Returns the cost of Ding & Wu's doubling loop, by optimal composition.

    Formal guarantees: whatever the data, the loop is (padded with steps that do nothing) an
    adaptive composition of exactly T mechanisms that are each epsilon_per_iteration-DP, so it is
    dominated by T randomised responses (Kairouz, Oh & Viswanath 2015), whose losses are binomial
    and kept without rounding (on a grid, rounded up, above 131,072 of them).
      - variant="iterations": fresh threshold noise in every iteration; T is the smaller of the cap
        `iterations` and the loop's own bound 2N - 1.
      - variant="segments": threshold noise kept through consecutive misses, redrawn after a hit. A
        segment that ends in a hit is one AboveThreshold; a last one without a hit costs half and is
        dominated by the hit it replaces. T is the smallest of `hits`, `iterations` and N.
    N = ceil((1 - lower_bound) / granularity). The caps must be enforced: `ThresholdLoop` does.

    Example:
      >>> from dpjax import accounting
      >>> print(f"{accounting.doubling_loop(0.1, iterations=20).epsilon(1e-5):.2f}")
      1.60

    Args:
      epsilon_per_iteration: epsilon of one iteration (or segment), above 0.
      iterations: cap on the iterations, fixed beforehand.
      granularity: smallest step of the threshold; with it the loop's own bound is used.
      lower_bound: utility known to be reached, in [0, 1).
      variant: "iterations" or "segments".
      hits: cap on the hits, in the segment variant.
      relation: neighbouring relation under which the utilities have their sensitivity.
    """
    epsilon = positive("epsilon_per_iteration", epsilon_per_iteration)
    check_variant(variant)
    if hits is not None and variant != SEGMENTS:
        raise Refused(("hits",), " caps one variant alone: pass ", ("variant", SEGMENTS))
    # How long the loop runs depends on the records, so only a public cap may be charged.
    caps = [whole("iterations", iterations)] if iterations is not None else []
    if hits is not None:
        caps.append(whole("hits", hits))
    if granularity is not None:
        bound = threshold_levels if variant == SEGMENTS else max_iterations
        caps.append(bound(granularity, lower_bound))
    if not caps:
        caps_of = ("iterations", 20), ", or ", ("granularity", 0.01), " for its own bound"
        raise Refused("the loop needs a cap known beforehand: pass ", *caps_of)
    count = min(caps)  # Each cap holds, so the least of them does.
    curve = pure_curve(epsilon)
    parameters = {
        "epsilon_per_iteration": epsilon,
        "hits" if variant == SEGMENTS else "iterations": count,
        "variant": variant,
        "relation": normalise_relation(relation),
    }
    return Guarantee(
        relation=relation,
        provenance=provenance.node("doubling_loop", parameters),
        # Of all adaptive sequences of epsilon-DP answers, randomised responses cost the most.
        pair=lambda: _randomised_responses(epsilon, count),
        renyi=RenyiCurve(lambda orders: count * curve.evaluate(orders)),
        pure_epsilon=count * epsilon,
    )


def _randomised_responses(epsilon: float, count: int) -> LossPair:
    """Returns losses epsilon (2 B - count), B ~ Binomial(count, e^epsilon / (1 + e^epsilon))."""
    if count > MOST_RESPONSES:
        return composition([(pure_pair(epsilon), count)])
    successes = np.arange(count + 1)
    masses = np.zeros(2 * count + 1)
    masses[::2] = scipy.stats.binom.pmf(successes, count, 1.0 / (1.0 + math.exp(-epsilon)))
    law = LossDistribution(epsilon, -count, masses, 0.0)
    return LossPair(law, law)


def advanced_composition(epsilon_per_iteration: float, iterations: int, delta: float) -> float:
    """Returns Ding & Wu's own price, sqrt(2 T log(1/delta)) e + T e (e^e - 1), for comparison.

    (Dwork, Rothblum & Vadhan 2010.) For few iterations it is above basic composition. With the
    number of iterations that happened as T it guarantees nothing.
    """
    delta = probability("delta", delta, hint=", for example 1e-5")
    count = whole("iterations", iterations)
    epsilon = positive("epsilon_per_iteration", epsilon_per_iteration)
    if epsilon > 700.0:
        return math.inf
    spread = math.sqrt(2.0 * count * math.log(1.0 / delta)) * epsilon
    return spread + count * epsilon * math.expm1(epsilon)


@mechanism
def sparse_vector(
    noise: float, bound: int, *, allocation: str = "paper", relation: object = ADD_OR_REMOVE_ONE
) -> Guarantee:
    """Prices DPareto's sparse-vector example: answers until `bound` queries passed the threshold.

    Avent et al. 2020, their first example, after Lyu, Su & Li 2017: Laplace noise of scale b1 on
    the threshold and b2 on each query, b1 + b2 = noise, costs 1/b1 + 2 bound / b2.

    Args:
      noise: b, the sum of both scales over the queries' sensitivity, above 0.
      bound: C, number of positive answers after which it stops, at least 1.
      allocation: "paper", b1 = b / (1 + (2C)^{1/3}), hence epsilon = (1 + (2C)^{1/3})
        (1 + (2C)^{2/3}) / b; "optimal", the best split, epsilon = (1 + sqrt(2C))^2 / b.
      relation: neighbouring relation under which the queries have that sensitivity.
    """
    noise, double = positive("noise", noise), 2.0 * whole("bound", bound)
    one_of("allocation", allocation, ("paper", "optimal"))
    if allocation == "paper":
        epsilon = (1.0 + double ** (1.0 / 3.0)) * (1.0 + double ** (2.0 / 3.0)) / noise
    else:
        epsilon = (1.0 + math.sqrt(double)) ** 2 / noise
    return pure(epsilon, relation=relation)


# Registered by hand: the node holds the least of the caps, not the arguments.
provenance.register("doubling_loop", lambda parameters, parts: doubling_loop(**parameters))
