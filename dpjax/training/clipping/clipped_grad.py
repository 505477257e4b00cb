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
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import neighbouring
from dpjax.training.clipping.block_sums import (
    Influence,
    influence_of_rounding,
    moved_blocks,
)
from dpjax.training.clipping.checks import (
    batch_size,
    check_clip_norm,
    check_loss,
    checked_mask,
    checked_rows,
    one_row,
    path_name,
    row_keys,
    shapes_of,
)
from dpjax.training.clipping.clip_rules import (
    ClipRule,
    GlobalClipping,
    Group,
    PerLeafClipping,
    checked_rule,
)
from dpjax.training.clipping.factored_norms import SquaredNorm
from dpjax.training.clipping.jaxpr_graph import Value, bytes_of, graph_of, multiplications_of
from dpjax.training.clipping.leaf_plans import Plan, Whole
from dpjax.training.clipping.per_example_gradients import (
    Loss,
    RowCost,
    factored,
    materialised,
    row_cost,
    trace,
)
from dpjax.training.clipping.rounding import rounding

PyTree = Any

METHODS = ("auto", "factored", "materialised")

ROUNDING_ALLOWANCE = 2.0**-18
"""Contributions are clipped to `(1 - ROUNDING_ALLOWANCE) * clip_norm`: 64 units of float32
rounding, for the rounding of norms and of the scaled gradient. So the sensitivity is exactly the
clip norm and needs no padding."""

_SHARE_FOR_CANCELLING = 2.0**-14
"""Least share of the clip norm that is held back where positions or terms of one example's gradient
may cancel: `_held_back`."""

_LEAST_WEIGHT = 2.0**-96
"""Rows that are longer than its inverse, in clip norms, contribute nothing."""

LARGEST_SCALED = 2.0**60
"""Largest clip norm of rules that scale gradients up: weights times the factors of a gradient, one
after the other, then stay finite."""


class Auxiliary(NamedTuple):
    """Holds what `clipped_grad` returns beside the sum: per-example values, to be kept secret.

    `norms` are the (batch,) l2 norms of whole gradients before clipping, of masked rows too;
    infinite or NaN where the gradient is.
    """

    norms: jax.Array
    values: jax.Array  # (batch,) loss of each example; no meaning where its norm is infinite
    # the loss's auxiliary output with a leading batch axis; None without `has_aux`
    aux: PyTree = None
    # pytree like the parameters of (batch,) norms; None unless clipping is per leaf
    leaf_norms: PyTree = None
    # pytree like the sum: what it lacks of the unrounded one, as secret as it is; None for nothing
    lost: PyTree = None


def clipped_grad(
    loss_fn: Callable[..., Any],
    *,
    has_aux: bool = False,
    with_rng: bool = False,
    method: str = "auto",
    clipping: str | ClipRule = "global",
) -> ClippedGrad:
    """Transforms a loss of one example into the sum of clipped gradients over a batch.

    Formal guarantees:
      Let the batch have rows e_1..e_B, and `summed` be the first output.

      1. Bounded contribution. `summed` is the sum over rows of a contribution that depends on that
         row and place (and `params`, `clip_norm`, its mask and key) only, whose l2 norm over all
         parameters is at most `clip_norm`. With per-leaf clipping each parameter's part is at most
         its own clip norm; with groups each group's is at most its share of it, and the squares of
         shares add up to 1. With automatic clipping it is `g * c / (norm + stability)`, strictly
         shorter than c, for a `clip_norm` of at most 2^60. Clip norms below float32's reach (some
         1e-10 for small models, 1e-5 for the largest) count as zero. Float rounding
         of norms is inside the bound, whatever the scale of a finite input: norms are upper bounds
         on the true ones, proven for every order of summation (`SquaredNorm`, `rounding`), and c,
         what gradients are clipped to, is `(1 - 2**-18) / (1 + share) * clip_norm` with the share
         that 4 needs. Norm and sum are of the same numbers: all that is no argument of the program
         and no contraction's output is formed once (`formed_once.py`). On a GPU a scatter adds in
         the order in which threads arrive: that a contribution depends on its row and place only,
         and not on the moment, takes a program compiled as `compilation.py` has it.
      2. Masked rows contribute exactly zero, whatever they hold, NaN and infinity included.
      3. So do rows whose gradient norm is NaN or infinite, or over 2^96 clip norms; a norm whose
         square, or a square of whose factors, overflows (over 1.8e19 in float32) counts as
         infinite.
      4. Hence `sensitivity(relation, clip_norm)` bounds the change of `summed` between batches
         that differ in one row at its place: present or masked (`add_or_remove_one`), or replaced
         (`replace_one`). In floating point too, whatever the order of additions: a sum is taken in
         blocks, and what rounding can add to a row's influence is held back
         (`influence_of_rounding`). The batch's shape must be public: the same for both. With
         `rows_in_sum` that holds of the pair (`summed`, `Auxiliary.lost`) of all batches together,
         added up without rounding (`micro_batches.sum_of_lot`), not of `summed` alone.

      `aux` carries no guarantee: it is per-example information.

    The sum is returned in float32 or wider, also for bfloat16 parameters, and contracted at the
    highest precision: rounding a sum to 8 bits, or tensor-float-32 products, would let one example
    move it by more than the clip norm.

    Example:
      >>> import jax.numpy as jnp
      >>> from dpjax import training
      >>> gradient = training.clipped_grad(lambda w, x: (x @ w - 1.0) ** 2)
      >>> batch = jnp.array([[3.0, 4.0], [0.1, 0.0]])
      >>> summed, auxiliary = gradient(jnp.zeros(2), batch, clip_norm=1.0)
      >>> [round(float(value), 2) for value in summed]
      [-0.8, -0.8]

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
        each; a pytree like `params` gives each its own. "automatic" scales every gradient to just
        below `clip_norm`. Or a rule of `clip_rules.py`: groups, shares, a divisor.
    """
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}: pass one of {', '.join(METHODS)}")
    rule = checked_rule("clipping", clipping)
    return ClippedGrad(loss_fn, has_aux, with_rng, method, rule)


@dataclasses.dataclass(frozen=True)
class ClippedGrad:
    """Computes the sum of clipped gradients; made by `clipped_grad`, which states the guarantees.

    Pure: jit, vmap (over candidates: any of parameters, batch, clip norm, mask and key batched) and
    scan it at the call site.
    """

    loss_fn: Callable[..., Any]
    has_aux: bool = False
    with_rng: bool = False
    method: str = "auto"
    clipping: ClipRule = GlobalClipping()

    def __call__(
        self,
        params: PyTree,
        batch: PyTree,
        clip_norm: PyTree,
        mask: jax.Array | None = None,
        rng: jax.Array | None = None,
        rows_in_sum: int | None = None,
        stored: bool | None = None,
    ) -> tuple[PyTree, Auxiliary]:
        """Sums the clipped gradients of the rows of a batch.

        Args:
          params: pytree of floating-point arrays.
          batch: pytree of arrays with a common leading batch axis.
          clip_norm: scalar >= 0, may be traced; infinity gives the plain sum, zero gives zero. With
            per-leaf clipping possibly a pytree like `params`.
          mask: (batch,) bool; rows at False are left out. All rows count by default.
          rng: a key, split into one for each row, or (batch,) typed keys, the rows' own; required
            by `with_rng`.
          rows_in_sum: rows of all batches whose sums, with what they lack, are added up in pairs
            (`micro_batches.py`); None where this sum is used as it is, rounded.
          stored: whether parameters and rows stand in memory, as arguments of a program or the
            state of its loops (rows may be picked), and need not be copied. A program that
            computes them itself may do so twice, and round otherwise. By default True where none
            is traced.

        Returns:
          The sum, a pytree like `params` in float32 or wider, and an `Auxiliary`.
        """
        if stored is None:
            leaves = jax.tree.leaves((params, batch))
            stored = not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
        size = batch_size(batch)
        if not size:
            return self._of_no_rows(params, batch, clip_norm, rng, rows_in_sum, stored)
        keys = row_keys(rng, size, self.with_rng)
        mask = checked_mask(mask, size)
        check_clip_norm(clip_norm, params, self.clipping.by_leaf)
        rows = checked_rows(rows_in_sum, size)
        check_loss(self.loss_fn, self.has_aux, params, batch, keys)
        loss = Loss(self.loss_fn, self.has_aux)
        if self.method == "materialised":
            results = materialised(loss, params, batch, keys)
        else:
            force = self.method == "factored"
            tracing = trace(loss, params, batch, keys, force, stored)
            results = factored(tracing, params, batch, keys)
        squares = results.gradients.squared_norms()
        tree = jax.tree.structure(params)
        names = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
        gradients, alone = results.gradients, rows_in_sum is None
        influence = influence_of_rounding(gradients.addends, size, rows, alone)
        held_back = _held_back(influence, gradients.products)
        weights = self._weights(squares, names, clip_norm, mask, held_back)
        norms = jnp.sqrt(sum(square.value for square in squares))
        leaf_norms = None
        if isinstance(self.clipping, PerLeafClipping):
            leaf_norms = jax.tree.unflatten(tree, [jnp.sqrt(square.value) for square in squares])
        pairs = gradients.weighted_sums(weights, moved_blocks(size, rows))
        summed = jax.tree.unflatten(tree, [high for high, _ in pairs])
        lost = None
        if any(low is not None for _, low in pairs):
            lows = [jnp.zeros_like(high) if low is None else low for high, low in pairs]
            lost = jax.tree.unflatten(tree, lows)
        return summed, Auxiliary(norms, results.values, results.aux, leaf_norms, lost)

    def _of_no_rows(
        self,
        params: PyTree,
        batch: PyTree,
        clip_norm: PyTree,
        rng: jax.Array | None,
        rows_in_sum: int | None,
        stored: bool | None,
    ) -> tuple[PyTree, Auxiliary]:
        """Returns the sum over no rows: that of one made-up row, which is left out."""
        one = jax.tree.map(lambda leaf: jnp.zeros((1, *leaf.shape[1:]), leaf.dtype), batch)
        key = None if rng is None else jax.random.key(0)
        summed, found = self(params, one, clip_norm, jnp.zeros(1, bool), key, rows_in_sum, stored)
        of_rows = jax.tree.map(lambda leaf: leaf[:0], found._replace(lost=None))
        return summed, of_rows._replace(lost=found.lost)

    def sensitivity(self, relation: object, clip_norm: PyTree) -> Any:
        """Bounds the l2 change of the sum between neighbouring batches (`dpjax.neighbouring`).

        It is `clip_norm` for add-or-remove one, twice that for replace one; of a pytree of per-leaf
        clip norms, of the root of their summed squares.
        """
        times = 1 if neighbouring.normalise_relation(relation) == "add_or_remove_one" else 2
        norms = jax.tree.leaves(clip_norm)
        if self.clipping.by_leaf and len(norms) > 1:
            if any(isinstance(norm, jax.Array) for norm in norms):
                return times * jnp.sqrt(sum(jnp.square(norm) for norm in norms))
            return times * math.hypot(*norms)
        return times * norms[0]

    def explain(self, params: PyTree, batch: PyTree) -> Explanation:
        """Tells what is done for each parameter; `params` and `batch` may be shapes alone."""
        keys = self._shapes_of_keys(batch_size(batch))
        check_loss(self.loss_fn, self.has_aux, params, batch, keys)
        leaves = jax.tree_util.tree_leaves_with_path(params)
        if self.method == "materialised":
            plans: list[Plan] = [
                Whole(Value(leaf), "materialised", "asked for")
                for leaf in jax.tree.leaves(shapes_of(params))
            ]
        else:
            loss = Loss(self.loss_fn, self.has_aux)
            plans = trace(loss, params, batch, keys, force=self.method == "factored").plans
        return Explanation(
            (path_name(path), ParameterExplanation(
                plan.rule, plan.form, plan.reason, tuple(np.shape(leaf)), plan.held))
            for (path, leaf), plan in zip(leaves, plans, strict=True)
        )  # fmt: skip

    def bytes_a_row(self, params: PyTree, batch: PyTree) -> int:
        """Estimates the memory that a row of a batch takes, from shapes as `explain`.

        All that depends on the row is counted, as if the compiler fused and freed nothing: one to
        seven times of what it reserves.
        """
        return self.row_cost(params, batch).bytes

    def row_cost(self, params: PyTree, batch: PyTree) -> RowCost:
        """Estimates memory and arithmetic of a row of a batch; see `bytes_a_row`."""
        keys = self._shapes_of_keys(batch_size(batch))
        check_loss(self.loss_fn, self.has_aux, params, batch, keys)
        loss = Loss(self.loss_fn, self.has_aux)
        if self.method != "materialised":
            return row_cost(trace(loss, params, batch, keys, force=self.method == "factored"))
        rows = (one_row(batch),) if keys is None else (one_row(batch), one_row(keys))
        graph = graph_of(jax.make_jaxpr(loss.value_and_grad)(shapes_of(params), *rows))
        own = graph.influenced_by(graph.inputs[len(jax.tree.leaves(params)) :])
        return RowCost(
            bytes_of(graph, graph.outputs, own), multiplications_of(graph, graph.outputs, own)
        )

    def _shapes_of_keys(self, size: int) -> Any:
        if not self.with_rng:
            return None
        return jax.eval_shape(lambda: jax.random.split(jax.random.key(0), size))

    def _weights(
        self,
        squares: list[SquaredNorm],
        names: list[str],
        clip_norm: PyTree,
        mask: jax.Array,
        held_back: HeldBack,
    ) -> list[jax.Array]:
        """Returns the factor on each row's gradient, (batch,) for each parameter."""
        # A norm whose upper bound is infinite counts as infinite.
        live = mask & jnp.isfinite(sum(square.value + square.slack for square in squares))
        scalar = jax.tree_util.treedef_is_leaf(jax.tree.structure(clip_norm))
        clip_norms = jax.tree.leaves(clip_norm)
        weights: dict[int, jax.Array] = {}
        groups = self.clipping.groups(names)
        _check_bound(self.clipping, groups, len(names))
        for members, share in groups:
            own = [squares[member] for member in members]
            summing = 1 + rounding(2 * len(own) + 2)
            square = sum(one.value + one.slack for one in own) * summing
            if held_back.of_added:
                added = sum(one.added for one in own) * summing
                square = jnp.maximum(square, held_back.of_added**2 * added)
            allowed = clip_norm * share if scalar else clip_norms[members[0]]
            weights |= dict.fromkeys(
                members, _clip_weights(square, allowed, live, held_back, self.clipping)
            )
        return [weights[place] for place in range(len(squares))]


class ParameterExplanation(NamedTuple):
    """The way in which one parameter's gradients are clipped, and the reason for it.

    The rule is "dense", "embedding" or "convolution" (recognised), "small" (a bias, scale or the
    like: its per-example gradient costs no more than the activations it is summed from), "shared"
    (the same for every example, like a penalty's), "unused", or "materialised" (no rule).

    The form of the norm is "outer" (one position: two norms multiplied), "gram" (inner products
    between positions), "rows" (the rows of a table that the example touches), "product" (the
    per-example product, small enough to be formed once and used for norm and sum), "per-example
    gradient", "one gradient for all" or "zero".
    """

    rule: str
    form: str
    reason: str  # with the sizes that decided
    shape: tuple[int, ...]
    held: int  # elements per example held for its gradient; 0 when it stayed factored


class Explanation(dict[str, ParameterExplanation]):
    """Maps a parameter's path to what is done for it; prints as a table."""

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


class HeldBack(NamedTuple):
    """The share of a clip norm that is held back for the rounding of the sum."""

    share: float  # of every clip norm, relative
    of_added: float  # a contribution counts as no shorter than this share of the norms added up
    least: float  # the shortest that a gradient counts as; a smaller clip norm counts as zero


def _held_back(influence: Influence, products: float) -> HeldBack:
    """Returns what to hold back of the clip norm so that rounding a sum cannot exceed it.

    Formal guarantees:
      Let c be the clip norm over `1 + share`. A row's contribution is at most c, and the sum of the
      norms that are added up for it at most `c / of_added`. So what rounding adds to its influence
      is at most `share * c` (`influence_of_rounding`); both together are the clip norm. Where
      positions or terms may cancel, eight times their rounding is held back, so that only rows in
      which nearly all cancel are shortened further.

      Weights times a factor may fall under the smallest normal number, 2**-126, and be flushed.
      Factors whose squares are finite are below 2**64, so that moves a contribution by less than
      `sqrt(products) * 2**-62`: by 2**-20 of `least`.
    """
    plain, cancelling = influence
    where_cancelling = max(_SHARE_FOR_CANCELLING, 8 * cancelling) if cancelling else 0.0
    of_added = cancelling / where_cancelling if cancelling else 0.0
    return HeldBack(plain + where_cancelling, of_added, math.sqrt(products) * 2.0**-42)


def _check_bound(rule: ClipRule, groups: Sequence[Group], number: int) -> None:
    """Refuses a rule whose contributions may exceed the clip norm, which `sensitivity` rests on."""
    members = sorted(member for group in groups for member in group.members)
    shares = math.fsum(group.share**2 for group in groups)
    if members != list(range(number)) or not shares <= 1 + 1e-9:
        raise ValueError(
            f"groups of clipping {rule.name!r} must hold each parameter once, with shares whose "
            "squares add up to 1: pass such groups"
        )


def _clip_weights(
    square: jax.Array, clip_norm: Any, live: jax.Array, held_back: HeldBack, rule: ClipRule
) -> jax.Array:
    """Returns min(1, clip_norm / norm) for live rows, else exactly zero; (batch,).

    Of a rule that scales up it is clip_norm / divisor. The division stands at the very end: XLA's
    CPU compiler fuses products and choices into whatever reads them, and would form a row's
    weight, with the sum over parameters behind it, anew for every element that it multiplies.
    """
    upper = jnp.maximum(jnp.sqrt(square), held_back.least)
    numbers = jnp.finfo(upper.dtype)
    allowed = (1 - ROUNDING_ALLOWANCE) / (1 + held_back.share)
    # A clip norm of infinity becomes the largest number: infinity over infinity is not 1.
    most = jnp.minimum(jnp.asarray(clip_norm, upper.dtype), numbers.max) * allowed
    # A negative clip norm bounds nothing.
    most = jnp.where(most >= 0, most, jnp.nan)
    most = jnp.where(most < held_back.least, most * 0.0, most)
    if not rule.scales_up:
        floor = most
    else:
        # Above this, weights times factors could overflow.
        most = jnp.where(clip_norm <= LARGEST_SCALED, most, jnp.nan)
        # Row by row, so that no rule can let one row's weight depend on another.
        divisor, floor = jax.vmap(rule.divisor)(upper), most * 2.0**-100
        # The bound rests on the norm, not on what a rule makes of it.
        upper, live = jnp.maximum(upper, divisor), live & ~jnp.isnan(divisor)
    least = jnp.maximum(jnp.maximum(upper, floor), numbers.tiny)
    # Rows of tiny weight count as zero: a weight that is not a normal number may be rounded up by
    # half of itself.
    live = live & ~(most < least * _LEAST_WEIGHT)
    return jnp.where(live, most, 0) / jnp.where(live, least, 1)
