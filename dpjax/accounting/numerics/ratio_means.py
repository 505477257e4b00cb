"""Means of independent likelihood ratios on a grid, rounded up for both directions at once.

A mechanism that runs one of t steps on a record, chosen at random, has as its likelihood ratio R =
dP/dQ the mean of the t steps' own ratios, which are independent under Q. With E the mean under Q,
H_t(P||Q) = E max(R - t, 0) and H_t(Q||P) = E max(1 - t R, 0). Both are means of convex functions of
R: whatever spreads R out and keeps its mean raises them at every t, and means of spread-out ratios
are spread-out means. So masses are split between the knots around them, as privacy loss
distributions do, after every addition (docs/proofs/balls_in_bins.md). NumPy float64: every sum is
of positive terms, and is raised by a bound on its rounding.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from dpjax.accounting.numerics.loss_distribution import LossDistribution, LossPair

RESOLUTION = 0.03
"""Interval of the grid over the standard deviation of log R, roughly and at most.

Each of log2(t) additions adds at most a sixth of its square to the variance, relative.
"""

MOST_KNOTS = 1 << 13
"""Knots beyond which a grid is not refined; the time of an addition is their square."""

TAIL = 1e-25
"""Mass, under Q below and under P above, that an addition may move to 0 and to infinity."""

UNIT = 2.0**-53
"""Largest relative error of one float64 operation."""


@dataclasses.dataclass(frozen=True, eq=False)
class RatioLaw:
    """Holds the law of a likelihood ratio R = dP/dQ under Q, at R = e^(k * interval).

    P has mass R times Q's at every knot. `interval` is a power of 2, so that k * interval is exact.
    """

    interval: float
    lowest: int  # the first k
    masses: np.ndarray  # (size,) float64, under Q
    at_zero: float  # under Q: outcomes impossible under P
    at_infinity: float  # under P: outcomes impossible under Q

    @functools.cached_property
    def losses(self) -> np.ndarray:
        """Returns log R of the masses, (size,), ascending."""
        return (self.lowest + np.arange(self.masses.size)) * self.interval

    @functools.cached_property
    def under_p(self) -> np.ndarray:
        """Returns the masses under P, (size,), rounded up."""
        return self.masses * np.exp(self.losses) * (1.0 + 8.0 * UNIT)

    @property
    def total(self) -> float:
        """Returns the mass under Q: 1, rounded up."""
        rounding = 1.0 + (self.masses.size + 8.0) * UNIT
        return float(self.masses.sum() + self.at_zero) * rounding

    def log_moments(self, powers: np.ndarray) -> np.ndarray:
        """Returns log of the mean of R^power under Q where 0 < R < infinity, (n,) as the powers."""
        with np.errstate(divide="ignore"):
            logs = np.log(self.masses)
        return np.array([np.logaddexp.reduce(logs + power * self.losses) for power in powers])

    def spread(self) -> float:
        """Returns the standard deviation of log R: the smaller of those under P and under Q."""
        found = []
        for masses in (self.masses, self.under_p):
            mean = float(masses @ self.losses) / float(masses.sum())
            found.append(float(masses @ (self.losses - mean) ** 2) / float(masses.sum()))
        return math.sqrt(min(found))

    def refined(self, interval: float) -> RatioLaw:
        """Returns the same law on a finer grid, whose interval divides this one."""
        times = round(self.interval / interval)
        masses = np.zeros((self.masses.size - 1) * times + 1)
        masses[::times] = self.masses
        return dataclasses.replace(
            self, interval=interval, lowest=self.lowest * times, masses=masses
        )

    def trimmed(self) -> RatioLaw:
        """Moves tails of at most TAIL to their end, and to 0 or infinity; both sides round up."""
        first = int(np.searchsorted(np.cumsum(self.masses), TAIL, side="right"))
        above = int(np.searchsorted(np.cumsum(self.under_p[::-1]), TAIL, side="right"))
        end = self.masses.size - above
        low, high = slice(first), slice(end, None)
        # Each sum is rounded up; that below keeps R's mean, that above only needs the masses.
        up = 1.0 + (2.0 * self.masses.size + 64.0) * UNIT
        kept = self.masses[first:end].copy()
        kept[0] += up * float(self.masses[low] @ np.exp(self.losses[low] - self.losses[first]))
        kept[-1] += up * float(self.masses[high].sum())
        return RatioLaw(
            self.interval,
            self.lowest + first,
            kept,
            self.at_zero + up * float(self.masses[low].sum()),
            self.at_infinity + up * float(self.under_p[high].sum()),
        )

    def pair(self) -> LossPair:
        """Returns both directions' losses: log R under P, and -log R under Q."""
        top = self.lowest + self.masses.size - 1
        return LossPair(
            LossDistribution(self.interval, self.lowest, self.under_p, self.at_infinity),
            LossDistribution(self.interval, -top, self.masses[::-1].copy(), self.at_zero),
        )


def law_of_symmetric(pair: LossPair) -> RatioLaw:
    """Returns R's law of a symmetric pair, whose interval is a power of 2.

    The pair's losses are -log R under Q, by its symmetry.
    """
    loss = pair.forward
    lowest = -(loss.lowest + loss.masses.size - 1)
    # The directions agree up to the rounding of one exponential, a few units: round up.
    masses = loss.masses[::-1] * (1.0 + 16.0 * UNIT)
    return RatioLaw(loss.interval, lowest, masses, loss.infinity_mass, loss.infinity_mass)


def mean_of(law: RatioLaw, count: int) -> RatioLaw:
    """Returns the law of the mean of `count` independent ratios of this law, rounded up.

    Formal guarantees: its H_t(P||Q) and H_t(Q||P) are at least those of the mean, at every t >= 0.

    Numbers n are halved, to floor(n / 2) and the rest, so that every stage has two at most.
    """
    stages = [{count}]
    while max(stages[-1]) > 1:
        stages.append({half for n in stages[-1] for half in (n // 2, n - n // 2) if half})
    laws = {1: law}
    for stage in reversed(stages):
        for n in sorted(stage - laws.keys()):
            laws[n] = _mean(laws[n // 2], laws[n - n // 2], n)
    return laws[count]


def _mean(few: RatioLaw, many: RatioLaw, count: int) -> RatioLaw:
    """Returns the law of the mean of `count` ratios, of those of its halves (`few` <= `many`)."""
    interval = min(few.interval, many.interval)
    wanted = RESOLUTION * many.spread() * math.sqrt((count - count // 2) / count)
    extent = max(law.masses.size * law.interval for law in (few, many))
    while interval > wanted and 2.0 * extent / interval <= MOST_KNOTS:
        interval *= 0.5
    a, b, share = few.refined(interval), many.refined(interval), (count // 2) / count
    alike = few is many
    # For a at knot j + d and b at knot j the mean is e^(j h) times share e^(d h) + 1 - share.
    size_a, size_b, h = a.masses.size, b.masses.size, interval
    first, last = a.lowest - (b.lowest + size_b - 1), a.lowest + size_a - 1 - b.lowest
    apart = np.arange(0 if alike else first, last + 1)
    log_means = np.logaddexp(math.log(share) + apart * h, math.log1p(-share))
    cells = np.floor(log_means / h)
    up = np.expm1(log_means - cells * h) / math.expm1(h)
    # log_means is off by less than (2 |d h| + 14) units, and e^h < 2: both shares are rounded up.
    pad = (4.0 * np.abs(apart * h) + 40.0) * (UNIT / h)
    # A mean that may lie on either side of a knot goes to the two knots around that one.
    near = np.minimum(up, 1.0 - up) < pad
    cells -= near & (up < 0.5)
    up = np.expm1(log_means - cells * h) / np.expm1((1.0 + near) * h)
    twice = np.where(alike & (apart > 0), 2.0, 1.0)
    ups, downs = (twice * (up + pad)).tolist(), (twice * (1.0 - up + pad)).tolist()
    # Two knots more on either side, for what rounding does to a cell.
    lowest = min(a.lowest, b.lowest) - 2
    masses = np.zeros(max(a.lowest + size_a, b.lowest + size_b) + 3 - lowest)
    cells, reaches = cells.astype(int).tolist(), (1 + near).tolist()
    for d, cell, reach, to_up, to_down in zip(apart.tolist(), cells, reaches, ups, downs):
        start = max(b.lowest, a.lowest - d)
        end = min(b.lowest + size_b, a.lowest + size_a - d)
        both = (
            a.masses[start + d - a.lowest : end + d - a.lowest]
            * b.masses[start - b.lowest : end - b.lowest]
        )
        place = start + cell - lowest
        masses[place : place + both.size] += to_down * both
        masses[place + reach : place + reach + both.size] += to_up * both
    # Two additions for each d, three multiplications, and products too small for float64.
    masses = masses * (1.0 + (4.0 * apart.size + 16.0) * UNIT) + apart.size * 2.0**-1070
    # A ratio of 0 beside another one, r: the mean, a share of r, is spread out over 0 and r.
    masses[a.lowest - lowest :][:size_a] += share * b.at_zero * (1.0 + 8.0 * UNIT) * a.masses
    masses[b.lowest - lowest :][:size_b] += (
        (1.0 - share) * a.at_zero * (1.0 + 8.0 * UNIT) * b.masses
    )
    at_zero = share * a.at_zero * b.total + (1.0 - share) * b.at_zero * a.total
    at_infinity = share * a.at_infinity * b.total + (1.0 - share) * b.at_infinity * a.total
    up = 1.0 + 16.0 * UNIT
    return RatioLaw(interval, lowest, masses, up * at_zero, up * at_infinity).trimmed()
