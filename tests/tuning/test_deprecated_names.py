"""Functions of earlier versions work, and warn once, naming what to call."""

import importlib

import pytest

from dpjax import pareto, tuning
from dpjax.tuning import deprecated_names

NAMES = deprecated_names.TUNERS


def _called(name, monkeypatch, **given):
    seen = []
    monkeypatch.setattr(deprecated_names, "tune", lambda *args, **named: seen.append((args, named)))
    with pytest.warns(DeprecationWarning) as caught:
        getattr(tuning, name)("task", "space", **given)
    (warning,) = caught
    assert warning.filename == __file__
    ((task, space, tuner), named), *_ = seen
    assert (task, space) == ("task", "space")
    return tuner, named, str(warning.message)


@pytest.mark.parametrize("name", NAMES)
def test_each_is_tune_with_its_tuner_and_says_so(name, monkeypatch):
    own = {"threshold": 0.5} if name == "threshold_stopping" else {}
    tuner, named, said = _called(name, monkeypatch, epsilon=2.0, steps=7, **own)
    if name == "permute_and_flip":
        assert tuner == tuning.Exponential(mechanism=name)
    else:
        assert tuner == tuning.registered_tuners()[name](**own)
    assert named == {"epsilon": 2.0, "run": tuning.RunOptions(steps=7)}
    assert f"tuning.{type(tuner).__name__}(" in said and "tuning.tune(" in said


def test_fields_of_the_tuner_reach_it(monkeypatch):
    tuner, named, _ = _called("exponential", monkeypatch, candidates=3, seed=1)
    assert tuner == tuning.Exponential(candidates=3)
    assert named == {"seed": 1, "run": tuning.RunOptions()}


def test_a_tuner_that_is_a_setting_of_another_is_made_as_one():
    with pytest.warns(DeprecationWarning, match="call tuning.Exponential") as caught:
        made = tuning.PermuteAndFlip(0.5, candidates=3)
    assert made == tuning.Exponential(0.5, candidates=3, mechanism="permute_and_flip")
    assert caught[0].filename == __file__


def test_task_and_space_may_be_named(monkeypatch):
    seen = []
    monkeypatch.setattr(deprecated_names, "tune", lambda *args, **named: seen.append(args[:2]))
    with pytest.warns(DeprecationWarning):
        tuning.random_repetitions(space="space", task="task")
    assert seen == [("task", "space")]


def test_pareto_is_found_where_it_was():
    with pytest.warns(DeprecationWarning, match="write `from dpjax import pareto`") as caught:
        assert tuning.pareto.search is pareto.search
    assert caught[0].filename == __file__
    with pytest.warns(DeprecationWarning, match="write `from dpjax import pareto`"):
        moved = importlib.import_module("dpjax.tuning.pareto")
    assert {name: getattr(moved, name) for name in pareto.__all__} == {
        name: getattr(pareto, name) for name in pareto.__all__
    }
    del vars(tuning)["pareto"]  # Set by the import.


def test_no_other_name_is_there_and_none_is_listed():
    with pytest.raises(AttributeError, match="no attribute 'last_run'"):
        tuning.last_run  # noqa: B018
    assert not set(NAMES) & set(tuning.__all__)


def test_only_untuned_has_a_space_by_default(toy):
    with pytest.raises(ValueError, match="space must be a Space"):
        tuning.tune(toy.task(), None, tuning.RandomRepetitions(), epsilon=1.0)
