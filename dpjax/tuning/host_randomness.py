"""Randomness that decides what is released: drawn on the host, from the operating system.

Float32 noise made on a device has coarse tails; a selection may hang on one draw, so its noise is
drawn here, as integers, from the operating system's generator.
"""

from __future__ import annotations

import dataclasses
import decimal
import functools
import math
import random
import secrets
from collections.abc import Callable

import numpy as np


@dataclasses.dataclass(frozen=True)
class HostRandomness:
    """A source of randomness on the host.

    Attributes:
      seed: None for the operating system's randomness (secret); an integer makes every draw
        reproducible, which also makes it known to whoever knows the seed.
    """

    seed: int | None = None

    @property
    def secret(self) -> bool:
        """Whether the draws come from the operating system."""
        return self.seed is None

    def generator(self, stream: int) -> np.random.Generator:
        """Returns a NumPy generator of its own for a numbered stream."""
        if self.secret:
            return np.random.default_rng(np.random.SeedSequence(secrets.randbits(256)))
        return np.random.default_rng(np.random.SeedSequence((self.seed, stream)))

    def words(self, number: int, stream: int) -> np.ndarray:
        """Returns `number` uniform 64-bit words, uint64."""
        if self.secret:
            return np.frombuffer(secrets.token_bytes(8 * number), dtype=np.uint64)
        return self.generator(stream).integers(0, 2**64, size=number, dtype=np.uint64)

    def uniform_integers(self, stream: int) -> Callable[[int], int]:
        """Returns a function n -> uniform integer in 0..n-1, exact for every n >= 1.

        Each call of the function draws anew; calling this method again restarts a seeded stream.
        """
        if self.secret:
            return secrets.randbelow
        words = np.random.SeedSequence((self.seed, stream)).generate_state(8)
        return random.Random(words.tobytes()).randrange


@functools.lru_cache(maxsize=64)
def _discrete_gaussian_table(standard_deviation: float) -> np.ndarray:
    """Cumulative probabilities of |X| = 0, 1, ... times 2^63, rounded to integers, uint64."""
    with decimal.localcontext() as context:
        context.prec = 60
        variance = 2 * decimal.Decimal(standard_deviation) ** 2
        # Beyond 11.5 standard deviations lies less than 2^-63 of the mass.
        largest = math.ceil(11.5 * standard_deviation) + 2
        weights = [(-decimal.Decimal(k * k) / variance).exp() for k in range(largest + 1)]
        weights = [weights[0]] + [2 * weight for weight in weights[1:]]
        total = sum(weights)
        cumulative, table = decimal.Decimal(0), []
        for weight in weights:
            cumulative += weight
            table.append(min(int(cumulative / total * 2**63), 2**63))
    table[-1] = 2**63
    return np.asarray(table, dtype=np.uint64)


def discrete_gaussian(
    standard_deviation: float, number: int, source: HostRandomness, stream: int = 0
) -> np.ndarray:
    """Draws integers with probability proportional to exp(-k^2 / (2 s^2)).

    Each draw inverts a 63-bit table computed to 60 decimal digits with one 64-bit word: its law is
    within (13 s + 5) 2^-63 of the discrete Gaussian in total variation, below 1e-15 for every s up
    to 700; that is far below any delta in use and is not charged.

    Args:
      standard_deviation: s, in units of the integers, > 0 (the parameter; the standard deviation
        of the discrete law equals it closely for s >= 0.5).
      number: how many draws.
      source: where the words come from.
      stream: which stream of a seeded source.

    Returns:
      Array (number,), int64.

    Source: Canonne, Kamath & Steinke, "The Discrete Gaussian for Differential Privacy", 2020.
    """
    if not (0 < standard_deviation < math.inf):
        raise ValueError(f"standard_deviation {standard_deviation}: pass a finite number > 0")
    words = source.words(number, stream)
    magnitude = np.searchsorted(
        _discrete_gaussian_table(float(standard_deviation)), words >> np.uint64(1), side="right"
    ).astype(np.int64)
    # The lowest bit is independent of the 63 above it: it gives the sign.
    return np.where(words & np.uint64(1), magnitude, -magnitude)
