"""Prices running until a score passes a fixed threshold, or a coin says stop."""

from __future__ import annotations

import functools
import math

import numpy as np

from dpjax.accounting.guarantee import Guarantee, check_guarantee
from dpjax.accounting.mechanisms.mechanism import mechanism
from dpjax.accounting.numerics.loss_distribution import LossDistribution, LossPair, whole_up
from dpjax.accounting.numerics.privacy_profile import pair_from_profiles
from dpjax.accounting.numerics.renyi import ORDERS, RenyiCurve, mixture_of, pure_curve
from dpjax.accounting.numerics.tradeoff import tradeoff_vertices
from dpjax.accounting.selection.best_of import monotone
from dpjax.accounting.selection.envelope import envelope, output_interval, refined, upper_hull
from dpjax.accounting.selection.exact import TAIL_DELTA
from dpjax.checks import probability

KNOTS = (0.03, 300)
"""Knots of the distribution that gives h: their distance in standard deviations around the bulk,
and their number elsewhere. They add less than 0.02% to epsilon, quadratic in the distance.
"""

LARGEST_MOVE = 0.02
"""Largest change of log X and log X' on a cell; the error is its square over 4, times a loss."""

MOST_MOVES = 300
"""Most cells for each logarithm alone; a rarer coin gets wider ones."""

LONGEST = 4000
"""Number of epsilons at which the profile is written, roughly."""

DISJOINT_KNOTS = (0.1, 60)
"""As KNOTS, for the two distributions from which disjoint events are taken."""

DISJOINT_MOVE = 0.07
"""As LARGEST_MOVE, for these events and a base whose losses spread by 0.4 nats or more."""


@mechanism
def stop_at_threshold(guarantee: Guarantee, halting_probability: float) -> Guarantee:
    """Prices running until one output is good enough (Liu & Talwar 2019).

    Formal guarantees: covers this loop. Repeat: (1) with probability p = `halting_probability`
    stop and release only that nothing was found; (2) else run the mechanism; if its output lies in
    a set S fixed before the data is seen (score at least a threshold), stop and release it; else
    discard it. The number of rounds is secret.

    Let h(n) be the largest Q' mass of an event of Q mass n and g(m) = 1 - h(1 - m) the least. Of S,
    the part that an adversary counts has Q mass m, the rest n; X = p + (1-p) (n + m) and
    X' = p + (1-p) (h(n) + g(m)). Then, and no bound that knows one run by its trade-off is smaller,

        delta(epsilon) <= sup over n + m <= 1 of (1-p) m / X - e^epsilon (1-p) g(m) / X'
                                                + p [1 / X - e^epsilon / X']_+

    Statement, proof and numerics: docs/proofs/threshold.md, also of its Renyi curve (`rdp`), which
    is Papernot & Steinke 2022, Proposition 15, as corrected in `conditioned`. Up to delta 1e-5 a
    simpler bound is stated, at most a part in a thousand above it. For a pure base the epsilon is
    less than twice the base's.

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

    @functools.cache
    def stopped(exact: bool) -> LossPair:
        return _stopped_pair(guarantee.pair, halting_probability, exact)

    return Guarantee(
        relation=guarantee.relation,
        renyi=_stopped_curve(guarantee.renyi, halting_probability, pure),
        pair=lambda: stopped(True),
        pure_epsilon=pure,
        at_delta=lambda delta: stopped(delta > TAIL_DELTA),
    )


def conditioned(orders: np.ndarray, base: RenyiCurve, least_probability: float) -> np.ndarray:
    """Bounds the divergences (n,), orders > 1, of Q given S from Q' given S, whatever the set S is.

    Papernot & Steinke 2022, Proposition 15 at 1/q = 0 and the best r (Corollary 16 ii, iii, v):

        D_l(Q|S || Q'|S) <= D_x(Q||Q') + [(l-2)/(l-1) D_(l-1)(Q'||Q)]_(l > 2)
                            + (1 + w)/(l-1) log(1/Q(S)),      x >= l, w = (l-1)/(x-1) in (0, 1].

    As printed the second term stands at l < 2 too, and the statement is false there.

    Args:
      orders: l.
      base: of Q and Q', in both directions.
      least_probability: lower bound on Q(S) and Q'(S), on any data.
    """
    gap, surprise = orders - 1.0, -math.log(least_probability)
    with np.errstate(divide="ignore", invalid="ignore"):
        below = np.where(orders > 2.0, (orders - 2.0) / gap, 0.0)
        below = np.where(below > 0.0, below * base(np.maximum(gap, 1.0 + 1e-9)), 0.0)
        # The order itself, and all larger ones of the grid.
        first = base(orders) + 2.0 / gap * surprise
        shares = gap[:, None] / (ORDERS - 1.0)
        later = base.on_grid + (1.0 + shares) / gap[:, None] * surprise
    later = np.where(shares <= 1.0, later, np.inf).min(axis=1)
    return (np.minimum(first, later) + below) * (1.0 + 1e-12)


def _stopped_curve(base: RenyiCurve | None, p: float, pure: float | None) -> RenyiCurve | None:
    """Returns the loop's Renyi curve; None if one run has none, or may fail.

    What is released is a round's outcome given that the round ended: "nothing", of probability p,
    or an output in S. A round is the mixture of "nothing" and a run.
    """
    if base is None or base.failure_mass > 0.0:
        return None
    if p == 1.0:
        return pure_curve(0.0)
    a_round = mixture_of([pure_curve(0.0), base], np.array([p, 1.0 - p]))
    curve = monotone(lambda orders: conditioned(orders, a_round, p))
    if pure is None:
        return RenyiCurve(curve)
    return RenyiCurve(lambda orders: np.minimum(curve(orders), pure_curve(pure)(orders)))


def _stopped_pair(pair: LossPair, p: float, exact: bool = True) -> LossPair:
    """Forms the loop's pair by the smaller of the bounds on one event and, if `exact`, on two."""
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
    for (forward, reverse), (moved, x) in zip(directions, points):
        profile = np.zeros(epsilons.size)
        for weight, shift in zip(x, np.log(x / moved)):
            own = epsilons - shift
            found = (1.0 - p) * forward.delta(own)
            found += p * np.maximum(-np.expm1(np.minimum(own, 0.0)), 0.0)
            np.maximum(profile, weight * found, out=profile)
        # A few operations on positive numbers each: one part in 1e12 covers their rounding.
        profile = np.minimum(profile * (1.0 + 1e-12), 1.0)
        if exact:
            growth = np.exp(np.minimum(epsilons, 700.0))
            profile = np.minimum(profile, envelope(growth, *_lines(forward, reverse, p)))
        profiles.append(profile)
    return pair_from_profiles(interval, *profiles)


def _lines(
    forward: LossDistribution, reverse: LossDistribution, p: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns lines b - a t, t = e^epsilon, whose largest is at least the loop's divergence there.

    Letters are as in `stop_at_threshold`. With c = p if "nothing" is counted, and c = 0 if not,
    ((1-p) m + c) / X falls along n, is convex along n, and concave along m. So on a cell of (n, m)
    it is below its tangent along m at either end of n, and below the chord in between.
    ((1-p) g + c) / X' is convex in h and concave in g, both of which are linear on a cell: at
    either end of m it is above its tangent along h. Tangents touch at the middle. So on each cell
    the bound is bilinear, hence largest at a corner: one line. Both distributions are moved to
    fewer knots, which dominate.
    """
    # A small spread of losses needs smaller errors; they are quadratic, hence the square root.
    scale = math.sqrt(min(1.0, max(reverse.spread(), 1e-6) / 0.4))
    q, move = 1.0 - p, max(DISJOINT_MOVE * scale, -math.log(p) / 100.0)
    n, h = tradeoff_vertices(reverse.kept_at(reverse.knots(*DISJOINT_KNOTS)))
    # Rounding noise makes masses under Q too large by at most the excess: shift h left by it.
    n = np.maximum(n - max(0.0, reverse.mirrored_mass() - 1.0), 0.0)
    n, h = np.append(n, 1.0), np.append(h[:-1], [1.0, 1.0])
    n, h = _divided(n, h, p, move)
    m, g = _divided(*_least_masses(forward.kept_at(forward.knots(*DISJOINT_KNOTS))), p, move)
    middle_h, half_h = 0.5 * (h[1:] + h[:-1])[:, None], 0.5 * np.diff(h)[:, None]
    middle_m, half_m = 0.5 * (m[1:] + m[:-1]), 0.5 * np.diff(m)
    possible = n[:-1, None] + m[:-1] <= 1.0
    slopes, weights = [np.zeros(1)], [np.zeros(1)]
    for c in (0.0, p):
        x = p + q * (n[:, None] + middle_m)
        gain = (q * middle_m + c) / x
        steps = q * (p - c + q * n[:, None]) / x**2 * half_m
        moved = p + q * (middle_h + g)
        cost = (q * g + c) / moved
        falls = q * cost / moved * half_h
        # Differences may cancel: the factors cover their rounding.
        gains = gain * (1.0 + 1e-13) - steps, gain * (1.0 + 1e-13) + steps
        costs = cost * (1.0 - 1e-13) + falls, cost * (1.0 - 1e-13) - falls
        for at_n, n_end in enumerate((slice(None, -1), slice(1, None))):
            for at_m, m_end in enumerate((slice(None, -1), slice(1, None))):
                a, b = costs[at_n][:, m_end], gains[at_m][n_end]
                # Other lines are below 0 at every epsilon >= 0.
                useful = possible & (b > a)
                slopes.append(np.maximum(a[useful], 0.0))
                weights.append(b[useful])
    return upper_hull(np.concatenate(slopes), np.concatenate(weights))


def _least_masses(forward: LossDistribution) -> tuple[np.ndarray, np.ndarray]:
    """Returns corners (m, g): g is the least Q' mass of an event of Q mass m.

    m is rounded up and g down.
    """
    held = forward.masses > 0.0
    masses = forward.masses[held][::-1]
    ratios = np.exp(-np.maximum(forward.losses[held][::-1], -700.0))
    rounding = (masses.size + 4) * 2.0**-52
    m = forward.infinity_mass + np.append(0.0, np.cumsum(masses))
    g = np.append(0.0, np.cumsum(masses * ratios)) * (1.0 - rounding)
    # A mass of rounding noise counts e^-loss times as much under Q': it matters only at negative
    # losses, beyond the corner `sound`, where g is lowered by all of it.
    noise = max(0.0, forward.mirrored_mass() - 1.0)
    sound = g[int(np.count_nonzero(ratios <= 1.0))]
    g = np.minimum(g, np.maximum(sound, g - noise))
    m = np.minimum(m * (1.0 + rounding), 1.0)
    return np.append(0.0, np.append(m, 1.0)), np.append(0.0, np.append(g, g[-1]))


def _divided(x: np.ndarray, y: np.ndarray, p: float, move: float) -> tuple[np.ndarray, np.ndarray]:
    """Adds points between corners (x, y) until log(p + (1-p) .) of x and of y changes little."""
    first = np.append(True, np.diff(x) > 0.0)
    x, y = x[first], np.maximum.reduceat(y, np.flatnonzero(first))

    def moving(at: np.ndarray) -> list[np.ndarray]:
        return [p + (1.0 - p) * at, p + (1.0 - p) * np.interp(at, x, y)]

    points = refined(x, moving, move, cells=10_000, rounds=12, most_parts=1000)
    return points, np.interp(points, x, y)


def _points(reverse: LossDistribution, p: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns points (1/X', 1/X) whose hull contains those of every set S; 1/X' is rounded down.

    An event of masses a and b under one round on D and on D' adds a / X - e^epsilon b / X' to the
    divergence: linear in the point (1/X', 1/X), so that the vertices of a hull suffice, for every
    event and epsilon at once.

    h is a dominating distribution's, on fewer knots; between corners X' = alpha + beta X.
    With l = 1/X then 1/X' = l / (alpha l + beta). Where alpha >= 0 this is concave in l, hence
    above its chord: the corners are the points. Else it is convex, hence above its tangent, taken
    at the middle of a cell: the tangent's ends are the points, at an error quadratic in the cell's
    width and proportional to the loss at which h has that slope.
    """
    excess = max(0.0, reverse.mirrored_mass() - 1.0)
    corners, heights = tradeoff_vertices(reverse.kept_at(reverse.knots(*KNOTS)))
    # Rounding noise makes masses under Q too large by at most `excess`: shift h left by it.
    corners = np.maximum(corners - excess, 0.0)
    x = p + (1.0 - p) * np.append(corners, [corners[-1], 1.0])
    y = p + (1.0 - p) * np.append(heights, [1.0, 1.0])
    # Each cell lies in one piece of h, and on it both logarithms change little.
    move = min(max(LARGEST_MOVE, -math.log(p) / MOST_MOVES), 0.5)
    levels = np.exp(np.arange(math.log(p), 0.0, move))
    cells = np.unique(np.concatenate([x, levels, np.interp(levels, y, x)]))
    cells = cells[(cells >= x[0]) & (cells <= x[-1])]
    low, high = cells[:-1], cells[1:]
    # If several pieces start at one x, the last counts: the others are vertical.
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
    # On cells narrower than rounding the slope means nothing: take X' at the right, X at the left.
    narrow = high - low <= 1e-9 * high
    left, right = np.where(narrow, 1.0 / last, left), np.where(narrow, 1.0 / last, right)
    # One part in 1e12 covers the rounding of this function.
    inverse = np.concatenate([1.0 / y, left, right]) * (1.0 - 1e-12)
    slopes, weights = upper_hull(inverse, np.concatenate([1.0 / x, 1.0 / low, 1.0 / high]))
    rising = slopes <= slopes[np.argmax(weights)]
    return slopes[rising], weights[rising]
