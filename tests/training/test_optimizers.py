"""Optimisers built from traced hyperparameters equal optax's own."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpjax.training import optimizers

PARAMS = {"a": np.array([1.0, -2.0, 3.0], np.float32), "b": np.float32(0.5)}
GRADIENTS = [jax.tree.map(lambda leaf, t=t: np.float32(np.cos(leaf + t)), PARAMS) for t in range(4)]


def follow(optimizer, params):
    state = optimizer.init(params)
    for gradient in GRADIENTS:
        updates, state = optimizer.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    return params


def halving(step):
    return 0.5**step


CASES = [
    (optimizers.sgd(), {}, lambda rate: optax.sgd(rate)),
    (optimizers.sgd(halving), {}, lambda rate: optax.sgd(lambda t: rate * halving(t))),
    (optimizers.momentum(), {"momentum": 0.8}, lambda rate: optax.sgd(rate, momentum=0.8)),
    (
        optimizers.momentum(halving),
        {"momentum": 0.8},
        lambda rate: optax.sgd(lambda t: rate * halving(t), momentum=0.8),
    ),
    (optimizers.adam(), {}, lambda rate: optax.adam(rate)),
    (
        optimizers.adam(halving),
        {"beta_1": 0.7, "beta_2": 0.95, "adam_epsilon": 1e-3},
        lambda rate: optax.adam(lambda t: rate * halving(t), b1=0.7, b2=0.95, eps=1e-3),
    ),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_traced_and_vectorised_hyperparameters_equal_optax(case):
    build, extra, reference = CASES[case]
    rates = [0.1, 0.02]

    def run(rate):
        traced = {"learning_rate": rate} | {name: jnp.float32(v) for name, v in extra.items()}
        return follow(build(traced), jax.tree.map(jnp.asarray, PARAMS))

    vectorised = jax.jit(jax.vmap(run))(jnp.array(rates, jnp.float32))
    for row, rate in enumerate(rates):
        expected = follow(reference(rate), PARAMS)
        jax.tree.map(
            lambda left, right, row=row: np.testing.assert_allclose(left[row], right, rtol=2e-5),
            vectorised,
            expected,
        )


def test_a_schedule_of_optax_fits():
    build = optimizers.sgd(optax.linear_schedule(1.0, 0.0, 2))
    one = {"w": jnp.ones(1)}
    optimizer = build({"learning_rate": jnp.float32(0.5)})
    state, sizes = optimizer.init(one), []
    for _ in range(3):
        updates, state = optimizer.update(one, state, one)
        sizes.append(float(updates["w"][0]))
    np.testing.assert_allclose(sizes, [-0.5, -0.25, 0.0], atol=1e-7)


@pytest.mark.parametrize(
    ("build", "given", "missing"),
    [
        (optimizers.sgd(), {"clip_norm": 1.0}, "sgd needs the hyperparameter learning_rate"),
        (optimizers.momentum(), {"learning_rate": 1.0}, "momentum needs the hyperparameter momen"),
        (optimizers.adam(), {}, "adam needs the hyperparameter learning_rate.*none so far"),
    ],
)  # fmt: skip
def test_missing_hyperparameters_are_named(build, given, missing):
    with pytest.raises(ValueError, match=missing):
        build(given)
