"""Scores in [0, 1]: one record's influence, the noise and its price, every tuner, ready tasks."""

import dataclasses
import json
import re

import flat_call
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import accounting, training, tuning
from dpjax.neighbouring import ADD_OR_REMOVE_ONE
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.releases import verification
from dpjax.tuning import Records
from dpjax.tuning.private_runs import execute
from dpjax.tuning.problem.run_settings import count_guarantee
from dpjax.tuning.problem.task import SCORE_UNITS, accuracy_of, total_units
from dpjax.tuning.selection import BestOf
from dpjax.tuning.steps import Material, Problem, plan_runs
from dpjax.tuning.tuners.partitions import AveragedUtility
from experiments.figures.leaderboard.extrapolation import Extrapolation

GENERATOR = np.random.default_rng(4)
INPUTS = GENERATOR.normal(size=(260, 3)).astype(np.float32)
WEIGHTS = np.array([0.5, -0.3, 0.2], np.float32)
TARGETS = INPUTS @ WEIGHTS


def _records(first, end, *labels, size=None):
    arrays = (INPUTS[first:end], *(array[first:end] for array in labels or (TARGETS,)))
    identifiers = np.arange(first, end)
    size = size or end - first
    return Records(arrays, size, size + 20, identifiers=identifiers, stable_under_removal=True)


def _linear(**changes):
    """A linear regression whose records score 1 - |error| / 2."""
    parts = dict(
        initial=lambda key: {"w": jnp.zeros(3)},
        loss=lambda params, example: 0.5 * (example[0] @ params["w"] - example[1]) ** 2,
        score=lambda params, example: 1.0 - jnp.abs(example[0] @ params["w"] - example[1]) / 2.0,
        train=_records(0, 200),
        validation=_records(200, 260),
        description="a line",
    )
    return tuning.Task(**(parts | changes))


SPACE = tuning.Space(learning_rate=tuning.LogUniform(0.1, 1.0), clip_norm=1.0)
RUN = tuning.RunOptions(lot_size=40, steps=6)


def _units(score):
    task = _linear(score=lambda params, example: jnp.asarray(score, jnp.float32))
    return int(total_units(task, {"w": jnp.zeros(3)}, (INPUTS[:1], TARGETS[:1])))


@pytest.mark.parametrize(
    "score, units",
    [
        (0.0, 0), (1.0, 256), (0.5, 128), (0.25 + 0.4 / 256, 64), (0.25 + 0.6 / 256, 65),
        (-3.0, 0), (7.0, 256), (np.nan, 0), (np.inf, 256), (-np.inf, 0),
    ],
)  # fmt: skip
def test_a_record_scores_between_0_and_256_units_whatever_the_function_says(score, units):
    assert _units(score) == units


def test_one_record_moves_the_sum_by_a_whole_record_at_most():
    task = _linear(score=lambda params, example: example[0][0])  # Any real number.
    params = {"w": jnp.zeros(3)}
    whole = int(total_units(task, params, (INPUTS, TARGETS)))
    for removed in range(0, 260, 13):
        rest = np.arange(260) != removed
        moved = whole - int(total_units(task, params, (INPUTS[rest], TARGETS[rest])))
        assert 0 <= moved <= SCORE_UNITS
        assert moved == np.round(256 * np.clip(INPUTS[removed, 0], 0, 1))


def test_right_or_wrong_is_the_score_of_0_or_1():
    right = _linear(score=None, correct=lambda params, example: example[1] > 0)
    score = _linear(score=lambda params, example: (example[1] > 0).astype(jnp.float32))
    params = {"w": jnp.zeros(3)}
    counts = [int(total_units(task, params, (INPUTS, TARGETS))) for task in (right, score)]
    assert counts[1] == 256 * counts[0] > 0 and (right.units, score.units) == (1, 256)
    assert accuracy_of(score, params, (INPUTS, TARGETS)) == counts[0] / 260


@pytest.mark.parametrize("deviation", [0.8, 2.0, 30.0])
def test_the_price_of_finer_units_is_that_of_the_noise_in_records(deviation):
    """The finer grid tends to the Gaussian's price, which the test knows in closed form."""
    fine = count_guarantee(deviation, ADD_OR_REMOVE_ONE, SCORE_UNITS)
    exact = accounting.gaussian(deviation)
    for epsilon in (0.1, 1.0, 2.0):
        assert fine.delta(epsilon) == pytest.approx(exact.delta(epsilon), rel=0.02, abs=1e-12)


def _procedure(deviation, **changes):
    run = dataclasses.replace(RUN, noise_multiplier=2.0)
    problem = Problem.of(_linear(**changes), SPACE, run, training.sgd(), delta=1e-6)
    return plan_runs(problem, BestOf(accounting.Fixed(1)), score_noise=deviation)


def test_noise_reaches_the_scores_at_its_stated_scale_in_records():
    procedure = _procedure(3.0)
    executed = execute(
        procedure,
        Material.of(_linear(), SPACE, training.sgd()),
        randomness=HostRandomness(1),
        executions=1500,
        chunk_size=500,
    )
    noise = executed.scores - executed.units / SCORE_UNITS
    # Standard error 1.8%: 2/3 and 3/2 of it are far outside, and so is the noise of a unit.
    assert 2.8 < np.std(noise) < 3.2
    in_units = noise * SCORE_UNITS
    np.testing.assert_array_equal(in_units, np.round(in_units))
    assert len(np.unique(np.mod(in_units, SCORE_UNITS))) > 100, "noise of whole records alone"


def test_the_run_is_charged_for_its_score():
    """Training and the sum of scores compose in parallel: the dearer of the two is paid."""
    loud, quiet = _procedure(0.3), _procedure(50.0)
    alone = count_guarantee(0.3, ADD_OR_REMOVE_ONE, SCORE_UNITS)
    assert loud.run_guarantee.epsilon(1e-3) >= alone.epsilon(1e-3) > 8.0
    assert quiet.run_guarantee.epsilon(1e-3) < 4.0


TUNERS = {
    "random_repetitions": tuning.RandomRepetitions(accounting.Geometric(2)),
    "threshold_stopping": tuning.ThresholdStopping(0.6, 0.5),
    "exponential": tuning.Exponential(2.0, 3, 4),
    "doubling": tuning.Doubling(0.5, 3, 12, iterations=3),
    "extrapolation": Extrapolation(accounting.Fixed(1), stage_noise=(9.0, 6.0)),
}


@pytest.mark.parametrize("name", TUNERS)
def test_every_tuner_ranks_by_scores_and_its_release_is_verified(name, tmp_path):
    with pytest.warns(UserWarning, match="seed"):
        result = tuning.tune(
            _linear(), SPACE, TUNERS[name],
            delta=1e-6, run=dataclasses.replace(RUN, noise_multiplier=2.0),
            optimizer=training.sgd(), seed=5,
        )  # fmt: skip
    path = tmp_path / "release"
    result.release.save(path)
    assert verification.verify_release(path / "guarantee.json").epsilon > 0.0
    claim = json.loads((path / "guarantee.json").read_text())
    assert claim["score"]["units_of_a_score_of_1"] == SCORE_UNITS
    assert "scores in [0, 1]" in claim["score"]["what"]
    assert np.all(result.curator.accuracies <= 1.0)
    # A statement of other units is another statement.
    claim["score"]["units_of_a_score_of_1"] = 1
    (path / "guarantee.json").write_text(json.dumps(claim))
    with pytest.raises(ValueError):
        verification.verify_release(path / "guarantee.json")


def test_utilities_of_scores_are_finer_and_as_sensitive():
    plain = AveragedUtility(10, 40)
    fine = AveragedUtility(10, 40, units_of_a_record=SCORE_UNITS)
    assert fine.units == 256 * plain.units and fine.sensitivity == 256 * plain.sensitivity
    assert fine.effective_partitions == plain.effective_partitions
    crossing = AveragedUtility(10, 40, records_stay=False, units_of_a_record=SCORE_UNITS)
    assert crossing.sensitivity == 256 * AveragedUtility(10, 40, records_stay=False).sensitivity
    public = AveragedUtility(50, 40, True, units_of_a_record=SCORE_UNITS)
    assert public.sensitivity == 256 * 40 and AveragedUtility(50, 40).sensitivity == 50
    assert fine.total(np.array([[10_000, 20_000]])) == [10_000 + 40 * 256]
    # Utilities, and so choices, are the same numbers.
    assert fine.exponential_rate(1.0) * fine.units == plain.exponential_rate(1.0) * plain.units
    assert fine.query_scale(1.0) / fine.units == plain.query_scale(1.0) / plain.units
    assert fine.threshold(3, 0.01) == pytest.approx(256 * plain.threshold(3, 0.01), abs=256)


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(score="auc"), r"score='auc': pass a function .*AUC, F1"),
        (dict(score=None), "pass either correct"),
        (dict(correct=lambda params, example: True), "pass either correct"),
        (dict(score=3), "score"),
        (dict(validation=Records((INPUTS + 0, TARGETS + 0), 260, 2**24)), "at most 8388607"),
    ],
)
def test_what_bounds_no_record_is_refused_when_the_task_is_made(changes, message):
    with pytest.raises(ValueError, match=message) as caught:
        _linear(**changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "score",
    [
        lambda params, example: example[1] > 0,
        lambda params, example: jnp.int32(1),
        lambda params, example: example[0],
        lambda params, example: None,
    ],
    ids=["a boolean", "a whole number", "a vector", "nothing"],
)
def test_what_is_no_floating_scalar_is_refused_before_training(score):
    with pytest.raises(ValueError, match="one floating scalar in"):
        tuning.tune(_linear(score=score), SPACE, tuning.RandomRepetitions(), run=RUN, epsilon=4.0)


def test_noise_too_wide_to_be_drawn_exactly_is_refused_before_training():
    with pytest.raises(ValueError, match=re.escape("score_noise=200.0: pass at most 156.2")):
        _procedure(200.0)


class Tokens(nn.Module):
    """Embeds whole numbers, which it must get as such."""

    @nn.compact
    def __call__(self, tokens):
        assert jnp.issubdtype(tokens.dtype, jnp.integer)
        return nn.Dense(7)(nn.Embed(7, 4)(tokens))


SEQUENCES = (np.cumsum(GENERATOR.integers(1, 3, (120, 9)), axis=1) % 7).astype(np.int32)
LABELS = (INPUTS @ GENERATOR.normal(size=(3, 4)) > 0).astype(np.int32)


def _sequences(first, end, number=None):
    return Records(SEQUENCES[first:end], end - first, end - first + 10)


READY = {
    "regression": lambda: tuning.regression(
        nn.Dense(1), _records(0, 200), _records(200, 260), error_scale=0.5
    ),
    "multi_label": lambda: tuning.multi_label(
        nn.Dense(4), _records(0, 200, LABELS), _records(200, 260, LABELS)
    ),
    "next_token": lambda: tuning.next_token(Tokens(), _sequences(0, 90), _sequences(90, 120)),
}


@pytest.mark.parametrize("name", READY)
def test_ready_tasks_learn_what_they_are_for(name):
    """Almost without noise: what is trained scores clearly better than where it began."""
    task = READY[name]()
    optimizer = training.adam()
    with pytest.warns(UserWarning):
        result = flat_call.tune(
            tuning.RandomRepetitions,
            task,
            tuning.Space(learning_rate=0.05, clip_norm=1.0),
            repetitions=accounting.Fixed(1),
            noise_multiplier=0.05,
            lot_size=40,
            steps=60,
            optimizer=optimizer,
            delta=1e-6,
            seed=2,
            score_noise=3.0,
        )
    before = accuracy_of(task, task.initial(jax.random.key(1)), task.validation.arrays)
    after = accuracy_of(task, result.release.params, task.validation.arrays)
    least = {"regression": 0.8, "multi_label": 0.85, "next_token": 0.35}[name]
    assert after > max(before + 0.1, least)
    assert result.curator.accuracies[0] == pytest.approx(after)


def test_padding_is_neither_learned_nor_scored():
    padded = SEQUENCES[:40].copy()
    padded[:, 5:] = 6
    records = Records(padded, 40, 50)
    task = tuning.next_token(Tokens(), records, Records(padded.copy(), 40, 50), padding=6)
    params = task.initial(jax.random.key(0))
    example = jax.tree.map(lambda leaf: leaf[0], task.train.arrays)
    other = (example[0], example[1])
    grown = (np.append(example[0], 6), np.append(example[1], 6))
    assert task.loss(params, other) == pytest.approx(float(task.loss(params, grown)), rel=1e-6)
    only = (np.full(4, 6, np.int32), np.full(4, 6, np.int32))
    assert float(task.loss(params, only)) == 0.0 == float(task.score(params, only))


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: tuning.regression(nn.Dense(2), _records(0, 9), _records(9, 19), error_scale=1),
         "one output for each"),
        (lambda: tuning.regression(nn.Dense(1), _records(0, 9), _records(9, 19), error_scale=0),
         "error_scale"),
        (lambda: tuning.multi_label(nn.Dense(3), _records(0, 9, LABELS), _records(9, 19, LABELS)),
         "one output for each"),
        (lambda: tuning.next_token(Tokens(), _records(0, 9), _records(9, 19)), "whole numbers"),
        (lambda: tuning.next_token(nn.Embed(7, 5), _sequences(0, 9), _sequences(9, 19)),
         "vocabulary"),
        (lambda: tuning.next_token(Tokens(), _sequences(0, 9), _sequences(9, 19), padding=-1),
         "padding"),
        (lambda: tuning.multi_label(nn.Dense(4), Records(INPUTS, 9, 900), _records(9, 19)),
         "pair of arrays"),
        (lambda: tuning.regression(nn.Dense(1), 3, _records(9, 19), error_scale=1.0),
         "train is a int"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_one_line(make, message):
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
