"""The search space: a public law, drawn independently, finite where accounting looks."""

import json

import numpy as np
import pytest
from scipy import stats

from dpjax.tuning.problem import candidates


def test_draws_follow_their_laws():
    # Kolmogorov-Smirnov at 1e-6 with a fixed seed: a wrong scale fails, see below.
    generator = np.random.default_rng(0)
    uniform = candidates.Uniform(2.0, 5.0).sample(4000, generator)
    assert stats.kstest(uniform, stats.uniform(2, 3).cdf).pvalue > 1e-6
    assert stats.kstest(uniform, stats.uniform(2, 2).cdf).pvalue < 1e-6
    logs = np.log(candidates.LogUniform(0.01, 10.0).sample(4000, generator))
    span = np.log(1000.0)
    assert stats.kstest(logs, stats.uniform(np.log(0.01), span).cdf).pvalue > 1e-6
    assert stats.kstest(logs, stats.uniform(np.log(0.01), span * 1.5).cdf).pvalue < 1e-6
    picks = candidates.Choice([1, 2, 4], [0.2, 0.3, 0.5]).sample(4000, generator)
    counts = [np.sum(picks == value) for value in (1, 2, 4)]
    assert stats.chisquare(counts, [800, 1200, 2000]).pvalue > 1e-6


def test_hyperparameters_are_independent_of_each_other():
    space = candidates.Space(a=candidates.Uniform(0, 1), b=candidates.Uniform(0, 1))
    draw = space.sample(4000, np.random.default_rng(1))
    assert abs(np.corrcoef(draw["a"], draw["b"])[0, 1]) < 5 / np.sqrt(4000)


@pytest.mark.parametrize("name", candidates.ACCOUNTED)
def test_what_accounting_depends_on_must_be_finite(name):
    with pytest.raises(ValueError, match="cannot be accounted"):
        candidates.Space({name: candidates.Uniform(1, 2)})
    candidates.Space({name: candidates.Choice([1, 2])})


def test_accounted_settings_are_the_product_with_its_probabilities():
    space = candidates.Space(
        learning_rate=candidates.LogUniform(0.1, 1),
        lot_size=candidates.Choice([16, 32], [0.25, 0.75]),
        steps=candidates.Choice([5, 10]),
    )
    settings = list(space.accounted_settings())
    assert len(settings) == 4
    assert sum(probability for _, probability in settings) == pytest.approx(1)
    assert ({"lot_size": 32.0, "steps": 5.0}, 0.375) in settings
    assert list(candidates.Space(learning_rate=1).accounted_settings()) == [({}, 1.0)]


@pytest.mark.parametrize(
    "text",
    ["uniform(1)", "loguniform(0,1)", "uniform(2,1)", "choice()", "gauss(0,1)", "x", "choice(nan)"],
)
def test_unreadable_laws_are_refused(text):
    with pytest.raises(ValueError):
        candidates.parse_law(text)


@pytest.mark.parametrize("entries", [["0.1"], ["a b=1"], ["a=1", "a=2"], []])
def test_unreadable_spaces_are_refused(entries):
    with pytest.raises(ValueError):
        candidates.parse_space(entries)


def test_a_file_says_what_flags_say(tmp_path):
    path = tmp_path / "space.json"
    path.write_text(json.dumps({"learning_rate": "loguniform(0.1, 1)", "lot_size": [8, 16]}))
    flags = candidates.parse_space(["learning_rate=loguniform(0.1,1)", "lot_size=choice(8,16)"])
    assert candidates.read_space(str(path)) == flags
    for broken in ("[1]", "{", '{"a": "b"}'):
        path.write_text(broken)
        with pytest.raises(ValueError):
            candidates.read_space(str(path))
    with pytest.raises(ValueError, match="cannot read the search space"):
        candidates.read_space(str(tmp_path / "absent.json"))


def test_steps_and_epochs_exclude_each_other():
    with pytest.raises(ValueError, match="both steps and epochs"):
        candidates.Space(steps=1, epochs=2)
