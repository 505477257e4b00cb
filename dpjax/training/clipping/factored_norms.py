"""Squared norms of sums of outer products, each with a bound on its rounding.

Clipping promises that no contribution exceeds the clip norm, so a norm must not come out too small.
Sums of squares cannot: their rounding is covered by the allowance in `clipping`. Where terms
cancel it is another matter: `sum_{t,u} <left[t], left[u]> <right[t], right[u]>` may be tiny beside
its terms, and its rounding is relative to them. So every norm here comes with a slack, an upper
bound on what rounding may have taken away, from the running sizes of what was added; clipping uses
the sum of the two. All functions are for one example and mapped over the batch.
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

# Rounding of one float32 inner product relative to the norms of its factors: 16 units. Blocked
# products of up to some thousand terms stay well below it.
_PRODUCT_ROUNDING = 2.0**-20
# Tables looked up at more positions than this are sorted; for fewer, comparing all pairs is faster.
_MOST_PAIRED_POSITIONS = 256

Rows = tuple[jax.Array, jax.Array]


class SquaredNorm(NamedTuple):
    """A squared norm as computed, and a bound on what rounding may have taken from it."""

    value: jax.Array
    slack: jax.Array


def sum_of_squares(array: jax.Array, axes: Sequence[int] | None = None) -> jax.Array:
    """Sums squares over some axes (all by default)."""
    return jnp.sum(jnp.square(widened(array)), axis=None if axes is None else tuple(axes))


def underflow(elements: int, dtype: jax.typing.DTypeLike) -> float:
    """What the squares of this many elements can lose by falling under the smallest normal."""
    return elements * float(jnp.finfo(dtype).tiny)


def whole_squared_norm(gradient: jax.Array) -> SquaredNorm:
    """Of a gradient that was formed."""
    squares = sum_of_squares(gradient.reshape(-1))
    return SquaredNorm(squares, jnp.full_like(squares, underflow(gradient.size, squares.dtype)))


def outer_norm(terms: Sequence[OuterProducts], pairs: Sequence[Rows]) -> SquaredNorm:
    """One position in each block: the product of two squared norms."""
    del terms
    ((left, right),) = pairs
    # Flat, since a reduction over several axes may be compiled to a copy and a reduction.
    left, right = (rows.reshape(rows.shape[0], -1) for rows in (left, right))
    left_squares, right_squares = sum_of_squares(left, (1,)), sum_of_squares(right, (1,))
    value = jnp.sum(left_squares * right_squares)
    # A factor's squares may underflow where the other factor is large.
    tiny = underflow(1, value.dtype)
    most = (left_squares + tiny * left.shape[-1]) * (right_squares + tiny * right.shape[-1])
    return SquaredNorm(value, jnp.maximum(jnp.sum(most) - value, 0) + tiny * left.shape[0])


def touched_rows_norm(terms: Sequence[OuterProducts], pairs: Sequence[Rows]) -> SquaredNorm:
    """One-hot left rows: adds up the right rows of each index, then squares."""
    ((index, rows),) = pairs
    features = terms[0].left.features
    index = drop_outside(index, features)
    rows = jnp.where(index[:, :, None] < features, rows, 0)
    if index.shape[1] > _MOST_PAIRED_POSITIONS:
        totals = jax.vmap(_totals_by_sorting)(index, rows)
    else:
        same = index[:, :, None] == index[:, None, :]
        totals = jnp.einsum("stu,suc->stc", same.astype(rows.dtype), rows, precision=HIGHEST)
        first = ~jnp.any(jnp.tril(same, -1), axis=2)
        totals = jnp.where(first[:, :, None], totals, 0)
    return whole_squared_norm(totals)


def _totals_by_sorting(index: jax.Array, rows: jax.Array) -> jax.Array:
    """Totals of rows with equal index, (positions, columns)."""
    order = jnp.argsort(index)
    ordered = index[order]
    segment = jnp.cumsum(jnp.concatenate([jnp.zeros(1, bool), ordered[1:] != ordered[:-1]]))
    return jnp.zeros_like(rows).at[segment].add(rows[order])


def own_gram_norm(term: OuterProducts, left: jax.Array, right: jax.Array) -> SquaredNorm:
    """One term, by inner products of its operands' own making; operands as they are held."""

    def inner(operand: Operand, array: jax.Array) -> jax.Array:
        if operand.inner is not None:
            return operand.inner(array)
        rows = operand.rows(array)
        return jnp.einsum("stf,suf->stu", rows, rows, precision=HIGHEST)

    lefts, rights = inner(term.left, left), inner(term.right, right)
    # A little more than the root of a rounded square: that rounding is relative to it as well.
    left_sizes, right_sizes = (
        jnp.sqrt(jnp.maximum(jnp.diagonal(each, axis1=1, axis2=2), 0)) for each in (lefts, rights)
    )
    value = jnp.sum(lefts * rights)
    most = _pairs(left_sizes, left_sizes) * jnp.abs(rights)
    most += jnp.abs(lefts) * _pairs(right_sizes, right_sizes)
    scale = term.scale**2
    tiny = underflow(math.prod(term.layout.shape), value.dtype)
    slack = _PRODUCT_ROUNDING * (1 + _PRODUCT_ROUNDING) * jnp.sum(most) + tiny
    return SquaredNorm(scale * jnp.maximum(value, 0), scale * slack + tiny)


def gram_norm(terms: Sequence[OuterProducts], pairs: Sequence[Rows]) -> SquaredNorm:
    """Inner products between the positions of all terms.

    The slack is the derivative of the double sum with respect to its inner products times the
    rounding of each.
    """
    groups = _grouped(terms, pairs)
    value = slack = jnp.zeros((), pairs[0][1].dtype)
    for number, (operands, (left, right)) in enumerate(groups):
        for other_operands, (other_left, other_right) in groups[: number + 1]:
            count = 2 if operands is not other_operands else 1
            lefts = _inner(operands[0], left, other_operands[0], other_left)
            rights = _inner(operands[1], right, other_operands[1], other_right)
            value += count * jnp.sum(lefts * rights)
            left_sizes = _sizes(operands[0], left), _sizes(other_operands[0], other_left)
            right_sizes = _sizes(operands[1], right), _sizes(other_operands[1], other_right)
            most = _pairs(*left_sizes) * jnp.abs(rights) + jnp.abs(lefts) * _pairs(*right_sizes)
            slack += count * jnp.sum(most)
    tiny = underflow(math.prod(terms[0].layout.shape), value.dtype)
    return SquaredNorm(jnp.maximum(value, 0), _PRODUCT_ROUNDING * slack + tiny)


def entrywise_norm(
    terms: Sequence[OuterProducts],
    pairs: Sequence[Rows],
    weights: Sequence[jax.Array | None],
) -> SquaredNorm:
    """One position in each block of every term, each multiplied by a weight entry by entry.

    With weights D_k: sum_{k,m} sum_{r,c} (left_k left_m)[r] (D_k D_m)[r, c] (right_k right_m)[c], a
    product of the batch with matrices that it shares. Terms may cancel; the slack is relative to
    the square of the sum of their norms, which also bounds what the rounding of the terms' separate
    sums over the batch adds.
    """
    value = jnp.zeros((), pairs[0][1].dtype)
    sizes, lost = value, value
    blocks = [
        jnp.ones((), value.dtype)
        if weight is None
        else term.layout.disassemble(weight).astype(value.dtype)
        for term, weight in zip(terms, weights, strict=True)
    ]
    shape = (terms[0].stack, terms[0].left.features, terms[0].right.features)
    rows = [(left[:, 0], right[:, 0]) for left, right in pairs]
    tiny = underflow(1, value.dtype)
    for number, (left, right) in enumerate(rows):
        for other, (other_left, other_right) in enumerate(rows[: number + 1]):
            matrix = jnp.broadcast_to(blocks[number] * blocks[other], shape)
            picked = jnp.einsum("sr,src->sc", left * other_left, matrix, precision=HIGHEST)
            inner = jnp.sum(picked * right * other_right)
            value += inner if other == number else 2 * inner
        own = jnp.square(blocks[number])
        left_squares, right_squares = sum_of_squares(left), sum_of_squares(right)
        weight_squares = jnp.sum(jnp.broadcast_to(own, shape))
        sizes += jnp.sqrt(jnp.maximum(inner, 0))
        # What the squares, and the sums over one factor, can lose by underflow.
        count = math.prod(shape)
        lost += tiny * (
            left_squares * right_squares
            + left_squares * weight_squares
            + (weight_squares + count) * right_squares
        )
        lost += count * tiny
    slack = _PRODUCT_ROUNDING * jnp.square(sizes) + len(rows) * lost
    return SquaredNorm(jnp.maximum(value, 0), slack)


def with_shared(
    norm: SquaredNorm,
    terms: Sequence[OuterProducts],
    pairs: Sequence[Rows],
    weights: Sequence[jax.Array | None],
    common: jax.Array,
) -> SquaredNorm:
    """Adds a term that all examples share to the gradient whose squared norm is given."""
    inner = most = jnp.zeros((), norm.value.dtype)
    whole = sum_of_squares(common)
    for term, (left, right), weight in zip(terms, pairs, weights, strict=True):
        shared = common if weight is None else common * weight
        size = jnp.sqrt(sum_of_squares(shared))
        blocks = term.layout.disassemble(shared)
        if term.left.indices:
            picked = jax.vmap(lambda index, block: block.at[index].get(mode="fill", fill_value=0))(
                drop_outside(left, term.left.features), blocks
            )
        else:
            picked = jnp.einsum("str,src->stc", left, blocks, precision=HIGHEST)
        inner += jnp.sum(picked * right)
        most += size * jnp.sum(_sizes(term.left, left) * _sizes(term.right, right))
    value = norm.value + 2 * inner + whole
    lost = _PRODUCT_ROUNDING * (norm.value + 2 * most + whole)
    return SquaredNorm(jnp.maximum(value, 0), norm.slack + lost)


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


def _pairs(first: jax.Array, second: jax.Array) -> jax.Array:
    return first[:, :, None] * second[:, None, :]
