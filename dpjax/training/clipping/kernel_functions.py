"""Gradients of parameters from which a kernel is computed: scales, masks, choices, low ranks.

What reaches such a parameter is the gradient of the kernel that was used, a sum of outer products,
after a linear map whose coefficients are known: `w * scale` multiplies it by the scale,
`w[expert]` puts it into one block of zeros, `a @ b` multiplies it by b from the right. Where the
map acts on one factor only, the factor is changed and the product stays unformed. Where it
multiplies entry by entry, the term carries the multiplier, its `weight`. Sums over an axis of a
product (the gradient of a scale) are taken without forming it.

Changed factors are values of their own, added to the graph: they are computed once, and norm and
sum read the same numbers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.training.clipping.factored_terms import (
    LEFT,
    RIGHT,
    STACK,
    Layout,
    Operand,
    OuterProducts,
    accumulator,
    widened,
)
from dpjax.training.clipping.jaxpr_graph import Atom, Constant, Graph, Operation, Value, is_zero

Combine = Callable[[jax.Array, jax.Array], jax.Array]
"""Combines the entries of a factor with those of a multiplier."""


def multiplied(rows: jax.Array, by: jax.Array) -> jax.Array:
    """Multiplies the entries of `rows` by those of `by`."""
    return rows * widened(by)


def divided(rows: jax.Array, by: jax.Array) -> jax.Array:
    """Divides the entries of a factor by the multiplier's."""
    return rows / widened(by)


def kept_where(rows: jax.Array, by: jax.Array) -> jax.Array:
    """Puts zeros where the mask is False, even for infinity and NaN."""
    return jnp.where(by, rows, 0)


class KernelFunctions:
    """Carries terms through linear maps with known coefficients.

    Adds changed factors to `graph`, and those that depend on the row to `rows`. Multipliers of
    entries are not carried out of a loop's body.
    """

    def __init__(self, graph: Graph, rows: set[Value], in_loop: bool) -> None:
        self._graph, self._rows, self._in_loop = graph, rows, in_loop

    def derive(self, name: str, inputs: Sequence[Atom], function: Callable) -> Value:
        """Adds a value to the graph, and to the rows if it depends on the row."""
        value = self._graph.derive(name, inputs, function)
        if any(atom in self._rows for atom in inputs):
            self._rows.add(value)
        return value

    def is_row(self, atom: Atom) -> bool:
        """Returns whether a value depends on the row."""
        return atom in self._rows

    def times(
        self, term: OuterProducts, by: Atom, combine: Combine = multiplied
    ) -> OuterProducts | None:
        """Combines a term, entry by entry, with an array shaped like its leaf; None if it cannot.

        An array that varies along one factor's axes changes that factor; another is a weight.
        """
        if by.aval.shape and not _repeats_to(by.aval.shape, term.layout.shape):
            return None
        split = term.layout.split_to_shape()
        if split is None:
            return None
        finer, runs = split
        varying = varying_axes(by)
        factors = {
            finer.axes[index][0]
            for axis in varying
            for index in runs[axis]
            if finer.axes[index][1] > 1
        }
        shape = term.layout.shape
        if term.direct is not None:
            if not factors:
                return self._scaled_directly(term, by, combine)
            return self._weighted(term, by, combine)

        def blocks(array: jax.Array) -> jax.Array:
            return term.layout.disassemble(jnp.broadcast_to(array, shape))

        if factors <= {STACK, RIGHT}:
            right = self._changed(
                term.right, by, lambda rows, array: combine(rows, blocks(array)[:, :1, :])
            )
            # Either factor of a branch that is not taken may hold NaN: both are cleared.
            if combine is kept_where and factors <= {STACK} and not term.left.indices:
                left = self._changed(
                    term.left, by, lambda rows, array: combine(rows, blocks(array)[:, :1, :1])
                )
                return dataclasses.replace(term, left=left, right=right)
            return dataclasses.replace(term, right=right)
        if factors <= {STACK, LEFT} and not term.left.indices:
            left = self._changed(
                term.left,
                by,
                lambda rows, array: combine(rows, blocks(array)[:, :, 0][:, None, :]),
            )
            return dataclasses.replace(term, left=left)
        if term.left.indices:
            return self._looked_up(term, by, combine, blocks)
        return self._weighted(term, by, combine)

    def _changed(self, operand: Operand, by: Atom, change: Combine) -> Operand:
        """Returns an operand whose rows another value changes, as a new derived value."""
        value = self.derive(
            "factor", [operand.value, by], lambda array, other: change(operand.rows(array), other)
        )
        return Operand(value, _as_it_is, operand.features)

    def _scaled_directly(self, term: OuterProducts, by: Atom, combine: Combine) -> OuterProducts:
        """Scales by one number, and keeps the operands' form, which `Direct` reads."""

        def change(array: jax.Array, other: jax.Array) -> jax.Array:
            return combine(widened(array), other.reshape(-1)[0])

        sides = ("left", "right") if combine is kept_where else ("right",)
        changed: dict[str, Any] = {}
        for side in sides:
            operand = getattr(term, side)
            value = self.derive("factor", [operand.value, by], change)
            changed[side] = dataclasses.replace(operand, value=value)
        return dataclasses.replace(term, **changed)

    def _looked_up(
        self, term: OuterProducts, by: Atom, combine: Combine, blocks: Callable
    ) -> OuterProducts:
        """Combines the right rows with the row of the multiplier that each index picks."""

        def change(left: jax.Array, right: jax.Array, array: jax.Array) -> jax.Array:
            picked = jax.vmap(lambda index, block: block.at[index].get(mode="clip"))(
                term.left.rows(left), blocks(array)
            )
            return combine(term.right.rows(right), picked)

        value = self.derive("factor", [term.left.value, term.right.value, by], change)
        return dataclasses.replace(term, right=Operand(value, _as_it_is, term.right.features))

    def _weighted(self, term: OuterProducts, by: Atom, combine: Combine) -> OuterProducts | None:
        """Combines the array into the term's weight; None where it depends on the example."""
        if self.is_row(by) or self._in_loop:
            return None
        shape, wide = term.layout.shape, accumulator(term.right.value.aval.dtype)
        before = [] if term.weight is None else [term.weight]

        def weight(array: jax.Array, *earlier: jax.Array) -> jax.Array:
            start = earlier[0] if earlier else jnp.ones(shape, wide)
            return combine(start, jnp.broadcast_to(array, shape))

        return dataclasses.replace(term, weight=self.derive("weight", [by, *before], weight))

    def chosen(self, terms: Sequence[OuterProducts], which: Atom, case: int, cases: int) -> list:
        """Returns the terms where `which` chooses their case, zeros elsewhere."""

        def is_case(number: jax.Array) -> jax.Array:
            return jnp.clip(number.astype(jnp.int32), 0, cases - 1) == case

        kept = self.derive("case", [which], is_case)
        return [self.times(term, kept, kept_where) for term in terms]

    def contracted(
        self, term: OuterProducts, operation: Operation, side: int
    ) -> OuterProducts | None:
        """Contracts the leaf, operand `side` of a `dot_general`, with a matrix that all share.

        The matrix multiplies the factor that owns the contracted axes; None if both do.
        """
        contract, batch = operation.params["dimension_numbers"]
        split = term.layout.split_to_shape()
        if split is None or batch[0] or term.weight is not None or term.direct is not None:
            return None
        finer, runs = split
        own, others = tuple(contract[side]), tuple(contract[1 - side])
        gone = [index for axis in own for index in runs[axis]]
        owners = {finer.axes[index][0] for index in gone if finer.axes[index][1] > 1}
        if len(owners) != 1 or not owners <= {LEFT, RIGHT}:
            return None
        (owner,) = owners
        operand = term.left if owner == LEFT else term.right
        if operand.indices:
            return None
        shared = operation.inputs[1 - side]
        free = [axis for axis in range(len(shared.aval.shape)) if axis not in others]
        owned = [i for i, (name, _) in enumerate(finer.axes) if name == owner]
        sizes = [finer.axes[i][1] for i in owned]
        rest = [(name, size) for i, (name, size) in enumerate(finer.axes) if i not in gone]
        new = [(owner, shared.aval.shape[axis]) for axis in free]
        axes = (*rest, *new) if side == 0 else (*new, *rest)
        # Contracted axes of other factors have size 1, in the leaf and in the shared matrix.
        contracted = [index for axis in own for index in runs[axis] if index in owned]
        places = [2 + owned.index(index) for index in contracted]

        def change(array: jax.Array, matrix: jax.Array) -> jax.Array:
            rows = operand.rows(array)
            rows = rows.reshape(*rows.shape[:2], *sizes)
            first = jnp.moveaxis(widened(matrix), others, range(len(others)))
            kept = first.shape[len(others) :]
            first = first.reshape(*(finer.axes[index][1] for index in contracted), *kept)
            out = jnp.tensordot(rows, first, (places, list(range(len(places)))))
            if side == 1:  # the new axes come first
                count = len(kept)
                out = jnp.moveaxis(out, range(out.ndim - count, out.ndim), range(2, 2 + count))
            return out.reshape(*rows.shape[:2], -1)

        value = self.derive("factor", [operand.value, shared], change)
        changed = Operand(value, _as_it_is, math.prod(value.aval.shape[2:]))
        layout = Layout(tuple(axes), tuple(operation.outputs[0].aval.shape))
        if owner == LEFT:
            return dataclasses.replace(term, layout=layout, left=changed)
        return dataclasses.replace(term, layout=layout, right=changed)

    def placed(
        self,
        term: OuterProducts,
        axis: int,
        size: int,
        indices: Sequence[Atom],
        number: Callable[..., jax.Array],
    ) -> OuterProducts | None:
        """Places the leaf, whose `axis` has size 1, at one entry of a longer axis of zeros.

        `number` computes the entry from `indices`; outside [0, size) the leaf is dropped.
        """
        split = term.layout.split_to_shape()
        if split is None or term.left.indices or term.weight is not None:
            return None
        finer, runs = split
        (own,) = runs[axis]
        # The left factor's rows get the longer axis: zeros everywhere but at the one entry.
        before = [i for i, (name, _) in enumerate(finer.axes) if name == LEFT and i != own]
        sizes = [finer.axes[i][1] for i in before]
        place = sum(i < own for i in before)
        left = term.left

        def change(array: jax.Array, *values: jax.Array) -> jax.Array:
            rows = left.rows(array)
            rows = jnp.expand_dims(rows.reshape(*rows.shape[:2], *sizes), 2 + place)
            after = (1,) * (len(sizes) - place)
            here = (jnp.arange(size) == number(*values)).reshape(size, *after)
            return jnp.where(here, rows, 0).reshape(*rows.shape[:2], -1)

        value = self.derive("factor", [left.value, *indices], change)
        axes = list(finer.axes)
        axes[own] = (LEFT, size)
        shape = list(term.layout.shape)
        shape[axis] = size
        return dataclasses.replace(
            term,
            left=Operand(value, _as_it_is, left.features * size),
            layout=Layout(tuple(axes), tuple(shape)),
            direct=None,
        )

    def spread(self, operation: Operation) -> OuterProducts | None:
        """Reads `broadcast_in_dim` to a larger value as an outer product of ones and the value."""
        small = operation.inputs[0]
        if isinstance(small, Constant):
            return None
        shape = operation.outputs[0].aval.shape
        # Worth it only where the larger value is a matrix at least twice as large.
        matrix = sum(size > 1 for size in shape) > 1
        if not matrix or 2 * math.prod(small.aval.shape) > math.prod(shape):
            return None
        sources = {
            place: axis for axis, place in enumerate(operation.params["broadcast_dimensions"])
        }
        axes = tuple(
            (RIGHT if small.aval.shape[sources[axis]] == size else LEFT, size)
            if axis in sources
            else (LEFT, size)
            for axis, size in enumerate(shape)
        )
        layout = Layout(axes, tuple(shape))
        left = math.prod(layout.sizes(LEFT))
        right = math.prod(layout.sizes(RIGHT))
        wide = accumulator(small.aval.dtype)
        ones = self.derive("ones", [small], lambda _: jnp.ones((1, 1, left), wide))
        rows = Operand(small, lambda array: array.reshape(1, 1, right), right)
        return OuterProducts("dense", Operand(ones, _as_it_is, left), rows, 1, 1, layout)

    def sum_without_product(self, operation: Operation, terms: Sequence[OuterProducts]) -> bool:
        """Rewrites a `reduce_sum` of outer products to form none of them; says whether it did."""
        axes = operation.params["axes"]
        parts = []
        for term in terms:
            split = term.layout.split_to_shape()
            if split is None or term.direct is not None or term.left.indices:
                return False
            left, right = (operand.features for operand in term.operands)
            if left * right <= term.positions * (left + right):
                return False  # the product is no larger than its factors
            parts.append((term, *split))
        dtype = operation.outputs[0].aval.dtype
        inputs = [
            atom
            for term in terms
            for atom in (
                *(operand.value for operand in term.operands),
                *([] if term.weight is None else [term.weight]),
            )
        ]

        def function(*arrays: jax.Array) -> jax.Array:
            rest, total = list(arrays), jnp.zeros(())
            for term, finer, runs in parts:
                left, right = term.left.rows(rest.pop(0)), term.right.rows(rest.pop(0))
                weight = None if term.weight is None else rest.pop(0)
                total += term.scale * _sum_over(axes, finer, runs, left, right, weight)
            return total.astype(dtype)

        self._graph.replace(operation, inputs, function)
        return True


def _sum_over(
    axes: Sequence[int],
    finer: Layout,
    runs: Sequence[Sequence[int]],
    left: jax.Array,
    right: jax.Array,
    weight: jax.Array | None,
) -> jax.Array:
    """Sums over some axes of a leaf given by rows (stack, positions, features)."""
    # One einsum over both factors: a letter for each axis of the leaf, Z for the positions.
    letters = [chr(ord("a") + index) for index in range(len(finer.axes))]
    names = {
        factor: "".join(letters[i] for i, (owner, _) in enumerate(finer.axes) if owner == factor)
        for factor in (STACK, LEFT, RIGHT)
    }
    arrays = [
        left.reshape(*finer.sizes(STACK), left.shape[1], *finer.sizes(LEFT)),
        right.reshape(*finer.sizes(STACK), right.shape[1], *finer.sizes(RIGHT)),
    ]
    read = [f"{names[STACK]}Z{names[LEFT]}", f"{names[STACK]}Z{names[RIGHT]}"]
    if weight is not None:
        arrays.append(weight.reshape([size for _, size in finer.axes]))
        read.append("".join(letters))
    kept = [axis for axis in range(len(runs)) if axis not in axes]
    out = "".join(letters[index] for axis in kept for index in runs[axis])
    summed = jnp.einsum(f"{','.join(read)}->{out}", *arrays, optimize="optimal")
    return summed.reshape([finer.shape[axis] for axis in kept])


def _repeats_to(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    """Returns whether a shape is the wanted one, up to axes of size 1."""
    return len(shape) == len(wanted) and all(
        size in (1, other) for size, other in zip(shape, wanted, strict=True)
    )


def varying_axes(atom: Atom) -> set[int]:
    """Returns the axes along which a value may vary: unless more is known, all longer than 1."""
    shape = atom.aval.shape
    every = {axis for axis, size in enumerate(shape) if size > 1}
    if not every or is_zero(atom):
        return set()
    if isinstance(atom, Constant) or atom.producer is None:
        return every
    operation = atom.producer
    if operation.name == "broadcast_in_dim":
        inner = varying_axes(operation.inputs[0])
        places = operation.params["broadcast_dimensions"]
        return {int(places[axis]) for axis in inner}
    ranks = {len(each.aval.shape) for each in operation.inputs}
    if operation.name in _ENTRY_BY_ENTRY and ranks <= {0, len(shape)}:
        return set().union(*map(varying_axes, operation.inputs))
    return every


_ENTRY_BY_ENTRY = frozenset(
    {"mul", "div", "add", "add_any", "sub", "neg", "exp", "rsqrt", "sqrt", "square", "max", "min"}
    | {"convert_element_type", "copy", "integer_pow", "tanh", "logistic", "abs", "select_n"}
)


def _as_it_is(rows: jax.Array) -> jax.Array:
    return rows
