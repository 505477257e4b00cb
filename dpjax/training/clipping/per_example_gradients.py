"""Per-example gradients of a batch: their norms and weighted sums, factored or formed.

`factored` traces `grad(loss)` for one example, decides for each parameter (`leaf_plans`), and
evaluates for the whole batch what the plans need. `materialised` forms every per-example gradient:
slow, and the reference that the other is tested against.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.training.clipping.block_sums import Addends, Pair, blocked_sum, joined
from dpjax.training.clipping.checks import one_row, shapes_of
from dpjax.training.clipping.convolution_rule import adds_up_beside, convolve_well
from dpjax.training.clipping.factored_norms import SquaredNorm, whole_squared_norm
from dpjax.training.clipping.factored_rules import Recogniser
from dpjax.training.clipping.factored_terms import OuterProducts, accumulator, bounded
from dpjax.training.clipping.implicit_convolution import ImplicitConvolutions
from dpjax.training.clipping.jaxpr_graph import (
    Atom,
    Graph,
    Scan,
    Value,
    bytes_of,
    evaluate,
    graph_of,
    is_contraction,
    multiplications_of,
    picked_of,
    spread_branches,
)
from dpjax.training.clipping.leaf_plans import (
    Common,
    Factored,
    Part,
    Plan,
    Unused,
    Whole,
    parts_of,
    plan_terms,
    whole_weighted_sum,
)
from dpjax.training.clipping.own_pixels import cut_beforehand, with_own_pixels
from dpjax.training.clipping.single_evaluation import formed_once

PyTree = Any


class Results(NamedTuple):
    """Holds per-example gradients (one entry a parameter), losses and auxiliary outputs."""

    gradients: FactoredGradients | MaterialisedGradients
    values: jax.Array
    aux: PyTree


@dataclasses.dataclass(frozen=True)
class Loss:
    """Wraps the loss of one example, as given to `clipped_grad`."""

    function: Callable[..., Any]
    has_aux: bool

    def value_and_grad(self, params: PyTree, *row: Any) -> tuple[PyTree, jax.Array, PyTree]:
        """Returns one example's gradients, value and auxiliary output."""
        out, gradients = jax.value_and_grad(self.function, has_aux=self.has_aux)(params, *row)
        value, aux = out if self.has_aux else (out, None)
        return gradients, value, aux


class Tracing(NamedTuple):
    """Holds the computation of one example."""

    graph: Graph  # its inputs are the parameters, the leaves of the example, and its key if any
    per_row: set[Value]  # values that depend on the example or its key
    plans: list[Plan]  # one for each parameter
    results: list[Atom]  # the loss, then the leaves of the auxiliary output
    aux_tree: Any
    stored: set[Atom]  # the inputs that stand in memory

    @property
    def one_by_one(self) -> bool:
        """Returns whether a CPU evaluates rows faster one by one than all together.

        It does if a row picks a kernel of its own (a mixture of experts): all together, each row
        has a copy of its kernel, which takes longer than its products. A mixture whose row copies
        1 MB and multiplies 1 million times took 61 ms and 80 MB for 80 rows together, 21 ms and
        8 MB one by one.
        """
        if jax.default_backend() != "cpu":
            return False
        used = self.graph, _wanted(self.results, self.plans), self.per_row
        picked = sum(math.prod(value.aval.shape) for value in picked_of(*used))
        # Forwards and backwards; other kernels are better read for many rows at once.
        return 4 * picked > multiplications_of(*used)


def trace(
    loss: Loss, params: PyTree, batch: PyTree, keys: Any, force: bool, stored: bool = True
) -> Tracing:
    """Traces the gradient of one example and plans each parameter; arguments as in `factored`.

    `force` keeps gradients factored, see `plan_terms`; `stored` is as in `ClippedGrad`.
    """
    arguments = [shapes_of(params), one_row(batch), *([] if keys is None else [one_row(keys)])]
    jaxpr, shapes = jax.make_jaxpr(loss.value_and_grad, return_shape=True)(*arguments)
    graph = graph_of(cut_beforehand(jaxpr))
    leaves = jax.tree.leaves(arguments[0])
    inputs = graph.inputs[len(leaves) :]
    rows = graph.influenced_by(inputs)
    spread_branches(graph, rows)
    implicit = isinstance(loss.function, ImplicitConvolutions)
    recogniser = Recogniser(graph, rows, implicit=implicit)
    for atom in graph.outputs[: len(leaves)]:
        recogniser.spare_products(atom)
    plans = [_plan(recogniser, atom, leaf, force) for atom, leaf in zip(graph.outputs, leaves)]
    for place, (plan, atom) in enumerate(zip(plans, graph.outputs)):
        formed = implicit and isinstance(plan, Factored) and plan.form == "product"
        if formed and adds_up_beside(graph, atom):
            plans[place] = Whole(atom, plan.rule, plan.reason, plan.form)
    results = graph.outputs[len(leaves) :]
    convolve_well(graph, rows, _wanted(results, plans), implicit)
    graph.put_in_order()
    inputs = graph.inputs[len(leaves) :]
    # Planning may have added outputs to loops, so what depends on the row is looked up again.
    rows = graph.influenced_by(inputs)
    return Tracing(
        graph,
        rows,
        plans if jax.default_backend() == "cpu" else _bound(graph, rows, plans),
        results,
        jax.tree.structure(shapes[2]),
        set(graph.inputs) if stored else set(),
    )


def _bound(graph: Graph, rows: set[Value], plans: list[Plan]) -> list[Plan]:
    """Makes factors that sums do not multiply by weights finite where they are formed.

    Zero times NaN is not zero, so a sum clears rows of weight zero in a copy. Here it needs none.

    Formal guarantees:
      No row that counts has other numbers. A number that is cut was, and is, so large that its
      square is infinite, or was NaN. It stands in the factor's rows (`rearranges`), so the row's
      squared norm is infinite or NaN either way, and its weight zero.
    """

    def can(term: OuterProducts) -> bool:
        value, of_float = term.larger.value, (jnp.float32, jnp.bfloat16)
        made = None if term.left.indices or value not in rows else value.producer
        # Only in passing: what a library or a loop forms would be read and written once more.
        if made is None or isinstance(made, Scan) or is_contraction(value):
            return False
        return len(made.outputs) == 1 and value.aval.dtype in of_float and term.larger.rearranges

    bound, cut = list(plans), dict[Value, Any]()
    for place, plan in enumerate(plans):
        if isinstance(plan, Factored) and plan.form != "product":
            terms = tuple(dataclasses.replace(term, is_bounded=can(term)) for term in plan.terms)
            bound[place] = dataclasses.replace(plan, terms=terms)
            cut |= {one.larger.value: one.larger.value.producer for one in terms if one.is_bounded}
    for made in cut.values():
        graph.replace(made, made.inputs, lambda *given, made=made: bounded(*made.apply(given)))
    return bound


def _plan(recogniser: Recogniser, atom: Atom, leaf: Any, force: bool) -> Plan:
    """Plans for one parameter, whose gradient is `atom`: factored if a rule matches, else whole."""
    terms = recogniser.terms_of(atom)
    if terms == []:
        return Unused(leaf.shape, leaf.dtype)
    reason = "no rule matches the operations that form it"
    if terms is not None:
        plan = plan_terms(terms, force)
        if not isinstance(plan, str):
            return plan
        reason = plan
    if sum(size > 1 for size in leaf.shape) <= 1:
        return Whole(atom, "small", "a vector: held like an activation")
    if not recogniser.forms_a_product(atom):
        return Whole(atom, "small", "no larger than the activations that it is summed from")
    return Whole(atom, "materialised", reason)


def _wanted(results: Sequence[Atom], plans: Sequence[Plan]) -> list[Atom]:
    """Returns the values to evaluate: results, and what the plans need."""
    wanted = dict.fromkeys(results)
    for plan in plans:
        wanted |= dict.fromkeys((*plan.needs, *plan.shared_needs))
    return list(wanted)


class RowCost(NamedTuple):
    """Estimates what one row of a batch takes, from shapes alone."""

    bytes: int  # of its values and of gradients formed for it, as if nothing were fused or freed
    multiplications: float  # of its products and convolutions, and of the sum over rows


def row_cost(tracing: Tracing) -> RowCost:
    """Estimates what one row takes by the plans of a traced example."""
    wanted = _wanted(tracing.results, tracing.plans)
    # Of rows one by one only what the plans need stays.
    kept = tracing.per_row.intersection(wanted) if tracing.one_by_one else tracing.per_row
    formed, sums = 0, 0.0
    for plan, leaf in zip(tracing.plans, tracing.graph.inputs, strict=False):
        if isinstance(plan, Factored):
            formed += plan.held * jnp.dtype(accumulator(leaf.aval.dtype)).itemsize
            sums += sum(float(term.positions) * math.prod(term.layout.shape) for term in plan.terms)
    return RowCost(
        bytes_of(tracing.graph, wanted, kept) + formed,
        multiplications_of(tracing.graph, wanted, tracing.per_row) + sums,
    )


def factored(tracing: Tracing, params: PyTree, batch: PyTree, keys: Any) -> Results:
    """Evaluates what the plans need, for every row of the batch."""
    graph, plans = tracing.graph, tracing.plans
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(params)]
    rows = [*map(jnp.asarray, jax.tree.leaves(batch)), *([] if keys is None else [keys])]
    size = rows[0].shape[0]
    wanted = _wanted(tracing.results, tracing.plans)
    own = [atom for atom in wanted if atom in tracing.per_row]
    common = [atom for atom in wanted if atom not in tracing.per_row]

    # Norms and sums must be of the same numbers. A compiler may compute any value twice, so all
    # are formed once but those that stand in memory already.
    needed = {atom for plan in plans for atom in (*plan.needs, *plan.shared_needs)}
    formed = needed - tracing.stored

    def one(*row: Any) -> list[Any]:
        return evaluate(graph, [*leaves, *row], own, once=formed & tracing.per_row)

    blank = [None] * len(rows)
    alike = evaluate(graph, [*leaves, *blank], common, False, formed - tracing.per_row)
    shared: dict[Atom, Any] = dict(zip(common, alike, strict=True))
    if tracing.one_by_one:
        found = jax.lax.map(lambda row: one(*row), tuple(rows))
    else:
        found = jax.vmap(one)(*rows)
    arrays: dict[Atom, Any] = dict(zip(own, found, strict=True))

    def batched(atom: Atom) -> jax.Array:
        if atom in arrays:
            return arrays[atom]
        return jnp.broadcast_to(shared[atom], (size, *np.shape(shared[atom])))

    values, *aux = (batched(atom) for atom in tracing.results)
    gradients = FactoredGradients(
        plans,
        [tuple(batched(atom) for atom in plan.needs) for plan in plans],
        [tuple(shared[atom] for atom in plan.shared_needs) for plan in plans],
        size,
    )
    return Results(gradients, values, jax.tree.unflatten(tracing.aux_tree, aux))


def materialised(loss: Loss, params: PyTree, batch: PyTree, keys: Any) -> Results:
    """Forms every per-example gradient."""
    in_axes = (None, 0) if keys is None else (None, 0, 0)
    rows = (batch,) if keys is None else (batch, keys)
    one = with_own_pixels(loss.value_and_grad)
    gradients, values, aux = jax.vmap(one, in_axes)(params, *rows)
    return Results(MaterialisedGradients(formed_once(jax.tree.leaves(gradients))), values, aux)


@dataclasses.dataclass(frozen=True)
class MaterialisedGradients:
    """Holds per-example gradients, (batch, ...) for each parameter."""

    leaves: list[jax.Array]

    @property
    def addends(self) -> list[Addends]:
        """Returns what a row adds to each parameter's sum: its gradient."""
        return [Addends()] * len(self.leaves)

    @property
    def products(self) -> float:
        return float(sum(math.prod(leaf.shape[1:]) for leaf in self.leaves))

    def squared_norms(self) -> list[SquaredNorm]:
        return [jax.vmap(whole_squared_norm)(leaf) for leaf in self.leaves]

    def weighted_sums(self, weights: list[jax.Array], moved: int) -> list[Pair]:
        return [
            blocked_sum(whole_weighted_sum, (leaf,), weight, addends, moved)
            for leaf, weight, addends in zip(self.leaves, weights, self.addends, strict=True)
        ]


class FactoredGradients:
    """Holds what the plans of the parameters need, batched (`operands`) and not (`shared`)."""

    def __init__(
        self, plans: list[Plan], operands: list[tuple], shared: list[tuple], size: int
    ) -> None:
        """Computes all squared norms at once: their plans may keep arrays that the sums need."""
        self._plans, self._operands = plans, operands
        # Terms that all examples share are added up once, not for each example.
        self._shared = [
            tuple(plan.joined(common)) if isinstance(plan, (Factored, Common)) else ()
            for plan, common in zip(plans, shared, strict=True)
        ]
        normed = [
            jax.vmap(
                plan.squared_norm,
                in_axes=(0,) * len(own) + (None,) * len(common),
                out_axes=0,
                axis_size=size,
            )(*own, *common)
            for plan, own, common in zip(plans, operands, self._shared, strict=True)
        ]
        self._norms = [norm for norm, _ in normed]
        self._kept = [kept for _, kept in normed]

    @property
    def addends(self) -> list[Addends]:
        """Returns what a row adds to the parts of each parameter's sum."""
        return [part.addends for plan in self._plans for part in parts_of(plan)]

    @property
    def products(self) -> float:
        """Returns the most products of entries that the squared norms add up."""
        return sum(plan.products for plan in self._plans)

    def squared_norms(self) -> list[SquaredNorm]:
        return self._norms

    def weighted_sums(self, weights: list[jax.Array], moved: int) -> list[Pair]:
        """Sums weight times gradient over the examples, for each leaf; see `blocked_sum`."""

        def summed(part: Part, own: tuple, common: tuple, kept: Any, weight: jax.Array) -> Pair:
            plan, addends = part.plan, part.addends
            if kept is not None:
                return blocked_sum(whole_weighted_sum, (kept,), weight, addends, moved)
            if isinstance(plan, Factored):
                own = tuple(each for i in part.terms for each in own[2 * i : 2 * i + 2])

            def form(*given: jax.Array) -> jax.Array:
                return plan.weighted_sum(given[:-1], common if part.shared else (), None, given[-1])

            return blocked_sum(form, own, weight, addends, moved)

        given = zip(self._plans, self._operands, self._shared, self._kept, weights, strict=True)
        return [joined([summed(part, *each) for part in parts_of(plan)]) for plan, *each in given]
