"""Patch convolutions equal Flax's, in value and gradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from dpjax import models
from dpjax.models.nets import extract_patches


@pytest.mark.parametrize(
    ("size", "kernel", "strides"),
    [
        ((8, 7), (3, 3), (2, 2)),
        ((5, 9), (3, 2), (1, 3)),
        ((3, 3), (5, 5), (2, 1)),
    ],
)
def test_equals_flax_convolution(size, kernel, strides):
    inputs = jax.random.normal(jax.random.key(0), (2, *size, 3))
    ours = models.PatchConv(4, kernel_size=kernel, strides=strides)
    theirs = nn.Conv(4, kernel, strides=strides, padding="SAME")
    params = jax.jit(ours.init)(jax.random.key(1), inputs)
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(
        jnp.shape, jax.eval_shape(theirs.init, jax.random.key(1), inputs)
    )

    def total(model, params, inputs):
        outputs = model.apply(params, inputs)
        return jnp.sum(jnp.sin(outputs)), outputs

    def evaluate(model):
        function = jax.value_and_grad(functools.partial(total, model), (0, 1), has_aux=True)
        return jax.jit(function)(params, inputs)

    jax.tree.map(
        lambda left, right: np.testing.assert_allclose(left, right, rtol=1e-4, atol=2e-5),
        evaluate(ours),
        evaluate(theirs),
    )


def test_patches_of_a_plain_image():
    image = jnp.arange(9.0).reshape(1, 3, 3, 1)
    patches = extract_patches(image, (3, 3), (1, 1))
    assert patches.shape == (1, 3, 3, 9)
    np.testing.assert_array_equal(patches[0, 1, 1], np.arange(9.0))
    np.testing.assert_array_equal(patches[0, 0, 0], [0, 0, 0, 0, 0, 1, 0, 3, 4])
