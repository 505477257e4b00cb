"""All-convolutional nets for figure 7, by patch convolutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn

from dpjax.models import PatchConv


class AllConvNet(nn.Module):
    """3x3 convolutions with ReLU, no pooling until the global average, one dense layer.

    The paper gives the kernel size and the channels and nothing else of its net (section 3.6); ours
    has strides of 2 at the second and fourth layer, as in Springenberg et al.
    (https://arxiv.org/abs/1412.6806), ReLU, LeCun's initialisation and a global average.
    """

    classes: int
    channels: Sequence[int] = (32, 32, 64, 64, 64)
    strides: Sequence[int] = (1, 2, 1, 2, 1)
    layer: Callable[..., nn.Module] = PatchConv  # or nn.Conv, with the same parameters

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """inputs float (batch, height, width, channels); the channel axis may be missing."""
        hidden = inputs if inputs.ndim == 4 else inputs[..., None]
        for channels, stride in zip(self.channels, self.strides, strict=True):
            hidden = nn.relu(self.layer(channels, (3, 3), (stride, stride))(hidden))
        return nn.Dense(self.classes)(hidden.mean(axis=(1, 2)))


class AllConvPooledNet(nn.Module):
    """3x3 convolutions with tanh, average pooling, a last convolution to the classes, their mean.

    The net of Objax's public DP-SGD example for MNIST (https://github.com/google/objax,
    `examples/image_classification/mnist_dp.py`), whose defaults are what Papernot & Steinke state:
    60 epochs, lots of 256, clip norm 1, noise multiplier 1.1, and these channels. Whether it is the
    paper's net is open: `experiments/figures/papernot_steinke/figure_7.py` compares. Images at full
    resolution make it four times as expensive as `AllConvNet`. 2x2 blocks are averaged after the
    `pooled` convolutions, counted from 1.
    """

    classes: int
    channels: Sequence[int] = (32, 32, 64, 64, 64)
    pooled: Sequence[int] = (3, 5)
    layer: Callable[..., nn.Module] = PatchConv  # or nn.Conv, with the same parameters

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """inputs float (batch, height, width, channels) in [0, 1]; the channel axis may be missing.

        They are moved to [-1, 1], as in the example.
        """
        hidden = 2.0 * (inputs if inputs.ndim == 4 else inputs[..., None]) - 1.0
        for number, channels in enumerate(self.channels, 1):
            hidden = jnp.tanh(self.layer(channels, (3, 3))(hidden))
            if number in self.pooled:
                hidden = nn.avg_pool(hidden, (2, 2), (2, 2))
        return self.layer(self.classes, (3, 3))(hidden).mean(axis=(1, 2))
