"""Tasks over users: what is clipped, scored and stated is a user; parts are divided by user."""

import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import accounting, training, tuning
from dpjax.data.splitting import validation_members
from dpjax.releases import rules, verification
from dpjax.tuning.problem.task import SCORE_UNITS, units_of

GENERATOR = np.random.default_rng(6)
IDS = GENERATOR.integers(0, 120, 500)
INPUTS = GENERATOR.normal(size=(500, 3)).astype(np.float32)
LABELS = (INPUTS[:, 0] > 0).astype(np.int32)
HELD_OUT = validation_members(IDS, 0.3, b"chosen beforehand")
MOST = 3
PARAMS = {"w": jnp.array([1.0, 0.2, 0.0])}


def _users(which, size, most_records=MOST, arrays=(INPUTS, LABELS)):
    arrays = jax.tree.map(lambda leaf: leaf[which], arrays)
    return tuning.Records.of_users(
        arrays, IDS[which], most_records=most_records, public_size=size, size_bound=size + 20
    )


TRAIN, VALIDATION = _users(~HELD_OUT, 90), _users(HELD_OUT, 40)


def _loss(params, example):
    return jnp.log1p(jnp.exp(-(2.0 * example[1] - 1.0) * (example[0] @ params["w"])))


def _right(params, example):
    return (example[0] @ params["w"] > 0) == (example[1] > 0)


def _task(train=TRAIN, validation=VALIDATION, **changes):
    parts = dict(initial=lambda key: {"w": jnp.zeros(3)}, loss=_loss, correct=_right)
    return tuning.Task(**(parts | changes), train=train, validation=validation)


def _mean_over(user, value):
    """The mean over a user's records, by hand."""
    own = [jax.tree.map(lambda leaf: leaf[i], user.records) for i in np.flatnonzero(user.present)]  # noqa: B023
    return np.mean([float(value(PARAMS, record)) for record in own])


@pytest.mark.parametrize("judge", ["correct", "score"])
def test_a_user_scores_and_loses_the_mean_over_its_records(judge):
    score = lambda params, example: 3.0 * (example[0] @ params["w"])  # noqa: E731  Leaves [0, 1].
    task = _task() if judge == "correct" else _task(correct=None, score=score)
    value = _right if judge == "correct" else lambda *one: np.clip(score(*one), 0.0, 1.0)
    for row in range(0, 20, 4):
        user = jax.tree.map(lambda leaf: leaf[row], VALIDATION.arrays)  # noqa: B023
        units = int(units_of(task, PARAMS, user))
        assert units == pytest.approx(SCORE_UNITS * _mean_over(user, value), abs=0.5001)
        assert float(task.example_loss(PARAMS, user)) == pytest.approx(_mean_over(user, _loss))
    assert task.units == SCORE_UNITS and VALIDATION.users.most_records == MOST


TUNERS = {
    "random_repetitions": tuning.RandomRepetitions(accounting.Geometric(2)),
    "exponential": tuning.Exponential(2.0, 3, 4),
}


@pytest.mark.parametrize("name", TUNERS)
def test_a_release_says_that_the_unit_is_a_user_and_is_verified(name, tmp_path):
    with pytest.warns(UserWarning, match="seed"):
        result = tuning.tune(
            _task(), tuning.Space(learning_rate=0.5, clip_norm=1.0), TUNERS[name], epsilon=12.0,
            delta=1e-6, run=tuning.RunOptions(lot_size=20, steps=4), optimizer=training.sgd(),
            seed=5,
        )  # fmt: skip
    path = tmp_path / "release"
    result.release.save(path)
    assert verification.verify_release(path / "guarantee.json").epsilon <= 12.0
    claim = json.loads((path / "guarantee.json").read_text())
    assert claim["unit_of_privacy"].startswith("one user with all of its records, of which 3 ")
    assert claim["training_records"]["most_records_of_a_user"] == MOST
    assert "the training part never holds more than 110 users" in claim["assumptions"]
    assert claim["score"]["units_of_a_score_of_1"] == SCORE_UNITS
    assert "one user" in claim["score"]["a_record_is"]
    assert np.all(result.curator.accuracies <= 1.0)
    # The sentence follows from the numbers: neither can be changed alone.
    claim["unit_of_privacy"] = claim["unit_of_privacy"].replace("3", "2")
    rebuilt = rules.rebuilt({name: claim[name] for name in claim if name != "sha256"})
    assert rebuilt.statement["unit_of_privacy"] != claim["unit_of_privacy"]


def test_ready_tasks_take_users():
    task = tuning.classification(nn.Dense(2), TRAIN, VALIDATION)
    user = jax.tree.map(lambda leaf: leaf[0], TRAIN.arrays)
    assert jnp.shape(task.example_loss(task.initial(jax.random.key(0)), user)) == ()
    tokens = GENERATOR.integers(0, 5, (500, 7)).astype(np.int32)
    parts = [_users(which, 90, arrays=tokens) for which in (~HELD_OUT, HELD_OUT)]
    task = tuning.next_token(nn.Embed(5, 5), *parts)
    user = jax.tree.map(lambda leaf: leaf[0], task.train.arrays)
    assert user.records[0].shape == user.records[1].shape == (MOST, 6)
    assert 0 <= int(units_of(task, task.initial(jax.random.key(0)), user)) <= SCORE_UNITS


def _single(which):
    return tuning.Records((INPUTS[which], LABELS[which]), 400, 500)


@pytest.mark.parametrize(
    "parts, message",
    [
        ((TRAIN, _single(HELD_OUT)), "make both by Records.of_users"),
        ((_single(~HELD_OUT), VALIDATION), "make both by Records.of_users"),
        ((TRAIN, _users(HELD_OUT, 40, most_records=2)), "one most_records"),
        ((_users(IDS >= 0, 120), VALIDATION), "a user is in both train and validation"),
        ((TRAIN, _users(np.arange(500) % 7 == 0, 90)), "a user is in both train and validation"),
    ],
)
def test_mixing_is_refused_in_one_line(parts, message):
    with pytest.raises(ValueError, match=message) as caught:
        _task(*parts)
    assert "\n" not in str(caught.value)
