"""The bounded-range profile against brute force over two-point pairs and real mechanisms."""

import itertools
import math

import mpmath
import numpy as np
import pytest

from dpjax.accounting.combine import compose, repeat
from dpjax.accounting.mechanisms.elementary import pure
from dpjax.accounting.mechanisms.exponential import (
    bounded_range_profile,
    bounded_range_rdp,
    exponential_mechanism,
    selection_noise_ratio,
)


def _two_point(epsilon, t):
    """Losses (t, t - epsilon) and their masses under the first distribution."""
    top = (math.exp(epsilon) - math.exp(t)) / math.expm1(epsilon)
    return np.array([t, t - epsilon]), np.array([top, 1 - top])


@pytest.mark.parametrize("epsilon", [0.1, 0.7, 3.0])
def test_profile_is_the_worst_two_point_pair(epsilon):
    at = np.linspace(-1.2 * epsilon, 1.2 * epsilon, 25)
    worst = np.zeros_like(at)
    for t in np.linspace(0, epsilon, 4001):
        losses, masses = _two_point(epsilon, t)
        gains = np.maximum(0, 1 - np.exp(at[:, None] - losses[None, :]))
        worst = np.maximum(worst, gains @ masses)
    ours = bounded_range_profile(epsilon, at)
    assert np.all(ours >= worst - 1e-12)
    np.testing.assert_allclose(ours, worst, atol=2e-7)
    guarantee = exponential_mechanism(epsilon=epsilon)
    np.testing.assert_allclose(guarantee.pair.delta(at), ours, atol=3e-7)
    assert np.all(guarantee.pair.delta(at) >= ours - 1e-13)


def test_renyi_is_the_worst_two_point_pair():
    epsilon = 0.7
    for order in (1.1, 2.0, 5.0, 50.0):
        worst = 0.0
        for t in np.linspace(0, epsilon, 4001):
            losses, masses = _two_point(epsilon, t)
            worst = max(worst, np.log(masses @ np.exp((order - 1) * losses)) / (order - 1))
        ours = bounded_range_rdp(epsilon, np.array([order]))[0]
        assert worst <= ours + 1e-12
        assert ours == pytest.approx(worst, rel=1e-6)


@pytest.mark.parametrize("epsilon", [1e-8, 1e-6, 1e-4, 1e-2, 1.0, 30.0])
def test_renyi_is_never_below_in_high_precision(epsilon):
    """Differences of float64 numbers near one another used to fall short, to 0 at epsilon 1e-8."""
    for order in (1.0001, 1.5, 2.0, 10.0, 1e3, 1e6):
        with mpmath.workdps(60):
            e, a = mpmath.mpf(epsilon), mpmath.mpf(order)
            whole, rest = mpmath.exp(e), mpmath.exp((1 - a) * e)
            top = min(max((a - 1) / a * (whole - rest) / (1 - rest), 1), whole)
            moment = top ** (a - 1) * (whole - rest - top * (1 - rest)) / (whole - 1)
            exact = mpmath.log(moment) / (a - 1)
        found = float(bounded_range_rdp(epsilon, np.array([order]))[0])
        assert exact * (1 - 1e-12) <= found <= exact * (1 + 2e-6)


def test_real_exponential_mechanisms_stay_below():
    generator = np.random.default_rng(0)
    epsilon = 0.9
    at = np.linspace(0, epsilon, 19)
    guarantee = exponential_mechanism(epsilon)
    bound = guarantee.pair.delta(at)
    tightest = 0.0
    for _ in range(3000):
        size = generator.integers(2, 7)
        utilities = generator.uniform(-3, 3, size)
        change = generator.choice([-1.0, 1.0], size)
        laws = []
        for values in (utilities, utilities + change):
            weights = np.exp(epsilon * values / 2)
            laws.append(weights / weights.sum())
        losses = np.log(laws[0] / laws[1])
        assert np.ptp(losses) <= epsilon + 1e-12
        delta = np.maximum(0, 1 - np.exp(at[:, None] - losses[None, :])) @ laws[0]
        assert np.all(delta <= bound + 1e-12)
        tightest = max(tightest, np.max(delta[:-1] / bound[:-1]))
    assert tightest > 0.9


def _adaptive_optimum(epsilon, count, at):
    """Largest delta of `count` adaptively chosen bounded-range mechanisms, by dynamic programming.

    D_k(x) = max_t p(t) D_{k-1}(x - t) + (1 - p(t)) D_{k-1}(x - t + epsilon), D_0 = [1 - e^x]_+.
    """
    grid = np.linspace(-count * epsilon - 1, count * epsilon + 1, 6001)
    values = np.maximum(0, -np.expm1(grid))
    shifts = np.linspace(0, epsilon, 201)
    for _ in range(count):
        best = np.zeros_like(grid)
        for t in shifts:
            losses, masses = _two_point(epsilon, t)
            mixed = sum(
                mass * np.interp(grid - loss, grid, values, left=1.0, right=0.0)
                for loss, mass in zip(losses, masses)
            )
            best = np.maximum(best, mixed)
        values = best
    return np.interp(at, grid, values)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_composition_dominates_the_adaptive_optimum(count):
    epsilon = 0.7
    at = np.linspace(0, count * epsilon, 15)
    composed = repeat(exponential_mechanism(epsilon), count)
    optimum = _adaptive_optimum(epsilon, count, at)
    ours = np.array([composed.delta(x) for x in at])
    assert np.all(ours >= optimum - 2e-4 * (1 - at / at[-1]))
    # And is of use: below composition of what is only known to be pure.
    plain = repeat(pure(epsilon), count)
    assert np.all(ours[:-1] < np.array([plain.delta(x) for x in at[:-1]]))
    assert composed.pair.delta(0.5) < 1.25 * np.interp(0.5, at, optimum)


def test_homogeneous_products_stay_below_exactly():
    """Four equal two-point pairs, all 16 outcomes enumerated, no grid."""
    epsilon, count = 0.5, 4
    composed = repeat(exponential_mechanism(epsilon), count)
    for t in np.linspace(0.01, epsilon - 0.01, 9):
        losses, masses = _two_point(epsilon, t)
        for at in (0.0, 0.4, 1.0, 1.7):
            exact = sum(
                np.prod(masses[list(choice)])
                * max(0.0, 1 - math.exp(at - losses[list(choice)].sum()))
                for choice in itertools.product((0, 1), repeat=count)
            )
            assert exact <= composed.delta(at) + 1e-12


def test_pure_and_cheaper_when_composed():
    guarantee = exponential_mechanism(epsilon=0.7)
    assert guarantee.epsilon(0) == 0.7
    assert guarantee.epsilon(1e-5) <= 0.7
    fifty = repeat(guarantee, 50)
    assert fifty.epsilon(1e-5) < 0.6 * repeat(pure(0.7), 50).epsilon(1e-5)
    assert compose(guarantee, pure(0.2)).epsilon(0) == pytest.approx(0.9)


def test_noise_ratio_warns_of_the_papers_own_setting():
    assert selection_noise_ratio(100, 10, 0.1) == pytest.approx(18.42, abs=0.01)
    assert selection_noise_ratio(100, 1000, 0.1) < 1
    with pytest.raises(ValueError, match="partitions"):
        selection_noise_ratio(100, 0, 0.1)


@pytest.mark.parametrize(("partitions", "epsilon", "mean"), [(10, 0.7, 0.742), (1000, 0.1, 0.976)])
def test_one_shot_selection_beats_the_loop(partitions, epsilon, mean):
    """Mean true utility of the selected of 100 uniform candidates; the loop reaches .525, .959."""
    generator = np.random.default_rng(0)
    utilities = generator.uniform(0, 1, (2000, 100))
    weights = np.exp(epsilon * partitions * utilities / 2)
    selected = np.sum(weights * utilities, axis=1) / np.sum(weights, axis=1)
    # Standard error of the mean of 2000 sets: below 0.001.
    assert np.mean(selected) == pytest.approx(mean, abs=0.01)


@pytest.mark.parametrize("epsilon", [300.0, 1e6, 1e9])
def test_very_large_epsilons_fit_in_memory(epsilon):
    mechanism = exponential_mechanism(epsilon)
    assert mechanism.pair.size < 300_000
    assert 0.999 * epsilon <= mechanism.epsilon(1e-5) <= epsilon
    for at in (0.0, 0.4 * epsilon, 0.9 * epsilon):
        truth = bounded_range_profile(epsilon, at)
        assert truth * (1 - 1e-12) <= mechanism.pair.delta(at) <= truth + 1e-3
