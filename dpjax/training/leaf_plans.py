"""What is done for each parameter: the form of its norm and of its sum, chosen by cost.

A plan names the values of the computation that it needs, gives the squared norm of one example's
gradient (to be mapped over the batch), and sums weight times gradient over the batch.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from dpjax.training.factored_terms import (
    HIGHEST,
    OuterProducts,
    SquaredNorm,
    accumulator,
    along_batch,
    inner_kernel,
    keep_live,
    sum_of_squares,
    underflow,
    widened,
)
from dpjax.training.jaxpr_graph import Atom

# Bound on the rounding of an inner product relative to the norms of its factors: 16 units of
# float32 rounding. Blocked float32 products of up to some thousand terms stay well below it.
_GRAM_ROUNDING = 2.0**-20


class Plan(Protocol):
    """What is done for one parameter.

    Attributes:
      rule: "dense", "embedding", "convolution", "small", "unused" or "materialised".
      form: how the norm is formed, in words.
      reason: why, with the numbers that decided.
      held: elements per example held for this parameter's gradient (0 when it stays factored).
      needs: values of the computation that it reads.
    """

    rule: str
    form: str
    reason: str
    held: int
    needs: tuple[Atom, ...]

    def squared_norm(self, *arrays: jax.Array) -> tuple[SquaredNorm, Any]:
        """One example's squared norm, and what `weighted_sum` may use again."""

    def weighted_sum(self, arrays: tuple[jax.Array, ...], kept: Any, weights: jax.Array):
        """Sums weight times gradient over the batch; arrays and kept have a batch axis."""


@dataclasses.dataclass(frozen=True)
class Unused:
    """A parameter that the loss does not read."""

    shape: tuple[int, ...]
    dtype: Any
    rule: str = "unused"
    form: str = "zero"
    reason: str = "the loss does not depend on it"
    held: int = 0
    needs: tuple[Atom, ...] = ()

    def squared_norm(self) -> tuple[SquaredNorm, None]:
        zero = jnp.zeros((), accumulator(self.dtype))
        return SquaredNorm(zero, zero), None

    def weighted_sum(self, arrays: tuple, kept: None, weights: jax.Array) -> jax.Array:
        return jnp.zeros(self.shape, accumulator(self.dtype))


@dataclasses.dataclass(frozen=True)
class Whole:
    """The per-example gradient itself, as the computation forms it."""

    gradient: Atom
    rule: str
    reason: str
    form: str = "per-example gradient"

    @property
    def needs(self) -> tuple[Atom, ...]:
        return (self.gradient,)

    @property
    def held(self) -> int:
        return math.prod(self.gradient.aval.shape)

    def squared_norm(self, gradient: jax.Array) -> tuple[SquaredNorm, None]:
        return whole_squared_norm(gradient), None

    def weighted_sum(self, arrays: tuple, kept: None, weights: jax.Array) -> jax.Array:
        return whole_weighted_sum(arrays[0], weights)


def whole_squared_norm(gradient: jax.Array) -> SquaredNorm:
    squares = sum_of_squares(gradient)
    return SquaredNorm(squares, jnp.full_like(squares, underflow(gradient.size, squares.dtype)))


def whole_weighted_sum(gradients: jax.Array, weights: jax.Array) -> jax.Array:
    """Sums weight times gradient, (batch, ...) to (...); fused by the compiler into one pass."""
    gradients = widened(gradients)
    weighted = keep_live(gradients, weights) * along_batch(weights, gradients)
    return jnp.sum(weighted, axis=0)


@dataclasses.dataclass(frozen=True)
class Factored:
    """A sum of outer products that stays factored, or whose small product is formed once.

    Attributes:
      terms: aligned outer products (same blocks in the same order).
      form: "outer" (one position: product of two norms), "rows" (a table's few rows that an example
        touches), "gram" (inner products between positions) or "product" (the per-example gradient,
        formed from the rows and used again for the sum).
    """

    terms: tuple[OuterProducts, ...]
    form: str
    reason: str

    @property
    def rule(self) -> str:
        return self.terms[0].rule

    @property
    def needs(self) -> tuple[Atom, ...]:
        return tuple(operand.value for term in self.terms for operand in term.operands)

    @property
    def held(self) -> int:
        return math.prod(self.terms[0].layout.shape) if self.form == "product" else 0

    def squared_norm(self, *arrays: jax.Array) -> tuple[SquaredNorm, Any]:
        pairs = [
            (term.left.rows(left), term.right.rows(right) * term.scale)
            for term, left, right in zip(self.terms, arrays[::2], arrays[1::2], strict=True)
        ]
        match self.form:
            case "outer":
                return self._outer(*pairs[0]), None
            case "rows":
                return self._touched_rows(*pairs[0]), None
            case "gram":
                return self._gram(pairs), None
        product = sum(term.product(*pair) for term, pair in zip(self.terms, pairs, strict=True))
        return whole_squared_norm(product), product

    def weighted_sum(self, arrays: tuple, kept: Any, weights: jax.Array) -> jax.Array:
        if kept is not None:
            return self.terms[0].layout.assemble(whole_weighted_sum(kept, weights))
        parts = [
            term.weighted_sum(left, right, weights)
            for term, left, right in zip(self.terms, arrays[::2], arrays[1::2], strict=True)
        ]
        return sum(parts[1:], parts[0])

    def _outer(self, left: jax.Array, right: jax.Array) -> SquaredNorm:
        left_squares = sum_of_squares(left, (1, 2))
        right_squares = sum_of_squares(right, (1, 2))
        value = jnp.sum(left_squares * right_squares)
        # A factor's squares may underflow where the other factor is large.
        tiny = underflow(1, value.dtype)
        most = (left_squares + tiny * left.shape[-1]) * (right_squares + tiny * right.shape[-1])
        return SquaredNorm(value, jnp.maximum(jnp.sum(most) - value, 0) + tiny * left.shape[0])

    def _touched_rows(self, index: jax.Array, rows: jax.Array) -> SquaredNorm:
        """Adds up the rows that fall on the same index, then squares: no cancellation in sight."""
        term = self.terms[0]
        same = inner_kernel(term.left, index, term.left, index).astype(rows.dtype)
        totals = jnp.einsum("stu,suc->stc", same, rows, precision=HIGHEST)
        earlier = jnp.tril(same, -1).sum(axis=2)
        inside = jnp.diagonal(same, axis1=1, axis2=2) > 0
        first = (earlier == 0) & inside
        squares = jnp.sum(jnp.where(first, sum_of_squares(totals, (2,)), 0))
        return SquaredNorm(squares, jnp.full_like(squares, underflow(rows.size, squares.dtype)))

    def _gram(self, pairs: list[tuple[jax.Array, jax.Array]]) -> SquaredNorm:
        """`sum_{t,u} <left[t], left[u]> <right[t], right[u]>` over positions of all terms.

        Where positions cancel, rounding is relative to what cancels and not to what is left, so
        the bound on it is formed beside the value: the derivative of the double sum times the
        rounding of each inner product.
        """
        value = slack = jnp.zeros((), pairs[0][1].dtype)
        for i, (left, right) in enumerate(pairs):
            for j in range(i + 1):
                other_left, other_right = pairs[j]
                operands = self.terms[i], self.terms[j]
                lefts = inner_kernel(operands[0].left, left, operands[1].left, other_left)
                rights = inner_kernel(operands[0].right, right, operands[1].right, other_right)
                count = 1 if i == j else 2
                value += count * jnp.sum(lefts * rights)
                left_sizes = self._size(operands[0], left), self._size(operands[1], other_left)
                right_sizes = _row_norms(right), _row_norms(other_right)
                most = _outer_rows(*left_sizes) * jnp.abs(rights)
                most += jnp.abs(lefts) * _outer_rows(*right_sizes)
                slack += count * jnp.sum(most)
        tiny = underflow(math.prod(self.terms[0].layout.shape), value.dtype)
        return SquaredNorm(jnp.maximum(value, 0), _GRAM_ROUNDING * slack + tiny)

    def _size(self, term: OuterProducts, rows: jax.Array) -> jax.Array:
        return jnp.ones(rows.shape, jnp.float32) if term.left.indices else _row_norms(rows)


def _row_norms(rows: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.sum(jnp.square(rows), axis=-1))


def _outer_rows(first: jax.Array, second: jax.Array) -> jax.Array:
    return first[:, :, None] * second[:, None, :]


def plan_terms(terms: list[OuterProducts], force: bool) -> Factored | str:
    """Chooses the form for a parameter whose gradient is a sum of outer products.

    Args:
      terms: at least one.
      force: keep the gradient factored even where its product is cheaper.

    Returns:
      The plan, or the reason why there is none.
    """
    aligned = _aligned(terms)
    if aligned is None:
        return "it is used in ways whose factors do not line up"
    stack = aligned[0].stack
    positions = sum(term.positions for term in aligned)
    left, right = aligned[0].left.features, aligned[0].right.features
    if len(aligned) == 1 and aligned[0].left.indices:
        reason = f"{positions} positions touch at most as many of {left} rows"
        return Factored(aligned, "rows", reason)
    if positions == 1 and not aligned[0].left.indices:
        return Factored(aligned, "outer", f"one position: {left} + {right} against {left * right}")
    gram, product = gram_cost(positions, left, right), product_cost(positions, left, right)
    numbers = f"{positions} positions of {left} x {right}"
    if stack > 1:
        numbers += f" in {stack} blocks"
    if gram <= product:
        return Factored(aligned, "gram", f"{numbers}: gram {gram:.3g} <= product {product:.3g}")
    if force:
        return Factored(aligned, "gram", f"{numbers}: asked for, though the product is cheaper")
    return Factored(aligned, "product", f"{numbers}: product {product:.3g} < gram {gram:.3g}")


def gram_cost(positions: int, left: int, right: int) -> float:
    return float(positions) ** 2


def product_cost(positions: int, left: int, right: int) -> float:
    return float(left) * right


def _aligned(terms: list[OuterProducts]) -> tuple[OuterProducts, ...] | None:
    """Brings all terms to the factors of the first one-hot term, or of the first."""
    leader = next((term for term in terms if term.left.indices), terms[0])
    result = [leader]
    for term in terms:
        if term is leader:
            continue
        for candidate in (term, term.swapped()):
            if candidate is not None and candidate.layout.blocks() == leader.layout.blocks():
                result.append(candidate)
                break
        else:
            return None
    return tuple(result)
