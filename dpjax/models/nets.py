"""Ready nets as Flax Linen modules, their names for command lines, dropout with a traced rate.

Every net maps inputs (batch, ...) to scores (batch, classes) and predicts the largest. The two
convolutional ones are those of Liebenow, Peinemann & Mohammadi, "DP-HYPE", 2025, for MNIST and
CIFAR-10 (their Adult net is `MLP((64, 64), classes)`), by patch convolutions. They have no dropout,
which five epochs on a client's few records hardly need. They use group instead of batch
normalisation: nothing here keeps statistics of a batch, so a federation has only parameters to
average.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn

from dpjax import checks
from dpjax.models.losses import cross_entropy, hinge


def dropout(
    inputs: jax.Array, rate: float | jax.Array, draw_key: Callable[[], jax.Array]
) -> jax.Array:
    """Sets a random share of the inputs to 0 and scales up the others, to keep the mean.

    `nn.Dropout` and `nnx.Dropout` compare their rate with 0 in Python, which a traced rate does not
    allow. Use it if the rate is a hyperparameter: `model_reads` of the ready tasks.

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
      draw_key: returns a key; not called if the rate is the number 0. Pass `self.rngs.dropout` in
        an NNX module whose constructor keeps its `rngs`, `lambda: self.make_rng("dropout")` in a
        Linen module.

    Returns:
      Of the shape and dtype of `inputs`; NaN for a traced rate outside [0, 1).
    """
    if isinstance(rate, int | float):
        if not 0 <= rate < 1:
            raise ValueError(f"rate is {rate}: pass a probability of at least 0 and below 1")
        if rate == 0:
            return inputs
    kept = jax.random.bernoulli(draw_key(), 1.0 - rate, inputs.shape)
    scale = jnp.where((rate >= 0) & (rate < 1), 1.0 / (1.0 - rate), jnp.nan)
    return (jnp.where(kept, inputs, 0.0) * scale).astype(inputs.dtype)


class PatchConv(nn.Module):
    """A `SAME` convolution over two spatial axes, written as patches and one dense product.

    Computes what `nn.Conv` does, with the same parameters (`kernel` (height, width, in, out) and
    `bias` (out,)). XLA runs plain convolutions inside a loop 9-20 times slower on CPU, and a dense
    product has a per-example gradient norm that needs no per-example kernel gradient.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from dpjax import models
      >>> layer = models.PatchConv(features=4, kernel_size=(3, 3), strides=(2, 2))
      >>> params = layer.init(jax.random.key(0), jnp.zeros((1, 8, 8, 1)))
      >>> layer.apply(params, jnp.zeros((5, 8, 8, 1))).shape
      (5, 4, 4, 4)

    Attributes:
      features: output channels.
      kernel_size: (height, width).
      strides: (vertical, horizontal).
    """

    features: int
    kernel_size: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Maps (batch, height, width, in) float -> (batch, out height, out width, features)."""
        channels = inputs.shape[-1]
        kernel = self.param(
            "kernel", nn.initializers.lecun_normal(), (*self.kernel_size, channels, self.features)
        )
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        patches = extract_patches(inputs, self.kernel_size, self.strides)
        output = patches @ kernel.reshape(-1, self.features)
        return output + bias.reshape(1, 1, 1, -1)


def extract_patches(
    inputs: jax.Array, kernel_size: tuple[int, int], strides: tuple[int, int]
) -> jax.Array:
    """Extracts the patches under a sliding window with `SAME` padding, by slicing only.

    Args:
      inputs: (batch, height, width, channels).
      kernel_size: (height, width) of the window.
      strides: (vertical, horizontal).

    Returns:
      (batch, ceil(height / vertical), ceil(width / horizontal), window height * window width *
      channels), entries in the order of a kernel (height, width, channels).
    """
    padding, out_sizes = [(0, 0)], []
    for size, window, stride in zip(inputs.shape[1:3], kernel_size, strides, strict=True):
        out_size = -(-size // stride)
        total = max((out_size - 1) * stride + window - size, 0)
        padding.append((total // 2, total - total // 2))
        out_sizes.append(out_size)
    padded = jnp.pad(inputs, [*padding, (0, 0)])
    slices = [
        jax.lax.slice(
            padded,
            (0, row, column, 0),
            (
                padded.shape[0],
                row + (out_sizes[0] - 1) * strides[0] + 1,
                column + (out_sizes[1] - 1) * strides[1] + 1,
                padded.shape[3],
            ),
            (1, *strides, 1),
        )
        for row in range(kernel_size[0])
        for column in range(kernel_size[1])
    ]
    return jnp.concatenate(slices, axis=-1)


class _LinearScores(nn.Module):
    """One linear score per class of flattened inputs; two classes share one score s, as (0, s)."""

    classes: int

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        features = inputs.reshape(inputs.shape[0], -1)
        # Zeros are a public start, and with a convex loss no symmetry has to be broken.
        dense = nn.Dense(
            1 if self.classes == 2 else self.classes, kernel_init=nn.initializers.zeros
        )
        scores = dense(features)
        if self.classes == 2:
            scores = jnp.concatenate([jnp.zeros_like(scores), scores], axis=-1)
        return scores


class LogisticRegression(_LinearScores):
    """Multinomial logistic regression; for two classes with one weight vector.

    `classes` is at least 2.
    """


class LinearSVM(_LinearScores):
    """Linear support vector machine, to be trained with `hinge`; one weight vector for two classes.

    `classes` is at least 2.
    """


class MLP(nn.Module):
    """Fully connected layers with ReLU between them.

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


def max_pool(inputs: jax.Array) -> jax.Array:
    """Takes the maximum of each 2x2 block, (batch, height, width, c) -> half the height and width.

    Uses a reshape, whose gradient is a comparison; the gradient of a window reduction is slow on
    CPU. An odd last row or column is dropped.
    """
    batch, height, width, channels = inputs.shape
    blocks = inputs[:, : height // 2 * 2, : width // 2 * 2]
    return blocks.reshape(batch, height // 2, 2, width // 2, 2, channels).max(axis=(2, 4))


class ConvPoolNet(nn.Module):
    """DP-HYPE's MNIST net: two 3x3 convolutions without padding, a max-pool, one hidden layer.

    Attributes:
      classes: number of classes.
      channels: of the convolutions.
      width: of the hidden layer.
    """

    classes: int
    channels: Sequence[int] = (32, 64)
    width: int = 128

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Takes inputs, float (batch, height, width, channels); the channel axis may be missing."""
        hidden = inputs if inputs.ndim == 4 else inputs[..., None]
        for channels in self.channels:
            # A padded convolution without its border equals one without padding.
            hidden = nn.relu(PatchConv(channels)(hidden)[:, 1:-1, 1:-1])
        hidden = max_pool(hidden).reshape(inputs.shape[0], -1)
        hidden = nn.relu(nn.Dense(self.width)(hidden))
        return nn.Dense(self.classes)(hidden)


class ConvBlocksNet(nn.Module):
    """DP-HYPE's CIFAR-10 net: blocks of two 3x3 convolutions and a max-pool, a global average.

    Attributes:
      classes: number of classes.
      blocks: channels of the two convolutions of each block; multiples of `groups`.
      groups: of the group normalisation after each convolution.
    """

    classes: int
    blocks: Sequence[tuple[int, int]] = ((32, 32), (64, 128))
    groups: int = 8

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Maps inputs, float (batch, height, width, channels), to scores (batch, classes)."""
        hidden = inputs
        for block in self.blocks:
            for channels in block:
                convolved = PatchConv(channels)(hidden)
                hidden = nn.relu(nn.GroupNorm(num_groups=self.groups)(convolved))
            hidden = max_pool(hidden)
        return nn.Dense(self.classes)(hidden.mean(axis=(1, 2)))


NAMES = ("logistic_regression", "linear_svm", "mlp", "conv_pool", "conv_blocks")
"""The last two are DP-HYPE's nets for MNIST and CIFAR-10."""


def build_module(name: str, classes: int, *, widths: Sequence[int] = (128, 64)) -> nn.Module:
    """Returns the Linen module of a name in `NAMES`; `widths` are the hidden layers of `mlp`."""
    checks.one_of("model", name, NAMES)
    if classes < 2:
        raise checks.Refused(("classes", classes), ": pass at least 2")
    if any(width < 1 for width in widths):
        raise checks.Refused(("widths", tuple(widths)), ": pass positive hidden widths")
    match name:
        case "logistic_regression":
            return LogisticRegression(classes)
        case "linear_svm":
            return LinearSVM(classes)
        case "mlp":
            return MLP(tuple(widths), classes)
        case "conv_pool":
            return ConvPoolNet(classes)
        case _:
            return ConvBlocksNet(classes)


def default_loss(name: str) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Returns the loss a model is meant for: `hinge` for `linear_svm`, else `cross_entropy`."""
    return hinge if checks.one_of("model", name, NAMES) == "linear_svm" else cross_entropy
