"""Turns a privacy profile delta(epsilon) into a pair of loss distributions.

Any upper bound on both directions' profiles at epsilon >= 0 fixes a dominating pair: negative
epsilons follow by exchanging the two distributions,
H_{1/t}(P||Q) = 1 - 1/t + H_t(Q||P) / t, and the lower convex hull in t = e^epsilon of an upper
bound is still one, because the true profile is convex.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from dpjax.accounting.numerics.loss_distribution import LossDistribution, LossPair, whole_up

LONG = 4096
"""Number of knots above which the hull may leave out knots of flat stretches."""

FLATNESS = 1e-10
"""Relative change of a profile on a flat stretch."""

ROUNDING = 1e-18
"""Largest departure from convexity, as a mass, that counts as rounding."""


def _vertex_masses(positions: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Returns P masses of the inner knots of a profile that is linear in e^epsilon between knots.

    For (n,) ascending epsilons and divergences these are the masses of knots 1..n-1; knot 0 needs
    the other half. A negative mass marks a knot above the line between its neighbours.
    """
    gaps = np.diff(positions)
    drops = np.diff(values)
    left = drops / -np.expm1(-gaps)
    with np.errstate(over="ignore"):  # an infinite gap leaves no mass, as it should
        right = np.append(drops[1:] / np.expm1(gaps[1:]), 0.0)
    return right - left


def _hulled(positions: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Returns indices of the lower convex hull, in t = e^epsilon, of points with epsilon >= 0.

    A knot above the line between its present neighbours is never a vertex, so all such knots are
    dropped at once; few rounds suffice for a profile that is nearly convex.
    """
    kept, convex = _without_high_knots(positions, values, np.arange(positions.size))
    if convex:
        return kept
    if kept.size > LONG:
        # Long stretches that are flat to within rounding keep their ends only: the hull of fewer
        # points lies above the hull of all, here by less than FLATNESS.
        with np.errstate(divide="ignore"):
            level = np.floor(np.log(values[kept]) / FLATNESS)
        turns = np.append(True, level[1:] != level[:-1])
        kept = kept[turns | np.append(turns[1:], True)]
        kept, convex = _without_high_knots(positions, values, kept)
        if convex:
            return kept
    return _hulled_in_order(positions, values, kept)


def _without_high_knots(
    positions: np.ndarray, values: np.ndarray, kept: np.ndarray
) -> tuple[np.ndarray, bool]:
    """Returns the knots left after at most 30 rounds, and whether their profile is convex."""
    for _ in range(30):
        masses = _vertex_masses(positions[kept], values[kept])[:-1]
        # A smaller defect is rounding: raising that mass to 0 is pessimistic.
        bad = masses < -ROUNDING
        if not bad.any():
            return kept, True
        # Neighbours of a dropped knot are compared with closer lines in the next round.
        kept = np.delete(kept, 1 + np.flatnonzero(bad))
    return kept, False


def _hulled_in_order(places: np.ndarray, bounds: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Finds the hull in one pass with a stack, for profiles with long concave stretches."""
    stack: list[int] = []
    positions, values = places.tolist(), bounds.tolist()
    for k in kept.tolist():
        while len(stack) >= 2:
            i, j = stack[-2], stack[-1]
            # The slopes left and right of j in t = e^epsilon, times t_j; at a vertex they grow.
            left = (values[j] - values[i]) / -math.expm1(positions[i] - positions[j])
            right = (values[k] - values[j]) / math.expm1(min(positions[k] - positions[j], 700.0))
            if right >= left:
                break
            stack.pop()
        stack.append(k)
    return np.array(stack)


def touching_line(epsilons: np.ndarray, profile: np.ndarray, delta: float) -> np.ndarray:
    """Returns the line, straight in e^epsilon, that is the profile's hull where it falls to delta.

    The hull is that of `pair_from_profiles`; negative values count as 0. Returns (n,), as both
    arguments: all 0 if the whole profile is at most delta, all inf if none of it is.
    """
    values = np.minimum.accumulate(np.clip(profile, 0.0, 1.0))
    kept = _hulled(epsilons, values)
    place = int(np.count_nonzero(values[kept] > delta))
    if place in (0, kept.size):
        return np.full(epsilons.size, 0.0 if place == 0 else np.inf)
    (start, end), (above, below) = epsilons[kept[place - 1 :][:2]], values[kept[place - 1 :][:2]]
    with np.errstate(over="ignore"):
        share = np.expm1(epsilons - end) / math.expm1(start - end)
    return np.maximum(below + (above - below) * share, 0.0)


def _right_slopes(positions: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Returns slopes in t = e^epsilon to the right of each knot, times its t; (n,), the last 0."""
    with np.errstate(over="ignore"):  # an infinite gap has no slope, as it should
        return np.append(np.diff(values) / np.expm1(np.diff(positions)), 0.0)


def pair_from_profiles(
    interval: float, forward: np.ndarray, backward: np.ndarray | None = None
) -> LossPair:
    """Forms the smallest pair on the grid that dominates two half profiles.

    They are (n,) upper bounds on H_{e^epsilon}(P||Q), and on H_{e^epsilon}(Q||P) or None for the
    same, at epsilon = 0, interval, 2 interval, ...; the last becomes the mass of infinite loss.
    """
    symmetric = backward is None
    forward = np.minimum.accumulate(np.clip(forward, 0.0, 1.0))
    backward = forward if backward is None else np.minimum.accumulate(np.clip(backward, 0.0, 1.0))
    # H_1 is the total variation distance, the same in both directions. It is at most H_t at every
    # t < 1, the mirror image of the other direction's profile, 1 - t (1 - values): here as a sum of
    # positive terms, since a difference would make distances below 1e-16 of many tiny steps 0.
    start = min(
        float(np.min(-np.expm1(-epsilons) + np.exp(-epsilons) * values)) * (1.0 + 2.0**-50)
        for epsilons, values in (
            (interval * np.arange(values.size), values) for values in (forward, backward)
        )
    )
    halves = []
    for values in (forward,) if symmetric else (forward, backward):
        values = np.minimum(values, start)
        if values.size == 1:
            values = np.repeat(values, 2)
        positions = interval * np.arange(values.size)
        kept = _hulled(positions, values)
        halves.append((kept, positions[kept], values[kept]))
    if symmetric:
        halves.append(halves[0])
    joined = _bridge(*halves)
    if joined is None:
        # One direction's bound says nothing at all: everything may be revealed.
        revealed = LossDistribution(interval, 0, np.zeros(1), 1.0)
        return LossPair(revealed, revealed)
    first, second, bridge = joined
    laws = []
    masses = [
        _half_masses(half, start_index, slope)
        for half, start_index, slope in zip(halves, (first, second), bridge)
    ]
    # The mass at loss 0, where both halves meet without a bridge.
    centre = 0.0
    if first == 0 and second == 0:
        slopes = [_right_slopes(half[1], half[2])[0] for half in halves]
        centre = max(0.0, slopes[0] + slopes[1] + 1.0 - start)
    for mine, other in ((0, 1),) if symmetric else ((0, 1), (1, 0)):
        up_index, up_mass = masses[mine]
        down_index, down_mass = masses[other]
        lowest = -int(down_index[-1]) if down_index.size else 0
        highest = int(up_index[-1]) if up_index.size else 0
        law = np.zeros(highest - lowest + 1)
        np.add.at(law, up_index - lowest, up_mass)
        # The other direction's mass a at loss s has mass a e^{-s} under this one, at -s.
        np.add.at(law, -down_index - lowest, down_mass * np.exp(-interval * down_index))
        law[-lowest] += centre
        infinity = float(halves[mine][2][-1])
        # Sums of differences lose a few units of rounding a knot, always downwards on an even grid.
        # The profile at epsilon >= 0 was raised for that; mass still missing goes to loss 0.
        missing = 1.0 - infinity - float(law.sum())
        if 0.0 < missing <= 2.0**-50 * law.size:
            law[-lowest] += missing
        laws.append(LossDistribution(interval, lowest, law, infinity))
    return LossPair(laws[0], laws[-1])


def pair_from_laws(interval: float, laws: Sequence[LossDistribution]) -> LossPair:
    """Forms a pair of one or two distributions that dominate their direction at epsilon >= 0."""
    profiles = []
    for law in laws:
        last = max(0, law.lowest + law.masses.size - 1)
        profiles.append(law.delta(interval * np.arange(last + 1)))
    return pair_from_profiles(interval, *profiles)


def _bridge(forward_half, backward_half) -> tuple[int, int, tuple[float, float]] | None:
    """Finds the line that joins the two halves convexly, and its end vertex in each half.

    The negative half of the forward profile is the mirror image of the backward one: a backward
    piece alpha + beta t becomes 1 + beta + (alpha - 1) t. Usually both halves join at epsilon 0; a
    profile clipped at 1 can need a line that skips it.

    Returns vertex numbers in the two halves, and the bridge's slope in t at either vertex times the
    vertex's own t, seen from its own direction (see `_bridge_slope`); both vertices 0 mean that
    no bridge is needed (slopes then unused). None if no falling line joins the halves.
    """
    _, positions, values = forward_half
    _, mirror_positions, mirror_values = backward_half
    slopes = _right_slopes(positions, values)
    mirror_slopes = _right_slopes(mirror_positions, mirror_values)
    if slopes[0] + mirror_slopes[0] + 1.0 - values[0] >= 0.0:
        return 0, 0, (0.0, 0.0)
    # Walk outwards on both sides until the line through both vertices lies below both curves.
    i, j = 1, 1
    while True:
        i, j = min(i, values.size - 1), min(j, mirror_values.size - 1)
        here, there = (positions[i], values[i]), (mirror_positions[j], mirror_values[j])
        slope, mirror_slope = _bridge_slope(here, there), _bridge_slope(there, here)
        moved = False
        if slope > slopes[i] and i < values.size - 1:
            i, moved = i + 1, True
        if mirror_slope > mirror_slopes[j] and j < mirror_values.size - 1:
            j, moved = j + 1, True
        if not moved:
            vacuous = slope > slopes[i] + ROUNDING or mirror_slope > mirror_slopes[j] + ROUNDING
            return None if vacuous else (i, j, (slope, mirror_slope))


def _bridge_slope(mine: tuple[float, float], other: tuple[float, float]) -> float:
    """Returns t times the slope of the line from a vertex to the mirror image of the other half's.

    With the first vertex at t = e^p and height v, and the other's at e^m and w, the image of the
    latter is at e^-m and 1 - e^-m (1 - w). It is scaled by t because masses are differences of
    scaled slopes: an error of 1e-16 in the slope itself would be one of 1e-16 t in a mass, and t
    may exceed 1e16.
    """
    (p, v), (m, w) = mine, other
    return ((v - w) + math.expm1(-m) * (1.0 - w)) / -math.expm1(-(p + m))


def _half_masses(half, start: int, bridge_slope: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns grid indices and P masses of the positive losses of one direction."""
    kept, positions, values = half
    masses = np.maximum(_vertex_masses(positions, values), 0.0)
    if start == 0:
        return kept[1:], masses
    # Where the bridge ends, the vertex has the mass by which the slope changes there.
    joint = max(0.0, _right_slopes(positions, values)[start] - bridge_slope)
    return kept[start:], np.concatenate([[joint], masses[start:]])


def pair_from_function(
    profile: Callable[[np.ndarray], np.ndarray],
    interval: float,
    largest: float,
    mirror: Callable[[np.ndarray], np.ndarray] | None = None,
) -> LossPair:
    """Forms the pair as `pair_from_profiles` does, from functions of epsilon in [0, largest]."""
    # One knot more, so that rounding cannot cut off the end of a profile that ends on a knot.
    epsilons = interval * np.arange(whole_up(largest / interval) + 2)
    # Masses are differences of the profile, which lose a few units of rounding each: the profile
    # is raised beforehand by 8 units a knot, more than they lose.
    raised = 1.0 + (8.0 * epsilons.size + 64.0) * 2.0**-53
    return pair_from_profiles(
        interval,
        raised * profile(epsilons),
        None if mirror is None else raised * mirror(epsilons),
    )
