"""Composes mechanisms adaptively: convolves their loss distributions on the same records.

Losses add up, so their distributions are convolved, and many copies of one are a power of its
Fourier transform. A transform has an absolute error everywhere, and a power of n copies n times as
much: far above the tails that small deltas are read from. So each distribution is tilted first,
mass p at loss s to p e^{theta s} / E[e^{theta loss}], which centres the sum on the losses that some
delta depends on (the saddle point); undoing the tilt shrinks the error with the tail. A few tilts
cover all deltas down to NEGLIGIBLE. Each result is raised by a bound on its error and the smallest
is kept.

What comes out is a profile at epsilon >= 0 for either direction, and `pair_from_profiles` makes of
the two a pair whose masses are 1 on both sides, however long the composition. NumPy float64.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
from scipy import fft

from dpjax.accounting.numerics.loss_distribution import (
    LossDistribution,
    LossPair,
    common_interval,
    decayed_sums,
    whole_down,
    whole_up,
)
from dpjax.accounting.numerics.privacy_profile import pair_from_profiles

NEGLIGIBLE = 1e-20
"""Level at which a profile is cut: the mass beyond becomes infinite loss."""

OUTSIDE = 1e-15
"""Mass of a tilted sum that may lie outside its window, on either side."""

LARGEST_SUM = 1 << 20
"""Grid points of a sum beyond which copies are composed in stages, or the grid is coarsened."""

RESOLUTION = 0.06
"""Coarsest interval of a sum of many copies, in standard deviations of its wider direction.

Splitting masses between knots adds at most a quarter of its square to the variance: 0.1%.
"""

LARGEST_INTERVAL = 300.0
"""Coarsest interval, in nats: its exponential must stay far within float64's range."""

GAPS = np.array([0.003, 0.01, 0.03, 0.1, 0.3, 0.7, 1.5, 3.0, 6.0, 12.0])
"""Orders tried in Chernoff's bound on a tilted distribution, times its standard deviation."""

EVEN_TILTS = 4
"""Number of evenly spaced tilts up to the largest; each is tried, too, if no other is near."""

STEEPEST = 30.0
"""Largest tilt times the interval: beyond it, a knot's weight leaves nothing to the next one."""

MOST_COPIES = 10**15
"""Largest number of copies that is composed: of more the cumulants have no slope in float64."""

MANY_COPIES = 1000
"""Least number of copies for transforms in extended precision, if the machine has it."""

LEAST_LOG = -100.0
"""Log modulus below which a frequency of the sum is left out."""

UNIT = 2.0**-53
"""Largest relative error of one float64 operation."""


def composition(parts: Sequence[tuple[LossPair, int]]) -> LossPair:
    """Composes every mechanism, the given number of times, on the same records.

    Formal guarantees: the result's profile is at least that of the parts' adaptive composition, at
    every epsilon, rounding included.

    Its grid is the parts' or a coarser one; losses so large that no grid holds them are refused.
    """
    for pair, _ in parts:
        for law in (pair.forward, pair.backward):
            if not law.masses.any():
                return LossPair(law, law)  # Everything is revealed already: no loss is finite.
    pairs = [_copies(pair, count) for pair, count in parts]
    if len(pairs) == 1:
        return pairs[0]
    interval = common_interval(pairs)
    sums = _sums([(pair.regridded(interval), 1) for pair in pairs])
    excess = _excess(sums)
    if excess > 1:
        interval = _checked(interval * excess)
        sums = _sums([(pair.regridded(interval), 1) for pair in pairs])
    return pair_from_profiles(interval, *(total.profile() for total in sums))


def composed_points(pair: LossPair, count: int) -> int:
    """Returns how many grid points `count` copies need on their grid, even above `LARGEST_SUM`."""
    if not (pair.forward.masses.any() and pair.backward.masses.any()):
        return 1
    return max(total.points for total in _sums([(pair, count)]))


def _copies(pair: LossPair, count: int, negligible: float = NEGLIGIBLE) -> LossPair:
    """Composes `count` copies of one mechanism, in two stages if one grid is too short for all.

    The first stage's distribution is smooth on the scale of its spread, so a coarser grid will do.
    """
    if count == 1:
        return pair
    if count > MOST_COPIES:
        raise ValueError(f"{float(count):.3g} steps are too many to price: pass at most 1e15")
    # `excess` says how many times coarser the grid has to be for the sum to fit it.
    sums = _sums([(pair, count)], negligible)
    excess = _excess(sums)
    if excess == 1:
        return pair_from_profiles(pair.interval, *(total.profile() for total in sums))
    if count >= 16 and pair.interval * excess > RESOLUTION * pair.spread():
        stages, block = _stages(count)
        first = _copies(pair, block, negligible / stages)
        coarser = whole_down(RESOLUTION * first.spread() / first.interval)
        if coarser >= 2:
            return _copies(first.regridded(first.interval * coarser), stages, negligible)
    return _copies(pair.regridded(_checked(pair.interval * excess)), count, negligible)


def _stages(count: int) -> tuple[int, int]:
    """Finds two numbers near the root of `count`, whose product is `count` or a little more."""
    root = math.isqrt(count)
    stages = min(range(root, min(2 * root, root + 4096)), key=lambda n: -count % n)
    return stages, -(-count // stages)


def _checked(interval: float) -> float:
    """Returns an interval; refuses one that is too coarse for any grid."""
    if interval > LARGEST_INTERVAL:
        raise ValueError(
            f"privacy losses beyond {LARGEST_SUM * LARGEST_INTERVAL:.0e} nats fit no grid: pass "
            "more noise, or fewer steps"
        )
    return interval


def _sums(parts: Sequence[tuple[LossPair, int]], negligible: float = NEGLIGIBLE) -> list[_Sum]:
    """Forms the sums of losses of pairs on one grid: one for each direction, or one for both."""
    sums = [_Sum([(pair.forward, count) for pair, count in parts], negligible)]
    if not all(pair.symmetric for pair, _ in parts):
        sums.append(_Sum([(pair.backward, count) for pair, count in parts], negligible))
    return sums


def _excess(sums: Sequence[_Sum]) -> int:
    """Returns how many times more grid points than allowed a composition needs, rounded up."""
    return whole_up(max(total.points for total in sums) / LARGEST_SUM)


class _Sum:
    """The sum of `count` independent losses of each kind; its profile is cut at `negligible`."""

    def __init__(self, parts: Sequence[tuple[LossDistribution, int]], negligible: float):
        self.negligible = negligible
        # Missing mass would be missing `count` times: complete each distribution first.
        self.counts = [count for _, count in parts]
        self.copies = sum(self.counts)
        self.laws = [_trimmed(law.completed(), negligible / self.copies) for law, _ in parts]
        self.interval = self.laws[0].interval
        self.lowest = sum(law.lowest * n for law, n in zip(self.laws, self.counts))
        self.width = sum((law.masses.size - 1) * n for law, n in zip(self.laws, self.counts))
        variance = sum(n * law.spread() ** 2 for law, n in zip(self.laws, self.counts))
        self.scale = math.sqrt(variance) or self.interval
        self._moments: dict[tuple[int, float], float] = {}
        self.thinned = [_thinned(law) for law in self.laws]

    def cumulants(self, orders: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns log E[e^{order * sum}], rounded up by thinning, and its derivative; (orders,)."""
        values, means = np.zeros(orders.size), np.zeros(orders.size)
        for (masses, losses), count in zip(self.thinned, self.counts):
            value, mean = _log_moments(masses, losses, orders)
            values += count * value
            means += count * mean
        return values, means

    def _log_moment(self, law: LossDistribution, order: float) -> float:
        """Returns log of the sum of masses * e^{order * loss} of one distribution, cached."""
        key = (id(law), order)
        if key not in self._moments:
            found, _ = _log_moments(law.masses, law.losses, np.array([order]))
            self._moments[key] = float(found[0])
        return self._moments[key]

    @functools.cached_property
    def infinity_mass(self) -> float:
        """Returns the mass of infinite loss: 1 less the probability that every loss is finite."""
        with np.errstate(divide="ignore"):
            none = sum(
                n * float(np.log1p(-min(law.infinity_mass, 1.0)))
                for law, n in zip(self.laws, self.counts)
            )
        return min(1.0, -math.expm1(none) * (1.0 + 8.0 * UNIT))

    @functools.cached_property
    def tilts(self) -> list[float]:
        """Chooses orders by which the sum is tilted, ascending.

        Their saddle points lie 0, 1/9, 4/9 and all of the way down to `negligible`; even shares of
        the last order are added. For a normal distribution both choices agree, 3.2 standard
        deviations apart, and an error in the middle between two is 3.6 times that at a saddle
        point. Where a few rare losses make the tail, the saddle points crowd where these begin to
        outweigh the bulk, and even shares serve most of the tail.
        """
        least, most = 1e-3 / self.scale, STEEPEST / self.interval
        found = [0.0]
        for share in (1.0 / 9.0, 4.0 / 9.0, 1.0):
            # First a bracket by doubling, then bisection, both in the logarithm of the order.
            wanted = -share * math.log(self.negligible)
            low, high = math.log(least), math.log(min(max(found[-1], least) * 2.0, most))
            while high < math.log(most) and self._rate(math.exp(high)) < wanted:
                low, high = high, min(high + 1.0, math.log(most))
            for _ in range(8):
                middle = 0.5 * (low + high)
                short = self._rate(math.exp(middle)) < wanted
                low, high = (middle, high) if short else (low, middle)
            found.append(math.exp(low))
        for order in np.linspace(0.0, found[-1], EVEN_TILTS + 1).tolist():
            if min(abs(order - other) for other in found) > 0.05 * max(found):
                found.append(order)
        return sorted(set(found))

    def _rate(self, order: float) -> float:
        """Returns -log of Chernoff's bound on the mass beyond the saddle point; it ascends."""
        cumulants, means = self.cumulants(np.array([order]))
        return float(order * means[0] - cumulants[0])

    @functools.cached_property
    def top(self) -> int:
        """Finds the profile's last knot, beyond which Chernoff's bound leaves `negligible` mass."""
        orders = self.tilts[-1] * np.array([0.7, 0.9, 1.0, 1.1, 1.4])
        reaches = (self.cumulants(orders)[0] - math.log(self.negligible)) / orders / self.interval
        end = self.lowest + self.width
        reach = float(np.min(reaches))
        return max(0, end if reach >= end else whole_up(reach))

    @functools.cached_property
    def windows(self) -> list[tuple[int, int, float]]:
        """Returns each tilt's first and last knot, counted from `lowest`, and the mass left above.

        By Chernoff's bound on the tilted sum, whose cumulants are differences of `cumulants`, all
        but OUTSIDE of its mass lies inside, on either side. A window is no longer than a few times
        the profile, however: the transform wraps what lies below it into the window, which only
        adds, and above `top` only the untilted `negligible` mass counts.
        """
        found = []
        depth = -math.log(OUTSIDE)
        zero, top = -self.lowest, self.top - self.lowest
        span = max(self.top, 1 << 14)
        for theta in self.tilts:
            # The tilted sum's standard deviation, from the slope of its mean.
            near = theta + np.array([-0.05, 0.05]) / self.scale
            slope = float(np.diff(self.cumulants(near)[1])[0] / np.diff(near)[0])
            scale = math.sqrt(slope) if slope > 0.0 else self.interval
            own = sum(n * self._log_moment(law, theta) for law, n in zip(self.laws, self.counts))
            ends = []
            # The lower end is also bounded by moments of the untilted sum's lower tail.
            for gap in (GAPS / scale, -np.append(GAPS / scale, theta + GAPS[-5:] / self.scale)):
                rise = self.cumulants(theta + gap)[0] - own
                reach = (rise + depth) / gap / self.interval - self.lowest
                ends.append(np.where(np.isfinite(reach), reach, np.sign(gap) * math.inf))
            high, low = float(np.min(ends[0])), float(np.max(ends[1]))
            first = max(0, zero - 4 * span, 0 if low <= 0.0 else whole_down(low))
            last = min(self.width, top + span)
            outside = 0.0
            if high < last:
                last, outside = max(first, whole_up(high)), OUTSIDE
            found.append((min(first, last), last, outside))
        return found

    @property
    def points(self) -> int:
        """Returns the length of the longest array needed, in grid points."""
        return max(self.top, *(last - first for first, last, _ in self.windows)) + 1

    def profile(self) -> np.ndarray:
        """Bounds the divergence at epsilon = 0, interval, ..., top * interval from above."""
        values = np.full(self.top + 1, np.inf)
        for theta, window in zip(self.tilts, self.windows):
            start, bounds = self._by_tilt(theta, *window)
            low, high = max(start, 0), min(start + bounds.size, self.top + 1)
            if high > low:
                values[low:high] = np.minimum(values[low:high], bounds[low - start : high - start])
        # Masses will be formed as differences of the profile, which loses a few units of each, at
        # most `top + 1` times a value's own share: raise the values for it beforehand.
        values *= 1.0 + (8.0 * self.top + 64.0) * UNIT
        rest = 0.0 if self.top == self.lowest + self.width else self.negligible
        return np.minimum(values + (self.infinity_mass + rest), 1.0)

    def _by_tilt(
        self, theta: float, first: int, last: int, outside: float
    ) -> tuple[int, np.ndarray]:
        """Bounds the finite profile by one tilt; returns a window's first knot, and the bound.

        With masses y_j = p_j e^{theta s_j} / M, M the moment of the sum, the divergence at knot k
        is M e^{-theta s_k} times the sum over i > 0 of y_{k+i} (a^i - b^i), a = e^{-theta h} and
        b = e^{-(theta+1) h}.
        """
        size = last - first + 1
        length = fft.next_fast_len(size, real=True)
        kind, unit = _widest() if self.copies >= MANY_COPIES else (np.float64, UNIT)
        # An element of a transform is a sum of its inputs over at most log2(length) stages of
        # multiplications by numbers of modulus 1: each loses less than 6 units, relative to the sum
        # of the inputs' moduli, which is 1.
        folds = max(law.masses.size for law in self.laws) / length
        transform = (6.0 * math.log2(max(length, 2)) + folds + 4.0) * unit
        log_scale, relative, lost, reached = 0.0, 0.0, 400.0 * unit, np.zeros(length // 2 + 1)
        spectra = []
        for law, count in zip(self.laws, self.counts):
            log_moment = self._log_moment(law, theta)
            tilted, rounding = _tilted(law, theta, log_moment)
            log_scale += count * log_moment
            # Masses too small by a factor 1 + r give sums too small by (1 + r)^count.
            relative += count * rounding
            values = fft.rfft(_folded(tilted.astype(kind), length))
            spectra.append((values, count))
            # |(z + d)^n - z^n| <= n |d| m^{n-1}, m >= |z| + |d|; a power by logarithms loses 10
            # units per copy (in the angle, of at most pi) and 400 in the modulus, above e^-100.
            largest = np.abs(values).astype(np.float64) * (1.0 + 4.0 * UNIT) + transform
            reached = reached + count * np.log(largest)
            lost = lost + count * (transform / largest + 10.0 * unit)
        weights = np.full(reached.shape, 2.0 / length)
        weights[0] = 1.0 / length
        if length % 2 == 0:
            weights[-1] = 1.0 / length
        # Smaller frequencies are left out, and count as errors of their own size.
        held = reached > LEAST_LOG
        powers = np.zeros(reached.shape, dtype=np.result_type(kind, np.complex64))
        if self.copies == len(spectra):
            powers[held] = functools.reduce(np.multiply, (values[held] for values, _ in spectra))
        else:
            # A factor of 0 has no logarithm: its power stays 0.
            some = held & np.logical_and.reduce([values != 0 for values, _ in spectra])
            powers[some] = np.exp(sum(n * np.log(values[some]) for values, n in spectra))
        # The moduli above are float64 and off by a few units per copy: the exponent covers that.
        bound = np.exp(reached + 8.0 * UNIT * self.copies)
        error = float(np.sum(weights * bound * np.where(held, lost + transform, 1.0)))
        # The window's sums; mass outside is wrapped into it, which only adds.
        sums = np.roll(fft.irfft(powers, length), -(first % length))[:size].astype(np.float64)
        masses = np.maximum(sums, 0.0) * (1.0 + 4.0 * UNIT) + error * (1.0 + 1e-9)
        h = self.interval
        a, b = math.exp(-theta * h), math.exp(-(theta + 1.0) * h)
        # a^i - b^i = a (a^{i-1} - b^{i-1}) + (a - b) b^{i-1}: two recurrences of positive terms.
        above = np.append(decayed_sums(masses, b)[1:], 0.0)
        parts = -a * math.expm1(-h) * decayed_sums(above, a)
        relative += (8.0 * size + 64.0) * UNIT
        start = self.lowest + first
        shift = theta * h * (start + np.arange(size))
        exponent = log_scale - shift + relative + 4.0 * UNIT * (abs(log_scale) + np.abs(shift))
        return start, np.exp(np.minimum(exponent, 700.0)) * (parts + outside)


@functools.cache
def _widest() -> tuple[type, float]:
    """Returns the type of the transforms and its unit of rounding.

    On x86 these are 80-bit numbers. Elsewhere long double is float64, or is computed in software,
    so float64 is used: the error bounds hold either way.
    """
    digits = np.finfo(np.longdouble).nmant
    one = np.longdouble(1.0)
    if digits == 63 and one + np.longdouble(2.0) ** -63 > one:
        return np.longdouble, 2.0**-64
    return np.float64, UNIT


def _trimmed(law: LossDistribution, mass: float) -> LossDistribution:
    """Cuts tails of at most this mass: the lower moves up to the first kept loss, the upper to inf.

    A tilt would make such tails large, far beyond the last knot that matters.
    """
    masses = law.masses
    low = int(np.searchsorted(np.cumsum(masses), mass, side="right"))
    top = int(np.searchsorted(np.cumsum(masses[::-1]), mass, side="right"))
    low = min(low, masses.size - 1)
    end = max(masses.size - top, low + 1)
    kept = masses[low:end].copy()
    kept[0] += masses[:low].sum()
    infinity = law.infinity_mass + float(masses[end:].sum())
    return LossDistribution(law.interval, law.lowest + low, kept, infinity)


def _tilted(law: LossDistribution, theta: float, log_moment: float) -> tuple[np.ndarray, float]:
    """Returns the masses times e^{theta loss - log_moment}, and a bound on their relative error.

    Masses that underflow here are far below the mass that lies outside a window.
    """
    exponents = theta * law.losses - log_moment
    largest = min(float(np.max(np.abs(exponents), initial=0.0)), 745.0) + abs(log_moment)
    with np.errstate(under="ignore", over="ignore"):
        grown = np.exp(exponents)
    held = law.masses > 0.0
    tilted = np.where(held, law.masses * np.where(held, grown, 0.0), 0.0)
    return tilted, (4.0 * largest + 8.0) * UNIT


def _folded(values: np.ndarray, length: int) -> np.ndarray:
    """Adds up values whose indices are equal modulo `length`."""
    if values.size <= length:
        return np.append(values, np.zeros(length - values.size))
    rows = -(-values.size // length)
    padded = np.append(values, np.zeros(rows * length - values.size))
    return padded.reshape(rows, length).sum(axis=0)


def _log_moments(
    masses: np.ndarray, losses: np.ndarray, orders: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns log sum masses * e^{order * loss} and the tilted means, each (orders,)."""
    held = masses > 0.0
    masses, losses = masses[held], losses[held]
    cumulants, means = np.full(orders.shape, -np.inf), np.zeros(orders.shape)
    if masses.size == 0:
        return cumulants, means
    logs = np.log(masses)
    for place, order in enumerate(orders.tolist()):
        # Relative to the largest term, which keeps exponentials in range.
        exponents = logs + order * losses
        peak = float(exponents.max())
        weights = np.exp(exponents - peak)
        total = float(weights.sum())
        cumulants[place] = peak + math.log(total)
        means[place] = float(weights @ losses) / total
    return cumulants, means


def _thinned(law: LossDistribution) -> tuple[np.ndarray, np.ndarray]:
    """Moves a distribution to fewer knots, which lowers no exponential moment.

    Each mass is split between the knots around it, keeping mass and mean, and exponentials are
    convex. Knots around the bulk are much closer than the spread, or many copies would add up to a
    much wider range.
    """
    size = law.masses.size
    if size < 2048:
        return law.masses, law.losses
    knots = law.knots(0.2, 1024)
    place = np.arange(size)
    cell = np.minimum(np.searchsorted(knots, place, side="right") - 1, knots.size - 2)
    share = (place - knots[cell]) / np.diff(knots)[cell]
    masses = np.bincount(cell, law.masses * (1.0 - share), knots.size)
    masses += np.bincount(cell + 1, law.masses * share, knots.size)
    return masses, law.losses[knots]
