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
    """Holds thresholds that turn one uniform integer into a truncated binomial count.

    For U uniform on {0, ..., 2^(32 words) - 1}, the number of columns t with U >= t follows
    min(Binomial(trials, probability), cap) up to `total_variation`, an upper bound that is exact
    up to the rounding (upwards) of the last float.
    """

    thresholds: np.ndarray  # uint32 (words, cap), most significant word first
    total_variation: float


def round_up(value: Fraction) -> float:
    """Returns the smallest float not below `value`, for bounds that must stay bounds."""
    nearest = float(value)
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def split_into_words(values: list[int], words: int) -> np.ndarray:
    """Splits integers below 2^(32 words) into uint32 (words, len(values)), high word first."""
    mask = (1 << WORD_BITS) - 1
    shifts = [WORD_BITS * (words - 1 - word) for word in range(words)]
    return np.array(
        [[(value >> shift) & mask for value in values] for shift in shifts], dtype=np.uint32
    )


def binomial_count_table(trials: int, probability: float, cap: int, *, words: int) -> CountTable:
    """Builds the table of min(Binomial(trials, probability), cap); the probability is below 1.

    The float `probability` is taken as the rational number it is, a / b. Weights in proportion to
    the probabilities start with 1 at the mode and follow P[k+1] / P[k] = (trials - k) a / ((k + 1)
    (b - a)) to both sides, held as integer intervals of fixed scale with rounding outwards at every
    step, as far as they matter; what lies beyond is bounded and counted. Divided by their sum they
    are the distribution. A threshold is the cumulative probability times 2^(32 words), rounded to
    an integer; the distance to the true distribution is summed from the intervals.
    Use 3 words (96 bits) unless a test wants a coarse table.
    """
    first, weights, below, beyond = _weights(trials, Fraction(probability), words)
    total_low = sum(low for low, _ in weights)
    total_high = below + sum(high for _, high in weights) + beyond
    resolution = 1 << (WORD_BITS * words)
    # Counts before the first weight are so unlikely that their thresholds round to 0; those after
    # the last weight share the largest threshold.
    thresholds = [0] * min(first, cap)
    distance = (below + beyond) * resolution  # in units of 1 / (total_low * resolution)
    cumulative_low, cumulative_high, previous = 0, below, 0
    for low, high in weights[: max(cap - first, 0)]:
        cumulative_low, cumulative_high = cumulative_low + low, cumulative_high + high
        centre, total = cumulative_low + cumulative_high, total_low + total_high
        threshold = (2 * centre * resolution + total) // (2 * total)
        # The last representable value: a cumulative probability that rounds to 1 leaves one
        # uniform value in 2^96 to the higher counts. The distance below includes it.
        threshold = max(previous, min(threshold, resolution - 1))
        thresholds.append(threshold)
        mass = threshold - previous
        # The probability lies between low / total_high and high / total_low.
        distance += max(
            abs(mass * total_high - low * resolution), abs(mass * total_low - high * resolution)
        )
        previous = threshold
    thresholds += [previous] * (cap - len(thresholds))
    # Half the absolute differences of all outcomes. The last outcome holds what the others leave,
    # so its difference is at most the sum of theirs, and the halves add up to that sum.
    return CountTable(
        split_into_words(thresholds, words), round_up(Fraction(distance, total_low * resolution))
    )


def _weights(
    trials: int, probability: Fraction, words: int
) -> tuple[int, list[tuple[int, int]], int, int]:
    """Returns weights in proportion to the binomial probabilities, as far as they matter.

    The results: the first count; integers (low, high) around each weight from there on; and bounds
    on the sums of all weights before the first and after the last, below 2^-(32 words + 256) of
    the whole.
    """
    numerator, denominator = probability.as_integer_ratio()
    complement = denominator - numerator
    mode = min((trials + 1) * numerator // denominator, trials)
    scale = 1 << (WORD_BITS * words + 256 + 2 * trials.bit_length())

    def away_from_mode(counts: range, upwards: bool) -> tuple[list[tuple[int, int]], int]:
        found: list[tuple[int, int]] = []
        low = high = scale
        for count in counts:
            if upwards:
                factor, divisor = (trials - count + 1) * numerator, count * complement
            else:
                factor, divisor = (count + 1) * complement, (trials - count) * numerator
            low, high = low * factor // divisor, -(-high * factor // divisor)
            if high <= trials:
                # Weights decrease away from the mode: those left are at most this together.
                return found, high * trials
            found.append((low, high))
        return found, 0

    lower, below = away_from_mode(range(mode - 1, -1, -1), upwards=False)
    upper, beyond = away_from_mode(range(mode + 1, trials + 1), upwards=True)
    return mode - len(lower), [*lower[::-1], (scale, scale), *upper], below, beyond
