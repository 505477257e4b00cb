"""Threshold stopping on the engine: which run is released, how many there are, what it costs."""

import flat_call
import numpy as np
import pytest
import small_tasks

from dpjax import accounting, training, tuning
from dpjax.randomness import host_randomness
from dpjax.tuning import RunOptions
from dpjax.tuning.private_runs import execute
from dpjax.tuning.selection import BestOfRuns, FirstAbove
from dpjax.tuning.steps import Material, Problem, plan_runs

SPACE = tuning.Space(learning_rate=tuning.LogUniform(0.01, 1.0), clip_norm=1.0)
QUICK = dict(delta=1e-3, lot_size=20, steps=8, optimizer=training.sgd(), noise_multiplier=1.0)


def _task():
    return small_tasks.linear(small_tasks.parts(200, 4, 0.5))


def test_the_first_run_that_passes_is_released_and_later_ones_are_not_trained():
    result = flat_call.tune(
        tuning.ThresholdStopping,
        _task(),
        SPACE,
        threshold=0.6,
        halting_probability=0.02,
        chunk_size=2,
        seed=4,
        **QUICK,
    )
    scores = result.curator.scores
    passed = np.flatnonzero(scores >= 0.6)
    assert result.curator.winner == passed[0]
    trained = np.flatnonzero(np.isfinite(scores))
    assert trained.max() < passed[0] + 2 < result.curator.number_of_candidates
    expected = accounting.stop_at_threshold(result.run_guarantee, 0.02).stated_epsilon(1e-3)
    assert result.release.statement["epsilon"] == expected
    assert result.release.statement["selection"]["threshold"] == 0.6


def test_nothing_good_enough_releases_the_default():
    result = flat_call.tune(
        tuning.ThresholdStopping,
        _task(),
        SPACE,
        threshold=1.0,
        halting_probability=0.5,
        score_noise=1e-2,
        seed=4,
        **QUICK,
    )
    assert set(result.release.hyperparameters.values()) == {None}
    never = flat_call.tune(
        tuning.ThresholdStopping, _task(), SPACE, threshold=0.0, halting_probability=1.0, **QUICK
    )
    assert never.curator.number_of_candidates == 0
    assert set(never.release.hyperparameters.values()) == {None}


def test_rounds_are_geometric_and_the_released_is_the_first_that_passes():
    # 20,000 draws: the mean of 1/p - 1 = 4 has standard error 0.032.
    selection = FirstAbove(threshold=0.5, halting_probability=0.2)
    counts = selection.draw(20_000, np.random.default_rng(0))
    assert counts.min() == 0 and abs(counts.mean() - 4.0) < 0.16
    assert abs(np.mean(counts == 0) - 0.2) < 0.015
    best = BestOfRuns(1)
    scores = np.asarray([0.4, 0.6, 0.9, -np.inf])
    best.update(np.zeros(4, int), np.arange(4), selection.rank(scores), np.arange(4.0))
    assert best.candidate[0] == 1 and best.output(0) == 1.0


def test_many_executions_agree_with_the_closed_form():
    """P[something is released] = sum over rounds of (1-p)^k (1-u)^(k-1) u, u = P[a run passes]."""
    procedure = plan_runs(
        Problem.of(
            _task(),
            SPACE,
            RunOptions(20, steps=4, noise_multiplier=1.0),
            training.sgd(),
            delta=1e-3,
        ),
        FirstAbove(threshold=0.8, halting_probability=0.25),
    )
    executed = execute(
        procedure,
        Material.of(_task(), SPACE, training.sgd()),
        randomness=host_randomness.HostRandomness(8),
        executions=4000,
        chunk_size=2000,
    )
    trained = np.isfinite(executed.scores)
    u = np.mean(executed.scores[trained] / _task().validation.public_size >= 0.8)
    p = 0.25
    expected = (1 - p) * u / (p + (1 - p) * u)
    released = np.mean(np.isfinite(executed.best.score))
    assert 0.1 < u < 0.95
    assert abs(released - expected) < 0.04  # 4 standard errors


@pytest.mark.parametrize("change", [dict(halting_probability=0.0), dict(noise_multiplier=0.0)])
def test_bad_input_is_refused(change):
    with pytest.raises(ValueError):
        flat_call.tune(
            tuning.ThresholdStopping,
            _task(),
            SPACE,
            **(dict(threshold=0.5, halting_probability=0.5) | QUICK | change),
        )
