"""`clipped_grad`: guarantees, limits and arguments; equality on models is in the sibling files."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.training.clipping import clipped_grad


def _loss(params, example):
    inputs, label = example
    hidden = jnp.tanh(inputs @ params["first"] + params["bias"])
    return jnp.sum(jnp.square(hidden @ params["second"] - label))


def _problem(rows=6, dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(3), 5)
    params = {
        "first": jax.random.normal(keys[0], (4, 5), dtype),
        "bias": jax.random.normal(keys[1], (5,), dtype),
        "second": jax.random.normal(keys[2], (5, 2), dtype),
    }
    batch = (
        jax.random.normal(keys[3], (rows, 4), dtype),
        jax.random.normal(keys[4], (rows, 2), dtype),
    )
    return params, batch


@pytest.mark.parametrize("method", ["auto", "factored", "materialised"])
def test_infinite_clip_norm_is_the_plain_sum(method):
    params, batch = _problem()
    summed, aux = jax.jit(clipped_grad(_loss, method=method))(params, batch, jnp.inf)
    plain = jax.grad(lambda p: jax.vmap(_loss, (None, 0))(p, batch).sum())(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), summed, plain)
    assert aux.norms.shape == aux.values.shape == (6,)
