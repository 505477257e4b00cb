"""DP-HYPE's nets: they compute what plain Flax layers compute, and have the paper's sizes."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from dpjax.models import ConvBlocksNet, ConvPoolNet, functional
from dpjax.models.nets import max_pool

IMAGES = jax.random.uniform(jax.random.key(0), (3, 9, 8, 2))


def test_max_pool_is_flax_max_pool():
    expected = nn.max_pool(IMAGES, (2, 2), (2, 2))
    np.testing.assert_array_equal(max_pool(IMAGES), expected)
    ours = jax.grad(lambda x: jnp.sum(max_pool(x) ** 2))(IMAGES)
    theirs = jax.grad(lambda x: jnp.sum(nn.max_pool(x, (2, 2), (2, 2)) ** 2))(IMAGES)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


class _Plain(nn.Module):
    """The MNIST net by Flax's own convolutions without padding."""

    @nn.compact
    def __call__(self, inputs):
        hidden = inputs
        for number, channels in enumerate((4, 6)):
            conv = nn.Conv(channels, (3, 3), padding="VALID", name=f"PatchConv_{number}")
            hidden = nn.relu(conv(hidden))
        hidden = nn.max_pool(hidden, (2, 2), (2, 2)).reshape(len(inputs), -1)
        hidden = nn.relu(nn.Dense(5)(hidden))
        return nn.Dense(3)(hidden)


def test_mnist_net_is_the_plain_one():
    ours = ConvPoolNet(3, channels=(4, 6), width=5)
    variables = ours.init(jax.random.key(1), IMAGES)
    np.testing.assert_allclose(
        ours.apply(variables, IMAGES), _Plain().apply(variables, IMAGES), rtol=1e-5, atol=1e-6
    )


def test_sizes_are_the_papers():
    def number(model, shape):
        params = jax.eval_shape(
            functional(model, jax.ShapeDtypeStruct(shape, jnp.float32)).init, jax.random.key(0)
        )
        leaves = jax.tree_util.tree_leaves_with_path(params)
        return {"/".join(key.key for key in path): leaf.shape for path, leaf in leaves}

    mnist = number(ConvPoolNet(10), (28, 28, 1))
    assert mnist["PatchConv_1/kernel"] == (3, 3, 32, 64)
    assert mnist["Dense_0/kernel"] == (9216, 128)
    cifar = number(ConvBlocksNet(10), (32, 32, 3))
    kernels = [shape for name, shape in cifar.items() if name.endswith("kernel")]
    convolutions = sorted(shape for shape in kernels if len(shape) == 4)
    channels = ((3, 32), (32, 32), (32, 64), (64, 128))
    assert convolutions == [(3, 3, *ends) for ends in channels]
    assert cifar["Dense_0/kernel"] == (128, 10)
    scores = functional(ConvBlocksNet(4, blocks=((8, 8),)), jnp.zeros((6, 6, 3)))
    assert scores.apply(scores.init(jax.random.key(2)), jnp.ones((2, 6, 6, 3))).shape == (2, 4)
