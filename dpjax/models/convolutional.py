"""All-convolutional nets for Papernot & Steinke's figure 7 (ICLR 2022), by patch convolutions."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn


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
        """inputs float (batch, height, width, in) -> (batch, out height, out width, features)."""
        channels = inputs.shape[-1]
        kernel = self.param(
            "kernel",
            nn.initializers.lecun_normal(),
            (*self.kernel_size, channels, self.features),
        )
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        patches = extract_patches(inputs, self.kernel_size, self.strides)
        output = patches @ kernel.reshape(-1, self.features)
        return output + bias.reshape(1, 1, 1, -1)


def extract_patches(
    inputs: jax.Array, kernel_size: tuple[int, int], strides: tuple[int, int]
) -> jax.Array:
    """Patches under a sliding window with `SAME` padding, by slicing only.

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


class AllConvNet(nn.Module):
    """3x3 convolutions with ReLU, no pooling until the global average, one dense layer.

    The paper gives the kernel size and the channels and nothing else of its net (section 3.6);
    ours has strides of 2 at the second and fourth layer, as in Springenberg et al.
    (https://arxiv.org/abs/1412.6806), ReLU, LeCun's initialisation and a global average.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from dpjax import models
      >>> net = models.AllConvNet(classes=10, channels=(4, 4), strides=(1, 2))
      >>> params = jax.eval_shape(net.init, jax.random.key(0), jnp.zeros((1, 8, 8, 1)))
      >>> jax.eval_shape(net.apply, params, jnp.zeros((5, 8, 8, 1))).shape
      (5, 10)

    Attributes:
      classes: number of classes.
      channels: of each convolution.
      strides: of each convolution, in both directions.
    """

    classes: int
    channels: Sequence[int] = (32, 32, 64, 64, 64)
    strides: Sequence[int] = (1, 2, 1, 2, 1)

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """inputs float (batch, height, width, channels); the channel axis may be missing."""
        hidden = inputs if inputs.ndim == 4 else inputs[..., None]
        for channels, stride in zip(self.channels, self.strides, strict=True):
            hidden = nn.relu(PatchConv(channels, strides=(stride, stride))(hidden))
        return nn.Dense(self.classes)(hidden.mean(axis=(1, 2)))


class AllConvPooledNet(nn.Module):
    """3x3 convolutions with tanh, average pooling, a last convolution to the classes, their mean.

    The net of Objax's public DP-SGD example for MNIST (https://github.com/google/objax,
    `examples/image_classification/mnist_dp.py`), whose defaults are what Papernot & Steinke state:
    60 epochs, lots of 256, clip norm 1, noise multiplier 1.1, and these channels. Whether it is the
    paper's net is open: `experiments/figures/papernot_steinke/figure_7.py` compares. Images at full
    resolution make it four times as dear as `AllConvNet`.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from dpjax import models
      >>> net = models.AllConvPooledNet(classes=10, channels=(4, 4), pooled=(2,))
      >>> params = jax.eval_shape(net.init, jax.random.key(0), jnp.zeros((1, 8, 8, 1)))
      >>> jax.eval_shape(net.apply, params, jnp.zeros((5, 8, 8, 1))).shape
      (5, 10)

    Attributes:
      classes: number of classes.
      channels: of each convolution but the last.
      pooled: the convolutions, counted from 1, after which 2x2 blocks are averaged.
    """

    classes: int
    channels: Sequence[int] = (32, 32, 64, 64, 64)
    pooled: Sequence[int] = (3, 5)

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """inputs float (batch, height, width, channels) in [0, 1]; the channel axis may be missing.

        They are moved to [-1, 1], as in the example.
        """
        hidden = 2.0 * (inputs if inputs.ndim == 4 else inputs[..., None]) - 1.0
        for number, channels in enumerate(self.channels, 1):
            hidden = jnp.tanh(PatchConv(channels)(hidden))
            if number in self.pooled:
                hidden = nn.avg_pool(hidden, (2, 2), (2, 2))
        return PatchConv(self.classes)(hidden).mean(axis=(1, 2))
