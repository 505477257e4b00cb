"""What only permute-and-flip has: its law, its price, and that it is never worse at one epsilon."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import integrate, stats

from dpjax import accounting, tuning
from dpjax.accounting.mechanisms.exponential import bounded_range_profile
from dpjax.randomness.exact_samplers import exponential_choice, permute_and_flip_choice
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.tuning.tuners.exponential import PermuteAndFlipChoice
from dpjax.tuning.tuners.partitions import AveragedUtility

UTILITY = AveragedUtility(partitions=10, validation_size=30)


def _law(scores, rate):
    """Probabilities of permute-and-flip, every order of the indices enumerated."""
    heads = np.exp(-rate * (max(scores) - np.asarray(scores, dtype=float)))
    law = np.zeros(len(scores))
    for order in itertools.permutations(range(len(scores))):
        reached = 1.0
        for index in order:
            law[index] += reached * heads[index]
            reached *= 1.0 - heads[index]
    return law / math.factorial(len(scores))


def _softmax(scores, rate):
    weights = np.exp(rate * (np.asarray(scores, dtype=float) - max(scores)))
    return weights / weights.sum()


def _pvalue(observed, law):
    return stats.chisquare(observed, observed.sum() * law).pvalue


def test_draws_have_its_law_and_not_another_rates_nor_the_exponential_mechanisms():
    # False alarm at most 1e-5 (fixed seed).
    epsilon, scores = 0.8, [30, 270, 150, 210, 270]
    rate = epsilon / (2 * UTILITY.sensitivity)
    below = HostRandomness(seed=6).uniform_integers(0)
    chosen = PermuteAndFlipChoice(epsilon)
    draws = [chosen.select(scores, UTILITY, below)[0] for _ in range(20_000)]
    observed = np.bincount(draws, minlength=len(scores))
    assert _pvalue(observed, _law(scores, rate)) > 1e-5
    assert _pvalue(observed, _law(scores, rate * 2 / 3)) < 1e-9
    assert _pvalue(observed, _law(scores, rate * 3 / 2)) < 1e-9
    assert _pvalue(observed, _softmax(scores, rate)) < 1e-9


def test_its_law_is_that_of_exponential_noise():
    """Ding et al. 2021: the largest of scores + noise of mean 1 / rate."""
    scores, rate = [3, 5, 4, 0], 0.7
    found = []
    for index, own in enumerate(scores):

        def density(noise, index=index, own=own):
            others = [
                max(0.0, -math.expm1(-rate * (noise + own - score)))
                for place, score in enumerate(scores)
                if place != index
            ]
            return rate * math.exp(-rate * noise) * math.prod(others)

        found.append(integrate.quad(density, max(scores) - own, np.inf, epsabs=1e-12)[0])
    np.testing.assert_allclose(found, _law(scores, rate), atol=1e-9)


def test_few_and_huge_scores():
    below = HostRandomness(seed=1).uniform_integers(0)
    assert permute_and_flip_choice([7], Fraction(1), below) == 0
    # Differences of 10^12 units neither overflow nor take long.
    assert permute_and_flip_choice([0, 10**12, 0], Fraction(1, 10), below) == 1
    for scores, rate in (([], Fraction(1)), ([1], Fraction(0))):
        with pytest.raises(ValueError, match="at least one score"):
            permute_and_flip_choice(scores, rate, below)


def test_every_probability_changes_by_a_factor_of_at_most_e_to_the_epsilon():
    """All scores of up to 4 candidates on a small grid, every move by the sensitivity 2."""
    epsilon, sensitivity = 0.9, 2
    rate, widest = epsilon / (2 * sensitivity), 0.0
    generator = np.random.default_rng(0)
    for size in (2, 3, 4):
        for _ in range(300):
            scores = generator.integers(0, 12, size)
            moved = scores + generator.integers(-sensitivity, sensitivity + 1, size)
            losses = np.log(_law(scores, rate) / _law(moved, rate))
            widest = max(widest, np.abs(losses).max())
            assert np.abs(losses).max() <= epsilon + 1e-12
    assert widest > 0.99 * epsilon


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_the_price_of_the_exponential_mechanism_would_be_too_little(epsilon):
    """Two candidates, equal in one data set and two sensitivities apart in the other."""
    one, other = _law([1, 1], epsilon / 2), _law([0, 2], epsilon / 2)
    losses = np.log(one / other)
    assert losses.max() == pytest.approx(epsilon)
    assert np.ptp(losses) == pytest.approx(epsilon + math.log(2 - math.exp(-epsilon)))
    at = np.linspace(0.0, 0.9 * epsilon, 10)
    deltas = np.maximum(one - np.exp(at[:, None]) * other, 0).sum(axis=1)
    # Its profile exceeds that of bounded range at the higher orders, and stays below the pure one.
    assert np.all(deltas[6:] > 1.1 * bounded_range_profile(epsilon, at[6:]))
    ours = PermuteAndFlipChoice(epsilon).guarantee("add_or_remove_one")
    assert all(delta <= ours.delta(x) for delta, x in zip(deltas, at))


def test_its_guarantee_is_pure_and_costs_more_beside_a_training_than_bounded_range():
    ours = PermuteAndFlipChoice(0.5).guarantee("replace_one")
    assert ours.relation == "replace_one"
    assert ours.epsilon(0.0) == 0.5
    training, delta = accounting.gaussian(2.0), 1e-5
    pure, ranged = (
        accounting.compose(selection, training).epsilon(delta)
        for selection in (
            PermuteAndFlipChoice(0.5).guarantee("add_or_remove_one"),
            accounting.exponential_mechanism(0.5),
        )
    )
    assert pure == accounting.compose(accounting.pure(0.5), training).epsilon(delta)
    assert ranged < 0.97 * pure


@pytest.mark.parametrize("size", [2, 3, 4])
def test_its_expected_utility_is_never_below_the_exponential_mechanisms(size):
    """Every list of scores from 0 to 5, at three rates, both laws exactly."""
    best_ratio = 0.0
    for scores in itertools.combinations_with_replacement(range(6), size):
        values = np.asarray(scores, dtype=float)
        for rate in (0.1, 0.7, 3.0):
            flip, weighted = _law(scores, rate), _softmax(scores, rate)
            assert flip @ values >= weighted @ values - 1e-12
            regret = max(scores) - flip @ values
            if regret > 1e-9:
                best_ratio = max(best_ratio, (max(scores) - weighted @ values) / regret)
    # McKenna & Sheldon: half the expected error at best.
    assert 1.9 < best_ratio <= 2.0 + 1e-9


def test_the_price_that_is_stated_is_of_the_rate_that_is_drawn():
    described = PermuteAndFlipChoice(0.8).describe(UTILITY, 1e-5)
    assert described["epsilon_0"] == 0.8
    assert described["rate_for_a_unit"] == pytest.approx(0.8 / (2 * UTILITY.sensitivity))
    assert tuning.Exponential(0.8, mechanism="permute_and_flip").choice == PermuteAndFlipChoice(0.8)


def test_in_the_papers_setting_it_selects_a_little_better_at_one_epsilon():
    """k = 10, epsilon .7, 100 uniform utilities: `docs/threshold_proposals.md`."""
    epsilon, utility = 0.7, AveragedUtility(10, 1000, validation_is_public=True)
    rate = utility.exponential_rate(epsilon)
    generator, below = np.random.default_rng(1), HostRandomness(seed=9).uniform_integers(0)
    chosen = {permute_and_flip_choice: [], exponential_choice: []}
    for _ in range(600):
        utilities = generator.uniform(size=100)
        scores = [round(value * utility.units) for value in utilities]
        for choose, found in chosen.items():
            found.append(utilities[choose(scores, rate, below)])
    flipped, weighted = (np.mean(found) for found in chosen.values())
    # Standard errors .009.
    assert abs(flipped - 0.745) < 0.04 and abs(weighted - 0.742) < 0.04
