"""Randomness drawn on the host, from the operating system, for all that decides a selection.

Float32 noise made on a device has coarse tails, and one draw may decide a selection, so K,
selection noise and clients' noise come from here. `integer_laws` and `exact_samplers` turn it into
integers with exactly the distributions of the proofs.
"""

from __future__ import annotations

import dataclasses
import random
import secrets
from collections.abc import Callable

import numpy as np

from dpjax import checks


@dataclasses.dataclass(frozen=True)
class HostRandomness:
    """Draws randomness on the host, from the operating system (secret) unless seeded.

    With a seed every draw is reproducible, hence known to anyone who knows the seed.
    """

    seed: int | None = None

    def __post_init__(self) -> None:
        if self.seed is not None:
            object.__setattr__(self, "seed", checks.whole("seed", self.seed, 0))

    @property
    def secret(self) -> bool:
        """Returns whether the draws come from the operating system."""
        return self.seed is None

    def generator(self, stream: int) -> np.random.Generator:
        """Returns a new NumPy generator for a numbered stream."""
        stream = checks.whole("stream", stream, 0)
        if self.seed is None:
            return np.random.default_rng(np.random.SeedSequence(secrets.randbits(256)))
        return np.random.default_rng(np.random.SeedSequence((self.seed, stream)))

    def fold_in(self, stream: int, part: int) -> HostRandomness:
        """Returns the randomness of one part: the operating system's, or that of a derived seed."""
        if self.seed is None:
            return self
        (word,) = np.random.SeedSequence((self.seed, stream, part)).generate_state(1)
        return HostRandomness(int(word))

    def words(self, number: int, stream: int) -> np.ndarray:
        """Returns `number` uniform 64-bit words, uint64."""
        stream = checks.whole("stream", stream, 0)
        if self.seed is None:
            return np.frombuffer(secrets.token_bytes(8 * number), dtype=np.uint64)
        return self.generator(stream).integers(0, 2**64, size=number, dtype=np.uint64)

    def uniform_integers(self, stream: int) -> Callable[[int], int]:
        """Returns a function n -> uniform integer in 0..n-1, exact for every n >= 1.

        Each call of the function draws anew; calling this method again restarts a seeded stream.
        """
        stream = checks.whole("stream", stream, 0)
        if self.seed is None:
            return secrets.randbelow
        words = np.random.SeedSequence((self.seed, stream)).generate_state(8)
        return random.Random(words.tobytes()).randrange
