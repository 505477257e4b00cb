"""Plans for each parameter: the form of its norm and of its sum, chosen by cost.

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

from dpjax.training.clipping.block_sums import Addends
from dpjax.training.clipping.factored_norms import (
    SquaredNorm,
    entrywise_norm,
    gram_norm,
    outer_norm,
    own_gram_norm,
    products_of,
    touched_rows_norm,
    whole_squared_norm,
    with_shared,
)
from dpjax.training.clipping.factored_terms import (
    HIGHEST,
    RIGHT,
    STACK,
    OuterProducts,
    Shared,
    accumulator,
    keep_live,
    widened,
)
from dpjax.training.clipping.jaxpr_graph import Atom
from dpjax.training.clipping.single_evaluation import formed_once


@dataclasses.dataclass(frozen=True)
class Unused:
    """Plans for a parameter that the loss does not read."""

    shape: tuple[int, ...]
    dtype: Any
    rule: str = "unused"
    form: str = "zero"
    reason: str = "the loss does not depend on it"
    held: int = 0
    needs: tuple[Atom, ...] = ()
    shared_needs: tuple[Atom, ...] = ()
    addends: Addends = Addends()
    products: float = 0.0

    def squared_norm(self) -> tuple[SquaredNorm, None]:
        zero = jnp.zeros((), accumulator(self.dtype))
        return SquaredNorm(zero, zero, zero), None

    def weighted_sum(
        self, arrays: tuple, shared: tuple, kept: None, weights: jax.Array
    ) -> jax.Array:
        return jnp.zeros(self.shape, accumulator(self.dtype))


@dataclasses.dataclass(frozen=True)
class Whole:
    """Plans to take the per-example gradient itself, as the computation forms it."""

    gradient: Atom
    rule: str
    reason: str
    form: str = "per-example gradient"
    shared_needs: tuple[Atom, ...] = ()
    addends: Addends = Addends()

    @property
    def needs(self) -> tuple[Atom, ...]:
        return (self.gradient,)

    @property
    def held(self) -> int:
        return math.prod(self.gradient.aval.shape)

    @property
    def products(self) -> float:
        return float(self.held)

    def squared_norm(self, gradient: jax.Array) -> tuple[SquaredNorm, None]:
        return whole_squared_norm(gradient), None

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
    """Holds a sum of outer products that stays factored, or whose small product is formed once.

    The form is "outer" (one position: product of two norms), "rows" (a table's few rows that an
    example touches), "gram" (inner products between positions), "entrywise" (one position a term,
    some weighted entry by entry: products of squares with squared weights) or "product" (the
    per-example gradient, formed from the rows and used again for the sum).
    """

    terms: tuple[OuterProducts, ...]  # the same blocks in the same order
    shared: tuple[Shared, ...]  # the same for every example
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
    def addends(self) -> Addends:
        """Returns what an example adds to the sum: parts that may cancel, or its gradient."""
        if self.form == "product":
            return Addends()
        number = sum(term.positions for term in self.terms) + len(self.shared)
        return Addends(number, number > 1, any(term.left.indices for term in self.terms))

    @property
    def parts(self) -> list[Part]:
        """Splits the sum where a table is looked up and also used otherwise: one is scattered."""
        looked_up = [i for i, term in enumerate(self.terms) if term.left.indices]
        others = [i for i, term in enumerate(self.terms) if not term.left.indices]
        if self.form == "product" or not looked_up or not (others or self.shared):
            return [Part(self, self.addends, range(len(self.terms)), True)]

        def part(own: list[int], shared: tuple[Shared, ...], scattered: bool) -> Part:
            terms = tuple(self.terms[i] for i in own)
            number = sum(term.positions for term in terms) + len(shared)
            plan = dataclasses.replace(self, terms=terms, shared=shared) if own else Common(shared)
            # Both parts together may cancel.
            return Part(plan, Addends(number, True, scattered), own, shared=not scattered)

        return [part(looked_up, (), True), part(others, self.shared, False)]

    @property
    def products(self) -> float:
        return products_of(self.terms)

    def joined(self, shared: Sequence[jax.Array]) -> list[jax.Array]:
        """Adds up the shared terms; returns the sum, if any, followed by the terms' weights."""
        terms, weights = shared[: len(self.shared)], shared[len(self.shared) :]
        whole = [_sum_of_shared(self.shared, terms)] if self.shared else []
        return [*whole, *map(widened, weights)]

    def squared_norm(self, *arrays: jax.Array) -> tuple[SquaredNorm, Any]:
        """Returns the squared norm by the chosen form, and the gradient if that form makes it."""
        own, common, weights = self._split(arrays)
        # `needs` lists each term's left operand, then its right one.
        operands = list(zip(self.terms, own[::2], own[1::2], strict=True))
        (first, *more) = self.terms
        if self.form == "product":
            parts = [
                _weighted(term.gradient(left, right), weight)
                for (term, left, right), weight in zip(operands, weights, strict=True)
            ]
            product = sum(parts[1:], parts[0] if common is None else parts[0] + common)
            # Anything but a single product may be computed, and rounded, again for the sum.
            computed = more or common is not None or weights[0] is not None
            contracted = not computed and abs(first.scale) == 1
            product = formed_once(product, contracted)
            return whole_squared_norm(product), product
        if self.form == "gram" and first.left.inner is not None and not more and common is None:
            return own_gram_norm(first, *own), None
        pairs = [
            (term.left.rows(left), term.right.rows(right) * term.scale)
            for term, left, right in operands
        ]
        if self.form == "entrywise":
            norm = entrywise_norm(self.terms, pairs, weights)
        else:
            forms = {"outer": outer_norm, "rows": touched_rows_norm, "gram": gram_norm}
            norm = forms[self.form](self.terms, pairs)
        if common is not None:
            norm = with_shared(norm, self.terms, pairs, weights, common)
        return norm, None

    def weighted_sum(
        self, arrays: tuple, shared: Sequence[jax.Array], kept: Any, weights: jax.Array
    ) -> jax.Array:
        """Sums weight times gradient over the examples; returns the leaf."""
        if kept is not None:
            return whole_weighted_sum(kept, weights)
        own, common, entries = self._split((*arrays, *shared))
        parts = [
            _weighted(term.weighted_sum(left, right, weights), entry)
            for term, left, right, entry in zip(
                self.terms, own[::2], own[1::2], entries, strict=True
            )
        ]
        if common is not None:
            parts.append(common * jnp.sum(weights))
        return sum(parts[1:], parts[0])

    def _split(
        self, arrays: Sequence[jax.Array]
    ) -> tuple[list[jax.Array], jax.Array | None, list[jax.Array | None]]:
        """Splits into operands, the shared terms' sum, the terms' weights; None where missing."""
        own, rest = list(arrays[: len(self.needs)]), list(arrays[len(self.needs) :])
        common = rest.pop(0) if self.shared else None
        return own, common, [None if term.weight is None else rest.pop(0) for term in self.terms]


@dataclasses.dataclass(frozen=True)
class Common:
    """Plans for a gradient that is the same for every example, such as a penalty's."""

    terms: tuple[Shared, ...]
    rule: str = "shared"
    form: str = "one gradient for all"
    reason: str = "it does not depend on the example"
    held: int = 0
    needs: tuple[Atom, ...] = ()
    addends: Addends = Addends()

    @property
    def shared_needs(self) -> tuple[Atom, ...]:
        return tuple(term.value for term in self.terms)

    @property
    def products(self) -> float:
        return float(math.prod(self.terms[0].value.aval.shape))

    def joined(self, shared: Sequence[jax.Array]) -> list[jax.Array]:
        return [_sum_of_shared(self.terms, shared)]

    def squared_norm(self, common: jax.Array) -> tuple[SquaredNorm, None]:
        return whole_squared_norm(common), None

    def weighted_sum(
        self, arrays: tuple, shared: Sequence[jax.Array], kept: None, weights: jax.Array
    ) -> jax.Array:
        return shared[0] * jnp.sum(weights)


class Part(NamedTuple):
    """Holds a part of a parameter's sum over examples, which is taken by itself."""

    plan: Plan
    addends: Addends
    terms: Sequence[int]  # of the whole plan, whose operands it reads
    shared: bool  # whether it reads what all examples share


def parts_of(plan: Plan) -> list[Part]:
    """Returns the parts of a plan's sum: itself, where nothing says otherwise."""
    if isinstance(plan, Factored):
        return plan.parts
    return [Part(plan, plan.addends, range(len(plan.needs)), True)]


Plan = Unused | Whole | Factored | Common
"""What is done for one parameter. Each kind has

* rule: "dense", "embedding", "convolution", "small", "shared", "unused" or "materialised";
* form: how the norm is formed, as text;
* reason: why, with the numbers that decided;
* held: elements per example held for this parameter's gradient (0 when it stays factored);
* needs: values of the computation that it reads, one for each example;
* shared_needs: values that it reads and that are the same for every example;
* joined(shared): arguments of the next two that are made of `shared_needs`, once;
* squared_norm(*arrays): one example's squared norm, and what `weighted_sum` may use again, from the
  needed values and then the joined ones;
* weighted_sum(arrays, joined, kept, weights): weight times gradient summed over the batch; only
  `joined` lacks the batch axis;
* addends: what one example adds to that sum;
* products: the most products of the factors' entries that the squared norm adds up.
"""


def _weighted(leaf: jax.Array, weight: jax.Array | None) -> jax.Array:
    return leaf if weight is None else leaf * weight


def _sum_of_shared(terms: Sequence[Shared], arrays: Sequence[jax.Array]) -> jax.Array:
    """Adds up the gradient parts that all examples share."""
    parts = [widened(array) * term.scale for term, array in zip(terms, arrays, strict=True)]
    return formed_once(sum(parts[1:], parts[0]))


_LEAST_SCALE = 2.0**-30
"""Least constant factor with which weights times it stay normal numbers."""


def plan_terms(terms: Sequence[OuterProducts | Shared], force: bool) -> Factored | Common | str:
    """Chooses the form for a sum of outer products; returns a reason, as text, if there is none.

    `force` keeps the gradient factored even where its product is cheaper.
    """
    shared = tuple(term for term in terms if isinstance(term, Shared))
    products = [term for term in terms if isinstance(term, OuterProducts)]
    if not products:
        return Common(shared)
    aligned = _aligned(products)
    if aligned is None:
        return "it is used in ways whose factors do not line up"
    plan = partial(Factored, aligned, shared)
    scales = [abs(term.scale) for term in aligned]
    if min(scales) < _LEAST_SCALE or max(scales) > 1 / _LEAST_SCALE:
        return plan("product", f"multiplied by {max(scales):.1g}, which would move its factors far")
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
    used = machine(*(operand.value.aval.dtype for operand in aligned[0].operands))
    multiplications = float(positions) ** 2 * (left + right)
    if len(aligned) == 1 and not shared:
        by_pixels = aligned[0].left.inner_cost + float(positions) ** 2 * right
        multiplications = min(multiplications, by_pixels)
    gram = used.gram(positions, multiplications)
    # Written, read for the norm and read for the sum, as a product is.
    gram += used.byte * _BYTES_OF_A_PRODUCT * sum(term.laid_out for term in aligned)
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
    """Brings all terms to the layout of one: the first one-hot term, or else the first.

    None if one cannot be. The left factor is the one that comes first in the leaf, so that products
    need no transposing.
    """
    first = next((term for term in terms if term.left.indices), terms[0])
    factors = [name for name, _ in first.layout.blocks() if name != STACK]
    leader = first.swapped() if factors[:1] == [RIGHT] else first
    result = [leader or first]
    for term in terms:
        if term is first:
            continue
        for candidate in (term, term.swapped()):  # as it is, or with left and right exchanged
            if candidate is not None and candidate.layout.blocks() == result[0].layout.blocks():
                result.append(candidate)
                break
        else:
            return None
    return tuple(result)


# What the forms of a norm cost ------------------------------------------------------------
#
# Both ways end in the gradient of the whole batch: products, formed for each example, are added up;
# after inner products examples and positions are still to be contracted. The difference is
# arithmetic for inner products against memory for products.

_BYTES_OF_A_PRODUCT = 12
"""A product's entry is written, read for the norm and read for the sum: 4 bytes each."""

_BYTES_OF_AN_INNER_PRODUCT = 24
"""Those of both factors are written and read, and read again with the bound on their rounding."""


@dataclasses.dataclass(frozen=True)
class Machine:
    """Says how expensive arithmetic and memory are on a kind of machine, in multiplications."""

    inner: float  # a multiplication of the inner products
    # A multiplication of the per-example product beyond the one that it saves in the batch.
    product: float
    byte: float  # moving one
    basis: str  # "measured" or "estimated", and of what; as text

    def gram(self, positions: int, multiplications: float) -> float:
        """Prices inner products: so many multiplications, and the memory of both arrays."""
        return self.inner * multiplications + self.byte * _BYTES_OF_AN_INNER_PRODUCT * positions**2

    def formed(self, positions: int, left: int, right: int) -> float:
        """Prices the per-example product of `positions` outer products left x right."""
        entries = float(left) * right
        return self.product * positions * entries + self.byte * _BYTES_OF_A_PRODUCT * entries


CPU = Machine(2.0, 1.0, 0.0, "measured on a CPU core")
"""Micro-batches of 16, one core: WRN-16-4 takes 1.08, 1.07 and 1.10 of the plain gradient with 3, 2
and 1 for `inner`, ViT-Ti 1.11, 1.06 and 1.08, a text convolution 1.44, 1.16 and 1.21, the GPT 1.12,
1.13 and 1.29, the all-convolutional net 0.90, 0.91 and 1.05. Memory's share is in these numbers."""

GPU = Machine(1.0, 0.0, 10.0, "estimated for an H100")
GPU_NARROW = Machine(1.0, 0.0, 148.0, "estimated for an H100, bfloat16")
"""33.5 tera-multiplications a second in float32, 495 in bfloat16, 3.35 terabytes a second, by the
vendor's data sheet. Nothing was measured. At 1,024 x 1,024 break-even is at 234 and 576
positions."""

TPU = Machine(1.0, 0.0, 20.0, "estimated for a TPU v5e")
TPU_NARROW = Machine(1.0, 0.0, 120.0, "estimated for a TPU v5e, bfloat16")
"""98 tera-multiplications a second in bfloat16, a sixth of it in float32 at the highest precision,
0.82 terabytes a second, by the vendor's data sheet. Nothing was measured."""


def machine(*dtypes: jax.typing.DTypeLike) -> Machine:
    """Returns the machine of JAX's default backend, for operands of these types."""
    narrow = all(jnp.dtype(dtype).itemsize <= 2 for dtype in dtypes)
    backend = jax.default_backend()
    if backend == "cpu":
        return CPU
    if backend == "tpu":
        return TPU_NARROW if narrow else TPU
    return GPU_NARROW if narrow else GPU
