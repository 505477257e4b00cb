"""Recognising the gradient of a parameter as a sum of outer products.

Every rule looks at one operation of the jaxpr of `grad(loss)` for one example. `terms_of` walks
from a parameter's gradient back through steps that only rearrange or add, and stops at operations
that a rule knows: a `dot_general` (dense maps of any shape), a `scatter-add` into zeros
(embeddings), a `conv_general_dilated` of activations with cotangents, or a `scan` whose body holds
one of these. Where a step is not understood the answer is None and the gradient is materialised:
always correct.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from dpjax.training.clipping.convolution_rule import convolution
from dpjax.training.clipping.factored_terms import Operand, OuterProducts, Shared
from dpjax.training.clipping.jaxpr_graph import (
    Atom,
    Constant,
    Operation,
    Scan,
    Value,
    is_zero,
    number_of,
)
from dpjax.training.clipping.leaf_layout import LEFT, RIGHT, STACK, Layout
from dpjax.training.clipping.rearrangements import REARRANGEMENTS

Terms = Sequence[OuterProducts | Shared]

# Beyond this many uses of one parameter, tracing and compiling the pieces costs more than it saves.
_MOST_TERMS = 1000


class Recogniser:
    """Finds the terms of values of one graph (or of the body of a loop in it).

    Args:
      per_row: the values that depend on the example; None inside a loop, where all are taken to.
    """

    def __init__(self, per_row: set[Value] | None) -> None:
        self._per_row = per_row

    def terms_of(self, atom: Atom) -> Terms | None:
        """The terms that add up to a value; an empty list for zero, None where no rule matches."""
        if is_zero(atom):
            return []
        if isinstance(atom, Constant) or not _is_real(atom):
            return None
        if self._per_row is not None and atom not in self._per_row:
            return [Shared(atom)]
        operation = atom.producer
        if operation is None:
            return None
        if operation.name in ("add", "add_any", "sub"):
            return self._sum(operation)
        if isinstance(operation, Scan):
            return self._loop(operation, operation.outputs.index(atom))
        if operation.name in ("mul", "div"):
            return self._scaled(operation)
        if operation.name in _SOURCES:
            term = _SOURCES[operation.name](operation)
            return None if term is None else [term]
        if operation.name in REARRANGEMENTS:
            return self._rearranged(operation, operation.outputs.index(atom))
        return None

    def _sum(self, operation: Operation) -> Terms | None:
        first, second = (self.terms_of(atom) for atom in operation.inputs)
        if first is None or second is None or len(first) + len(second) > _MOST_TERMS:
            return None
        if operation.name == "sub":
            second = [term.scaled(-1.0) for term in second]
        return [*first, *second]

    def _scaled(self, operation: Operation) -> Terms | None:
        scalar = _scalar_factor(operation)
        if scalar is None or (terms := self.terms_of(scalar[0])) is None:
            return None
        return [term.scaled(scalar[1]) for term in terms]

    def _rearranged(self, operation: Operation, index: int) -> Terms | None:
        terms = _products(self.terms_of(operation.inputs[0]))
        step = REARRANGEMENTS[operation.name]
        return None if terms is None else _products([step(t, operation, index) for t in terms])

    def _loop(self, operation: Scan, index: int) -> Terms | None:
        """Terms of an output of a `scan`: of stacked outputs, or of a carry that only adds up."""
        loop, inner = operation.loop, Recogniser(None)
        output = loop.body.outputs[index]
        if index >= loop.carries:
            steps = _products(inner.terms_of(output))
            return None if steps is None else [_as_stack(term, operation) for term in steps]
        # A kernel that the loop's body reads at every step: its gradient is a carry to which each
        # step adds. The sum over steps is one more axis of positions.
        added = _added_to(loop.body.inputs[loop.constants + index], output)
        terms = self.terms_of(operation.inputs[loop.constants + index])
        for addend in () if added is None else added:
            found = _products(inner.terms_of(addend))
            if found is None or terms is None:
                return None
            terms = [*terms, *(_as_positions(term, operation) for term in found)]
        return None if added is None else terms


def _products(terms: Sequence[OuterProducts | Shared | None] | None) -> list[OuterProducts] | None:
    """The terms, where all are outer products: no rule takes another one apart."""
    found = [term for term in terms or () if isinstance(term, OuterProducts)]
    return None if terms is None or len(found) < len(terms) else found


def _added_to(carry: Value, output: Atom) -> list[Atom] | None:
    """What a loop's body adds to a carry, if adding is all it does to it."""
    if output is carry:
        return []
    if isinstance(output, Constant) or output.producer is None:
        return None
    if output.producer.name not in ("add", "add_any"):
        return None
    first, second = output.producer.inputs
    for atom, rest in ((first, second), (second, first)):
        before = _added_to(carry, atom)
        if before is not None:
            return [*before, rest]
    return None


def _is_real(value: Value) -> bool:
    return jnp.issubdtype(value.aval.dtype, jnp.floating)


def _scalar_factor(operation: Operation) -> tuple[Atom, float] | None:
    """Splits `value * number`, `number * value` or `value / number`."""
    first, second = operation.inputs
    number = number_of(second)
    if number is not None:
        if operation.name == "mul":
            return first, number
        return None if number == 0 else (first, 1 / number)
    number = number_of(first)
    return None if number is None or operation.name == "div" else (second, number)


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
    return OuterProducts("dense", operands[0], operands[1], stack, positions, layout)


def embedding(operation: Operation) -> OuterProducts | None:
    """`scatter-add` of rows into zeros: the gradient of reading rows of a table."""
    table, indices, updates = operation.inputs
    if not (isinstance(indices, Value) and isinstance(updates, Value)):
        return None
    numbers = operation.params["dimension_numbers"]
    rank = len(table.aval.shape)
    window = tuple(numbers.update_window_dims)
    plain = (
        is_zero(table)
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


_SOURCES: dict[str, Callable[[Operation], OuterProducts | None]] = {
    "dot_general": dense,
    "scatter-add": embedding,
    "conv_general_dilated": convolution,
}


# Loops ------------------------------------------------------------------------------------------


def _as_stack(term: OuterProducts, operation: Scan) -> OuterProducts:
    """A term of one step of a loop whose steps are stacked: one more stack axis, in front."""
    length = operation.loop.length

    def merge(rows: jax.Array) -> jax.Array:  # (length, stack, positions, ...)
        return rows.reshape(length * term.stack, *rows.shape[2:])

    left, right = (_stacked(operand, operation, merge) for operand in term.operands)
    layout = Layout(((STACK, length), *term.layout.axes), (length, *term.layout.shape))
    return dataclasses.replace(
        term, left=left, right=right, stack=length * term.stack, layout=layout, direct=None
    )


def _as_positions(term: OuterProducts, operation: Scan) -> OuterProducts:
    """A term of one step of a loop that adds up its steps: more positions."""
    length = operation.loop.length

    def merge(rows: jax.Array) -> jax.Array:  # (length, stack, positions, ...)
        moved = jnp.moveaxis(rows, 0, 1)
        return moved.reshape(term.stack, length * term.positions, *rows.shape[3:])

    left, right = (_stacked(operand, operation, merge) for operand in term.operands)
    return dataclasses.replace(
        term, left=left, right=right, positions=length * term.positions, direct=None
    )


def _stacked(operand: Operand, operation: Scan, merge: Callable[[jax.Array], jax.Array]) -> Operand:
    read = operand.read
    return dataclasses.replace(
        operand,
        value=operation.loop.stack(operation, operand.value),
        read=lambda array: merge(jax.vmap(read)(array)),
    )
