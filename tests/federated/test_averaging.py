"""Private federated averaging: what a client sends, what the sum costs, what the server makes."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_federations import CANDIDATE, MODEL, PARTITIONS

from dpjax import accounting, models
from dpjax.federated import averaging, local_training
from dpjax.randomness import integer_laws
from dpjax.randomness.host_randomness import HostRandomness

SEEDED = HostRandomness(seed=3)
RULE = averaging.AveragingSettings(clients=10, dimension=40, rounds=3, epsilon=5.0)


@pytest.fixture(scope="module")
def plan():
    return RULE.plan()


# ---- the plan


@pytest.mark.parametrize("epsilon", [1.0, 8.0, 30.0])
@pytest.mark.parametrize("with_vote", [False, True])
def test_plan_meets_its_target_and_hardly_more(epsilon, with_vote):
    vote = accounting.gaussian(20.0 / epsilon, relation="replace_one") if with_vote else None
    plan = dataclasses.replace(RULE, epsilon=epsilon).plan(vote)
    assert 0.97 * epsilon < plan.total.epsilon(1e-5) <= epsilon
    assert plan.guarantee.relation == "replace_one"
    assert (plan.total is plan.guarantee) == (vote is None)
    assert plan.local_variance == float(f"{plan.local_variance:.6g}")  # alike everywhere
    assert plan.local_variance >= 16.0  # so that rounding and tau cost nothing
    same = accounting.federated_averaging(
        plan.local_variance, plan.bound, 40, 10, 3, missing_fraction=0.1
    )
    assert plan.guarantee.epsilon(1e-5) == same.epsilon(1e-5)


def test_clip_holds_every_noisy_entry_and_the_sum_fits_the_modulus(plan):
    reach = integer_laws.integer_law("discrete_gaussian", plan.local_variance).reach
    assert plan.clip & (plan.clip - 1) == 0
    assert reach + plan.bound <= plan.clip < 2 * (reach + plan.bound)
    assert 2 * plan.clip * 10 < 2**32


def test_without_noise_there_is_no_guarantee():
    plan = dataclasses.replace(RULE, epsilon=math.inf).plan(accounting.pure(1.0))
    assert plan.guarantee is None and plan.total is None
    assert plan.local_variance == 0.0
    update = np.linspace(-0.1, 0.1, 40)
    sent = averaging.noisy_update(update, plan, HostRandomness())
    assert np.array_equal(sent, averaging.quantised(update, plan))
    json.dumps(plan.statement(), allow_nan=False)


# ---- what a client sends


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(["normal", "equal", "one", "sign", "half"]),
    st.floats(1e-6, 1e6),
)
def test_no_update_is_longer_than_the_bound_after_rounding(seed, kind, size):
    plan = _plan_of(1000)
    generator = np.random.default_rng(seed)
    update = {
        "normal": generator.normal(size=1000),
        "equal": np.ones(1000),
        "one": np.eye(1000)[0],
        "sign": generator.choice([-1.0, 1.0], 1000),
        # Every entry just above a half: rounding to the nearest lengthens it most.
        "half": np.full(1000, 0.5001 / plan.scale),
    }[kind]
    sent = averaging.quantised(update * (1.0 if kind == "half" else size), plan)
    assert sent.dtype == np.int64
    assert sum(int(value) ** 2 for value in sent) <= plan.bound**2


def _plan_of(dimension):
    return averaging.AveragingPlan(dataclasses.replace(RULE, dimension=dimension), 64, 100.0)


def test_short_updates_are_kept_and_long_ones_cut(plan):
    generator = np.random.default_rng(0)
    update = generator.normal(size=40)
    update *= 0.8 / np.linalg.norm(update)
    kept = averaging.quantised(update, plan) / plan.scale
    assert np.abs(kept - update).max() <= 0.5 / plan.scale
    cut = averaging.quantised(50.0 * update, plan) / plan.scale
    # The direction stays; the length is the clip norm but for rounding.
    assert cut @ update / np.linalg.norm(cut) / 0.8 > 0.99
    assert 0.9 < np.linalg.norm(cut) <= 1.0
    for broken in (np.nan, np.inf):
        assert not averaging.quantised(np.append(update[1:], broken), plan).any()
    for size in (1e-170, 1e200):  # squares vanish, or overflow
        found = averaging.quantised(np.full(40, size), plan)
        assert (found == (0 if size < 1 else found[0])).all() and (found[0] > 0) == (size > 1)


def test_noise_has_the_planned_law_and_scale(plan):
    draws = np.concatenate([plan.local_noise(SEEDED, stream) for stream in range(250)])
    # 10,000 draws: relative standard error of the variance 1.4%; five of them. 2/3 would fail.
    assert draws.var() == pytest.approx(plan.local_variance, rel=0.07)
    update = np.full(40, 0.01)
    sent = averaging.noisy_update(update, plan, SEEDED, stream=5)
    noise = plan.local_noise(SEEDED, stream=5)
    assert np.array_equal(sent - noise, averaging.quantised(update, plan))
    assert not np.array_equal(noise, plan.local_noise(SEEDED, stream=6))


def test_the_average_is_over_the_public_number_of_clients(plan):
    updates = np.random.default_rng(1).normal(size=(10, 40)) * 0.05
    exact = dataclasses.replace(RULE, epsilon=math.inf, server_rate=0.5).plan()
    total = sum(averaging.quantised(update, exact) for update in updates)
    step = averaging.averaged(total, exact, 10)
    np.testing.assert_allclose(step, 0.5 * updates.mean(axis=0), atol=0.5 / exact.scale)
    # Nine are in the sum: it is divided by ten all the same.
    np.testing.assert_array_equal(averaging.averaged(total, exact, 9), step)
    noisy = [
        averaging.averaged(
            sum(plan.local_noise(SEEDED, 10 * run + client) for client in range(10)), plan, 10
        )
        for run in range(40)
    ]
    # 1600 entries: relative standard error 1.8%; five of them.
    assert np.std(noisy) == pytest.approx(plan.standard_deviation, rel=0.09)


@pytest.mark.parametrize(
    ("total", "survivors", "message"),
    [
        (np.zeros(40, np.int64), 8, "8 of 10 updates are in the sum, and the noise needs 9"),
        (np.zeros(40, np.int64), 11, "no output: 11 of 10"),
        (np.zeros(39, np.int64), 10, "not a sum of 10 updates of 40"),
        (np.zeros(40), 10, "not a sum"),
        (np.full(40, 1 << 40), 10, "whole numbers within"),
    ],
)
def test_a_round_aborts_without_output(plan, total, survivors, message):
    with pytest.raises(averaging.AveragingAborted, match=message):
        averaging.averaged(total, plan, survivors)


# ---- local training


@pytest.fixture(scope="module")
def model():
    return local_training.flat_model(MODEL, (4,))


def test_an_update_is_plain_sgd_on_all_records(model):
    inputs, labels = PARTITIONS[0]
    params = model.initial(0)
    found = local_training.local_update(
        model, models.cross_entropy, params, CANDIDATE, (inputs, labels),
        epochs=2, batch_size=8, stream=(4, 1, 3),
    )  # fmt: skip

    @jax.jit
    @jax.grad
    def gradient_of(tree, x, y):
        logits = jax.nn.log_softmax(MODEL.apply({"params": tree}, x))
        return -logits[jnp.arange(len(y)), y].mean()

    tree = model.tree(jnp.asarray(params))
    speed = jax.tree.map(jnp.zeros_like, tree)
    order, rate = np.random.default_rng((4, 1, 5)), 0.2
    for _ in range(2):
        rows = order.permutation(30)
        for start in range(0, 30, 8):
            batch = rows[start : start + 8]
            gradient = gradient_of(tree, inputs[batch], labels[batch])
            speed = jax.tree.map(lambda v, g: 0.9 * v + g, speed, gradient)
            tree = jax.tree.map(lambda w, v, rate=rate: w - rate * v, tree, speed)
        rate *= 0.5
    expected = np.asarray(jax.flatten_util.ravel_pytree(tree)[0]) - params
    np.testing.assert_allclose(found, expected, atol=1e-5)


# ---- words and bad input


def test_statement_is_strict_json(plan):
    said = json.loads(json.dumps(plan.statement(), allow_nan=False))
    assert said["bound_after_rounding"] == plan.bound and said["rounds"] == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clients": 2}, r"2 client\(s\): pass at least 3"),
        ({"dimension": 0}, "dimension must be"),
        ({"rounds": 0}, "rounds must be"),
        ({"rounds": 1.5}, "rounds must be a whole number"),
        ({"epsilon": -1.0}, "epsilon must be > 0"),
        ({"epsilon": math.nan}, "epsilon must be > 0"),
        ({"delta": 0.0}, "delta"),
        ({"clip_norm": 0.0}, "clip_norm must be finite"),
        ({"server_rate": math.inf}, "server_rate must be finite"),
        ({"missing_fraction": 1.0}, "missing_fraction"),
    ],
)
def test_bad_settings_are_one_line(change, message):
    with pytest.raises(ValueError, match=message) as error:
        dataclasses.replace(RULE, **change)
    assert "\n" not in str(error.value)


def test_bad_plans_and_vectors_are_one_line(plan):
    with pytest.raises(ValueError, match="costs .* alone"):
        RULE.plan(accounting.gaussian(0.5, relation="replace_one"))
    with pytest.raises(ValueError, match=r"pass \(40,\)"):
        averaging.quantised(np.zeros(39), plan)
    with pytest.raises(ValueError, match="overflow a sum|table of"):
        averaging.AveragingSettings(3000, 10_000_000, 500, 0.05).plan()
