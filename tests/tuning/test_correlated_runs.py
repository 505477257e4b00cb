"""Tuners train with correlated noise: what a run gets is what is charged, stated and proved."""

import copy
import json

import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import accounting, certificate, training, tuning
from dpjax.randomness import host_randomness
from dpjax.tuning import private_runs
from dpjax.tuning.private_runs import plan_runs
from dpjax.tuning.problem.problem import Material, Problem, RunShape
from dpjax.tuning.release_files import NotVerified
from dpjax.tuning.selection import BestOf
from dpjax.tuning.tuner import rebuilt
from dpjax.tuning.verification import check_words

SIZE, RECORDS, STEPS, BANDS = 2000, 100, 7, 3
ONE = tuning.RunOptions(lot_size=20, steps=STEPS, noise_multiplier=1.7, bands=BANDS)


def _task():
    return tuning.Task(
        initial=lambda key: {"w": jnp.zeros(SIZE)},
        loss=lambda params, value: 0.0 * jnp.sum(params["w"]) * value,
        correct=lambda params, value: value > 0,
        train=tuning.Records(np.zeros(RECORDS, np.float32), RECORDS, 110, True),
        validation=tuning.Records(np.ones(5, np.float32), 5, 5, True),
    )


def _of_sums(steps):
    """The std of a run's last prefix sum, for noise of std 1."""
    c = training.BandedNoise(BANDS).strategy(steps)
    matrix = sum(np.diag(np.full(steps - j, c[j]), -j) for j in range(BANDS))
    return np.linalg.norm(np.ones(steps) @ np.linalg.inv(matrix))


@pytest.mark.parametrize("lot_sizes", [[20.0], [10.0, 30.0]], ids=["alike", "unlike"])
def test_every_candidate_gets_the_noise_it_is_charged_for(lot_sizes):
    """Each variance within 5.5 deviations of its law's; that of independent noise is far away."""
    space = tuning.Space(learning_rate=0.5, clip_norm=tuning.Choice([0.5, 2.0]))
    run = ONE
    if len(lot_sizes) > 1:
        space = tuning.Space(
            learning_rate=0.5, clip_norm=1.0, lot_size=tuning.Choice(lot_sizes), steps=STEPS
        )
        run = tuning.RunOptions(noise_multiplier=1.7, bands=BANDS)
    plan = plan_runs(
        Problem.of(_task(), space, run, training.sgd(), delta=1e-6, validation_is_public=True),
        BestOf(accounting.Fixed(1)),
    )
    randomness = host_randomness.HostRandomness(5)
    executed = private_runs.execute(
        plan,
        Material.of(_task(), space, training.sgd()),
        randomness=randomness,
        executions=12,
        chunk_size=4,
    )
    given = {"lot_size": np.full(12, 20.0)} | dict(executed.hyperparameters)
    own = 0.5 * 1.7 * given["clip_norm"] / given["lot_size"]
    noise = np.asarray(executed.best.outputs["w"], np.float64) / own[:, None]

    def excess(std):
        return (np.sum((noise / std) ** 2, axis=1) - SIZE) / np.sqrt(2.0 * SIZE)

    assert np.abs(excess(_of_sums(STEPS))).max() < 5.5
    assert np.abs(excess(np.sqrt(STEPS))).min() > 5.5


def test_a_run_is_priced_by_the_turns_of_a_part():
    shape = RunShape(20, STEPS, "poisson", RECORDS, 110, bands=BANDS)
    lots = shape.lots
    assert lots == training.CyclicPoissonLots(110, 0.6, lots.capacity, BANDS)
    overflows = accounting.truncation_probability(37, 0.6, lots.capacity, STEPS)
    failure = overflows + STEPS * lots.failure_probability_per_draw
    assert failure < 2e-9
    wanted = accounting.dp_sgd(0.6, 1.7, 3, failure_probability=failure)
    assert shape.price(1.7).epsilon(1e-5) == wanted.epsilon(1e-5)
    plain = RunShape(20, STEPS, "poisson", RECORDS, 110)
    assert plain.price(1.7).epsilon(1e-5) < wanted.epsilon(1e-5)


def _statement(run=ONE):
    space = tuning.Space(learning_rate=tuning.Uniform(0.1, 1.0), clip_norm=1.0)
    tuner = tuning.RandomRepetitions(accounting.Geometric(2))
    plan = tuner.plan(Problem.of(_task(), space, run, training.sgd()))
    return json.loads(json.dumps(tuner.statement(plan, secret=True)))


def test_a_statement_carries_the_bands_and_is_verified_and_proved():
    words = _statement()
    (row,) = words["training"]
    assert row["bands"] == words["run_options"]["bands"] == BANDS
    assert not list(certificate.outside(words, certificate.schema()))
    assert check_words(words, rebuilt(words).statement) <= words["epsilon"]
    certificate.check_same(words["mechanism"], certificate.tree_of(words))
    assert "bands" not in json.dumps(_statement(tuning.RunOptions(20, STEPS, None, 1.7)))


EDITS = {
    "fewer bands than run": lambda words: words["training"][0].update(bands=2),
    "no bands where there were some": lambda words: words["training"][0].pop("bands"),
    "more bands": lambda words: words["training"][0].update(bands=4),
    "a part of a band": lambda words: words["training"][0].update(bands=2.5),
    "no band": lambda words: words["training"][0].update(bands=0),
    "other lots": lambda words: words["training"][0].update(sampling="fixed"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_statement_is_neither_verified_nor_proved(edit):
    words = copy.deepcopy(_statement())
    EDITS[edit](words)
    with pytest.raises(NotVerified):
        check_words(words, rebuilt(words).statement)
    with pytest.raises(certificate.Unproved):
        certificate.check_same(words["mechanism"], certificate.tree_of(words))


def test_a_calibrated_run_meets_its_target():
    space = tuning.Space(learning_rate=0.1, clip_norm=1.0)
    run = tuning.RunOptions(lot_size=20, steps=STEPS, bands=BANDS)
    problem = Problem.of(_task(), space, run, training.sgd(), epsilon=3.0)
    plan = tuning.Untuned().plan(problem)
    (setting,) = plan.settings
    assert 2.9 < plan.guarantee.epsilon(1e-5) <= 3.0 and setting.bands == BANDS


def test_several_devices_for_a_run_are_refused_before_the_draw(tmp_path):
    job = tuning.Job(folder=tmp_path / "job", placement="1x2x1")
    with pytest.raises(ValueError, match="bands=3 correlates noise on one device: drop it"):
        tuning.tune(
            _task(), tuning.Space(learning_rate=0.5, clip_norm=1.0), tuning.Untuned(), run=ONE,
            delta=1e-6, validation_is_public=True, job=job,
        )  # fmt: skip
    assert not (tmp_path / "job").exists()
