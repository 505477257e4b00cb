"""The two oracles: published epsilons, exact small cases, and training as `make_train` trains."""

import dataclasses
import json
import pathlib

import jax
import numpy as np
import pytest

from dpjax import accounting, data, models, pareto, training, tuning
from dpjax.pareto import repeated_runs
from dpjax.pareto.repeated_runs import class_of
from dpjax.tuning.problem.task import total_units

ORACLES = pathlib.Path(__file__).parent / "oracles"
ACCOUNTING_ORACLES = pathlib.Path(__file__).parents[1] / "accounting" / "oracles"
ADULT = pareto.RunShapes(30_956)


def _arrays(rows, *names):
    return {name: np.array([row[name] for row in rows], float) for name in names}


def test_the_authors_recorded_epsilons():
    rows = json.loads((ORACLES / "authors_epsilons.json").read_text())
    settings = _arrays(rows, "epochs", "lot_size", "noise_multiplier")
    theirs = np.array([row["epsilon"] for row in rows])
    ours = pareto.TrainingCost(ADULT, method="rdp_classic")(settings)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


def test_tight_accounting_is_a_third_lower():
    rows = json.loads((ORACLES / "authors_epsilons.json").read_text())
    settings = _arrays(rows, "epochs", "lot_size", "noise_multiplier")
    tight = pareto.TrainingCost(ADULT)(settings)
    better = pareto.TrainingCost(ADULT, method="rdp")(settings)
    theirs = np.array([row["epsilon"] for row in rows])
    assert (tight < better).all() and (better < theirs).all()
    assert (tight < 0.75 * theirs).mean() > 0.8


def test_tight_oracle_of_the_paper_s_settings():
    for row in json.loads((ACCOUNTING_ORACLES / "dpareto_wor_pld.json").read_text()):
        setting = {"epochs": 1, "lot_size": row["m"], "noise_multiplier": row["sigma"]}
        (run,) = pareto.RunShapes(row["n"]).accounted(_arrays([setting], *setting))
        run = dataclasses.replace(run, steps=row["steps"])
        assert run.guarantee().pair.epsilon(1e-5) == pytest.approx(row["eps_wor_pld"], rel=1e-3)


def test_one_by_one_equals_all_at_once_and_the_guarantee():
    settings = {
        "epochs": np.array([1.0, 3.0]),
        "lot_size": np.array([100.0, 40.0]),
        "noise_multiplier": np.array([1.0, 2.0]),
    }
    for sampling in ("fixed", "poisson"):
        cost = pareto.TrainingCost(pareto.RunShapes(500, sampling), delta=1e-3)
        together = cost(settings)
        for place in range(2):
            one = {name: float(values[place]) for name, values in settings.items()}
            assert cost(_arrays([one], *one))[0] == together[place]
            guarantee = cost.guarantee(one)
            assert guarantee.epsilon(1e-3) == pytest.approx(together[place], rel=1e-9)
        relation = "replace_one" if sampling == "fixed" else "add_or_remove_one"
        assert guarantee.relation == relation
    direct = accounting.dp_sgd(0.2, 1.0, 5).epsilon(1e-3)
    assert together[0] == pytest.approx(direct, rel=1e-4)


@pytest.mark.parametrize("method", ["rdp", "rdp_classic"])
def test_every_accounting_charges_lots_that_overflow(method):
    """With probability p a run reveals all: epsilon at delta is that of the run at delta - p."""
    shapes = pareto.RunShapes(60_000, "poisson")
    settings = {
        "epochs": np.array([3.0]),
        "lot_size": np.array([256.0]),
        "noise_multiplier": np.array([1.1]),
    }
    (run,) = shapes.accounted(settings)
    assert 1e-10 < run.failure_probability < 1e-9
    orders = np.arange(2, 513)
    curve = accounting.rdp_grid([256 / 60_000], [1.1], [702], orders)
    left = 1e-9 - run.failure_probability
    (charged,) = pareto.TrainingCost(shapes, 1e-9, method)(settings)
    assert charged == accounting.epsilon_grid(curve, orders, left, method=method)[0]
    assert charged > accounting.epsilon_grid(curve, orders, 1e-9, method=method)[0] + 2e-3
    with pytest.raises(ValueError, match="Poisson lots may overflow"):
        pareto.TrainingCost(shapes, 1e-10, method)


def test_steps_as_the_authors_count_them():
    settings = {"epochs": np.array([4.0, 2.0]), "lot_size": np.array([64.0, 20.0])}
    np.testing.assert_array_equal(ADULT.steps(settings), [4 * 484, 2 * 1548])
    one = {"epochs": np.array([1.0]), "lot_size": np.array([30_956.0])}
    np.testing.assert_array_equal(ADULT.steps(one), [1])


def test_settings_that_are_refused():
    setting = {"epochs": [1.0], "lot_size": [20_000_000.0], "noise_multiplier": [1.0]}
    settings = {name: np.array(values) for name, values in setting.items()}
    with pytest.raises(ValueError, match="lot_size=20000000"):
        pareto.TrainingCost(ADULT)(settings)


RECORDS = 120


@pytest.fixture(scope="module")
def task():
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, 200)
    inputs = generator.normal(size=(200, 4)).astype(np.float32) + labels[:, None]
    loaded = data.from_arrays(
        inputs[:RECORDS], labels[:RECORDS], public_size=RECORDS, classes=2, identified_by="slot"
    )
    scored = data.from_arrays(
        inputs[RECORDS:], labels[RECORDS:], public_size=80, classes=2, identified_by="slot"
    )
    module = models.build_module("mlp", 2, widths=[3])
    return tuning.classification(module, loaded.train, scored.train)


SETTINGS = {
    "epochs": np.array([2.0, 1.0, 3.0]),
    "lot_size": np.array([12.0, 30.0, 14.0]),
    "noise_multiplier": np.array([0.5, 1.0, 2.0]),
    "clip_norm": np.array([1.0, 0.5, 2.0]),
    "learning_rate": np.array([0.1, 0.3, 0.05]),
}


def _accuracy(task, sampling="fixed", optimizer=training.adam, **options):
    shapes = pareto.RunShapes(RECORDS, sampling)
    return pareto.TrainedAccuracy(
        task, shapes, optimizer(), classes=2, **({"repetitions": 2} | options)
    )


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_each_repetition_is_trained_as_make_train_trains_it(task, sampling):
    oracle = _accuracy(task, sampling)
    seeds = np.array([5, 6, 7])
    measured = oracle(SETTINGS, seeds)
    assert measured.shape == (3, 2) and measured.dtype == np.float64
    shapes = pareto.RunShapes(RECORDS, sampling)
    runs = shapes.accounted(SETTINGS)
    for place in range(3):
        train = training.make_train(
            training.TrainConfig(
                loss_fn=task.loss,
                lots=runs[place].lots,
                steps=runs[place].steps,
                expected_lot_size=SETTINGS["lot_size"][place],
                optimizer=training.adam(),
            )
        )
        hyperparameters = {name: values[place] for name, values in SETTINGS.items()}

        @jax.jit
        @jax.vmap
        def right(key, train=train, hyperparameters=hyperparameters):
            initial = task.initial(training.stream(key, "initial"))
            params = train(key, hyperparameters, initial, task.train.arrays)
            return total_units(task, params, task.validation.arrays)

        words = [np.random.SeedSequence((int(seeds[place]), r)).generate_state(2) for r in (0, 1)]
        keys = jax.random.wrap_key_data(np.array(words), impl="threefry2x32")
        np.testing.assert_array_equal(measured[place], np.asarray(right(keys)) / 80)


def test_seeds_decide_and_nothing_else_does(task):
    oracle = _accuracy(task)
    seeds = np.arange(3)
    first = oracle(SETTINGS, seeds)
    np.testing.assert_array_equal(oracle(SETTINGS, seeds), first)
    assert oracle.compilations == 2  # lots of at most 16, and of at most 32
    other = {name: values[::-1] for name, values in SETTINGS.items()}
    np.testing.assert_array_equal(oracle(other, seeds[::-1]), first[::-1])
    assert (oracle(SETTINGS, seeds + 10) != first).any()
    assert oracle.compilations == 2
    narrow = _accuracy(task, side_by_side=1, workers=1)
    np.testing.assert_allclose(narrow(SETTINGS, seeds), first, atol=1.01 / 80)
    with pytest.raises(ValueError, match="share a key"):
        oracle(SETTINGS, np.array([3, 3, 4]))


def test_diverged_runs_are_nan_and_count_as_guessing(task):
    oracle = _accuracy(task, optimizer=training.sgd)
    wild = SETTINGS | {
        "learning_rate": np.array([0.1, 1e38, 0.1]),
        "clip_norm": np.array([1.0, 1e3, 1.0]),
    }
    measured = oracle(wild, np.arange(3))
    np.testing.assert_array_equal(np.isnan(measured).all(axis=1), [False, True, False])
    assert oracle.failed_as == 0.5


def test_classes_of_lots_never_lose_a_record():
    for lot in (1, 8, 9, 16, 17, 59, 60):
        family = class_of(training.FixedLots(RECORDS, lot))
        assert lot <= family.capacity <= max(2 * lot - 1, 1) and family.capacity <= RECORDS // 2
    whole = class_of(training.FixedLots(RECORDS, 100))
    assert whole.capacity == 100


def test_long_runs_compute_little_padding_and_learn_the_same(task, monkeypatch):
    much = repeated_runs._MUCH_WORK
    for lot in range(1, 600):
        lots = training.FixedLots(5000, lot)
        fine, coarse = class_of(lots, much), class_of(lots, much // 1024 - 1)
        assert lot <= fine.capacity < 1.25 * lot + 1 and fine.capacity <= coarse.capacity
        assert coarse.capacity & (coarse.capacity - 1) == 0
    sizes = {class_of(training.FixedLots(5000, lot), much).capacity for lot in range(65, 129)}
    assert sizes == {80, 96, 112, 128}
    seeds, settings = np.arange(3), SETTINGS | {"lot_size": np.array([9.0, 17.0, 19.0])}
    padded = _accuracy(task)
    expected = padded(settings, seeds)
    monkeypatch.setattr(repeated_runs, "_MUCH_WORK", 1)
    tight = _accuracy(task)
    np.testing.assert_allclose(tight(settings, seeds), expected, atol=1.01 / 80)
    assert (padded.compilations, tight.compilations) == (2, 2)  # 16 and 32; 10 and 20.


@pytest.mark.parametrize(
    "options", [{"repetitions": 0}, {"side_by_side": 0}, {"workers": 0}], ids=str
)
def test_numbers_below_one_are_refused(task, options):
    with pytest.raises(ValueError, match="a whole number >= 1"):
        _accuracy(task, **options)
