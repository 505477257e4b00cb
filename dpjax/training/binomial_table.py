"""Inverse-distribution tables of a binomial count, rigorous to the last bit.

Runs on the host once per sampler, in exact integer arithmetic: a float64 table would be wrong by
about 1e-16 per entry, which many steps and a selection multiply into something that has to be
argued away. Here the error is computed, not argued.
"""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import numpy as np

WORD_BITS = 32
"""Random numbers arrive as unsigned 32-bit words; JAX has no 64-bit integers by default."""


@dataclasses.dataclass(frozen=True, eq=False)
class CountTable:
    """Thresholds that turn one uniform integer into a truncated binomial count.

    Attributes:
      thresholds: uint32 array (words, cap), most significant word first. For U uniform on
        {0, ..., 2^(32 words) - 1}, the number of columns t with U >= t follows the law of
        min(Binomial(trials, probability), cap) up to `total_variation`.
      total_variation: upper bound on the total variation distance between the two laws, exact up
        to the rounding (upwards) of the last float.
    """

    thresholds: np.ndarray
    total_variation: float


def round_up(value: Fraction) -> float:
    """The smallest float not below `value`, for bounds that must stay bounds."""
    nearest = float(value)
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def split_into_words(values: list[int], words: int) -> np.ndarray:
    """Non-negative integers below 2^(32 words) as uint32 (words, len(values)), high word first."""
    mask = (1 << WORD_BITS) - 1
    shifts = [WORD_BITS * (words - 1 - word) for word in range(words)]
    return np.array(
        [[(value >> shift) & mask for value in values] for shift in shifts], dtype=np.uint32
    )


def binomial_count_table(trials: int, probability: float, cap: int, *, words: int) -> CountTable:
    """Builds the table of min(Binomial(trials, probability), cap).

    The float `probability` is taken as the rational number it is, a / b. The probabilities follow
    P[0] = (1 - a/b)^trials and P[k+1] = P[k] (trials - k) a / ((k + 1)(b - a)), held as integer
    intervals at a scale fine enough for the smallest of them, with rounding outwards at every
    step. A threshold is the cumulative probability times 2^(32 words), rounded to the nearest
    integer that 32 words hold; the distance to the true law is summed from the intervals.

    Args:
      trials: number of records, >= 1.
      probability: in (0, 1); 1 needs no table.
      cap: counts of `cap` and more share the last outcome; 1 <= cap <= trials.
      words: uint32 words of one uniform number; 3 (96 bits) unless a test wants a coarse table.
    """
    numerator, denominator = Fraction(probability).as_integer_ratio()
    complement = denominator - numerator
    # Enough bits for P[0], the smallest value of the recursion's start, to keep 256 of its own.
    smallest_bits = math.ceil(-trials * math.log1p(-probability) / math.log(2)) + 1
    scale_bits = WORD_BITS * words + 256 + smallest_bits + 2 * trials.bit_length()
    scale = 1 << scale_bits

    low, high = _power_interval(complement, denominator, trials, scale_bits)
    cumulative_low, cumulative_high = low, high
    resolution = 1 << (WORD_BITS * words)
    thresholds: list[int] = []
    distance = 0  # in units of 1 / (scale * resolution)
    previous = 0
    for count in range(cap):
        centre = (cumulative_low + cumulative_high) // 2
        threshold = (centre * resolution + scale // 2) // scale
        # The last representable value: a cumulative probability that rounds to 1 leaves one
        # uniform value in 2^96 to the higher counts. The distance below includes it.
        threshold = max(previous, min(threshold, resolution - 1))
        thresholds.append(threshold)
        mass = (threshold - previous) * scale
        distance += max(abs(mass - low * resolution), abs(mass - high * resolution))
        previous = threshold
        factor, divisor = (trials - count) * numerator, (count + 1) * complement
        low, high = low * factor // divisor, -(-high * factor // divisor)
        cumulative_low, cumulative_high = cumulative_low + low, cumulative_high + high
    # Half the absolute differences of all outcomes. The last outcome holds what the others leave,
    # so its difference is at most the sum of theirs, and the halves add up to that sum.
    return CountTable(
        split_into_words(thresholds, words), round_up(Fraction(distance, scale * resolution))
    )


def _power_interval(
    numerator: int, denominator: int, exponent: int, scale_bits: int
) -> tuple[int, int]:
    """Integers low <= (numerator / denominator)^exponent 2^scale_bits <= high, by squaring."""
    low = (numerator << scale_bits) // denominator
    high = -((-numerator << scale_bits) // denominator)
    result_low = result_high = 1 << scale_bits
    while exponent:
        if exponent & 1:
            result_low = (result_low * low) >> scale_bits
            result_high = -((-result_high * high) >> scale_bits)
        low, high = (low * low) >> scale_bits, -((-high * high) >> scale_bits)
        exponent >>= 1
    return result_low, result_high
