"""What a release says of its training: public words, the numbers that were used, no value."""

import functools
import json
import re

import flat_call
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import small_tasks

from dpjax import accounting, training, tuning
from dpjax.tuning import Choice, Records, Space, Task, statements
from dpjax.tuning.problem import inspection, problem


def _task(seed=0, **more):
    return small_tasks.linear(small_tasks.parts(share=0.5, seed=seed), **more)


class _Callable:
    """An optimiser with a value inside that must not be told."""

    def __init__(self, secret):
        self.secret = secret

    def __call__(self, hyperparameters):
        return optax.sgd(self.secret)


def _own(secret, hyperparameters):
    return optax.sgd(secret)


def test_optimizers_and_schedules_by_name():
    of = inspection.of_optimizer
    assert of(training.adam()) == {
        "name": "dpjax.training.optimizers.adam",
        "learning_rate_schedule": "constant",
    }
    decaying = of(training.momentum(optax.cosine_decay_schedule(1.0, 10)))
    assert decaying["name"].endswith("optimizers.momentum")
    assert decaying["learning_rate_schedule"].endswith("cosine_decay_schedule")
    assert of(training.sgd(lambda step: 1.0))["learning_rate_schedule"].endswith(
        "test_optimizers_and_schedules_by_name"
    )
    # Your own: the name of its code, nothing inside it, no address in memory.
    for own in (_Callable(0.123), functools.partial(_own, 0.123)):
        said = json.dumps(of(own))
        assert "0.123" not in said and not re.search("0x[0-9a-f]{4}", said)
        assert set(of(own)) == {"name"}
    assert of(_Callable(1))["name"].endswith("_Callable")
    own = _Callable(1)
    own.description = {"name": "mine", "learning_rate_schedule": "linear"}
    assert of(own) == own.description


@pytest.mark.parametrize(
    ("trainable", "names"),
    [
        (None, ["bias", "kernel"]),
        (lambda path, leaf: path[-1] == "bias", ["bias"]),
        ({"bias": False, "kernel": True}, ["kernel"]),
    ],
)
def test_trained_parameters_are_those_that_training_changes(trainable, names):
    initial = {"bias": jnp.full(2, 3.0), "kernel": jnp.full((3, 2), 0.5)}
    release = _run(_task(trainable=trainable, initial=initial)).release
    assert release.statement["trained_parameters"] == names
    changed = [name for name in initial if np.any(release.params[name] != initial[name])]
    assert changed == names


def _run(task, space=None, **more):
    arguments = dict(
        repetitions=accounting.Fixed(1),
        noise_multiplier=2.0,
        delta=1e-6,
        lot_size=10,
        steps=2,
        optimizer=training.sgd(),
        seed=5,
    )
    space = space or Space(learning_rate=0.5)
    for name in set(arguments) & set(space.parameters):
        del arguments[name]
    return flat_call.tune(tuning.RandomRepetitions, task, space, **arguments | more)


def test_lot_size_and_steps_are_released_as_they_were_used():
    space = Space(learning_rate=0.5, lot_size=Choice([9.6]), steps=Choice([2.4]))
    result = _run(_task(), space)
    assert result.release.hyperparameters == {"learning_rate": 0.5, "lot_size": 10, "steps": 2}
    assert all(type(result.release.hyperparameters[name]) is int for name in ("lot_size", "steps"))
    (setting,) = result.release.statement["training"]
    assert (setting["lot_size"], setting["steps"]) == (10, 2)
    # The law stays the law; the curator sees what was drawn.
    law = result.release.statement["candidates_drawn_from"]["lot_size"]
    assert law["values"] == [9.6]
    assert result.curator.hyperparameters["lot_size"].tolist() == [9.6]
    assert statements.rounded({"lot_size": None, "epochs": 1.5}) == {
        "lot_size": None,
        "epochs": 1.5,
    }


def test_no_word_depends_on_the_records():
    """Other records of the same public numbers: the same description, but for nothing."""
    first, second = (_run(_task(seed)).release.statement for seed in (0, 5))
    assert json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)
    assert first["optimizer"]["name"] == "dpjax.training.optimizers.sgd"


def test_describing_runs_neither_loss_nor_score():
    described = False

    def loss(params, example):
        assert not described
        return jnp.sum(params["a"]) + params["b"]["c"] * example[0]

    def correct(params, example):
        assert not described
        return example[0] > 0

    records = Records((np.zeros(4, np.float32),), 4, 4)
    task = Task(
        initial=lambda key: {"a": jnp.zeros(3), "b": {"c": jnp.zeros(())}},
        loss=loss,
        correct=correct,
        train=records,
        validation=Records((np.zeros(4, np.float32),), 4, 4),
        description="public words",
    )
    looked_at = problem.Material(task, training.sgd(), ["learning_rate"])
    described = True
    words = looked_at.words("poisson")
    assert words["trained_parameters"] == ["a", "b/c"] and words["model"] == "public words"
