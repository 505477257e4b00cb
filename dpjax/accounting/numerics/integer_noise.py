"""Computes the exact privacy of integer noise on a count: Skellam, sums of discrete Gaussians.

Under secure summation every client adds its own integer noise and only the sum is seen. The sum of
Skellam noises is Skellam; the sum of discrete Gaussians is not a discrete Gaussian, but is one to
the last digit where they are wide enough; others are refused. Both laws are computed to full
relative precision, far into the tails; the divergence between a law and its shift follows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from scipy import special

from dpjax.accounting.numerics.loss_distribution import LossDistribution, LossPair

_NEGLIGIBLE = 46.0  # exp(-46) is about 1e-20
_LEAST_LOG_PROBABILITY = -80.0  # less likely outcomes count as infinite loss
_LARGEST_SUPPORT = 1 << 20
_LARGEST_RENYI_SUPPORT = 1 << 15
_ROUNDING = 1e-12  # relative error granted to a computed sum
LEAST_LOCAL_VARIANCE = 4.0
"""Least variance for which sums of discrete Gaussians are discrete Gaussians, to 2e-17."""


@dataclasses.dataclass(frozen=True, eq=False)
class IntegerNoise:
    """Holds a symmetric distribution on the integers."""

    log_probabilities: np.ndarray  # (size,) log P[X = 0], log P[X = 1], ...
    variance: float = 0.0  # parameter of a discrete Gaussian; 0 for Skellam noise

    @property
    def size(self) -> int:
        """Returns how many integers, from 0, have their probability stored."""
        return self.log_probabilities.size

    def tail_slopes(self, order: float, shift: int) -> tuple[float, float]:
        """Bounds the slopes of log(P[x]^order P[x-shift]^(1-order)) beyond the stored range.

        A slope is the change from one integer to the next, outwards: first left, then right. For
        Skellam noise the bound is by Thiruvenkatachar & Nanjundiah (1951), I_j^2 / (I_{j-1}
        I_{j+1}) <= (j + 1) / j.
        """
        last = self.size - 1 - shift
        gained = (order - 1.0) * shift
        if self.variance:
            start = last - 0.5
            return -(start - gained) / self.variance, -start / self.variance
        drop = self.log_probabilities[last - 1] - self.log_probabilities[last]
        return -drop + gained / last, -drop


def skellam_noise(variance: float, reach: int = 0) -> IntegerNoise:
    """Tabulates the difference of two Poissons of mean variance / 2, at least for 0, ..., reach.

    P[X = j] = exp(-variance) I_j(variance); the ratios of Bessel functions come from the backward
    recurrence I_{j-1}/I_j = 2 j / variance + I_{j+1}/I_j, which is stable and never underflows.
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
    """Builds a sum of independent discrete Gaussians, P[Y = y] ~ exp(-y^2/(2 local_variance)).

    Let v be the local variance and A the lattice of n whole numbers that sum to 0. P[x] is
    proportional to exp(-x^2 / (2 n v)) times F(x), the sum of exp(-|u|^2 / (2 v)) over a shift of
    A. By Poisson summation F varies by at most a relative eta, the sum of exp(-a |w|^2) over w != 0
    of the dual lattice, a = 2 pi^2 v. eta is sqrt(a n / pi) times the integral of theta(t)^n over a
    unit of t, less 1; theta(t) is the sum of exp(-a (z - t)^2) over whole z. For v >= 4 eta is
    below 2e-17 for every n: the law is the discrete Gaussian of parameter n v to the last digit of
    float64, in the tails too. A v below 4 is refused.
    """
    check_local_variance(local_variance)
    variance = local_variance * clients
    positions = np.arange(_support(variance, reach) + 1, dtype=np.float64)
    # The sum of exp(-x^2 / (2 variance)) over all integers is sqrt(2 pi variance), to 1e-33.
    logs = -0.5 * (positions**2 / variance + math.log(2.0 * math.pi * variance))
    return IntegerNoise(logs, variance)


def check_local_variance(local_variance: float) -> None:
    """Refuses discrete Gaussians so narrow that their sum is not a discrete Gaussian."""
    if local_variance < LEAST_LOCAL_VARIANCE:
        raise ValueError(
            f"local_variance {local_variance:.4g} of discrete Gaussian noise is below "
            f"{LEAST_LOCAL_VARIANCE:g}: raise the scale of the votes, or use Skellam noise"
        )


def _log_sum(values: np.ndarray) -> float:
    """Returns the log of the sum of exponentials."""
    peak = float(values.max())
    return peak + math.log(float(np.exp(values - peak).sum()))


def _support(variance: float, reach: int) -> int:
    """Returns the largest integer to store."""
    size = max(reach, 4) + math.ceil(13.0 * math.sqrt(variance)) + 32
    if size > _LARGEST_SUPPORT:
        raise ValueError(
            f"the noise law would need {size} probabilities: use the continuous Gaussian "
            "(accounting.vote), whose cost is the same at such a variance"
        )
    return size


def _losses(noise: IntegerNoise, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns log P[x] and the loss log P[x] / P[x - shift], for x with both stored."""
    tail = noise.log_probabilities
    logs = np.concatenate([tail[:0:-1], tail])
    return logs[shift:], logs[shift:] - logs[:-shift]


def shift_rdp(
    make_noise: Callable[[int], IntegerNoise], orders: np.ndarray, shift: int = 1
) -> np.ndarray:
    """Bounds D_order(X || X + shift) = D_order(X + shift || X) from above, at the orders (n,).

    Formal guarantees: the truncated tail is bounded by a geometric series and added; the support
    grows (`make_noise` takes its reach) until that addition is below 1e-20 of the sum. Rounding is
    covered by 1e-12 on the log. Infinite where an order would need more than 32,768 outcomes, or
    eight times those of order 1.
    """
    orders = np.asarray(orders, dtype=np.float64)
    values = np.full(orders.shape, np.inf)
    noise = make_noise(64 + 2 * shift)
    largest = max(_LARGEST_RENYI_SUPPORT, 8 * noise.size)
    # In ascending order, since a larger order needs a longer support; the rest stay infinite.
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
    """Returns log sum P[x]^order P[x-shift]^(1-order) over stored outcomes, and bounds the rest.

    Beyond either end the terms fall at least as a geometric series with the tail's slope; where
    that does not fall clearly, the bound is infinite and more outcomes have to be stored.
    """
    logs, losses = _losses(noise, shift)
    terms = logs + (order - 1.0) * losses
    log_rest = -math.inf
    for slope, end in zip(noise.tail_slopes(order, shift), (terms[0], terms[-1])):
        if slope >= -1e-3:
            return 0.0, math.inf
        log_rest = np.logaddexp(log_rest, end + slope - math.log(-math.expm1(slope)))
    return _log_sum(terms), float(log_rest)


def shift_pair(noise: IntegerNoise, interval: float, shift: int = 1) -> LossPair:
    """Returns the losses of X against X + shift (the same in both directions), rounded up.

    Every atom is split between its two neighbours on the grid so that its mass under both laws is
    kept; the mass of the outcomes not stored is put at infinite loss.
    """
    logs, losses = _losses(noise, shift)
    likely = logs > _LEAST_LOG_PROBABILITY
    # Beyond the stored outcomes probabilities fall at least geometrically; outcomes at the left
    # end, whose shifted outcome is not stored, and unlikely ones count in full.
    _, slope = noise.tail_slopes(1.0, shift)
    edge = float(np.sum(np.exp(noise.log_probabilities[-1 - shift :])))
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
