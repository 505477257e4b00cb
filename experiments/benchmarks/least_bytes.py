"""The least bytes that a private step of a net must move: a formula by layer.

Values that stay in registers or in a kernel's shared memory cost nothing: biases, activations and
their derivatives, clipping weights, noise, the draw of the lot. Counted are, in passes:

  a layer's output     4: written; read for the derivative; its gradient read by both products
  a layer's input      3: read by the layer and by its kernel's gradient; its gradient written
  a pooling            2 of its input and 2 of its output
  a convolution's      3 kernels for each record: the record's gradient is written, its norm is
  kernel                 taken, and it is added to the sum
  a parameter          6 for each step: read by layer and input's gradient; the sum is written and
                         read; the parameter is read and written

The first layer's input has no gradient, so there are 2 passes of it and 5 of the parameters. A
dense layer at one position forms no gradient of a record: norm and sum need input and output alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from experiments.accelerator import jobs

FLOAT = 4
"""Bytes of a number; of an activation in bfloat16, half as many."""


class Layer(NamedTuple):
    """Numbers of one record that go in and out, and parameters.

    `formed` counts those whose gradient is formed for each record. `trained` is False for pooling.
    """

    inputs: int
    outputs: int
    parameters: int = 0
    formed: int = 0
    trained: bool = True


def dense(inputs: int, outputs: int) -> Layer:
    """Returns a dense layer at one position."""
    return Layer(inputs, outputs, (inputs + 1) * outputs)


def convolution(side: int, inputs: int, outputs: int, stride: int = 1, window: int = 3) -> Layer:
    """Returns a convolution of a square image of `side` pixels, padded so that it keeps its size.

    `inputs` and `outputs` are channels.
    """
    kernel, kept = window**2 * inputs * outputs, -(-side // stride)
    return Layer(side**2 * inputs, kept**2 * outputs, kernel + outputs, kernel)


def pooling(side: int, channels: int) -> Layer:
    """Returns the average over blocks of 2 x 2 pixels."""
    return Layer(side**2 * channels, (side // 2) ** 2 * channels, trained=False)


LAYERS: dict[str, Sequence[Layer]] = {
    "logistic_regression": (dense(784, 10),),
    "mlp_784_128_64_10": (dense(784, 128), dense(128, 64), dense(64, 10)),
    "mlp_784_1000_10": (dense(784, 1000), dense(1000, 10)),
    "all_conv_net": (
        convolution(28, 1, 32),
        convolution(28, 32, 32, 2),
        convolution(14, 32, 64),
        convolution(14, 64, 64, 2),
        convolution(7, 64, 64),
        dense(64, 10),
    ),
    "figure_7_net": (
        convolution(28, 1, 32),
        convolution(28, 32, 32),
        convolution(28, 32, 64),
        pooling(28, 64),
        convolution(14, 64, 64),
        convolution(14, 64, 64),
        pooling(14, 64),
        convolution(7, 64, 10),
    ),
}
"""By name as in `experiments.accelerator.problems`; other models have no formula."""
LAYERS |= {
    name: LAYERS[net] for net, *others in (jobs.FIGURES_7, jobs.ALL_CONVS) for name in others
}


def least_bytes(model: str, lot: int) -> float:
    """Returns the bytes for each record of a lot of `lot`."""
    of_activation = FLOAT // 2 if model.endswith(jobs.BFLOAT16) else FLOAT
    first, *others = LAYERS[model]
    moved = _activations(first) - first.inputs + sum(map(_activations, others))
    formed = 3 * (first.formed + sum(layer.formed for layer in others))
    updated = 5 * first.parameters + 6 * sum(layer.parameters for layer in others)
    return of_activation * moved + FLOAT * (formed + updated / lot)


def _activations(layer: Layer) -> int:
    if not layer.trained:
        return 2 * (layer.inputs + layer.outputs)
    return 3 * layer.inputs + 4 * layer.outputs
