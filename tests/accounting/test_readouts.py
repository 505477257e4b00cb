"""Read-outs of a Guarantee against closed forms: never on the wrong side, and close."""

import math

import numpy as np
import pytest
from dp_accounting import dp_event
from scipy import optimize, special, stats

from dpjax import accounting
from dpjax.accounting import provenance
from dpjax.accounting.numerics.privacy_profile import pair_from_profiles

ALPHAS = np.concatenate([np.geomspace(1e-9, 0.5, 60), 1.0 - np.geomspace(1e-9, 0.5, 60), [0, 1]])


def gaussian_tradeoff(alphas, mu):
    """Dong, Roth & Su 2022, equation 6."""
    return stats.norm.cdf(-stats.norm.ppf(alphas) - mu)


def gaussian_epsilon(mu, delta):
    def excess(epsilon):
        beyond = stats.norm.cdf(mu / 2 - epsilon / mu)
        return beyond - math.exp(epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu)) - delta

    return optimize.brentq(excess, 0.0, 300.0, xtol=1e-12)


@pytest.mark.parametrize("mu", [0.1, 1.0, 4.0])
def test_a_gaussians_tradeoff(mu):
    found = accounting.gaussian(1.0 / mu).tradeoff(ALPHAS)
    exact = gaussian_tradeoff(ALPHAS, mu)
    assert np.all(found <= exact + 1e-15)
    np.testing.assert_allclose(found, exact, atol=1e-6)
    success = accounting.gaussian(1.0 / mu).attack_success(ALPHAS)
    assert np.all(success >= 1.0 - exact) and success[ALPHAS == 1.0] == 1.0


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 8.0])
def test_pure_tradeoffs(epsilon):
    exact = np.maximum(1 - math.exp(epsilon) * ALPHAS, math.exp(-epsilon) * (1 - ALPHAS))
    found = accounting.pure(epsilon).tradeoff(ALPHAS)
    assert np.all(found <= exact + 1e-15)
    np.testing.assert_allclose(found, np.maximum(exact, 0), atol=1e-12)


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 8.0])
def test_a_tradeoff_in_three_pieces(epsilon):
    """Laplace noise (Dong, Roth & Su 2022, Lemma A.6), by dp_accounting's losses."""
    found = accounting.from_dp_event(dp_event.LaplaceDpEvent(1.0 / epsilon)).tradeoff(ALPHAS)
    exact = stats.laplace.cdf(stats.laplace.ppf(1 - ALPHAS) - epsilon)
    assert np.all(found <= exact + 1e-9)
    np.testing.assert_allclose(found, exact, atol=1e-3)


def test_both_directions_of_an_uneven_pair_bound_a_tradeoff():
    """Poisson lots: one step, both directions by integrating the two densities."""
    q, sigma = 0.2, 0.7
    guarantee = accounting.dp_sgd(q, sigma, 1)
    x = np.linspace(-12.0, 13.0, 2001)
    without = stats.norm.sf(x / sigma)
    with_record = (1 - q) * without + q * stats.norm.sf((x - 1) / sigma)
    # Reject where x is large, then where it is small: Neyman and Pearson's tests.
    assert np.all(guarantee.tradeoff(without) <= 1 - with_record + 1e-9)
    assert np.all(guarantee.tradeoff(1 - with_record) <= without + 1e-9)
    beta = np.minimum(
        np.interp(ALPHAS, without[::-1], (1 - with_record)[::-1]),
        np.interp(ALPHAS, (1 - with_record), without),
    )
    np.testing.assert_allclose(guarantee.tradeoff(ALPHAS), beta, atol=2e-4)


def test_a_tradeoff_has_the_shape_of_its_rates():
    guarantee = accounting.gaussian(1.0)
    assert guarantee.tradeoff(0.3).shape == () and guarantee.tradeoff([[0.1, 0.2]]).shape == (1, 2)


@pytest.mark.parametrize("mu", [0.05, 0.5, 2.0, 5.0])
def test_mu_of_a_gaussian(mu):
    exact = accounting.gaussian(1.0 / mu).gaussian_mu()
    assert mu * (1 - 1e-7) <= exact <= mu * (1 + 2e-3)


def test_mu_of_pure_and_of_what_has_none():
    # The trade-off's only corner is at 1 / (1 + e).
    expected = -2 * special.ndtri(1 / (1 + math.e))
    assert accounting.pure(1.0).gaussian_mu(slack=0) == pytest.approx(expected, rel=1e-9)
    assert accounting.pure(0.0).gaussian_mu() == 0.0
    with pytest.raises(ValueError, match="pass a larger slack"):
        accounting.approximate(1.0, 1e-5).gaussian_mu(slack=1e-6)
    with pytest.raises(ValueError, match="pass a larger slack"):
        accounting.gaussian(1.0).gaussian_mu(slack=0)


@pytest.mark.parametrize(
    "guarantee", [accounting.dp_sgd(0.05, 0.8, 40), accounting.zcdp(0.3)], ids=["dp_sgd", "zcdp"]
)
def test_a_profile_is_below_that_of_its_mu(guarantee):
    slack = 1e-8
    mu = guarantee.gaussian_mu(slack)

    def excess(other):
        epsilons = np.linspace(0.0, guarantee.epsilon(1e-9), 200)
        gaussian = stats.norm.cdf(other / 2 - epsilons / other) - np.exp(
            epsilons + stats.norm.logcdf(-other / 2 - epsilons / other)
        )
        return float(np.max(guarantee.pair.delta(epsilons) - gaussian - slack))

    assert excess(mu) <= 1e-10
    assert excess(0.98 * mu) > 0.0  # And no smaller one would do.


@pytest.mark.parametrize(("mu", "records"), [(0.3, 2), (0.5, 4), (0.25, 8), (1.0, 3)])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_a_group_of_a_gaussian_is_a_gaussian_of_as_many_times_its_mu(mu, records, delta):
    exact = gaussian_epsilon(mu * records, delta)
    found = accounting.gaussian(1.0 / mu).group_epsilon(records, delta)
    assert exact - 1e-9 <= found <= exact * 1.002


def test_groups_of_pure_and_one_record():
    guarantee = accounting.pure(0.5)
    assert guarantee.group_epsilon(3) == 1.5
    assert guarantee.group_epsilon(3, 1e-6) <= 1.5
    gaussian = accounting.gaussian(1.0)
    assert gaussian.group_epsilon(1, 1e-5) == gaussian.epsilon(1e-5)
    with pytest.raises(ValueError, match="pass a delta"):
        gaussian.group_epsilon(2)


def test_a_group_costs_no_more_than_the_usual_lemma():
    """Vadhan 2017, Lemma 2.2: (k e, delta (e^{k e} - 1) / (e^e - 1))."""
    guarantee, records = accounting.dp_sgd(0.02, 1.0, 300), 3
    for epsilon in (0.5, 1.0, 1.5):
        delta = guarantee.delta(epsilon) * math.expm1(records * epsilon) / math.expm1(epsilon)
        assert guarantee.group_epsilon(records, delta) <= records * epsilon + 1e-3


def test_a_group_of_two_by_brute_force():
    """A mechanism of three outcomes whose chain of three data sets is written out."""
    near = np.array([0.5, 0.3, 0.2])
    middle = np.array([0.3, 0.4, 0.3])
    far = np.array([0.15, 0.4, 0.45])
    steps = [(near, middle), (middle, far)]
    epsilons = np.linspace(0.0, 1.0, 401)
    deltas = np.max(
        [
            np.maximum(p - np.exp(epsilons)[:, None] * q, 0).sum(axis=1)
            for a, b in steps
            for p, q in ((a, b), (b, a))
        ],
        axis=0,
    )
    guarantee = accounting.Guarantee(
        relation="add_or_remove_one",
        provenance=provenance.node("test", {}),
        pair=lambda: pair_from_profiles(epsilons[1], deltas),
    )
    for delta in (0.02, 0.1, 0.2):
        ratio = guarantee.group_epsilon(2, delta)
        for p, q in ((near, far), (far, near)):
            assert np.maximum(p - math.exp(ratio) * q, 0).sum() <= delta + 1e-9


@pytest.mark.parametrize("mu", [0.2, 1.0])
def test_replacing_one_of_a_gaussian(mu):
    made = accounting.replace_one(accounting.gaussian(1.0 / mu))
    assert made.relation == "replace_one"
    for delta in (1e-2, 1e-5, 1e-8):
        exact = gaussian_epsilon(2 * mu, delta)
        assert exact - 1e-9 <= made.epsilon(delta) <= exact * 1.002 + 1e-4
    assert made.delta(0.0) >= 2 * stats.norm.cdf(mu) - 1 - 1e-12


def test_replacing_one_in_a_poisson_lot():
    """One step: the true cost by quadrature on a line, records opposite each other."""
    q, sigma = 0.3, 1.0
    made = accounting.replace_one(accounting.dp_sgd(q, sigma, 1))
    x = np.linspace(-14.0, 14.0, 40001)
    step = x[1] - x[0]
    one = (1 - q) * stats.norm.pdf(x, 0, sigma) + q * stats.norm.pdf(x, 1, sigma)
    other = (1 - q) * stats.norm.pdf(x, 0, sigma) + q * stats.norm.pdf(x, -1, sigma)
    for epsilon in (0.0, 0.3, 1.0, 2.0):
        true = np.maximum(one - math.exp(epsilon) * other, 0).sum() * step
        assert true - 1e-9 <= made.delta(epsilon) <= 2.0 * true + 1e-3


def test_replacing_one_reads_each_direction_where_it_belongs():
    """A pair of which one direction reveals: both steps are charged, whatever the order."""
    from dpjax.accounting.numerics import tradeoff

    uneven = accounting.dp_sgd(0.5, 0.5, 1).pair
    pair = tradeoff.replaced_pair(uneven)
    epsilons = np.linspace(0.0, 4.0, 60)
    for first in np.linspace(-3.0, 6.0, 90):
        # The removal's bound at `first`, the addition's at what is left.
        chained = uneven.forward.delta(epsilons - first) + np.exp(
            epsilons - first
        ) * uneven.backward.delta(first)
        assert np.all(pair.delta(epsilons) <= chained + 1e-4)
    least = np.min(
        [
            uneven.forward.delta(epsilons - first)
            + np.exp(epsilons - first) * uneven.backward.delta(first)
            for first in np.linspace(-6.0, 9.0, 3001)
        ],
        axis=0,
    )
    np.testing.assert_allclose(pair.delta(epsilons), least, atol=1e-3)


def test_replacing_one_of_a_pure_mechanism_doubles_its_epsilon():
    assert accounting.replace_one(accounting.pure(0.5)).epsilon(0) == 1.0
