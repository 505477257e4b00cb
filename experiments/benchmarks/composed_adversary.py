"""An adversary of several selections in a row, each order chosen by the loss so far.

Selections of Gaussian runs, solved backwards. What follows is worth v(s) = sup of what the
adversary reaches at order s, a maximum of lines (a strategy's divergence at order s is convex in s,
so its tangent at the order for which it was chosen is below it). A selection before it ranks
outcomes from both ends: next comes the largest output of those left, or the smallest. A slice of
ranks is one outcome: merging outcomes only lowers a divergence. Everything is rounded downwards, so
that no sound bound is below what comes out.
"""

from __future__ import annotations

import numpy as np
from scipy import special

from dpjax.accounting.selection.envelope import envelope


class Orders:
    """Represents the orders of the outcomes of one selection of N(shift, 1) against N(0, 1)."""

    def __init__(self, law, shift: float, points: int):
        z = np.concatenate([[-np.inf], np.linspace(-5.5, 5.5, points), [np.inf]])
        self.none = float(law.pmf(0))
        self.size = z.size - 1
        # Masses of the smallest and of the largest outputs, without the shift and with it.
        ends = []
        for moved in (0.0, shift):
            smallest, largest = special.ndtr(z - moved), special.ndtr(moved - z[::-1])
            ranked = np.minimum(largest[:, None] + smallest, 1.0)
            # A winner ranked beyond: f(1 - ranked), up to f(0).
            ends.append(1.0 - law.success_probability(ranked))
        # From (n, m), the next slice from above or from below: its masses under both laws.
        self.from_above = [np.maximum(a[:-1] - a[1:], 0.0) for a in ends]
        self.from_below = [np.maximum(a[:, :-1] - a[:, 1:], 0.0) for a in ends]

    def lines(self, slopes: np.ndarray, heights: np.ndarray, orders: np.ndarray):
        """Returns slopes and heights of one line below the divergence for each order, and its."""
        found = []
        for t in orders:
            gains, parts = [], []
            for mine, its in (self.from_above, self.from_below):
                with np.errstate(divide="ignore", invalid="ignore"):
                    ratio = np.where(mine > 0.0, its / mine, np.inf)
                # The line of what follows that is best here: mine * height - t * its * slope.
                turns = np.diff(heights) / np.diff(slopes)
                best = np.searchsorted(-turns, -t * ratio, side="left")
                parts.append((mine * heights[best], its * slopes[best]))
                gains.append(np.maximum(parts[-1][0] - t * parts[-1][1], 0.0))
            found.append(self._followed(*self._best(*gains), parts, t, slopes, heights))
        return np.array(found).T

    def _best(self, above: np.ndarray, below: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The largest value to go and whether the next comes from above, at each (n, m)."""
        value, chosen = np.zeros((2, self.size + 1, self.size + 1))
        for left in range(self.size - 1, -1, -1):
            n = np.arange(left + 1)
            m = left - n
            up, down = above[n, m] + value[n + 1, m], below[n, m] + value[n, m + 1]
            chosen[n, m] = up >= down
            value[n, m] = np.maximum(up, down)
        return value, chosen

    def _followed(self, value, chosen, parts, t, slopes, heights) -> tuple[float, float]:
        """The slope and height of the order that `chosen` describes, with nothing run at all."""
        n = m = 0
        height = slope = 0.0
        while n + m < self.size:
            which = 0 if chosen[n, m] else 1
            gain, cost = parts[which][0][n, m], parts[which][1][n, m]
            if gain > t * cost:
                height, slope = height + gain, slope + cost
            n, m = (n + 1, m) if which == 0 else (n, m + 1)
        best = int(np.argmax(heights - t * slopes))
        height += self.none * heights[best]
        return slope + self.none * slopes[best], height


def hulled(slopes: np.ndarray, heights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The lines that are largest somewhere, by ascending slope and height."""
    kept: list[tuple[float, float]] = []
    for a, b in sorted({(float(a), float(b)) for a, b in zip(slopes, heights)}):
        while kept and kept[-1][0] == a:
            kept.pop()
        while len(kept) > 1 and (b - kept[-1][1]) * (kept[-1][0] - kept[-2][0]) >= (
            kept[-1][1] - kept[-2][1]
        ) * (a - kept[-1][0]):
            kept.pop()
        kept.append((a, b))
    return np.array(kept).T


def reached(law, noise: float, times: int, delta: float, points: int = 90, step: float = 0.03):
    """The epsilon that so many selections certainly cost at a delta, from below, for each number.

    Example: `reached(Geometric(10), 20.0, 10, 1e-5)[-1]`.
    """
    orders = Orders(law, 1.0 / noise, points)
    slopes, heights = np.array([0.0, 1.0]), np.array([0.0, 1.0])  # Nothing follows: [1 - s]_+.
    epsilons, costs = [0.0], []
    for _ in range(times):
        # As far as delta / 1000 is reached.
        epsilons = np.arange(0.0, epsilons[-1] + 0.6, step)
        found = orders.lines(slopes, heights, np.exp(epsilons))
        values = found[1] - np.exp(epsilons) * found[0]
        last = int(np.count_nonzero(values > 1e-3 * delta)) + 1
        found, epsilons = found[:, :last], epsilons[:last]
        # Orders below 1 by exchanging the two laws: 1 - s + s H_{1/s}. The base is symmetric.
        a, b = found
        slopes, heights = hulled(
            np.concatenate([[0.0, 1.0], a, 1.0 - b]), np.concatenate([[0.0, 1.0], b, 1.0 - a])
        )
        at = np.linspace(0.0, epsilons[-1], 4000)
        costs.append(float(at[np.argmax(envelope(np.exp(at), slopes, heights) < delta) - 1]))
    return costs


def by_size(law, noise: float, times: int, delta: float, points: int = 2000, interval=2e-5):
    """The epsilon that selections certainly cost whose orders are by the size of the loss.

    The worst order of many (docs/proofs/composition.md): |z| first, whatever the sign, in slices
    whose ties independent labels break. What is released is the slice and the sign.
    """
    from dp_accounting.pld import privacy_loss_distribution

    ends, shift = np.linspace(8.5, 0.0, points + 1), 1.0 / noise
    logs = []
    for moved in (0.0, shift):
        above, below = special.ndtr(moved - ends), special.ndtr(-moved - ends)
        winner = np.diff(law.success_probability(np.minimum(above + below, 1.0)))
        share = np.diff(above) / np.diff(above + below)
        masses = np.concatenate([winner * share, winner * (1.0 - share), law.pmf([0])])
        logs.append(dict(enumerate(np.log(np.maximum(masses, 1e-300)).tolist())))
    one = privacy_loss_distribution.from_two_probability_mass_functions(
        *logs, pessimistic_estimate=False, value_discretization_interval=interval, symmetric=False
    )
    return one.self_compose(times).get_epsilon_for_delta(delta)
