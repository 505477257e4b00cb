"""Recognising the gradient of a parameter as a sum of outer products.

Every rule looks at one operation of the jaxpr of `grad(loss)` for one example. `terms_of` walks
from a parameter's gradient back through steps that only rearrange or add, and stops at operations
that a rule knows: a `dot_general` (dense maps of any shape), a `scatter-add` into zeros (embeddings), a
`conv_general_dilated` of activations with cotangents, or a `scan` whose body holds one of these.
Where a step is not understood, or where something else reads a value on the way, the answer is None
and the gradient is materialised: always correct.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.training.factored_terms import (
    LEFT,
    RIGHT,
    STACK,
    Layout,
    Operand,
    OuterProducts,
)
from dpjax.training.jaxpr_graph import Atom, Constant, Graph, Operation, Value

Terms = list[OuterProducts]


class Recogniser:
    """Finds the terms of values of one graph (or of the body of a loop in it)."""

    def __init__(self, graph: Graph) -> None:
        self.uses: Counter[Value] = graph.uses()

    def terms_of(self, atom: Atom, uses: int) -> Terms | None:
        """The outer products that add up to a value; an empty list for zero.

        Args:
          atom: the value.
          uses: how many readers the caller accounts for; with more, the value must exist anyway.
        """
        if isinstance(atom, Constant):
            return [] if not np.any(np.asarray(atom.array)) else None
        operation = atom.producer
        if operation is None or self.uses[atom] > uses or not _is_real(atom):
            return None
        if _is_zero(atom):
            return []
        if operation.name in ("add", "add_any"):
            return self._sum(operation)
        if operation.name == "scan":
            return self._loop(operation, operation.outputs.index(atom))
        if operation.name in _SOURCES:
            term = _SOURCES[operation.name](operation)
            return None if term is None else [term]
        if operation.name in _REARRANGEMENTS:
            return self._rearranged(operation, atom)
        return None

    def _sum(self, operation: Operation) -> Terms | None:
        first, second = operation.inputs
        if first.aval.shape != second.aval.shape:
            return None
        parts = [self.terms_of(first, 1), self.terms_of(second, 1)]
        return None if None in parts else parts[0] + parts[1]

    def _rearranged(self, operation: Operation, output: Value) -> Terms | None:
        source = operation.inputs[0]
        if operation.name in ("mul", "div"):
            scalar = _scalar_factor(operation)
            if scalar is None:
                return None
            source, factor = scalar
            terms = self.terms_of(source, 1)
            return None if terms is None else [term.scaled(factor) for term in terms]
        terms = self.terms_of(source, 1)
        if terms is None:
            return None
        step = _REARRANGEMENTS[operation.name]
        changed = [step(term, operation) for term in terms]
        return None if None in changed else changed

    def _loop(self, operation: Operation, index: int) -> Terms | None:
        """Terms of an output of a `scan`: of stacked outputs, or of a carry that only adds up."""
        loop = operation.loop
        inner = Recogniser(loop.body)
        output = loop.body.outputs[index]
        if index >= loop.carries:
            terms = inner.terms_of(output, 1)
            lifted = None if terms is None else [_as_stack(t, operation) for t in terms]
            return None if lifted is None or None in lifted else lifted
        # A kernel that the loop's body reads at every step: its gradient is a carry to which each
        # step adds. The sum over steps is one more axis of positions.
        carry = loop.body.inputs[loop.constants + index]
        added = _addends_besides(output, carry, inner)
        start = self.terms_of(operation.inputs[loop.constants + index], 1)
        if added is None or start is None:
            return None
        terms: Terms = list(start)
        for addend in added:
            found = inner.terms_of(addend, 1)
            if found is None:
                return None
            terms += [_as_positions(term, operation) for term in found]
        return terms


def _addends_besides(output: Atom, carry: Value, inner: Recogniser) -> list[Atom] | None:
    """What a loop's body adds to a carry, if adding is all it does to it."""
    if output is carry:
        return []
    if isinstance(output, Constant) or output.producer is None or inner.uses[output] != 1:
        return None
    if output.producer.name not in ("add", "add_any") or inner.uses[carry] != 1:
        return None
    for atom, rest in (output.producer.inputs, output.producer.inputs[::-1]):
        before = _addends_besides(atom, carry, inner)
        if before is not None:
            return [*before, rest]
    return None


def _is_real(value: Value) -> bool:
    return jnp.issubdtype(value.aval.dtype, jnp.floating)


def _is_zero(atom: Atom) -> bool:
    """Whether a value is zeros by construction."""
    if isinstance(atom, Constant):
        return not np.any(np.asarray(atom.array))
    producer = atom.producer
    return (
        producer is not None
        and producer.name in ("broadcast_in_dim", "convert_element_type", "reshape")
        and _is_zero(producer.inputs[0])
    )


def _scalar_factor(operation: Operation) -> tuple[Atom, float] | None:
    """Splits `value * number`, `number * value` or `value / number`."""
    first, second = operation.inputs
    if isinstance(second, Constant) and np.ndim(second.array) == 0:
        number = float(second.array)
        return (first, number) if operation.name == "mul" else (first, 1.0 / number)
    if operation.name == "mul" and isinstance(first, Constant) and np.ndim(first.array) == 0:
        return second, float(first.array)
    return None


# Sources ----------------------------------------------------------------------------------------


def dense(operation: Operation) -> OuterProducts | None:
    """`dot_general`: contracted axes are positions, batched axes the stack, free axes features."""
    (contract, batch) = operation.params["dimension_numbers"]
    operands, free_sizes = [], []
    stack = positions = 1
    for atom, contracted, batched in zip(operation.inputs, contract, batch, strict=True):
        if isinstance(atom, Constant) or not _is_real(atom):
            return None
        shape = atom.aval.shape
        free = [axis for axis in range(len(shape)) if axis not in (*contracted, *batched)]
        stack = math.prod(shape[axis] for axis in batched)
        positions = math.prod(shape[axis] for axis in contracted)
        features = math.prod(shape[axis] for axis in free)
        rows = _rows((*batched, *contracted, *free), (stack, positions, features))
        operands.append(Operand(atom, rows, features))
        free_sizes.append([shape[axis] for axis in free])
    batched_sizes = [operation.inputs[0].aval.shape[axis] for axis in batch[0]]
    axes = [
        (factor, size)
        for factor, sizes in zip((STACK, LEFT, RIGHT), (batched_sizes, *free_sizes), strict=True)
        for size in sizes
    ]
    layout = Layout(tuple(axes), tuple(size for _, size in axes))
    return OuterProducts("dense", *operands, stack, positions, layout)


def embedding(operation: Operation) -> OuterProducts | None:
    """`scatter-add` of rows into zeros: the gradient of reading rows of a table."""
    table, indices, updates = operation.inputs
    numbers = operation.params["dimension_numbers"]
    rank = len(table.aval.shape)
    window = tuple(numbers.update_window_dims)
    plain = (
        _is_zero(table)
        and isinstance(updates, Value)
        and isinstance(indices, Value)
        and tuple(numbers.inserted_window_dims) == (0,)
        and tuple(numbers.scatter_dims_to_operand_dims) == (0,)
        and not numbers.operand_batching_dims
        and len(window) == rank - 1
        and indices.aval.shape[-1] == 1
    )
    if not plain:
        return None
    shape = updates.aval.shape
    looked_up = [axis for axis in range(len(shape)) if axis not in window]
    if any(shape[axis] != size for axis, size in zip(window, table.aval.shape[1:], strict=True)):
        return None
    positions = math.prod(shape[axis] for axis in looked_up)
    columns = math.prod(table.aval.shape[1:])
    vocabulary = table.aval.shape[0]
    clipped = operation.params["mode"] == jax.lax.GatherScatterMode.CLIP

    def read_indices(array: jax.Array) -> jax.Array:
        flat = array.reshape(1, positions)
        return jnp.clip(flat, 0, vocabulary - 1) if clipped else flat

    left = Operand(indices, read_indices, vocabulary, indices=True)
    right = Operand(updates, _rows((*looked_up, *window), (1, positions, columns)), columns)
    axes = ((LEFT, vocabulary), *((RIGHT, size) for size in table.aval.shape[1:]))
    return OuterProducts(
        "embedding", left, right, 1, positions, Layout(axes, tuple(table.aval.shape))
    )


def _rows(order: tuple[int, ...], shape: tuple[int, ...]) -> Callable[[jax.Array], jax.Array]:
    return lambda array: array.transpose(order).reshape(shape)


# Steps that only rearrange ------------------------------------------------------------------------


def _transpose(term: OuterProducts, operation: Operation) -> OuterProducts | None:
    return term.transposed(operation.params["permutation"])


def _reshape(term: OuterProducts, operation: Operation) -> OuterProducts | None:
    if operation.params.get("dimensions") is not None:
        return None
    return term.reshaped(operation.outputs[0].aval.shape)


def _broadcast(term: OuterProducts, operation: Operation) -> OuterProducts | None:
    output = operation.outputs[0].aval
    if math.prod(output.shape) != math.prod(term.layout.shape):
        return None
    return term.reshaped(output.shape)


def _slice(term: OuterProducts, operation: Operation) -> OuterProducts | None:
    strides = operation.params["strides"]
    if strides is not None and any(stride != 1 for stride in strides):
        return None
    return term.sliced(operation.params["start_indices"], operation.params["limit_indices"])


def _convert(term: OuterProducts, operation: Operation) -> OuterProducts | None:
    # Norms and sums are formed in float32 or wider whatever the type that the gradient passes
    # through, so the rounding in between is left out.
    return term if _is_real(operation.outputs[0]) else None


_REARRANGEMENTS: dict[str, Callable[[OuterProducts, Operation], OuterProducts | None] | None] = {
    "transpose": _transpose,
    "reshape": _reshape,
    "squeeze": _reshape,
    "broadcast_in_dim": _broadcast,
    "slice": _slice,
    "convert_element_type": _convert,
    "copy": lambda term, _: term,
    "copy_p": lambda term, _: term,
    "name": lambda term, _: term,
    "neg": lambda term, _: term.scaled(-1.0),
    "mul": None,
    "div": None,
}

_SOURCES: dict[str, Callable[[Operation], OuterProducts | None]] = {
    "dot_general": dense,
    "scatter-add": embedding,
}


# Loops ------------------------------------------------------------------------------------------


def _as_stack(term: OuterProducts, operation: Operation) -> OuterProducts | None:
    """A term of one step of a loop whose steps are stacked: one more stack axis, in front."""
    length = operation.loop.length

    def merge(rows: jax.Array) -> jax.Array:  # (length, stack, positions, ...)
        return rows.reshape(length * term.stack, *rows.shape[2:])

    left, right = (_stacked(operand, operation, merge) for operand in term.operands)
    layout = Layout(((STACK, length), *term.layout.axes), (length, *term.layout.shape))
    return dataclasses.replace(
        term, left=left, right=right, stack=length * term.stack, layout=layout, direct_sum=None
    )


def _as_positions(term: OuterProducts, operation: Operation) -> OuterProducts:
    """A term of one step of a loop that adds up its steps: more positions."""
    length = operation.loop.length

    def merge(rows: jax.Array) -> jax.Array:  # (length, stack, positions, ...)
        moved = jnp.moveaxis(rows, 0, 1)
        return moved.reshape(term.stack, length * term.positions, *rows.shape[3:])

    left, right = (_stacked(operand, operation, merge) for operand in term.operands)
    return dataclasses.replace(
        term, left=left, right=right, positions=length * term.positions, direct_sum=None
    )


def _stacked(
    operand: Operand, operation: Operation, merge: Callable[[jax.Array], jax.Array]
) -> Operand:
    read = operand.read
    return dataclasses.replace(
        operand,
        value=operation.loop.stack(operation, operand.value),
        read=lambda array: merge(jax.vmap(read)(array)),
    )
