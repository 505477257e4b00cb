"""Selection noise: the discrete Gaussian's law, its scale, and where it comes from."""

import numpy as np
import pytest
from scipy import stats

from dpjax.tuning import host_randomness

SEEDED = host_randomness.HostRandomness(seed=3)


def _pvalue(draws, deviation):
    """Chi-square test of integer draws against the discrete Gaussian with parameter `deviation`."""
    reach = int(4 * deviation) + 1
    values = np.arange(-40 * reach, 40 * reach + 1)
    mass = np.exp(-(values**2) / (2 * deviation**2))
    mass /= mass.sum()
    inside = np.abs(values) <= reach
    expected = np.append(mass[inside], mass[~inside].sum()) * len(draws)
    observed = np.append(
        [np.sum(draws == value) for value in values[inside]], np.sum(np.abs(draws) > reach)
    )
    keep = expected > 5
    expected = np.append(expected[keep], max(expected[~keep].sum(), 1e-9))
    observed = np.append(observed[keep], observed[~keep].sum())
    return stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue


@pytest.mark.parametrize("deviation", [0.4, 1.0, 3.7, 25.0])
def test_scale_is_right_and_two_thirds_or_three_halves_of_it_are_rejected(deviation):
    # False alarm at most 1e-5 (fixed seed); the wrong scales fail by many orders of magnitude.
    draws = host_randomness.discrete_gaussian(deviation, 20_000, SEEDED)
    assert _pvalue(draws, deviation) > 1e-5
    assert _pvalue(draws, deviation * 2 / 3) < 1e-9
    assert _pvalue(draws, deviation * 3 / 2) < 1e-9


def test_operating_system_randomness_has_the_same_law_and_never_repeats():
    source = host_randomness.HostRandomness()
    draws = host_randomness.discrete_gaussian(2.0, 20_000, source)
    assert _pvalue(draws, 2.0) > 1e-9  # not seeded: false alarm once in 1e9 runs
    assert not np.array_equal(draws, host_randomness.discrete_gaussian(2.0, 20_000, source))
    assert source.secret and not SEEDED.secret


def test_table_is_exact_in_the_small():
    table = host_randomness._discrete_gaussian_table(1.0)
    weights = np.exp(-(np.arange(0, 14) ** 2) / 2.0)
    weights[1:] *= 2
    np.testing.assert_allclose(
        np.diff(np.append(0, table.astype(float)))[:6] / 2**63,
        (weights / weights.sum())[:6],
        rtol=1e-10,
        atol=1e-16,
    )
    assert table[-1] == 2**63


def test_seeded_streams_repeat_and_differ_from_each_other():
    first = host_randomness.discrete_gaussian(9.0, 50, SEEDED, stream=1)
    assert np.array_equal(first, host_randomness.discrete_gaussian(9.0, 50, SEEDED, stream=1))
    assert not np.array_equal(first, host_randomness.discrete_gaussian(9.0, 50, SEEDED, stream=2))


@pytest.mark.parametrize("deviation", [0.0, -1.0, float("inf"), float("nan")])
def test_bad_scale_is_refused(deviation):
    with pytest.raises(ValueError):
        host_randomness.discrete_gaussian(deviation, 1, SEEDED)
