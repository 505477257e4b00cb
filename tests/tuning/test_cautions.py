"""Python warns of what the command line warns of."""

import warnings

import flat_call
import optax
import pytest
import small_tasks

from dpjax import accounting, tuning
from dpjax.tuning import cautions
from experiments.figures.leaderboard.extrapolation import Extrapolation
from experiments.figures.leaderboard.subset_tuning import SubsetTuning

SPACE = tuning.Space(learning_rate=0.5)
DRAWN_FROM = tuning.Space(learning_rate=tuning.Uniform(0.4, 0.6))
# No run of it is finite, so that an untrained default is released.
INFINITE = lambda h: optax.scale(h["learning_rate"] * 1e38 * 1e38)  # noqa: E731
RUN = dict(noise_multiplier=2.0, lot_size=10, steps=1, optimizer=INFINITE)
PARTITIONED = RUN | dict(candidates=1, partitions=4, selection_epsilon=8.0)


def _task(**options):
    return small_tasks.linear(small_tasks.parts(60, share=0.5, **options))


CALLS = {
    "random repetitions": lambda task, **more: flat_call.tune(
        tuning.RandomRepetitions, task, SPACE, repetitions=accounting.Fixed(1), **RUN, **more
    ),
    "threshold stopping": lambda task, **more: flat_call.tune(
        tuning.ThresholdStopping, task, SPACE, threshold=0.0, halting_probability=0.5, **RUN, **more
    ),
    "untuned": lambda task, **more: flat_call.tune(
        tuning.Untuned, task, tuning.Space(learning_rate=1.0, clip_norm=1.0), **RUN, **more
    ),
    "exponential": lambda task, **more: flat_call.tune(
        tuning.Exponential, task, SPACE, **PARTITIONED, **more
    ),
    "permute_and_flip": lambda task, **more: flat_call.tune(
        tuning.Exponential, task, SPACE, mechanism="permute_and_flip", **PARTITIONED, **more
    ),
    "subset tuning": lambda task, **more: flat_call.tune(
        SubsetTuning, task, SPACE, repetitions=accounting.Fixed(1), **RUN, **more
    ),
    "doubling": lambda task, **more: flat_call.tune(
        tuning.Doubling, task, SPACE, granularity=0.5, **PARTITIONED, **more
    ),
    "extrapolation": lambda task, **more: flat_call.tune(
        Extrapolation,
        task,
        DRAWN_FROM,
        repetitions=accounting.AtMost(accounting.Geometric(2), 3),
        stage_noise=(3.0, 2.5),
        **RUN,
        **more,
    ),
}


def _kinds(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return {warning.category: warning for warning in caught}


@pytest.mark.parametrize("name", CALLS)
def test_delta_seed_and_an_untrained_default_are_warned_of_where_they_are_passed(name):
    task = _task()
    size = task.train.public_size
    caught = _kinds(lambda: CALLS[name](task, delta=1.01 / size, seed=1))
    assert f"1/{size}" in str(caught[cautions.LargeDeltaWarning].message)
    assert cautions.KnownRandomnessWarning in caught
    assert "untrained default" in str(caught[cautions.UntrainedReleaseWarning].message)
    for kind in (cautions.LargeDeltaWarning, cautions.UntrainedReleaseWarning):
        # The first call that is none of the library's.
        assert caught[kind].filename in (flat_call.__file__, __file__)


def test_a_small_delta_secret_randomness_and_no_run_at_all():
    task, law = _task(), accounting.Poisson(1e-9)
    delta = 0.99 / task.train.public_size
    caught = _kinds(
        lambda: flat_call.tune(
            tuning.RandomRepetitions, task, SPACE, repetitions=law, delta=delta, **RUN
        )
    )
    assert list(caught) == [cautions.UntrainedReleaseWarning]
