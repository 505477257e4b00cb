"""What only the one-shot selector has: its law, its bounded range, and that it beats the loop."""

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from dpjax import accounting
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.tuning.tuners.doubling import DoublingChoice
from dpjax.tuning.tuners.exponential import ExponentialChoice
from dpjax.tuning.tuners.partitions import AveragedUtility

UTILITY = AveragedUtility(partitions=10, validation_size=30)


def _draws(selector, scores, number, stream=0):
    below = HostRandomness(seed=6).uniform_integers(stream)
    return [selector.select(scores, UTILITY, below)[0] for _ in range(number)]


def test_the_law_is_that_of_the_utilities_over_their_sensitivity():
    # One training record moves a utility by 1/10; weights exp(epsilon k u / 2). Errors 1e-5.
    epsilon, utilities = 0.8, np.array([0.1, 0.9, 0.5, 0.7])
    scores = [round(value * UTILITY.units) for value in utilities]
    observed = np.bincount(_draws(ExponentialChoice(epsilon), scores, 8000), minlength=4)
    for factor, accepted in ((1.0, True), (0.5, False), (2.0, False)):
        weights = np.exp(factor * epsilon * 10 * utilities / 2)
        pvalue = stats.chisquare(observed, 8000 * weights / weights.sum()).pvalue
        assert (pvalue > 1e-5) == accepted


def test_any_two_probabilities_change_by_at_most_epsilon_between_neighbours():
    epsilon = 0.8
    rate = float(ExponentialChoice(epsilon).describe(UTILITY, 0.5)["rate_for_a_unit"])
    assert rate == pytest.approx(epsilon / (2 * UTILITY.sensitivity))
    assert Fraction(epsilon) / (2 * UTILITY.sensitivity) == UTILITY.exponential_rate(epsilon)
    generator = np.random.default_rng(0)
    widest = 0.0
    for _ in range(500):
        scores = generator.integers(0, 300, 5)
        moved = scores + generator.integers(-1, 2, 5) * UTILITY.sensitivity
        ratio = rate * (moved - scores)
        widest = max(widest, ratio.max() - ratio.min())
    assert widest == pytest.approx(epsilon)


def test_at_equal_cost_it_selects_better_than_the_loop():
    """k = 10, epsilon .7 spent: mean true utility .742 against the loop's .525."""
    utility = AveragedUtility(10, 1000, validation_is_public=True)
    shot, loop = (
        ExponentialChoice(0.7),
        DoublingChoice(0.1, 0.01, 0.0, "iterations", 7, None),
    )
    assert loop.guarantee("add_or_remove_one").epsilon(1e-5) <= 0.7
    assert shot.guarantee("add_or_remove_one").epsilon(1e-5) <= 0.7
    generator, below = np.random.default_rng(1), HostRandomness(seed=9).uniform_integers(0)
    chosen = {"shot": [], "loop": []}
    for _ in range(300):
        utilities = generator.uniform(size=100)
        scores = [round(value * utility.units) for value in utilities]
        chosen["shot"].append(utilities[shot.select(scores, utility, below)[0]])
        chosen["loop"].append(utilities[loop.select(scores, utility, below)[0]])
    # Standard errors .013 and .017.
    assert abs(np.mean(chosen["shot"]) - 0.742) < 0.055
    assert np.mean(chosen["loop"]) < 0.60 < np.mean(chosen["shot"])


def test_the_guarantee_is_the_bounded_range_one():
    ours = ExponentialChoice(0.7).guarantee("replace_one")
    assert ours.relation == "replace_one"
    assert ours.epsilon(1e-5) == accounting.exponential_mechanism(0.7).epsilon(1e-5)
    assert ours.epsilon(1e-5) < 0.7
