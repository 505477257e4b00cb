"""What is done for each parameter: the form of its norm and of its sum, chosen by cost.

A plan names the values of the computation that it needs, gives the squared norm of one example's
gradient (to be mapped over the batch), and sums weight times gradient over the batch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax.training.clipping import costs
from dpjax.training.clipping.factored_norms import (
    Norm,
    Raw,
    bounded,
    entrywise_square,
    gram_square,
    outer_square,
    own_gram_square,
    products_of,
    sum_of_squares,
    touched_rows_square,
    with_shared,
)
from dpjax.training.clipping.factored_terms import (
    HIGHEST,
    OuterProducts,
    Shared,
    accumulator,
    keep_live,
    widened,
)
from dpjax.training.clipping.formed_once import formed_once
from dpjax.training.clipping.jaxpr_graph import Atom
from dpjax.training.clipping.leaf_layout import RIGHT, STACK
from dpjax.training.clipping.units import exponent_of, in_units, lost_entry, power, scaled


def whole_norm(gradient: jax.Array) -> Norm:
    """Of a gradient that was formed."""
    gradient = widened(gradient.reshape(-1))
    exponent = exponent_of(gradient)
    doubt = math.sqrt(gradient.size) * lost_entry(exponent, gradient.dtype)
    square = sum_of_squares(in_units(gradient, exponent))
    return bounded(Raw(square, jnp.zeros_like(square)), gradient.size, doubt, exponent)


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
    shared_needs: tuple[Atom, ...] = ()
    cancels: bool = False

    def norm(self) -> tuple[Norm, None]:
        # In no unit: of a constant, a compiler multiplies the powers of two with each other first.
        zero = jnp.zeros((), accumulator(self.dtype))
        return Norm(zero, zero, zero, exponent_of(zero)), None

    def weighted_sum(
        self, arrays: tuple, shared: tuple, kept: None, weights: jax.Array
    ) -> jax.Array:
        return jnp.zeros(self.shape, accumulator(self.dtype))


@dataclasses.dataclass(frozen=True)
class Whole:
    """The per-example gradient itself, as the computation forms it."""

    gradient: Atom
    rule: str
    reason: str
    form: str = "per-example gradient"
    shared_needs: tuple[Atom, ...] = ()
    cancels: bool = False

    @property
    def needs(self) -> tuple[Atom, ...]:
        return (self.gradient,)

    @property
    def held(self) -> int:
        return math.prod(self.gradient.aval.shape)

    def norm(self, gradient: jax.Array) -> tuple[Norm, None]:
        return whole_norm(gradient), None

    def weighted_sum(
        self, arrays: tuple, shared: tuple, kept: None, weights: jax.Array
    ) -> jax.Array:
        return whole_weighted_sum(arrays[0], weights)


def whole_weighted_sum(gradients: jax.Array, weights: jax.Array) -> jax.Array:
    """Sums weight times gradient, (batch, ...) to (...)."""
    # A product of (batch) with (batch, elements): many times faster on a CPU than a sum over the
    # leading axis.
    flat = keep_live(widened(gradients).reshape(gradients.shape[0], -1), weights)
    weights = weights.astype(flat.dtype)
    return jnp.einsum("b,be->e", weights, flat, precision=HIGHEST).reshape(gradients.shape[1:])


@dataclasses.dataclass(frozen=True)
class Factored:
    """A sum of outer products that stays factored, or whose small product is formed once.

    Attributes:
      terms: aligned outer products (same blocks in the same order).
      shared: terms that are the same for every example.
      form: "outer" (one position: product of two norms), "rows" (a table's few rows that an example
        touches), "gram" (inner products between positions), "entrywise" (one position a term, some
        weighted entry by entry: products of squares with squared weights) or "product" (the
        per-example gradient, formed from the rows and used again for the sum).
    """

    terms: tuple[OuterProducts, ...]
    shared: tuple[Shared, ...]
    form: str
    reason: str

    @property
    def rule(self) -> str:
        return self.terms[0].rule

    @property
    def needs(self) -> tuple[Atom, ...]:
        return tuple(operand.value for term in self.terms for operand in term.operands)

    @property
    def shared_needs(self) -> tuple[Atom, ...]:
        return (*(term.value for term in self.shared), *self._weights)

    @property
    def _weights(self) -> tuple[Atom, ...]:
        return tuple(term.weight for term in self.terms if term.weight is not None)

    @property
    def held(self) -> int:
        return math.prod(self.terms[0].layout.shape) if self.form == "product" else 0

    @property
    def cancels(self) -> bool:
        """Whether the sum over examples adds up what may cancel within one example's gradient."""
        parts = sum(term.positions for term in self.terms) + len(self.shared)
        return self.form != "product" and parts > 1

    def joined(self, shared: Sequence[jax.Array]) -> list[jax.Array]:
        """What `norm` and `weighted_sum` are given of `shared_needs`: the shared terms' sum, the
        terms' weights."""
        terms, weights = shared[: len(self.shared)], shared[len(self.shared) :]
        whole = [_sum_of_shared(self.shared, terms)] if self.shared else []
        return [*whole, *map(widened, weights)]

    def norm(self, *arrays: jax.Array) -> tuple[Norm, Units | jax.Array]:
        own, common, weights = self._split(arrays)
        if self.form == "product":
            parts = [
                _weighted(term.gradient(left, right), weight)
                for term, left, right, weight in zip(
                    self.terms, own[::2], own[1::2], weights, strict=True
                )
            ]
            product = sum(parts[1:], parts[0] if common is None else parts[0] + common)
            # Read again by the sum. What underflows in it does so for both.
            (first, *more) = self.terms
            if more or common is not None or weights[0] is not None or abs(first.scale) != 1:
                product = formed_once(product)
            return whole_norm(product), product
        units, doubt = self._units(own, common, weights)
        own, scaled_common, weights = self._in_units(own, common, weights, units.operands)
        # One term alone is in the units of the leaf.
        alone = len(self.terms) == 1 and common is None
        ratios = [1.0 if alone else power(term - units.leaf, doubt.dtype) for term in units.terms]
        terms = [_with_mantissa(term) for term in self.terms]
        operands = list(zip(terms, own[::2], own[1::2], strict=True))
        products = products_of(terms)
        if self.form == "gram" and terms[0].left.inner is not None and alone:
            raw = own_gram_square(terms[0], *own)
            return bounded(raw, products, doubt, units.leaf), units
        pairs = [
            (term.left.rows(left), term.right.rows(right) * (term.scale * ratio))
            for (term, left, right), ratio in zip(operands, ratios, strict=True)
        ]
        if self.form == "outer":
            raw = outer_square(pairs)
        elif self.form == "rows":
            raw = touched_rows_square(terms, pairs)
        elif self.form == "gram":
            raw = gram_square(terms, pairs)
        else:
            raw = entrywise_square(terms, pairs, weights)
        if common is not None:
            ratio = power(exponent_of(common) - units.leaf, doubt.dtype)
            raw = with_shared(raw, terms, pairs, weights, scaled_common * ratio)
        return bounded(raw, products, doubt, units.leaf), units

    def weighted_sum(
        self, arrays: tuple, shared: Sequence[jax.Array], kept: Any, weights: jax.Array
    ) -> jax.Array:
        if self.form == "product":
            return whole_weighted_sum(kept, weights)
        units: Units = kept
        in_leaf = _in_leaf(weights, units.leaf)
        own, common, entries = self._split((*arrays, *shared))
        own, scaled_common, entries = self._in_units(own, common, entries, units.operands)
        parts = [
            _weighted(
                _with_mantissa(term).weighted_sum(left, right, scaled(in_leaf, own_unit)), entry
            )
            for term, left, right, own_unit, entry in zip(
                self.terms,
                own[::2],
                own[1::2],
                [unit - units.leaf for unit in units.terms],
                entries,
                strict=True,
            )
        ]
        if common is not None:
            parts.append(scaled_common * jnp.sum(scaled(in_leaf, exponent_of(common) - units.leaf)))
        return sum(parts[1:], parts[0])

    def _split(
        self, arrays: Sequence[jax.Array]
    ) -> tuple[list[jax.Array], jax.Array | None, list[jax.Array | None]]:
        """Operands, the shared terms' sum, and the terms' weights; None where there is none."""
        own, rest = list(arrays[: len(self.needs)]), list(arrays[len(self.needs) :])
        common = rest.pop(0) if self.shared else None
        return own, common, [None if term.weight is None else rest.pop(0) for term in self.terms]

    def _units(
        self,
        own: Sequence[jax.Array],
        common: jax.Array | None,
        weights: Sequence[jax.Array | None],
    ) -> tuple[Units, jax.Array]:
        """One example's units, and how far what they flush may move its norm, in the leaf's."""
        operands, terms, doubts = [], [], []
        for term, left, right, weight in zip(self.terms, own[::2], own[1::2], weights, strict=True):
            factors = [right] if term.left.indices else [left, right]
            exponents = [exponent_of(factor) for factor in factors]
            operands += [jnp.int32(0), *exponents][-2:]
            if weight is not None:
                factors, exponents = [*factors, weight], [*exponents, exponent_of(weight)]
            dtype = accumulator(right.dtype)
            doubt = jnp.zeros((), dtype)
            for place, (factor, exponent) in enumerate(zip(factors, exponents, strict=True)):
                lost = lost_entry(exponent, factor.dtype).astype(dtype)
                # Entries of the factors before it are below 4, of those after it perhaps off.
                doubt = 4 * doubt + (4.0**place) * lost + doubt * lost
            sizes = term.left.features * term.right.features
            count = 2 * term.stack * term.positions * math.sqrt(sizes)
            doubts.append(doubt * count)
            terms.append(sum(exponents[1:], exponents[0]) + math.frexp(term.scale)[1] - 1)
        leaf = terms[0]
        every = terms if common is None else [*terms, exponent_of(common)]
        for exponent in every[1:]:
            leaf = jnp.maximum(leaf, exponent)
        if common is not None:
            lost = lost_entry(every[-1], common.dtype)
            doubts.append(math.sqrt(common.size) * lost.astype(doubts[0].dtype))
        doubt = sum(
            each * power(exponent - leaf, each.dtype)
            for each, exponent in zip(doubts, every, strict=True)
        )
        return Units(tuple(operands), tuple(terms), leaf), doubt

    def _in_units(
        self,
        own: Sequence[jax.Array],
        common: jax.Array | None,
        weights: Sequence[jax.Array | None],
        exponents: Sequence[jax.Array],
    ) -> tuple[list[jax.Array], jax.Array | None, list[jax.Array | None]]:
        """Factors in their units; of one example, or of a batch with its (batch,) exponents."""
        indices = [operand.indices for term in self.terms for operand in term.operands]
        factors = [
            array if index else in_units(array, exponent)
            for array, exponent, index in zip(own, exponents, indices, strict=True)
        ]
        shared = [
            None if each is None else in_units(each, exponent_of(each))
            for each in (common, *weights)
        ]
        return factors, shared[0], shared[1:]


def _with_mantissa(term: OuterProducts) -> OuterProducts:
    """The power of two of its scale is in the unit of the term; 1 <= |scale| < 2 is left."""
    return dataclasses.replace(term, scale=2 * math.frexp(term.scale)[0])


_LARGEST_WEIGHT = 2.0**90
"""In units of a leaf, where entries of factors are below 4: their sum stays finite."""


def _in_leaf(weights: jax.Array, exponent: jax.Array) -> jax.Array:
    """Weights of gradients in units of `2**exponent`; (batch,) both."""
    return jnp.minimum(scaled(weights, exponent), _LARGEST_WEIGHT)


class Units(NamedTuple):
    """Exponents, int32, of the powers of two that a leaf's parts are in units of.

    Attributes:
      operands: of the factors; of one-hot ones 0.
      terms: of the products, their weights and scales included.
      leaf: the largest of the terms'; what the leaf's norm is in units of.
    """

    operands: tuple[jax.Array, ...]
    terms: tuple[jax.Array, ...]
    leaf: jax.Array


@dataclasses.dataclass(frozen=True)
class Common:
    """A gradient that is the same for every example: of a parameter that is only penalised."""

    terms: tuple[Shared, ...]
    rule: str = "shared"
    form: str = "one gradient for all"
    reason: str = "it does not depend on the example"
    held: int = 0
    needs: tuple[Atom, ...] = ()
    cancels: bool = False

    @property
    def shared_needs(self) -> tuple[Atom, ...]:
        return tuple(term.value for term in self.terms)

    def joined(self, shared: Sequence[jax.Array]) -> list[jax.Array]:
        return [_sum_of_shared(self.terms, shared)]

    def norm(self, common: jax.Array) -> tuple[Norm, None]:
        return whole_norm(common), None

    def weighted_sum(
        self, arrays: tuple, shared: Sequence[jax.Array], kept: None, weights: jax.Array
    ) -> jax.Array:
        return shared[0] * jnp.sum(weights)


Plan = Unused | Whole | Factored | Common
"""What is done for one parameter. Each kind has

* rule: "dense", "embedding", "convolution", "small", "shared", "unused" or "materialised";
* form: how the norm is formed, in words;
* reason: why, with the numbers that decided;
* held: elements per example held for this parameter's gradient (0 when it stays factored);
* needs: values of the computation that it reads, one for each example;
* shared_needs: values that it reads and that are the same for every example;
* joined(shared): what the next two are given of `shared_needs`, formed once;
* norm(*arrays): of one example, and what `weighted_sum` may use again, from the needed values and
  then the joined ones;
* weighted_sum(arrays, joined, kept, weights): weight times gradient summed over the batch; only
  `joined` lacks the batch axis;
* cancels: whether that sum adds up what may cancel within one example's gradient.
"""


def _weighted(leaf: jax.Array, weight: jax.Array | None) -> jax.Array:
    return leaf if weight is None else leaf * weight


def _sum_of_shared(terms: Sequence[Shared], arrays: Sequence[jax.Array]) -> jax.Array:
    parts = [widened(array) * term.scale for term, array in zip(terms, arrays, strict=True)]
    return formed_once(sum(parts[1:], parts[0]))


def plan_terms(terms: Sequence[OuterProducts | Shared], force: bool) -> Factored | Common | str:
    """Chooses the form for a parameter whose gradient is a sum of outer products.

    Args:
      terms: at least one.
      force: keep the gradient factored even where its product is cheaper.

    Returns:
      The plan, or the reason why there is none.
    """
    shared = tuple(term for term in terms if isinstance(term, Shared))
    products = [term for term in terms if isinstance(term, OuterProducts)]
    if not products:
        return Common(shared)
    aligned = _aligned(products)
    if aligned is None:
        return "it is used in ways whose factors do not line up"
    plan = partial(Factored, aligned, shared)
    stack = aligned[0].stack
    positions = sum(term.positions for term in aligned)
    left, right = aligned[0].left.features, aligned[0].right.features
    weighted = any(term.weight is not None for term in aligned)
    if weighted and all(term.positions == 1 and not term.left.indices for term in aligned):
        times = f"{len(aligned)} times" if len(aligned) > 1 else "a function of parameters"
        return plan("entrywise", f"one position, {times}: {left} x {right} weights")
    if weighted:
        return plan("product", f"{positions} positions of {left} x {right}, weighted by entry")
    if len(aligned) == 1 and aligned[0].left.indices:
        return plan("rows", f"{positions} positions touch at most as many of {left} rows")
    if positions == 1 and not aligned[0].left.indices:
        return plan("outer", f"one position: {left} + {right} numbers for {left} x {right}")
    used = costs.machine(*(operand.value.aval.dtype for operand in aligned[0].operands))
    multiplications = float(positions) ** 2 * (left + right)
    if len(aligned) == 1 and not shared:
        by_pixels = aligned[0].left.inner_cost + float(positions) ** 2 * right
        multiplications = min(multiplications, by_pixels)
    gram = used.gram(positions, multiplications)
    product = used.formed(positions, left, right)
    if shared:
        gram += product
    numbers = f"{positions} positions of {left} x {right}"
    if stack > 1:
        numbers += f" in {stack} blocks"
    if gram <= product:
        return plan(
            "gram", f"{numbers}: cost {gram:.3g}, of the product {product:.3g} ({used.basis})"
        )
    if force:
        return plan("gram", f"{numbers}: asked for, though the product is cheaper")
    return plan(
        "product", f"{numbers}: cost {product:.3g}, of inner products {gram:.3g} ({used.basis})"
    )


def _aligned(terms: list[OuterProducts]) -> tuple[OuterProducts, ...] | None:
    """Brings all terms to the factors of the first one-hot term, or of the first.

    The left factor is the one that comes first in the leaf, so that products need no transposing.
    """
    first = next((term for term in terms if term.left.indices), terms[0])
    factors = [name for name, _ in first.layout.blocks() if name != STACK]
    leader = first.swapped() if factors[:1] == [RIGHT] else first
    result = [leader or first]
    for term in terms:
        if term is first:
            continue
        for candidate in (term, term.swapped()):
            if candidate is not None and candidate.layout.blocks() == result[0].layout.blocks():
                result.append(candidate)
                break
        else:
            return None
    return tuple(result)
