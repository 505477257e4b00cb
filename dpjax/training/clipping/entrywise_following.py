"""What follows a convolution entry by entry, for a kernel to do before it writes.

A bias, an activation, and the activation's derivative that multiplies a cotangent, would each read
what the kernel wrote and write as much again. `with_following` finds them in the graph, and has the
kernel write what others read: an activation, a cotangent. Where the backward pass needs more (a
mask, the derivative of a GELU), it also writes the value that all of it is computed from.

Norms and sums read what is in memory as before: a value that is to be formed once is written by the
kernel, or computed from what the kernel wrote.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from functools import partial

import jax
import jax.numpy as jnp

from dpjax.training.clipping.implicit_convolution import Following, convolve_and
from dpjax.training.clipping.jaxpr_graph import (
    Atom,
    Constant,
    Graph,
    Operation,
    Value,
    needed_for,
    number_of,
)

_ENTRYWISE = frozenset(
    {"add", "add_any", "sub", "mul", "div", "neg", "abs", "sign", "max", "min", "tanh", "logistic"}
    | {"exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "square", "integer_pow", "select_n"}
    | {"gt", "ge", "lt", "le", "eq", "ne", "and", "or", "convert_element_type", "copy"}
)
"""Operations that Triton has, too."""
_INLINED = _ENTRYWISE | {"erf", "erfc", "pow", "not", "reduce_sum", "reduce_max", "reduce_min"}
"""Operations that a compiler puts together with the one that forms what they read."""
_TYPES = (jnp.float32, jnp.bfloat16, jnp.bool_)


def with_following(graph: Graph, operation: Operation, wanted: Sequence[Atom]) -> bool:
    """Has the kernel of an implicit convolution do what follows; returns whether anything does.

    The graph must be in order; call `put_in_order` before evaluating. `wanted` is read once the
    graph is evaluated.
    """
    (result,) = operation.outputs
    numbers = operation.params["dimension_numbers"]
    region = _Region(graph, result, numbers.out_spec[1], wanted)
    outputs = region.outputs()
    if result.aval.shape[numbers.out_spec[0]] > 1 or outputs == [result]:
        return False
    others, steps = region.steps(outputs)
    # Triton's places of more than 2^31 entries of one byte, of all rows together, would wrap.
    if any(map(_is_mask, (*outputs, *others))):
        return False

    def function(total: jax.Array, *tiles: jax.Array) -> list[jax.Array]:
        known: dict[Atom, jax.Array] = {result: total.astype(result.aval.dtype)}
        known |= dict(zip(others, tiles, strict=True))

        def tile(atom: Atom) -> jax.Array:
            number = number_of(atom)
            found = known[atom] if number is None else jnp.asarray(number, atom.aval.dtype)
            found = jnp.broadcast_to(found, total.shape)
            # Triton has some operations in float32 only.
            return found if found.dtype == bool else found.astype(jnp.float32)

        for step in steps:
            read = list(map(tile, step.inputs))
            (found,) = read if step.name in ("broadcast_in_dim", "copy") else step.apply(read)
            if step.name in ("max", "min"):
                # Triton's ignore NaN.
                first, second = read
                found = jnp.where((first == first) & (second == second), found, first + second)
            (value,) = step.outputs
            known[value] = found.astype(value.aval.dtype)
        return [known[value] for value in outputs]

    following = Following(function, [value.aval.dtype for value in outputs])
    form = partial(convolve_and, operation.params, following)
    graph.replace(operation, [*operation.inputs, *others], form, outputs)
    return True


class _Region:
    """Holds what is computed from a convolution's result entry by entry."""

    def __init__(self, graph: Graph, result: Value, features: int, wanted: Sequence[Atom]) -> None:
        self._shape, self._features = result.aval.shape, features
        self._wanted, needed = set(wanted), needed_for(graph, wanted)
        self._convolution, later = result.producer, graph.influenced_by({result})
        self._members = {result: None}  # in order
        self._readers: dict[Atom, list[Operation]] = {}
        for operation in graph.operations:
            if needed.isdisjoint(operation.outputs):
                continue
            own = [atom in self._members for atom in operation.inputs]
            others = set(operation.inputs) - self._members.keys()
            if any(own) and self._is_entrywise(operation) and later.isdisjoint(others):
                self._members[operation.outputs[0]] = None
            for atom in dict.fromkeys(operation.inputs):
                self._readers.setdefault(atom, []).append(operation)

    def _fits(self, atom: Atom, places: Iterable[int] | None = None) -> bool:
        """Returns whether an operand has the result's shape, a number per feature, or just one."""
        shape = atom.aval.shape
        axes = zip(range(len(shape)) if places is None else places, shape)
        return atom.aval.dtype in _TYPES and (
            shape == self._shape or all(size == 1 or axis == self._features for axis, size in axes)
        )

    def _is_entrywise(self, operation: Operation) -> bool:
        """Returns whether an operation can be done tile by tile."""
        if operation.equation is None or operation.outputs[0].aval.shape != self._shape:
            return False
        if operation.name == "broadcast_in_dim":
            return self._fits(operation.inputs[0], operation.params["broadcast_dimensions"])
        return operation.name in _ENTRYWISE and all(
            map(self._fits, (*operation.inputs, *operation.outputs))
        )

    def _leaves(self, value: Value) -> list[Operation]:
        """Returns the operations outside of the region that read a value."""
        return [
            each for each in self._readers.get(value, ()) if each.outputs[0] not in self._members
        ]

    def outputs(self) -> list[Value]:
        """Returns the values that the kernel is to write."""
        (end, *_) = self._members
        while end not in self._wanted and not self._leaves(end):
            (reader, *more) = self._readers.get(end, (None,))
            if reader is None or more or _is_mask(reader.outputs[0]):
                break
            end = reader.outputs[0]
        read = {
            value
            for value in self._members
            if value in self._wanted
            or any(reader.name not in _INLINED for reader in self._leaves(value))
        }
        rest = {
            value
            for value in self._members
            if self._leaves(value) and not self._follows(value, read)
        }
        if not read or any(map(_is_mask, rest)) or 2 * _bytes(rest) > _bytes({end}):
            rest = {end}
        return [value for value in self._members if value in read | rest]

    def _follows(self, value: Value, given: Container[Value]) -> bool:
        """Returns whether given values, and others outside of the region, suffice for a value."""
        producer = value.producer
        if value in given or producer is None or producer is self._convolution:
            return value in given
        members = [atom for atom in producer.inputs if isinstance(atom, Value)]
        return all(atom not in self._members or self._follows(atom, given) for atom in members)

    def steps(self, outputs: Sequence[Value]) -> tuple[list[Atom], list[Operation]]:
        """Returns the other operands from which a kernel computes its outputs, and how.

        What can be computed entry by entry is computed again, unless it is stored anyway.
        """
        others: dict[Atom, None] = {}
        steps: dict[Operation, None] = {}

        def visit(atom: Atom) -> None:
            producer = None if isinstance(atom, Constant) else atom.producer
            stored = atom in self._wanted and atom not in self._members
            if producer in steps:
                return
            if producer is not None and not stored and self._is_entrywise(producer):
                for each in producer.inputs:
                    visit(each)
                steps[producer] = None
            elif producer is not self._convolution and number_of(atom) is None:
                others[atom] = None

        for value in outputs:
            visit(value)
        return list(others), list(steps)


def _is_mask(atom: Atom) -> bool:
    return atom.aval.dtype == jnp.bool_


def _bytes(values: Iterable[Value]) -> int:
    return sum(math.prod(value.aval.shape) * value.aval.dtype.itemsize for value in values)
