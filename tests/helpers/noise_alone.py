"""A task that learns nothing, so that what it releases is noise; and statements of its tunings."""

import copy
import json

import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import accounting, certificate, training, tuning
from dpjax.randomness import host_randomness
from dpjax.releases.release_files import NotVerified
from dpjax.releases.rules import rebuilt
from dpjax.releases.verification import check_words
from dpjax.tuning import private_runs
from dpjax.tuning.private_runs import plan_runs
from dpjax.tuning.problem.problem import Material, Problem
from dpjax.tuning.selection import BestOf

SIZE, RECORDS = 2000, 100


def task():
    return tuning.Task(
        initial=lambda key: {"w": jnp.zeros(SIZE)},
        loss=lambda params, value: 0.0 * jnp.sum(params["w"]) * value,
        correct=lambda params, value: value > 0,
        train=tuning.Records(np.zeros(RECORDS, np.float32), RECORDS, 110, True),
        validation=tuning.Records(np.ones(5, np.float32), 5, 5, True),
    )


def executed(space, run, executions=12):
    """The hyperparameters, by name, and parameters float64 (executions, SIZE) of one run each."""
    plan = plan_runs(
        Problem.of(task(), space, run, training.sgd(), delta=1e-6, validation_is_public=True),
        BestOf(accounting.Fixed(1)),
    )
    found = private_runs.execute(
        plan,
        Material.of(task(), space, training.sgd()),
        randomness=host_randomness.HostRandomness(5),
        executions=executions,
        chunk_size=4,
    )
    return dict(found.hyperparameters), np.asarray(found.best.outputs["w"], np.float64)


def excess(noise, std):
    """By how many deviations squares of noise (n, SIZE) exceed those of a std, or of stds (n,)."""
    relative = noise / np.reshape(std, (-1, 1))
    return (np.sum(relative**2, axis=1) - SIZE) / np.sqrt(2.0 * SIZE)


def statement(run, space=None):
    """The words of a tuning with these options of a run."""
    space = space or tuning.Space(learning_rate=tuning.Uniform(0.1, 1.0), clip_norm=1.0)
    tuner = tuning.RandomRepetitions(accounting.Geometric(2))
    plan = tuner.plan(Problem.of(task(), space, run, training.sgd()))
    return json.loads(json.dumps(tuner.statement(plan, secret=True)))


def assert_verified_and_proved(words):
    assert not list(certificate.outside(words, certificate.schema()))
    assert check_words(words, rebuilt(words).statement) <= words["epsilon"]
    certificate.check_same(words["mechanism"], certificate.tree_of(words))


def assert_neither_verified_nor_proved(words, edit):
    """The words after `edit` changed them."""
    words = copy.deepcopy(words)
    edit(words)
    with pytest.raises(NotVerified):
        check_words(words, rebuilt(words).statement)
    with pytest.raises(certificate.Unproved):
        certificate.check_same(words["mechanism"], certificate.tree_of(words))


def calibrated(run):
    """The plan and setting of an untuned run whose noise is calibrated to epsilon 3."""
    space = tuning.Space(learning_rate=0.1, clip_norm=1.0)
    plan = tuning.Untuned().plan(Problem.of(task(), space, run, training.sgd(), epsilon=3.0))
    (setting,) = plan.settings
    assert 2.9 < plan.guarantee.epsilon(1e-5) <= 3.0
    return plan, setting


def assert_refused_on_several_devices(run, match, tmp_path):
    """Before the draw: nothing is in the folder."""
    job = tuning.Job(folder=tmp_path / "job", placement="1x2x1")
    with pytest.raises(ValueError, match=match):
        tuning.tune(
            task(), tuning.Space(learning_rate=0.5, clip_norm=1.0), tuning.Untuned(), run=run,
            delta=1e-6, validation_is_public=True, job=job,
        )  # fmt: skip
    assert not (tmp_path / "job").exists()
