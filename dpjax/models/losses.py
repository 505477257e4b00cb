"""Losses on the scores of a classifier; any leading shape, no reduction over examples."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def cross_entropy(logits: jax.Array, label: jax.Array) -> jax.Array:
    """Returns the softmax cross-entropy.

    Args:
      logits: float (..., classes).
      label: int (...), in [0, classes).

    Returns:
      float (...).
    """
    # A product with the one-hot label: indexing would make the gradient a scatter, which a GPU that
    # must add in a fixed order splits into several kernels.
    right = jax.nn.one_hot(label, logits.shape[-1], dtype=bool)
    right_logit = jnp.sum(jnp.where(right, logits, 0.0), axis=-1)
    return jax.nn.logsumexp(logits, axis=-1) - right_logit


def hinge(logits: jax.Array, label: jax.Array) -> jax.Array:
    """Returns the hinge loss, max(0, 1 + best wrong score - right score) (Crammer & Singer 2001).

    A single score (classes = 1) is the binary form, max(0, 1 - y s) with y = -1 or 1 for label 0 or
    1. Two scores (0, s) give the same number.

    Args:
      logits: float (..., classes).
      label: int (...), in [0, classes), or {0, 1} for a single score.

    Returns:
      float (...).
    """
    if logits.shape[-1] == 1:
        return jnp.maximum(0.0, 1.0 - (2.0 * label - 1.0) * logits[..., 0])
    right = jax.nn.one_hot(label, logits.shape[-1], dtype=bool)
    right_score = jnp.sum(jnp.where(right, logits, 0.0), axis=-1)
    wrong_score = jnp.max(jnp.where(right, -jnp.inf, logits), axis=-1)
    return jnp.maximum(0.0, 1.0 + wrong_score - right_score)
