"""Recognises the gradient of a parameter as a sum of outer products.

Every rule looks at one operation of the jaxpr of `grad(loss)` for one example. `terms_of` walks
from a parameter's gradient back through steps that only rearrange or add, and stops at operations
that a rule knows: a `dot_general` (dense maps of any shape), a `scatter-add` into zeros
(embeddings), a `conv_general_dilated` of activations with cotangents, or a `scan` whose body holds
one of these. Linear maps with coefficients that all examples share, or that act on one factor only,
are carried through (`kernel_functions`). Where a step is not understood the answer is None and the
gradient is materialised: always correct.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp

from dpjax.training.clipping.convolution_rule import convolution
from dpjax.training.clipping.factored_terms import (
    LEFT,
    RIGHT,
    STACK,
    Layout,
    Operand,
    OuterProducts,
    Shared,
)
from dpjax.training.clipping.jaxpr_graph import (
    Atom,
    Constant,
    Derived,
    Graph,
    Operation,
    Scan,
    Value,
    is_zero,
    number_of,
    rows_of_body,
)
from dpjax.training.clipping.kernel_functions import KernelFunctions, divided, multiplied

Terms = Sequence[OuterProducts | Shared]

# Beyond this many uses of one parameter, tracing and compiling the pieces costs more than it saves.
_MOST_TERMS = 1000


class Recogniser:
    """Finds the terms of values of one graph (or of the body of a loop in it).

    Adds what terms need to `graph` (`put_in_order` before evaluating), and what of that depends on
    the example to `rows`. In a loop no term is the same for every example. `implicit` is as in
    `convolution_rule.convolution`.
    """

    def __init__(
        self, graph: Graph, rows: set[Value], in_loop: bool = False, implicit: bool = False
    ) -> None:
        self._rows, self._in_loop, self._implicit = rows, in_loop, implicit
        self._functions = KernelFunctions(graph, rows, in_loop)
        self._known: dict[Value, Terms | None] = {}
        self._bodies: dict[Scan, Recogniser] = {}

    def terms_of(self, atom: Atom) -> Terms | None:
        """Finds the terms that add up to a value; none for zero, None where no rule matches."""
        if is_zero(atom):
            return []
        if isinstance(atom, Constant) or not _is_real(atom):
            return None
        if atom not in self._known:
            self._known[atom] = self._terms_of(atom)
        return self._known[atom]

    def _terms_of(self, atom: Value) -> Terms | None:
        """Finds the terms by the rule for the value's operation; None where no rule matches."""
        if not self._in_loop and atom not in self._rows:
            return [Shared(atom)]  # it depends on no example
        operation = atom.producer
        # Of values added to the graph, only the choices of `spread_branches` are understood.
        if operation is None or isinstance(operation, Derived) and operation.name != "select_n":
            return None
        if operation.name in ("add", "add_any", "sub"):
            return self._sum(operation)
        if isinstance(operation, Scan):
            return self._loop(operation, operation.outputs.index(atom))
        if operation.name in ("mul", "div"):
            return self._scaled(operation)
        if operation.name == "select_n":
            return self._selected(operation)
        if operation.name == "dynamic_update_slice":
            return self._placed(operation)
        if operation.name in ("scatter-add", "scatter"):
            terms = self._scattered(operation)
            if terms is not None:
                return terms
        if operation.name == "dot_general":
            terms = self._contracted(operation)
            if terms is not None:
                return terms
        if operation.name == "conv_general_dilated":
            term = convolution(operation, self._implicit)
            return None if term is None else [term]
        if operation.name in _SOURCES:
            term = _SOURCES[operation.name](operation)
            return None if term is None else [term]
        if operation.name in REARRANGEMENTS:
            terms = self._rearranged(operation, operation.outputs.index(atom))
            if terms is None and operation.name == "broadcast_in_dim":
                return _products([self._functions.spread(operation)])
            return terms
        return None

    def spare_products(self, atom: Atom) -> None:
        """Rewrites sums over axes of products, on the way to a value, so that no product is formed.

        These are sums that reach the value by maps with shared coefficients: gradients of scales,
        and the sums inside the gradient of a normalised kernel. Terms are then looked for anew.
        """
        seen: set[Atom] = set()

        def look(atom: Atom) -> None:
            if isinstance(atom, Constant) or atom.producer is None or atom in seen:
                return
            seen.add(atom)
            operation = atom.producer
            if isinstance(operation, Derived) or operation.name not in LINEAR:
                return
            rows = [each for each in operation.inputs if each in self._rows]
            if len(rows) != 1 and operation.name not in ("add", "add_any", "sub"):
                return
            for each in rows:
                look(each)
            if operation.name == "reduce_sum":
                terms = self._of_rows(rows[0])
                if terms and self._functions.sum_without_product(operation, terms):
                    self._known.clear()

        look(atom)

    def forms_a_product(self, atom: Atom) -> bool:
        """Returns whether a value is larger than the activations that it is formed from.

        Looks behind maps that are linear with shared coefficients: a scaled product is still one.
        """
        if isinstance(atom, Constant) or atom.producer is None or atom not in self._rows:
            return False
        operation = atom.producer
        if isinstance(operation, Scan):
            return self._loop_forms_a_product(operation, operation.outputs.index(atom))
        rows = [each for each in operation.inputs if each in self._rows]
        if operation.name in ("add", "add_any", "sub", "select_n", "concatenate"):
            return any(self.forms_a_product(each) for each in rows)
        if isinstance(operation, Derived):
            return False
        if operation.name in LINEAR:
            return len(rows) == 1 and self.forms_a_product(rows[0])
        inputs = [each for each in operation.inputs if not is_zero(each)]
        return math.prod(atom.aval.shape) > sum(math.prod(each.aval.shape) for each in inputs)

    def _loop_forms_a_product(self, operation: Scan, index: int) -> bool:
        """Returns whether a loop forms a product at each step, for this output."""
        loop, inner = operation.loop, self._inside(operation)
        output = loop.body.outputs[index]
        if index >= loop.carries:
            return inner.forms_a_product(output)
        # A carry is a sum over steps, or, if anything else is done to it, is taken to be a product.
        added = _added_to(loop.body.inputs[loop.constants + index], output)
        return added is None or any(inner.forms_a_product(each) for each in added)

    def _sum(self, operation: Operation) -> Terms | None:
        """Reads a sum or a difference: the terms of both inputs."""
        if any(atom.aval.shape != operation.outputs[0].aval.shape for atom in operation.inputs):
            return None  # one of them is repeated along axes of size 1
        first, second = (self.terms_of(atom) for atom in operation.inputs)
        if first is None or second is None or len(first) + len(second) > _MOST_TERMS:
            return None
        if operation.name == "sub":
            second = [term.scaled(-1.0) for term in second]
        return [*first, *second]

    def _scaled(self, operation: Operation) -> Terms | None:
        """Reads a product or quotient with a number, or with an array entry by entry."""
        scalar = _scalar_factor(operation)
        if scalar is not None:
            terms = self.terms_of(scalar[0])
            return None if terms is None else [term.scaled(scalar[1]) for term in terms]
        first, second = operation.inputs
        combine = multiplied if operation.name == "mul" else divided
        for atom, by in ((first, second), (second, first))[: 2 if operation.name == "mul" else 1]:
            if atom.aval.shape != operation.outputs[0].aval.shape:
                continue
            terms = self._of_rows(atom)
            if terms is not None:
                return _products([self._functions.times(term, by, combine) for term in terms])
        return None

    def _of_rows(self, atom: Atom) -> list[OuterProducts] | None:
        """Returns the outer products that add up to a kernel's gradient; None for other values.

        Activations are products too, of activations and kernels. What tells them apart: a gradient
        is larger than its factors, or both factors depend on the example.
        """
        if atom not in self._rows or sum(size > 1 for size in atom.aval.shape) < 2:
            return None
        terms = _products(self.terms_of(atom))
        if terms and all(map(self._is_of_rows, terms)):
            return terms
        return None

    def _is_of_rows(self, term: OuterProducts) -> bool:
        """Returns whether a term is larger than its factors, or both depend on the example."""
        left, right = (operand.features for operand in term.operands)
        larger = left * right > term.positions * (left + right)
        return larger or all(operand.value in self._rows for operand in term.operands)

    def _selected(self, operation: Operation) -> Terms | None:
        """Reads a choice between cases: the terms of each, zero where it is not chosen."""
        which, *cases = operation.inputs
        found: list[OuterProducts | None] = []
        for case, atom in enumerate(cases):
            if is_zero(atom):
                continue
            terms = self._of_rows(atom)
            if terms is None:
                return None
            found += self._functions.chosen(terms, which, case, len(cases))
        return _products(found)

    def _placed(self, operation: Operation) -> Terms | None:
        """Reads `dynamic_update_slice` of zeros that writes one entry along one axis."""
        zeros, update, *starts = operation.inputs
        outer, inner = zeros.aval.shape, update.aval.shape
        differing = [i for i, size in enumerate(outer) if size != inner[i]]
        if len(differing) != 1 or inner[differing[0]] != 1 or not is_zero(zeros):
            return None
        (axis,) = differing
        size = outer[axis]
        terms = self._of_rows(update)
        if terms is None:
            return None
        start = starts[axis]

        def number(value: jax.Array) -> jax.Array:
            return jnp.clip(value, 0, size - 1)

        return _products(
            [self._functions.placed(term, axis, size, [start], number) for term in terms]
        )

    def _scattered(self, operation: Operation) -> Terms | None:
        """Reads a scatter of one entry, along the first axis, into zeros."""
        zeros, indices, updates = operation.inputs
        numbers = operation.params["dimension_numbers"]
        rank = len(zeros.aval.shape)
        plain = (
            is_zero(zeros)
            and isinstance(indices, Value)
            and tuple(numbers.inserted_window_dims) == (0,)
            and tuple(numbers.scatter_dims_to_operand_dims) == (0,)
            and not numbers.operand_batching_dims
            and tuple(numbers.update_window_dims) == tuple(range(rank - 1))
            and updates.aval.shape == zeros.aval.shape[1:]
        )
        terms = self._of_rows(updates) if plain else None
        if terms is None:
            return None
        size = zeros.aval.shape[0]
        clipped = operation.params["mode"] == jax.lax.GatherScatterMode.CLIP

        def number(value: jax.Array) -> jax.Array:
            return _row_numbers(value.reshape(()), size, clipped)

        leaves = [term.reshaped((1, *updates.aval.shape)) for term in terms]
        return _products(
            [self._functions.placed(term, 0, size, [indices], number) for term in leaves]
        )

    def _contracted(self, operation: Operation) -> Terms | None:
        """Reads a product of an outer product with a shared matrix, as in `x @ (a @ b)`."""
        for side, atom in enumerate(operation.inputs):
            other = operation.inputs[1 - side]
            shared = isinstance(other, Value) and other not in self._rows and _is_real(other)
            terms = self._of_rows(atom) if shared else None
            if terms is not None:
                return _products(
                    [self._functions.contracted(term, operation, side) for term in terms]
                )
        return None

    def _rearranged(self, operation: Operation, index: int) -> Terms | None:
        """Reads an operation that only moves entries: the same terms, their axes rearranged."""
        terms = _products(self.terms_of(operation.inputs[0]))
        if terms is None:
            return None
        return _products([self._moved(term, operation, index) for term in terms])

    def _moved(self, term: OuterProducts, operation: Operation, index: int) -> OuterProducts | None:
        """Rearranges the axes of a term, and of its weight with it."""
        moved = REARRANGEMENTS[operation.name](term, operation, index)
        if moved is None or moved.weight is None or operation.name == "convert_element_type":
            return moved
        dtype = operation.inputs[0].aval.dtype

        def move(weight: jax.Array, *others: jax.Array) -> jax.Array:
            return operation.apply([weight.astype(dtype), *others])[index]

        inputs = [moved.weight, *operation.inputs[1:]]
        return dataclasses.replace(moved, weight=self._functions.derive("weight", inputs, move))

    def _inside(self, operation: Scan) -> Recogniser:
        """Returns the recogniser of a loop's body."""
        if operation not in self._bodies:
            rows = rows_of_body(operation, self._rows)
            self._bodies[operation] = Recogniser(operation.loop.body, rows, True, self._implicit)
        return self._bodies[operation]

    def _loop(self, operation: Scan, index: int) -> Terms | None:
        """Reads an output of a `scan`: a stacked output, or a carry that each step adds to."""
        loop = operation.loop
        inner = self._inside(operation)
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
    """Returns the terms if all are outer products, else None."""
    found = [term for term in terms or () if isinstance(term, OuterProducts)]
    return None if terms is None or len(found) < len(terms) else found


def _added_to(carry: Value, output: Atom) -> list[Atom] | None:
    """Finds what a loop's body adds to a carry; None if it does anything else to it."""
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
    """Splits `value * number`, `number * value` or `value / number` into (value, factor)."""
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
    """Reads `dot_general`: positions are contracted, the stack is batched, features are free."""
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


def _row_numbers(array: jax.Array, size: int, clipped: bool) -> jax.Array:
    """Returns indices of rows as a gather or scatter reads them."""
    # Numbers of rows, and the one behind the last, may be none of a narrow type.
    wide = array.astype(jnp.promote_types(array.dtype, jnp.int32))
    return jnp.clip(wide, 0, size - 1) if clipped else wide


def embedding(operation: Operation) -> OuterProducts | None:
    """Reads `scatter-add` of rows into zeros: the gradient of reading rows of a table."""
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
        return _row_numbers(array.reshape(1, positions), vocabulary, clipped)

    left = Operand(indices, read_indices, vocabulary, indices=True)
    right = Operand(updates, _rows((*looked_up, *window), (1, positions, columns)), columns)
    axes = ((LEFT, vocabulary), *((RIGHT, size) for size in table.aval.shape[1:]))
    return OuterProducts(
        "embedding", left, right, 1, positions, Layout(axes, tuple(table.aval.shape))
    )


def _rows(order: tuple[int, ...], shape: tuple[int, ...]) -> Callable[[jax.Array], jax.Array]:
    return lambda array: array.transpose(order).reshape(shape)


LINEAR = frozenset(
    {"add", "add_any", "sub", "neg", "mul", "div", "reduce_sum", "select_n", "slice", "pad"}
    | {"reshape", "squeeze", "broadcast_in_dim", "transpose", "convert_element_type", "copy"}
)
"""Operations that are linear in one input where the others are shared: those that
`Recogniser.spare_products` looks behind."""


_SOURCES: dict[str, Callable[[Operation], OuterProducts | None]] = {
    "dot_general": dense,
    "scatter-add": embedding,
}


# Loops ------------------------------------------------------------------------------------------


def _as_stack(term: OuterProducts, operation: Scan) -> OuterProducts:
    """Turns the term of one step into that of a loop that stacks its steps."""
    length = operation.loop.length

    def merge(rows: jax.Array) -> jax.Array:  # (length, stack, positions, ...)
        return rows.reshape(length * term.stack, *rows.shape[2:])

    left, right = (_stacked(operand, operation, merge) for operand in term.operands)
    layout = Layout(((STACK, length), *term.layout.axes), (length, *term.layout.shape))
    return dataclasses.replace(
        term, left=left, right=right, stack=length * term.stack, layout=layout, direct=None
    )


def _as_positions(term: OuterProducts, operation: Scan) -> OuterProducts:
    """Turns the term of one step into that of a loop that adds up its steps: more positions."""
    length = operation.loop.length

    def merge(rows: jax.Array) -> jax.Array:  # (length, stack, positions, ...)
        moved = jnp.moveaxis(rows, 0, 1)
        return moved.reshape(term.stack, length * term.positions, *rows.shape[3:])

    left, right = (_stacked(operand, operation, merge) for operand in term.operands)
    return dataclasses.replace(
        term, left=left, right=right, positions=length * term.positions, direct=None
    )


def _stacked(operand: Operand, operation: Scan, merge: Callable[[jax.Array], jax.Array]) -> Operand:
    """Returns the operand of all steps of a loop; `merge` joins the steps' rows."""
    read = operand.read
    return dataclasses.replace(
        operand,
        value=operation.loop.stack(operation, operand.value),
        read=lambda array: merge(jax.vmap(read)(array)),
    )


# Rearrangements ----------------------------------------------------------------------------------
#
# Steps between a product and the gradient of a parameter that only move its entries. Each takes a
# term, the operation and which of its outputs is meant, and returns the term after it, or None
# where the step mixes the two factors so that no factored form remains.

Step = Callable[[OuterProducts, Operation, int], OuterProducts | None]


def _reshape(term: OuterProducts, operation: Operation, _: int) -> OuterProducts | None:
    """Reads a reshape or a squeeze."""
    # Batching may make reshapes that permute first; squeezes use `dimensions` for their axes.
    if operation.name == "reshape" and operation.params.get("dimensions") is not None:
        return None
    return term.reshaped(operation.outputs[0].aval.shape)


def _broadcast(term: OuterProducts, operation: Operation, _: int) -> OuterProducts | None:
    """Reads a broadcast that only adds axes of size 1."""
    shape = operation.outputs[0].aval.shape
    return term.reshaped(shape) if math.prod(shape) == math.prod(term.layout.shape) else None


def _slice(term: OuterProducts, operation: Operation, _: int) -> OuterProducts | None:
    """Reads a slice."""
    params = operation.params
    strides = params["strides"] or (1,) * len(params["start_indices"])
    return _sliced(term, params["start_indices"], params["limit_indices"], strides)


def _part(term: OuterProducts, operation: Operation, index: int) -> OuterProducts | None:
    """Reads one part of a split."""
    axis, sizes = operation.params["axis"], operation.params["sizes"]
    starts, limits = [0] * len(term.layout.shape), list(term.layout.shape)
    starts[axis] = sum(sizes[:index])
    limits[axis] = starts[axis] + sizes[index]
    return _sliced(term, starts, limits, [1] * len(starts))


def _sliced(
    term: OuterProducts, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int]
) -> OuterProducts | None:
    """Slices each axis of a term that gets shorter; None where one mixes the factors."""
    result: OuterProducts | None = term
    for axis, (size, *bounds) in enumerate(zip(term.layout.shape, starts, limits, strides)):
        part = slice(*map(int, bounds))
        new_size = len(range(part.start, part.stop, part.step))
        if result is not None and new_size != size:
            result = result.along_axis(axis, new_size, partial(_slice_axis, part=part))
    return result


def _slice_axis(array: jax.Array, axis: int, part: slice) -> jax.Array:
    return jax.lax.slice_in_dim(array, part.start, part.stop, part.step, axis)


def _pad(term: OuterProducts, operation: Operation, _: int) -> OuterProducts | None:
    """Reads a padding with zeros."""
    if not is_zero(operation.inputs[1]):
        return None
    result: OuterProducts | None = term
    for axis, widths in enumerate(operation.params["padding_config"]):
        if result is not None and any(widths):
            new_size = operation.outputs[0].aval.shape[axis]
            result = result.along_axis(axis, new_size, partial(_pad_axis, widths=widths))
    return result


def _pad_axis(array: jax.Array, axis: int, widths: tuple[int, int, int]) -> jax.Array:
    """Pads one axis with zeros."""
    config = [widths if index == axis else (0, 0, 0) for index in range(array.ndim)]
    return jax.lax.pad(array, jnp.zeros((), array.dtype), config)


def _reverse(term: OuterProducts, operation: Operation, _: int) -> OuterProducts | None:
    """Reads a reversal of axes."""
    result: OuterProducts | None = term
    for axis in operation.params["dimensions"]:
        if result is not None:
            result = result.along_axis(axis, term.layout.shape[axis], jnp.flip)
    return result


def _convert(term: OuterProducts, operation: Operation, _: int) -> OuterProducts | None:
    """Reads a conversion to another floating-point type, as no change."""
    # Norms and sums are formed in float32 or wider whatever the type that the gradient passes
    # through, so the rounding in between is left out.
    return term if jnp.issubdtype(operation.outputs[0].aval.dtype, jnp.floating) else None


def _same(term: OuterProducts, operation: Operation, _: int) -> OuterProducts:
    return term


REARRANGEMENTS: dict[str, Step] = {
    "transpose": lambda term, operation, _: term.transposed(operation.params["permutation"]),
    "reshape": _reshape,
    "squeeze": _reshape,
    "broadcast_in_dim": _broadcast,
    "slice": _slice,
    "split": _part,
    "pad": _pad,
    "rev": _reverse,
    "convert_element_type": _convert,
    "copy": _same,
    "copy_p": _same,
    "name": _same,
    "neg": lambda term, operation, _: term.scaled(-1.0),
}
