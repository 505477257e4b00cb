"""Dropout whose rate a search may draw: it may be traced, which Flax's layers refuse."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp


def dropout(
    inputs: jax.Array, rate: float | jax.Array, draw_key: Callable[[], jax.Array]
) -> jax.Array:
    """Sets a random share of the inputs to 0 and scales up the others, so that the mean stays.

    `nn.Dropout` and `nnx.Dropout` compare their rate with 0 in Python, which a traced one does not
    allow. For `model_reads` of the ready tasks.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from dpjax import models
      >>> half = models.dropout(jnp.ones(1000), 0.5, lambda: jax.random.key(0))
      >>> sorted(set(half.tolist()))
      [0.0, 2.0]
      >>> models.dropout(jnp.ones(2), 0.0, None).tolist()  # predictions: nothing is drawn
      [1.0, 1.0]

    Args:
      inputs: float, any shape.
      rate: in [0, 1), the probability of 0 for each of them; a number or a traced scalar.
      draw_key: gives a key; not called where the rate is the number 0. In an NNX module
        `self.rngs.dropout` of the `rngs` that its constructor kept, in a Linen module
        `lambda: self.make_rng("dropout")`.

    Returns:
      Of the shape and dtype of `inputs`; NaN for a traced rate outside [0, 1).

    Raises:
      ValueError: for a number outside [0, 1).
    """
    if isinstance(rate, int | float):
        if not 0 <= rate < 1:
            raise ValueError(f"rate is {rate}: pass a probability of at least 0 and below 1")
        if rate == 0:
            return inputs
    kept = jax.random.bernoulli(draw_key(), 1.0 - rate, inputs.shape)
    scale = jnp.where((rate >= 0) & (rate < 1), 1.0 / (1.0 - rate), jnp.nan)
    return (jnp.where(kept, inputs, 0.0) * scale).astype(inputs.dtype)
