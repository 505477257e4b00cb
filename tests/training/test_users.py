"""Users as the unit: records put together, one user's loss, one user's influence, and an audit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from audits import epsilon_lower_bound

from dpjax import accounting, training
from dpjax.training import users

IDS = np.array([7, 3, 7, 9, 3, 7, 7])
VALUES = np.arange(7, dtype=np.float32)


def test_records_of_a_user_stand_in_one_row_and_padding_repeats_its_own():
    grouped, ids = users.group({"x": VALUES}, IDS, 3)
    np.testing.assert_array_equal(ids, [3, 7, 9])
    np.testing.assert_array_equal(grouped.records["x"], [[1, 4, 1], [0, 2, 5], [3, 3, 3]])
    np.testing.assert_array_equal(
        grouped.present, [[True, True, False], [True] * 3, [True, False, False]]
    )


@pytest.mark.parametrize("key", [None, b"the curator's"])
@pytest.mark.parametrize("kind", ["integers", "bytes"])
def test_no_user_has_an_influence_on_another_ones_row(key, kind):
    generator = np.random.default_rng(0)
    owners = generator.integers(0, 20, 150)
    names = np.frombuffer(generator.bytes(20 * 16), "V16")
    ids = owners if kind == "integers" else names[owners]
    records = generator.normal(size=(150, 2))
    whole, whole_ids = users.group(records, ids, 4, key=key)
    for gone in range(0, 20, 5):
        rest = owners != gone
        part, part_ids = users.group(records[rest], ids[rest], 4, key=key)
        name = gone if kind == "integers" else names[gone]
        kept = np.array([one != name for one in whole_ids])
        assert np.sum(~kept) == 1
        assert part_ids.tobytes() == whole_ids[kept].tobytes()
        np.testing.assert_array_equal(part.records, whole.records[kept])
        np.testing.assert_array_equal(part.present, whole.present[kept])


def test_a_key_picks_which_records_count_and_each_alike():
    picked = [
        users.group(VALUES[:6], np.zeros(6, int), 2, key=b"%d" % number)[0].records[0]
        for number in range(3000)
    ]
    times = np.bincount(np.concatenate(picked).astype(int), minlength=6)
    assert times.sum() == 6000 and np.all(np.abs(times - 1000) < 120)  # 4 deviations of 29.
    assert all(one[0] != one[1] for one in picked)
    first = users.group(VALUES[:6], np.zeros(6, int), 2)[0].records[0]
    np.testing.assert_array_equal(first, [0, 1])


def _loss(params, record):
    inputs, target = record
    return 0.5 * (inputs @ params["w"] - target) ** 2 / jnp.sqrt(jnp.sum(inputs**2))


def test_a_users_gradient_is_the_mean_over_its_records_clipped_once():
    """Against record-by-record gradients; the loss is not finite on records of zeros."""
    generator = np.random.default_rng(1)
    records = (generator.normal(size=(30, 3)).astype(np.float32), np.ones(30, np.float32))
    owners = generator.integers(0, 8, 30)
    grouped, ids = users.group(records, owners, 5)
    params = {"w": jnp.array([0.3, -2.0, 0.5])}
    summed, aux = training.clipped_grad(users.per_user(_loss))(params, grouped, clip_norm=0.5)
    expected = np.zeros(3)
    for row, one in enumerate(ids):
        own = np.flatnonzero(owners == one)[:5]
        each = [jax.grad(_loss)(params, (records[0][i], records[1][i]))["w"] for i in own]
        gradient = np.mean(each, axis=0)
        assert aux.norms[row] == pytest.approx(np.linalg.norm(gradient), rel=1e-5)
        expected += gradient * min(1.0, 0.5 / np.linalg.norm(gradient))
    np.testing.assert_allclose(summed["w"], expected, rtol=1e-4)


def test_each_record_of_a_user_has_a_key_of_its_own():
    def loss(params, record, rng):
        return params * jax.random.uniform(rng)

    grouped, _ = users.group(VALUES, IDS, 3)
    own = users.per_user(loss, with_rng=True)
    one = jax.tree.map(lambda leaf: leaf[1], grouped)
    key = jax.random.key(3)
    drawn = [jax.random.uniform(k) for k in jax.random.split(key, 3)]
    assert jax.grad(own)(1.0, one, key) == pytest.approx(float(np.mean(drawn)), rel=1e-6)


# ---- audit: what is seen of a canary user, who has several records, stays below the claim

RUNS, STEPS, DELTA, MULTIPLIER = 40_000, 2, 1e-3, 1.5
CANARY = 4


def _data(with_canary):
    """A quiet user, and the canary with four records that all pull one way."""
    owners = [0] + [1] * CANARY * with_canary
    return np.array([0.0] + [9.0] * CANARY * with_canary, np.float32), np.array(owners)


@functools.cache
def _outcomes(with_canary, multiplier, clipped_by):
    """The trained number of every run, (RUNS,): all records are in every lot."""
    values, owners = _data(with_canary)
    loss = lambda params, value: -params * value  # noqa: E731
    if clipped_by == "user":
        values, loss = users.group(values, owners, CANARY)[0], training.per_user(loss)
    config = training.TrainConfig(
        loss_fn=loss,
        lots=training.PoissonLots(8, 1.0, 8),
        steps=STEPS,
        expected_lot_size=1,
        optimizer=training.sgd(),
    )
    given = {"clip_norm": 1.0, "noise_multiplier": multiplier, "learning_rate": 1.0}
    run = jax.jit(jax.vmap(training.make_train(config), in_axes=(0, *[None] * 4)))
    keys = jax.random.split(jax.random.key(11 + with_canary), RUNS)
    number = np.int32(len(jax.tree.leaves(values)[0]))
    data = training.padded(values, 8)
    # A copy: nothing stays on devices.
    return np.array(run(keys, given, jnp.zeros(()), data, number))


def _audit(multiplier=MULTIPLIER, clipped_by="user"):
    inside, outside = (_outcomes(one, multiplier, clipped_by) for one in (True, False))
    return epsilon_lower_bound(inside, outside, DELTA)


@functools.cache
def _claim():
    cost = accounting.dp_sgd(sampling_probability=1.0, noise_multiplier=MULTIPLIER, steps=STEPS)
    return cost.epsilon(DELTA)


def test_a_user_with_several_records_stays_below_the_claim_and_the_audit_has_power():
    assert 0.5 * _claim() <= _audit() <= _claim()


def test_half_the_noise_is_caught():
    assert _audit(multiplier=MULTIPLIER / 2) > _claim()


def test_clipping_each_record_instead_of_the_user_is_caught():
    assert _audit(clipped_by="record") > _claim()
