"""Squared norms of sums of outer products, with upper bounds on them and on the parts they add up.

Clipping promises that no contribution exceeds the clip norm, so a norm must not come out too small.
Three things could make it so, and every norm here comes with bounds on them:

* squares underflow, and one factor's may where the other factor is huge;
* sums of squares round, the more the longer they are, and
  `sum_{t,u} <left[t], left[u]> <right[t], right[u]>` may be tiny beside its terms where they
  cancel: its rounding is relative to them;
* what cancels in one example's gradient cancels in the sum over examples only after it was added
  up, and rounded. So a norm also bounds the norms of what is added.

All bounds hold for every order of summation (`rounding`). A norm whose square overflows, and one
with a factor whose square does, is infinite or NaN. All functions are for one example and mapped
over the batch.
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
from dpjax.training.clipping.rounding import long_sum, rounding, terms_of_sum

# Relative to what is added up: covers some last operations, and rounding of the bounds.
_FEW_ROUNDINGS = 2.0**-21
# From so many products of entries on, over all positions, the closer of two bounds is computed.
_LONG_PRODUCT = 2**15
# Tables looked up at more positions than this are sorted; for fewer, comparing all pairs is faster.
_MOST_PAIRED_POSITIONS = 256

Rows = tuple[jax.Array, jax.Array]


class SquaredNorm(NamedTuple):
    """Holds a squared norm and what bounds it; scalars, or (batch,) once mapped."""

    value: jax.Array  # as computed
    slack: jax.Array  # at least what rounding and underflow may have taken from it
    # At least the square of the sum of the norms of what the batch sum adds for this example.
    added: jax.Array


def _alone(value: jax.Array, slack: jax.Array | float) -> SquaredNorm:
    """Bounds the squared norm of a gradient that the batch sum adds as a whole."""
    return SquaredNorm(value, jnp.zeros_like(value) + slack, value + slack)


def _of_parts(
    value: jax.Array,
    added: jax.Array,
    count: float,
    error: float,
    off: jax.Array | float = math.inf,
) -> SquaredNorm:
    """Bounds a squared norm whose parts may cancel: at most `count` products of entries.

    Formal guarantees:
      `value + slack` is at least the true square where sums of products are off by at most `error`
      of the square of `added`, or by `off`, whichever is less, beside `_FEW_ROUNDINGS` of that
      square; and by `n` of the smallest normal numbers for each sum of n products, where underflow
      flushed products of entries. The latter is a fourth of `_FEW_ROUNDINGS` at most, since `sizes`
      counts no norm below `2**12` roots of these.

    `added` is at least the sum of the norms of the parts, as products of `sizes`.
    """
    square = jnp.square(added)
    slack = jnp.minimum(error * square, off) + _FEW_ROUNDINGS * square
    slack += underflow(count, value.dtype)
    value = jnp.maximum(value, 0)
    return SquaredNorm(value, slack, jnp.maximum(square, value + slack))


def sum_of_squares(array: jax.Array, axes: Sequence[int] | None = None) -> jax.Array:
    """Sums squares over some axes (all by default); off by `error_of_squares` of the sum."""
    return long_sum(jnp.square(widened(array)), axes)


def error_of_squares(*lengths: float) -> float:
    """Bounds the relative error of a product of sums of squares of so many numbers each.

    Each square is rounded too, and so is the product.
    """
    return rounding(sum(terms_of_sum(length) + 2 for length in lengths))


def underflow(elements: float, dtype: jax.typing.DTypeLike) -> float:
    """Bounds what squares of this many elements lose by falling under the smallest normal."""
    return elements * float(jnp.finfo(dtype).tiny)


def sizes(squares: jax.Array, features: int) -> jax.Array:
    """Returns norms of rows of so many entries from their squares, never too small."""
    found = jnp.sqrt(jnp.maximum(squares, 0) + underflow(2.0**24 * features, squares.dtype))
    return found * (1 + rounding(features + 2))


def whole_squared_norm(gradient: jax.Array) -> SquaredNorm:
    """Computes the squared norm of a gradient that was formed."""
    squares = sum_of_squares(gradient.reshape(-1))
    error = error_of_squares(gradient.size)
    return _alone(squares, error * squares + underflow(gradient.size, squares.dtype))


def outer_norm(terms: Sequence[OuterProducts], pairs: Sequence[Rows]) -> SquaredNorm:
    """Takes the norm of one position in each block: the product of its factors' norms."""
    del terms
    ((left, right),) = pairs
    # Flat, since a reduction over several axes may be compiled to a copy and a reduction.
    left, right = (rows.reshape(rows.shape[0], -1) for rows in (left, right))
    left_squares, right_squares = sum_of_squares(left, (1,)), sum_of_squares(right, (1,))
    value = long_sum(left_squares * right_squares)
    # A factor's squares may underflow where the other factor is large: bound what is lost.
    tiny = underflow(1, value.dtype)
    most = (left_squares + tiny * left.shape[-1]) * (right_squares + tiny * right.shape[-1])
    error = error_of_squares(left.shape[-1], right.shape[-1], left.shape[0])
    slack = jnp.maximum(long_sum(most) * (1 + error) - value, 0) + tiny * left.shape[0]
    return _alone(value, slack)


def touched_rows_norm(terms: Sequence[OuterProducts], pairs: Sequence[Rows]) -> SquaredNorm:
    """Takes the norm for one-hot left rows: adds up the right rows of each index, then squares."""
    ((index, rows),) = pairs
    features, columns = terms[0].left.features, rows.shape[2]
    index = drop_outside(index, features)
    # The norms of the rows are added up in one more column.
    norms = sizes(sum_of_squares(rows, (2,)), columns)
    rows = jnp.concatenate([rows, norms[:, :, None]], 2)
    rows = jnp.where(index[:, :, None] < features, rows, 0)
    if index.shape[1] > _MOST_PAIRED_POSITIONS:
        totals = jax.vmap(_totals_by_sorting)(index, rows)
    else:
        same = index[:, :, None] == index[:, None, :]
        totals = jnp.einsum("stu,suc->stc", same.astype(rows.dtype), rows, precision=HIGHEST)
        # Positions with the same index hold the same total: keep it at the first, zero the others.
        first = ~jnp.any(jnp.tril(same, -1), axis=2)
        totals = jnp.where(first[:, :, None], totals, 0)
    positions = index.shape[1]
    added = _root_of_squares(totals[:, :, -1]) * (1 + rounding(positions + 1))
    off = rounding(positions)
    error = 2 * off + off**2 + 2 * error_of_squares(totals.size)
    return _of_parts(sum_of_squares(totals[:, :, :-1]), added, totals.size, error)


def _root_of_squares(numbers: jax.Array) -> jax.Array:
    """Returns the norm of numbers, never too small but for underflow."""
    return jnp.sqrt(sum_of_squares(numbers)) * (1 + error_of_squares(numbers.size))


def _totals_by_sorting(index: jax.Array, rows: jax.Array) -> jax.Array:
    """Adds up the rows of equal index, (positions, columns)."""
    order = jnp.argsort(index)
    ordered = index[order]
    segment = jnp.cumsum(jnp.concatenate([jnp.zeros(1, bool), ordered[1:] != ordered[:-1]]))
    return jnp.zeros_like(rows).at[segment].add(rows[order])


def own_gram_norm(term: OuterProducts, left: jax.Array, right: jax.Array) -> SquaredNorm:
    """Takes one term's norm by inner products, which its operands may have a faster way to form."""

    def inner(operand: Operand, array: jax.Array) -> jax.Array:
        if operand.inner is not None:
            return operand.inner(array)
        rows = operand.rows(array)
        return jnp.einsum("stf,suf->stu", rows, rows, precision=HIGHEST)

    lefts, rights = inner(term.left, left), inner(term.right, right)
    left_sizes, right_sizes = (
        sizes(jnp.diagonal(each, axis1=1, axis2=2), operand.features)
        for each, operand in zip((lefts, rights), term.operands, strict=True)
    )
    square = term.scale**2
    return _of_parts(
        square * long_sum(lefts * rights),
        abs(term.scale) * _added(left_sizes, right_sizes),
        products_of([term]) * max(square, 1.0),
        _error_of_inner(term.operands, lefts.size),
        square * _off_where_unlike(term.operands, lefts, rights, left_sizes, right_sizes),
    )


def gram_norm(terms: Sequence[OuterProducts], pairs: Sequence[Rows]) -> SquaredNorm:
    """Takes the norm by inner products between the positions of all terms."""
    groups = _grouped(terms, pairs)
    value = jnp.zeros((), pairs[0][1].dtype)
    off: jax.Array | float = math.inf
    all_sizes, length = [], 0.0
    for number, (operands, (left, right)) in enumerate(groups):
        own_sizes = _row_norms(operands[0], left), _row_norms(operands[1], right)
        all_sizes.append(own_sizes)
        for other_operands, (other_left, other_right) in groups[: number + 1]:
            count = 2 if operands is not other_operands else 1  # a pair counts in both orders
            lefts = _inner_products(operands[0], left, other_operands[0], other_left)
            rights = _inner_products(operands[1], right, other_operands[1], other_right)
            value += count * long_sum(lefts * rights)
            length += terms_of_sum(lefts.size)
            if len(groups) == 1:
                off = _off_where_unlike(operands, lefts, rights, *own_sizes)
    left_sizes, right_sizes = (jnp.concatenate(each, 1) for each in zip(*all_sizes, strict=True))
    error = max(_error_of_inner(operands, length) for operands, _ in groups)
    return _of_parts(value, _added(left_sizes, right_sizes), products_of(terms), error, off)


def _added(left_sizes: jax.Array, right_sizes: jax.Array) -> jax.Array:
    """Adds up the norms of outer products, (stack, positions) each; never too small."""
    summed = jnp.sum(left_sizes * right_sizes, axis=1)
    return _root_of_squares(summed) * (1 + rounding(left_sizes.shape[1] + 2))


def _error_of_inner(operands: tuple[Operand, Operand], pairs: float) -> float:
    """Bounds what rounding takes, relative to the square of `_added`.

    Inner products of left rows are off by `rounding(features)` of the rows' norms, as are those of
    right rows; one-hot rows are compared, without rounding. The products of so many pairs are then
    added up.
    """
    left, right = (0.0 if each.indices else rounding(each.features) for each in operands)
    return left + right + left * right + 2 * rounding(terms_of_sum(pairs))


def _off_where_unlike(
    operands: tuple[Operand, Operand],
    lefts: jax.Array,
    rights: jax.Array,
    left_sizes: jax.Array,
    right_sizes: jax.Array,
) -> jax.Array | float:
    """Bounds the same, more closely if positions are unlike; infinity if it is not worth it.

    With L and R the inner products, (stack, positions, positions), and dL what rounding takes from
    L: |sum dL R| <= |dL| |R| by Cauchy and Schwarz, and |dL| <= rounding(features) tr L.
    """
    left, right = (0.0 if each.indices else rounding(each.features) for each in operands)
    if sum(each.features for each in operands) * lefts.shape[1] <= _LONG_PRODUCT:
        return math.inf
    left_whole, right_whole = (
        jnp.sqrt(long_sum(jnp.square(each), (1, 2))) for each in (lefts, rights)
    )
    left_trace, right_trace = (
        jnp.sum(jnp.square(each), axis=1) for each in (left_sizes, right_sizes)
    )
    # The computed R is off by `right` of its rows' norms as well, and traces and norms round.
    left_whole, right_whole = left_whole + left * left_trace, right_whole + right * right_trace
    found = left * left_trace * right_whole + right * right_trace * left_whole
    found += 2 * rounding(terms_of_sum(lefts.size)) * left_whole * right_whole
    length = lefts.shape[0] + lefts.shape[1] + 2 * terms_of_sum(lefts.shape[1] ** 2)
    return jnp.sum(found) * (1 + rounding(length + 12))


def entrywise_norm(
    terms: Sequence[OuterProducts],
    pairs: Sequence[Rows],
    weights: Sequence[jax.Array | None],
) -> SquaredNorm:
    """Returns the squared norm of sum_k D_k * (left_k outer right_k), D_k weights of the entries.

    Each block has one position. The square is the sum over terms k, m and entries r, c of
    (left_k left_m)[r] (D_k D_m)[r, c] (right_k right_m)[c]: the batch times shared matrices.
    """
    value = jnp.zeros((), pairs[0][1].dtype)
    added, lost = value, value
    blocks = [
        jnp.ones((), value.dtype)
        if weight is None
        else term.layout.disassemble(weight).astype(value.dtype)
        for term, weight in zip(terms, weights, strict=True)
    ]
    shape = (terms[0].stack, terms[0].left.features, terms[0].right.features)
    rows = [(left[:, 0], right[:, 0]) for left, right in pairs]
    tiny, count = underflow(1, value.dtype), math.prod(shape)
    for number, (left, right) in enumerate(rows):
        for other, (other_left, other_right) in enumerate(rows[: number + 1]):
            matrix = jnp.broadcast_to(blocks[number] * blocks[other], shape)
            picked = jnp.einsum("sr,src->sc", left * other_left, matrix, precision=HIGHEST)
            inner = long_sum(picked * right * other_right)
            value += inner if other == number else 2 * inner
        left_squares, right_squares = sum_of_squares(left), sum_of_squares(right)
        weight_squares = jnp.sum(jnp.broadcast_to(jnp.square(blocks[number]), shape))
        # A bound on what the squares, and the sums over one factor, lose by underflow.
        own_lost = tiny * (
            left_squares * right_squares
            + left_squares * weight_squares
            + (weight_squares + count) * right_squares
            + count
        )
        added += jnp.sqrt(jnp.maximum(inner, 0) + own_lost)
        lost += own_lost
    # A sum over the entries of both factors and of all blocks, each a product of six numbers. What
    # is added comes from the same sums, of squares.
    length = shape[1] + terms_of_sum(shape[0] * shape[2]) + len(rows)
    error = rounding(length + 8)
    found = _of_parts(value, added * (1 + error), 0.0, error)
    return found._replace(slack=found.slack + len(rows) * lost)


def with_shared(
    norm: SquaredNorm,
    terms: Sequence[OuterProducts],
    pairs: Sequence[Rows],
    weights: Sequence[jax.Array | None],
    common: jax.Array,
) -> SquaredNorm:
    """Updates a squared norm: `common`, shared by all examples, is added to the gradient."""
    # |g + c|^2 = |g|^2 + 2 <g, c> + |c|^2, with <g, c> from the factors of g.
    inner = jnp.zeros((), norm.value.dtype)
    whole = sum_of_squares(common)
    for term, (left, right), weight in zip(terms, pairs, weights, strict=True):
        blocks = term.layout.disassemble(common if weight is None else common * weight)
        if term.left.indices:
            picked = jax.vmap(lambda index, block: block.at[index].get(mode="fill", fill_value=0))(
                drop_outside(left, term.left.features), blocks
            )
        else:
            picked = jnp.einsum("str,src->stc", left, blocks, precision=HIGHEST)
        inner += long_sum(picked * right)
    # Of parts whose norms are these: products of three factors, summed over both and positions.
    added = (jnp.sqrt(norm.added) + sizes(whole, common.size)) * (1 + _FEW_ROUNDINGS)
    length = float(terms[0].left.features + len(terms))
    length += max(terms_of_sum(right.size) for _, right in pairs)
    error = rounding(length + 8) + error_of_squares(common.size)
    found = _of_parts(norm.value + 2 * inner + whole, added, 4 * products_of(terms), error)
    return found._replace(slack=found.slack + norm.slack)


def _grouped(
    terms: Sequence[OuterProducts], pairs: Sequence[Rows]
) -> list[tuple[tuple[Operand, Operand], Rows]]:
    """Joins the positions of all terms whose left rows are one-hot, and of all others."""
    groups = []
    for indices in (True, False):
        members = [i for i, term in enumerate(terms) if term.left.indices == indices]
        if members:
            rows = tuple(jnp.concatenate([pairs[i][side] for i in members], 1) for side in (0, 1))
            groups.append((terms[members[0]].operands, rows))
    return groups


def _inner_products(
    operand: Operand, rows: jax.Array, other_operand: Operand, other_rows: jax.Array
) -> jax.Array:
    """Forms inner products of rows: (stack, positions, other positions).

    One-hot rows are given by indices; one outside the table is a row of zeros, equal to none.
    """
    if operand.indices and other_operand.indices:
        inside = (rows >= 0) & (rows < operand.features)
        same = rows[:, :, None] == other_rows[:, None, :]
        return (same & inside[:, :, None]).astype(jnp.float32)
    if other_operand.indices:
        return jnp.swapaxes(_inner_products(other_operand, other_rows, operand, rows), 1, 2)
    if operand.indices:
        return jax.vmap(
            lambda index, dense: jnp.take(dense, index, axis=1, mode="fill", fill_value=0).T
        )(drop_outside(rows, operand.features), other_rows)
    return jnp.einsum("stf,suf->stu", rows, other_rows, precision=HIGHEST)


def _row_norms(operand: Operand, rows: jax.Array) -> jax.Array:
    """Returns the norms of rows, (stack, positions); 1 for one-hot rows."""
    if operand.indices:
        return jnp.ones(rows.shape, jnp.float32)
    return sizes(sum_of_squares(rows, (2,)), operand.features)


def products_of(terms: Sequence[OuterProducts]) -> float:
    """Returns the most products of entries that a squared norm of these terms adds up."""
    first, positions = terms[0], sum(term.positions for term in terms)
    entries = float(first.stack) * first.left.features * first.right.features
    return entries * float(positions) ** 2
