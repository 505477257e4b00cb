"""A loss with kernels of one position and of three, a bias and an embedding, and its records."""

import functools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.training import clipped_grad

METHODS = ("auto", "factored", "materialised")
ROWS = 6
compiled = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def loss(params, example):
    """Of one record."""
    tokens, inputs, label = example
    hidden = jnp.tanh(inputs @ params["first"] + params["bias"][None] + params["table"][tokens])
    return jnp.sum(jnp.square(hidden.mean(axis=0) @ params["second"] - label))


def problem(dtype=jnp.float32, scale=1.0):
    draws = np.random.default_rng(3)

    def normal(*shape):
        return jnp.asarray(scale * draws.normal(size=shape), dtype)

    params = {
        "first": normal(4, 5), "bias": normal(5), "second": normal(5, 2), "table": normal(7, 5)
    }  # fmt: skip
    tokens = jnp.asarray(draws.integers(7, size=(ROWS, 3)))
    return params, (tokens, normal(ROWS, 3, 4), normal(ROWS, 2))


def norm(tree):
    """In float64, so that the measure adds no rounding of its own."""
    leaves = [np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)]
    return np.linalg.norm(np.concatenate(leaves))


@functools.cache
def grad_fn(method):
    return compiled(clipped_grad(loss, method=method))


def row(tree, index):
    return jax.tree.map(lambda leaf: leaf[index], tree)
