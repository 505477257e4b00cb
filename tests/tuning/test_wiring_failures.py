"""A candidate is trained once, from its own key, and a selection held once, whatever comes of it.

Trying again where something failed would be another run that nobody charged. Keys are noted where
parameters are made of them, so that one training too many shows wherever it was started.
"""

import flat_call
import jax
import numpy as np
import pytest

from dpjax import accounting, pareto, tuning
from dpjax.tuning import Job

HALF, ALL = 0.5, 1.0


def _unlucky(keys, share):
    """Which of the keys make parameters that are not finite."""
    made = jax.random.wrap_key_data(np.array(keys, np.uint32), impl="threefry2x32")
    return np.asarray(jax.vmap(jax.random.uniform)(made)) < share


def _default(toy):
    """What is released where nothing may be: parameters of a key that everyone knows."""
    return jax.device_get(toy.task().initial(jax.random.key(0)))


@pytest.mark.parametrize(
    ("rule", "share", "kept"),
    [
        ("best of", HALF, False),
        ("best of", HALF, True),
        ("best of", ALL, False),
        ("first above", ALL, False),
    ],
)
def test_every_run_of_a_selection_is_trained_once(toy, tmp_path, rule, share, kept):
    arguments = dict(
        task=toy.task(record=True, failing=share),
        space=toy.space(0.25, 0.5),
        chunk_size=1,
        score_noise=1.0,
        seed=6,
        job=Job(folder=str(tmp_path / "work")) if kept else None,
        **toy.settings,
    )
    with toy.noting() as keys:
        if rule == "best of":
            result = flat_call.tune(
                tuning.RandomRepetitions, repetitions=accounting.Poisson(8), **arguments
            )
        else:
            # Nobody passes: the search goes on to its end.
            result = flat_call.tune(
                tuning.ThresholdStopping, threshold=1.0, halting_probability=0.1, **arguments
            )
    record = result.curator
    assert record.number_of_candidates == len(keys) == len(set(keys)) > 3
    failed = ~np.isfinite(record.scores)
    assert sorted(failed) == sorted(_unlucky(keys, share))
    assert failed.all() if share == ALL else 0 < failed.sum() < len(failed)
    if share == ALL or rule == "first above":
        assert set(result.release.hyperparameters.values()) == {None}
        jax.tree.map(np.testing.assert_array_equal, result.release.params, _default(toy))
        assert np.isfinite(result.release.params["luck"])


def test_a_secret_number_of_none_trains_nobody_and_releases_the_default(toy):
    with toy.noting() as keys:
        result = flat_call.tune(
            tuning.RandomRepetitions,
            toy.task(record=True),
            toy.space(0.25, 0.5),
            repetitions=accounting.Poisson(0.01),
            seed=1,
            chunk_size=1,
            score_noise=1.0,
            **toy.settings,
        )
    assert keys == [] and result.curator.number_of_candidates == 0
    assert result.curator.winner == -1
    assert set(result.release.hyperparameters.values()) == {None}
    jax.tree.map(np.testing.assert_array_equal, result.release.params, _default(toy))


def test_models_of_partitions_and_the_final_run_are_trained_once(toy):
    candidates, partitions = 3, 4
    with toy.noting() as keys:
        result = flat_call.tune(
            tuning.Exponential,
            toy.task(record=True, failing=ALL),
            toy.space(0.25, 0.5),
            candidates=candidates,
            partitions=partitions,
            selection_epsilon=8.0,
            seed=3,
            chunk_size=1,
            **toy.settings,
        )
    assert len(keys) == len(set(keys)) == candidates * partitions + 1
    # None of them is finite: every utility is 0, and the final run's parameters stay secret.
    assert not np.any(result.curator.scores)
    jax.tree.map(np.testing.assert_array_equal, result.release.params, _default(toy))
    assert result.release.hyperparameters["quality"] in (0.25, 0.5)


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, np.nan])
def test_a_clip_norm_that_is_none_has_no_price(toy, clip_norm):
    setting = dict(quality=0.5, clip_norm=clip_norm, epochs=1, lot_size=8, noise_multiplier=3.0)
    cost = pareto.TrainingCost(toy.shapes(), delta=1e-3)
    with pytest.raises(ValueError, match="clip_norm must be above 0"):
        cost.guarantee(setting)
    if clip_norm < 0:
        domain = pareto.Domain(epochs=1, lot_size=8, clip_norm=pareto.Real(clip_norm, 1.0))
        with pytest.raises(ValueError, match="goes down to -1 and must be above 0"):
            toy.shapes().check(domain)


def test_a_listed_clip_norm_that_is_none_is_refused_before_the_selection(toy):
    """Refused by the final training alone, it would tell that its candidate won."""
    listed = [dict(quality=0.5, clip_norm=1.0), dict(quality=0.5, clip_norm=-1.0)]
    with toy.noting() as keys, pytest.raises(ValueError, match="clip_norm of a listed candidate"):
        flat_call.tune(
            tuning.Exponential,
            toy.task(record=True),
            toy.space(0.5),
            candidates=listed,
            partitions=4,
            **toy.settings,
        )
    assert not keys
