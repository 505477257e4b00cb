"""Norms of sums of outer products, each with an upper bound and with what its sum adds up.

Clipping promises that no contribution exceeds the clip norm, so a norm must not come out too small.
Three things could make it so, and every norm here is bounded against them:

* squares underflow, or overflow. Factors are first divided by a power of two, which rounds
  nothing, so that their largest entry is in [1, 4) (`units.py`); a norm is in such units, too;
* `sum_{t,u} <left[t], left[u]> <right[t], right[u]>` may be tiny beside its terms where they
  cancel, and its rounding is relative to them;
* what cancels in one example's gradient cancels in the sum over examples only after it was added
  up, and rounded. So a norm also tells what is added.

All functions are for one example and mapped over the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpjax.training.clipping.factored_terms import (
    HIGHEST,
    Operand,
    OuterProducts,
    drop_outside,
    widened,
)
from dpjax.training.clipping.units import scaled

# Rounding of a float32 inner product between positions, relative to the norms of its factors: 16
# units for each of two. Blocked products of up to some thousand terms stay well below it.
_PRODUCT_ROUNDING = 2.0**-19
_UNDERFLOW = 2.0**-114
"""What one product of entries can lose by underflow, times what may multiply it."""
# Tables looked up at more positions than this are sorted; for fewer, comparing all pairs is faster.
_MOST_PAIRED_POSITIONS = 256

Rows = tuple[jax.Array, jax.Array]


class Norm(NamedTuple):
    """A norm in units of `2**exponent`; scalars, or (batch,) once mapped.

    Attributes:
      size: as computed.
      upper: at least the true one, and at least `size` up to what `ROUNDING_ALLOWANCE` holds.
      added: of what the sum over examples adds up separately, the sum of the norms.
      exponent: int32.
    """

    size: jax.Array
    upper: jax.Array
    added: jax.Array
    exponent: jax.Array


class Raw(NamedTuple):
    """A squared norm as computed, and the sum of the norms of what is added up separately."""

    square: jax.Array
    added: jax.Array


def bounded(raw: Raw, products: float, doubt: jax.Array, exponent: jax.Array) -> Norm:
    """The norm of a raw square.

    Formal guarantees:
      `upper` is at least the true norm, up to a relative `2**-18` (`ROUNDING_ALLOWANCE`), of every
      finite float32 input for which the rounding of inner products stays within what is granted
      for it, as in products of up to some thousand terms. Let v be the square without rounding, of
      the factors as they were scaled. What rounding took from v is at most
      `_PRODUCT_ROUNDING * added**2` where terms may cancel, and relative to v where none do. What
      underflow took of it is at most `_UNDERFLOW` for each of the `products` of two entries of each
      factor, all below 8: a product that is flushed loses `2**-126`, and is multiplied by less than
      `2**12`. Factors as they were scaled differ from the true ones by subnormal entries alone,
      which a machine may read as zeros; that moves the norm by at most `doubt`. So does the
      triangle inequality give the true norm <= sqrt(v) + doubt.

    Args:
      raw: see there.
      products: of entries that `raw.square` adds up, at most.
      doubt: in the units of the norm.
      exponent: of these units.
    """
    size = jnp.sqrt(jnp.maximum(raw.square, 0))
    lost = _PRODUCT_ROUNDING * jnp.square(raw.added) + products * _UNDERFLOW
    upper = jnp.sqrt(jnp.maximum(raw.square, 0) + lost) + doubt
    return Norm(size, upper, jnp.maximum(raw.added, upper), exponent)


def of_all(norms: Sequence[Norm]) -> Norm:
    """The norm of the whole of which these are the norms of parts, such as parameters.

    Parts may add up to nothing that underflows: each part's upper bound counts at least `2**-62`
    units of the largest.
    """
    exponent = norms[0].exponent
    for norm in norms[1:]:
        exponent = jnp.maximum(exponent, norm.exponent)
    root = []
    for field, least in (("size", 0.0), ("upper", 2.0**-62), ("added", 2.0**-62)):
        parts = [scaled(getattr(norm, field), norm.exponent - exponent) for norm in norms]
        root.append(jnp.sqrt(sum(jnp.square(jnp.maximum(part, least)) for part in parts)))
    size, upper, added = root
    return Norm(size, upper, added, exponent)


def sum_of_squares(array: jax.Array, axes: Sequence[int] | None = None) -> jax.Array:
    """Sums squares over some axes (all by default)."""
    return jnp.sum(jnp.square(widened(array)), axis=None if axes is None else tuple(axes))


def outer_square(pairs: Sequence[Rows]) -> Raw:
    """One position in each block: the product of two squared norms."""
    ((left, right),) = pairs
    # Flat, since a reduction over several axes may be compiled to a copy and a reduction.
    left, right = (rows.reshape(rows.shape[0], -1) for rows in (left, right))
    square = jnp.sum(sum_of_squares(left, (1,)) * sum_of_squares(right, (1,)))
    return Raw(square, jnp.zeros_like(square))


def touched_rows_square(terms: Sequence[OuterProducts], pairs: Sequence[Rows]) -> Raw:
    """One-hot left rows: adds up the right rows of each index, then squares."""
    ((index, rows),) = pairs
    features = terms[0].left.features
    index = drop_outside(index, features)
    # The norms of the rows are added up in one more column.
    rows = jnp.concatenate([rows, jnp.sqrt(sum_of_squares(rows, (2,)))[:, :, None]], 2)
    rows = jnp.where(index[:, :, None] < features, rows, 0)
    if index.shape[1] > _MOST_PAIRED_POSITIONS:
        totals = jax.vmap(_totals_by_sorting)(index, rows)
    else:
        same = index[:, :, None] == index[:, None, :]
        totals = jnp.einsum("stu,suc->stc", same.astype(rows.dtype), rows, precision=HIGHEST)
        first = ~jnp.any(jnp.tril(same, -1), axis=2)
        totals = jnp.where(first[:, :, None], totals, 0)
    return Raw(sum_of_squares(totals[:, :, :-1]), jnp.sqrt(sum_of_squares(totals[:, :, -1])))


def _totals_by_sorting(index: jax.Array, rows: jax.Array) -> jax.Array:
    """Totals of rows with equal index, (positions, columns)."""
    order = jnp.argsort(index)
    ordered = index[order]
    segment = jnp.cumsum(jnp.concatenate([jnp.zeros(1, bool), ordered[1:] != ordered[:-1]]))
    return jnp.zeros_like(rows).at[segment].add(rows[order])


def own_gram_square(term: OuterProducts, left: jax.Array, right: jax.Array) -> Raw:
    """One term, by inner products of its operands' own making; operands as they are held."""

    def inner(operand: Operand, array: jax.Array) -> jax.Array:
        if operand.inner is not None:
            return operand.inner(array)
        rows = operand.rows(array)
        return jnp.einsum("stf,suf->stu", rows, rows, precision=HIGHEST)

    lefts, rights = inner(term.left, left), inner(term.right, right)
    left_sizes, right_sizes = (
        jnp.sqrt(jnp.maximum(jnp.diagonal(each, axis1=1, axis2=2), 0)) for each in (lefts, rights)
    )
    # A little more than the roots of rounded squares: that rounding is relative to them as well.
    added = (1 + _PRODUCT_ROUNDING) * _over_positions(left_sizes * right_sizes)
    return Raw(term.scale**2 * jnp.sum(lefts * rights), abs(term.scale) * added)


def gram_square(terms: Sequence[OuterProducts], pairs: Sequence[Rows]) -> Raw:
    """Inner products between the positions of all terms."""
    groups = _grouped(terms, pairs)
    square, sizes = jnp.zeros((), pairs[0][1].dtype), jnp.zeros((), pairs[0][1].dtype)
    for number, (operands, (left, right)) in enumerate(groups):
        for other_operands, (other_left, other_right) in groups[: number + 1]:
            count = 2 if operands is not other_operands else 1
            lefts = _inner(operands[0], left, other_operands[0], other_left)
            rights = _inner(operands[1], right, other_operands[1], other_right)
            square += count * jnp.sum(lefts * rights)
        products = _sizes(operands[0], left) * _sizes(operands[1], right)
        sizes = sizes + jnp.sum(products, axis=1)
    return Raw(square, jnp.sqrt(jnp.sum(jnp.square(sizes))))


def entrywise_square(
    terms: Sequence[OuterProducts],
    pairs: Sequence[Rows],
    weights: Sequence[jax.Array | None],
) -> Raw:
    """One position in each block of every term, each multiplied by a weight entry by entry.

    With weights D_k: sum_{k,m} sum_{r,c} (left_k left_m)[r] (D_k D_m)[r, c] (right_k right_m)[c], a
    product of the batch with matrices that it shares.
    """
    square = jnp.zeros((), pairs[0][1].dtype)
    sizes = square
    blocks = [
        jnp.ones((), square.dtype)
        if weight is None
        else term.layout.disassemble(weight).astype(square.dtype)
        for term, weight in zip(terms, weights, strict=True)
    ]
    shape = (terms[0].stack, terms[0].left.features, terms[0].right.features)
    rows = [(left[:, 0], right[:, 0]) for left, right in pairs]
    for number, (left, right) in enumerate(rows):
        for other, (other_left, other_right) in enumerate(rows[: number + 1]):
            matrix = jnp.broadcast_to(blocks[number] * blocks[other], shape)
            picked = jnp.einsum("sr,src->sc", left * other_left, matrix, precision=HIGHEST)
            inner = jnp.sum(picked * right * other_right)
            square += inner if other == number else 2 * inner
        sizes += jnp.sqrt(jnp.maximum(inner, 0))
    return Raw(square, sizes)


def with_shared(
    raw: Raw,
    terms: Sequence[OuterProducts],
    pairs: Sequence[Rows],
    weights: Sequence[jax.Array | None],
    common: jax.Array,
) -> Raw:
    """Adds a term that all examples share to the gradient whose squared norm is given."""
    inner = jnp.zeros((), raw.square.dtype)
    whole = sum_of_squares(common)
    for term, (left, right), weight in zip(terms, pairs, weights, strict=True):
        blocks = term.layout.disassemble(common if weight is None else common * weight)
        if term.left.indices:
            picked = jax.vmap(lambda index, block: block.at[index].get(mode="fill", fill_value=0))(
                drop_outside(left, term.left.features), blocks
            )
        else:
            picked = jnp.einsum("str,src->stc", left, blocks, precision=HIGHEST)
        inner += jnp.sum(picked * right)
    own = jnp.maximum(raw.added, jnp.sqrt(jnp.maximum(raw.square, 0)))
    return Raw(raw.square + 2 * inner + whole, own + jnp.sqrt(whole))


def _grouped(
    terms: Sequence[OuterProducts], pairs: Sequence[Rows]
) -> list[tuple[tuple[Operand, Operand], Rows]]:
    """Puts the positions of all terms with one-hot rows, and of all others, one after another."""
    groups = []
    for indices in (True, False):
        members = [i for i, term in enumerate(terms) if term.left.indices == indices]
        if members:
            rows = tuple(jnp.concatenate([pairs[i][side] for i in members], 1) for side in (0, 1))
            groups.append((terms[members[0]].operands, rows))
    return groups


def _inner(
    operand: Operand, rows: jax.Array, other_operand: Operand, other_rows: jax.Array
) -> jax.Array:
    """Inner products of every row with every other row: (stack, positions, other positions)."""
    if operand.indices and other_operand.indices:
        inside = (rows >= 0) & (rows < operand.features)
        same = rows[:, :, None] == other_rows[:, None, :]
        return (same & inside[:, :, None]).astype(jnp.float32)
    if other_operand.indices:
        return jnp.swapaxes(_inner(other_operand, other_rows, operand, rows), 1, 2)
    if operand.indices:
        return jax.vmap(
            lambda index, dense: jnp.take(dense, index, axis=1, mode="fill", fill_value=0).T
        )(drop_outside(rows, operand.features), other_rows)
    return jnp.einsum("stf,suf->stu", rows, other_rows, precision=HIGHEST)


def _sizes(operand: Operand, rows: jax.Array) -> jax.Array:
    """Norms of the rows, (stack, positions); of one-hot rows at most 1."""
    if operand.indices:
        return jnp.ones(rows.shape, jnp.float32)
    return jnp.sqrt(jnp.sum(jnp.square(rows), axis=-1))


def _over_positions(sizes: jax.Array) -> jax.Array:
    """Of (stack, positions): positions are added up in one block, blocks lie side by side."""
    return jnp.sqrt(jnp.sum(jnp.square(jnp.sum(sizes, axis=1))))


def products_of(terms: Sequence[OuterProducts]) -> float:
    """How many products of entries a squared norm of terms adds up, at most."""
    first, positions = terms[0], sum(term.positions for term in terms)
    sizes = float(first.stack) * first.left.features * first.right.features
    return sizes * float(positions) ** 2 + math.prod(first.layout.shape)
