"""Privacy loss distributions on a grid: the exact currency of this room.

A pair of output distributions (P, Q) of one mechanism on two neighbouring data sets is kept as the
law of its privacy loss log(dP/dQ) under P: masses on the multiples of one interval, plus the mass
where the loss is infinite. Everything here is pessimistic: whatever is rounded is rounded by
splitting a mass between the two neighbouring grid points so that both its P mass and its Q mass are
kept ("connect the dots", Doroshenko, Ghazi, Kamath, Kumar & Manurangsi 2022, arXiv:2207.04380,
Algorithm 1), which dominates the original pair at every epsilon, negative ones included.

NumPy float64 throughout.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
from scipy import fft, signal

TAIL_MASS = 1e-16
"""Mass that a convolution may move: up to the lowest kept loss, or to infinity."""

POWER_ROUNDING = 2.0**-53
"""Mass charged per copy for rounding in the power of a spectrum.

The power multiplies the relative error of each frequency by the number of copies. Against extended
precision the deltas of up to a million copies were short by at most 2e-17 of mass a copy.
"""

LARGEST_SIZE = 1 << 20
"""Grid points a distribution may have before its interval is coarsened."""

LARGEST_COMPOSITION = 1 << 23
"""Grid points of a sum of many losses before their interval is coarsened; half a gigabyte."""

CONSERVATION_SLACK = 1e-4
"""Excess of mass, or of mirrored mass, beyond which a composition is redone on a coarser grid."""

LOST_MASS = 1e-9
"""Mass that may be missing before a distribution is refused."""

ROUNDED_MASS = 1e-12
"""Mass that rounding alone may take from one distribution."""


@dataclasses.dataclass(frozen=True, eq=False)
class LossDistribution:
    """Law of the privacy loss log(dP/dQ) under P, in nats.

    Attributes:
      interval: spacing of the grid of losses.
      lowest: integer index of the first mass; loss i is (lowest + i) * interval.
      masses: (size,) float64, non-negative P masses.
      infinity_mass: P mass of outcomes impossible under Q.

    Raises:
      ValueError: masses that hold NaN or infinity, or that lack more than 1e-9 of 1 in total. More
        than 1 only raises every bound; less would price what is missing at nothing.
    """

    interval: float
    lowest: int
    masses: np.ndarray
    infinity_mass: float

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

    @functools.cached_property
    def losses(self) -> np.ndarray:
        """(size,) the losses of the masses, ascending."""
        return (self.lowest + np.arange(self.masses.size)) * self.interval

    @functools.cached_property
    def _tails(self) -> tuple[np.ndarray, np.ndarray]:
        """P mass at and above each loss s, and Q mass there times e^s; each (size + 1,)."""
        upper = np.cumsum(self.masses[::-1])[::-1]
        # The recurrence B_j = p_j + e^{-interval} B_{j+1} cannot overflow, unlike sum p e^{-s}.
        lower = signal.lfilter([1.0], [1.0, -math.exp(-self.interval)], self.masses[::-1])[::-1]
        return np.append(upper, 0.0), np.append(lower, 0.0)

    @functools.cached_property
    def _knot_deltas(self) -> np.ndarray:
        """Hockey-stick divergences at the losses, (size,); non-increasing."""
        upper, lower = self._tails
        return self.infinity_mass + np.maximum(upper[:-1] - lower[:-1], 0.0)

    def delta(self, epsilon: np.ndarray | float) -> np.ndarray:
        """Hockey-stick divergence of order e^epsilon, for any real epsilon; shape of `epsilon`."""
        epsilon = np.asarray(epsilon, dtype=np.float64)
        upper, lower = self._tails
        first = np.searchsorted(self.losses, epsilon, side="right")
        anchor = (self.lowest + first) * self.interval
        finite = upper[first] - np.exp(np.minimum(epsilon - anchor, 0.0)) * lower[first]
        return np.minimum(self.infinity_mass + np.maximum(finite, 0.0), 1.0)

    def epsilon(self, delta: float) -> float:
        """Smallest epsilon >= 0 whose hockey-stick divergence is at most `delta`; may be inf."""
        if self.infinity_mass > delta:
            return math.inf
        if float(self.delta(0.0)) <= delta:
            return 0.0
        upper, lower = self._tails
        # The first knot with divergence <= delta; the crossing lies just below it.
        index = int(np.argmax(self._knot_deltas <= delta)) if self.masses.size else 0
        if not self._knot_deltas[index] <= delta:
            index = self.masses.size
        while index > 0 and lower[index] <= 0.0:
            index -= 1
        excess = self.infinity_mass + upper[index] - delta
        if lower[index] <= 0.0 or excess <= 0.0:
            return max(0.0, (self.lowest + index) * self.interval)
        return max(0.0, (self.lowest + index) * self.interval + math.log(excess / lower[index]))

    def total_mass(self) -> float:
        """Mass under P: 1, up to rounding and what pessimism added."""
        return float(self.masses.sum() + self.infinity_mass)

    def completed(self) -> LossDistribution:
        """The law with the mass that it lacks: rounding spread evenly, more at infinity."""
        missing = 1.0 - self.total_mass()
        if missing <= 0.0:
            return self
        finite = float(self.masses.sum())
        if missing > ROUNDED_MASS * finite:
            return dataclasses.replace(self, infinity_mass=self.infinity_mass + missing)
        return dataclasses.replace(self, masses=self.masses * (1.0 + missing / finite))

    def mirrored_mass(self) -> float:
        """Mass under Q of the outcomes possible under P: at most 1, up to rounding."""
        held = self.masses > 0
        return float(np.sum(self.masses[held] * np.exp(np.minimum(-self.losses[held], 700.0))))

    def spread(self) -> float:
        """Standard deviation of the finite part of the loss."""
        weight = float(self.masses.sum())
        if weight <= 0:
            return 0.0
        mean = float(np.sum(self.masses * self.losses)) / weight
        return math.sqrt(max(0.0, float(np.sum(self.masses * (self.losses - mean) ** 2)) / weight))

    def regridded(self, interval: float) -> LossDistribution:
        """The same law on another grid, pessimistically; exact where old losses are new knots."""
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

    def composed(self, other: LossDistribution) -> LossDistribution:
        """Law of the summed losses of two mechanisms on one grid."""
        if self.interval != other.interval:
            raise ValueError("loss distributions on different grids: regrid one of them first")
        one, two = self.completed(), other.completed()
        small, large = sorted((one.masses, two.masses), key=len)
        infinity = one.infinity_mass + two.infinity_mass * (1.0 - one.infinity_mass)
        lowest = one.lowest + two.lowest
        if small.size <= 64:
            masses = np.convolve(large, small)
            return LossDistribution(self.interval, lowest, masses, infinity)
        masses = np.maximum(signal.fftconvolve(large, small), 0.0)
        return _trimmed(LossDistribution(self.interval, lowest, masses, infinity))

    def composed_size(self, times: int) -> int:
        """Grid points that `self_composed` would need."""
        low, high = _chernoff_range(self, times)
        return high - low + 1

    def self_composed(self, times: int) -> LossDistribution:
        """Law of the summed losses of `times` copies; tails cut at TAIL_MASS by Chernoff bounds."""
        if times == 1:
            return self
        one = self.completed()  # What one copy lacks, `times` copies would lack `times` over.
        low, high = _chernoff_range(one, times)
        length = fft.next_fast_len(max(high - low + 1, one.masses.size), real=True)
        spectrum = fft.rfft(one.masses, length) ** times
        wrapped = fft.irfft(spectrum, length)
        masses = np.maximum(np.roll(wrapped, -low)[: high - low + 1], 0.0)
        infinity = -math.expm1(times * math.log1p(-min(one.infinity_mass, 1 - 1e-16)))
        infinity += TAIL_MASS + POWER_ROUNDING * times
        # What the transform's rounding took.
        infinity = max(infinity, 1.0 - float(masses.sum()))
        lowest = self.lowest * times + low
        return _trimmed(LossDistribution(self.interval, lowest, masses, min(infinity, 1.0)))

    def with_failure(self, probability: float) -> LossDistribution:
        """The law when, with this probability, everything is revealed (infinite loss)."""
        if probability == 0.0:
            return self
        infinity = probability + (1.0 - probability) * self.infinity_mass
        masses = self.masses * (1.0 - probability)
        return LossDistribution(self.interval, self.lowest, masses, infinity)


def _chernoff_range(law: LossDistribution, times: int) -> tuple[int, int]:
    """Index range, relative to times * lowest, outside which the sum has mass <= TAIL_MASS."""
    low, high = 0, (law.masses.size - 1) * times
    margin = math.log(2.0 / TAIL_MASS)
    masses, losses = _thinned(law)
    for order in np.geomspace(1e-2, 1e3, 21):
        up = (times * _log_moment(masses, losses, order) + margin) / (order * law.interval)
        if math.isfinite(up):
            high = min(high, math.ceil(up) - times * law.lowest)
        down = -(times * _log_moment(masses, losses, -order) + margin) / (order * law.interval)
        if math.isfinite(down):
            low = max(low, math.floor(down) - times * law.lowest)
    return max(low, 0), max(high, max(low, 0) + 1)


def _thinned(law: LossDistribution) -> tuple[np.ndarray, np.ndarray]:
    """Masses and losses of a coarser law with at least the exponential moments of `law`.

    Blocks of losses are split between their ends, keeping mass and mean: an exponential is convex.
    Blocks stay well below the spread, lest many steps add up to a much wider range.
    """
    block = int(min(law.masses.size // 2048, 0.2 * law.spread() / law.interval))
    if block < 2:
        held = law.masses > 0
        return law.masses[held], law.losses[held]
    place = np.arange(law.masses.size)
    share = (place % block) / block
    cell = place // block
    count = int(cell[-1]) + 2
    masses = np.bincount(cell, law.masses * (1.0 - share), count)
    masses += np.bincount(cell + 1, law.masses * share, count)
    losses = (law.lowest + block * np.arange(count)) * law.interval
    return masses[masses > 0], losses[masses > 0]


def _log_moment(masses: np.ndarray, losses: np.ndarray, order: float) -> float:
    """log sum masses * e^{order * loss}, masses > 0."""
    if masses.size == 0:
        return -math.inf
    exponents = order * losses
    peak = float(np.max(exponents))
    return peak + math.log(float(np.sum(masses * np.exp(exponents - peak))))


def _with_mirrored_half(law: LossDistribution, mirror: LossDistribution) -> LossDistribution:
    """`law` at losses >= 0, and the mirror image of `mirror` at losses < 0."""
    keep = max(0, -law.lowest)
    positive = law.masses[keep:]
    gap = np.zeros(max(0, law.lowest))
    start = max(1, mirror.lowest)
    reflected = mirror.masses[start - mirror.lowest :]
    losses = np.arange(start, start + reflected.size) * mirror.interval
    negative = (reflected * np.exp(-losses))[::-1]
    gap = np.concatenate([np.zeros(start - 1), gap])
    masses = np.concatenate([negative, gap, positive])
    lowest = -(start + reflected.size - 1) if reflected.size else -(start - 1)
    # What the mirror's trimmed tail weighs here is below TAIL_MASS; infinity takes it.
    infinity = law.infinity_mass + TAIL_MASS
    missing = 1.0 - float(masses.sum()) - infinity
    # So it takes what the mirror's own rounding, worth less here, leaves missing.
    infinity += missing if missing > ROUNDED_MASS else 0.0
    return LossDistribution(law.interval, lowest, masses, infinity)


def _trimmed(law: LossDistribution) -> LossDistribution:
    """Moves negligible tails: the lower up to the first kept loss, the upper to infinity."""
    masses = law.masses
    if masses.size < 3:
        return law
    low = int(np.searchsorted(np.cumsum(masses), TAIL_MASS, side="right"))
    top = int(np.searchsorted(np.cumsum(masses[::-1]), TAIL_MASS, side="right"))
    low = min(low, masses.size - 1)
    end = max(masses.size - top, low + 1)
    kept = masses[low:end].copy()
    kept[0] += masses[:low].sum()
    infinity = law.infinity_mass + float(masses[end:].sum())
    return LossDistribution(law.interval, law.lowest + low, kept, infinity)


@dataclasses.dataclass(frozen=True, eq=False)
class LossPair:
    """Both directions of one neighbouring pair, each dominating the real mechanism.

    Attributes:
      forward: log(dM(D)/dM(D')) under M(D), where D' has one record fewer (or replaced).
      backward: log(dM(D')/dM(D)) under M(D'). The same object where the two agree.
      mirrored: whether both describe one pair (P, Q) exactly, seen from either side: mass p at loss
        s of one is mass p e^{-s} at -s of the other. Pairs built here are; two distributions
        rounded independently are not.
    """

    forward: LossDistribution
    backward: LossDistribution
    mirrored: bool = False

    @property
    def symmetric(self) -> bool:
        """Whether both directions are one and the same."""
        return self.forward is self.backward

    @property
    def interval(self) -> float:
        """Spacing of the common grid."""
        return self.forward.interval

    @property
    def size(self) -> int:
        """Grid points of the longer direction."""
        return max(self.forward.masses.size, self.backward.masses.size)

    def delta(self, epsilon: np.ndarray | float) -> np.ndarray:
        """The privacy profile: the larger divergence of the two directions."""
        if self.symmetric:
            return self.forward.delta(epsilon)
        return np.maximum(self.forward.delta(epsilon), self.backward.delta(epsilon))

    def epsilon(self, delta: float) -> float:
        """Smallest epsilon >= 0 whose profile is at most `delta`."""
        if self.symmetric:
            return self.forward.epsilon(delta)
        return max(self.forward.epsilon(delta), self.backward.epsilon(delta))

    def _mapped(self, function, *others: LossPair) -> LossPair:
        forward = function(self.forward, *(other.forward for other in others))
        mirrored = self.mirrored and all(other.mirrored for other in others)
        if self.symmetric and all(other.symmetric for other in others):
            return LossPair(forward, forward, mirrored)
        backward = function(self.backward, *(other.backward for other in others))
        return LossPair(forward, backward, mirrored)

    def _repaired(self) -> LossPair:
        """Takes each direction's negative losses from the other one, where they are exact.

        A Fourier transform leaves noise of 1e-17 everywhere; at loss -40 it would count as e^{40}
        times as much under Q.
        """
        if not self.mirrored:
            return self
        forward = _with_mirrored_half(self.forward, self.backward)
        if self.symmetric:
            return LossPair(forward, forward, True)
        return LossPair(forward, _with_mirrored_half(self.backward, self.forward), True)

    def regridded(self, interval: float) -> LossPair:
        """Both directions on another grid."""
        return self if interval == self.interval else self._mapped(lambda a: a.regridded(interval))

    def with_failure(self, probability: float) -> LossPair:
        """Both directions with this mass of infinite loss mixed in."""
        return self._mapped(lambda a: a.with_failure(probability))

    def composed(self, other: LossPair) -> LossPair:
        """Adaptive composition of two mechanisms on the same records, on a common grid."""
        interval = common_interval([self, other])
        left, right = self.regridded(interval), other.regridded(interval)
        return left._mapped(lambda a, b: a.composed(b), right)._repaired()

    def self_composed(self, times: int) -> LossPair:
        """Adaptive composition of `times` copies; the grid is coarsened where masses drift."""
        pair = self
        longest = max(pair.forward.composed_size(times), pair.backward.composed_size(times))
        if times > 1 and longest > LARGEST_COMPOSITION:
            doublings = math.ceil(math.log2(longest / LARGEST_COMPOSITION))
            pair = pair.regridded(pair.interval * 2.0**doublings)
        for _ in range(8):
            result = pair._mapped(lambda a: a.self_composed(times))._repaired()
            # Spec 3.2 (d): excess mirrored mass is numerical, and would void the envelope bound.
            if all(
                law.total_mass() <= 1.0 + CONSERVATION_SLACK
                and law.mirrored_mass() <= 1.0 + CONSERVATION_SLACK
                for law in (result.forward, result.backward)
            ):
                break
            pair = pair.regridded(pair.interval * 2.0)
        return result

    def mixed(self, others: list[LossPair], weights: np.ndarray) -> LossPair:
        """The pair of a mechanism drawn by public weights, first weight for this pair."""
        interval = common_interval([self, *others])
        pairs = [pair.regridded(interval) for pair in (self, *others)]

        def mix(*laws: LossDistribution) -> LossDistribution:
            lowest = min(law.lowest for law in laws)
            end = max(law.lowest + law.masses.size for law in laws)
            masses = np.zeros(end - lowest)
            infinity = 0.0
            for law, weight in zip(laws, weights):
                start = law.lowest - lowest
                masses[start : start + law.masses.size] += weight * law.masses
                infinity += weight * law.infinity_mass
            return LossDistribution(interval, lowest, masses, infinity)

        return pairs[0]._mapped(mix, *pairs[1:])


def common_interval(pairs: list[LossPair]) -> float:
    """A grid for several pairs: exact where intervals divide each other, else 1e-4 or coarser."""
    intervals = [pair.interval for pair in pairs]
    finest = min(intervals)
    ratios = np.array(intervals) / finest
    extent = sum(pair.size * pair.interval for pair in pairs)
    if np.all(np.abs(ratios - np.round(ratios)) <= 1e-9) and extent / finest <= LARGEST_SIZE:
        return finest
    coarsest = min(max(intervals), 1e-4)
    while extent / coarsest > LARGEST_SIZE:
        coarsest *= 2.0
    return coarsest
