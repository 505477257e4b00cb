"""Renyi curves: the sampled Gaussian at fractional orders, conversions, optima over orders."""

import math

import mpmath
import numpy as np
import pytest
from dp_accounting import dp_event as dp_events
from dp_accounting.rdp import rdp_privacy_accountant

from dpjax import accounting
from dpjax.accounting.numerics import renyi
from dpjax.accounting.numerics.loss_distribution import LossDistribution

SETTINGS = [(256 / 60000, 1.1), (0.01, 1.0), (0.5, 0.5), (1e-4, 0.8), (0.2, 5.0), (0.01, 0.3)]


@pytest.mark.parametrize("q,sigma", SETTINGS)
def test_integer_orders_equal_dp_accounting(q, sigma):
    orders = [2, 3, 5, 8, 16, 32, 64, 128, 256]
    accountant = rdp_privacy_accountant.RdpAccountant(orders)
    accountant.compose(dp_events.PoissonSampledDpEvent(q, dp_events.GaussianDpEvent(sigma)))
    ours = accounting.dp_sgd(q, sigma, 1).rdp(orders)
    np.testing.assert_allclose(ours, accountant.rdp, rtol=1e-9)


@pytest.mark.parametrize("q, sigma, order", [(1e-12, 0.3, 3), (1e-13, 0.3, 5), (1e-7, 0.7, 17)])
def test_very_sparse_sampling_equals_the_binomial_sum(q, sigma, order):
    """Where q e^tilt is small although e^tilt is beyond 1e13."""
    with mpmath.workdps(50):
        rate, noise = mpmath.mpf(q), mpmath.mpf(sigma)
        moment = mpmath.fsum(
            mpmath.binomial(order, k)
            * (1 - rate) ** (order - k)
            * rate**k
            * mpmath.exp(k * (k - 1) / (2 * noise**2))
            for k in range(order + 1)
        )
        expected = float(mpmath.log(moment) / (order - 1))
    assert float(accounting.dp_sgd(q, sigma, 1).rdp(order)) == pytest.approx(
        expected, rel=1e-10, abs=0
    )


def test_curve_is_continuous_and_monotone_up_to_the_plain_gaussian():
    curve = accounting.dp_sgd(0.02, 1.5, 1)
    orders = 1.0 + np.geomspace(1e-3, 1e6, 3000)
    values = curve.rdp(orders)
    assert np.all(np.diff(values) >= -1e-12)
    assert np.all(values <= orders / (2 * 1.5**2) * (1 + 1e-12))
    # No jump between whole and fractional orders, as two different series would leave.
    for whole in (2.0, 7.0, 20.0):
        near = curve.rdp([whole - 1e-7, whole, whole + 1e-7])
        np.testing.assert_allclose(near, near[1], rtol=1e-5)


def test_lemma_14_is_the_best_order():
    """By brute force over a fine table of orders, for a Gaussian curve."""
    rho, delta = 0.37, 1e-7
    orders = np.linspace(1.001, 60.0, 400_000)
    table = rho * orders + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    guarantee = accounting.zcdp(rho)
    assert guarantee.epsilon(delta, "rdp") == pytest.approx(table.min(), abs=1e-9)
    classic = (rho * orders - math.log(delta) / (orders - 1)).min()
    assert guarantee.epsilon(delta, "rdp_classic") == pytest.approx(classic, abs=1e-8)
    assert guarantee.epsilon(delta, "rdp") < guarantee.epsilon(delta, "rdp_classic")
    # delta(epsilon) inverts it.
    assert guarantee.delta(guarantee.epsilon(delta)) == pytest.approx(delta, rel=1e-6)


def test_classic_conversion_in_closed_form():
    """rho + 2 sqrt(rho log(1/delta)) for zCDP (Bun & Steinke 2016)."""
    for rho in (1e-6, 0.1, 3.0):
        expected = rho + 2 * math.sqrt(rho * math.log(1e5))
        found = accounting.zcdp(rho).epsilon(1e-5, "rdp_classic")
        assert found == pytest.approx(expected, rel=1e-7)


def test_pure_curve_is_randomised_response():
    epsilon = 0.8
    p = np.array([1.0, math.exp(epsilon)]) / (1 + math.exp(epsilon))
    for order in (1.2, 2.0, 7.5, 80.0):
        exact = math.log(np.sum(p**order * p[::-1] ** (1 - order))) / (order - 1)
        assert accounting.pure(epsilon).rdp(order) == pytest.approx(exact, rel=1e-9)


def test_profiles_agree_with_single_deltas():
    curve = accounting.zcdp(0.2).renyi
    epsilons = np.array([0.1, 0.7, 2.0, 4.5])
    single = np.array([curve.delta(epsilon) for epsilon in epsilons])
    np.testing.assert_allclose(curve.profile(epsilons), single, rtol=1e-3)
    np.testing.assert_allclose(curve.profile(epsilons, refined=True), single, rtol=1e-8)
    assert np.all(curve.profile(epsilons) >= single * (1 - 1e-9))


def test_table_between_orders_is_an_upper_bound():
    exact = accounting.zcdp(0.3)
    orders = np.array([1.5, 2.0, 4.0, 8.0, 16.0, 32.0])
    table = accounting.renyi_only(orders, exact.rdp(orders))
    between = np.linspace(1.1, 31.9, 60)
    assert np.all(table.rdp(between) >= exact.rdp(between) - 1e-12)
    np.testing.assert_allclose(table.rdp(orders), exact.rdp(orders), rtol=1e-12)
    assert table.rdp(33.0) == math.inf
    assert exact.epsilon(1e-6) <= table.epsilon(1e-6) < exact.epsilon(1e-6) + 0.1


def test_failure_mass_is_reserved_out_of_delta():
    base = renyi.zcdp_curve(0.1)
    failing = renyi.RenyiCurve(base.evaluate, 1e-6)
    assert failing.epsilon(1e-6) == math.inf
    expected = base.epsilon((1e-5 - 1e-6) / (1 - 1e-6))
    assert failing.epsilon(1e-5) == pytest.approx(expected, rel=1e-12)
    total = renyi.sum_of([failing, failing], [1, 2])
    assert total.failure_mass == pytest.approx(1 - (1 - 1e-6) ** 3, rel=1e-9)


def test_an_infinite_order_or_divergence_costs_something():
    """Interpolated towards an infinite order every divergence vanished: epsilon was 0."""
    with pytest.raises(ValueError, match="orders must be finite"):
        accounting.renyi_only([2.0, math.inf], [1.0, 2.0])
    known = accounting.renyi_only([2.0, 11.0], [1.0, 2.0])
    # 11 is a knot of the table and an order of the grid: infinity times zero.
    more = accounting.renyi_only([2.0, 11.0, 12.0], [1.0, 2.0, math.inf])
    assert more.epsilon(1e-5) == pytest.approx(known.epsilon(1e-5), rel=1e-9)
    assert accounting.renyi_only([2.0], [math.inf]).epsilon(1e-5) == math.inf


def test_what_is_no_number_bounds_nothing():
    curve = renyi.RenyiCurve(lambda orders: np.where(orders > 3.0, np.nan, 0.1 * orders))
    assert 0.0 < curve.epsilon(1e-5) < math.inf
    assert curve.delta(0.0) > 0.0
    nothing = renyi.RenyiCurve(lambda orders: np.full(orders.shape, np.nan))
    assert nothing.epsilon(1e-5) == nothing.classic_epsilon(1e-5) == math.inf
    assert nothing.delta(1.0) == 1.0
    with pytest.raises(ValueError, match="NaN"):
        LossDistribution(1e-3, 0, np.array([0.5, np.nan]), 0.0)


@pytest.mark.parametrize("epsilon", [1e-10, 1e-6, 1e-3, 0.5, 3.0, 700.0])
def test_pure_curve_in_high_precision(epsilon):
    """At epsilon 1e-6 a formula with exponentials of nearly equal numbers fell short by 5e-5."""
    orders = np.array([1.0001, 1.5, 2.0, 10.0, 1e3, 1e6])
    found = renyi.pure_curve(epsilon)(orders)
    with mpmath.workdps(60):
        for order, value in zip(orders.tolist(), found.tolist()):
            e, a = mpmath.mpf(epsilon), mpmath.mpf(order)
            exact = mpmath.log((mpmath.exp(a * e) + mpmath.exp((1 - a) * e)) / (1 + mpmath.exp(e)))
            assert value == pytest.approx(float(exact / (a - 1)), rel=1e-10)
