"""What is checked on a device passes here, and catches what a device or a compiler could break."""

import types

import fuzz_clipping
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import training
from dpjax.randomness import threefry
from dpjax.training import dp_sgd
from dpjax.training.clipping import factored_terms, jaxpr_graph, leaf_plans
from experiments.accelerator import device_checks

CHECKS = device_checks.checks(seconds=60.0, most=2)
PRODUCTS = "products: float32 where the default precision is tensorfloat32"
SHARED_NOISE = "noise: of each candidate, parameter and step its own"


def net(params, example):
    """Of one example: what its first kernel needs is a rounded function of it."""
    hidden = jnp.tanh(jnp.square(example) @ params["a"])
    return jnp.sum(jnp.square(hidden @ params["b"] - example))


PARAMS = {"a": jnp.full((6, 6), 0.1), "b": jnp.full((6, 6), 0.2)}
ROWS = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)


@pytest.mark.parametrize("name", [name for name in CHECKS if "highest" not in name])
def test_this_cpu_passes(name):
    found = CHECKS[name]()
    assert found.passed, found


def test_a_models_contributions_pass_here():
    found = device_checks.contributions(net, PARAMS, ROWS)
    assert found.passed and found.value > 0.99
    assert device_checks.one_producer(net, PARAMS, ROWS, fuzz_clipping.OPTIMISED).passed


def norms_of_another_buffer(monkeypatch):
    original = leaf_plans.Factored.squared_norm

    def wrong(self, *arrays):
        return original(self, *(array * np.float32(0.999) for array in arrays))

    monkeypatch.setattr(leaf_plans.Factored, "squared_norm", wrong)


@pytest.mark.parametrize(
    "check",
    [CHECKS[PRODUCTS], lambda: device_checks.contributions(net, PARAMS, ROWS)],
    ids=["products", "contributions"],
)
def test_a_norm_taken_from_another_buffer_is_caught(monkeypatch, check):
    norms_of_another_buffer(monkeypatch)
    assert not check().passed


@pytest.mark.parametrize("row", [0, len(ROWS) - 1])
def test_a_gradient_of_another_loss_is_caught(monkeypatch, row):
    """Of the right length, in another direction: what a wrong kernel makes, of one row."""
    original = device_checks._gradients_on_the_host

    def turned(*given):
        found = original(*given)
        found[row] = found[row, ::-1]
        return found

    monkeypatch.setattr(device_checks, "_gradients_on_the_host", turned)
    assert device_checks.contributions(net, PARAMS, ROWS).value == np.inf


def test_a_value_that_is_formed_twice_is_caught(monkeypatch):
    monkeypatch.setattr(jaxpr_graph, "formed_once", lambda value, contracted=False: value)
    found = device_checks.one_producer(net, PARAMS, ROWS, fuzz_clipping.OPTIMISED)
    assert found.value > 1 and not found.passed


def test_products_of_ten_bits_are_caught(monkeypatch):
    """What tensor-float-32 makes of a sum: operands lose 13 bits of their mantissas."""

    def coarse(array):
        bits = jax.lax.bitcast_convert_type(array.astype(jnp.float32), jnp.uint32)
        return jax.lax.bitcast_convert_type(bits & np.uint32(0xFFFFE000), jnp.float32)

    original = factored_terms._matrix_of_sums
    monkeypatch.setattr(
        factored_terms, "_matrix_of_sums", lambda a, b: original(coarse(a), coarse(b))
    )
    found = CHECKS[PRODUCTS]()
    assert found.value > 2 * found.allowed


@pytest.mark.parametrize("method", ["factored", "auto"])
def test_sums_of_one_method_that_are_too_long_are_caught(monkeypatch, method):
    original = device_checks.clipped_grad

    def longer(loss, **given):
        run = original(loss, **given)
        if given.get("method", "auto") != method:
            return run
        return lambda *arguments: jax.tree.map(lambda found: 1.1 * found, run(*arguments))

    monkeypatch.setattr(device_checks, "clipped_grad", longer)
    assert not CHECKS[PRODUCTS]().passed


def test_a_step_that_has_the_noise_of_another_is_caught(monkeypatch):
    same = types.SimpleNamespace(**vars(threefry) | {"fold_in": lambda key, number: key})
    monkeypatch.setattr(dp_sgd, "threefry", same)
    assert not CHECKS[SHARED_NOISE]().passed


def test_a_candidate_that_shares_anothers_noise_is_caught(monkeypatch):
    """Of four candidates, and of every one's steps, by one key."""
    original, (key,) = dp_sgd.add_gaussian_noise, training.candidate_keys(1, seed=0)
    monkeypatch.setattr(
        dp_sgd, "add_gaussian_noise", lambda own, *rest, **more: original(key, *rest, **more)
    )
    assert not CHECKS[SHARED_NOISE]().passed


def test_noise_of_another_size_is_caught(monkeypatch):
    original = device_checks.add_gaussian_noise
    monkeypatch.setattr(
        device_checks, "add_gaussian_noise", lambda key, tree, std: original(key, tree, 0.97 * std)
    )
    assert not device_checks.noise_distribution().passed


def test_a_number_that_is_none_passes_nothing():
    assert not device_checks.Found(np.nan, 1.0, "").passed
    assert device_checks._or_infinity(np.nan) == np.inf
    assert not device_checks._improbable(np.nan).passed
