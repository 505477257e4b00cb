"""A jaxpr as a flat graph that can be evaluated in part, loops included.

JAX's own evaluator runs a whole jaxpr. Clipping needs less and more than that: the operands of the
equation that would have formed a weight gradient, without the gradient; and, where that equation
sits in the body of a `scan`, its operands at every step. So calls (`jit`, custom derivatives,
`remat`) are inlined, a loop keeps its body as a graph of its own, and `evaluate` computes exactly
the values asked for, dropping carries and outputs of loops that nothing asked for.

Written against the jaxprs of jax 0.10.2 to 0.11: the only attributes read are `invars`, `outvars`,
`constvars`, `eqns`, and of equations `primitive`, `params`, `ctx` and `effects`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.training.clipping.single_evaluation import formed_once

# Calls that may be replaced by their bodies. Custom derivative rules have already been applied when
# the jaxpr of a gradient is made.
_INLINED_CALLS = frozenset(
    {"jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"}
)
_REMAT_CALLS = frozenset({"checkpoint", "remat", "remat2"})


@dataclasses.dataclass(eq=False, frozen=True)
class Constant:
    """Holds a value known when the graph was made: a literal, or an array closed over."""

    array: Any

    @property
    def aval(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(np.shape(self.array), jax.dtypes.result_type(self.array))


@dataclasses.dataclass(eq=False)
class Value:
    """Represents one array of the computation; compared by identity."""

    aval: Any  # its shape and dtype
    producer: Operation | None = None  # None for an input


Atom = Constant | Value


@dataclasses.dataclass(eq=False)
class Operation:
    """Represents one equation, its calls inlined."""

    name: str  # of the primitive
    inputs: list[Atom]
    outputs: list[Value]
    equation: Any = None  # of the jaxpr; None for an optimisation barrier added by inlining `remat`

    @property
    def params(self) -> dict[str, Any]:
        return {} if self.equation is None else self.equation.params

    @property
    def has_effects(self) -> bool:
        return self.equation is not None and bool(self.equation.effects)

    def apply(self, arguments: Sequence[Any]) -> Sequence[Any]:
        """Evaluates the operation (not for loops)."""
        if self.equation is None:
            return jax.lax.optimization_barrier(list(arguments))
        primitive = self.equation.primitive
        with self.equation.ctx.manager:
            results = primitive.bind(*arguments, **primitive.get_bind_params(self.params))
        return results if primitive.multiple_results else [results]


@dataclasses.dataclass(eq=False)
class Derived(Operation):
    """Computes values that no equation forms: `function` of the inputs, one or a list."""

    function: Callable[..., Any] = dataclasses.field(kw_only=True)

    def apply(self, arguments: Sequence[Any]) -> Sequence[Any]:
        found = self.function(*arguments)
        return found if isinstance(found, list) else [found]


@dataclasses.dataclass(eq=False)
class Scan(Operation):
    """Represents a `scan`: it has a body, and its outputs may grow, see `Loop.stack`."""

    loop: Loop = dataclasses.field(kw_only=True)


@dataclasses.dataclass(eq=False)
class Loop:
    """Represents the body of a `scan`.

    Its inputs are `constants` loop constants, then `carries` carries, then slices of the stacked
    inputs; its outputs the carries, then slices of the stacked outputs.
    """

    body: Graph
    constants: int
    carries: int
    length: int
    reverse: bool
    unroll: Any
    stacked: dict[Value, Value] = dataclasses.field(default_factory=dict)

    def stack(self, operation: Operation, inner: Value) -> Value:
        """Makes the loop output a value of its body at every step; returns the stacked value."""
        if inner not in self.stacked:
            shape = (self.length, *inner.aval.shape)
            outer = Value(jax.ShapeDtypeStruct(shape, inner.aval.dtype), operation)
            self.body.outputs.append(inner)
            operation.outputs.append(outer)
            self.stacked[inner] = outer
        return self.stacked[inner]


@dataclasses.dataclass(eq=False)
class Graph:
    """Operations in an order in which they can run."""

    inputs: list[Value]
    operations: list[Operation]
    outputs: list[Atom]

    def influenced_by(self, sources: Iterable[Value]) -> set[Value]:
        """Finds the values that depend on any of the given inputs."""
        reached = set(sources)
        for operation in self.operations:
            if any(atom in reached for atom in operation.inputs):
                reached.update(operation.outputs)
        return reached

    def derive(self, name: str, inputs: Sequence[Atom], function: Callable[..., Any]) -> Value:
        """Adds a value, a function of others; call `put_in_order` before evaluating."""
        shapes = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in inputs]
        aval = jax.eval_shape(function, *shapes)
        operation = Derived(name, list(inputs), [], function=function)
        operation.outputs = [Value(aval, operation)]
        self.operations.append(operation)
        return operation.outputs[0]

    def replace(
        self,
        operation: Operation,
        inputs: Sequence[Atom],
        function: Callable[..., Any],
        outputs: Sequence[Value] = (),
    ) -> None:
        """Replaces how an operation forms its output; call `put_in_order` before evaluating.

        If `outputs` are given, these are formed instead: each the only output of its operation.
        """
        outputs = list(outputs or operation.outputs)
        place = self.operations.index(operation)
        other = Derived(
            operation.name, list(inputs), outputs, operation.equation, function=function
        )
        self.operations[place] = other
        for output in outputs:
            if output.producer in self.operations:
                self.operations.remove(output.producer)
            output.producer = other

    def put_in_order(self) -> None:
        """Sorts operations so that each follows those it reads from, in loops' bodies too."""
        ordered: list[Operation] = []
        placed: set[int] = set()

        def place(operation: Operation) -> None:
            if id(operation) in placed:
                return
            placed.add(id(operation))
            for atom in operation.inputs:
                if isinstance(atom, Value) and atom.producer is not None:
                    place(atom.producer)
            ordered.append(operation)

        for operation in self.operations:
            place(operation)
            if isinstance(operation, Scan):
                operation.loop.body.put_in_order()
        self.operations = ordered


def is_zero(atom: Atom) -> bool:
    """Returns whether a value is all zeros by construction."""
    if isinstance(atom, Constant):
        return number_of(atom) == 0
    producer = atom.producer
    return (
        producer is not None
        and producer.name in ("broadcast_in_dim", "convert_element_type", "reshape")
        and is_zero(producer.inputs[0])
    )


def is_contraction(atom: Atom) -> bool:
    """Returns whether a value is a matrix product or convolution that adds up products.

    Such a product is a library call, whose result is stored in memory. One that adds nothing up may
    be compiled to a multiplication, and fused with what reads it; so may a convolution in groups,
    which `convolution_rule.py` writes as sums where a group is one feature.
    """
    operation = None if isinstance(atom, Constant) else atom.producer
    if operation is None or not operation.params or atom.aval.dtype.itemsize < 4:
        return False  # A compiler may leave out the rounding to a narrow type in some places only.
    if operation.name == "conv_general_dilated":
        params, shape = operation.params, operation.inputs[1].aval.shape
        groups = params["feature_group_count"] * params["batch_group_count"]
        return groups == 1 and math.prod(shape) > shape[params["dimension_numbers"].rhs_spec[0]]
    if operation.name == "dot_general":
        contracted = operation.params["dimension_numbers"][0][0]
        return math.prod(operation.inputs[0].aval.shape[axis] for axis in contracted) > 1
    return False


def number_of(atom: Atom) -> float | None:
    """Returns a constant floating scalar as a number; None for any other value."""
    if not isinstance(atom, Constant) or isinstance(atom.array, jax.core.Tracer):
        return None
    is_real_scalar = np.ndim(atom.array) == 0 and jnp.issubdtype(atom.aval.dtype, jnp.floating)
    return float(atom.array) if is_real_scalar else None


def graph_of(jaxpr: Any) -> Graph:
    """Makes the graph of a closed jaxpr (of `jax.make_jaxpr`)."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    inputs = [Value(variable.aval) for variable in inner.invars]
    operations: list[Operation] = []
    return Graph(inputs, operations, _inline(jaxpr, inputs, operations))


def _inline(jaxpr: Any, arguments: Sequence[Atom], operations: list[Operation]) -> list[Atom]:
    """Appends the operations of a jaxpr applied to the arguments; returns its outputs."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    environment: dict[Any, Atom] = dict(zip(inner.invars, arguments, strict=True))
    constants = getattr(jaxpr, "consts", ())
    environment.update(
        (variable, Constant(array))
        for variable, array in zip(inner.constvars, constants, strict=True)
    )

    def read(atom: Any) -> Atom:
        return Constant(atom.val) if hasattr(atom, "val") else environment[atom]

    for equation in inner.eqns:
        name, inputs = equation.primitive.name, [read(atom) for atom in equation.invars]
        body = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
        if name in _INLINED_CALLS and body is not None:
            results = _inline(body, inputs, operations)
        elif name in _REMAT_CALLS:
            results = _inline(
                equation.params["jaxpr"], _behind_barrier(equation, inputs, operations), operations
            )
        else:
            operation = Operation(name, inputs, [], equation)
            if name == "scan":
                operation = Scan(name, inputs, [], equation, loop=_loop(equation))
            operation.outputs = [Value(variable.aval, operation) for variable in equation.outvars]
            operations.append(operation)
            results = list(operation.outputs)
        environment.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in inner.outvars]


def _behind_barrier(
    equation: Any, inputs: list[Atom], operations: list[Operation]
) -> Sequence[Atom]:
    """Returns a rematerialised body's inputs behind the barrier that its lowering would add.

    Without the barrier the compiler would recognise the recomputation and keep the activations that
    `remat` was asked to discard.
    """
    if not (equation.params.get("differentiated") and equation.params.get("prevent_cse")):
        return inputs
    values = [atom for atom in inputs if isinstance(atom, Value)]
    barrier = Operation("optimization_barrier", list(values), [])
    barrier.outputs = [Value(value.aval, barrier) for value in values]
    operations.append(barrier)
    behind: dict[Atom, Atom] = dict(zip(values, barrier.outputs, strict=True))
    return [behind.get(atom, atom) for atom in inputs]


def _loop(equation: Any) -> Loop:
    """Reads a `scan` equation as a loop."""
    params = equation.params
    if "num_consts" in params:
        constants, carries = params["num_consts"], params["num_carry"]
    else:  # jax 0.11 groups the operands in a tree
        constants, carries, _ = (len(list(group)) for group in params["ft_in"].unpack())
    return Loop(
        graph_of(params["jaxpr"]),
        constants,
        carries,
        params["length"],
        params["reverse"],
        params["unroll"],
    )


def spread_branches(graph: Graph, rows: set[Value]) -> None:
    """Replaces every `cond` that depends on the row by all its branches and a selection.

    Mapping over rows would do the same; written out, the branches can be looked into. Changes
    `graph` and the bodies of its loops in place; adds new values that depend on the row to `rows`.
    """
    operations: list[Operation] = []
    for operation in graph.operations:
        if isinstance(operation, Scan):
            spread_branches(operation.loop.body, rows_of_body(operation, rows))
        chosen = operation.inputs[0] if operation.name == "cond" else None
        if chosen is None or chosen not in rows or operation.has_effects:
            operations.append(operation)
            continue
        branches = Graph([], [], [])
        found = [
            _inline(branch, operation.inputs[1:], branches.operations)
            for branch in operation.params["branches"]
        ]
        rows |= branches.influenced_by(rows)
        spread_branches(branches, rows)
        operations += branches.operations
        for output, cases in zip(operation.outputs, zip(*found, strict=True), strict=True):
            # It takes over the equation's outputs, since other operations read these very values.
            selection = Derived("select_n", [chosen, *cases], [output], function=_selected)
            output.producer = selection
            operations.append(selection)
    graph.operations = operations


def _selected(chosen: jax.Array, *cases: jax.Array) -> jax.Array:
    """Selects the case whose number is chosen; the first or last for numbers outside."""
    if len(cases) == 1:
        return jnp.asarray(cases[0])
    number = jnp.clip(chosen, 0, len(cases) - 1).astype(jnp.int32)
    return jax.lax.select_n(number if len(cases) > 2 else number.astype(bool), *cases)


def rows_of_body(operation: Scan, rows: set[Value]) -> set[Value]:
    """Finds the values of a loop's body that depend on the row, given those outside (`rows`)."""
    loop, body = operation.loop, operation.loop.body
    inputs = {
        inner for atom, inner in zip(operation.inputs, body.inputs, strict=True) if atom in rows
    }
    while True:  # A carry may make further carries depend on the row in the next step.
        inner = body.influenced_by(inputs)
        carried = {
            body.inputs[loop.constants + carry]
            for carry in range(loop.carries)
            if body.outputs[carry] in inner
        }
        if carried <= inputs:
            return inner
        inputs |= carried


def evaluate(
    graph: Graph,
    arguments: Sequence[Any],
    wanted: Sequence[Atom],
    effects: bool = True,
    once: Container[Atom] = (),
) -> list[Any]:
    """Computes the wanted values of a graph, and nothing else but operations with effects.

    `effects` says whether to run operations with effects (printing, say) that no wanted value
    needs. Values in `once` are formed once (`formed_once.py`); all others are computed from these.
    """
    needed = needed_for(graph, wanted, effects)
    environment: dict[Value, Any] = {}

    def write(values: Iterable[Value], results: Iterable[Any]) -> None:
        for value, result in zip(values, results, strict=True):
            if value in once:
                result = formed_once(result, is_contraction(value))
            environment[value] = result

    def read(atom: Atom) -> Any:
        return atom.array if isinstance(atom, Constant) else environment[atom]

    write(graph.inputs, arguments)

    for operation in graph.operations:
        is_needed = [output in needed for output in operation.outputs]
        if not any(is_needed) and not (effects and operation.has_effects):
            continue
        if isinstance(operation, Scan):
            write(*_run_loop(operation, is_needed, read))
            continue
        # `device_checks.one_producer` looks for the name in what was compiled.
        named = any(output in once for output in operation.outputs)
        with jax.named_scope(f"once{len(environment)}") if named else contextlib.nullcontext():
            results = operation.apply([read(atom) for atom in operation.inputs])
        write(operation.outputs, results)
    return [
        formed_once(atom.array) if isinstance(atom, Constant) and atom in once else read(atom)
        for atom in wanted
    ]


def needed_for(graph: Graph, wanted: Iterable[Atom], effects: bool = True) -> set[Value]:
    """Finds the values that the wanted ones, and operations with effects, are computed from."""
    needed = {atom for atom in wanted if isinstance(atom, Value)}
    for operation in reversed(graph.operations):
        is_needed = [output in needed for output in operation.outputs]
        if not any(is_needed) and not (effects and operation.has_effects):
            continue
        if isinstance(operation, Scan):
            used, _ = _needed_of_loop(operation, is_needed)
            inputs = [atom for atom, use in zip(operation.inputs, used, strict=True) if use]
        else:
            inputs = operation.inputs
        needed.update(atom for atom in inputs if isinstance(atom, Value))
    return needed


def _needed_of_loop(operation: Scan, is_needed: Sequence[bool]) -> tuple[list[bool], list[bool]]:
    """Finds the inputs and the outputs, carries included, that a loop needs for these outputs."""
    loop, body = operation.loop, operation.loop.body
    keep = [True] * len(is_needed) if operation.has_effects else list(is_needed)
    while True:
        needed = needed_for(
            body, [out for out, kept in zip(body.outputs, keep, strict=True) if kept]
        )
        used = [value in needed for value in body.inputs]
        # A carry that any kept output reads must itself be carried, hence the fixed point.
        grown = list(keep)
        for carry in range(loop.carries):
            grown[carry] |= used[loop.constants + carry]
            used[loop.constants + carry] |= grown[carry]
        if grown == keep:
            return used, keep
        keep = grown


def _run_loop(
    operation: Scan, is_needed: Sequence[bool], read: Callable[[Atom], Any]
) -> tuple[list[Value], list[Any]]:
    """Runs a loop for the outputs that are needed or carried; returns these and their values."""
    loop, body = operation.loop, operation.loop.body
    used, keep = _needed_of_loop(operation, is_needed)
    first_stacked = loop.constants + loop.carries
    carried = [i for i in range(loop.carries) if keep[i]]
    stacked = [i for i in range(loop.carries, len(keep)) if keep[i]]
    carry_values = [body.inputs[loop.constants + i] for i in carried]
    slice_positions = [i for i in range(first_stacked, len(used)) if used[i]]
    slice_values = [body.inputs[i] for i in slice_positions]
    fixed = {body.inputs[i]: read(operation.inputs[i]) for i in range(loop.constants) if used[i]}
    wanted = [body.outputs[i] for i in (*carried, *stacked)]
    initial = [
        jnp.asarray(read(operation.inputs[loop.constants + i]), value.aval.dtype)
        for i, value in zip(carried, carry_values, strict=True)
    ]

    def step(carry: list[Any], slices: list[Any]) -> tuple[list[Any], list[Any]]:
        inputs = fixed | dict(zip(carry_values, carry)) | dict(zip(slice_values, slices))
        # Inputs that nothing reads are left out of the evaluation: None stands in their place.
        results = evaluate(body, [inputs.get(value) for value in body.inputs], wanted)
        return results[: len(carried)], results[len(carried) :]

    last, stacks = jax.lax.scan(
        step,
        initial,
        [read(operation.inputs[i]) for i in slice_positions],
        length=loop.length,
        reverse=loop.reverse,
        unroll=loop.unroll,
    )
    return [operation.outputs[i] for i in (*carried, *stacked)], [*last, *stacks]


def bytes_of(graph: Graph, wanted: Sequence[Atom], among: Iterable[Value]) -> int:
    """Counts the bytes of the values, out of `among`, that the wanted ones are computed from.

    It counts as if nothing were fused or freed; of a loop what it stacks, and one turn of its whole
    body.
    """
    counted = needed_for(graph, wanted).intersection(among)
    total = sum(map(_bytes, counted))
    for operation in graph.operations:
        if isinstance(operation, Scan) and any(value in counted for value in operation.outputs):
            body = operation.loop.body
            inner = {value for each in body.operations for value in each.outputs}
            total += bytes_of(body, body.outputs, inner)
    return total


def multiplications_of(graph: Graph, wanted: Sequence[Atom], among: Iterable[Value]) -> float:
    """Counts the multiplications in products and convolutions, over all turns of loops."""
    counted = needed_for(graph, wanted).intersection(among)
    total = 0.0
    for operation in graph.operations:
        if not any(value in counted for value in operation.outputs):
            continue
        if isinstance(operation, Scan):
            body = operation.loop.body
            inner = {value for each in body.operations for value in each.outputs}
            total += operation.loop.length * multiplications_of(body, body.outputs, inner)
        elif operation.name in ("dot_general", "conv_general_dilated") and operation.params:
            # Each entry of the output takes as many multiplications as are summed for it.
            left, right = (atom.aval.shape for atom in operation.inputs[:2])
            entries = float(math.prod(operation.outputs[0].aval.shape))
            if operation.name == "dot_general":
                contracted = operation.params["dimension_numbers"][0][0]
                total += entries * math.prod(left[axis] for axis in contracted)
            else:
                features = operation.params["dimension_numbers"].rhs_spec[0]
                total += entries * math.prod(right) / right[features]
    return total


def picked_of(graph: Graph, wanted: Sequence[Atom], among: Iterable[Value]) -> set[Value]:
    """Returns large matrices of a row's own of which a product uses each number once.

    Such is a kernel that the row picks out of several. Loops are not looked into.
    """
    counted = needed_for(graph, wanted).intersection(among)
    found = set()
    for operation in graph.operations:
        if operation.name != "dot_general" or operation.outputs[0] not in counted:
            continue
        contracted = operation.params["dimension_numbers"][0]
        entries = math.prod(operation.outputs[0].aval.shape)
        for atom, axes in zip(operation.inputs, contracted, strict=True):
            if isinstance(atom, Value) and atom in counted and _bytes(atom) >= _LARGE:
                times = entries * math.prod(atom.aval.shape[axis] for axis in axes)
                if times == math.prod(atom.aval.shape):
                    found.add(atom)
    return found


_LARGE = 2**16
"""Bytes of a large matrix; a copy of a smaller one stays in a processor's first caches."""


def _bytes(value: Value) -> int:
    """Returns how many bytes a value takes."""
    size = math.prod(value.aval.shape)
    # Keys, and other types of JAX's own, take a few words.
    return size * getattr(value.aval.dtype, "itemsize", 8)
