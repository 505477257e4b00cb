"""One candidate's run: what it is told, what it is trained by, what is kept of it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import accounting, training, tuning
from dpjax.tuning import Records, Task, runner
from dpjax.tuning.problem.run_settings import RunSetting
from dpjax.tuning.steps import Material

RECORDS = Records((np.arange(6.0, dtype=np.float32),), public_size=6, size_bound=6)


def _task(**changes):
    parts = dict(
        initial=lambda key: {"w": jax.random.normal(key, ()), "fixed": jnp.array(2.0)},
        loss=lambda params, example: (params["w"] - example[0]) ** 2,
        correct=lambda params, example: params["w"] > example[0],
        train=RECORDS,
        validation=dataclasses.replace(RECORDS, arrays=(np.arange(6.0, dtype=np.float32),)),
        trainable=lambda path, leaf: path == ("w",),
    )
    return Task(**(parts | changes))


def _setting(lot_size=3, steps=4):
    return RunSetting(lot_size, steps, "fixed", 6, 6, noise_multiplier=0.0)


def test_runs_are_told_what_they_are_accounted_for():
    drawn = {"learning_rate": np.array([0.1, 0.2]), "lot_size": np.array([2.6, 3.4])}
    told = runner.hyperparameters_of_runs(drawn, [_setting(), _setting(2, 5)])
    assert told["lot_size"].tolist() == [3.0, 2.0] and told["steps"].tolist() == [4.0, 5.0]
    assert told["learning_rate"].tolist() == [0.1, 0.2] and told["clip_norm"].tolist() == [1, 1]
    assert drawn["lot_size"].tolist() == [2.6, 3.4]
    own = drawn | {"clip_norm": np.array([0.5, 2.0])}
    told = runner.hyperparameters_of_runs(own, [_setting()] * 2)
    assert told["clip_norm"].tolist() == [0.5, 2.0]


def test_a_run_is_make_trains_from_its_own_initial_parameters():
    task, setting = _task(), _setting()
    config = runner.config_of_setting(Material(task, training.sgd(), ()), setting)
    assert (config.steps, config.expected_lot_size) == (4, 3)
    assert config.relation == setting.relation == "replace_one"
    key = jax.random.key(5)
    told = {"learning_rate": 0.1, "clip_norm": 1.0, "noise_multiplier": 0.5}
    params = runner.run_of(task, config)(key, told, runner.placed_records(RECORDS))
    initial = task.initial(training.stream(key, "initial"))
    expected = training.make_train(config)(key, told, initial, RECORDS.arrays)
    assert params["w"] == expected["w"] != initial["w"]
    # What is frozen stays.
    assert params["fixed"] == 2.0


@pytest.mark.parametrize("lots", [{}, {"lot_size": tuning.Choice([7, 8])}], ids=["one", "two"])
def test_rows_that_fill_the_records_are_drawn_in_no_lot(lots):
    """What a row of zeros would add is a clip norm; lots have nearly all records."""
    records = Records(np.ones(3, np.float32), public_size=8, size_bound=8)
    task = Task(
        initial=lambda key: jnp.zeros(()),
        loss=lambda params, value: params * jnp.where(value == 0, 1.0, 0.0),
        correct=lambda params, value: params > value,
        train=records,
        validation=dataclasses.replace(records, arrays=np.arange(1.0, 4.0, dtype=np.float32)),
    )
    found = tuning.tune(
        task,
        tuning.Space(learning_rate=tuning.Choice([1.0, 1.5]), clip_norm=1.0, **lots),
        tuning.RandomRepetitions(accounting.Fixed(2), score_noise=1.0),
        run=tuning.RunOptions(lot_size=None if lots else 8, steps=1, noise_multiplier=0.1),
        optimizer=training.sgd(),
        delta=1e-6,
        seed=0,
    )
    assert abs(float(found.release.params)) < 0.3


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_number_that_is_not_finite_is_enough(bad):
    good = {"a": jnp.zeros((2, 3)), "b": jnp.array(4.5)}
    assert runner.all_finite(good)
    assert not runner.all_finite(good | {"b": jnp.array(bad)})
    assert not runner.all_finite(good | {"a": good["a"].at[1, 2].set(bad)})
    seen = runner.scored_run(_task(), {"w": jnp.array(bad), "fixed": 2.0}, RECORDS.arrays)
    assert not seen["finite"]


def test_judged_counts_and_untrained_sees_no_record():
    seen = runner.scored_run(_task(), {"w": jnp.array(2.5)}, RECORDS.arrays)
    assert seen["units"] == 3 and seen["finite"] and seen["params"]["w"] == 2.5
    other = Records((np.full(6, 99.0, np.float32),), public_size=6, size_bound=6)
    first, second = (runner.untrained(_task(train=part)) for part in (RECORDS, other))
    assert isinstance(first["w"], np.ndarray | np.generic) and first["w"] == second["w"]
