"""Values that are computed once and read from memory by all that follows.

A compiler that fuses computes a cheap value anew wherever it is read, and may round it otherwise
there: a product and a sum become one operation or stay two, a sum is taken in another order. For
most purposes that is as good. Clipping takes the norm of a gradient in one place and adds the
gradient up in another: where the terms of a value cancel, the two would be of different numbers,
and a contribution would exceed the clip norm by any factor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.training.clipping.jaxpr_graph import (
    FORMED_ONCE,
    Atom,
    Constant,
    Derived,
    Graph,
    Operation,
    Scan,
    Value,
)

PyTree = Any


def formed_once(values: PyTree) -> PyTree:
    """The same values, none of which is computed again in what reads the result.

    XLA's CPU compiler drops optimisation barriers before it fuses; it looks into no branch of a
    condition that it does not know. Elsewhere they stay until it has fused.

    Args:
      values: pytree of arrays of numbers.
    """
    leaves, structure = jax.tree.flatten(values)

    def chosen(*leaves: jax.Array) -> list[jax.Array]:
        true = jax.lax.optimization_barrier(np.bool_(True))
        return jax.lax.cond(true, lambda *given: list(given), _zeros, *leaves)

    def barred(*leaves: jax.Array) -> list[jax.Array]:
        return list(jax.lax.optimization_barrier(leaves))

    formed = jax.lax.platform_dependent(*leaves, cpu=chosen, default=barred)
    return jax.tree.unflatten(structure, formed)


def _zeros(*leaves: jax.Array) -> list[jax.Array]:
    return [jnp.zeros(leaf.shape, leaf.dtype) for leaf in leaves]


_SAME, _CLOSE, _OTHER = range(3)
"""What a value is where it is computed again: the same bits; the same to a few units in its last
place, which the allowance for rounding holds; anything."""

_STORED = frozenset({"dot_general", "conv_general_dilated", "sort"})
"""Operations that no compiler repeats: what they form stands in memory."""

_MOVES = frozenset(
    {"transpose", "reshape", "squeeze", "expand_dims", "broadcast_in_dim", "slice", "split", "pad"}
    | {"rev", "concatenate", "gather", "dynamic_slice", "copy", "copy_p", "name", "neg", "abs"}
    | {"max", "min", "reduce_max", "reduce_min", "select_n", "clamp", "stop_gradient"}
    | {"convert_element_type", "dynamic_update_slice"}
)
"""Operations that round nothing."""

_PRODUCTS = frozenset({"mul", "div", "square", "sqrt", "rsqrt"})
"""Operations whose relative error is that of their operands and a unit in the last place more."""

_FUNCTIONS = frozenset(
    {"exp", "exp2", "log", "log1p", "expm1", "tanh", "logistic", "sin", "cos", "erf", "erfc", "pow"}
    | {"integer_pow", "erf_inv", "tan", "atan2", "cbrt", "sinh", "cosh"}
)
"""Functions that are right to a few units, but carry no error of their operands on so."""

_SUMS = frozenset({"add", "add_any", "sub"})


def form_once(graph: Graph, wanted: Iterable[Atom], stored: bool) -> None:
    """Sees to it that wanted values are the same for all that reads them, up to a few units.

    Formal guarantees:
      A wanted value that could come out otherwise where it is computed again is formed once
      (`formed_once`), or those it is made of are, where it only moves them about. What is not known
      here to round the same way everywhere counts as if it did not.

    Args:
      graph: of one example, changed in place; loops' bodies are not, whose outputs are stored.
      wanted: its values.
      stored: whether what the graph reads stands in memory: its inputs, and what it closes over.
    """
    graph.put_in_order()
    levels: dict[Atom, int] = dict.fromkeys(graph.inputs, _SAME if stored else _OTHER)
    for atom in (atom for operation in graph.operations for atom in operation.inputs):
        if isinstance(atom, Constant):
            traced = isinstance(atom.array, jax.core.Tracer)
            levels[atom] = _OTHER if traced and not stored else _SAME
    for operation in graph.operations:
        level = _level(operation, levels)
        levels |= dict.fromkeys(operation.outputs, level)
    roots: dict[Value, None] = {}
    seen: set[Atom] = set()
    waiting = list(wanted)
    while waiting:
        atom = waiting.pop()
        if isinstance(atom, Constant) or atom in seen or levels[atom] < _OTHER:
            continue
        seen.add(atom)
        behind = _moved(atom, levels)
        if behind is None:
            roots[atom] = None
        else:
            waiting += behind
    for root in roots:
        _form(graph, root)
    graph.put_in_order()


def _form(graph: Graph, value: Value) -> None:
    """Puts `formed_once` between a value and all that reads it."""
    operation = value.producer
    before = Value(value.aval, operation)
    if operation is None:
        graph.inputs = [before if one is value else one for one in graph.inputs]
    else:
        operation.outputs = [before if output is value else output for output in operation.outputs]
    value.producer = Derived(FORMED_ONCE, [before], [value], function=formed_once)
    graph.operations.append(value.producer)


def _moved(value: Value, levels: dict[Atom, int]) -> Sequence[Atom] | None:
    """What a value only moves about, if forming that once is as good and no more to write."""
    operation = value.producer
    if operation is None or operation.name not in _MOVES or _is_narrow(value):
        return None
    others = [atom for atom in operation.inputs if levels[atom] == _OTHER]
    if operation.name == "select_n" and operation.inputs[0] in others:
        return None
    if any(isinstance(atom, Constant) for atom in others):
        return None
    if sum(_size(atom) for atom in others) > _size(value):
        return None
    return others


def _size(atom: Atom) -> int:
    return int(np.prod(atom.aval.shape, dtype=np.int64))


def _is_float(atom: Atom) -> bool:
    return jnp.issubdtype(atom.aval.dtype, jnp.inexact)


def _is_narrow(atom: Atom) -> bool:
    """Whether a compiler may leave out the rounding to its type, here and not there."""
    return _is_float(atom) and atom.aval.dtype.itemsize < 4


def _level(operation: Operation, levels: dict[Atom, int]) -> int:
    """What the results of an operation are where they are computed again."""
    inputs = [levels[atom] for atom in operation.inputs]
    worst, name = max(inputs, default=_SAME), operation.name
    if isinstance(operation, Scan):
        # A loop of one turn is none once compiled, nor is one whose turns are all written out.
        loop = operation.loop
        written_out = loop.unroll is True or int(loop.unroll) >= loop.length
        return _OTHER if written_out else _SAME
    if isinstance(operation, Derived) and name not in ("select_n", "conv_general_dilated"):
        return _OTHER
    if any(map(_is_narrow, operation.outputs)):
        return _SAME if name in _MOVES - {"convert_element_type"} and worst == _SAME else _OTHER
    if not any(map(_is_float, (*operation.inputs, *operation.outputs))):
        return worst if worst == _SAME else _OTHER
    if not all(map(_is_float, operation.outputs)):
        # A comparison, or a whole number: small errors decide.
        return _SAME if worst == _SAME else _OTHER
    if name in _STORED:
        return _CLOSE if _is_product(operation) else _SAME
    if name in _MOVES:
        return worst if inputs[0] == _SAME or name != "select_n" else _OTHER
    if name in _SUMS:
        return _SAME if worst == _SAME else _OTHER
    if name in _PRODUCTS:
        return max(worst, _CLOSE)
    if name in _FUNCTIONS:
        return _CLOSE if worst == _SAME else _OTHER
    # Zeros of a shape, and numbers counted up.
    return _SAME if name == "iota" else _OTHER


def _is_product(operation: Operation) -> bool:
    """Whether a dot or a convolution adds nothing up, so that it may be written as a product."""
    if operation.name == "dot_general":
        (contracted, _), _ = operation.params["dimension_numbers"]
        shape = operation.inputs[0].aval.shape
        return int(np.prod([shape[axis] for axis in contracted], dtype=np.int64)) <= 1
    if operation.name == "conv_general_dilated":
        features = operation.params["dimension_numbers"].rhs_spec[0]
        shape = operation.inputs[1].aval.shape
        return _size(operation.inputs[1]) // max(shape[features], 1) <= 1
    return False
