"""Computes the exact profile of the best of K runs, the worst over all rankings of the outcomes.

The envelope puts every outcome at the rank that is worst for it. In truth a rank is used once, and
the mass that ranks above an outcome is that of other outcomes. With h as in `envelope.py`,
g(m) = 1 - h(1 - m) and f the generating function of K, for every t = e^epsilon >= 1

    H_t(A||A') <= sup integral f'(1 - n - m) dm - t f'(1 - h(n) - g(m)) dg(m)

over all curves (n, m) that start at (0, 0), never decrease and keep n + m <= 1. No bound that
knows one run by its trade-off alone can be smaller: the curve is a ranking of the outcomes that
attains it. Statement, proof and the error of these numerics: docs/envelope_bound.md.

The supremum is found by dynamic programming on a grid of nodes n and cells of m. Everything is
rounded upwards: on a cell f'(1 - n - m) is replaced by its chord, h and f'(1 - h(n) - g(m)) by
tangents, and moving along n inside a cell of m is charged.
"""

from __future__ import annotations

import math

import numpy as np

from dpjax.accounting.numerics.loss_distribution import (
    WHOLE,
    LossDistribution,
    LossPair,
    whole_down,
)
from dpjax.accounting.numerics.tradeoff import largest_mass, right_slopes, tradeoff_vertices
from dpjax.accounting.selection.envelope import (
    FAR_LEAST,
    LEAST,
    choice_grid,
    derivatives_along,
    kinks,
    log_moves,
    refined,
)
from dpjax.accounting.selection.laws import RepetitionLaw

RESOLUTION = 0.25
"""Largest move of log f' on a cell, for a base whose losses spread by 0.4 nats or more.

What the bound loses is quadratic in it: about 0.2% of epsilon here, 0.05% at 0.1.
"""

FINEST = 0.08
"""Least RESOLUTION: laws of K whose f' changes little get smaller cells, down to this change."""

NODES = 80
"""Number of cells of n to aim at, between these two resolutions; at most six times as many."""

LOSSES = 25.0
"""Grid steps in one standard deviation of the loss."""

LONGEST = 1500
"""Most losses of one run, and most cells that one of them is divided into."""

STEP = 0.4
"""Change of log delta between the epsilons at which the supremum is computed."""

GAIN = 0.99
"""No epsilons are added between two where the exact bound exceeds this share of the envelope."""

ROUNDS = 12
"""Most rounds in which a grid is made finer."""

BLOCK = 2.0
"""Nats within which epsilons are computed together, on the nodes useful at the smallest."""

BULK = 1e-4
"""Delta at the end of the bulk: epsilons up to there are divided into at least ten steps."""

ALIKE = 0.9
"""Least share of these nodes that has to be useful at all epsilons that are computed together."""

SMALLEST = 1e-13
"""Delta below which the envelope is kept."""

TAIL_DELTA = 1e-5
"""Delta up to which the envelope is within 0.5% of the exact epsilon if `law.envelope_suffices`."""

LARGEST_EPSILON = 600.0
"""Epsilon above which the envelope is kept: e^epsilon times E[K] must stay within float64."""

NEGLIGIBLE = 1e-17
"""Probability that is left out at either end and added to the bound."""

NUDGE = 1.0 + 2.0**-49
"""Factor that moves ranks outwards by more than their rounding: f' may depend on 1 - rank alone."""

UPWARDS = 1.0 + 2.0**-40
"""Factor that covers the rounding of f', of its sums and of the masses."""


def tightened(
    pair: LossPair,
    law: RepetitionLaw,
    interval: float,
    profiles: list[np.ndarray],
    far: bool = False,
    delta: float | None = None,
) -> list[np.ndarray]:
    """Takes the smaller of the envelope bound and the exact one, (n,) for each direction.

    The exact one is computed at some epsilons; the true profile is convex in e^epsilon, so the
    chords between them are upper bounds. `profiles` are those of `envelope.selected_profiles`, on
    the grid of that interval. For one `delta` alone, the two epsilons around it suffice.
    """
    # Below TAIL_DELTA nothing changes; ten times it leaves room for the hull in e^epsilon.
    smallest = 10.0 * TAIL_DELTA if law.envelope_suffices else SMALLEST
    directions = ((pair.forward, pair.backward), (pair.backward, pair.forward))
    smaller, place = list(profiles), 0
    # For one delta, begin with the direction that falls to it at the larger epsilon.
    order = list(range(len(profiles)))
    if delta is not None:
        order = sorted(order, key=lambda i: -np.count_nonzero(profiles[i] > delta))
    for i in order:
        (forward, reverse), profile = directions[i], profiles[i]
        if delta is not None and np.count_nonzero(profile > delta) <= place:
            continue
        epsilons = interval * np.arange(profile.size)
        cells = Cells(forward, reverse, law, FAR_LEAST if far else LEAST)
        if delta is None:
            taken, exact = _everywhere(cells, epsilons, profile, smallest)
        else:
            place, two = _crossing(cells, epsilons, profile, delta, place)
            taken = np.unique([0, place - 1, place])
            exact = np.append(1.0, two)[-taken.size :]
        exact = np.minimum.accumulate(np.minimum(exact, profile[taken]))
        growth = np.exp(epsilons[: taken[-1] + 1])
        chords = np.interp(growth, growth[taken], exact) * UPWARDS
        smaller[i] = np.append(np.minimum(profile[: growth.size], chords), profile[growth.size :])
    return smaller


def _everywhere(
    cells: Cells, epsilons: np.ndarray, profile: np.ndarray, smallest: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the indices of epsilons at which the exact bound is computed, and the bound there."""
    # Few epsilons first: no more are needed between two at which the envelope is as good.
    some = _knots(epsilons, profile, 4.0 * STEP, smallest)
    exact = np.minimum(cells.profile(epsilons[some]), profile[some])
    gains = exact < GAIN * profile[some]
    logs = np.interp(epsilons, epsilons[some], np.log(np.maximum(exact, 0.1 * smallest)))
    knots = _knots(epsilons, np.exp(logs), STEP, smallest)
    place = np.searchsorted(some, knots, side="right")
    near = gains[np.minimum(place, some.size - 1)] | gains[place - 1]
    others = np.setdiff1d(knots[near], some)
    if others.size:
        exact = np.append(exact, cells.profile(epsilons[others]))
    order = np.argsort(np.append(some, others))
    return np.append(some, others)[order], exact[order]


def _crossing(
    cells: Cells,
    epsilons: np.ndarray,
    profile: np.ndarray,
    delta: float,
    other: int,
) -> tuple[int, np.ndarray]:
    """Returns the index at which the exact bound falls to `delta`, and the bounds before and there.

    `other` is the other direction's index, 0 if unknown; if it is later, it is returned.
    """
    low, high = 0, min(int(np.count_nonzero(profile > delta)), profile.size - 1)
    high = max(1, min(high, int(np.count_nonzero(epsilons <= LARGEST_EPSILON)) - 1))
    place, turn = other or high, 0
    while True:
        place = min(max(place, low + 1), high)
        two = cells.profile(epsilons[[place - 1, place]])
        if two[1] > delta:
            low = place
        elif two[0] > delta or place == other:
            return place, two
        else:
            high = place - 1
        if low >= high:
            return place, two
        # Guess: the exact bound is smaller than the envelope by the same factor everywhere.
        wanted = delta * profile[place] / max(two[1], 1e-300)
        place = int(np.count_nonzero(profile > wanted))
        turn += 1
        if turn > 4:
            place = (low + high + 1) // 2


class Cells:
    """Bounds the integral over a curve in each cell of m at each node of n; arrays (cells, nodes).

    `forward` is the distribution of log(dQ/dQ') under Q, `reverse` that of log(dQ'/dQ) under Q'.
    One cell:

        m_k+1  +-----------+      f'(1 - n - m) falls along both axes: below its chord over m,
               |           |      at either end of the cell of n.
        m_k    +-----------+      f'(1 - h(n) - g(m)), too: above its tangent at the centre of
              n_j        n_j+1    (h, g), with h replaced by a line above it.

    Inside a cell of n the integrand is bounded by a linear function of n, so curves may be assumed
    to keep to the cell's two ends: each cell has two nodes, and there are two where cells meet. A
    curve that stays at a node all through a cell of m gains at most `gain - t cost`; `most` and
    `least` are the same with the integrand at its largest there. The integrand at a node varies by
    at most `swing_gain + t swing_cost`, and its difference to the previous node by `turn_gain + t
    turn_cost`: moving along n inside a cell adds at most that, summed over the nodes passed. Ranks
    beyond the last node and the last cell add at most `left_out`.
    """

    def __init__(
        self,
        forward: LossDistribution,
        reverse: LossDistribution,
        law: RepetitionLaw,
        least: float = LEAST,
    ):
        above, tangent = _functions(law, least)
        excess = max(0.0, reverse.mirrored_mass() - 1.0)
        n, resolution, beyond = _nodes(reverse, law, excess, least)
        revealed, p, ratio, rest = _pieces(forward, law, resolution, least)
        # Outcomes that reveal everything cost nothing and gain most if they rank first. As a cell
        # they would make every node useful, however light they are: they are added at the end.
        first = float(law.success_probability(min(revealed, 1.0))) * UPWARDS
        self.left_out = beyond + rest + first
        masses = p * ratio
        # Ranks are rounded down, where f' and so the gain is larger; the cost is treated below.
        rounding = (p.size + forward.masses.size + 4) * 2.0**-52
        m = np.append(revealed, revealed + np.cumsum(p)) * (1.0 - rounding)
        g = np.append(0.0, np.cumsum(masses)) * (1.0 - rounding)
        p, masses = p * UPWARDS, masses / UPWARDS
        # A mass of rounding noise counts e^{-loss} times as much under Q': it matters only at
        # negative losses, where g is lowered by all of the noise.
        noise = max(0.0, forward.mirrored_mass() - 1.0)
        if noise > 0.0:
            sound = g[int(np.count_nonzero(ratio <= 1.0))]
            # The first of those cells lose the noise; later ones keep their masses.
            left = np.maximum(g[1:] - sound - noise, 0.0)
            masses = np.where(
                (g[1:] > sound) & (g[:-1] - sound < noise), np.minimum(masses, left), masses
            )
            g = np.minimum(g, np.maximum(sound, g - noise))

        h = largest_mass(reverse, np.minimum(n + excess, 1.0))
        left, right = _lines_above(reverse, n, excess)
        beyond_one = right > 1.0
        left, right = np.where(beyond_one, h[1:], left), np.where(beyond_one, h[1:], right)
        middle, half = 0.5 * (left + right), 0.5 * (right - left)

        # f'(1 - n - m) is convex in m: below its chord.
        ranked = above(np.minimum((n + m[:, None]) / NUDGE, 1.0))
        chord = 0.5 * (ranked[1:] + ranked[:-1]) * p[:, None]
        self.gain = _at_nodes(chord[:, :-1], chord[:, 1:]) * UPWARDS
        first = ranked[:-1] * p[:, None]
        self.most = _at_nodes(first[:, :-1], first[:, 1:]) * UPWARDS
        # f'(1 - h(n) - g) is convex: above its tangent at the middle of both cells.
        centre = 0.5 * (g[1:] + g[:-1])[:, None]
        value, slope = tangent(np.minimum((middle + centre) * NUDGE, 1.0))
        # Where the tangent would fall too far, f' at the cell's far end bounds all of it.
        steep = slope * half > 0.3 * value
        if steep.any():
            end_value, _ = tangent(np.minimum((h[1:] + centre) * NUDGE, 1.0))
            value, slope = np.where(steep, end_value, value), np.where(steep, 0.0, slope)
        self.cost = (
            _at_nodes(value + slope * half, value - slope * half) * masses[:, None] / UPWARDS
        )
        width = np.diff(g)[:, None]
        far = 0.0
        if steep.any():
            far, _ = tangent(np.minimum((h[1:] + g[1:, None]) * NUDGE, 1.0))
            far *= masses[:, None] / UPWARDS
        fall = 0.5 * slope * width * masses[:, None] * UPWARDS
        least_left = np.where(steep, far, self.cost[:, 0::2] - fall)
        least_right = np.where(steep, far, self.cost[:, 1::2] - fall)
        self.least = np.maximum(_at_nodes(least_left, least_right), 0.0)
        # How much the integrand at a node, and the difference of two nodes, may vary in a cell.
        self.swing_gain = 2.0 * (self.most - self.gain / UPWARDS)
        self.swing_cost = 2.0 * _at_nodes(fall, fall)
        step = ranked[:, :-1] - ranked[:, 1:]
        self.turn_gain = np.zeros(self.gain.shape)
        self.turn_gain[:, 1::2] = np.maximum(step[:-1] - step[1:], 0.0) * p[:, None] * UPWARDS
        self.turn_cost = np.zeros(self.gain.shape)
        self.turn_cost[:, 2::2] = np.abs(np.diff(slope, axis=1)) * width * masses[:, None] * UPWARDS
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            earning = np.where(self.most > 0.0, self.most / self.least, 0.0)
        self.useful_nodes = earning.max(axis=0)
        self.useful_cells = np.maximum.accumulate(earning.max(axis=1)[::-1])[::-1]

    def profile(self, epsilons: np.ndarray) -> np.ndarray:
        """Returns the supremum over curves at each epsilon, (n,) ascending, rounded upwards."""
        growth = np.exp(epsilons)
        bounds = np.empty(growth.size)
        # Epsilons with nearly the same useful nodes are computed together.
        widths = np.array([np.count_nonzero(self.useful_nodes >= t) for t in growth])
        start = 0
        while start < growth.size:
            alike = np.count_nonzero(widths[start:] >= ALIKE * widths[start])
            near = int(min(alike, np.count_nonzero(epsilons[start:] <= epsilons[start] + BLOCK)))
            bounds[start : start + near] = self._largest(growth[start : start + near])
            start += near
        return np.minimum(bounds * UPWARDS + self.left_out, 1.0)

    def _largest(self, growth: np.ndarray) -> np.ndarray:
        """Returns the supremum at each t = e^epsilon of `growth`, without `left_out`."""
        best = np.zeros(growth.size)
        # In other nodes and cells nothing is gained at any of these t.
        nodes = np.flatnonzero(self.useful_nodes >= growth[0])
        cells = int(np.count_nonzero(self.useful_cells >= growth[0]))
        if nodes.size == 0 or cells == 0:
            return best
        part = (slice(0, cells), slice(int(nodes[0]), int(nodes[-1]) + 1))
        most, least = self.most[part], self.least[part]
        # Large numbers would drown small ones in rounding. Where a curve loses more than the cell
        # could ever gain, it is charged just that; where the integrand falls far inside the cell,
        # its largest value is used. Both are upper bounds, and constant in t.
        floor = most.max(axis=1, keepdims=True)
        lost = most - growth[0] * least <= -floor
        rough = ~lost & (
            (self.gain[part] - growth[0] * self.cost[part] <= -2.0 * floor)
            | (growth[0] * self.swing_cost[part] >= floor)
        )
        flat = lost | rough
        gain = np.where(lost, -floor, np.where(rough, most, self.gain[part]))
        cost = np.where(lost, 0.0, np.where(rough, least, self.cost[part]))
        turns = []
        for turn, swing in (
            (self.turn_gain[part], self.swing_gain[part]),
            (self.turn_cost[part], self.swing_cost[part]),
        ):
            swing = np.where(flat, 0.0, swing)
            turn = turn.copy()
            edge = flat[:, 1:] | flat[:, :-1]
            turn[:, 1:] = np.where(edge, swing[:, 1:] + swing[:, :-1], turn[:, 1:])
            turns.append(np.cumsum(turn, axis=1))
        so_far = np.zeros((growth.size, most.shape[1]))
        numbers = np.zeros(growth.size)
        count = growth.size
        for k in range(cells):
            count = int(np.searchsorted(growth[:count], self.useful_cells[k], side="right"))
            if count == 0:
                break
            t = growth[:count, None]
            past = so_far[:count]
            # A curve may end inside the cell. (`past` does not decrease along nodes.)
            stopped = past + most[k] - t * least[k]
            np.maximum(best[:count], stopped.max(axis=1), out=best[:count])
            # To move from node i to j inside the cell costs turn[j] - turn[i]: the best start of
            # each node is a running maximum of past - turn, before and after the gain.
            turn = turns[0][k] + t * turns[1][k]
            moved = np.maximum.accumulate(past - turn, axis=1)
            moved += gain[k] - t * cost[k]
            np.maximum.accumulate(moved, axis=1, out=moved)
            moved += turn
            so_far[:count] = moved
            numbers[:count] += turn[:, -1] + np.abs(moved).max(axis=1)
        # Each sum is off by at most a few units in the last place of the numbers added.
        return best + numbers * 2.0**-50


def _functions(law: RepetitionLaw, least: float):
    """Returns functions of y: f'(1 - y) from above; its tangent from below, as value and -slope."""
    if law.has_formulas:
        return law.derivative, lambda y: (law.derivative(y), law.second_derivative(y))
    # Laws without formulas may be slow: one table, chords from above and tangents from below.
    y = refined(
        np.array([0.0, 1.0]),
        lambda at: [np.maximum(law.derivative(at), least)],
        0.02,
        4000,
        ROUNDS,
        1000,
    )
    values, slopes = law.derivative(y), law.second_derivative(y)

    def tangent(at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        near = np.searchsorted(0.5 * (y[1:] + y[:-1]), at)
        return np.maximum(values[near] - slopes[near] * (at - y[near]), 0.0), slopes[near]

    return (lambda at: np.interp(at, y, values)), tangent


def _nodes(
    reverse: LossDistribution, law: RepetitionLaw, excess: float, least: float
) -> tuple[np.ndarray, float, float]:
    """Returns the ends of cells of n, the change of log f' in each, and a bound on the rest."""
    moving = derivatives_along(reverse, law, excess, least)
    # A small spread of losses needs smaller errors; they are quadratic, hence the square root.
    scale = math.sqrt(min(1.0, max(reverse.spread(), 1e-6) / 0.4))
    x = choice_grid(reverse, law, excess, 0.2 * RESOLUTION, least)  # `_thinned` keeps some.
    beyond = law.derivative(x) * (1.0 - x)
    x = x[: int(np.count_nonzero(beyond > NEGLIGIBLE)) + 1]
    rest = float(beyond[x.size - 1])
    total = float(log_moves(moving(x)).sum())
    resolution = scale * min(max(total / NODES, FINEST), RESOLUTION)
    resolution = max(resolution, total / (6 * NODES))
    x = refined(x, moving, resolution, 12 * NODES, ROUNDS, 1000)
    found = _thinned(x, moving, resolution)
    # With few outcomes the best curve turns at the corners of h: make them nodes.
    corners = kinks(*tradeoff_vertices(reverse))
    if corners.size <= NODES:
        apart = np.abs(corners[:, None] - found).min(axis=1) > WHOLE * np.minimum(
            corners, 1 - corners
        )
        found = np.union1d(found, corners[apart & (corners < x[-1])])
    return found, resolution, rest


def _pieces(
    forward: LossDistribution, law: RepetitionLaw, resolution: float, least: float
) -> tuple[float, np.ndarray, np.ndarray, float]:
    """Groups the outcomes of the forward direction into cells by their ratio dQ'/dQ.

    Returns the mass that reveals everything, the masses and ratios of the other outcomes, ratios
    ascending, and the mass that was left out.
    """
    wanted = max(forward.spread() / LOSSES, forward.masses.size * forward.interval / LONGEST)
    if forward.interval < wanted:
        forward = forward.regridded(forward.interval * whole_down(wanted / forward.interval))
    held = forward.masses > 0.0
    p, ratio = forward.masses[held][::-1], np.exp(-np.maximum(forward.losses[held][::-1], -700.0))
    # The most revealing outcomes count as impossible under Q'.
    light = NEGLIGIBLE / max(law.mean, 1.0)
    light = int(np.searchsorted(np.cumsum(p), light, side="right"))
    revealed = forward.infinity_mass + float(p[:light].sum())
    p, ratio = p[light:], ratio[light:]
    if p.size == 0:
        p, ratio = np.zeros(1), np.ones(1)
    m = np.minimum(revealed + np.cumsum(p) - p, 1.0)
    # The remaining mass is a sum: 1 - m would be mostly rounding error where little remains.
    beyond = law.derivative(m) * np.cumsum(p[::-1])[::-1]
    kept = max(1, int(np.count_nonzero(beyond > NEGLIGIBLE)))
    rest = float(beyond[kept]) if kept < p.size else 0.0
    p, ratio = p[:kept], ratio[:kept]
    ends = np.minimum(np.append(revealed, revealed + np.cumsum(p)), 1.0)
    worse = np.minimum(np.append(0.0, np.cumsum(p * ratio)), 1.0)
    moves = log_moves([np.maximum(law.derivative(at), least) for at in (ends, worse)])
    parts = np.clip(np.ceil(moves / resolution * (1.0 - WHOLE)), 1, LONGEST).astype(np.int64)
    return revealed, np.repeat(p / parts, parts), np.repeat(ratio, parts), rest


def _lines_above(
    reverse: LossDistribution, n: np.ndarray, excess: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns a line above h on each cell of n, by its values at both ends, (cells,) each.

    h is concave, so each of its tangents is above it; of three the lowest is taken.
    """
    begin, end = n[:-1], n[1:]
    best = (np.full(begin.size, np.inf), np.full(begin.size, np.inf))
    for touch in (begin, 0.5 * (begin + end), 0.8 * begin + 0.2 * end):
        shifted = np.minimum(touch + excess, 1.0)
        h, slope = largest_mass(reverse, shifted), right_slopes(reverse, shifted)
        lines = (h - slope * (touch - begin), h + slope * (end - touch))
        lower = lines[0] + lines[1] < best[0] + best[1]
        best = (np.where(lower, lines[0], best[0]), np.where(lower, lines[1], best[1]))
    # A line that is negative at the left end is raised there, which keeps it above.
    return np.maximum(best[0], 0.0), best[1]


def _thinned(x: np.ndarray, moving, resolution: float) -> np.ndarray:
    """Thins the points x, both ends kept: logarithms change by half of `resolution` between."""
    travelled = np.append(0.0, np.cumsum(log_moves(moving(x))))
    marks = np.arange(0.0, travelled[-1], 0.5 * resolution)
    # Where log f' is straight, points lie on marks but for rounding.
    near = np.searchsorted(travelled + 1e-6 * resolution, marks)
    return x[np.unique(np.append(near, [0, x.size - 1]))]


def _at_nodes(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Interleaves values at left and right ends of n intervals: (cells, n) to (cells, 2 n)."""
    joined = np.empty((left.shape[0], 2 * left.shape[1]))
    joined[:, 0::2], joined[:, 1::2] = left, right
    return joined


def _knots(epsilons: np.ndarray, profile: np.ndarray, step: float, smallest: float) -> np.ndarray:
    """Picks indices of epsilons, the first included, between which log delta changes by `step`."""
    logs = -np.log(np.maximum(profile, smallest))
    last = min(int(np.count_nonzero(profile > smallest)), epsilons.size - 1)
    last = min(last, int(np.count_nonzero(epsilons <= LARGEST_EPSILON)) - 1)
    # In the bulk, where delta is near 1, also in steps of epsilon. The bulk ends at a level of
    # delta, since the end of the profile itself may depend on rounding.
    reach = epsilons[min(int(np.count_nonzero(profile > BULK)), epsilons.size - 1)]
    # No more than 200 steps even if delta is small everywhere or falls very late.
    reach = max(reach, epsilons[last] / 8.0, 1e-300)
    travelled = (logs - logs[0]) / step + 10.0 / step * epsilons / reach
    marks = np.arange(0.0, travelled[last] + 1.0)
    return np.unique(np.append(np.minimum(np.searchsorted(travelled, marks), last), [0, last]))
