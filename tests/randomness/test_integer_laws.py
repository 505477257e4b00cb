"""Integer noise from the host: the exact law, its scale, and the draws that need more bits."""

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from dpjax.accounting.numerics.integer_noise import skellam_noise
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.randomness.integer_laws import NOISES, discrete_gaussian, integer_law

SEEDED = HostRandomness(seed=11)


def _log_probabilities(noise, variance, reach):
    if noise == "skellam":
        return skellam_noise(variance).log_probabilities[: reach + 1]
    k = np.arange(min(reach, int(13.0 * np.sqrt(variance)) + 32) + 1.0)
    logs = -0.5 * k**2 / variance
    return logs - np.log(2.0 * np.exp(logs).sum() - 1.0)


def _pvalue(draws, noise, variance):
    """Chi-square test of draws against the law, tails pooled so that each cell expects over 5."""
    mass = np.exp(_log_probabilities(noise, variance, 10_000))
    values = np.arange(-len(mass) + 1, len(mass))
    mass = np.concatenate([mass[:0:-1], mass])
    keep = mass * len(draws) > 5
    expected = np.append(mass[keep], max(1.0 - mass[keep].sum(), 1e-12)) * len(draws)
    observed = np.array([np.sum(draws == value) for value in values[keep]])
    observed = np.append(observed, len(draws) - observed.sum())
    return stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("variance", [0.3, 3.1, 210.0])
def test_scale_is_right_and_two_thirds_or_three_halves_of_it_are_rejected(noise, variance):
    # False alarm at most 1e-5 (fixed seed); the wrong scales fail by many orders of magnitude.
    draws = integer_law(noise, variance).draw(20_000, SEEDED, stream=3)
    assert _pvalue(draws, noise, variance) > 1e-5
    assert _pvalue(draws, noise, variance * (2 / 3) ** 2) < 1e-9
    assert _pvalue(draws, noise, variance * (3 / 2) ** 2) < 1e-9


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("variance", [0.05, 2.88, 1000.0])
def test_table_is_the_law_accounting_uses(noise, variance):
    law = integer_law(noise, variance)
    cumulative = np.array([value / 2**319 for value in law.cumulative])
    mass = np.exp(_log_probabilities(noise, variance, law.reach))
    np.testing.assert_allclose(
        cumulative[: mass.size], mass[0] + 2 * (np.cumsum(mass) - mass[0]), rtol=1e-11
    )
    # Not only in sum: single probabilities far into the tail.
    single = np.diff([0, *law.cumulative]).astype(float)[1:] / 2.0**320
    count = min(mass.size - 1, single.size - 1)
    deep = np.log(mass[1 : count + 1]) > -190
    np.testing.assert_allclose(single[:count][deep], mass[1 : count + 1][deep], rtol=1e-9)


def test_nothing_beyond_reach_but_less_than_2_to_the_minus_320():
    for variance in (0.05, 3.0, 500.0):
        law = integer_law("skellam", variance)
        edge = skellam_noise(variance, reach=law.reach + 1).log_probabilities[law.reach + 1]
        assert edge < -320 * np.log(2)
        assert law.cumulative[-1] == 1 << 319 and law.heads[-1] == 1 << 63


class _Words:
    """A source whose first words are given."""

    def __init__(self, words, more):
        self._answers = [np.array(words, np.uint64), np.frombuffer(more, np.uint64)]

    def words(self, number, stream):
        answer = self._answers.pop(0)
        assert answer.size == number
        return answer


def test_draws_on_a_boundary_take_more_bits():
    law = integer_law("skellam", 3.0)
    head, full = int(law.heads[2]), law.cumulative[2]
    boundary = full - (head << 256)
    below, above = boundary - 1, boundary
    more = below.to_bytes(32, "little") + above.to_bytes(32, "little")
    words = [head << 1, (head << 1) | 1, 1]
    draws = law.draw(3, _Words(words, more))
    assert draws.tolist() == [-2, 3, 0]
    assert law.refined(head, below) == 2 and law.refined(head, above) == 3


def test_streams_and_secrecy():
    law = integer_law("skellam", 9.0)
    assert np.array_equal(law.draw(50, SEEDED, 1), law.draw(50, SEEDED, 1))
    assert not np.array_equal(law.draw(50, SEEDED, 1), law.draw(50, SEEDED, 2))
    source = HostRandomness()
    assert not np.array_equal(law.draw(50, source), law.draw(50, source))
    # Not seeded: a false alarm once in 1e8 runs, since cells of few draws vary more than the law.
    assert _pvalue(law.draw(20_000, source), "skellam", 9.0) > 1e-9


def test_discrete_gaussian_squares_its_parameter_exactly():
    deviation = 0.1 + 0.2
    for standard_deviation in (3.7, deviation, 25.0):
        draws = discrete_gaussian(standard_deviation, 20_000, SEEDED, stream=5)
        # False alarm at most 1e-5 (fixed seed).
        assert _pvalue(draws, "discrete_gaussian", standard_deviation**2) > 1e-5
        assert _pvalue(draws, "discrete_gaussian", (standard_deviation * 1.5) ** 2) < 1e-9
    exact, rounded = Fraction(deviation) ** 2, deviation**2
    assert exact != Fraction(rounded)
    assert (
        integer_law("discrete_gaussian", exact).cumulative
        != integer_law("discrete_gaussian", rounded).cumulative
    )
