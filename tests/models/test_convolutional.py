"""Patch convolutions equal Flax's, in value and gradient, and clip without per-example kernels."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from dpjax import models, training
from dpjax.models.convolutional import extract_patches


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


def test_all_conv_net_is_the_papers():
    model = models.AllConvNet(10)
    params = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((2, 28, 28, 1)))["params"]
    kernels = [params[f"PatchConv_{number}"]["kernel"].shape for number in range(5)]
    assert kernels == [
        (3, 3, 1, 32), (3, 3, 32, 32), (3, 3, 32, 64), (3, 3, 64, 64), (3, 3, 64, 64),
    ]  # fmt: skip
    assert params["Dense_0"]["kernel"].shape == (64, 10)


def test_pooled_net_is_convolutions_with_tanh_averages_and_a_mean_over_places():
    images = jax.random.uniform(jax.random.key(0), (2, 12, 12))
    model = models.AllConvPooledNet(10)
    params = jax.jit(model.init)(jax.random.key(1), images)
    kernels = [params["params"][f"PatchConv_{number}"] for number in range(6)]
    channels = [kernel["kernel"].shape[2:] for kernel in kernels]
    assert channels == [(1, 32), (32, 32), (32, 64), (64, 64), (64, 64), (64, 10)]

    def plain(images):
        hidden = (2 * images - 1)[..., None]
        for number, kernel in enumerate(kernels):
            hidden = nn.Conv(kernel["bias"].size, (3, 3)).apply({"params": kernel}, hidden)
            if number < 5:
                hidden = jnp.tanh(hidden)
            if number in (2, 4):
                corners = [hidden[:, row::2, column::2] for row in (0, 1) for column in (0, 1)]
                hidden = sum(corners) / 4
        return hidden.mean((1, 2))

    expected = jax.jit(plain)(images)
    np.testing.assert_allclose(jax.jit(model.apply)(params, images), expected, atol=1e-5)


@pytest.mark.parametrize(
    "model",
    [
        models.AllConvNet(3, channels=(2, 2), strides=(1, 2)),
        models.AllConvPooledNet(3, channels=(2, 2), pooled=(1,)),
    ],
)
def test_images_may_lack_the_channel_axis(model):
    images = jax.random.normal(jax.random.key(0), (2, 6, 6))
    params = jax.jit(model.init)(jax.random.key(1), images)
    apply = jax.jit(model.apply)
    np.testing.assert_allclose(apply(params, images), apply(params, images[..., None]), rtol=1e-6)


def test_no_kernel_of_the_net_is_materialised_per_example():
    model = models.build("all_conv", (28, 28, 1), 10)
    grad_fn = training.clipped_grad(model.example_loss(models.cross_entropy))
    params = jax.eval_shape(model.init, jax.random.key(0))
    params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), params)
    batch = (jnp.zeros((4, 28, 28, 1)), jnp.zeros(4, jnp.int32))
    explanation = grad_fn.explain(params, batch)
    rules = {path: entry.rule for path, entry in explanation.items() if path.endswith("kernel")}
    assert len(rules) == 6 and set(rules.values()) == {"dense"}
