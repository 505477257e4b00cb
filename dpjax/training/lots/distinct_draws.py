"""Distinct uniform records from independent draws: the device side of the lots of `sampling.py`."""

from __future__ import annotations

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.training.lots.binomial_table import WORD_BITS

SHORTAGE_PROBABILITY = Fraction(1, 2**96)
"""Probability allowed to a lot's draws holding too few distinct records."""

_WORD_VALUES = 1 << WORD_BITS


def draws_for_distinct(size: int, wanted: int) -> tuple[int, Fraction]:
    """Returns how many uniform draws hold `wanted` distinct records but for a probability <= 2^-96.

    A draw is lost if its word is rejected or if it repeats an earlier one; until `wanted` distinct
    records are seen, each is lost with probability at most p, whatever came before. So the kept
    draws are at least Binomial(draws, 1 - p), and the Chernoff bound
    P[Binomial(N, 1 - p) <= w - 1] <= exp(-N KL((w - 1) / N || 1 - p)) is rigorous.
    """
    accepted = (_WORD_VALUES // size) * size / _WORD_VALUES
    kept = accepted * (1.0 - (wanted - 1) / size)
    # One unit more than asked for absorbs the float64 rounding of the exponent.
    exponent = -math.log(SHORTAGE_PROBABILITY) + 1.0
    draws = wanted
    while draws * _relative_entropy((wanted - 1) / draws, kept) < exponent:
        draws += max(1, wanted // 64)
    return draws, SHORTAGE_PROBABILITY


def _relative_entropy(first: float, second: float) -> float:
    """Returns Bernoulli(first)'s KL divergence from Bernoulli(second), 0 unless first < second."""
    if first >= second:
        return 0.0
    if second == 1.0:
        return math.inf
    head = first * math.log(first / second) if first > 0 else 0.0
    return head + (1.0 - first) * math.log((1.0 - first) / (1.0 - second))


def distinct_records(words: jax.Array, size: int, capacity: int) -> tuple[jax.Array, jax.Array]:
    """Turns uniform words into distinct uniform records, in the order they were drawn.

    Returns int32 (capacity,) records and how many of all draws are distinct; entries beyond that
    number have no meaning. `size` is below 2^31, `capacity` at most the number of draws.
    """
    draws = words.shape[0]
    # The largest multiple of `size` that 32 bits hold splits evenly; the words above it would
    # favour small records and are marked with the impossible record `size` instead.
    records = jnp.minimum(words // jnp.uint32(_WORD_VALUES // size), jnp.uint32(size))
    order = jnp.arange(draws, dtype=jnp.uint32)
    order_bits, record_bits = draws.bit_length(), size.bit_length()
    if order_bits + record_bits <= WORD_BITS:
        # Both fit in one word: sorting single words is five times faster than sorting pairs.
        by_record = jnp.sort((records << order_bits) | order)
        records, order = by_record >> order_bits, by_record & ((1 << order_bits) - 1)
    else:
        records, order = jax.lax.sort((records, order), num_keys=2)
    repeated = jnp.concatenate([jnp.zeros((1,), bool), records[1:] == records[:-1]])
    kept = ~repeated & (records < size)
    # Back to the order of drawing, the lost draws (order `draws`) last.
    order = jnp.where(kept, order, jnp.uint32(draws))
    if order_bits + record_bits <= WORD_BITS:
        by_order = jnp.sort((order << record_bits) | records)
        records = by_order & ((1 << record_bits) - 1)
    else:
        _, records = jax.lax.sort((order, records), num_keys=1)
    return records[:capacity].astype(jnp.int32), jnp.sum(kept, dtype=jnp.int32)


def compact(member: jax.Array, capacity: int) -> tuple[jax.Array, jax.Array]:
    """Indices of the True entries of `member` (size,), in order, in `capacity` masked slots."""
    size = member.shape[0]
    slots = jnp.sort(jnp.where(member, jnp.arange(size), size))
    slots = jnp.pad(slots[:capacity], (0, max(0, capacity - size)), constant_values=size)
    return slots, slots < size


def at_least(words: jax.Array, thresholds: np.ndarray) -> jax.Array:
    """Compares words >= thresholds as multi-word integers; both (words, ...), high word first."""
    result = words[-1] >= thresholds[-1]
    for word, threshold in zip(words[-2::-1], thresholds[-2::-1], strict=True):
        result = (word > threshold) | ((word == threshold) & result)
    return result
