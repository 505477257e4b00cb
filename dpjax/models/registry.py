"""The built-in models by name, for the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn

from dpjax.models.functional import FunctionalModel, functional
from dpjax.models.linear import MLP, LinearSVM, LogisticRegression
from dpjax.models.losses import cross_entropy, hinge
from dpjax.models.pooled_convolutions import ConvBlocksNet, ConvPoolNet

NAMES = ("logistic_regression", "linear_svm", "mlp", "conv_pool", "conv_blocks")
"""The last two are DP-HYPE's nets for MNIST and CIFAR-10."""

_IMAGE_AXES = {"conv_pool": (2, 3), "conv_blocks": (3,)}
"""How many axes an image may have; the channel axis is the last of three."""


def build_module(name: str, classes: int, *, widths: Sequence[int] = (128, 64)) -> nn.Module:
    """The Linen module of a name in `NAMES`; `widths` are the hidden layers of `mlp`.

    Example:
      >>> from dpjax import models
      >>> type(models.build_module("logistic_regression", 10)).__name__
      'LogisticRegression'

    Raises:
      ValueError: an unknown name, fewer than two classes, or widths below 1.
    """
    if classes < 2:
        raise ValueError(f"classes is {classes}: pass at least 2")
    if any(width < 1 for width in widths):
        raise ValueError(f"widths is {tuple(widths)}: pass positive hidden widths")
    match name:
        case "logistic_regression":
            return LogisticRegression(classes)
        case "linear_svm":
            return LinearSVM(classes)
        case "mlp":
            return MLP(tuple(widths), classes)
        case "conv_pool":
            return ConvPoolNet(classes)
        case "conv_blocks":
            return ConvBlocksNet(classes)
    raise ValueError(f"unknown model {name!r}: pass one of {', '.join(NAMES)}")


def build(
    name: str, input_shape: Sequence[int], classes: int, *, widths: Sequence[int] = (128, 64)
) -> FunctionalModel:
    """Returns a built-in model as pure functions.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from dpjax import models
      >>> model = models.build("mlp", (8, 8, 1), 10, widths=(16,))
      >>> params = model.init(jax.random.key(0))
      >>> model.apply(params, jnp.zeros((5, 8, 8, 1))).shape
      (5, 10)

    Args:
      name: one of `NAMES`.
      input_shape: of one example, without batch axis.
      classes: number of classes, >= 2.
      widths: hidden widths of `mlp`; other models have none.

    Raises:
      ValueError: as `build_module`, and for convolutional nets on inputs that are not images.
    """
    module = build_module(name, classes, widths=widths)
    axes = _IMAGE_AXES.get(name, ())
    if axes and len(input_shape) not in axes:
        without = "(height, width) or " if 2 in axes else ""
        raise ValueError(
            f"{name} takes images, not inputs of shape {tuple(input_shape)}: pass "
            f"{without}(height, width, channels), or use mlp"
        )
    return functional(module, jax.ShapeDtypeStruct(tuple(input_shape), jnp.float32))


def default_loss(name: str) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """The loss a built-in model is meant for: `hinge` for `linear_svm`, else `cross_entropy`.

    Example:
      >>> from dpjax import models
      >>> models.default_loss("logistic_regression").__name__
      'cross_entropy'

    Raises:
      ValueError: an unknown name.
    """
    if name not in NAMES:
        raise ValueError(f"unknown model {name!r}: pass one of {', '.join(NAMES)}")
    return hinge if name == "linear_svm" else cross_entropy
