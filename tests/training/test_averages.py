"""Averages of iterates: against the iterates themselves, in every way a run is trained."""

import dataclasses
import functools

import flat_call
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import small_tasks

from dpjax import accounting, training, tuning
from dpjax.releases import verification
from dpjax.training import averages

ROWS, STEPS = 20, 7
GENERATOR = np.random.default_rng(2)
DATA = (
    GENERATOR.normal(size=(ROWS, 3)).astype(np.float32),
    GENERATOR.normal(size=ROWS).astype(np.float32),
)
START = {"w": np.array([0.5, -0.2, 0.1], np.float32), "frozen": np.float32(3.0)}
GIVEN = {"clip_norm": 1.0, "noise_multiplier": 0.7, "learning_rate": 0.3}
KEPT = (
    training.ExponentialAverage(0.5),
    training.ExponentialAverage(0.99),
    training.TailAverage(0.5),
    training.TailAverage(1.0),
)


def _loss(params, example):
    return 0.5 * (example[0] @ params["w"] - example[1]) ** 2 + 0.0 * params["frozen"]


BASE = training.TrainConfig(
    loss_fn=_loss,
    lots=training.PoissonLots(ROWS, 0.3, ROWS),
    steps=STEPS,
    expected_lot_size=6,
    optimizer=training.adam(),
    trainable={"w": True, "frozen": False},
)


def _train(config, key=0, start=START):
    run = jax.jit(training.make_train(config))
    return jax.device_get(run(jax.random.key(key), GIVEN, start, DATA))


@functools.cache
def _iterates(key=0):
    """(STEPS, 3): the iterate after every step, each of a run that ends there."""
    runs = [_train(dataclasses.replace(BASE, steps=n + 1), key) for n in range(STEPS)]
    return np.stack([run["w"] for run in runs]).astype(np.float64)


def _expected(rule, iterates):
    number = len(iterates)
    if isinstance(rule, training.ExponentialAverage):
        weights = rule.decay ** np.arange(number)[::-1]
    else:
        tail = min(max(1, int(np.round(np.float32(rule.share * number)))), number)
        weights = (np.arange(number) >= number - tail) * 1.0
    return weights @ iterates / weights.sum()


def _check(rule, found, key=0, steps=STEPS):
    expected = _expected(rule, _iterates(key)[:steps])
    np.testing.assert_allclose(found["w"], expected, rtol=3e-5, atol=1e-6)
    assert found["frozen"] == START["frozen"]


def _averaged(rule, **more):
    return dataclasses.replace(BASE, average=rule, **more)


ONE_OF_EACH = KEPT[::2]


@pytest.mark.parametrize(
    ("steps", "rule"),
    [*((STEPS, one) for one in KEPT), *((n, one) for n in (1, 2) for one in ONE_OF_EACH)],
)
def test_averages_are_those_of_the_iterates(steps, rule):
    _check(rule, _train(_averaged(rule, steps=steps)), steps=steps)


@pytest.mark.parametrize("rule", ONE_OF_EACH)
def test_runs_over_a_mesh_average_the_same(rule):
    config = _averaged(rule)
    given = {name: np.float32(value) for name, value in GIVEN.items()}
    mesh = training.LotMesh()
    spread = jax.jit(training.make_train(dataclasses.replace(config, mesh=mesh)))
    _check(rule, jax.device_get(spread(*mesh.put((jax.random.key(0), given, START, DATA)))))


@pytest.mark.parametrize("rule", ONE_OF_EACH)
def test_vectorised_runs_keep_their_own(rule):
    run = jax.vmap(training.make_train(_averaged(rule)), in_axes=(0, None, None, None))
    keys = jnp.stack([jax.random.key(number) for number in range(3)])
    found = jax.device_get(jax.jit(run)(keys, GIVEN, START, DATA))
    for number in range(3):
        _check(rule, jax.tree.map(lambda leaf: leaf[number], found), number)  # noqa: B023


def _mixed(steps, rule, folder=None):
    configs = [_averaged(rule, steps=one) for one in steps]
    return training.mixed_sweep(
        configs,
        jnp.stack([jax.random.key(number) for number in range(len(steps))]),
        {name: np.full(len(steps), value) for name, value in GIVEN.items()},
        DATA,
        initial=lambda key: START,
        chunk_size=2,
        steps_per_call=2,
        checkpoints=folder and training.Checkpoints(folder, every_seconds=0.0),
    )


STEPS_OF = (5, 2, STEPS, 1)


@pytest.mark.parametrize("rule", KEPT)
def test_slots_at_steps_of_their_own_and_a_killed_sweep_that_goes_on(rule, tmp_path):
    killed = _mixed(STEPS_OF, rule, tmp_path / "saved")
    next(killed)
    del killed
    met = 0
    for indices, found in _mixed(STEPS_OF, rule, tmp_path / "saved"):
        for row, index in enumerate(indices):
            one = jax.tree.map(lambda leaf: leaf[row], found)  # noqa: B023
            _check(rule, one, int(index), STEPS_OF[index])
            met += 1
    assert met == len(STEPS_OF)


def test_a_save_of_another_average_is_refused(tmp_path):
    killed = _mixed(STEPS_OF, KEPT[0], tmp_path / "saved")
    next(killed)
    del killed
    with pytest.raises(ValueError, match="another sweep"):
        list(_mixed(STEPS_OF, KEPT[1], tmp_path / "saved"))


def test_half_precision_parameters_are_averaged_in_full():
    """Moves of a share of 2^-10 would be lost between bfloat16 numbers near 1."""
    newest = {"w": jnp.asarray([1.0], jnp.bfloat16)}
    average, rule = averages.begin(newest), training.TailAverage(1.0)
    for number in range(1000):
        value = {"w": jnp.asarray([1.0 + (number % 2) / 128], jnp.bfloat16)}
        average = averages.after_step(rule, average, value, np.uint32(number), 1000)
    assert average["w"].dtype == jnp.float32
    assert float(average["w"][0]) == pytest.approx(1.0 + 0.5 / 128, abs=1e-5)
    assert averages.result(average, newest)["w"].dtype == jnp.bfloat16


@pytest.mark.parametrize("rule", KEPT)
def test_shares_are_shares(rule):
    shares = [float(rule.share_of_newest(np.uint32(n), np.uint32(50))) for n in range(50)]
    assert shares[0] == 1.0 and all(0 < one <= 1 for one in shares)


def test_what_came_before_a_tail_is_not_in_it():
    """Nor where it is not finite."""
    newest = {"w": jnp.zeros(1)}
    average, rule = averages.begin(newest), training.TailAverage(0.5)
    for number, value in enumerate((jnp.inf, jnp.nan, 2.0, 4.0)):
        newest = {"w": jnp.full(1, value)}
        average = averages.after_step(rule, average, newest, np.uint32(number), 4)
    assert float(average["w"][0]) == 3.0


def _task(average):
    return dataclasses.replace(small_tasks.linear(), average=average)


def _released(average, tuner):
    with pytest.warns(UserWarning, match="seed"):
        return tuning.tune(
            _task(average), tuning.Space(learning_rate=0.5, clip_norm=1.0), tuner, epsilon=9.0,
            delta=1e-5, run=tuning.RunOptions(lot_size=20, steps=6), optimizer=training.sgd(),
            seed=1,
        )  # fmt: skip


def test_a_release_is_of_the_average_costs_the_same_and_says_so(tmp_path):
    tuner = tuning.RandomRepetitions(accounting.Fixed(1))
    plain, averaged = _released(None, tuner), _released(training.TailAverage(0.5), tuner)
    averaged.release.save(tmp_path / "release")
    assert verification.verify_release(tmp_path / "release" / "guarantee.json").epsilon <= 9.0
    claims = [result.release.statement for result in (plain, averaged)]
    assert claims[1]["optimizer"].pop("released") == training.TailAverage(0.5).words
    assert claims[0] == claims[1]
    kernels = [result.release.params["kernel"] for result in (plain, averaged)]
    assert np.max(np.abs(kernels[0] - kernels[1])) > 1e-3


def test_what_is_scored_is_the_average():
    """Of a run that jumps from one side to the other, the mean alone is right everywhere."""
    records = tuning.Records((np.zeros((8, 1), np.float32),), 8, 9)
    task = tuning.Task(
        initial=lambda key: jnp.float32(1.0),
        loss=lambda params, example: 0.0 * params,
        correct=lambda params, example: jnp.abs(params) < 0.5,
        train=records,
        validation=dataclasses.replace(records, arrays=(np.zeros((8, 1), np.float32),)),
        average=training.TailAverage(1.0),
    )

    def jump(hyperparameters):
        return optax.stateless(lambda updates, params: -2.0 * params)

    for average, right in ((None, 0), (training.TailAverage(1.0), 8)):
        with pytest.warns(UserWarning):
            result = flat_call.tune(
                tuning.RandomRepetitions,
                dataclasses.replace(task, average=average),
                tuning.Space(clip_norm=1.0),
                repetitions=accounting.Fixed(1),
                noise_multiplier=1.0,
                lot_size=4,
                steps=6,
                optimizer=jump,
                delta=1e-6,
                seed=2,
                score_noise=1.0,
            )
        assert result.curator.accuracies[0] == right / 8
