"""Gradients that are scaled, entry by entry, before they are clipped, and scaled back after noise.

A record's gradient g is clipped as s g, noise is added to the sum, and the noisy sum is divided by
s. The scale s is public (Li et al. 2022, AdaDPS, https://arxiv.org/abs/2202.05963) or computed from
earlier noisy sums (Li et al. 2023, DP^2, https://arxiv.org/abs/2212.00309; Ganesh et al. 2025,
https://arxiv.org/abs/2507.01129). The loss scales its own gradient, so norms are taken by the
factored rules. The scale lies in the state of an optimiser, which sees nothing but noisy sums.
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

SMALLEST = 1e-6
"""Smallest number of a public scale, over its largest: half-precision parameters round it to 0."""


class Scale(NamedTuple):
    """Holds the scale of the next step's gradients, in an optimiser's state: see `scale_of`."""

    tree: Tree  # like the trained parameters, in their dtypes


@jax.custom_jvp
def _scaled(leaf: jax.Array, scale: jax.Array) -> jax.Array:
    """Returns the leaf itself; derivatives with respect to it are multiplied by the scale."""
    return leaf


_scaled.defjvps(lambda tangent, value, leaf, scale: tangent * scale, None)


def scaled_gradient(loss_fn: Callable[..., Any], scale: Tree) -> Callable[..., Any]:
    """Returns a loss of the same values whose gradient is multiplied by a scale, entry by entry.

    Formal guarantees:
      `clipped_grad` of the result clips scaled gradients by their own norms. So it has all its
      guarantees, whatever the scale is: one record moves the sum of scaled gradients by at most
      `sensitivity`. To divide the noisy sum by the scale is post-processing if the scale is public
      or was computed from earlier releases. It is not if the scale was computed from the records.

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
        entry, or what broadcasts to them. Any other number leaves nothing of records that meet it.
    """
    scale = jax.tree.map(lambda by: jnp.where((by > 0) & (by <= 1), by, jnp.nan), scale)

    def loss(params: Tree, *rest: Any) -> Any:
        return loss_fn(jax.tree.map(_scaled, params, _like(params, scale)), *rest)

    return as_for(loss_fn, loss)


def scale_of(optimizer_state: Any) -> Tree | None:
    """Returns the scale of the next step's gradients from an optimiser's state; None for none."""

    leaves = jax.tree.leaves(optimizer_state, is_leaf=lambda node: isinstance(node, Scale))
    found = [leaf.tree for leaf in leaves if isinstance(leaf, Scale)]
    if len(found) > 1:
        raise ValueError(
            f"the optimizer scales gradients {len(found)} times: chain one scale, as the first"
        )
    return found[0] if found else None


def public_scale(scale: Tree) -> optax.GradientTransformation:
    """Scales every record's gradient by public numbers before it is clipped.

    Chain it before an optax optimiser, which then gets noisy gradients in their own units:
    `lambda given: optax.chain(training.public_scale(scale), optax.adam(given["learning_rate"]))`.
    The scale is divided by its largest number.

    Formal guarantees:
      Those of `make_train`, at the same price, as `scaled_gradient` has it: the scale must not be
      computed from the records.

    Args:
      scale: pytree like the trained parameters, of positive numbers: one for each entry, or what
        broadcasts to them. The smaller, the less of the clip norm an entry takes, and the more
        noise its gradient has.

    Raises:
      ValueError: a number that is not positive and finite, or a tree of another shape.
    """
    leaves = [checks.plain_array("scale", leaf) for leaf in jax.tree.leaves(scale)]
    largest, wanted = 0.0, "a tree like the parameters, of positive numbers"
    for leaf in leaves:
        if leaf.dtype.kind in "OUSMmcb" or not np.all((leaf > 0) & (leaf < np.inf)):
            raise checks.refused("scale", scale, wanted)
        largest = max(largest, float(leaf.max(initial=0.0)))
    if not largest:
        raise checks.refused("scale", scale, wanted)
    for leaf in leaves:
        if np.any(leaf.astype(np.float64) / largest < SMALLEST):
            words = f"numbers within a factor of {1 / SMALLEST:g}, as noise is divided by them"
            raise checks.refused("scale", scale, words)

    def init(params: Tree) -> Scale:
        return Scale(_like(params, jax.tree.map(lambda leaf: np.asarray(leaf) / largest, scale)))

    def update(noisy: Tree, state: Scale, params: Tree | None = None) -> tuple[Tree, Scale]:
        return _unscaled(noisy, state), state

    return optax.GradientTransformation(init, update)


def adaptive_scale(decay: Any, damping: Any, delay: Any) -> optax.GradientTransformation:
    """Scales gradients before clipping by the sizes of earlier noisy gradients.

    With v the moving average of their squares, an entry's scale is 1 / (1 + r / damping), where r
    is its sqrt(v) over the mean sqrt(v) of all entries; at first 1. Every `delay` steps v takes in
    the square of the mean of so many gradients, which has less noise than the mean of their squares
    (DP^2, without its phases of unscaled gradients). `decay` is per step. All may be traced. If
    they are not, a damping of 0 and a delay under one step are refused: both would leave NaN.
    """
    if not isinstance(damping, jax.core.Tracer) and not damping > 0.0:
        words = ": gradients are divided by it, so pass numbers above 0"
        raise checks.Refused(("damping", float(damping)), words)
    if not isinstance(delay, jax.core.Tracer) and not delay >= 1.0:
        words = ": it counts the steps of a mean, so pass whole numbers from 1 on"
        raise checks.Refused(("delay", float(delay)), words)

    def init(params: Tree) -> tuple[Any, ...]:
        zeros = optax.tree.zeros_like(params, dtype=jnp.float32)
        return Scale(jax.tree.map(jnp.ones_like, params)), zeros, zeros, jnp.zeros((), jnp.uint32)

    def update(noisy: Tree, state: Any, params: Tree | None = None) -> tuple[Tree, Any]:
        scale, square, summed, count = state
        gradient, count = _unscaled(noisy, scale), count + np.uint32(1)
        due = jnp.mod(count.astype(jnp.float32), delay) == 0
        kept = jnp.where(due, jnp.asarray(decay, jnp.float32) ** delay, 1)
        summed = jax.tree.map(lambda a, b: a + b.astype(a.dtype), summed, gradient)
        square = jax.tree.map(
            lambda v, total: kept * v + (1 - kept) * jnp.square(total / delay), square, summed
        )
        summed = jax.tree.map(lambda total: jnp.where(due, 0, total), summed)
        roots = jax.tree.map(jnp.sqrt, square)
        mean = optax.tree.sum(roots) / optax.tree.size(roots)
        unit = jnp.maximum(damping * mean, jnp.finfo(jnp.float32).tiny)  # All are 0 at first.
        new = jax.tree.map(
            lambda root, old: (unit / (unit + root)).astype(old.dtype), roots, *scale
        )
        return gradient, (Scale(new), square, summed, count)

    return optax.GradientTransformation(init, update)


def _unscaled(noisy: Tree, scale: Scale) -> Tree:
    return jax.tree.map(lambda leaf, by: leaf / by.astype(leaf.dtype), noisy, scale.tree)


def _like(params: Tree, scale: Tree) -> Tree:
    """Returns a scale in the shapes and dtypes of parameters."""
    try:
        arrays = jax.tree.map(lambda leaf, by: jnp.asarray(by, leaf.dtype), params, scale)
        return jax.tree.map(lambda leaf, by: jnp.broadcast_to(by, leaf.shape), params, arrays)
    except ValueError as error:
        raise ValueError(
            f"scale is no tree like the trained parameters ({checks.shown(error)}): pass a number "
            "for each entry, or what broadcasts to them"
        ) from error
