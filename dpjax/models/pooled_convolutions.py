"""The convolutional nets of DP-HYPE's experiments, with max-pooling, by patch convolutions.

Liebenow, Peinemann & Mohammadi, "DP-HYPE", 2025. Their Adult net is `MLP((64, 64), classes)`. Ours
have no dropout, which five epochs on a client's few records hardly ask for, and group instead of
batch normalisation: nothing here keeps statistics of a batch, so a net is its parameters and a
federation averages all there is to average.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
from flax import linen as nn

from dpjax.models.convolutional import PatchConv


def max_pool(inputs: jax.Array) -> jax.Array:
    """Largest value of each 2x2 block, (batch, height, width, c) -> half the height and width.

    A reshape: its gradient is a comparison, where that of a window reduction is slow on CPU. An odd
    last row or column is dropped.
    """
    batch, height, width, channels = inputs.shape
    blocks = inputs[:, : height // 2 * 2, : width // 2 * 2]
    return blocks.reshape(batch, height // 2, 2, width // 2, 2, channels).max(axis=(2, 4))


class ConvPoolNet(nn.Module):
    """DP-HYPE's MNIST net: two 3x3 convolutions without padding, a max-pool, one hidden layer.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from dpjax import models
      >>> net = models.ConvPoolNet(classes=10)
      >>> params = jax.eval_shape(net.init, jax.random.key(0), jnp.zeros((1, 28, 28, 1)))
      >>> jax.eval_shape(net.apply, params, jnp.zeros((5, 28, 28, 1))).shape
      (5, 10)

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
        """inputs float (batch, height, width, channels); the channel axis may be missing."""
        hidden = inputs if inputs.ndim == 4 else inputs[..., None]
        for channels in self.channels:
            # Without its border a padded convolution is one without padding.
            hidden = nn.relu(PatchConv(channels)(hidden)[:, 1:-1, 1:-1])
        hidden = max_pool(hidden).reshape(inputs.shape[0], -1)
        hidden = nn.relu(nn.Dense(self.width)(hidden))
        return nn.Dense(self.classes)(hidden)


class ConvBlocksNet(nn.Module):
    """DP-HYPE's CIFAR-10 net: blocks of two 3x3 convolutions and a max-pool, a global average.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from dpjax import models
      >>> net = models.ConvBlocksNet(classes=10)
      >>> params = jax.eval_shape(net.init, jax.random.key(0), jnp.zeros((1, 32, 32, 3)))
      >>> jax.eval_shape(net.apply, params, jnp.zeros((5, 32, 32, 3))).shape
      (5, 10)

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
        """inputs float (batch, height, width, channels) -> (batch, classes)."""
        hidden = inputs
        for block in self.blocks:
            for channels in block:
                convolved = PatchConv(channels)(hidden)
                hidden = nn.relu(nn.GroupNorm(num_groups=self.groups)(convolved))
            hidden = max_pool(hidden)
        return nn.Dense(self.classes)(hidden.mean(axis=(1, 2)))
