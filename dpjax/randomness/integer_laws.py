"""Exact draws of integer noise on the host: Skellam and discrete Gaussian, by a refined table.

NumPy's Poisson sampler computes in float64 and float noise has gaps. So the Skellam or discrete
Gaussian noise of a privacy proof, on votes of a federation and on validation scores, where one draw
may decide a selection, is drawn here from a table of integers instead. A draw compares one
63-bit uniform number with the law's cumulative probabilities; where 63 bits leave open which side
it is on, 256 further bits are drawn. Nothing is computed in floating point after the variance
itself.
"""

from __future__ import annotations

import bisect
import dataclasses
import decimal
import functools
import math
from fractions import Fraction

import numpy as np

from dpjax.randomness.host_randomness import HostRandomness

_HEAD_BITS, _TAIL_BITS = 63, 256
_DIGITS = 130
_LARGEST_REACH = 1 << 20
NOISES = ("skellam", "discrete_gaussian")
"""Names of the laws."""


@dataclasses.dataclass(frozen=True, eq=False)
class IntegerLaw:
    """A symmetric distribution on the integers -reach, ..., reach, as a table to draw from.

    Formal guarantees: a draw has the named law up to a total variation of less than 2^-300: its
    cumulative probabilities are rounded down to multiples of 2^-319, and the mass beyond `reach`,
    less than 2^-320, is put on `reach`. No draw ever exceeds `reach` in absolute value. (A delta of
    1e-5 has a last binary digit of about 2^-69, so that this needs no charge.)
    """

    # P[|X| <= k] times 2^319, rounded down, for k = 0, ..., reach; the last is 2^319
    cumulative: tuple[int, ...]
    heads: np.ndarray  # (reach + 1,) uint64, the leading 63 bits of `cumulative`

    @property
    def reach(self) -> int:
        """Returns the largest absolute value that can be drawn."""
        return len(self.cumulative) - 1

    def draw(self, number: int, source: HostRandomness, stream: int = 0) -> np.ndarray:
        """Draws independent integers, (number,) int64; a seeded source draws from `stream`."""
        words = source.words(number, stream)
        # The lowest bit is independent of the 63 above it: it gives the sign.
        uniform = words >> np.uint64(1)
        magnitudes = np.searchsorted(self.heads, uniform, side="right").astype(np.int64)
        open_draws = np.flatnonzero(np.isin(uniform, self.heads))
        if open_draws.size:
            more = source.words(4 * open_draws.size, stream + (1 << 40)).tobytes()
            for place, draw in enumerate(open_draws):
                tail = int.from_bytes(more[32 * place : 32 * place + 32], "little")
                magnitudes[draw] = self.refined(int(uniform[draw]), tail)
        return np.where(words & np.uint64(1), magnitudes, -magnitudes)

    def refined(self, head: int, tail: int) -> int:
        """Returns |X| for the uniform number with these 63 leading and 256 following bits."""
        return bisect.bisect_right(self.cumulative, (head << _TAIL_BITS) | tail)


@functools.lru_cache(maxsize=64)
def integer_law(noise: str, variance: float | Fraction) -> IntegerLaw:
    """Makes the table of a distribution, "skellam" or "discrete_gaussian".

    The first is the difference of two independent Poisson variables of mean variance / 2; in the
    second the probability of k is proportional to exp(-k^2 / (2 variance)), so that the variance
    is a parameter. It is taken exactly; a table of more than a million entries is refused.
    """
    if not (0.0 < variance < math.inf):
        raise ValueError(f"variance {variance}: pass a finite number above 0")
    if noise not in NOISES:
        raise ValueError(f"unknown noise {noise!r}: pass one of {', '.join(NOISES)}")
    reach = _reach(noise, float(variance))
    numerator, denominator = Fraction(variance).as_integer_ratio()
    with decimal.localcontext() as context:
        context.prec = _DIGITS
        weights = (_skellam if noise == "skellam" else _discrete_gaussian)(
            decimal.Decimal(numerator) / denominator, reach
        )
        total = weights[0] + 2 * sum(weights[1:])
        running, cumulative = decimal.Decimal(0), []
        for place, weight in enumerate(weights):
            running += weight if place == 0 else 2 * weight
            cumulative.append(int(running / total * 2 ** (_HEAD_BITS + _TAIL_BITS)))
    cumulative[-1] = 1 << (_HEAD_BITS + _TAIL_BITS)
    heads = np.array([value >> _TAIL_BITS for value in cumulative], dtype=np.uint64)
    return IntegerLaw(tuple(cumulative), heads)


def discrete_gaussian(
    standard_deviation: float, number: int, source: HostRandomness, stream: int = 0
) -> np.ndarray:
    """Draws integers with probability proportional to exp(-k^2 / (2 s^2)), (number,) int64.

    The parameter s, in units of the integers, is at most some 48,000; the standard deviation of the
    discrete distribution equals it closely for s >= 0.5.

    Source: Canonne, Kamath & Steinke, "The Discrete Gaussian for Differential Privacy", 2020.
    """
    if not (0 < standard_deviation < math.inf):
        raise ValueError(f"standard_deviation {standard_deviation}: pass a finite number > 0")
    # A fraction: squaring the float would round it.
    law = integer_law("discrete_gaussian", Fraction(standard_deviation) ** 2)
    return law.draw(number, source, stream)


def _reach(noise: str, variance: float) -> int:
    """Returns some k with P[|X| > k] < 2^-320."""
    needed = (_HEAD_BITS + _TAIL_BITS + 4) * math.log(2.0)
    if noise == "discrete_gaussian":
        # P[|X| > k] is at most exp(-k^2 / (2 variance)) / (1 - exp(-1 / (2 variance))).
        needed += math.log1p(4.0 * variance)
        reach = math.ceil(math.sqrt(2.0 * variance * needed)) + 2
    else:

        def exponent(k: float) -> float:
            """Returns Chernoff's bound for Skellam, -log P[X >= k]."""
            root = math.hypot(k, variance)
            return k * math.asinh(k / variance) - k * k / (root + variance)

        reach = 4
        while exponent(reach) < needed + 1.0:
            reach = math.ceil(1.1 * reach)
    if reach > _LARGEST_REACH:
        raise ValueError(
            f"variance {variance} needs a table of {reach} entries: pass less noise (scale the "
            "votes less, or ask for less privacy)"
        )
    return reach


def _skellam(variance: decimal.Decimal, reach: int) -> list[decimal.Decimal]:
    """Returns P[X = k] / P[X = 0] = I_k(variance) / I_0(variance) for k = 0, ..., reach.

    Backward recurrence of the ratios of Bessel functions, I_{k-1}/I_k = 2k/variance + I_{k+1}/I_k,
    a sum of positive numbers; the error of its start shrinks by the square of each ratio.
    """
    ratio, ratios = decimal.Decimal(0), []
    for k in range(2 * reach + 200, 0, -1):
        ratio = 1 / (2 * k / variance + ratio)
        if k <= reach:
            ratios.append(ratio)
    weights = [decimal.Decimal(1)]
    for ratio in reversed(ratios):
        weights.append(weights[-1] * ratio)
    return weights


def _discrete_gaussian(variance: decimal.Decimal, reach: int) -> list[decimal.Decimal]:
    """Returns exp(-k^2 / (2 variance)) for k = 0, ..., reach, each from the one before.

    Relative errors add up to about reach^2 units of the last of 130 digits, of which 96 are used.
    """
    ratio = (-1 / (2 * variance)).exp()
    change, weights = ratio * ratio, [decimal.Decimal(1)]
    for _ in range(reach):
        weights.append(weights[-1] * ratio)
        ratio *= change
    return weights
