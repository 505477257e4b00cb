"""The secret number that a run from elsewhere may seed its randomness with."""

from __future__ import annotations

import hashlib

import jax
import numpy as np

from dpjax import checks
from dpjax.randomness import keys

SEED_BITS = 63
"""Of a run's seed: `numpy.random.default_rng` takes all of it, and 64-bit integers hold it."""


def jax_key(seed: int) -> jax.Array:
    """Returns the typed threefry key made of all bits of a run's seed.

    Formal guarantees: two seeds give two keys. `jax.random.key(seed)` does not promise that:
    without 64-bit mode it keeps 32 bits of a number, which anyone can search.

    Example:
      >>> from dpjax import bridges
      >>> bool(bridges.jax_key(1) != bridges.jax_key(1 + 2**32))
      True

    Args:
      seed: as a run is given it, a whole number in [0, 2^63).
    """
    seed = checks.whole("seed", seed, 0)
    if seed >> SEED_BITS:
        raise ValueError(f"seed must be below 2^{SEED_BITS}: pass the number that a run is given")
    words = np.array([seed >> 32, seed & 0xFFFFFFFF], dtype=np.uint32)
    return jax.random.wrap_key_data(words, impl=keys.IMPLEMENTATION)


def expanded(seed: int, purpose: str, number: int) -> bytes:
    """Returns `number` bytes made of all bits of a run's seed, by SHAKE-256 (FIPS 202).

    Formal guarantees: bytes of two seeds, or of two purposes, show nothing of each other, as far as
    SHAKE-256 cannot be told from a random function.
    """
    seed = checks.whole("seed", seed, 0)
    return hashlib.shake_256(
        b"dpjax.bridges.seeds\0" + purpose.encode() + b"\0" + seed.to_bytes(8, "big")
    ).digest(number)
