"""Linear classifiers and the multilayer perceptron, as Flax Linen modules.

Every model here maps inputs (batch, ...) to scores (batch, classes) and predicts the largest.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn


class _LinearScores(nn.Module):
    """One linear score per class from flattened inputs; for two classes one score s, as (0, s)."""

    classes: int

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        features = inputs.reshape(inputs.shape[0], -1)
        # Zero is a public starting point that no convex loss needs to leave symmetrically.
        dense = nn.Dense(
            1 if self.classes == 2 else self.classes, kernel_init=nn.initializers.zeros
        )
        scores = dense(features)
        if self.classes == 2:
            scores = jnp.concatenate([jnp.zeros_like(scores), scores], axis=-1)
        return scores


class LogisticRegression(_LinearScores):
    """Multinomial logistic regression; the one-weight-vector form for two classes.

    Example:
      >>> from dpjax import models
      >>> models.LogisticRegression(10).classes
      10

    Attributes:
      classes: number of classes, >= 2.
    """


class LinearSVM(_LinearScores):
    """Linear support vector machine, to be trained with `hinge`; one weight vector for two classes.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from dpjax import models
      >>> svm = models.LinearSVM(classes=2)
      >>> params = svm.init(jax.random.key(0), jnp.zeros((1, 3)))
      >>> svm.apply(params, jnp.zeros((5, 3))).shape
      (5, 2)

    Attributes:
      classes: number of classes, >= 2.
    """


class MLP(nn.Module):
    """Fully connected layers with ReLU between them.

    Example:
      >>> from dpjax import models
      >>> models.MLP((128, 64), 10).classes
      10

    Attributes:
      widths: of the hidden layers.
      classes: number of classes.
    """

    widths: Sequence[int]
    classes: int

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        hidden = inputs.reshape(inputs.shape[0], -1)
        for width in self.widths:
            hidden = nn.relu(nn.Dense(width)(hidden))
        return nn.Dense(self.classes)(hidden)
