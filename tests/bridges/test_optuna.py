"""Optuna's studies: what finished ones cost; and objectives as runs that are tuned."""

import concurrent.futures
import inspect
import json
import pickle
import re

import numpy as np
import pytest

optuna = pytest.importorskip("optuna", reason="the extra bridges is not installed")

from optuna.distributions import (  # noqa: E402
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from dpjax import accounting, bridges, tuning  # noqa: E402
from dpjax.bridges import optuna as bridge  # noqa: E402
from dpjax.bridges.selection import RunsWarning  # noqa: E402
from dpjax.releases import verification  # noqa: E402

optuna.logging.set_verbosity(optuna.logging.ERROR)
BASE = accounting.gaussian(4.0)
DELTA = 1e-5


def _objective(trial):
    rate = trial.suggest_float("rate", 0.01, 1.0, log=True)
    if trial.number == 1:
        raise ArithmeticError
    return rate


def _study(sampler, number=6, objective=_objective, **more):
    study = optuna.create_study(sampler=sampler, direction="maximize", **more)
    study.optimize(objective, n_trials=number, catch=(ArithmeticError,))
    return study


@pytest.fixture(scope="module")
def at_random():
    return _study(optuna.samplers.RandomSampler(), pruner=optuna.pruners.NopPruner())


def test_values_that_no_pruner_read_are_no_mark():
    """Reported to a study with a NopPruner they decide nothing; in its storage none is known."""

    def reporting(trial):
        trial.report(0.5, 1)
        return _objective(trial)

    sampler = optuna.samplers.RandomSampler()
    found = _study(sampler, objective=reporting, pruner=optuna.pruners.NopPruner())
    price = bridge.price_study(found, base=BASE, most_trials=6, independent=True)
    assert price.epsilon < _adaptive()
    for again in (found._storage, _study(sampler, objective=reporting)):
        with pytest.raises(ValueError, match="reported intermediate values"):
            bridge.price_study(again, base=BASE, most_trials=6, independent=True)


def _adaptive():
    return accounting.repeat(BASE, 6).epsilon(DELTA)


def test_a_real_study_of_sqlite_costs_the_composition_of_its_trials(tmp_path):
    url = f"sqlite:///{tmp_path}/mine.db"
    _study(optuna.samplers.TPESampler(n_startup_trials=2), storage=url, study_name="mine")
    for where in (url, optuna.storages.RDBStorage(url)):
        price = bridge.price_study(where, base=BASE, delta=DELTA, most_trials=6)
        assert price.epsilon == _adaptive() <= price.statement["epsilon"] < 1.00002 * _adaptive()
    assert json.loads(json.dumps(price.statement)) == price.statement
    assert price.statement["rule"].startswith("composition")
    # Trials that could have run are paid for.
    price = bridge.price_study(url, base=BASE, delta=DELTA, most_trials=9, study_name="mine")
    assert price.epsilon == accounting.repeat(BASE, 9).epsilon(DELTA)
    assert price.statement["most_trials"] == 9
    _study(optuna.samplers.RandomSampler(), storage=url, study_name="other")
    for name in (None, "theirs"):
        with pytest.raises(ValueError, match="studies mine, other: pass study_name"):
            bridge.price_study(url, base=BASE, most_trials=6, study_name=name)
    with pytest.raises(ValueError, match="holds no study"):
        bridge.price_study(optuna.storages.InMemoryStorage(), base=BASE, most_trials=6)


def test_independent_trials_are_the_best_of_a_fixed_number_where_it_is_stated(at_random):
    assert bridge.price_study(at_random, base=BASE, most_trials=6).epsilon == _adaptive()
    price = bridge.price_study(at_random, base=BASE, most_trials=6, independent=True)
    law = accounting.Fixed(6)
    assert price.epsilon == accounting.best_of(BASE, law).epsilon(DELTA) < _adaptive()
    assert sum("STATED BY THE CALLER" in one for one in price.statement["assumptions"]) == 2
    assert price.statement["covers"].startswith("the best trial alone")
    rebuilt = accounting.from_provenance(price.statement["mechanism"])
    assert rebuilt.epsilon(DELTA) == price.epsilon


def _pruned(trial):
    trial.suggest_float("rate", 0.0, 1.0)
    if trial.number == 2:
        raise optuna.TrialPruned
    return 1.0


def _reported(trial):
    trial.report(0.5, step=1)
    return trial.suggest_float("rate", 0.0, 1.0)


def _narrowed(trial):
    return trial.suggest_float("rate", 0.0, 1.0 / (1 + trial.number))


@pytest.mark.parametrize(
    ("sampler", "objective", "why"),
    [
        (optuna.samplers.TPESampler, _objective, "sampler is TPESampler"),
        (optuna.samplers.QMCSampler, _objective, "sampler is QMCSampler"),
        (optuna.samplers.RandomSampler, _pruned, "pruned"),
        (optuna.samplers.RandomSampler, _reported, "intermediate values"),
        (optuna.samplers.RandomSampler, _narrowed, "different ranges"),
    ],
)
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_what_was_not_independent_is_not_priced_as_such(sampler, objective, why):
    study = _study(sampler(), objective=objective)
    with pytest.raises(ValueError, match=why) as raised:
        bridge.price_study(study, base=BASE, most_trials=6, independent=True)
    assert "drop independent" in str(raised.value) and "\n" not in str(raised.value)
    assert bridge.price_study(study, base=BASE, most_trials=6).epsilon == _adaptive()


def test_marks_in_a_storage_and_other_numbers_refuse_independence(at_random):
    grid = _study(optuna.samplers.GridSampler({"rate": [0.1, 0.2, 0.3]}), number=3)
    enqueued = optuna.create_study(sampler=optuna.samplers.RandomSampler())
    enqueued.enqueue_trial({"rate": 0.5})
    enqueued.optimize(_objective, n_trials=1)
    for study, number in ((grid, 3), (enqueued, 1)):
        with pytest.raises(ValueError, match="enqueued, retried or constrained"):
            bridge.price_study(study._storage, base=BASE, most_trials=number, independent=True)
    with pytest.raises(ValueError, match="does not say who sampled.*pass the study with its"):
        bridge.price_study(at_random._storage, base=BASE, most_trials=6, independent=True)
    for number, why in ((7, "fewer trials"), (5, "more than most_trials=5")):
        with pytest.raises(ValueError, match=why):
            bridge.price_study(at_random, base=BASE, most_trials=number, independent=True)


GRID = {"rate": [0.1, 0.2, 0.3], "width": [0.0, 0.5]}
MADE = {
    "GridSampler": lambda: optuna.samplers.GridSampler(GRID),
    "PartialFixedSampler": lambda: optuna.samplers.PartialFixedSampler(
        {"rate": 0.1}, optuna.samplers.RandomSampler()
    ),
    # Looks at results, and leaves no mark.
    "TPESampler, univariate": lambda: optuna.samplers.TPESampler(multivariate=False),
}
SAMPLERS = MADE.keys() | {
    name
    for name in optuna.samplers.__all__
    if isinstance(kind := getattr(optuna.samplers, name), type) and not inspect.isabstract(kind)
}


def _of_two(trial):
    width = trial.suggest_float("width", 0.0, 0.5, step=0.5)
    return width + trial.suggest_float("rate", 0.1, 0.3, step=0.1)


@pytest.mark.parametrize("name", sorted(SAMPLERS))
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_no_sampler_but_the_random_one_is_priced_as_independent(name, kind, tmp_path):
    storage = optuna.storages.InMemoryStorage() if kind == "memory" else f"sqlite:///{tmp_path}/a"
    try:
        sampler = MADE.get(name, getattr(optuna.samplers, name, None))()
        study = _study(sampler, 6, _of_two, storage=storage)
    except ImportError as missing:
        pytest.skip(f"{name} needs {missing.name}")
    number = len(study.trials)
    best = accounting.best_of(BASE, accounting.Fixed(number)).epsilon(DELTA)
    # A storage does not say who sampled: what is not known to be independent is none.
    for given, allowed in ((study, name == "RandomSampler"), (storage, False)):
        if allowed:
            price = bridge.price_study(given, base=BASE, most_trials=number, independent=True)
            assert price.epsilon == best
        else:
            with pytest.raises(ValueError, match="drop independent") as raised:
                bridge.price_study(given, base=BASE, most_trials=number, independent=True)
            assert "\n" not in str(raised.value)
        price = bridge.price_study(given, base=BASE, most_trials=number)
        assert price.epsilon == accounting.repeat(BASE, number).epsilon(DELTA)


def _noted(key):
    return lambda study: study._storage.set_study_system_attr(study._study_id, key, 1)


MARKS = {  # Each one mark, on the study or on one of its trials.
    "a sampler's, on the study": (_noted("qmc:0"), "a sampler stored data in the study"),
    "nobody knows whose, on the study": (_noted("else"), "a sampler stored data in the study"),
    "running": (lambda study: study.ask(), "has not ended"),
    "enqueued": (lambda study: study.enqueue_trial({"rate": 0.5}), "has not ended|enqueued"),
}


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_one_mark_among_random_trials_refuses_independence(mark, first, kind, tmp_path):
    study = optuna.create_study(
        storage=None if kind == "memory" else f"sqlite:///{tmp_path}/a",
        sampler=optuna.samplers.RandomSampler(),
        direction="maximize",
    )
    study.set_metric_names(["accuracy"])  # The user's word, and no sampler's.
    make, why = MARKS[mark]
    ask = {"base": BASE, "independent": True}

    def draw(study):
        study.optimize(lambda trial: trial.suggest_float("rate", 0.01, 1.0, log=True), 3)

    for step in (make, draw) if first else (draw, make):
        step(study)
        if step is draw and not first:
            assert bridge.price_study(study, most_trials=3, **ask).statement["independent"]
    for number in (3, 4):  # Whatever is stated, one of them being true.
        with pytest.raises(ValueError, match=f"{why}|more than most_trials=3|fewer trials") as said:
            bridge.price_study(study, most_trials=number, **ask)
        if number == len(study.trials):
            assert re.search(why, str(said.value))


def test_trials_of_different_cost_are_each_charged_the_dearest():
    """Those that ran may have been chosen by the data: what they did cost is no bound."""

    def objective(trial):
        trial.suggest_categorical("noise", [2.0, 4.0, 8.0])
        trial.suggest_float("rate", 0.0, 1.0)
        return 1.0

    study = _study(optuna.samplers.RandomSampler(seed=1), number=2, objective=objective)
    read = []

    def base(setting):
        read.append(setting)
        return accounting.gaussian(setting["noise"])

    price = bridge.price_study(study, base=base, most_trials=2, cost_depends_on=["noise"])
    dearest = accounting.repeat(accounting.gaussian(2.0), 2).epsilon(DELTA)
    assert price.epsilon == pytest.approx(dearest, rel=1e-9)
    assert read == [{"noise": 2.0}, {"noise": 4.0}, {"noise": 8.0}]
    for names, why in (
        ((), "pass cost_depends_on"),
        (["rate"], "rate is continuous"),
        (["depth"], "no trial has depth"),
    ):
        with pytest.raises(ValueError, match=why):
            bridge.price_study(study, base=base, most_trials=2, cost_depends_on=names)
    with pytest.raises(ValueError, match="base reads 'lot'"):
        bridge.price_study(study, base=lambda h: h["lot"], most_trials=2, cost_depends_on=["noise"])
    with pytest.raises(ValueError, match="drop it"):
        bridge.price_study(study, base=BASE, most_trials=2, cost_depends_on=["noise"])


SIX = {"most_trials": 6}
UNPRICED = [  # What is priced, of the random study and a folder; with what; why not.
    (lambda *_: optuna.create_study(), SIX, "no trial with a value"),
    (
        lambda *_: _study(optuna.samplers.RandomSampler(), 1, lambda trial: float("nan")),
        SIX,
        "no trial with a value",
    ),
    (lambda *_: optuna.create_study(directions=["maximize"] * 2), SIX, "several directions"),
    (lambda random, _: random, {}, "pass most_trials"),
    (lambda random, _: random, {"most_trials": 5}, "more than most_trials=5"),
    (lambda random, _: random, {"most_trials": 6.5}, "whole number"),
    (lambda random, _: random, SIX | {"delta": 2}, "delta must be in"),
    (lambda random, _: random, SIX | {"base": 1.0}, "base must be a Guarantee"),
    (lambda random, _: random, SIX | {"independent": "yes"}, "True or False"),
    (lambda random, _: random, SIX | {"study_name": "a"}, "drop it"),
    (lambda _, folder: f"sqlite:///{folder}/no.db", SIX, "there is no file"),
    (lambda *_: "nonsense://mine", SIX, "no study can be read"),
    (lambda *_: "mine.db", SIX, "mine.db' is not the URL.*pass sqlite:///mine.db"),
    (lambda *_: 7, SIX, "study must be an optuna.Study"),
]


@pytest.mark.parametrize(("study", "more", "why"), UNPRICED)
def test_a_study_that_cannot_be_priced_is_refused_in_one_line(
    study, more, why, at_random, tmp_path
):
    with pytest.raises(ValueError, match=why) as raised:
        bridge.price_study(study(at_random, tmp_path), **{"base": BASE} | more)
    assert "\n" not in str(raised.value) and not list(tmp_path.iterdir())


LAW = {
    "rate": FloatDistribution(0.01, 1.0, log=True),
    "momentum": FloatDistribution(0.0, 0.9, step=0.3),
    "optimizer": CategoricalDistribution(["sgd", "adam", None]),
    "depth": IntDistribution(1, 4),
    "width": IntDistribution(16, 64, step=16),
    "fixed": FloatDistribution(0.5, 0.5),
}
SCORE = bridges.CountedScore("disjoint", 100, noise=3.0)


@pytest.mark.parametrize("more", ["missing", "wider"])
def test_a_cost_that_depends_on_what_some_trials_lack_is_refused(more):
    """How many trials have it, and from which range, may follow from the data."""

    def objective(trial):
        if trial.number != 3 or more == "wider":
            trial.suggest_int("steps", 100, 200 + 100 * (trial.number == 3), step=100)
        return 0.5

    study = optuna.create_study()
    study.optimize(objective, n_trials=5)
    with pytest.raises(ValueError, match="steps is missing in some trials, or had different"):
        bridge.price_study(
            study,
            base=lambda h: accounting.dp_sgd(0.01, 1.0, h.get("steps", 10_000)),
            most_trials=5,
            cost_depends_on=["steps"],
        )


def test_the_law_is_what_optunas_distributions_are():
    candidates = bridge.candidates_of(LAW)
    drawn = candidates.space.sample(4000, np.random.default_rng(0))
    rows = [candidates.values({n: v[i] for n, v in drawn.items()}) for i in range(4000)]
    assert {row["width"] for row in rows} == {16, 32, 48, 64}
    assert all(type(row["width"]) is int and type(row["depth"]) is int for row in rows)
    assert {row["fixed"] for row in rows} == {0.5}
    for name, number in (("depth", 4), ("optimizer", 3), ("momentum", 4), ("width", 4)):
        _, counts = np.unique([str(row[name]) for row in rows], return_counts=True)
        assert len(counts) == number
        assert np.all(np.abs(counts - 4000 / number) < 5 * np.sqrt(4000 / number)), name
    rates = np.log([row["rate"] for row in rows])
    assert abs(rates.mean() - np.log(0.1)) < 5 * np.log(100) / np.sqrt(12 * 4000)


@pytest.mark.parametrize(
    ("law", "why"),
    [
        ({"rate": 0.1}, "must be a distribution"),
        ({}, "distributions is empty: pass at least one, such as .'rate': Float"),
        ({"steps": FloatDistribution(1, 2)}, "steps changes the privacy cost"),
        ([], "must be a mapping"),
    ],
)
def test_what_is_no_law_of_optunas_is_refused(law, why):
    with pytest.raises(ValueError, match=why):
        bridge.candidates_of(law)


def _tune(objective, law=LAW, **changed):
    given = {"base": BASE, "score": SCORE, "repetitions": accounting.Fixed(5), "seed": 1}
    return bridge.tune(objective, law, **given | changed)


def test_a_tuning_by_an_objective_releases_one_winner_that_verifies(tmp_path):
    seen, trained = [], []

    def objective(trial):
        for name, law in LAW.items():
            assert law._contains(law.to_internal_repr(trial.params[name])), name
        trial.params["rate"] = 0.25  # Of a copy.
        trial.report(0.5, step=2)
        trial.set_user_attr("note", 1)
        assert not trial.should_prune()
        rate = trial.suggest_float("rate", 0.01, 1.0, log=True)
        trained.append((trial.seed, trial.params | {"rate": rate}))
        return {"rate": np.float64(rate)}, 50 + len(trained)

    result = _tune(objective, on_outcome=seen.append)
    run = accounting.parallel(BASE, accounting.discrete_gaussian(3.0, 1))
    best = accounting.best_of(run, accounting.Fixed(5))
    assert result.guarantee.epsilon(DELTA) == best.epsilon(DELTA)
    assert [one.count for one in seen] == [51, 52, 53, 54, 55]
    assert result.curator.winner == max(range(5), key=lambda index: seen[index].score)
    assert [values for _, values in trained] == [one.hyperparameters for one in seen]
    assert result.release.hyperparameters == trained[result.curator.winner][1]
    assert result.release.params["rate"] == result.release.hyperparameters["rate"]
    result.release.save(tmp_path / "release")
    path = str(tmp_path / "release" / "guarantee.json")
    assert verification.verify_release(path).epsilon == result.guarantee.stated_epsilon(DELTA)


def test_a_trials_seed_is_that_of_a_run():
    seeds, by_run = [], []
    _tune(lambda trial: seeds.append(trial.seed) or 1)
    given = {"base": BASE, "score": SCORE, "repetitions": accounting.Fixed(5), "seed": 1}
    bridges.tune(lambda seed, h: (None, len(by_run.append(seed) or "1")),
                 bridge.candidates_of(LAW), **given)  # fmt: skip
    assert seeds == by_run and len(set(seeds)) == 5 and max(seeds) >= 2**32


def test_trials_that_raise_or_are_pruned_count_and_rank_worst(tmp_path):
    calls = []

    def objective(trial):
        calls.append(trial.params)
        if len(calls) == 1:
            raise optuna.TrialPruned
        if len(calls) == 2:
            raise RuntimeError("diverged")
        return None if len(calls) == 3 else 1

    with pytest.warns(RunsWarning):
        result = _tune(objective)
    assert len(calls) == 5 and result.curator.winner in (3, 4)
    assert set(result.curator.details["remarks"]) == {"0", "1", "2"}
    assert "RuntimeError: diverged" in result.curator.details["remarks"]["1"]
    # Hyperparameters alone are released where no model is returned.
    result.release.save(tmp_path / "release")
    assert {one.name for one in (tmp_path / "release").iterdir()} == {
        "guarantee.json",
        "hyperparameters.json",
    }


ONE = {"rate": FloatDistribution(0.01, 1.0, log=True)}
CALLS = []
"""What `_interrupted` was called with; a list that it closed over would be bound as well."""


def _interrupted(trial):
    CALLS.append(trial.params)
    if len(CALLS) == 3:
        raise KeyboardInterrupt
    return {"w": np.full(2, trial.suggest_float("rate", 0.01, 1.0, log=True))}, 50


def _another(trial):
    return {"w": np.ones(2)}, 50


def test_an_interrupted_tuning_goes_on_with_the_same_objective_alone(tmp_path):
    CALLS.clear()
    job = tuning.Job(folder=str(tmp_path / "work"))
    with pytest.raises(KeyboardInterrupt):
        _tune(_interrupted, ONE, job=job)
    wider = {"rate": FloatDistribution(0.01, 2.0, log=True)}
    for changed in ({"objective": _another}, {"law": wider}):
        with pytest.raises(ValueError, match="other data or settings"):
            _tune(**{"objective": _interrupted, "law": ONE} | changed, job=job)
    result = _tune(_interrupted, ONE, job=job)
    # None that had ended runs again, the one that was under way does.
    assert len(CALLS) == 6 and CALLS[2] == CALLS[3]
    CALLS[:3] = []
    whole = _tune(_interrupted, ONE)
    assert result.curator.rows() == whole.curator.rows()
    np.testing.assert_array_equal(result.release.params["w"], whole.release.params["w"])


class _Pickles(concurrent.futures.Executor):
    """Sends calls as a pool of processes does, and stays in this one."""

    def submit(self, call, *given):
        call, given = pickle.loads(pickle.dumps((call, given)))
        (future := concurrent.futures.Future()).set_result(call(*given))
        return future


def test_an_objective_can_be_sent_to_another_process():
    result = _tune(_another, ONE, executor=_Pickles())
    assert result.curator.rows() == _tune(_another, ONE).curator.rows()


def test_an_objectives_trial_leads_to_no_study_and_no_other_run():
    seen, names = {}, {"study", "storage", "number"}

    def objective(trial):
        found = [trial]
        while found:
            one = found.pop()
            if id(one) not in seen and not isinstance(one, type):
                seen[id(one)] = one
                found += getattr(one, "__dict__", {}).values()
                found += one.values() if isinstance(one, dict) else ()
                found += one if isinstance(one, list | tuple) else ()
        shown = {name for name in (*dir(optuna.Trial), *names) if name[0] != "_"}
        assert {name for name in shown if not hasattr(trial, name)} == names | {"relative_params"}
        return 1

    _tune(objective)
    kinds = {type(one).__name__ for one in seen.values()}
    assert len(seen) > 10 and not kinds & {"Study", "Search", "Selection", "Generator"}
    for name in names:
        ran = []
        with pytest.raises(
            bridges.ContradictionError, match="trial.seed alone; nothing is"
        ) as said:
            _tune(lambda trial, name=name, ran=ran: ran.append(1) or getattr(trial, name))
        assert ran == [1] and "\n" not in str(said.value)


ASKED = {
    "a name": lambda trial: trial.suggest_float("lr", 0.01, 1.0),
    "no log": lambda trial: trial.suggest_float("rate", 0.01, 1.0),
    "another range": lambda trial: trial.suggest_float("rate", 0.02, 1.0, log=True),
    "another kind": lambda trial: trial.suggest_int("rate", 1, 2),
    "other choices": lambda trial: trial.suggest_categorical("rate", [0.01, 1.0]),
}


@pytest.mark.parametrize("asked", ASKED)
def test_what_the_law_does_not_have_ends_the_study_at_the_first_trial(asked):
    ran = []

    def objective(trial):
        ran.append(1)
        return ASKED[asked](trial)

    with pytest.raises(bridges.ContradictionError, match="nothing is released"):
        _tune(objective, ONE)
    assert ran == [1]


def test_an_objective_of_other_arguments_is_refused_before_the_first_trial():
    with pytest.raises(ValueError, match="pass a function of .trial."):
        _tune(lambda trial, data: 1)
    with pytest.raises(ValueError, match="objective must be a function"):
        _tune(3)
