"""Random keys: one root per candidate, named streams below it.

A candidate's noise hides its records only while its key is secret, so roots come from the operating
system. Every use of randomness has its own named stream, so that adding a use never changes the
randomness of another.
"""

from __future__ import annotations

import os
from types import MappingProxyType

import jax
import numpy as np

from dpjax.checks import Refused

STREAMS = MappingProxyType(
    {"initial": 0, "lots": 1, "noise": 2, "loss": 3, "check": 5, "scores": 6, "parts": 7, "bins": 8}
)
"""Names of the streams below a candidate's key; other numbers would change what a seed gives."""

IMPLEMENTATION = "threefry2x32"
"""Never JAX's default, which may be `rbg`: under `jax.vmap` that reads the batch's first key only.
"""


def candidate_keys(number: int, seed: int | None = None) -> jax.Array:
    """Makes one independent root key per candidate.

    Formal guarantees:
      Without a seed every key is 64 bits of `os.urandom`, all that a threefry key holds. With a
      seed the keys are a fixed function of 32 bits, which anyone can search: for reproduction only,
      the privacy guarantee then rests on the seed being secret and unguessable, which 32 bits are
      not. All keys of one call differ.

    Args:
      number: number of candidates, >= 0.
      seed: integer in [0, 2^32) for reproduction, or None. The first keys of a longer call with
        the same seed are the keys of a shorter one.

    Returns:
      Typed key array (number,).
    """
    if number < 0:
        raise ValueError(f"number is {number}: pass a number of candidates, 0 or more")
    if seed is None:
        words = np.frombuffer(os.urandom(8 * number), dtype=np.uint32).reshape(number, 2)
        while len(np.unique(words, axis=0)) < number:  # Equal keys would give equal noise.
            words = np.frombuffer(os.urandom(8 * number), dtype=np.uint32).reshape(number, 2)
        return jax.random.wrap_key_data(words, impl=IMPLEMENTATION)
    if not 0 <= seed < 2**32:
        raise Refused(("seed", seed), ": pass an integer from 0 to 2^32 - 1, or None for secrecy")
    # A key per index, not a split: a split into more keys begins with other keys.
    root = jax.random.key(np.uint32(seed), impl=IMPLEMENTATION)
    return jax.vmap(lambda index: jax.random.fold_in(root, index))(
        np.arange(number, dtype=np.uint32)
    )


def stream(key: jax.Array, name: str) -> jax.Array:
    """Derives the sub-key of `key` for one named use; `name` is one of `STREAMS`.

    Example:
      >>> import jax
      >>> from dpjax import training
      >>> (key,) = training.candidate_keys(1, seed=0)
      >>> lots = training.stream(key, "lots")
      >>> bool((jax.random.key_data(lots) != jax.random.key_data(key)).any())
      True
    """
    if name not in STREAMS:
        raise ValueError(f"unknown stream {name!r}: pass one of {', '.join(sorted(STREAMS))}")
    return jax.random.fold_in(key, STREAMS[name])
