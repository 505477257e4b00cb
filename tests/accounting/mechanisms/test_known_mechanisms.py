"""One (epsilon, delta), a table, Laplace noise, randomised response: against closed forms."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate

from dpjax import accounting

EPSILONS = np.linspace(0.0, 3.0, 61)


def _divergence(p, q, epsilon):
    return float(np.maximum(np.asarray(p) - math.exp(epsilon) * np.asarray(q), 0.0).sum())


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-3), (0.2, 0.1), (0.0, 1e-2)])
def test_the_profile_of_one_epsilon_and_delta(epsilon, delta):
    guarantee = accounting.approximate(epsilon, delta)
    high = math.exp(epsilon) / (1 + math.exp(epsilon))
    p = (1 - delta) * np.array([high, 1 - high])
    for wanted in EPSILONS:
        exact = delta + _divergence(p, p[::-1], wanted)
        assert guarantee.delta(wanted) == pytest.approx(exact, rel=1e-12)
    assert guarantee.epsilon(delta * (1 + 1e-9)) <= epsilon + 1e-12
    assert guarantee.epsilon(delta * 0.999) == math.inf


def test_its_composition_is_that_of_kairouz_oh_and_viswanath():
    """Theorem 3.3 of their paper (2015): delta of k times (epsilon, delta) at (k - 2 i) epsilon."""
    epsilon, delta, times = 0.4, 1e-4, 5
    composed = accounting.repeat(accounting.approximate(epsilon, delta), times)
    for i in range(times // 2 + 1):
        inner = (
            sum(
                math.comb(times, j)
                * (math.exp((times - j) * epsilon) - math.exp((times - 2 * i + j) * epsilon))
                for j in range(i)
            )
            / (1 + math.exp(epsilon)) ** times
        )
        exact = 1 - (1 - delta) ** times * (1 - inner)
        assert composed.delta((times - 2 * i) * epsilon) == pytest.approx(exact, rel=1e-9)


def test_what_may_be_revealed_is_revealed_by_some_run_of_a_selection():
    delta, law = 1e-6, accounting.Geometric(10.0)
    best = accounting.best_of(accounting.approximate(1.0, delta), law)
    # A mechanism that reveals with a score above all others: by any of K runs.
    pmf = np.exp(law.log_pmf(np.arange(0, 400)))
    revealed = 1 - float(np.sum(pmf * (1 - delta) ** np.arange(0, 400)))
    assert best.epsilon(0.99 * revealed) == math.inf
    assert math.isfinite(best.epsilon(3 * revealed))


def test_no_delta_is_not_approximate():
    with pytest.raises(ValueError, match="use accounting.pure"):
        accounting.approximate(1.0, 0.0)


@pytest.mark.parametrize("scale", [0.3, 1.0, 20.0])
def test_laplace_by_integration(scale):
    guarantee = accounting.laplace(scale)
    assert guarantee.epsilon(0) == pytest.approx(1 / scale, rel=1e-15)
    for epsilon in np.linspace(0.0, 0.99 / scale, 12):
        exact = 1 - math.exp((epsilon - 1 / scale) / 2)
        assert exact <= guarantee.delta(epsilon) <= exact * (1 + 1e-3) + 1e-12

    def density(x, centre):
        return math.exp(-abs(x - centre) / scale) / (2 * scale)

    for order in (1.5, 2.0, 7.0):
        total = sum(
            integrate.quad(
                lambda x, a=order: density(x, 0.0) ** a * density(x, 1.0) ** (1 - a), low, high
            )[0]
            for low, high in ((-60 * scale, 0.0), (0.0, 1.0), (1.0, 1.0 + 60 * scale))
        )
        exact = math.log(total) / (order - 1)
        assert exact - 1e-9 <= float(guarantee.rdp(order)) <= exact + 1e-7


def test_many_laplace_numbers_of_almost_no_epsilon_cost_something():
    """Rounding against us: each costs order / (2 scale^2), far below float64's rounding of 1."""
    divergences = accounting.laplace(1e9).rdp([1.01, 2.0, 100.0])
    assert np.all(divergences >= np.array([1.01, 2.0, 100.0]) / 2 * 1e-18)


@pytest.mark.parametrize(("truth", "categories"), [(0.75, 2), (0.5, 4), (0.9, 30)])
def test_randomised_response_by_its_outcomes(truth, categories):
    guarantee = accounting.randomised_response(truth, categories)
    other = (1 - truth) / (categories - 1)
    p = np.full(categories, other)
    p[0] = truth
    q = np.roll(p, 1)
    assert guarantee.relation == "replace_one"
    assert guarantee.epsilon(0) == pytest.approx(math.log(truth / other), rel=1e-12)
    for epsilon in EPSILONS:
        exact = _divergence(p, q, epsilon)
        assert exact * (1 - 1e-12) <= guarantee.delta(epsilon) <= exact + 1e-12
    twice = accounting.repeat(guarantee, 2)
    exact = _divergence(np.outer(p, p).ravel(), np.outer(q, q).ravel(), 0.7)
    assert twice.delta(0.7) == pytest.approx(exact, rel=1e-9)


def test_an_answer_that_is_less_than_chance_is_refused():
    with pytest.raises(ValueError, match="truth_probability must be above 1 / categories"):
        accounting.randomised_response(0.25, 4)


def _largest_profile(rows, epsilon):
    """Largest value at e^epsilon of a profile through the rows, by hand.

    The lower hull of (0, 1), of the rows, and of the mirror images of the rows and of themselves:
    between every two of them that stand on either side, the chord.
    """
    points = [(0.0, 1.0)] + [(math.exp(e), d) for e, d in rows]
    points += [(1 / t, 1 - 1 / t + d / t) for t, d in points[1:]]
    points += [(1e9, min(d for _, d in rows))]
    t = math.exp(epsilon)
    best = 1.0
    for (a, u), (b, v) in itertools.permutations(points, 2):
        if a <= t <= b and b > a:
            best = min(best, u + (v - u) * (t - a) / (b - a))
    return best


@pytest.mark.parametrize(
    "rows",
    [
        [(1.0, 1e-3)],
        [(0.5, 1e-2), (1.0, 1e-3), (2.0, 1e-5)],
        [(0.0, 0.3), (0.1234567, 0.2), (1.5, 1e-6)],
        [(0.5, 1e-3), (1.0, 1e-2)],  # The second row says nothing.
        [(0.3, 0.4), (3.0, 0.0)],
    ],
)
def test_a_table_is_the_largest_profile_through_its_rows(rows):
    epsilons, deltas = zip(*rows)
    guarantee = accounting.profile_table(epsilons, deltas)
    for epsilon in np.append(EPSILONS, epsilons):
        exact = _largest_profile(rows, epsilon)
        assert exact * (1 - 1e-12) - 1e-15 <= guarantee.delta(epsilon)
        assert guarantee.delta(epsilon) <= exact + 2e-4 * (exact > min(deltas)) + 1e-12
    if deltas[-1] == 0.0:
        assert guarantee.epsilon(0) == epsilons[-1]


def test_a_table_of_a_gaussian_costs_at_least_the_gaussian():
    gaussian = accounting.gaussian(1.5)
    epsilons = np.linspace(0.0, 5.0, 26)
    table = accounting.profile_table(epsilons, [gaussian.delta(e) for e in epsilons])
    for one, other in (
        (table, gaussian),
        (accounting.repeat(table, 3), accounting.repeat(gaussian, 3)),
        *(
            (accounting.best_of(table, law), accounting.best_of(gaussian, law))
            for law in (accounting.Geometric(4.0), accounting.Fixed(3))
        ),
    ):
        for delta in (1e-1, 1e-2, 1e-3):
            assert other.epsilon(delta) - 1e-9 <= one.epsilon(delta) <= 1.2 * other.epsilon(delta)


def test_a_table_that_is_none_is_refused():
    for epsilons, deltas, words in (
        ([1.0, 0.5], [1e-3, 1e-5], "epsilons must ascend"),
        ([-1.0], [1e-3], "epsilons must ascend"),
        ([1.0], [1.0], "deltas must be in"),
        ([1.0, 2.0], [1e-3], "two lists of one length"),
    ):
        with pytest.raises(ValueError, match=words):
            accounting.profile_table(epsilons, deltas)
