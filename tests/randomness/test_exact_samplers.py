"""Exact integer samplers: right laws accepted, wrong scales rejected, bad scales refused."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from dpjax.randomness import exact_samplers
from dpjax.randomness.host_randomness import HostRandomness

DRAWS = 20_000


def _below(stream=0):
    return HostRandomness(seed=11).uniform_integers(stream)


def _laplace_pvalue(draws, scale):
    """Chi-square test of integers against tanh(1/(2 scale)) exp(-|z|/scale), tails pooled."""
    reach = math.ceil(6 * scale) + 1
    values = np.arange(-reach, reach + 1)
    mass = math.tanh(1 / (2 * scale)) * np.exp(-np.abs(values) / scale)
    expected = np.append(mass, 1 - mass.sum()) * len(draws)
    observed = np.append(
        [np.sum(draws == value) for value in values], np.sum(np.abs(draws) > reach)
    )
    keep = expected > 5
    expected = np.append(expected[keep], max(expected[~keep].sum(), 1e-9))
    observed = np.append(observed[keep], observed[~keep].sum())
    return stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue


@pytest.mark.parametrize("scale", [Fraction(1, 3), Fraction(1), Fraction(7, 2), Fraction(25.3)])
def test_discrete_laplace_has_its_scale_and_not_two_thirds_or_three_halves_of_it(scale):
    # False alarm at most 1e-5 (fixed seed); the wrong scales fail by many orders of magnitude.
    below = _below()
    draws = np.array([exact_samplers.discrete_laplace(scale, below) for _ in range(DRAWS)])
    assert _laplace_pvalue(draws, float(scale)) > 1e-5
    assert _laplace_pvalue(draws, float(scale) * 2 / 3) < 1e-9
    assert _laplace_pvalue(draws, float(scale) * 3 / 2) < 1e-9


def test_operating_system_randomness_has_the_same_law_and_never_repeats():
    below = HostRandomness().uniform_integers(0)
    draws = [
        [exact_samplers.discrete_laplace(Fraction(5), below) for _ in range(DRAWS // 4)]
        for _ in range(2)
    ]
    # Not seeded: a false alarm once in 6e7 runs, since cells of few draws vary more than the law.
    assert _laplace_pvalue(np.array(draws[0]), 5.0) > 1e-9
    assert draws[0] != draws[1]


def test_tails_go_on_beyond_any_float32_draw():
    """A float32 Laplace draw never exceeds 16.6 scales; nothing is cut off here."""
    # Randomness that lets the chain of coins for exp(-1) end at an odd place 40 times over.
    script = iter([0, 1] * 40)

    def below(bound):
        if bound == 1:
            return 0
        return next(script, bound - 1)

    assert exact_samplers.discrete_laplace(Fraction(1), below) == -40


@pytest.mark.parametrize("rate", [Fraction(0), Fraction(1, 7), Fraction(1), Fraction(27, 10)])
def test_bernoulli_exp(rate):
    below = _below(1)
    hits = sum(exact_samplers.bernoulli_exp(rate, below) for _ in range(DRAWS))
    expected = math.exp(-rate)
    # 4.5 standard errors: false alarm below 1e-5.
    spread = math.sqrt(max(expected * (1 - expected), 1e-12) / DRAWS)
    assert abs(hits / DRAWS - expected) <= 4.5 * spread


def test_exponential_choice_is_the_softmax_and_not_that_of_another_rate():
    scores, rate, below = [3, 10, 7, 10, -5, 0], Fraction(1, 4), _below(2)
    draws = [exact_samplers.exponential_choice(scores, rate, below) for _ in range(DRAWS)]
    observed = np.bincount(draws, minlength=len(scores))

    def pvalue(factor):
        weights = np.exp(factor * float(rate) * (np.array(scores) - 10))
        return stats.chisquare(observed, DRAWS * weights / weights.sum()).pvalue

    assert pvalue(1.0) > 1e-5
    assert pvalue(2 / 3) < 1e-9 and pvalue(3 / 2) < 1e-9


def test_exponential_choice_of_one_and_of_huge_scores():
    assert exact_samplers.exponential_choice([7], Fraction(1), _below()) == 0
    # Differences of 10^12 units neither overflow nor take long.
    scores = [10**12, 0]
    assert exact_samplers.exponential_choice(scores, Fraction(1, 10), _below()) == 0
