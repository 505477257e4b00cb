"""How many candidates there are, and what they are: independent draws of the public laws."""

import numpy as np
import pytest
from scipy import stats

from dpjax import accounting
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.tuning import Choice, LogUniform, RunOptions, Space
from dpjax.tuning.private_runs import execute
from dpjax.tuning.selection import BestOf, FirstAbove
from dpjax.tuning.steps import Material, Problem, plan_runs

EXECUTIONS = 1500
QUALITIES = (0.1, 0.3, 0.5, 0.7, 0.9)
LAWS = {
    "Poisson, none in four of ten": (BestOf(accounting.Poisson(0.9)), accounting.Poisson(0.9)),
    "a coin before every run": (FirstAbove(0.5, 0.4), None),
    "geometric, cut": (
        BestOf(accounting.AtMost(accounting.Geometric(2), 4)),
        accounting.AtMost(accounting.Geometric(2), 4),
    ),
}


@pytest.mark.parametrize("name", LAWS)
def test_k_and_the_candidates_follow_their_laws_and_every_candidate_counts(name, toy):
    selection, law = LAWS[name]
    task, space = toy.task(), toy.space(*QUALITIES)
    procedure = plan_runs(
        Problem.of(
            task,
            space,
            RunOptions(8, 1, None, 3.0),
            toy.settings["optimizer"],
            delta=1e-6,
            validation_is_public=True,
        ),
        selection,
    )
    executed = execute(
        procedure,
        Material.of(task, space, toy.settings["optimizer"]),
        randomness=HostRandomness(9),
        executions=EXECUTIONS,
        chunk_size=256,
    )
    assert np.array_equal(executed.counts == 0, executed.best.candidate < 0)
    values = np.arange(5)
    mass = 0.4 * 0.6**values if law is None else law.pmf(values)
    expected = EXECUTIONS * np.append(mass, 1 - np.sum(mass))
    seen = np.bincount(np.minimum(executed.counts, 5), minlength=6)
    possible = expected > 1e-6
    assert not np.any(seen[~possible])
    assert stats.chisquare(seen[possible], expected[possible]).pvalue > 1e-6
    quality = executed.hyperparameters["quality"]
    assert len(quality) == executed.counts.sum()
    picks = [np.sum(quality == value) for value in QUALITIES]
    assert stats.chisquare(picks).pvalue > 1e-6
    # With replacement: a neighbour is the same one time in five.
    _check_share(np.sum(quality[1:] == quality[:-1]), len(quality) - 1, 0.2)


def _check_share(number, of, probability):
    assert abs(number - of * probability) < 5 * np.sqrt(of * probability * (1 - probability))


def test_two_candidates_are_alike_as_often_as_the_law_has_it():
    """However few are drawn together; each of a product of laws for itself."""
    space = Space(a=Choice(QUALITIES), b=Choice([1, 2], [0.25, 0.75]), c=LogUniform(0.1, 1.0))
    generator = np.random.default_rng(3)
    number = 3000
    pairs = [space.sample(2, generator) for _ in range(number)]
    same = {name: sum(pair[name][0] == pair[name][1] for pair in pairs) for name in "abc"}
    _check_share(same["a"], number, 0.2)
    _check_share(same["b"], number, 0.25**2 + 0.75**2)
    assert same["c"] == 0
    both = sum(pair["a"][0] == pair["a"][1] and pair["b"][0] == pair["b"][1] for pair in pairs)
    _check_share(both, number, 0.2 * (0.25**2 + 0.75**2))
    for first in QUALITIES:
        seconds = [pair["a"][1] for pair in pairs if pair["a"][0] == first]
        assert stats.chisquare([seconds.count(value) for value in QUALITIES]).pvalue > 1e-6
