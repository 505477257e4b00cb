"""Optimisers built from traced hyperparameters equal optax's own."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpjax import training
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


def bias_corrected_adam(gradients, noise, rate, beta_1, beta_2, floor):
    """Algorithm 1 of Tang et al. 2023, in NumPy float64; returns the parameters' moves."""
    first = second = 0.0
    for t, gradient in enumerate(gradients, start=1):
        first = beta_1 * first + (1 - beta_1) * gradient
        second = beta_2 * second + (1 - beta_2) * gradient**2
        corrected = second / (1 - beta_2**t) - noise**2
        yield -rate * first / (1 - beta_1**t) / np.sqrt(np.maximum(corrected, floor))


@pytest.mark.parametrize("noise", [0.0, 0.3, 5.0])
def test_adam_bc_equals_the_papers_algorithm(noise):
    given = {"learning_rate": 0.1, "beta_1": 0.8, "beta_2": 0.95, "variance_floor": 1e-3}
    optimizer = optimizers.adam_bc(halving)({name: jnp.float32(v) for name, v in given.items()})
    gradients = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    state = optimizer.init(jnp.zeros(4))
    expected = bias_corrected_adam(gradients.astype(float), noise, 0.1, 0.8, 0.95, 1e-3)
    for number, (gradient, wanted) in enumerate(zip(gradients, expected, strict=True)):
        moved, state = optimizers.updated(optimizer, gradient, state, jnp.zeros(4), noise)
        np.testing.assert_allclose(moved, wanted * halving(number), rtol=2e-4)


def tells(hyperparameters):
    """An optimiser whose first two parameters are the deviation of its gradient, and that told."""

    def update(gradient, state, params, *, gradient_noise, **others):
        del others
        own = jnp.stack([jnp.std(gradient), jnp.asarray(gradient_noise)])
        return jax.tree.map(lambda leaf: leaf.at[:2].set(own) - params, gradient), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


@pytest.mark.parametrize(
    ("lots", "sensitivity"),
    [(training.PoissonLots(12, 0.5, 12), 1.0), (training.FixedLots(12, 6), 2.0)],
)
@pytest.mark.parametrize("mixed", [False, True])
def test_an_optimiser_is_told_the_noise_that_is_in_the_gradient(lots, sensitivity, mixed):
    """Of gradients that are noise alone: their deviation, in whole runs and in slots."""
    config = training.TrainConfig(
        loss_fn=lambda params, example: 0.0 * jnp.sum(params) * example,
        lots=lots, steps=1, expected_lot_size=7, optimizer=tells,
    )  # fmt: skip
    given = {"clip_norm": np.float32(0.4), "noise_multiplier": np.float32(1.7)}
    start, data = jnp.zeros(20_000), np.ones(12, np.float32)
    if mixed:
        ((_, found),) = training.mixed_sweep(
            [config], training.candidate_keys(1, seed=1),
            {name: value[None] for name, value in given.items()}, data,
            initial=lambda key: start,
        )  # fmt: skip
        found = found[0]
    else:
        found = training.make_train(config)(jax.random.key(0), given, start, data)
    executed, said = found[:2]
    assert said == pytest.approx(1.7 * 0.4 * sensitivity / 7, rel=1e-4)
    assert executed == pytest.approx(float(said), rel=0.03)


def test_each_of_several_is_told_the_noise_of_its_own_gradient():
    """No two have one number alike: of lots, steps, public size, clip norm and noise."""
    rates, steps, sizes = (0.2, 0.5, 0.35), (1, 3, 2), (7.0, 5.0, 9.0)
    given = {
        "clip_norm": np.array([0.4, 0.7, 1.1], np.float32),
        "noise_multiplier": np.array([1.7, 0.9, 1.3], np.float32),
    }
    config = training.TrainConfig(
        loss_fn=lambda params, example: 0.0 * jnp.sum(params) * example,
        lots=training.PoissonLots(12, 0.5, 12), steps=1, expected_lot_size=1, optimizer=tells,
    )  # fmt: skip
    configs = [
        dataclasses.replace(
            config,
            lots=training.PoissonLots(12, rate, 12),
            steps=number,
            expected_lot_size=size,
        )
        for rate, number, size in zip(rates, steps, sizes)
    ]
    found = {}
    for members, outputs in training.mixed_sweep(
        configs, training.candidate_keys(3, seed=1), given, np.ones(12, np.float32),
        initial=lambda key: jnp.zeros(20_000),
    ):  # fmt: skip
        found |= dict(zip(members.tolist(), np.asarray(outputs)))
    for member, size in enumerate(sizes):
        executed, said = found[member][:2]
        noise = given["noise_multiplier"][member] * given["clip_norm"][member] / size
        assert said == pytest.approx(noise, rel=1e-4)
        assert executed == pytest.approx(float(said), rel=0.03)
