"""The models that are measured, each with its records on the device."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import linen as nn

from dpjax import models
from dpjax.models.functional import computed_in
from dpjax.training.clipping.implicit_convolution import ImplicitConvolutions
from experiments.accelerator.jobs import (
    ALL_CONV,
    ALL_CONV_CONV,
    ALL_CONV_IMPLICIT,
    BFLOAT16,
    FIGURE_7,
    FIGURE_7_CONV,
    FIGURE_7_IMPLICIT,
    LOGISTIC,
    MLP,
)
from experiments.benchmarks.zoo import ZOO, Problem
from experiments.figures.papernot_steinke.all_conv_nets import AllConvNet, AllConvPooledNet

RECORDS = 60_000
"""Of MNIST, whose shape the images have."""

NETS: dict[str, Callable[[], nn.Module]] = {
    LOGISTIC: lambda: models.LogisticRegression(10),
    MLP: lambda: models.MLP((128, 64), 10),
    ALL_CONV: lambda: AllConvNet(10),
    FIGURE_7: lambda: AllConvPooledNet(10),
    ALL_CONV_CONV: lambda: AllConvNet(10, layer=nn.Conv),
    FIGURE_7_CONV: lambda: AllConvPooledNet(10, layer=nn.Conv),
    ALL_CONV_IMPLICIT: lambda: AllConvNet(10, layer=nn.Conv),
    FIGURE_7_IMPLICIT: lambda: AllConvPooledNet(10, layer=nn.Conv),
}
"""Classifiers of images, which may have activations in bfloat16 (`jobs.BFLOAT16`). A model that is
not named here is one of the zoo's."""


@functools.cache
def problem(model: str, tiny: bool) -> Problem:
    """Returns a model with `RECORDS` records (512 where `tiny`), all on the default device."""
    loss, params, few = on_host(model, tiny)
    records = 512 if tiny else RECORDS

    def repeated(rows: np.ndarray) -> np.ndarray:
        return np.resize(np.asarray(rows), (records, *rows.shape[1:]))

    params, rows = jax.device_put((params, jax.tree.map(repeated, few)), jax.devices()[0])
    return Problem(loss, params, rows)


def on_host(model: str, tiny: bool) -> Problem:
    """Returns a model with a few records, all on the host.

    What is drawn is drawn there: to compile the nets' own draws would take seconds.
    """
    with jax.default_device(jax.devices("cpu")[0]):
        net = model.removesuffix(BFLOAT16)
        if net in NETS:
            found = _of_images(NETS[net](), tiny, net != model)
            implicit = net in (ALL_CONV_IMPLICIT, FIGURE_7_IMPLICIT)
            return found._replace(loss=ImplicitConvolutions(found.loss)) if implicit else found
        return ZOO[model](tiny, 64)


def some(model: str, tiny: bool, rows: int) -> Problem:
    """Returns a model with so many records, all on the host."""
    found = on_host(model, tiny)
    return found._replace(records=jax.tree.map(lambda leaf: leaf[:rows], found.records))


def _of_images(net: nn.Module, tiny: bool, narrow: bool) -> Problem:
    side, rng = 8 if tiny else 28, np.random.default_rng(0)
    apply = computed_in(net.apply, "bfloat16") if narrow else net.apply
    images = rng.random((600, side, side, 1), np.float32)
    labels = np.arange(600, dtype=np.int32) % 10

    def loss(params: Any, example: tuple[jax.Array, jax.Array]) -> jax.Array:
        return models.cross_entropy(apply(params, example[0][None])[0], example[1])

    def drawn(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        """Returns a kernel with entries of deviation 1 / sqrt(inputs); zeros for a bias."""
        inputs = math.prod(leaf.shape[:-1]) if len(leaf.shape) > 1 else math.inf
        return (rng.normal(size=leaf.shape) / math.sqrt(inputs)).astype(leaf.dtype)

    shapes = jax.eval_shape(net.init, jax.random.key(0), images[:1])
    return Problem(loss, jax.tree.map(drawn, shapes), (images, labels))
