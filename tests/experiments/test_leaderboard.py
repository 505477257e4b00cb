"""The leaderboard: pairs by seed, equal totals, statements beside the rows, attempts made once."""

import json
import pathlib

import jax
import numpy as np
import pytest

from dpjax import tuning
from dpjax.tuning import verification
from dpjax.tuning.tuner import rebuilt
from experiments.figures.leaderboard import contests, leaderboard, methods
from experiments.figures.rows import interval, read_rows

COMMITTED = pathlib.Path(__file__).parents[2] / "docs" / "figures" / "leaderboard"


def _rows(accuracies):
    return [
        dict(contest="c", epsilon=2.0, method=name, seed=seed, accuracy=accuracy)
        for name, of_seeds in accuracies.items()
        for seed, accuracy in of_seeds.items()
    ]


def test_differences_are_of_one_seed_and_of_seeds_that_both_have():
    rows = _rows({methods.UNTUNED: {0: 0.5, 1: 0.7, 3: 0.1}, "other": {1: 0.8, 0: 0.4, 2: 0.9}})
    found = leaderboard.differences(rows, "c", 2.0, "other")
    np.testing.assert_allclose(found, [-0.1, 0.1])
    assert not len(leaderboard.differences(rows, "c", 1.0, "other"))


def test_intervals_are_students():
    mean, half = interval(np.array([0.0, 1.0, 2.0]))
    # t of 2 degrees of freedom at .975 is 4.302653; the deviation is 1.
    assert mean == 1.0 and half == pytest.approx(4.302653 / 3**0.5, rel=1e-6)
    assert interval([0.3]) == (0.3, 0.0)


def test_attempts_come_evenly_over_seeds():
    options = leaderboard.Options(contests=("digits", "Adult"), methods=("untuned, random rate",))
    made = list(leaderboard.attempts("full", options))
    assert len(made) == len(set(made)) == 2 * 20 * 4
    assert made[:5] == [("digits", 0, e, "untuned, random rate") for e in (0.5, 1.0, 2.0, 4.0)] + [
        ("digits", 1, 0.5, "untuned, random rate")
    ]
    every = leaderboard.Options(methods=("untuned rule",))
    assert {one[0] for one in leaderboard.attempts("quick", every)} == {"digits"}
    assert {one[0] for one in leaderboard.attempts("quick", options)} == {"digits", "Adult"}


def test_texts_are_invented_alike_each_time_and_tell_their_topic():
    texts = contests.invented_texts(400, 100)
    again = contests.invented_texts(400, 100)
    np.testing.assert_array_equal(texts.train.inputs, again.train.inputs)
    assert texts.classes == 8 and texts.test.number_of_records == 100
    counts = texts.train.inputs * 30**0.5
    np.testing.assert_allclose(counts.sum(axis=1), 30, rtol=1e-5)
    # Texts of one topic share more words than those of two.
    alike = counts @ counts.T
    same = texts.train.labels[:, None] == texts.train.labels[None]
    np.fill_diagonal(same, False)
    others = texts.train.labels[:, None] != texts.train.labels[None]
    assert alike[same].mean() > 1.5 * alike[others].mean()


@pytest.fixture
def small(monkeypatch):
    """A contest of 200 records, with lots of a sixteenth and few steps."""
    from dpjax import data

    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, 260)
    inputs = generator.normal(size=(260, 3)) + labels[:, None]
    records = data.from_arrays(
        inputs[:200], labels[:200], test=(inputs[200:], labels[200:]), public_size=200, classes=2
    )
    monkeypatch.setitem(contests.CONTESTS, "small", contests.Contest("small", validation=0.3))
    monkeypatch.setattr(contests, "loaded", lambda name, folders: records)
    monkeypatch.setattr(methods, "_run", lambda task: tuning.RunOptions(lot_size=12, steps=4))
    monkeypatch.setattr(methods, "PARTITIONS", 4)
    monkeypatch.setattr(methods, "CANDIDATES", 3)
    yield records
    # Of the whole process: what others compile must not go into this test's folder.
    jax.config.update("jax_compilation_cache_dir", None)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", methods.METHODS)
def test_every_method_spends_the_total_at_most_and_says_so(name, small, tmp_path):
    entry = methods.Entry("small", small, 3.0, seed=1)
    outcome = methods.METHODS[name](entry)
    assert 0.0 <= outcome.accuracy <= 1.0 and outcome.runs >= 0.0
    statement = outcome.result.release.statement
    assert 2.5 < statement["epsilon"] <= 3.0 and statement["delta"] == methods.DELTA
    assert statement["neighbouring_relation"] == "add_or_remove_one"
    # Tuners keep records to score by, but for one; untuned rules train on all.
    rule = statement["selection"]["rule"]
    on_all = rule.startswith("none") or "records" in statement["score"]
    assert ("records" in statement["score"]) == name.endswith("scored on training records")
    trains = statement["training_records"]["public_size"]
    assert trains == (200 if on_all else 140)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_rows_are_gone_on_with_and_have_their_statements(small, tmp_path, monkeypatch):
    monkeypatch.setattr(leaderboard, "EPSILONS", {"full": (2.0,), "quick": (2.0,)})
    monkeypatch.setitem(
        contests.CONTESTS, "small", contests.Contest("small", validation=0.3, seeds=2)
    )
    made = []
    for name in ("untuned rule", "untuned, random rate"):
        one = methods.METHODS[name]
        monkeypatch.setitem(
            methods.METHODS,
            name,
            lambda entry, name=name, one=one: made.append((name, entry.seed)) or one(entry),
        )
    options = leaderboard.Options(
        contests=("small",), methods=("untuned rule",), compile_cache=str(tmp_path / "cache")
    )
    out = tmp_path / "out"
    leaderboard.FIGURE.produce(out, options=options)
    assert made == [("untuned rule", 0), ("untuned rule", 1)]
    both = ("untuned rule", "untuned, random rate")
    leaderboard.FIGURE.produce(out, options=leaderboard.dataclasses.replace(options, methods=both))
    assert made[2:] == [("untuned, random rate", 0), ("untuned, random rate", 1)]
    rows = read_rows(out / "leaderboard.csv")
    assert len(rows) == 4
    for row in rows:
        statement = json.loads((out / "guarantees" / row["guarantee"]).read_text())
        assert statement["epsilon"] <= row["epsilon"] == 2.0


def test_a_release_that_costs_more_than_it_may_is_refused(small, tmp_path):
    outcome = methods.Outcome(0.5, _Released({"epsilon": 2.1}), 1.0, None)
    folder = leaderboard.RowFolder(str(tmp_path), "full")
    entry = methods.Entry("small", small, 2.0, 0)
    with pytest.raises(ValueError, match="random rate costs 2.1, more than 2"):
        leaderboard._guarantee(folder, entry, "untuned, random rate", outcome)
    assert leaderboard._guarantee(folder, entry, methods.HINDSIGHT, outcome) == "none"


class _Released:
    def __init__(self, statement):
        self.release = type("Release", (), {"statement": statement})


def test_committed_rows_rest_on_statements_that_can_be_written_again():
    rows = read_rows(COMMITTED / "leaderboard.csv")
    assert {row["method"] for row in rows} <= set(methods.METHODS)
    files = {(row["guarantee"], row["epsilon"]) for row in rows}
    assert ("none", 0.5) not in files or len(files) > 4
    seen = set()
    for name, epsilon in sorted(files):
        if name == "none":
            continue
        statement = json.loads((COMMITTED / "guarantees" / name).read_text())
        assert statement["epsilon"] <= epsilon and statement["delta"] == methods.DELTA
        rule = statement["selection"]["rule"]
        if rule not in seen:  # One of each kind; they are priced anew.
            seen.add(rule)
            verification.check_words(statement, rebuilt(statement).statement)
