"""Lots that share one program: their numbers traced, their rows padded to one capacity.

Candidates of a mixed sweep have lots of their own, but candidates trained side by side must have
arrays of one shape. A family draws, for traced numbers, exactly the lots that `PoissonLots` or
`FixedLots` would have drawn: the random words of a draw do not depend on how many of them are asked
for, and the distinct records are taken in the order drawn, so that more rows only add padding at
the end. The accounting of a candidate is therefore that of its own lots, whatever the padding.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.randomness import threefry
from dpjax.training.lots.binomial_table import WORD_BITS, binomial_count_table, split_into_words
from dpjax.training.lots.distinct_draws import (
    at_least,
    compact,
    distinct_records,
    draws_for_distinct,
)
from dpjax.training.lots.sampling import UNIFORM_WORDS, FixedLots, PoissonLots

POISSON, POISSON_DENSE, FIXED, ALONE = "poisson", "poisson dense", "fixed", "alone"


@dataclasses.dataclass(frozen=True)
class LotFamily:
    """Draws lots of one kind over one data set, padded to one capacity; static.

    Formal guarantees:
      For equal keys and numbers of records, `draw(key, numbers_of(lots), n)` has True rows that
      hold the records of `lots.draw(key, n)`, and no others: `total_variation` and the truncation
      of `lots` are those of the padded draw.
    """

    kind: str  # which of the ways of drawing; see `sampling.py`
    size: int  # records that the lots were made for: the bound (Poisson) or the number (fixed)
    capacity: int  # rows of a padded lot, at least the capacity of every member
    # only where its numbers cannot be traced: fixed lots of over half of the records
    lots: FixedLots | None = None

    def numbers_of(self, lots: PoissonLots | FixedLots) -> dict[str, np.ndarray | np.generic]:
        """Returns what tells `lots` from other members, as arrays of one shape for all."""
        if self.kind == ALONE:
            return {}
        if isinstance(lots, FixedLots):
            return {"count": np.int32(lots.lot_size)}
        if self.kind == POISSON_DENSE:
            resolution = 1 << (WORD_BITS * UNIFORM_WORDS)
            threshold = round(Fraction(lots.sampling_probability) * resolution)
            certain = threshold == resolution
            return {
                "certain": np.bool_(certain),
                "count": np.int32(lots.capacity),
                "threshold": split_into_words([0 if certain else threshold], UNIFORM_WORDS),
            }
        table = binomial_count_table(
            self.size, lots.sampling_probability, lots.capacity, words=UNIFORM_WORDS
        ).thresholds
        # Thresholds that one uniform number in 2^96 reaches; `count` keeps that one out as well.
        padding = np.full((UNIFORM_WORDS, self.capacity - lots.capacity), 2**32 - 1, np.uint32)
        return {
            "count": np.int32(lots.capacity),
            "thresholds": np.concatenate([table, padding], axis=1),
        }

    def draw(
        self, key: jax.Array, numbers: dict[str, jax.Array], number_of_records: int | jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Draws one lot: indices int32 (capacity,), 0 where padded, and mask bool (capacity,).

        The `numbers` are those of `numbers_of`, traced or not.
        """
        if self.lots is not None:
            return self.lots.draw(key)
        rows = jnp.arange(self.capacity)
        if self.kind == POISSON_DENSE:
            words = threefry.random_bits(key, (UNIFORM_WORDS, self.size))
            member = numbers["certain"] | ~at_least(words, numbers["threshold"])
            indices, mask = compact(member, self.capacity)
            mask = mask & (rows < numbers["count"])
        else:
            ahead = UNIFORM_WORDS if self.kind == POISSON else 0
            draws, _ = draws_for_distinct(self.size, self.capacity)
            words = threefry.random_bits(key, (ahead + draws,))
            indices, distinct = distinct_records(words[ahead:], self.size, self.capacity)
            count = jnp.minimum(numbers["count"], distinct)
            if self.kind == POISSON:
                reached = at_least(words[:ahead, None], numbers["thresholds"])
                count = jnp.minimum(count, jnp.sum(reached, dtype=jnp.int32))
            mask = rows < count
        mask = mask & (indices < number_of_records)
        return jnp.where(mask, indices, 0), mask


def family_of(lots: PoissonLots | FixedLots) -> LotFamily:
    """Returns the smallest family that holds `lots`; it may hold others of less capacity."""
    if isinstance(lots, FixedLots):
        size = lots.dataset_size
        if 2 * lots.lot_size > size:
            return LotFamily(ALONE, size, lots.lot_size, lots)
        return LotFamily(FIXED, size, lots.lot_size)
    size = lots.dataset_size_bound
    kind = POISSON_DENSE if 2 * lots.capacity > size else POISSON
    return LotFamily(kind, size, lots.capacity)
