"""Tunings run many times at once: as tune() runs them once, and independently of each other."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import accounting, auditing, federated, tuning
from dpjax.auditing import CANARIES
from experiments.figures.auditing import other_executions
from experiments.figures.leaderboard.extrapolation import Extrapolation
from experiments.figures.leaderboard.subset_tuning import SubsetTuning

NOISE = 2.0
LAW = accounting.AtMost(accounting.Geometric(2), cap=4)
ONE = tuning.Space(learning_rate=1.0, clip_norm=1.0)
SOME = tuning.Space(learning_rate=tuning.Uniform(0.5, 1.5), clip_norm=1.0)
GRADIENT = CANARIES["gradient"]

TUNERS = {
    "private runs": (tuning.RandomRepetitions(LAW), SOME, 4),
    "one run": (tuning.Untuned(), ONE, 4),
    "in stages": (Extrapolation(LAW, stage_noise=(4.0, 3.0)), SOME, 4),
    "on a part": (SubsetTuning(0.4, LAW), SOME, 2),
    "partitions": (tuning.Exponential(4.0, candidates=2, partitions=1), SOME, 2),
}


def _executions(name, number, *, with_record=False, seed=1, steps=1, noise=NOISE, shards=None):
    tuner, space, records = TUNERS[name]
    return auditing.executions(
        tuner,
        GRADIENT.task(with_record, records),
        space,
        number,
        delta=0.02,
        run=tuning.RunOptions(lot_size=records, steps=steps, noise_multiplier=noise),
        optimizer=GRADIENT.optimizer,
        shards=shards,
        seed=seed,
    )


@pytest.mark.parametrize("name", TUNERS)
def test_what_is_released_many_times_is_as_often_independent(name):
    tuner, space, records = TUNERS[name]
    found = _executions(name, 300)
    assert found.params.shape == (300,)
    drawn = found.params[found.params != 0.0]
    assert len(np.unique(drawn)) == len(drawn) >= 100
    assert found.table.shape == (300, 1 + len(found.hyperparameters))
    # The claim is that of a tuning of the same arguments.
    result = tuning.tune(
        GRADIENT.task(False, records),
        space,
        tuner,
        delta=0.02,
        run=tuning.RunOptions(lot_size=records, steps=1, noise_multiplier=NOISE),
        optimizer=GRADIENT.optimizer,
        seed=3,
    )
    assert found.guarantee.provenance == result.guarantee.provenance
    assert set(result.release.hyperparameters) == set(found.hyperparameters)


def test_shards_that_were_stopped_and_gone_on_with_release_what_one_process_does():
    one, many_jobs = (_executions("private runs", 200, shards=shards) for shards in (None, 2))
    np.testing.assert_array_equal(one.params, many_jobs.params)
    for name, values in one.hyperparameters.items():
        np.testing.assert_array_equal(values, many_jobs.hyperparameters[name])
    assert one.guarantee.provenance == many_jobs.guarantee.provenance
    # Without a seed the draw is in the folder alone: everything is drawn once, and anew each time.
    secret = [_executions("private runs", 50, shards=2, seed=None) for _ in range(2)]
    assert not np.array_equal(secret[0].params, secret[1].params)
    with pytest.raises(ValueError, match="SubsetTuning cannot be shared out: drop shards"):
        _executions("on a part", 10, shards=2)


def test_one_run_has_the_noise_that_it_is_charged_for():
    """A sum of no gradients, one step: noise over the lot, times the rate."""
    drawn = _executions("one run", 20_000).params * 4 / NOISE
    assert abs(drawn.mean()) < 0.04
    assert abs(drawn.std() - 1.0) < 0.03
    inside = _executions("one run", 20_000, with_record=True).params * 4
    assert abs(inside.mean() - 1.0) < 0.08


def test_the_best_of_k_prefers_larger_numbers():
    assert _executions("private runs", 5_000).params.mean() > 0.1


def test_the_operating_systems_randomness_is_used_unless_there_is_a_seed():
    same = [_executions("one run", 50, seed=5).params for _ in range(2)]
    np.testing.assert_array_equal(*same)
    fresh = [_executions("one run", 50, seed=None).params for _ in range(2)]
    # Two draws lie in the same cell of the noise's grid with probability 6e-7, one pair of 50 with
    # 3e-5, four of them with 2e-20. Of a known seed all 50 would.
    assert np.sum(fresh[0] == fresh[1]) < 4


def test_executions_without_a_candidate_release_what_no_record_moves():
    law = accounting.AtMost(accounting.Poisson(0.7), cap=2)
    found = auditing.executions(
        tuning.RandomRepetitions(law),
        GRADIENT.task(True),
        ONE,
        400,
        run=tuning.RunOptions(lot_size=8, steps=1, noise_multiplier=NOISE),
        optimizer=GRADIENT.optimizer,
        seed=7,
    )
    nothing = np.isnan(found.hyperparameters["learning_rate"])
    assert 100 < nothing.sum() < 399
    assert np.all(found.params[nothing] == 0.0) and np.all(found.params[~nothing] != 0.0)


def test_a_final_training_is_of_each_executions_own_choice():
    """Without noise a step is the rate over the lot, whichever rate that execution chose."""
    found = auditing.executions(
        SubsetTuning(0.5, accounting.Fixed(2)),
        GRADIENT.task(True, 2),
        SOME,
        200,
        delta=0.02,
        run=tuning.RunOptions(lot_size=2, steps=1, noise_multiplier=1e-3),
        optimizer=GRADIENT.optimizer,
        seed=9,
    )
    rates, steps = found.hyperparameters["learning_rate"], found.params
    # The canary is in the rest, of which half of the lot of 2 is expected, or it is not.
    trained = np.abs(steps) > 0.1
    np.testing.assert_allclose(steps[trained], rates[trained], rtol=0.01)
    assert 60 < trained.sum() < 140
    assert len(np.unique(rates)) == 200


def _of_different_records(number):
    """Parts that hold as many of the same records are trained on together."""
    task = GRADIENT.task(True, number)
    records = dataclasses.replace(
        task.train, arrays=np.linspace(0.0, 1.0, number, dtype=np.float32)
    )
    return dataclasses.replace(task, train=records)


@pytest.mark.parametrize(
    "change,words",
    [
        (dict(tuner=None), "tuner must be"),
        (dict(task=None), "task"),
        (dict(number=0), "number"),
        (
            dict(task=_of_different_records(40), tuner=SubsetTuning(0.4, LAW), number=4_000),
            "at most 10",
        ),
    ],
)
def test_bad_input_is_one_line(change, words):
    arguments = dict(tuner=tuning.Untuned(), task=GRADIENT.task(True), space=ONE, number=10)
    run = tuning.RunOptions(lot_size=8, steps=1, noise_multiplier=NOISE)
    with pytest.raises(ValueError, match=words) as raised:
        auditing.executions(**(arguments | change), run=run, optimizer=GRADIENT.optimizer)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", CANARIES)
def test_a_canary_is_one_record_more_and_its_numbers_are_one_an_execution(name):
    canary = CANARIES[name]
    there, gone = canary.task(True, 4), canary.task(False, 4)
    counts = [one.train.number + one.validation.number for one in (there, gone)]
    assert counts[0] == counts[1] + 1
    for field in ("public_size", "size_bound"):
        for part in ("train", "validation"):
            one, other = (getattr(getattr(task, part), field) for task in (there, gone))
            assert one == other
    found = auditing.executions(
        tuning.Untuned(),
        there,
        ONE,
        5,
        run=tuning.RunOptions(lot_size=4, steps=1, noise_multiplier=NOISE),
        optimizer=canary.optimizer,
    )
    assert canary.numbers(found).shape == (5,)
    assert jnp.all(jnp.isfinite(canary.numbers(found)))


def test_a_vote_and_averaging_have_the_least_noise_that_their_plans_allow():
    vote = federated.VoteSettings(
        4, 2, votes=1, epsilon=1.5, delta=0.02, missing_fraction=0.25
    ).plan()
    winners, sums = other_executions.vote_executions(vote, [[1, 0], [0, 1], [1, 0]], 1_000, seed=1)
    least = np.sqrt(3 * vote.local_variance)
    assert abs(sums.std(axis=0) / least - 1.0).max() < 0.1
    assert abs(sums.mean(axis=0) - [2, 1]).max() < 0.2
    np.testing.assert_array_equal(winners, np.argmax(sums, axis=1))
    rule = federated.AveragingSettings(
        4, 1, rounds=2, epsilon=1.5, delta=0.02, missing_fraction=0.25
    )
    plan = rule.plan()
    steps = other_executions.averaging_executions(plan, [[0.0], [0.0], [10.0]], 500, seed=1)
    assert steps.shape == (500, 2, 1) and len(np.unique(steps)) > 10
    least = np.sqrt(3 * plan.local_variance) / plan.scale / 4
    assert abs(steps.std() / least - 1.0) < 0.1
    assert abs(steps.mean() - 0.25) < 0.1  # The update is cut to the clip norm of 1.
    for call in (
        lambda: other_executions.vote_executions(vote, [[1, 0]], 5),
        lambda: other_executions.averaging_executions(plan, [[1.0]], 5),
    ):
        with pytest.raises(ValueError, match="one for each client that has to survive"):
            call()


def test_an_audit_does_not_clip_by_a_number_that_nobody_chose():
    with pytest.raises(ValueError, match="no clip_norm"):
        auditing.executions(
            tuning.Untuned(), GRADIENT.task(True), tuning.Space(learning_rate=1.0), 5
        )


def test_an_unknown_canary_names_those_there_are():
    with pytest.raises(ValueError, match="unknown canary 'nope': pass one of"):
        CANARIES["nope"]
