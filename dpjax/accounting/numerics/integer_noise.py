"""Exact privacy of adding integer noise to one count: Skellam, and sums of discrete Gaussians.

Under secure summation every client adds its own integer noise and only the sum is seen. The sum of
Skellam noises is Skellam; the sum of discrete Gaussians is *not* a discrete Gaussian, and costs
more than one as soon as the local variance falls below about a half. Both laws are computed here to
full relative precision, far into the tails, and the divergence between the law and its shift
follows from them: nothing is approximated by a Gaussian.

Laws are symmetric and known as log probabilities of 0, 1, 2, ... NumPy float64.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from scipy import special

from dpjax.accounting.numerics.loss_distribution import LossDistribution, LossPair

_NEGLIGIBLE = 46.0  # exp(-46) is about 1e-20
_LEAST_LOG_PROBABILITY = -80.0  # outcomes below go to infinite loss in a loss distribution
_LARGEST_SUPPORT = 1 << 20
_LARGEST_RENYI_SUPPORT = 1 << 15
_ROUNDING = 1e-12  # relative error granted to a computed sum
_SMOOTH_VARIANCE = 16.0  # from here on sums of discrete Gaussians are discrete Gaussians, to 1e-40


@dataclasses.dataclass(frozen=True, eq=False)
class IntegerNoise:
    """A symmetric law on the integers.

    Attributes:
      log_probabilities: (size,) log P[X = 0], log P[X = 1], ...
      period: 1 for Skellam noise; for a sum of discrete Gaussians the number of summands, after
        which the ratios of neighbouring probabilities repeat but for a factor (1 where the sum is
        a discrete Gaussian itself).
      local_variance: variance parameter of a summand; 0 for Skellam noise.
    """

    log_probabilities: np.ndarray
    period: int = 1
    local_variance: float = 0.0

    @property
    def size(self) -> int:
        """Integers whose probability is stored, from 0."""
        return self.log_probabilities.size

    def tail_slopes(self, order: float, shift: int) -> tuple[float, float]:
        """How fast the terms of the Renyi sum fall beyond the stored range, at least.

        Returns:
          Upper bounds on the change of log(P[x]^order P[x-shift]^(1-order)) over one period, to
          the left and to the right. For Skellam noise from the bound of Thiruvenkatachar &
          Nanjundiah (1951), I_j^2 / (I_{j-1} I_{j+1}) <= (j + 1) / j; for sums from their exact
          periodicity.
        """
        last = self.size - 1 - shift
        gained = (order - 1.0) * shift
        if self.local_variance:
            start = last - self.period + 0.5 * self.period
            return -(start - gained) / self.local_variance, -start / self.local_variance
        drop = self.log_probabilities[last - 1] - self.log_probabilities[last]
        return -drop + gained / last, -drop


def skellam_noise(variance: float, reach: int = 0) -> IntegerNoise:
    """Difference of two independent Poisson variables of mean variance / 2.

    P[X = j] = exp(-variance) I_j(variance); the ratios of Bessel functions come from the backward
    recurrence I_{j-1}/I_j = 2 j / variance + I_{j+1}/I_j, which is stable and never underflows.

    Args:
      variance: above 0.
      reach: store at least 0, ..., reach.

    Raises:
      ValueError: if the law would need more than a million probabilities.
    """
    size = _support(variance, reach)
    start = size + 64 + 12 * math.ceil(math.sqrt(variance))
    inverse = 2.0 / variance
    ratio, ratios = 0.0, []
    for index in range(start, 0, -1):
        ratio = 1.0 / (index * inverse + ratio)
        ratios.append(ratio)  # P[index] / P[index - 1]
    at_zero = math.log(float(special.ive(0, variance)))
    steps = np.log(np.array(ratios[::-1])[:size])
    return IntegerNoise(at_zero + np.concatenate([[0.0], np.cumsum(steps)]))


def discrete_gaussian_sum(local_variance: float, clients: int, reach: int = 0) -> IntegerNoise:
    """Sum of independent discrete Gaussians, P[Y = y] proportional to exp(-y^2/(2 local_variance)).

    With v the local variance and A the lattice of n whole numbers that sum to 0, P[x] is
    proportional to exp(-x^2 / (2 n v)) times the sum of exp(-|u|^2 / (2 v)) over a shift of A. By
    Poisson summation the second factor changes with x by no more than a relative eta, the sum of
    exp(-a |w|^2), a = 2 pi^2 v, over w != 0 of the dual lattice: eta = sqrt(a n / pi) times the
    integral of theta(t)^n over a unit of t, less 1, theta(t) the sum of exp(-a (z - t)^2) over
    whole z. For v >= 16 it is below 1e-40 for every n: the law is the discrete Gaussian of
    parameter n v, far beyond float64, in the tails too. Below 16 it is convolved.

    Args:
      local_variance: the variance parameter of each summand, above 0.
      clients: number of summands, at least 1.
      reach: store at least 0, ..., reach.

    Raises:
      ValueError: if the law would need more than a million probabilities.
    """
    if local_variance < _SMOOTH_VARIANCE:
        return _convolved_sum(local_variance, clients, reach)
    variance = local_variance * clients
    positions = np.arange(_support(variance, reach) + 1, dtype=np.float64)
    # The sum of exp(-x^2 / (2 variance)) over all integers is sqrt(2 pi variance), to 1e-130.
    logs = -0.5 * (positions**2 / variance + math.log(2.0 * math.pi * variance))
    return IntegerNoise(logs, 1, variance)


def _convolved_sum(local_variance: float, clients: int, reach: int = 0) -> IntegerNoise:
    """`discrete_gaussian_sum` for any local variance; slow where it is large.

    The probabilities on 0 <= x <= clients / 2 come from repeated convolution of non-negative
    numbers, under exponential tilts that keep them away from underflow. Everywhere else they follow
    exactly: multiplying one summand's law by exp(y / local_variance) shifts it by one, so
    log P[x + n] = log P[x] - (x + n/2) / local_variance, n the number of summands.
    """
    size = _support(local_variance * clients, max(reach, 2 * clients))
    half = clients // 2 + 1
    base = np.empty(0)
    while base.size <= half:
        centre = _centre_for_mean(local_variance, min(base.size / clients, 0.5))
        lowest, values = _tilted_sum(local_variance, clients, centre, half)
        found = values[base.size - lowest :]
        missing = np.flatnonzero(np.isneginf(found))
        if missing.size and missing[0] == 0:
            raise ValueError(f"local_variance {local_variance} is too small: scale the votes up")
        base = np.append(base, found[: missing[0] if missing.size else found.size])
    # x = residue + shift * clients with residue in [-clients/2, clients/2].
    positions = np.arange(size + 1)
    shift = (2 * positions + clients) // (2 * clients)
    residue = positions - shift * clients
    logs = base[np.abs(residue)] - shift * (residue + 0.5 * shift * clients) / local_variance
    return IntegerNoise(logs, clients, local_variance)


def _log_sum(values: np.ndarray) -> float:
    """log of the sum of exponentials."""
    peak = float(values.max())
    return peak + math.log(float(np.exp(values - peak).sum()))


def _support(variance: float, reach: int) -> int:
    """Largest integer to store."""
    size = max(reach, 4) + math.ceil(13.0 * math.sqrt(variance)) + 32
    if size > _LARGEST_SUPPORT:
        raise ValueError(
            f"the noise law would need {size} probabilities: use the continuous Gaussian "
            "(accounting.vote), whose cost is the same at such a variance"
        )
    return size


def _centre_for_mean(local_variance: float, mean: float) -> float:
    """c in [0, 1/2] for which the law exp(-(y - c)^2 / (2 local_variance)) has this mean."""
    points = _local_points(local_variance)
    low, high = 0.0, 0.5
    for _ in range(60 if mean > 0.0 else 0):
        middle = 0.5 * (low + high)
        exponents = -0.5 * (points - middle) ** 2 / local_variance
        weights = np.exp(exponents - exponents.max())
        if weights @ points / weights.sum() < mean:
            low = middle
        else:
            high = middle
    return low if mean < 0.5 else 0.5


def _local_points(local_variance: float) -> np.ndarray:
    """The integers on which a summand's law does not underflow."""
    wide = math.ceil(math.sqrt(2.0 * 700.0 * local_variance)) + 2
    return np.arange(-wide, wide + 1)


def _tilted_sum(
    local_variance: float, clients: int, centre: float, half: int
) -> tuple[int, np.ndarray]:
    """log P[sum = x] for x = lowest, lowest + 1, ..., from the law tilted by centre/local_variance.

    Direct convolution: sums of non-negative products keep the relative precision that the tails
    need and that a Fourier transform destroys. Values far from the tilted mean underflow to -inf.

    Args:
      local_variance: of a summand.
      clients: number of summands.
      centre: in [0, 1/2].
      half: largest outcome of interest.
    """
    points = _local_points(local_variance)
    log_scale = _log_sum(-0.5 * points**2 / local_variance)
    exponents = -0.5 * (points - centre) ** 2 / local_variance
    log_tilted = _log_sum(exponents)
    local = np.exp(exponents - log_tilted)
    mean = float(local @ points)
    keep = half + math.ceil(14.0 * math.sqrt(local_variance * clients)) + 2

    def cut(lowest: int, values: np.ndarray, times: int) -> tuple[int, np.ndarray]:
        first = max(0, math.floor(times * mean) - keep - lowest)
        last = min(values.size, math.ceil(times * mean) + keep + 1 - lowest)
        return lowest + first, values[first:last]

    result, total = (0, np.ones(1)), 0
    factor, remaining, power = cut(int(points[0]), local, 1), clients, 1
    while remaining:
        if remaining & 1:
            total += power
            product = np.convolve(result[1], factor[1])
            result = cut(result[0] + factor[0], product, total)
        remaining >>= 1
        if remaining:
            power *= 2
            factor = cut(2 * factor[0], np.convolve(factor[1], factor[1]), power)
    lowest, values = result
    outcomes = lowest + np.arange(values.size)
    # P[x] = tilted[x] e^{-centre x / v} (E e^{centre y / v})^n, v the local variance.
    log_moment = log_tilted - log_scale + 0.5 * centre**2 / local_variance
    logs = np.log(values, out=np.full(values.shape, -np.inf), where=values > 1e-290)
    return lowest, logs - centre * outcomes / local_variance + clients * log_moment


def _losses(noise: IntegerNoise, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """Outcomes x with x and x - shift stored: log P[x] and the loss log P[x] / P[x - shift]."""
    tail = noise.log_probabilities
    logs = np.concatenate([tail[:0:-1], tail])
    return logs[shift:], logs[shift:] - logs[:-shift]


def shift_rdp(
    make_noise: Callable[[int], IntegerNoise], orders: np.ndarray, shift: int = 1
) -> np.ndarray:
    """Renyi divergences D_order(X || X + shift) = D_order(X + shift || X), as upper bounds.

    Formal guarantees: the truncated tail is bounded by a geometric series and added; the support
    grows until that addition is below 1e-20 of the sum. Rounding is covered by 1e-12 on the log.
    Infinite where an order would need more than 32,768 outcomes, or eight times those of order 1.

    Args:
      make_noise: function from the reach to an `IntegerNoise`.
      orders: (orders,) above 1.
      shift: integer at least 1.

    Returns:
      (orders,).
    """
    orders = np.asarray(orders, dtype=np.float64)
    values = np.full(orders.shape, np.inf)
    noise = make_noise(64 + 2 * shift)
    largest = max(_LARGEST_RENYI_SUPPORT, 8 * noise.size)
    for index in np.argsort(orders):
        order = float(orders[index])
        while True:
            log_sum, log_rest = _log_renyi_sum(noise, order, shift)
            if log_rest < log_sum - _NEGLIGIBLE:
                break
            if 2 * noise.size > largest:
                return values
            noise = make_noise(2 * noise.size)
        total = float(np.logaddexp(log_sum, log_rest)) + _ROUNDING
        values[index] = max(0.0, total / (order - 1.0))
    return values


def _log_renyi_sum(noise: IntegerNoise, order: float, shift: int) -> tuple[float, float]:
    """log of sum P[x]^order P[x-shift]^(1-order) over stored outcomes, and of the rest's bound."""
    logs, losses = _losses(noise, shift)
    terms = logs + (order - 1.0) * losses
    log_rest = -math.inf
    ends = (terms[: noise.period], terms[-noise.period :])
    for slope, end in zip(noise.tail_slopes(order, shift), ends):
        if slope >= -1e-3:
            return 0.0, math.inf
        series = slope - math.log(-math.expm1(slope))
        log_rest = np.logaddexp(log_rest, _log_sum(end) + series)
    return _log_sum(terms), float(log_rest)


def shift_pair(noise: IntegerNoise, interval: float, shift: int = 1) -> LossPair:
    """Loss distribution of X against X + shift (the same in both directions), pessimistic.

    Every atom is split between its two neighbours on the grid so that its mass under both laws is
    kept; the mass of the outcomes not stored is put at infinite loss.

    Args:
      noise: the law of X.
      interval: spacing of the grid of losses.
      shift: integer at least 1.
    """
    logs, losses = _losses(noise, shift)
    likely = logs > _LEAST_LOG_PROBABILITY
    # Unstored outcomes fall at least geometrically, period by period; the left end, whose shifted
    # outcome is unstored, and the unlikely ones are counted in full.
    _, slope = noise.tail_slopes(1.0, shift)
    edge = float(np.sum(np.exp(noise.log_probabilities[-noise.period - shift :])))
    rest = float(np.sum(np.exp(logs[~likely]))) + edge + 2.0 * edge / -math.expm1(slope)
    logs, losses = logs[likely], losses[likely]
    masses = np.exp(logs)
    below = np.floor(losses / interval)
    up = masses * np.expm1(below * interval - losses) / math.expm1(-interval)
    below = below.astype(np.int64)
    lowest = int(below.min())
    grid = np.zeros(int(below.max()) - lowest + 2)
    np.add.at(grid, below - lowest, masses - up)
    np.add.at(grid, below - lowest + 1, up)
    law = LossDistribution(interval, lowest, np.maximum(grid, 0.0), rest)
    # Keeping both masses of every atom keeps the mirror symmetry of a symmetric noise.
    return LossPair(law, law)
