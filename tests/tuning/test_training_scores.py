"""Scores on the records trained on: what they cost, what is scored, and an audit of the whole.

The audit is that of `test_audit.py`, where the canary moves the scores as well: a run that goes its
way gets one record more right, so that selection tells of it beside the number that is released.
"""

import functools
import json
import pathlib

import flat_call
import jax.numpy as jnp
import numpy as np
import pytest
from audits import epsilon_lower_bound

from dpjax import accounting, training, tuning
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.releases import rules
from dpjax.tuning import Records, RunOptions, Space, Task
from dpjax.tuning.private_runs import execute
from dpjax.tuning.selection import BestOf
from dpjax.tuning.steps import Material, Problem, plan_runs

LAW = accounting.AtMost(accounting.Geometric(mean=3), cap=8)
NUMBERS = {"lot_size": 8, "steps": 3, "noise_multiplier": 2.0, "delta": 1e-6}


def _task(validation=(5.0, 5.0, 5.0)):
    """A positive parameter gets the six positive records right, a negative one the other 14."""
    values = np.where(np.arange(20) < 6, 1.0, -1.0).astype(np.float32)
    return Task(
        initial=lambda key: jnp.zeros(()),
        loss=lambda params, value: -params * value,
        correct=lambda params, value: params * value > 0,
        train=Records(values, public_size=20, size_bound=24),
        validation=Records(np.float32(validation), public_size=7, size_bound=9),
    )


SPACE = Space(learning_rate=1.0, clip_norm=1.0)


def _tuned(task, **changes):
    return flat_call.tune(
        tuning.RandomRepetitions,
        task,
        SPACE,
        optimizer=training.sgd(),
        **{"repetitions": LAW, "seed": 3, "score_on_training": True} | NUMBERS | changes,
    )


def _run_cost():
    return accounting.dp_sgd(sampling_probability=8 / 20, noise_multiplier=2.0, steps=3)


def test_a_run_costs_what_training_and_its_score_cost_together():
    result = _tuned(_task(), score_noise=4.0)
    run = _run_cost()
    one = accounting.compose(run, accounting.discrete_gaussian(4.0))
    for delta in (1e-2, 1e-3, 1e-5):
        assert result.run_guarantee.epsilon(delta) == pytest.approx(one.epsilon(delta), rel=1e-3)
        expected = accounting.best_of(one, LAW).epsilon(delta)
        assert result.guarantee.epsilon(delta) == pytest.approx(expected, rel=1e-3)
    # In parallel, which is for records that are in one of two parts, it would look cheaper.
    assert result.run_guarantee.epsilon(1e-3) > 1.02 * run.epsilon(1e-3)


def test_the_noise_that_is_chosen_adds_at_most_a_hundredth():
    result = _tuned(_task())
    run = _run_cost()
    assert run.epsilon(1e-6) < result.run_guarantee.epsilon(1e-6) <= 1.0101 * run.epsilon(1e-6)
    deviation = result.release.statement["score"]["noise_standard_deviation_in_records"]
    closer = accounting.compose(run, accounting.discrete_gaussian(deviation / 1.2))
    assert closer.epsilon(1e-6) > 1.01 * run.epsilon(1e-6)


def test_a_target_is_met_with_the_scores_in_it():
    result = _tuned(_task(), noise_multiplier=None, epsilon=1.0)
    assert 0.99 < result.guarantee.epsilon(1e-6) <= 1.0
    result = _tuned(_task(), noise_multiplier=None, epsilon=1.0, score_noise=24.0)
    assert 0.99 < result.guarantee.epsilon(1e-6) <= 1.0
    with pytest.raises(ValueError, match="pass a larger one, or a larger epsilon"):
        _tuned(_task(), noise_multiplier=None, epsilon=1.0, score_noise=0.5)


def test_training_records_are_counted_and_the_validation_records_are_not_read():
    result = _tuned(_task())
    released = float(result.release.params)
    right = 6 / 20 if released > 0 else 14 / 20
    assert result.curator.accuracies[result.curator.winner] == pytest.approx(right)
    other = _tuned(_task(validation=(-5.0, np.nan, 0.0)))
    assert float(other.release.params) == released
    assert other.release.statement == result.release.statement
    score = result.release.statement["score"]
    assert score["public_size"] == 20 and "training" in score["what"]
    assert "validation" not in json.dumps(score).replace("validation_is_public", "")


def test_scores_carry_fresh_noise_of_the_stated_size():
    result = _tuned(_task(), repetitions=accounting.Fixed(400), score_noise=6.0)
    record = result.curator
    noise = 20 * (record.scores - record.accuracies)
    assert 5.2 < noise.std() < 6.8
    assert len(np.unique(noise)) > 15


def test_what_the_release_states_can_be_written_again_and_not_changed():
    statement = _tuned(_task()).release.statement
    claim = json.loads(json.dumps(statement))
    assert rules.rebuilt(claim).statement == claim
    # As if the scores had records of their own: the cost would be another.
    apart = json.loads(json.dumps(statement))
    del apart["score"]["records"]
    again = rules.rebuilt(apart).statement
    assert again != apart and again["epsilon"] < claim["epsilon"]


def test_the_statement_holds_what_is_listed_and_nothing_else():
    path = pathlib.Path(__file__).parents[1] / "release_keys.json"
    listed = json.loads(path.read_text())["random repetitions, scored on training records"]
    statement = _tuned(_task()).release.statement
    for part, keys in listed.items():
        assert sorted(statement[part]) == sorted(keys)


def test_public_validation_records_are_refused_beside_it():
    with pytest.raises(ValueError, match="drop it, or validation_is_public"):
        _tuned(_task(), validation_is_public=True)


# The audit --------------------------------------------------------------------------------------

EXECUTIONS = 40_000
DELTA = 0.02


def _audited_task(with_canary):
    values = np.asarray([-1.0, 1.0] if with_canary else [-1.0], dtype=np.float32)
    return Task(
        initial=lambda key: jnp.zeros(()),
        # The record that is always there does not move the model, and is always right.
        loss=lambda params, value: -params * jnp.maximum(value, 0.0),
        correct=lambda params, value: (params > 0) | (value < 0),
        train=Records(values, public_size=2, size_bound=2),
        validation=Records(np.zeros(1, np.float32), public_size=1, size_bound=1),
    )


@functools.cache
def _procedure():
    return plan_runs(
        Problem.of(
            _audited_task(True),
            SPACE,
            RunOptions(lot_size=2, steps=1, noise_multiplier=2.0),
            training.sgd(),
            delta=DELTA,
        ),
        BestOf(LAW),
        score_noise=2,
        score_on_training=True,
    )


def _outcomes(with_canary, seed):
    material = Material.of(_audited_task(with_canary), SPACE, training.sgd())
    executed = execute(
        _procedure(),
        material.scored_on_training(),
        randomness=HostRandomness(seed),
        executions=EXECUTIONS,
        chunk_size=1 << 16,
    )
    return executed.best._outputs


def test_what_is_claimed_is_not_exceeded_and_the_audit_has_power():
    claim = _procedure().guarantee.epsilon(DELTA)
    found = epsilon_lower_bound(_outcomes(True, seed=21), _outcomes(False, seed=22), DELTA)
    assert 0.3 * claim <= found <= claim
