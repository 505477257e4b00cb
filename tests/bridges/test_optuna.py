"""Optuna's studies: what finished ones cost, and private ones that draw, rank and release."""

import concurrent.futures
import contextlib
import inspect
import json
import os
import re
import stat
import subprocess
import sys

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
from dpjax.randomness import integer_laws  # noqa: E402
from dpjax.tuning import cautions, verification  # noqa: E402

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


def _added(study):
    law = {"rate": FloatDistribution(0.01, 1.0, log=True)}
    study.add_trial(optuna.trial.create_trial(params={"rate": 0.5}, distributions=law, value=1.0))


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


def _private(law=LAW, **changed):
    given = {"base": BASE, "score": SCORE, "repetitions": accounting.Fixed(5), "seed": 1}
    return bridge.PrivateStudy(law, **given | changed)


def test_a_private_study_releases_one_winner_that_verifies(tmp_path):
    url = f"sqlite:///{tmp_path}/curator.db"
    seen = []

    def objective(trial):
        for name, law in LAW.items():
            assert law._contains(law.to_internal_repr(trial.params[name])), name
        assert trial.suggest_float("rate", 0.01, 1.0, log=True) == trial.params["rate"]
        return {"w": np.ones(2)}, 50 + trial.number

    study = _private(storage=url, study_name="private")
    result = study.optimize(objective, on_outcome=seen.append)
    assert len(seen) == 5 and study.ask() is None
    run = accounting.parallel(BASE, accounting.discrete_gaussian(3.0, 1))
    assert result.guarantee.epsilon(DELTA) == accounting.best_of(run, accounting.Fixed(5)).epsilon(
        DELTA
    )
    (trials,) = [optuna.load_study(study_name="private", storage=url).trials]
    assert [one.user_attrs[bridge.EXACT_COUNT] for one in trials] == [50, 51, 52, 53, 54]
    assert [one.value for one in trials] == [one.score for one in seen]
    best = max(range(5), key=lambda i: trials[i].value)
    assert result.curator.winner == best
    assert result.release.hyperparameters == trials[best].params
    result.release.save(tmp_path / "release")
    result.curator.save(tmp_path / "curator")
    path = str(tmp_path / "release" / "guarantee.json")
    assert verification.verify_release(path).epsilon == result.guarantee.stated_epsilon(DELTA)
    assert "private" not in repr(study).replace("not private", "") and "5" not in repr(study)
    with pytest.raises(ValueError, match="pass another study_name"):
        _private(storage=url, study_name="private")
    # The exact counts beside the noisy ones have no price.
    with pytest.raises(ValueError, match="exact counts.*take the price of its result"):
        bridge.price_study(url, base=BASE, most_trials=5)


@pytest.mark.parametrize("kind", ["new", "driver", "open", "storage", "cached", "journal"])
def test_every_file_of_a_storage_is_closed_to_others(tmp_path, kind):
    file, old = tmp_path / "curator.db", os.umask(0o022)
    journal = optuna.storages.journal.JournalFileBackend
    try:
        storage = {
            "new": lambda: f"sqlite:///{file}",
            "open": lambda: file.touch(0o644) or f"sqlite:///{file}",
            "driver": lambda: f"sqlite+pysqlite:///{file}",
            "storage": lambda: optuna.storages.RDBStorage(f"sqlite:///{file}"),
            "cached": lambda: optuna.storages.get_storage(f"sqlite:///{file}"),
            "journal": lambda: optuna.storages.JournalStorage(journal(str(file))),
        }[kind]()
        if kind not in ("new", "driver"):  # Made before we are asked.
            with pytest.raises(ValueError, match=r"open to others \(mode 0644\).*chmod 600"):
                _private(storage=storage)
            file.chmod(0o600)
        _private(storage=storage)
    finally:
        os.umask(old)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with pytest.raises(ValueError, match="pass a file in a folder that can be written"):
        _private(storage=f"sqlite:///{tmp_path}/none/curator.db")


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


@pytest.mark.parametrize(
    ("storage", "why"),
    [
        ("mine.db", "mine.db' is not the URL.*pass sqlite:///mine.db"),
        ("nonsense://mine", "storage cannot be opened.*such as sqlite:"),
    ],
)
def test_what_is_no_url_of_a_storage_is_named(storage, why):
    with pytest.raises(ValueError, match=why):
        _private(storage=storage)


def test_everything_is_drawn_before_the_first_trial_and_ranked_with_noise(monkeypatch):
    asked = []

    def drawn(deviation, number, source, stream=0):
        asked.append((deviation, number, source.secret))
        return np.array([-40, 0, -100])

    monkeypatch.setattr(integer_laws, "discrete_gaussian", drawn)
    law = {"rate": FloatDistribution(0.0, 1.0)}
    study = _private(law, repetitions=accounting.Fixed(3), seed=None)
    assert asked == [(3.0, 3, True)]
    monkeypatch.setattr(accounting.RepetitionLaw, "sample", None)
    monkeypatch.setattr(tuning.Uniform, "sample", None)
    counts, rates = [60, 50, 100], []
    while (trial := study.ask()) is not None:
        with pytest.raises(ValueError, match="candidates are left"):
            study.result()
        rates.append(trial.params["rate"])
        outcome = study.tell(trial, counts[trial.number], model=trial.number)
        assert outcome.candidate == trial.number
        with pytest.raises(ValueError, match="reported already"):
            study.tell(trial, 100)
    result = study.result()
    assert result.release.params == 1
    assert result.release.hyperparameters == {"rate": rates[1]}
    assert result.curator.details["remarks"] == {}
    seeds = {study._search.candidate(i)[0] for i in range(3)}
    assert len(seeds) == 3


def test_trials_that_raise_or_are_pruned_count_and_rank_worst(tmp_path):
    calls = []

    def objective(trial):
        calls.append(trial.number)
        if trial.number == 0:
            raise optuna.TrialPruned
        if trial.number == 1:
            raise RuntimeError("diverged")
        return None if trial.number == 2 else 1

    with pytest.warns(RunsWarning):
        result = _private().optimize(objective)
    assert calls == [0, 1, 2, 3, 4] and result.curator.winner in (3, 4)
    assert set(result.curator.details["remarks"]) == {"0", "1", "2"}
    assert "RuntimeError: diverged" in result.curator.details["remarks"]["1"]
    # Hyperparameters alone are released where no model is returned.
    result.release.save(tmp_path / "release")
    assert {one.name for one in (tmp_path / "release").iterdir()} == {
        "guarantee.json",
        "hyperparameters.json",
    }


def test_a_trial_that_contradicts_what_is_declared_ends_the_study():
    def objective(trial):
        raise bridges.ContradictionError("it took a step more than is charged: charge it")

    study = _private()
    with pytest.raises(RuntimeError, match="a step more than is charged"):
        study.optimize(objective)
    with pytest.raises(ValueError, match="candidates are left"):
        study.result()


def _journal(folder):
    (folder / "journal").touch(0o600)
    backend = optuna.storages.journal.JournalFileBackend(str(folder / "journal"))
    return optuna.storages.JournalStorage(backend)


STORAGES = {
    "memory": lambda folder: optuna.storages.InMemoryStorage(),
    "sqlite": lambda folder: f"sqlite:///{folder}/curator.db",
    "journal": _journal,
}
ONE = {"rate": FloatDistribution(0.01, 1.0, log=True)}


def _written_into(study):
    (*_, last) = study._storage.get_all_trials(study._study_id)
    study._storage.set_trial_param(last._trial_id, "other", 0.25, ONE["rate"])


INTRUDERS = {
    "enqueues": lambda study: study.enqueue_trial({"rate": 0.25}),
    "enqueues what cannot be": lambda study: study.enqueue_trial({"rate": "much"}),
    "runs one": lambda study: study.ask(ONE),
    "adds one that has ended": _added,
    "writes into one that runs": _written_into,
}
MOMENTS = {"before the first": None, "while the first runs": 0, "while the last runs": 2}


@pytest.mark.parametrize("kind", STORAGES)
@pytest.mark.parametrize("who", INTRUDERS)
def test_what_another_writes_into_the_storage_ends_a_private_study(who, kind, tmp_path):
    """A trial that is enqueued by what was seen is adaptive, at the price of an independent one."""
    for place, (moment, at) in enumerate(MOMENTS.items()):
        if at is None and who == "writes into one that runs":
            continue
        (folder := tmp_path / str(place)).mkdir()
        storage = STORAGES[kind](folder)
        study = _private(ONE, repetitions=accounting.Fixed(3), storage=storage, study_name="a")
        other, told = optuna.load_study(study_name="a", storage=storage), []

        def run(study=study, at=at, other=other, told=told):
            if at is None:
                INTRUDERS[who](other)
            while (trial := study.ask()) is not None:
                if trial.number == at:
                    INTRUDERS[who](other)
                told.append(study.tell(trial, 50))

        for call in (run, study.result, study.ask, lambda study=study: study.optimize(lambda t: 1)):
            with pytest.raises(bridges.ContradictionError, match="not drawn.*nothing is") as raised:
                call()
            assert "\n" not in str(raised.value), moment
        assert len(told) == (at or 0)  # What was under way is not taken.


def test_a_process_that_enqueues_ends_a_private_study(tmp_path):
    url = f"sqlite:///{tmp_path}/curator.db"
    study = _private(ONE, storage=url, study_name="a")
    program = f"import optuna; optuna.load_study(study_name='a', storage={url!r}).enqueue_trial"
    calls = []

    def objective(trial):
        calls.append(trial.number)
        if len(calls) == 2:
            subprocess.run([sys.executable, "-c", f"{program}({{'rate': 0.25}})"], check=True)
        return 50

    with pytest.raises(bridges.ContradictionError, match="enqueue nothing"):
        study.optimize(objective)
    assert calls == [0, 1]


@pytest.mark.parametrize("kind", STORAGES)
def test_what_is_trained_with_is_what_was_drawn_and_what_is_released(kind, tmp_path):
    study = _private(storage=STORAGES[kind](tmp_path), study_name="a")
    trained = []

    def objective(trial):
        trial.params["rate"] = 0.25  # Of a copy.
        trial.params.clear()
        with contextlib.suppress(Exception):
            trial.study.enqueue_trial({"rate": 0.25})
        trial.report(0.5 + trial.number, step=2)
        trial.set_user_attr("note", trial.number)
        rate = trial.suggest_float("rate", 0.01, 1.0, log=True)
        trained.append(trial.params | {"rate": rate})
        return {"rate": np.float64(rate)}, 50 + 10 * trial.number

    result = study.optimize(objective)
    assert trained == [study._search.candidate(index)[1] for index in range(5)]
    assert result.release.hyperparameters in trained
    assert result.release.hyperparameters["rate"] == result.release.params["rate"]
    kept = study._study.trials
    assert [one.params for one in kept] == trained
    assert [one.user_attrs["note"] for one in kept] == list(range(5))
    assert [one.intermediate_values for one in kept] == [{2: 0.5 + index} for index in range(5)]
    assert not any(one.system_attrs for one in kept)


def test_an_objectives_trial_leads_to_no_study_and_asking_for_it_ends_the_search():
    trial, seen = (study := _private()).ask(), {}
    found = [trial]
    while found:
        one = found.pop()
        if id(one) not in seen and not isinstance(one, type):
            seen[id(one)] = one
            found += getattr(one, "__dict__", {}).values()
            found += one.values() if isinstance(one, dict) else ()
            found += one if isinstance(one, list | tuple) else ()
    held = (study, study._search, study._study, study._study._storage, study._asked)
    assert len(seen) > 10 and not {id(one) for one in held} & seen.keys()
    shown = {name for name in (*dir(optuna.Trial), "study", "storage") if name[0] != "_"}
    absent = {name for name in shown if not hasattr(trial, name)}
    assert absent == {"study", "storage", "relative_params"}
    for name in ("study", "storage"):
        with pytest.raises(bridges.ContradictionError, match="the trial's own values alone"):
            _private().optimize(lambda trial, name=name: getattr(trial, name).best_trial)


@pytest.mark.parametrize(
    "stranger",
    [
        lambda: _private().ask(),  # Of the same seed, number and values.
        lambda: optuna.create_study().ask(LAW),
        lambda: optuna.trial.FixedTrial({"rate": 0.5}),
        lambda: 0,
        lambda: None,
    ],
)
def test_a_trial_of_another_study_is_refused_and_moves_nothing(stranger):
    study = _private()
    other, own = stranger(), study.ask()
    for call in (
        lambda one: study.tell(one, 99),
        lambda one: study.failed(one, "no luck"),
        study.seed_of,
    ):
        with pytest.raises(ValueError, match="not one of this study's: pass what its ask returned"):
            call(other)
    assert study.tell(own, 50).count == 50
    with pytest.raises(ValueError, match="reported already"):
        study.failed(own, "late")


def test_no_candidate_releases_the_default(monkeypatch):
    nothing = np.zeros(1, dtype=np.int64)
    monkeypatch.setattr(accounting.RepetitionLaw, "sample", lambda *_, **__: nothing)
    study = _private(repetitions=accounting.Poisson(2), default=(default := {"w": np.zeros(1)}))
    with pytest.warns(cautions.UntrainedReleaseWarning):
        result = study.optimize(lambda trial: pytest.fail("no trial may run"))
    assert result.release.params is default
    assert set(result.release.hyperparameters.values()) == {None}


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


def _counted(trial):
    return {"w": np.zeros(2)}, trial.number


def _interrupted_at(place, error=KeyboardInterrupt):
    def objective(trial):
        if trial.number == place and not interrupted:
            interrupted.append(place)
            raise error
        return _counted(trial)

    interrupted = []
    return objective


@pytest.mark.parametrize("place", range(5))
def test_an_interrupted_study_goes_on_and_ends_as_if_it_had_not_been(place):
    whole = _private().optimize(_counted)
    study, objective = _private(), _interrupted_at(place)
    with pytest.raises(KeyboardInterrupt):
        study.optimize(objective)
    result = study.optimize(objective)
    assert result.curator.rows() == whole.curator.rows()
    assert result.release.hyperparameters == whole.release.hyperparameters


def test_by_hand_a_trial_that_was_not_told_is_handed_out_after_the_others():
    study, numbers = _private(), []
    lost = study.ask()
    while (trial := study.ask()) is not None:
        numbers.append(trial.number)
        study.tell(trial, 1)
    with pytest.raises(ValueError, match="ask hands them out again"):
        study.result()
    assert study.ask() is lost
    study.tell(lost, 1)
    assert study.ask() is None and study.ask() is None
    assert sorted([lost.number, *numbers]) == [0, 1, 2, 3, 4]
    assert study.result().release.hyperparameters


def test_trials_asked_for_ahead_are_not_handed_out_twice():
    study = _private()
    ahead = [study.ask() for _ in range(5)]
    assert len(set(map(id, ahead))) == 5 and study.ask() is None
    # Another thread, whose trials these are not, is given none of them.
    with concurrent.futures.ThreadPoolExecutor(1) as other:
        assert [other.submit(study.ask).result() for _ in range(3)] == [None] * 3


def test_a_trial_that_contradicted_is_not_run_again():
    study = _private()
    with pytest.raises(bridges.ContradictionError):
        study.optimize(_interrupted_at(1, bridges.ContradictionError))
    with pytest.raises(ValueError, match="candidates are left"):
        study.optimize(_counted)


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
        ran.append(trial.number)
        return ASKED[asked](trial)

    study = bridge.PrivateStudy(
        {"rate": FloatDistribution(0.01, 1.0, log=True)},
        base=accounting.gaussian(2.0),
        score=bridges.CountedScore("disjoint", 100),
        repetitions=accounting.Fixed(5),
    )
    with pytest.raises(bridges.ContradictionError, match="nothing is released"):
        study.optimize(objective)
    assert ran == [0]


def test_an_counted_of_other_arguments_is_refused_before_the_first_trial():
    with pytest.raises(ValueError, match="pass a function of .trial."):
        _private().optimize(lambda trial, data: 1)
