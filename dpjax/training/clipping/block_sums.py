"""Sums over the rows of a batch whose change by one row is proven.

A float32 sum of many rows sticks or slides: it stands at a power of two, and one row of 0.001 clip
norms decides whether thousands of others are rounded up or down. So at most some 128 rows are added
in float32, a block; blocks are added in pairs of floats, which lose next to nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.training.clipping.factored_terms import widened
from dpjax.training.clipping.rounding import UNIT, WIDE_UNIT, rounding

Pair = tuple[jax.Array, jax.Array | None]
"""A rounded sum, and what rounding took from it; None for nothing."""

_BUDGET, _BUDGET_WHERE_CANCELLING = 2.0**15, 2.0**12
"""Most roundings, in units of 2**-24 of a clip norm, by which a row may move the sum of its blocks:
1/512 of the clip norm is held back for these, or 1/4096 of the norms that cancel."""

_AT_ONCE = 4
"""Blocks that are added to the total in one pass over it."""


@dataclasses.dataclass(frozen=True)
class Addends:
    """Says what one row adds to a parameter's sum.

    Attributes:
      number: outer products or terms that a row adds to an entry; 1 where it adds a gradient.
      cancels: whether these may cancel, so that they are longer than the gradient.
      scattered: whether they are added at indices, to a table: then in float64, in one pass.
    """

    number: int = 1
    cancels: bool = False
    scattered: bool = False

    def rows_of_block(self, size: int, moved: int) -> int:
        """Returns how many rows of a batch of `size` form a block; a row moves `moved` blocks."""
        if self.scattered:
            return size
        budget = _BUDGET_WHERE_CANCELLING if self.cancels else _BUDGET
        rows = 1
        while (4 * moved * rows - 1) * 2 * rows * self.number <= budget:
            rows *= 2
        return min(rows, size)

    def own_rounding(self, size: int, moved: int) -> float:
        """Bounds what rounding adds to a row's influence on the blocks that it moves."""
        rows = self.rows_of_block(size, moved)
        terms = rows * self.number + 4
        if self.scattered:
            return (2 * moved * rows - 1) * rounding(terms, WIDE_UNIT)
        return (2 * moved * rows - 1) * rounding(terms)


def moved_blocks(size: int, rows_in_sum: int) -> int:
    """Returns how many blocks of a sum change when a row comes or goes.

    Its own block changes; if a lot is summed in turns, so does the block of the row that takes its
    place (`places.in_turns`).
    """
    return 2 if rows_in_sum > size else 1


class Influence(NamedTuple):
    """Bounds what rounding adds to the influence of one row on a sum; see `influence_of_rounding`.

    `plain` is in norms of a row's contribution, `cancelling` in sums of the norms of what a row
    adds, where these may cancel.
    """

    plain: float
    cancelling: float


def influence_of_rounding(
    addends: Iterable[Addends], size: int, rows_in_sum: int, alone: bool
) -> Influence:
    """Bounds what rounding adds to the influence of one row on a sum.

    Formal guarantees:
      Let a row's contribution be at most c, over all parameters, and the norms of all that it adds
      at most c / a together. Let two lots be alike but for one row. Their sums, pairs of floats,
      differ by at most the row's own contribution plus `(plain + cancelling / a) c`, whatever the
      order of additions within a block.

      *Proof.* (i) Blocks with the same rows at the same places have equal sums, bit for bit, and
      cancel: a block's program is the same and reads nothing else. (ii) At most `m = moved_blocks`
      blocks of k rows are left in each lot, 2mk - 1 rows in all. Their exact sums differ by the
      row's contribution, and each computed sum is off its exact one by at most
      `rounding(k T + 4)` of the norms of its addends: T from each row, its scale, weights of
      entries and a shared term. (iii) Adding a block to the total loses at most 2**-46 of the norms
      added so far, and a sum in float64 that is cut into a pair 2**-48, of at most n rows in either
      lot. Parameters with blocks of different sizes are different entries of the sum: their bounds
      (ii) are added as squares. A table that is looked up and multiplied as well has both sums in
      its entries: those of sums in float64 are added.

    Args:
      addends: those of all parameters.
      size, rows_in_sum: rows of one batch, and of all batches that are added up, as pairs.
      alone: whether the rounded sum is used without what rounding took from it.
    """
    moved, kinds = moved_blocks(size, rows_in_sum), set(addends)
    plain = _of_blocks([kind for kind in kinds if not kind.cancels], size, moved)
    cancelling = _of_blocks([kind for kind in kinds if kind.cancels], size, moved)
    least = min((kind.rows_of_block(size, moved) for kind in kinds), default=size)
    additions = 5 * -(-rows_in_sum // least) + 4
    lost = additions * 2.0**-46 + 2.0**-48 + (UNIT if alone else 0.0)
    between = 2 * rows_in_sum * lost * (1 + plain + cancelling)
    if cancelling:
        return Influence(plain, cancelling + between)
    return Influence(plain + between, 0.0)


def _of_blocks(kinds: list[Addends], size: int, moved: int) -> float:
    """Bounds the rounding of the blocks that a row moves, of parameters of these kinds."""
    most: dict[int, float] = {}
    for kind in kinds:
        rows = 0 if kind.scattered else kind.rows_of_block(size, moved)
        most[rows] = max(most.get(rows, 0.0), kind.own_rounding(size, moved))
    # A table may have entries that are scattered to and multiplied as well.
    return most.pop(0, 0.0) + math.hypot(*most.values())


def blocked_sum(
    form: Callable[..., jax.Array],
    rows: tuple[jax.Array, ...],
    weights: jax.Array,
    addends: Addends,
    moved: int,
) -> Pair:
    """Sums weight times gradient over a batch, block by block; see `influence_of_rounding`.

    `form(*rows, weights)` sums a batch in float32: arrays with a leading batch axis and weights
    (batch,). Takes and gives what `form` does, in a pair.
    """
    size = weights.shape[0]
    if addends.scattered and not any(each.dtype == jnp.float64 for each in rows):
        return _in_float64(form, rows, weights)
    block = addends.rows_of_block(size, moved)
    if size <= block:
        return form(*rows, weights), None
    given = (*rows, weights)
    number = -(-size // block)
    if jax.default_backend() != "cpu" and number <= _AT_ONCE:
        # To cut rows for a library's product would copy them.
        if size <= block + block // 8:
            first = jnp.where(jnp.arange(size) < block, weights, 0)
            return add_up([form(*rows, first), form(*(each[block:] for each in given))])
        if size % number == 0:
            even = [each.reshape(number, -1, *each.shape[1:]) for each in given]
            return add_up(list(jax.vmap(form)(*even)))
    whole = size // block
    # A few blocks are cut at fixed places; of more the compiler gets a loop.
    if whole <= _AT_ONCE:
        cuts = range(0, size, block)
        return add_up([form(*(each[cut : cut + block] for each in given)) for cut in cuts])

    def part(number: jax.Array) -> jax.Array:
        first = number * np.uint32(block)
        return form(*(jax.lax.dynamic_slice_in_dim(each, first, block) for each in given))

    def turn(number: jax.Array, total: Pair) -> Pair:
        first = number * np.uint32(_AT_ONCE)
        return add_up([part(first + np.uint32(place)) for place in range(_AT_ONCE)], total)

    turns = np.uint32(whole // _AT_ONCE)
    shape = jax.eval_shape(part, jax.ShapeDtypeStruct((), jnp.uint32))
    zero = jnp.zeros(shape.shape, shape.dtype)
    total = jax.lax.fori_loop(np.uint32(0), turns, turn, (zero, zero))
    cuts = range(int(turns) * _AT_ONCE * block, size, block)
    return add_up([form(*(each[cut : cut + block] for each in given)) for cut in cuts], total)


def missing_rows(size: int) -> int:
    """Returns how many rows to add for blocks of one size; 0 if few rows exceed one block."""
    block = Addends().rows_of_block(size, 1)
    return 0 if size <= block + block // 8 else -size % -(-size // block)


def _in_float64(form: Callable[..., jax.Array], rows: tuple, weights: jax.Array) -> Pair:
    """Sums a whole batch in float64, and returns the sum as two floats."""
    if jax.default_backend() == "tpu":
        raise NotImplementedError(
            "the gradient of a table that is looked up has no proven sum on a TPU: look rows up by "
            "a product with jax.nn.one_hot, or train on a CPU or GPU"
        )
    with jax.enable_x64(True):
        wide = [
            # Through float32: narrow numbers are those whose norm was taken.
            widened(each).astype(jnp.float64) if jnp.issubdtype(each.dtype, jnp.floating) else each
            for each in (*rows, weights)
        ]
        return in_two_floats(form(*wide))


def in_two_floats(total: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns a float64 array as a pair of floats, off by 2**-48 of it; under `enable_x64`.

    Rounds by `reduce_precision`, which compilers keep. A conversion to float32 and back may be
    dropped by one that is free to keep more precision, and the second float would be lost.
    """
    high = jax.lax.reduce_precision(total, exponent_bits=8, mantissa_bits=23)
    return high.astype(jnp.float32), (total - high).astype(jnp.float32)


def joined(pairs: list[Pair]) -> Pair:
    """Adds up the parts of one sum."""
    if len(pairs) == 1:
        return pairs[0]
    (high, low), *others = pairs
    total = high, jnp.zeros_like(high) if low is None else low
    for new, rest in others:
        total = added(*total, new) if rest is None else added(*total, new, rest)
    return total


def add_up(parts: list[jax.Array], total: Pair | None = None) -> Pair:
    """Adds arrays to a total that is kept as a pair, none by default."""
    if total is None:
        total, parts = (parts[0], jnp.zeros_like(parts[0])), parts[1:]
    for part in parts:
        total = added(*total, part)
    return total


def added(high: jax.Array, low: jax.Array, new: jax.Array, *rest: jax.Array) -> Pair:
    """Adds an array to a pair (rounded sum, what rounding took from it).

    `rest`, if given, is what rounding took from `new`. The second of a pair is at most half a unit
    in the last place of the first; an addition loses less than 2**-46 of the total. Adding up
    single floats would round at each addition, and for equal parts every time the same way.
    """
    high, error = _two_sum(high, new)
    return _two_sum(high, sum(rest, low) + error)


def _two_sum(left: jax.Array, right: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the rounded sum and, exactly, what rounding took (Knuth, TAOCP 2, 4.2.2B)."""
    rounded = left + right
    of_right = rounded - left
    error = (left - (rounded - of_right)) + (right - of_right)
    # An infinite sum stays infinite.
    return rounded, jnp.where(jnp.isfinite(rounded), error, 0)
