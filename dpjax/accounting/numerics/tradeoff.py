"""The trade-off h of a pair (P, Q): h(x) is the largest Q mass of an event of P mass x."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from dpjax.accounting.numerics.loss_distribution import LossDistribution, LossPair, whole_up
from dpjax.accounting.numerics.privacy_profile import pair_from_profiles

SMALLEST = 1e-290
"""Least P mass: smaller ones are rounded down to 0, as slopes between subnormal ones overflow."""

STARTS = 4096
"""Number of events that the chains of `_chained` start from."""

MOST_RECORDS = 10**6
"""Most records of a group that are followed; a larger group has only pure epsilon's bound."""

PROFILE_KNOTS = 1 << 18
"""Most knots of the profile of a replaced record."""

BESIDE = 1e-12
"""Relative distance of chains that start beside a corner: above rounding, below anything else."""

LARGEST_EPSILON = 600.0
"""Largest epsilon of a step: beyond it e^epsilon soon overflows."""

_ROUNDING = 1.0 + 1e-13
"""Factor that covers the rounding of a sum of a few positive terms."""


def tradeoff_vertices(reverse: LossDistribution) -> tuple[np.ndarray, np.ndarray]:
    """Returns corner points (x, h) of h(x) = sup {Q(E) : P(E) <= x}, from log(dQ/dP) under Q.

    Events are taken in Neyman-Pearson order, largest loss of Q first; between the corners events
    are randomised, so h is concave and piecewise linear. The reverse distribution is used because
    there small P masses, p' e^{-s'}, keep all their digits. Both ascend, x rounded down and h up;
    h = 1 beyond the last x.
    """
    held = reverse.masses > 0
    masses = reverse.masses[held][::-1]
    losses = reverse.losses[held][::-1]
    h = reverse.infinity_mass + np.append(0.0, np.cumsum(masses))
    x = np.append(0.0, np.cumsum(masses * np.exp(np.minimum(-losses, 700.0))))
    x = np.where(x < SMALLEST, 0.0, x)
    # Sums of positive numbers are off by at most half a unit of rounding a term.
    rounding = (masses.size + 4) * 2.0**-52
    return x * (1.0 - rounding), np.minimum(h * (1.0 + rounding), 1.0)


def largest_mass(reverse: LossDistribution, x: np.ndarray) -> np.ndarray:
    """Bounds the trade-off h of `tradeoff_vertices` from above at P masses x, (n,) in [0, 1]."""
    corners, heights = tradeoff_vertices(reverse)
    inside = np.interp(x, corners, heights)
    return np.where(x >= corners[-1], 1.0, inside)


def right_slopes(reverse: LossDistribution, x: np.ndarray) -> np.ndarray:
    """Returns the slope of h just right of each x, (n,): the line from (x, h(x)) is above h there.

    A piece of h is one atom of loss s, and its slope is e^s; differences of corners would be
    rounding errors at atoms lighter than the rounding of x. Beyond the last corner the slope is 0.
    """
    corners, _ = tradeoff_vertices(reverse)
    losses = reverse.losses[reverse.masses > 0][::-1]
    slopes = np.append(np.exp(np.minimum(losses, 700.0)), 0.0)
    return slopes[np.searchsorted(corners, x, side="right") - 1]


def gaussian_mu(pair: LossPair, slack: float) -> float:
    """Finds the least mu whose Gaussian profile, plus the slack, is above the pair's profile.

    The profile of N(mu, 1) against N(0, 1) is compared at every epsilon >= 0. mu is rounded up, and
    inf where a revealed mass exceeds the slack.
    A profile at epsilon is the largest h(x) - e^epsilon x over the corners of h, attained where all
    pieces to the left have losses of at least epsilon. So only corners with no negative loss to
    their left count: each must lie below the Gaussian's h, raised by the slack (Dong, Roth & Su
    2022, Corollary 2.13, corner by corner).
    """
    largest = 0.0
    for law in {id(law): law for law in (pair.forward, pair.backward)}.values():
        x, h = tradeoff_vertices(law)
        losses = law.losses[law.masses > 0][::-1]
        count = 1 + int(np.count_nonzero(losses >= 0.0))
        x, h = x[:count], h[:count] * (1.0 + 2.0**-52) - slack
        binding = h > x
        if np.any(binding & ((x <= 0.0) | (h >= 1.0))):
            return float("inf")
        found = special.ndtri(h[binding]) - special.ndtri(x[binding])
        largest = max(largest, float(np.max(found, initial=0.0)))
    # SciPy's quantiles are right to some 1e-15, relative.
    return largest * (1.0 + 1e-12)


# Data sets several steps apart -----------------------------------------------------------------
#
# Let M(D_0), ..., M(D_k) be outputs on data sets each of which is a neighbour of the next, and h_i
# the largest probability of an event at D_i, given its probability at D_{i-1}. An event of
# probability x at D_0 has at most h_k(... h_1(x)) at D_k (Dong, Roth & Su 2022, Theorem 2.14,
# without symmetry). Each h is concave, and at most delta_i(s) + e^s x for every real s, so
#
#   delta(s_1 + ... + s_k) <= sum over i of e^{s_{i+1} + ... + s_k} delta_i(s_i)
#
# for every choice of the s_i: k (epsilon / k) and a geometric sum are the usual lemma (Vadhan 2017,
# Lemma 2.2). Here the s_i are the slopes along the chain x, h_1(x), h_2(h_1(x)), ..., which is the
# best choice; the sum above is an upper bound whatever the slopes are.


class _Step:
    """Represents one step of a chain by its losses log(dM(D_i)/dM(D_{i-1})) under M(D_i)."""

    def __init__(self, law: LossDistribution):
        self.law = law
        self.corners, self.heights = tradeoff_vertices(law)
        self.losses = law.losses[law.masses > 0][::-1]

    def slopes(self, x: np.ndarray) -> np.ndarray:
        """Returns the logarithms of the slopes of h right of x; -inf beyond the last corner."""
        place = np.searchsorted(self.corners, x, side="right") - 1
        return np.append(self.losses, -np.inf)[place]

    def largest(self, x: np.ndarray) -> np.ndarray:
        """Returns h(x), the largest probability after the step of an event of probability x."""
        return np.where(
            x >= self.corners[-1], 1.0, np.interp(x, self.corners, self.heights, right=1.0)
        )


def _chained(steps: Sequence[_Step], x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns (epsilons, deltas), each (n,), along the chains that start at the masses x."""
    epsilons, deltas = np.zeros(x.shape), np.zeros(x.shape)
    for step in steps:
        slopes = step.slopes(x)
        usable = np.isfinite(slopes) & (np.abs(slopes) <= LARGEST_EPSILON)
        safe = np.where(usable, slopes, 0.0)
        with np.errstate(over="ignore"):
            deltas = step.law.delta(safe) + np.exp(safe) * deltas
        # A chain that has reached probability 1 gives no bound.
        deltas = np.where(usable, deltas, 1.0)
        epsilons = epsilons + safe
        x = step.largest(x)
    return epsilons, np.minimum(deltas * _ROUNDING, 1.0)


def symmetric_law(pair: LossPair) -> LossDistribution:
    """Forms one loss distribution that dominates both directions."""
    if pair.symmetric:
        return pair.forward
    last = max(0, *(law.lowest + law.masses.size - 1 for law in (pair.forward, pair.backward)))
    knots = pair.interval * np.arange(last + 1)
    return pair_from_profiles(pair.interval, pair.delta(knots)).forward


def group_epsilon(pair: LossPair, records: int, delta: float) -> float:
    """Returns the smallest epsilon found for data sets `records` steps apart; may be inf.

    Each step adds or removes a record. Bounds follow from chains that start at events of many
    probabilities (see the top of this section); around the best start a finer grid is tried.
    """
    law = symmetric_law(pair)
    if records == 1:
        return law.epsilon(delta)
    steps = [_Step(law)] * records
    starts = _spread(steps[0].corners, STARTS)
    epsilons, deltas = _chained(steps, starts)
    found = np.flatnonzero(deltas <= delta)
    if found.size == 0:
        return math.inf
    best = found[np.argmin(epsilons[found])]
    around = starts[[max(best - 1, 0), min(best + 1, starts.size - 1)]]
    corners = steps[0].corners
    finer = np.geomspace(max(around[0], corners[corners > 0][0]), around[1], STARTS)
    fine_epsilons, fine_deltas = _chained(steps, finer)
    fine = fine_epsilons[fine_deltas <= delta]
    return max(0.0, min(float(epsilons[best]), float(np.min(fine, initial=np.inf))))


def replaced_pair(pair: LossPair) -> LossPair:
    """Returns the losses of replacing one record: one is removed, then another is added."""
    # h of removing comes from the losses under the smaller data set: the backward direction.
    steps = [_Step(pair.backward), _Step(pair.forward)]
    # Slopes change at the first step's corners, and at the x that it maps to the second's corners.
    first, second = (_spread(step.corners, 8 * STARTS) for step in steps)
    before = np.interp(second, steps[0].heights, steps[0].corners)
    starts = np.union1d(first, before)
    # Start on both sides of each corner, so that its last bit does not choose between two slopes.
    starts = np.concatenate([starts * (1.0 - BESIDE), np.minimum(starts * (1.0 + BESIDE), 1.0)])
    epsilons, deltas = _chained(steps, starts)
    # Sums of losses on a grid lie on it: remove the rounding.
    epsilons = pair.interval * np.round(epsilons / pair.interval)
    order = np.lexsort((deltas, epsilons))
    order = order[np.append(True, np.diff(epsilons[order]) > 0.0)]
    epsilons, deltas = epsilons[order], deltas[order]
    useful = (epsilons <= LARGEST_EPSILON) & (deltas < 1.0)
    epsilons, deltas = epsilons[useful], deltas[useful]
    if epsilons.size == 0:
        return pair_from_profiles(pair.interval, np.ones(2))
    # A profile falls, so a delta holds at all larger epsilons too.
    deltas = np.minimum.accumulate(deltas)
    largest = max(float(epsilons[-1]), pair.interval)
    interval = pair.interval
    while largest / interval > PROFILE_KNOTS:
        interval *= 2.0
    knots = interval * np.arange(whole_up(largest / interval) + 1)
    return pair_from_profiles(interval, _between(knots, epsilons, deltas))


def _between(knots: np.ndarray, epsilons: np.ndarray, deltas: np.ndarray) -> np.ndarray:
    """Bounds a profile at the knots from above, by chords between bounds at some epsilons.

    A profile is convex in e^epsilon. Left of the first epsilon the chord comes from (0, 1); right
    of the last its bound holds on.
    """
    right = np.searchsorted(epsilons, knots, side="left")
    inside = right < epsilons.size
    after = np.minimum(right, epsilons.size - 1)
    before = np.maximum(after - 1, 0)
    low, high = epsilons[before], epsilons[after]
    gap = np.where(high > low, high - low, 1.0)
    share = np.expm1(np.clip(knots - low, 0.0, gap)) / np.expm1(gap)
    # What is left of 1, not as a difference: the bound after may be far below the one before.
    rest = np.expm1(np.clip(knots - high, -gap, 0.0)) / np.expm1(-gap)
    # Two bounds at one epsilon have no chord between them.
    share, rest = np.where(high > low, share, 0.0), np.where(high > low, rest, 1.0)
    chord = deltas[before] * rest + deltas[after] * share
    # The chord from t = e^epsilon = 0, where every profile is 1; no difference of numbers near 1.
    below = np.minimum(knots - epsilons[0], 0.0)
    from_zero = -np.expm1(below) + deltas[0] * np.exp(below)
    chord = np.where(right == 0, from_zero, chord)
    return np.minimum(np.where(inside, chord, deltas[-1]) * _ROUNDING, 1.0)


def _spread(corners: np.ndarray, count: int) -> np.ndarray:
    """Picks about `count` of the corners, evenly by their index."""
    if corners.size <= count:
        return corners
    return corners[np.unique(np.linspace(0, corners.size - 1, count).astype(np.int64))]
