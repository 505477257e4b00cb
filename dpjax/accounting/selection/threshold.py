"""Run until a score passes a fixed threshold, or a coin says stop."""

from __future__ import annotations

import math

import numpy as np

from dpjax.accounting.guarantee import Guarantee, check_guarantee
from dpjax.accounting.mechanisms.mechanism import mechanism
from dpjax.accounting.numerics.loss_distribution import LossDistribution, LossPair, whole_up
from dpjax.accounting.numerics.privacy_profile import pair_from_profiles
from dpjax.accounting.numerics.tradeoff import tradeoff_vertices
from dpjax.accounting.selection.envelope import output_interval, upper_hull
from dpjax.checks import probability

KNOTS = (0.03, 300)
"""Knots of the law that h is taken from: their distance in standard deviations, and outside them.

What that adds to h is quadratic in the distance: under 0.02% of epsilon.
"""

LARGEST_MOVE = 0.02
"""Largest move of log X and log X' on a cell; the error is its square over 4, times a loss."""

MOST_MOVES = 300
"""Cells that the logarithms alone may ask for, each; a rarer coin gets wider ones."""

LONGEST = 4000
"""Epsilons at which the profile is written."""


@mechanism
def stop_at_threshold(guarantee: Guarantee, halting_probability: float) -> Guarantee:
    """Prices running until one output is good enough (Liu & Talwar 2019).

    Formal guarantees: covers this loop. Repeat: (1) with probability p = `halting_probability`
    stop and release only that nothing was found; (2) else run the mechanism; if its output lies in
    a set S fixed before the data is seen (score at least a threshold), stop and release it; else
    discard it. The number of rounds is secret.

    With u = Q(S), X = p + (1-p) u, X' = p + (1-p) h(u) and h(u) the largest Q' mass of an event of
    Q mass u (Papernot & Steinke 2022, Appendix C, treats the same loop in Renyi terms):

        delta(epsilon) <= sup_u ((1-p)/X) delta_Q(epsilon - log(X'/X))
                                + (p/X) [1 - e^epsilon X/X']_+

    Proof: the released output has density (1-p) Q / X on S, and p/X on "nothing"; increasing
    Q'(S) to h(u) only increases X', hence both terms. The supremum is over finitely many points
    that enclose the curve (X, X'), by chords and tangents (`_points`): it can only be raised. For a
    pure base the epsilon is less than twice the base's.

    Args:
      guarantee: of one run, its score included.
      halting_probability: p in (0, 1]; the expected number of rounds is at most 1/p.
    """
    check_guarantee("guarantee", guarantee)
    halting_probability = probability("halting_probability", halting_probability, one=True)
    pure = None
    if guarantee.pure_epsilon is not None:
        # X'/X is largest at the corner u = 1/(1 + e^epsilon) of randomised response's trade-off.
        corner = math.exp(-np.logaddexp(0.0, guarantee.pure_epsilon))
        rest = 1.0 - halting_probability
        growth = (halting_probability + rest * (1.0 - corner)) / (
            halting_probability + rest * corner
        )
        pure = guarantee.pure_epsilon + math.log(growth)
    return Guarantee(
        relation=guarantee.relation,
        pair=lambda: _stopped_pair(guarantee.pair, halting_probability),
        pure_epsilon=pure,
    )


def _stopped_pair(pair: LossPair, p: float) -> LossPair:
    pair = pair.regridded(output_interval(pair))
    directions = [(pair.forward, pair.backward)]
    if not pair.symmetric:
        directions.append((pair.backward, pair.forward))
    points = [_points(reverse, p) for _, reverse in directions]
    last = max(
        (forward.lowest + forward.masses.size) * pair.interval + float(np.log(x / moved).max())
        for (forward, _), (moved, x) in zip(directions, points)
    )
    interval = pair.interval * max(1, whole_up(last / pair.interval / LONGEST))
    epsilons = interval * np.arange(whole_up(max(last, interval) / interval) + 2)
    profiles = []
    for (forward, _), (moved, x) in zip(directions, points):
        profile = np.zeros(epsilons.size)
        for weight, shift in zip(x, np.log(x / moved)):
            own = epsilons - shift
            found = (1.0 - p) * forward.delta(own)
            found += p * np.maximum(-np.expm1(np.minimum(own, 0.0)), 0.0)
            np.maximum(profile, weight * found, out=profile)
        # A few operations on positive numbers each: one part in 1e12 covers their rounding.
        profiles.append(np.minimum(profile * (1.0 + 1e-12), 1.0))
    return pair_from_profiles(interval, *profiles)


def _points(reverse: LossDistribution, p: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns points (1/X', 1/X) whose hull holds those of every set S, 1/X' rounded down; (n,).

    An event of masses a and b under one round on D and on D' adds a / X - e^epsilon b / X' to the
    divergence: linear in the point (1/X', 1/X), so that the vertices of a hull suffice, for every
    event and epsilon at once.

    h is taken from a law on fewer knots, which dominates; between its corners X' = alpha + beta X.
    With l = 1/X then 1/X' = l / (alpha l + beta). Where alpha >= 0 this is concave in l, hence
    above its chord: the corners are the points. Else it is convex, hence above its tangent, taken
    at the middle of a cell: the tangent's ends are the points, at an error quadratic in the cell's
    width and proportional to the loss at which h has that slope.
    """
    excess = max(0.0, reverse.mirrored_mass() - 1.0)
    corners, heights = tradeoff_vertices(reverse.kept_at(reverse.knots(*KNOTS)))
    # Noise inflates the masses of events under Q by at most `excess`: h is that much further left.
    corners = np.maximum(corners - excess, 0.0)
    x = p + (1.0 - p) * np.append(corners, [corners[-1], 1.0])
    y = p + (1.0 - p) * np.append(heights, [1.0, 1.0])
    # Cells of one piece each, on which neither logarithm moves much.
    move = min(max(LARGEST_MOVE, -math.log(p) / MOST_MOVES), 0.5)
    levels = np.exp(np.arange(math.log(p), 0.0, move))
    cells = np.unique(np.concatenate([x, levels, np.interp(levels, y, x)]))
    cells = cells[(cells >= x[0]) & (cells <= x[-1])]
    low, high = cells[:-1], cells[1:]
    # The last of pieces that start at one x: the others are upright.
    piece = np.searchsorted(x, 0.5 * (low + high), side="right") - 1
    piece = np.minimum(piece, x.size - 2)
    width = np.diff(x)[piece]
    slope = np.diff(y)[piece] / np.where(width > 0.0, width, 1.0)
    first, last = (np.minimum(y[piece] + slope * (end - x[piece]), 1.0) for end in (low, high))
    middle = 2.0 / (1.0 / low + 1.0 / high)
    centre = first + slope * (middle - low)
    steep = slope * (middle / centre) ** 2
    concave = first * high >= last * low
    left = np.where(concave, 1.0 / first, 1.0 / centre + steep * (1.0 / low - 1.0 / middle))
    right = np.where(concave, 1.0 / last, 1.0 / centre + steep * (1.0 / high - 1.0 / middle))
    # Cells narrower than their slope's rounding: the largest X' of all at the smallest X.
    narrow = high - low <= 1e-9 * high
    left, right = np.where(narrow, 1.0 / last, left), np.where(narrow, 1.0 / last, right)
    # One part in 1e12 covers the rounding of this function.
    inverse = np.concatenate([1.0 / y, left, right]) * (1.0 - 1e-12)
    slopes, weights = upper_hull(inverse, np.concatenate([1.0 / x, 1.0 / low, 1.0 / high]))
    rising = slopes <= slopes[np.argmax(weights)]
    return slopes[rising], weights[rising]
