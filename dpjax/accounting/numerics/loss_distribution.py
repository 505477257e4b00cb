"""Privacy loss distributions on a grid: this package's form of a mechanism's cost.

A pair of output distributions (P, Q) of one mechanism on two neighbouring data sets is kept as the
distribution of its privacy loss log(dP/dQ) under P: masses on the multiples of one interval, plus
the mass where the loss is infinite. Rounding is pessimistic: a mass between two grid points is
split between them so that both its P mass and its Q mass are kept ("connect the dots",
Doroshenko, Ghazi, Kamath, Kumar & Manurangsi 2022, arXiv:2207.04380,
Algorithm 1), which dominates the original pair at every epsilon, negative ones included.

NumPy float64 throughout.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

LARGEST_SIZE = 1 << 20
"""Most grid points of a distribution before its interval is made coarser."""

CONSERVATION_SLACK = 1e-4
"""Largest excess of mirrored mass with which a bound on a selection is still computed."""

LOST_MASS = 1e-9
"""Most mass that may be missing before a distribution is refused."""

ROUNDED_MASS = 1e-12
"""Most mass that rounding alone takes from one distribution."""


WHOLE = 1e-9
"""Relative distance from a whole number within which a quotient counts as that number.

Round arguments make round quotients (5.425 / 1e-4), whose last bits would choose how many points a
grid has.
"""


def whole_up(quotient: float) -> int:
    """Rounds the quotient up; one that is whole up to rounding error becomes that number."""
    return math.ceil(quotient * (1.0 - WHOLE))


def whole_down(quotient: float) -> int:
    """Rounds the quotient down; one that is whole up to rounding error becomes that number."""
    return math.floor(quotient * (1.0 + WHOLE))


def decayed_sums(values: np.ndarray, decay: float) -> np.ndarray:
    """Returns y with y_j = values_j + decay y_{j+1}, (n,) -> (n,), at most 4 n roundings each.

    scipy.signal.lfilter does it, too, but its import takes half a second: more than a price.
    """
    # Blocks are the columns of a table, summed side by side; then each block adds those after it.
    rows = math.isqrt(values.size) + 1
    table = np.append(values[::-1], np.zeros(-values.size % rows)).reshape(-1, rows).T.copy()
    for row in range(1, rows):
        table[row] += decay * table[row - 1]
    powers = np.cumprod(np.full(rows, decay))
    following, carried = [0.0], float(powers[-1])
    for end in table[-1, :-1].tolist():
        following.append(end + carried * following[-1])
    table += powers[:, None] * np.array(following)
    return table.T.ravel()[: values.size][::-1]


@dataclasses.dataclass(frozen=True, eq=False)
class LossDistribution:
    """Holds the distribution of the privacy loss log(dP/dQ) under P, in nats.

    Masses with NaN or infinity are refused, and those that lack more than 1e-9 of 1 in total: the
    missing mass would cost nothing. A total above 1 only raises every bound.
    """

    interval: float  # spacing of the grid of losses
    lowest: int  # index of the first mass; loss i is (lowest + i) * interval
    masses: np.ndarray  # (size,) float64, non-negative P masses
    infinity_mass: float  # P mass of outcomes impossible under Q

    def __post_init__(self) -> None:
        # NaN compares as neither above nor below any delta: no bound may be read off it.
        if not (math.isfinite(float(np.sum(self.masses))) and self.infinity_mass >= 0.0):
            raise ValueError("a loss distribution needs finite masses: this one holds NaN")
        missing = 1.0 - self.total_mass()
        if missing > LOST_MASS:
            raise ValueError(
                f"a loss distribution needs mass 1: this one lacks {missing:.2e}, which would cost "
                "nothing; pass what is lost as infinity_mass"
            )
        # Distributions are kept and shared: whoever would change one in place gets an error.
        self.masses.setflags(write=False)

    @functools.cached_property
    def losses(self) -> np.ndarray:
        """Returns the losses of the masses, (size,), ascending."""
        return (self.lowest + np.arange(self.masses.size)) * self.interval

    @functools.cached_property
    def _tails(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns divergences D and scaled Q masses B, at each loss s and one beyond; (size + 1,).

        D is the finite part of the divergence of order e^s, B the Q mass at and above s, times e^s.
        Both follow by recurrences of positive terms, B_j = p_j + e^{-interval} B_{j+1} and D_j =
        D_{j+1} + (1 - e^{-interval}) B_{j+1}, which neither overflow nor cancel.
        """
        lower = np.append(decayed_sums(self.masses, math.exp(-self.interval)), 0.0)
        steps = -math.expm1(-self.interval) * lower[1:]
        return np.append(np.cumsum(steps[::-1])[::-1], 0.0), lower

    def delta(self, epsilon: np.ndarray | float) -> np.ndarray:
        """Returns the hockey-stick divergence of order e^epsilon; of epsilon's shape."""
        epsilon = np.asarray(epsilon, dtype=np.float64)
        knots, lower = self._tails
        first = np.searchsorted(self.losses, epsilon, side="right")
        anchor = (self.lowest + first) * self.interval
        between = -np.expm1(np.minimum(epsilon - anchor, 0.0)) * lower[first]
        return np.minimum(self.infinity_mass + (knots[first] + between), 1.0)

    def epsilon(self, delta: float) -> float:
        """Finds the least epsilon >= 0 with a divergence of at most `delta`; may be inf."""
        if self.infinity_mass > delta:
            return math.inf
        if float(self.delta(0.0)) <= delta:
            return 0.0
        knots, lower = self._tails
        # The first knot with divergence <= delta, else the last; the crossing lies before it.
        index = int(np.argmax(self.infinity_mass + knots <= delta))
        # Without Q mass above a knot the divergence is flat there: go back to where it falls.
        while index > 0 and lower[index] <= 0.0:
            index -= 1
        anchor = (self.lowest + index) * self.interval
        missing = delta - self.infinity_mass - knots[index]
        if lower[index] <= 0.0 or missing <= 0.0:
            return max(0.0, anchor)
        # Solves knots + (1 - e^(epsilon - anchor)) lower = delta, as in `delta`, for epsilon.
        return max(0.0, anchor + math.log1p(-min(missing / lower[index], 1.0 - 1e-300)))

    def total_mass(self) -> float:
        """Returns the mass under P: 1, up to rounding, or more if bounds were rounded up."""
        return float(self.masses.sum() + self.infinity_mass)

    def completed(self) -> LossDistribution:
        """Adds the missing mass: evenly if it is rounding, else as infinite loss."""
        missing = 1.0 - self.total_mass()
        if missing <= 0.0:
            return self
        finite = float(self.masses.sum())
        if missing > ROUNDED_MASS * finite:
            return dataclasses.replace(self, infinity_mass=self.infinity_mass + missing)
        return dataclasses.replace(self, masses=self.masses * (1.0 + missing / finite))

    def mirrored_mass(self) -> float:
        """Returns the mass under Q of outcomes possible under P: at most 1, up to rounding."""
        held = self.masses > 0
        return float(np.sum(self.masses[held] * np.exp(np.minimum(-self.losses[held], 700.0))))

    def spread(self) -> float:
        """Returns the standard deviation of the finite part of the loss."""
        weight = float(self.masses.sum())
        if weight <= 0:
            return 0.0
        mean = float(np.sum(self.masses * self.losses)) / weight
        return math.sqrt(max(0.0, float(np.sum(self.masses * (self.losses - mean) ** 2)) / weight))

    def regridded(self, interval: float) -> LossDistribution:
        """Moves the distribution to another grid, pessimistically; exact for losses on knots."""
        if interval == self.interval:
            return self
        positions = self.losses / interval
        nearest = np.round(positions)
        on_knot = np.abs(positions - nearest) <= 1e-9
        below = np.where(on_knot, nearest, np.floor(positions)).astype(np.int64)
        # Keeping both masses: up + down = p and up e^{-h} + down = p e^{-(s - below)}.
        excess = np.where(on_knot, 0.0, (positions - below) * interval)
        up = self.masses * np.expm1(-excess) / math.expm1(-interval)
        lowest = int(below[0])
        masses = np.zeros(int(below[-1]) - lowest + 2)
        np.add.at(masses, below - lowest, self.masses - up)
        np.add.at(masses, below - lowest + 1, up)
        return LossDistribution(interval, lowest, masses, self.infinity_mass)

    def knots(self, share: float, outside: int) -> np.ndarray:
        """Picks indices of masses to keep, ends included: dense around the bulk, sparse elsewhere.

        Within 16 standard deviations of the mean they are `share` of one apart; `outside` more are
        spread evenly over the whole range.
        """
        size = self.masses.size
        block = max(1, size // outside)
        spread, weight = self.spread(), float(self.masses.sum())
        mean = float(self.masses @ self.losses) / weight if weight > 0.0 else 0.0
        first, last = np.searchsorted(self.losses, [mean - 16.0 * spread, mean + 16.0 * spread])
        fine = min(max(1, whole_down(share * spread / self.interval)), block)
        return np.unique(
            np.concatenate([np.arange(0, size, block), np.arange(first, last, fine), [0, size - 1]])
        )

    def kept_at(self, knots: np.ndarray) -> LossDistribution:
        """Moves the distribution pessimistically to some of its knots, ends included."""
        if knots.size < 2:
            return self
        place = np.arange(self.masses.size)
        cell = np.minimum(np.searchsorted(knots, place, side="right") - 1, knots.size - 2)
        # Keeping both masses: up + down = p and up e^{-(end - start)} + down = p e^{-(s - start)}.
        excess = (place - knots[cell]) * self.interval
        up = self.masses * np.expm1(-excess) / np.expm1(-np.diff(knots) * self.interval)[cell]
        masses = np.zeros(self.masses.size)
        np.add.at(masses, knots[cell], self.masses - up)
        np.add.at(masses, knots[cell + 1], up)
        return LossDistribution(self.interval, self.lowest, masses, self.infinity_mass)

    def with_failure(self, probability: float) -> LossDistribution:
        """Returns the distribution if, with this probability, everything is revealed."""
        if probability == 0.0:
            return self
        infinity = probability + (1.0 - probability) * self.infinity_mass
        masses = self.masses * (1.0 - probability)
        return LossDistribution(self.interval, self.lowest, masses, infinity)


@dataclasses.dataclass(frozen=True, eq=False)
class LossPair:
    """Holds both directions of one neighbouring pair, each dominating the real mechanism."""

    # log(dM(D)/dM(D')) under M(D), where D' has one record fewer (or replaced)
    forward: LossDistribution
    backward: LossDistribution  # log(dM(D')/dM(D)) under M(D'); the same object where the two agree

    @property
    def symmetric(self) -> bool:
        """Returns whether both directions are the same object."""
        return self.forward is self.backward

    @property
    def interval(self) -> float:
        """Returns the spacing of the common grid."""
        return self.forward.interval

    @property
    def size(self) -> int:
        """Returns the number of grid points of the longer direction."""
        return max(self.forward.masses.size, self.backward.masses.size)

    def delta(self, epsilon: np.ndarray | float) -> np.ndarray:
        """Returns the privacy profile: the larger divergence of the two directions."""
        if self.symmetric:
            return self.forward.delta(epsilon)
        return np.maximum(self.forward.delta(epsilon), self.backward.delta(epsilon))

    def epsilon(self, delta: float) -> float:
        """Finds the smallest epsilon >= 0 whose profile is at most `delta`."""
        if self.symmetric:
            return self.forward.epsilon(delta)
        return max(self.forward.epsilon(delta), self.backward.epsilon(delta))

    def spread(self) -> float:
        """Returns the larger standard deviation of the two directions' finite losses."""
        return max(self.forward.spread(), self.backward.spread())

    def _mapped(self, function, *others: LossPair) -> LossPair:
        """Applies a function to each direction of the pairs, once if all are symmetric."""
        forward = function(self.forward, *(other.forward for other in others))
        if self.symmetric and all(other.symmetric for other in others):
            return LossPair(forward, forward)
        backward = function(self.backward, *(other.backward for other in others))
        return LossPair(forward, backward)

    def regridded(self, interval: float) -> LossPair:
        """Moves both directions to another grid, pessimistically."""
        return self if interval == self.interval else self._mapped(lambda a: a.regridded(interval))

    def with_failure(self, probability: float) -> LossPair:
        """Mixes this mass of infinite loss into both directions."""
        return self._mapped(lambda a: a.with_failure(probability))

    def mixed(self, others: list[LossPair], weights: np.ndarray) -> LossPair:
        """Forms the pair of a mechanism drawn by public weights; the first is this pair's."""
        pairs = [self, *others]
        spread = max(pair.spread() for pair in pairs)
        extent = max(pair.size * pair.interval for pair in pairs)
        interval = _shared_interval([pair.interval for pair in pairs], extent, 0.05 * spread)

        def mix(*laws: LossDistribution) -> LossDistribution:
            # One at a time: hundreds of distributions on the finest grid would fill the memory.
            lowest, masses, infinity = 0, np.zeros(1), 0.0
            for law, weight in zip(laws, weights):
                part = law.regridded(interval)
                start = min(lowest, part.lowest)
                end = max(lowest + masses.size, part.lowest + part.masses.size)
                if end - start > masses.size:
                    wider = np.zeros(end - start)
                    wider[lowest - start : lowest - start + masses.size] = masses
                    lowest, masses = start, wider
                place = part.lowest - lowest
                masses[place : place + part.masses.size] += weight * part.masses
                infinity += weight * part.infinity_mass
            return LossDistribution(interval, lowest, masses, infinity)

        return self._mapped(mix, *others)


def common_interval(pairs: list[LossPair]) -> float:
    """Chooses a grid for the sum of several pairs' losses: exact if intervals divide each other.

    Otherwise it is 1e-4, finer where the sum spreads little, coarser where it reaches far.
    """
    variance = sum(pair.spread() ** 2 for pair in pairs)
    extent = sum(pair.size * pair.interval for pair in pairs)
    # Splitting masses adds at most a quarter of the interval squared, for each: 0.1% in all.
    fine = 0.06 * math.sqrt(variance / len(pairs))
    return _shared_interval([pair.interval for pair in pairs], extent, fine)


def _shared_interval(intervals: list[float], extent: float, fine: float) -> float:
    """Returns the finest interval if all are multiples of it, else one of at most `fine`."""
    finest = min(intervals)
    ratios = np.array(intervals) / finest
    if np.all(np.abs(ratios - np.round(ratios)) <= 1e-9) and extent / finest <= LARGEST_SIZE:
        return finest
    # Not coarser than 1e-4 or `fine`, unless the grid would be too long.
    coarsest = min(max(intervals), 1e-4)
    if fine > 0.0:
        coarsest = min(coarsest, fine)
    while extent / coarsest > LARGEST_SIZE:
        coarsest *= 2.0
    return coarsest
