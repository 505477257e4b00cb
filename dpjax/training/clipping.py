"""`clipped_grad`: sums of clipped per-example gradients, at nearly the price of a plain gradient.

Clipping needs the norm of every example's gradient and then one weighted sum. Forming the
per-example gradients is what makes private training slow, and no list of layers is needed to avoid
it: in the jaxpr of `grad(loss)` for one example, the gradient of a dense kernel leaves through one
last operation, a product of an activation with a cotangent. So the loss is traced, everything but
those last operations is evaluated for the whole batch, norms are taken from their operands, and the
weighted sum is formed by contracting the batch together with the positions. What matches no rule is
materialised parameter by parameter.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import neighbouring
from dpjax.training.factored_rules import Recogniser
from dpjax.training.factored_terms import SquaredNorm
from dpjax.training.jaxpr_graph import Graph, Value, evaluate, graph_of
from dpjax.training.leaf_plans import (
    Plan,
    Unused,
    Whole,
    plan_terms,
    whole_squared_norm,
    whole_weighted_sum,
)

PyTree = Any

METHODS = ("auto", "factored", "materialised")
CLIPPINGS = ("global", "per_leaf")

ROUNDING_ALLOWANCE = 2.0**-18
"""Contributions are clipped to `(1 - ROUNDING_ALLOWANCE) * clip_norm`: 64 units of float32
rounding, for the rounding of norms and of the scaled gradient. So the sensitivity is exactly the
clip norm and needs no padding."""


class Auxiliary(NamedTuple):
    """What `clipped_grad` returns beside the sum. None of it is private: per-example values.

    Attributes:
      norms: (batch,) l2 norm of each example's whole gradient before clipping, of masked rows too;
        infinite or NaN for an example whose gradient is.
      values: (batch,) loss of each example.
      aux: the loss's auxiliary output, stacked along a leading batch axis; None without `has_aux`.
      leaf_norms: pytree like the parameters of (batch,) norms; None unless clipping is per leaf.
    """

    norms: jax.Array
    values: jax.Array
    aux: PyTree = None
    leaf_norms: PyTree = None


class ParameterExplanation(NamedTuple):
    """What was done for one parameter.

    Attributes:
      rule: "dense", "embedding" or "convolution" (recognised), "small" (a bias, scale or the like:
        its per-example gradient costs no more than the activations it is summed from), "unused", or
        "materialised".
      form: how the norm was formed.
      reason: why, with the sizes that decided.
      shape: of the parameter.
      held: elements per example held for its gradient; 0 when it stayed factored.
    """

    rule: str
    form: str
    reason: str
    shape: tuple[int, ...]
    held: int


class Explanation(dict[str, ParameterExplanation]):
    """Parameter path to what was done for it; prints as a table."""

    def __str__(self) -> str:
        rows = [("parameter", "shape", "rule", "norm by", "held", "because")]
        rows += [
            (path, "x".join(map(str, each.shape)) or "()", each.rule, each.form, str(each.held),
             each.reason)
            for path, each in self.items()
        ]  # fmt: skip
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
        return "\n".join(
            "  ".join([cell.ljust(width) for cell, width in zip(row, widths)] + [row[-1]])
            for row in rows
        )


def clipped_grad(
    loss_fn: Callable[..., Any],
    *,
    has_aux: bool = False,
    with_rng: bool = False,
    method: str = "auto",
    clipping: str = "global",
) -> ClippedGrad:
    """Transforms a loss of one example into the sum of clipped gradients over a batch.

    Formal guarantees:
      Let the batch have rows e_1..e_B, and `summed` be the first output.

      1. Bounded contribution. `summed` is the sum over rows of a contribution that depends on that
         row (and `params`, `clip_norm`, the row's mask and key) only, and whose l2 norm over all
         parameters is at most `clip_norm`. With per-leaf clipping each parameter's part is at most
         its own clip norm. Float rounding of norms is inside the bound: gradients are clipped to
         `(1 - 2**-18) * clip_norm`, and norms formed by inner products between positions are
         first increased by a bound on their rounding. What remains is the rounding of the sum
         itself, as in any sum of floating-point numbers.
      2. Masked rows contribute exactly zero, whatever they hold, NaN and infinity included.
      3. So do rows whose gradient norm is NaN or infinite; a norm whose square overflows (over
         1.8e19 in float32) counts as infinite.
      4. Hence `sensitivity(relation, clip_norm)` bounds the change of `summed` between batches
         that differ in one row: present or masked (`add_or_remove_one`), or replaced
         (`replace_one`).

      `aux` carries no guarantee: it is per-example information.

    The sum is returned in float32 or wider, also for bfloat16 parameters, and contracted at the
    highest precision: rounding a sum to 8 bits, or tensor-float-32 products, would let one example
    move it by more than the clip norm.

    Args:
      loss_fn: `loss_fn(params, example)` -> scalar; with `with_rng` also a key as third argument;
        with `has_aux` returns `(scalar, auxiliary)`. `params` and `example` are pytrees; `example`
        has no batch axis. Written in JAX; any library of layers or none.
      has_aux: whether the loss returns auxiliary output.
      with_rng: whether the loss takes a key; each row gets its own.
      method: "auto" (cheapest form for each parameter), "factored" (never a product where a rule
        matches), or "materialised" (per-example gradients by `vmap`: slow, the reference).
      clipping: "global" clips the norm of the whole gradient. "per_leaf" clips each parameter by
        itself: a scalar `clip_norm` C is then shared out evenly, C / sqrt(number of parameters)
        each; a pytree like `params` gives each its own.

    Returns:
      A `ClippedGrad`.

    Raises:
      ValueError: for an unknown method or clipping.
    """
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}: pass one of {', '.join(METHODS)}")
    if clipping not in CLIPPINGS:
        raise ValueError(f"unknown clipping {clipping!r}: pass one of {', '.join(CLIPPINGS)}")
    return ClippedGrad(loss_fn, has_aux, with_rng, method, clipping)


@dataclasses.dataclass(frozen=True)
class ClippedGrad:
    """The transformed loss; made by `clipped_grad`, which states the guarantees.

    Pure: jit, vmap (over candidates: any of parameters, batch, clip norm, mask and key batched) and
    scan it at the call site.
    """

    loss_fn: Callable[..., Any]
    has_aux: bool = False
    with_rng: bool = False
    method: str = "auto"
    clipping: str = "global"

    def __call__(
        self,
        params: PyTree,
        batch: PyTree,
        clip_norm: PyTree,
        mask: jax.Array | None = None,
        rng: jax.Array | None = None,
    ) -> tuple[PyTree, Auxiliary]:
        """Sums the clipped gradients of the rows of a batch.

        Args:
          params: pytree of floating-point arrays.
          batch: pytree of arrays with a common leading batch axis.
          clip_norm: scalar >= 0, may be traced; infinity gives the plain sum, zero gives zero. With
            per-leaf clipping possibly a pytree like `params`.
          mask: (batch,) bool; rows at False are left out. All rows count by default.
          rng: a key, split into one for each row; required by `with_rng`.

        Returns:
          The sum, a pytree like `params` in float32 or wider, and an `Auxiliary`.

        Raises:
          ValueError: one line that says what to pass instead.
        """
        size = _batch_size(batch)
        keys = self._keys(rng, size)
        mask = _checked_mask(mask, size)
        _check_clip_norm(clip_norm, self.clipping)
        self._check_loss(params, batch, keys)
        if self.method == "materialised":
            gradients, values, aux = self._materialised(params, batch, keys)
        else:
            gradients, values, aux = self._factored(params, batch, keys)
        squares = gradients.squared_norms()
        with jax.numpy_rank_promotion("allow"):
            weights, norms, leaf_norms = self._weights(squares, clip_norm, mask, params)
        summed = gradients.weighted_sums(weights)
        tree = jax.tree.structure(params)
        if leaf_norms is not None:
            leaf_norms = jax.tree.unflatten(tree, leaf_norms)
        return jax.tree.unflatten(tree, summed), Auxiliary(norms, values, aux, leaf_norms)

    def sensitivity(self, relation: object, clip_norm: PyTree) -> Any:
        """Bounds the l2 change of the sum between neighbouring batches.

        Args:
          relation: see `dpjax.neighbouring`.
          clip_norm: as passed to the call.

        Returns:
          `clip_norm` for add-or-remove one, twice that for replace one; of a pytree of per-leaf
          clip norms, of the root of their summed squares.

        Raises:
          ValueError: for an unknown relation.
        """
        times = 1 if neighbouring.normalise_relation(relation) == "add_or_remove_one" else 2
        norms = jax.tree.leaves(clip_norm)
        if self.clipping == "per_leaf" and len(norms) > 1:
            if any(isinstance(norm, jax.Array) for norm in norms):
                return times * jnp.sqrt(sum(jnp.square(norm) for norm in norms))
            return times * math.hypot(*norms)
        return times * norms[0]

    def explain(self, params: PyTree, batch: PyTree) -> Explanation:
        """Tells what is done for each parameter, without computing anything.

        Args:
          params, batch: as passed to the call, or their shapes (`jax.ShapeDtypeStruct`).
        """
        keys = None
        if self.with_rng:
            keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), _batch_size(batch)))
        self._check_loss(params, batch, keys)
        paths = [_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
        shapes = [tuple(np.shape(leaf)) for leaf in jax.tree.leaves(params)]
        if self.method == "materialised":
            return Explanation(
                (path, ParameterExplanation(
                    "materialised", "per-example gradient", "asked for", shape, math.prod(shape)))
                for path, shape in zip(paths, shapes, strict=True)
            )  # fmt: skip
        _, plans, _, _ = self._plan(params, batch, keys)
        return Explanation(
            (path, ParameterExplanation(plan.rule, plan.form, plan.reason, shape, plan.held))
            for path, plan, shape in zip(paths, plans, shapes, strict=True)
        )

    # The two ways to the norms and sums ---------------------------------------------------------

    def _materialised(self, params: PyTree, batch: PyTree, keys: Any) -> tuple[Any, Any, Any]:
        def one(example: PyTree, *key: Any) -> tuple[PyTree, tuple[Any, Any]]:
            return self._value_and_grad(params, example, *key)

        gradients, values, aux = jax.vmap(one)(batch, *([] if keys is None else [keys]))
        return _MaterialisedGradients(jax.tree.leaves(gradients)), values, aux

    def _factored(self, params: PyTree, batch: PyTree, keys: Any) -> tuple[Any, Any, Any]:
        graph, plans, results, result_tree = self._plan(params, batch, keys)
        wanted = list(results)
        for plan in plans:
            wanted += plan.needs
        leaves = jax.tree.leaves(params)
        row_inputs = set(graph.inputs[len(leaves) :])
        per_row = graph.influenced_by(row_inputs)
        distinct = list(dict.fromkeys(atom for atom in wanted if atom in per_row))
        shared = list(dict.fromkeys(atom for atom in wanted if atom not in per_row))

        def trunk(*row: Any) -> list[Any]:
            return evaluate(graph, [*leaves, *row], distinct)

        rows = [*jax.tree.leaves(batch), *([] if keys is None else [keys])]
        arrays = dict(zip(distinct, jax.vmap(trunk)(*rows), strict=True))
        size = rows[0].shape[0]
        blank = [None] * (len(graph.inputs) - len(leaves))
        for atom, array in zip(shared, evaluate(graph, [*leaves, *blank], shared), strict=True):
            array = jnp.asarray(array)
            arrays[atom] = jnp.broadcast_to(array, (size, *array.shape))
        values, *aux = (arrays[atom] for atom in results)
        aux = jax.tree.unflatten(result_tree, aux) if self.has_aux else None
        operands = [tuple(arrays[atom] for atom in plan.needs) for plan in plans]
        return _PlannedGradients(plans, operands, size), values, aux

    def _plan(
        self, params: PyTree, batch: PyTree, keys: Any
    ) -> tuple[Graph, list[Plan], list[Any], Any]:
        """Traces one example and decides for each parameter.

        Returns:
          The graph of one example, a plan for each parameter, the atoms of the loss and of its
          auxiliary outputs, and the structure of the latter.
        """
        example, key = _one_row(batch), None if keys is None else _one_row(keys)
        arguments = (_shapes(params), example) if key is None else (_shapes(params), example, key)
        jaxpr, shapes = jax.make_jaxpr(self._value_and_grad, return_shape=True)(*arguments)
        graph = graph_of(jaxpr)
        leaves = jax.tree.leaves(params)
        gradients, results = graph.outputs[: len(leaves)], graph.outputs[len(leaves) :]
        # A gradient that is also read elsewhere, or given back twice, exists anyway.
        recogniser = Recogniser(graph)
        plans = [
            self._plan_leaf(recogniser, atom, leaf)
            for atom, leaf in zip(gradients, leaves, strict=True)
        ]
        return graph, plans, results, jax.tree.structure(shapes[2])

    def _plan_leaf(self, recogniser: Recogniser, atom: Any, leaf: Any) -> Plan:
        terms = recogniser.terms_of(atom, 1)
        if terms == []:
            return Unused(np.shape(leaf), leaf.dtype)
        if terms is not None:
            plan = plan_terms(terms, force=self.method == "factored")
            if not isinstance(plan, str):
                return plan
            return Whole(atom, "materialised", plan)
        if isinstance(atom, Value) and _is_small(atom):
            return Whole(atom, "small", "no larger than the activations it is summed from")
        return Whole(atom, "materialised", "no rule matches the operations that form it")

    def _value_and_grad(self, params: PyTree, *rest: Any) -> tuple[PyTree, Any, Any]:
        out, gradients = jax.value_and_grad(self.loss_fn, has_aux=self.has_aux)(params, *rest)
        value, aux = out if self.has_aux else (out, None)
        return gradients, value, aux

    # Norms to weights ---------------------------------------------------------------------------

    def _weights(
        self, squares: list[SquaredNorm], clip_norm: PyTree, mask: jax.Array, params: PyTree
    ) -> tuple[list[jax.Array], jax.Array, list[jax.Array] | None]:
        """Weights (batch,) of each parameter, norms (batch,) and per-leaf norms."""
        total = sum(each.value for each in squares)
        norms = jnp.sqrt(total)
        live = mask & jnp.isfinite(total)
        if self.clipping == "global":
            upper = total + sum(each.slack for each in squares)
            weights = _clip_weights(upper, clip_norm, live)
            return [weights] * len(squares), norms, None
        clip_norms = jax.tree.leaves(clip_norm)
        if len(clip_norms) != len(squares):
            clip_norms = [jnp.asarray(clip_norms[0]) / math.sqrt(len(squares))] * len(squares)
        weights = [
            _clip_weights(each.value + each.slack, one, live)
            for each, one in zip(squares, clip_norms, strict=True)
        ]
        return weights, norms, [jnp.sqrt(each.value) for each in squares]

    # Checks -------------------------------------------------------------------------------------

    def _keys(self, rng: jax.Array | None, size: int) -> jax.Array | None:
        if self.with_rng and rng is None:
            raise ValueError("this loss takes a key: pass rng=jax.random.key(...)")
        if not self.with_rng:
            if rng is not None:
                raise ValueError("this loss takes no key: leave rng out, or pass with_rng=True")
            return None
        return jax.random.split(rng, size)

    def _check_loss(self, params: PyTree, batch: PyTree, keys: Any) -> None:
        for path, leaf in jax.tree_util.tree_leaves_with_path(params):
            if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
                raise ValueError(
                    f"parameter {_name(path)} has type {jnp.result_type(leaf)}: pass floating-point"
                    " parameters only and let the loss close over the rest"
                )
        row = (_one_row(batch),) if keys is None else (_one_row(batch), _one_row(keys))
        out = jax.eval_shape(self.loss_fn, _shapes(params), *row)
        if self.has_aux and not (isinstance(out, tuple) and len(out) == 2):
            raise ValueError("has_aux=True needs a loss that returns a pair (scalar, auxiliary)")
        loss = out[0] if self.has_aux else out
        shape = getattr(loss, "shape", None)
        if shape != () or not jnp.issubdtype(loss.dtype, jnp.floating):
            found = f"shape {shape}" if shape is not None else type(loss).__name__
            raise ValueError(
                "the loss of one example must be a real scalar (the example comes without a batch "
                f"axis), not {found}: reduce it, and pass has_aux=True for further outputs"
            )


@dataclasses.dataclass(frozen=True)
class _MaterialisedGradients:
    """Per-example gradients, (batch, ...) for each parameter."""

    leaves: list[jax.Array]

    def squared_norms(self) -> list[SquaredNorm]:
        return [jax.vmap(whole_squared_norm)(leaf) for leaf in self.leaves]

    def weighted_sums(self, weights: list[jax.Array]) -> list[jax.Array]:
        return [whole_weighted_sum(leaf, w) for leaf, w in zip(self.leaves, weights, strict=True)]


class _PlannedGradients:
    """Operands of the operations that would have formed the gradients."""

    def __init__(self, plans: list[Plan], operands: list[tuple], size: int) -> None:
        self.plans, self.operands, self.size = plans, operands, size
        self.kept: list[Any] = []

    def squared_norms(self) -> list[SquaredNorm]:
        norms = []
        for plan, arrays in zip(self.plans, self.operands, strict=True):
            norm, kept = jax.vmap(plan.squared_norm, axis_size=self.size)(*arrays)
            norms.append(norm)
            self.kept.append(kept)
        return norms

    def weighted_sums(self, weights: list[jax.Array]) -> list[jax.Array]:
        return [
            plan.weighted_sum(arrays, kept, weight)
            for plan, arrays, kept, weight in zip(
                self.plans, self.operands, self.kept, weights, strict=True
            )
        ]


def _clip_weights(upper_square: jax.Array, clip_norm: Any, live: jax.Array) -> jax.Array:
    """min(1, clip_norm / norm) for live rows, else exactly zero; (batch,)."""
    upper = jnp.sqrt(upper_square)
    clip_norm = jnp.asarray(clip_norm, upper.dtype)
    smallest = jnp.finfo(upper.dtype).tiny
    ratio = clip_norm * (1 - ROUNDING_ALLOWANCE) / jnp.maximum(upper, smallest)
    return jnp.where(live, jnp.minimum(ratio, 1), 0)


def _is_small(atom: Value) -> bool:
    """Whether a gradient is summed, without a product, from something at least as large."""
    producer = atom.producer
    while producer is not None and producer.name in (
        "reshape", "squeeze", "broadcast_in_dim", "convert_element_type", "transpose"
    ):  # fmt: skip
        source = producer.inputs[0]
        if not isinstance(source, Value):
            return False
        producer = source.producer
    return producer is not None and producer.name in ("reduce_sum", "add_any", "mul", "neg")


def _batch_size(batch: PyTree) -> int:
    sizes = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(batch)}
    if len(sizes) != 1 or () in sizes:
        raise ValueError(
            "every array of the batch needs the same leading batch axis; found leading sizes "
            f"{sorted(sizes)}"
        )
    return sizes.pop()[0]


def _checked_mask(mask: jax.Array | None, size: int) -> jax.Array:
    if mask is None:
        return jnp.ones((size,), bool)
    if np.shape(mask) != (size,):
        raise ValueError(f"mask has shape {np.shape(mask)}: pass one entry for each of {size} rows")
    return jnp.asarray(mask).astype(bool)


def _check_clip_norm(clip_norm: PyTree, clipping: str) -> None:
    norms = jax.tree.leaves(clip_norm)
    if len(norms) != 1 and clipping == "global":
        raise ValueError("clip_norm is a pytree: pass a scalar, or clipping='per_leaf'")
    for norm in norms:
        if np.shape(norm) != ():
            raise ValueError(f"clip_norm has shape {np.shape(norm)}: pass a scalar")
        if isinstance(norm, (int, float)) and not norm >= 0:
            raise ValueError(f"clip_norm is {norm}: pass a number >= 0")


def _shapes(tree: PyTree) -> PyTree:
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), jnp.result_type(leaf)), tree
    )


def _one_row(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), tree)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
