"""The nets of Papernot & Steinke's figure 7, which clip without per-example kernels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from dpjax import models, training
from experiments.figures.papernot_steinke.all_conv_nets import AllConvNet, AllConvPooledNet


def test_all_conv_net_is_the_papers():
    model = AllConvNet(10)
    params = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((2, 28, 28, 1)))["params"]
    kernels = [params[f"PatchConv_{number}"]["kernel"].shape for number in range(5)]
    assert kernels == [
        (3, 3, 1, 32), (3, 3, 32, 32), (3, 3, 32, 64), (3, 3, 64, 64), (3, 3, 64, 64),
    ]  # fmt: skip
    assert params["Dense_0"]["kernel"].shape == (64, 10)


def test_pooled_net_is_convolutions_with_tanh_averages_and_a_mean_over_places():
    images = jax.random.uniform(jax.random.key(0), (2, 12, 12))
    model = AllConvPooledNet(10)
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
        AllConvNet(3, channels=(2, 2), strides=(1, 2)),
        AllConvPooledNet(3, channels=(2, 2), pooled=(1,)),
    ],
)
def test_images_may_lack_the_channel_axis(model):
    images = jax.random.normal(jax.random.key(0), (2, 6, 6))
    params = jax.jit(model.init)(jax.random.key(1), images)
    apply = jax.jit(model.apply)
    np.testing.assert_allclose(apply(params, images), apply(params, images[..., None]), rtol=1e-6)


def test_no_kernel_of_the_net_is_materialised_per_example():
    model = models.functional(AllConvNet(10), jnp.zeros((28, 28, 1)))
    grad_fn = training.clipped_grad(model.example_loss(models.cross_entropy))
    params = jax.eval_shape(model.init, jax.random.key(0))
    params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), params)
    batch = (jnp.zeros((4, 28, 28, 1)), jnp.zeros(4, jnp.int32))
    explanation = grad_fn.explain(params, batch)
    rules = {path: entry.rule for path, entry in explanation.items() if path.endswith("kernel")}
    assert len(rules) == 6 and set(rules.values()) == {"dense"}
