"""The exponential mechanism and its bounded-range accounting.

Choosing a candidate with weights exp(epsilon * k * utility / 2), where k * utility changes by at
most 1 between neighbours, is epsilon-differentially private, and more: the log ratio of the
probabilities of any two candidates changes by at most epsilon, so all privacy losses of one pair of
neighbours lie in one interval of length epsilon ("epsilon-bounded range", Durfee & Rogers 2019).
One run costs epsilon all the same, but composed with anything it costs less than a mechanism of
which only pure epsilon is known.
"""

from __future__ import annotations

import math

import numpy as np

from dpjax.accounting.guarantee import Guarantee, pure_pair
from dpjax.accounting.mechanisms.mechanism import mechanism
from dpjax.accounting.numerics.loss_distribution import LossPair, whole_up
from dpjax.accounting.numerics.privacy_profile import pair_from_function
from dpjax.accounting.numerics.renyi import RenyiCurve
from dpjax.checks import positive, whole
from dpjax.neighbouring import ADD_OR_REMOVE_ONE

_LARGEST_INTERVAL = 1e-3
_LEAST_INTERVALS = 500
_MOST_INTERVALS = 1 << 17
_LARGEST_EPSILON = 1e7  # beyond it, randomised response: it dominates every pure mechanism


@mechanism
def exponential_mechanism(epsilon: float, *, relation: object = ADD_OR_REMOVE_ONE) -> Guarantee:
    """Returns the cost of one draw from the exponential mechanism; pure, and bounded-range.

    McSherry & Talwar 2007; bounded range: Durfee & Rogers 2019.

    A mechanism whose losses lie in [t - epsilon, t] is a post-processing of the two-point pair on
    {t, t - epsilon}; t depends on the data and on what was released before. The profile of the
    worst t at every order,

        delta(x) = (e^{epsilon/2} - e^{x/2})^2 / (e^epsilon - 1),   |x| <= epsilon,

    (e^t = e^{(epsilon + x)/2} is the maximiser) is convex in e^x and equal to its own mirror image,
    so it belongs to one pair of distributions, which dominates all of them at once.

    Formal guarantees: an (epsilon, delta(epsilon)) bound for any epsilon-bounded-range mechanism,
    in particular for weights exp(epsilon * k * u / 2) and utilities whose k-fold changes by at most
    1 under `relation`, and for Gumbel noise of scale 2 / (epsilon k) and arg max. Compositions hold
    under adaptive choice of every mechanism; the Renyi curve is that of the worst t at each order.

    Args:
      epsilon: above 0.
      relation: neighbouring relation under which the sensitivity 1/k of the utilities holds.
    """
    epsilon = positive("epsilon", epsilon)

    def pair() -> LossPair:
        pieces = max(_LEAST_INTERVALS, whole_up(epsilon / _LARGEST_INTERVAL))
        if pieces > _MOST_INTERVALS:
            if epsilon > _LARGEST_EPSILON:
                return pure_pair(epsilon)
            pieces = _MOST_INTERVALS
        interval = epsilon / pieces
        return pair_from_function(
            lambda x: bounded_range_profile(epsilon, x), interval, (pieces - 0.5) * interval
        )

    return Guarantee(
        relation=relation,
        pair=pair,
        renyi=RenyiCurve(lambda orders: bounded_range_rdp(epsilon, orders)),
        pure_epsilon=epsilon,
    )


def bounded_range_profile(epsilon: float, at: np.ndarray | float) -> np.ndarray:
    """Returns the largest delta of any epsilon-bounded-range mechanism, at epsilons `at`."""
    at = np.clip(np.asarray(at, dtype=np.float64), None, epsilon)
    inside = np.maximum(at, -epsilon)
    # Numerator and denominator are divided by e^epsilon, so that nothing overflows.
    value = np.expm1((inside - epsilon) / 2.0) ** 2 / -math.expm1(-epsilon)
    return np.where(at < -epsilon, -np.expm1(np.minimum(at, 0.0)), value)


def bounded_range_rdp(epsilon: float, orders: np.ndarray) -> np.ndarray:
    """Returns the largest Renyi divergences of any epsilon-bounded-range mechanism, (orders,).

    For the two-point pair with losses t and t - epsilon, T = e^t and E = e^epsilon,
    E[e^{(a-1) loss}] = T^{a-1} (E - E^{1-a} - T (1 - E^{1-a})) / (E - 1), largest at
    T = (a-1)/a * (E - E^{1-a}) / (1 - E^{1-a}), within [1, E].
    """
    orders = np.asarray(orders, dtype=np.float64)
    gap = orders - 1.0
    low = -np.expm1(-gap * epsilon)  # 1 - E^{1-a}
    high = -np.expm1(-orders * epsilon)  # (E - E^{1-a}) / E
    log_best = np.log(gap / orders) + epsilon + np.log(high) - np.log(low)
    log_best = np.clip(log_best, 0.0, epsilon)
    bracket = high - np.exp(log_best - epsilon) * low
    log_moment = (
        gap * log_best + np.log(np.maximum(bracket, 1e-300)) - math.log(-math.expm1(-epsilon))
    )
    # Differences of nearly equal numbers lose up to `orders` units of rounding. For small epsilon,
    # zCDP at epsilon^2 / 8 (Cesar & Rogers 2021) is as good and loses none.
    rounded_up = (np.maximum(log_moment, 0.0) + 2e-15 * orders) / gap
    return np.minimum(rounded_up, orders * epsilon**2 / 8.0)


def selection_noise_ratio(candidates: int, partitions: float, epsilon: float) -> float:
    """Returns the size of a selection's noise: 4 log(candidates) / (partitions epsilon).

    It is about the largest of the noises added to the candidates' utilities, which are in [0, 1]
    and which one record changes by at most 1 / partitions each. Above 1 the selection is mostly a
    random draw, as in Ding & Wu's own experiment (10 partitions, epsilon 0.1, 100 candidates:
    18.4).
    """
    candidates, partitions = whole("candidates", candidates), whole("partitions", partitions)
    epsilon = positive("epsilon", epsilon)
    return 4.0 * math.log(candidates) / (partitions * epsilon)
