"""Gradients that are scaled, entry by entry, before they are clipped, and scaled back after noise.

Noise is the same for every entry, and so is what clipping takes off. A scale s spends both where
they cost least: a record's gradient g is clipped as s g, noise is added to the sum, and the noisy
sum is divided by s. s must be public, or computed from what was released before. It is public in
Asi et al. 2021 (https://arxiv.org/abs/2106.13756) and Li et al. 2022 (AdaDPS,
https://arxiv.org/abs/2202.05963), and computed from earlier noisy sums in Li et al. 2023 (DP^2,
https://arxiv.org/abs/2212.00309) and Ganesh et al. 2025 (scale-then-privatise,
https://arxiv.org/abs/2507.01129).

The scale is part of the loss (`scaled_gradient`), so norms are taken by the factored rules, and it
lies in the state of the optimiser (`Scale`), which sees nothing but noisy sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax import checks
from dpjax.training.clipping.implicit_convolution import as_for

Tree = Any


class Scale(NamedTuple):
    """Holds the scale of the next step's gradients, in an optimiser's state: see `scale_of`."""

    tree: Tree  # like the trained parameters, in their dtypes


@jax.custom_jvp
def _scaled(leaf: jax.Array, scale: jax.Array) -> jax.Array:
    """Returns the leaf itself; what is differentiated by it is multiplied by the scale."""
    return leaf


_scaled.defjvps(lambda tangent, value, leaf, scale: tangent * scale, None)


def scaled_gradient(loss_fn: Callable[..., Any], scale: Tree) -> Callable[..., Any]:
    """Returns a loss of the same values whose gradient is multiplied by a scale, entry by entry.

    Formal guarantees:
      `clipped_grad` of the result has all that it guarantees, whatever the scale is: it clips the
      scaled gradient by the scaled gradient's norm, so that one record moves the sum of scaled
      gradients by `sensitivity`. The sum divided by the scale is post-processing where the scale
      depends on nothing private. One that is computed from the records must not be divided by, nor
      be shown.

    Example:
      >>> import jax.numpy as jnp
      >>> from dpjax import training
      >>> loss = lambda w, x: jnp.sum(w * x)
      >>> gradient = training.clipped_grad(training.scaled_gradient(loss, jnp.array([1.0, 0.25])))
      >>> summed, _ = gradient(jnp.zeros(2), jnp.array([[0.3, 1.6]]), clip_norm=1.0)
      >>> [round(float(value), 3) for value in summed]
      [0.3, 0.4]

    Args:
      loss_fn: loss of ONE example, as `clipped_grad` takes it.
      scale: pytree like its parameters, of numbers in (0, 1] that may be traced: one for each
        entry, or what broadcasts to them.
    """

    def loss(params: Tree, *rest: Any) -> Any:
        return loss_fn(jax.tree.map(_scaled, params, _like(params, scale)), *rest)

    return as_for(loss_fn, loss)


def scale_of(optimizer_state: Any) -> Tree | None:
    """Returns the scale of the next step's gradients from an optimiser's state; None for none."""

    def is_scale(node: Any) -> bool:
        return isinstance(node, Scale)

    leaves = jax.tree.leaves(optimizer_state, is_leaf=is_scale)
    found = [node.tree for node in leaves if is_scale(node)]
    if len(found) > 1:
        raise ValueError(
            f"the optimizer scales gradients {len(found)} times: chain one of training.public_scale"
            " and training.adaptive_scale, as the first"
        )
    return found[0] if found else None


def public_scale(scale: Tree) -> optax.GradientTransformation:
    """Scales every record's gradient by public numbers before it is clipped.

    Chain it before an optax optimiser, which is then given gradients in their own units:
    `lambda given: optax.chain(training.public_scale(scale), optax.sgd(given["learning_rate"]))`.
    Only ratios count. The largest number is taken as 1, and the clip norm is that of a gradient
    whose entries all have this scale.

    Formal guarantees:
      Those of `make_train`, and so its price: see `scaled_gradient`. The scale must not be computed
      from the records.

    Args:
      scale: pytree like the trained parameters, of positive numbers: one for each entry, or what
        broadcasts to them. The less an entry's gradients say, or the longer they are, the smaller.

    Raises:
      ValueError: a number that is not positive or not finite, or a tree of another shape.
    """
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(scale)]
    if not all(np.all((leaf > 0) & (leaf < np.inf)) for leaf in leaves):
        raise checks.refused("scale", scale, "positive numbers, larger for entries to spare noise")
    largest = max((np.max(leaf, initial=0.0) for leaf in leaves), default=1.0)

    def init(params: Tree) -> Scale:
        return Scale(_like(params, jax.tree.map(lambda leaf: np.asarray(leaf) / largest, scale)))

    def update(noisy: Tree, state: Scale, params: Tree | None = None) -> tuple[Tree, Scale]:
        return _unscaled(noisy, state), state

    return optax.GradientTransformation(init, update)


class AdaptiveScale(NamedTuple):
    """Holds the state of `adaptive_scale`."""

    scale: Scale
    square: Tree  # moving average of squares
    summed: Tree  # noisy gradients since the scale was last changed
    count: jax.Array  # steps so far, uint32


def adaptive_scale(
    decay: float | jax.Array = 0.999,
    damping: float | jax.Array = 0.1,
    delay: float | jax.Array = 1.0,
) -> optax.GradientTransformation:
    """Scales gradients before clipping by what earlier noisy gradients say of their size.

    With v the moving average of their squares, an entry's scale is 1 / (1 + r / damping), r its
    sqrt(v) over the mean of sqrt(v) over all entries. So long entries are shortened, and one far
    shorter than the mean keeps its length and has the least noise. At first all scales are 1.

    Formal guarantees:
      Those of `make_train`, and so its price: a step's scale is a function of earlier steps' noisy
      sums, which are released.

    Args:
      decay: of v, for each step, in [0, 1).
      damping: positive; the larger, the closer are all scales to 1.
      delay: whole number of steps, at least 1, for which a scale stays. v then takes in the square
        of the mean of so many noisy gradients, in which there is less noise (DP^2, s_1 = s_2).
    """

    def init(params: Tree) -> AdaptiveScale:
        zeros = jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, jnp.promote_types(leaf.dtype, jnp.float32)), params
        )
        ones = Scale(jax.tree.map(jnp.ones_like, params))
        return AdaptiveScale(ones, zeros, zeros, jnp.zeros((), jnp.uint32))

    def update(
        noisy: Tree, state: AdaptiveScale, params: Tree | None = None
    ) -> tuple[Tree, AdaptiveScale]:
        gradient, count = _unscaled(noisy, state.scale), state.count + np.uint32(1)
        summed = jax.tree.map(jnp.add, state.summed, gradient)
        due = jnp.mod(count.astype(jnp.float32), delay) == 0
        kept = jnp.asarray(decay, jnp.float32) ** delay

        def moved(square: jax.Array, total: jax.Array) -> jax.Array:
            new = kept * square + (1 - kept) * jnp.square(total / delay)
            return jnp.where(due, new.astype(square.dtype), square)

        square = jax.tree.map(moved, state.square, summed)
        summed = jax.tree.map(lambda total: jnp.where(due, 0, total), summed)
        roots = [jnp.sqrt(leaf) for leaf in jax.tree.leaves(square)]
        mean = sum(jnp.sum(root) for root in roots) / max(sum(root.size for root in roots), 1)
        least = jnp.finfo(jnp.float32).tiny  # Before the first change all are 0.

        def of(square: jax.Array, old: jax.Array) -> jax.Array:
            ratio = jnp.sqrt(square) / jnp.maximum(mean, least)
            return (1 / (1 + ratio / damping)).astype(old.dtype)

        scale = Scale(jax.tree.map(of, square, state.scale.tree))
        return gradient, AdaptiveScale(scale, square, summed, count)

    return optax.GradientTransformation(init, update)


def _unscaled(noisy: Tree, scale: Scale) -> Tree:
    return jax.tree.map(lambda leaf, by: leaf / by.astype(leaf.dtype), noisy, scale.tree)


def _like(params: Tree, scale: Tree) -> Tree:
    """Returns a scale in the shapes and dtypes of parameters."""

    def one(leaf: jax.Array, by: Any) -> jax.Array:
        return jnp.broadcast_to(jnp.asarray(by, leaf.dtype), leaf.shape)

    try:
        return jax.tree.map(one, params, scale)
    except ValueError as error:
        shapes = [jax.tree.map(jnp.shape, tree) for tree in (scale, params)]
        raise ValueError(
            f"scale has shapes {shapes[0]} for parameters {shapes[1]}: pass a tree like the "
            "parameters, a number for each of their entries"
        ) from error
