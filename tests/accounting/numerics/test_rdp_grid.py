"""rdp_grid against dp_accounting, high-precision integrals, and its own limits."""

import functools
import json
import pathlib

import mpmath
import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant as reference
from scipy import special

from dpjax import accounting
from dpjax.accounting.numerics.rdp_grid import epsilon_grid, log_even_moments, rdp_grid

ORACLES = pathlib.Path(__file__).parents[1] / "oracles"


def _settings(number, seed=0, least_noise=0.3):
    generator = np.random.default_rng(seed)
    probability = np.exp(generator.uniform(np.log(1e-4), np.log(0.6), number))
    noise = generator.uniform(least_noise, 8.0, number)
    return probability, noise, generator.integers(1, 20_000, number)


def test_poisson_integer_orders_equal_dp_accounting():
    probability, noise, steps = _settings(15)
    orders = np.concatenate([np.arange(2, 65), [128, 256, 512]])
    ours = rdp_grid(probability, noise, steps, orders)
    theirs = np.array(
        [
            t * reference._compute_rdp_poisson_subsampled_gaussian(q, z, orders)
            for q, z, t in zip(probability, noise, steps)
        ]
    )
    # dp_accounting sums to A and takes its log: it cannot know A - 1 better than rounding does.
    floor = steps[:, None] * 1e-14
    assert np.all(np.abs(ours - theirs) <= 1e-9 * theirs + floor)
    clear = theirs > 1e-4 * steps[:, None]
    assert clear.sum() > 200
    np.testing.assert_allclose(ours[clear], theirs[clear], rtol=1e-9)


def test_without_replacement_equals_dp_accounting():
    probability, noise, _ = _settings(8, seed=1)
    noise = np.minimum(noise, 3.0)
    orders = np.concatenate([np.arange(2, 33), [2.5, 7.3, 20.9, 600]])
    ours = rdp_grid(probability, noise, 1, orders, sampling="without_replacement")
    theirs = np.array(
        [
            reference._compute_rdp_sample_wor_gaussian(q, z, orders)
            for q, z in zip(probability, noise)
        ]
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-14)


def test_without_replacement_oracle_per_step():
    for row in json.loads((ORACLES / "dpareto_wor.json").read_text()):
        orders = [int(order) for order in row["rdp_per_step"]]
        ours = rdp_grid(row["m"] / row["n"], row["sigma"], 1, orders, "without_replacement")
        np.testing.assert_allclose(ours[0], list(row["rdp_per_step"].values()), rtol=1e-9)


def _wang_theorem_27(q, noise, order):
    """Direct high-precision sum, with the alternating differences written out."""
    with mpmath.workdps(120):
        q, variance = mpmath.mpf(q), mpmath.mpf(noise) ** 2

        def power_moment(k):
            return mpmath.exp(mpmath.mpf(k * (k - 1)) / (2 * variance))

        @functools.cache
        def difference(n):
            return mpmath.fsum(
                (-1) ** (n - k) * mpmath.binomial(n, k) * power_moment(k) for k in range(n + 1)
            )

        total = mpmath.binomial(order, 2) * q**2
        total *= min(4 * (power_moment(2) - 1), 2 * power_moment(2))
        for j in range(3, order + 1):
            even = difference(2 * (j // 2)) * difference(2 * ((j + 1) // 2))
            factor = min(4 * mpmath.sqrt(even), 2 * power_moment(j))
            total += mpmath.binomial(order, j) * q**j * factor
        return mpmath.log1p(total) / (order - 1)


@pytest.mark.parametrize(
    ("q", "noise", "order"),
    [(0.2, 6.5, 64), (0.3, 30.0, 90), (0.01, 1.0, 32), (0.5, 0.4, 9), (0.004, 7.0, 300)],
)
def test_without_replacement_keeps_digits_where_differences_cancel(q, noise, order):
    ours = rdp_grid(q, noise, 1, [order], "without_replacement")[0, 0]
    exact = _wang_theorem_27(q, noise, order)
    assert abs(float(ours / exact - 1)) < 1e-11


@pytest.mark.parametrize("noise", [0.05, 0.4, 2.0, 15.0])
def test_moments_in_high_precision(noise):
    ours = log_even_moments(np.array([9.0, noise]), 64)[1]
    with mpmath.workdps(120):
        for power in (2, 10, 64):
            exact = mpmath.fsum(
                mpmath.binomial(power, k)
                * (-1) ** (power - k)
                * mpmath.exp(mpmath.mpf(k * (k - 1)) / (2 * mpmath.mpf(noise) ** 2))
                for k in range(power + 1)
            )
            assert ours[power // 2 - 1] == pytest.approx(float(mpmath.log(exact)), rel=1e-11)


@pytest.mark.parametrize("noise", [0.3, 1.0, 20.0, 300.0])
@pytest.mark.parametrize("fraction", [1e-4, 0.4])
def test_without_replacement_by_other_numerics(fraction, noise):
    """Moments by a fine trapezoidal rule on the whole line, orders one by one."""
    position = np.arange(-37.0, 512.0 / noise + 15.0, 0.02)
    loss = position / noise - 0.5 / noise**2
    with np.errstate(divide="ignore"):
        log_gap = np.maximum(loss, 0.0) + np.log(-np.expm1(-np.abs(loss)))
    density = -0.5 * position**2 - 0.5 * np.log(2.0 * np.pi) + np.log(0.02)
    moments = [special.logsumexp(n * log_gap + density) for n in range(2, 514, 2)]
    orders = np.array([2, 3, 8, 64, 256, 512, 513])
    ours = rdp_grid(fraction, noise, 1, orders, sampling="without_replacement")[0]
    for order, found in zip(orders, ours):
        k = np.arange(2, order + 1)
        factors = np.log(2.0) + k * (k - 1.0) / (2.0 * noise**2)
        if order <= 512:
            both = [0.5 * (moments[j // 2 - 1] + moments[(j + 1) // 2 - 1]) for j in k]
            factors = np.minimum(factors, np.log(4.0) + both)
        factors[0] = noise**-2 + min(np.log(-4.0 * np.expm1(-(noise**-2))), np.log(2.0))
        logs = special.gammaln(order + 1) - special.gammaln(k + 1) - special.gammaln(order - k + 1)
        exact = np.logaddexp(0.0, special.logsumexp(logs + k * np.log(fraction) + factors))
        assert found == pytest.approx(exact / (order - 1), rel=1e-9)


def test_dp_accounting_loses_digits_without_replacement():
    """0.6.0 takes logs of alternating differences: off both ways where the noise is large."""
    overstated = reference._compute_rdp_sample_wor_gaussian(0.25, 20.0, [128])[0]
    assert overstated > 1.5 * rdp_grid(0.25, 20.0, 1, [128], "without_replacement")[0, 0]
    understated = reference._compute_rdp_sample_wor_gaussian(0.40141640, 7.37352291, [64])[0]
    exact = float(_wang_theorem_27(0.40141640, 7.37352291, 64))
    ours = rdp_grid(0.40141640, 7.37352291, 1, [64], "without_replacement")[0, 0]
    assert ours == pytest.approx(exact, rel=1e-12)
    assert understated != pytest.approx(exact, rel=1e-5)


def _poisson_exact(q, noise, order):
    with mpmath.workdps(20):
        q, z, a = mpmath.mpf(q), mpmath.mpf(noise), mpmath.mpf(order)

        def integrand(t):
            x = q * mpmath.expm1(t / z - 1 / (2 * z * z))
            return mpmath.npdf(t) * ((1 + x) ** a - 1 - a * x)

        points = [-25, *np.linspace(-12, order / noise + 12, 24), order / noise + 25]
        return mpmath.log1p(mpmath.quad(integrand, [mpmath.mpf(p) for p in points])) / (a - 1)


@pytest.mark.parametrize(
    ("q", "noise", "order"),
    [
        (1.1e-3, 15.5, 1.035),
        (0.445, 0.59, 1.41),
        (1.5e-6, 5.7, 2.1),
        (5e-4, 0.238, 1.34),
        (0.05, 0.2, 4.5),
        (0.9, 1.0, 3.7),
        (0.02, 1.1, 2.0),
        (0.01, 1.0, 1.05),
        (0.01, 1.0, 10.3),
        (0.3, 0.7, 1.5),
        (0.2, 4.0, 2.7),
    ],
)
def test_poisson_any_order_is_exact(q, noise, order):
    """In a grid, and of one setting."""
    exact = _poisson_exact(q, noise, order)
    assert abs(float(rdp_grid(q, noise, 1, [order])[0, 0] / exact - 1)) < 1e-11
    assert abs(float(accounting.dp_sgd(q, noise, 1).rdp(order) / exact - 1)) < 1e-9


def test_dp_accounting_overstates_fractional_orders():
    """dp_accounting 0.6.0 adds absolute values of an alternating series: sound, not tight."""
    probability, noise, _ = _settings(15, seed=3)
    orders = np.array([1.3, 1.5, 1.9, 2.5, 3.5])
    ours = rdp_grid(probability, noise, 1, orders)
    theirs = np.array(
        [
            reference._compute_rdp_poisson_subsampled_gaussian(q, z, orders)
            for q, z in zip(probability, noise)
        ]
    )
    finite = np.isfinite(theirs)  # it gives up on some
    assert np.all(theirs[finite] >= ours[finite] * (1 - 1e-9) - 1e-14)
    overstated = _log_moment_ratio(0.4, 1.0, 1.5)
    assert overstated > 1.01


def _log_moment_ratio(q, noise, order):
    theirs = reference._compute_rdp_poisson_subsampled_gaussian(q, noise, [order])[0]
    return theirs / rdp_grid(q, noise, 1, [order])[0, 0]


def test_small_noise_falls_back_to_a_sound_chord():
    noise = 0.01
    orders = np.array([2.0, 2.5, 3.0])
    two, between, three = rdp_grid(0.1, noise, 1, orders)[0]
    assert between == pytest.approx((0.5 * two + 0.5 * 2 * three) / 1.5, rel=1e-12)
    # Nearly the plain Gaussian shifted by log q: the truth, up to e^-1000.
    truth = (2.5 * 1.5 / (2 * noise**2) + 2.5 * np.log(0.1)) / 1.5
    assert truth <= between


def test_curves_are_monotone_and_cumulants_convex():
    probability, noise, _ = _settings(50, seed=4)
    orders = np.sort(np.concatenate([1 + np.geomspace(0.01, 30, 60), np.arange(2, 32)]))
    rdp = rdp_grid(probability, noise, 1, orders)
    assert np.all(np.diff(rdp, axis=1) >= -1e-12 * rdp[:, 1:])
    cumulant = rdp * (orders - 1)
    gaps = np.diff(orders)
    keep = np.flatnonzero(gaps > 1e-9)
    orders, cumulant = orders[keep], cumulant[:, keep]
    slopes = np.diff(cumulant, axis=1) / np.diff(orders)
    assert np.all(np.diff(slopes, axis=1) >= -1e-10 * slopes[:, 1:])


def test_limits_and_shapes():
    orders = [1.5, 2, 10]
    grid = rdp_grid([0.0, 1.0, 0.3, 0.3], 2.0, [5, 5, 0, 1], orders)
    assert grid.shape == (4, 3)
    assert grid.dtype == np.float64
    np.testing.assert_array_equal(grid[0], 0.0)
    np.testing.assert_allclose(grid[1], 5 * np.array(orders) / 8, rtol=1e-14)
    np.testing.assert_array_equal(grid[2], 0.0)
    one = rdp_grid(0.3, 2.0, 1, 1.5)
    assert one.shape == (1, 1)
    assert one[0, 0] == pytest.approx(grid[3, 0], rel=1e-14)


def test_epsilon_grid_matches_dp_accounting():
    orders = np.array([1.5, 2, 4, 8, 16, 32, 64])
    rdp = rdp_grid([0.01, 0.02], 1.0, [1000, 3000], orders)
    tight = epsilon_grid(rdp, orders, 1e-5)
    for row, value in zip(rdp, tight):
        assert value == pytest.approx(reference.compute_epsilon(orders, row, 1e-5)[0], rel=1e-12)
    classic = epsilon_grid(rdp, orders, 1e-5, method="rdp_classic")
    np.testing.assert_allclose(
        classic, np.min(rdp + np.log(1e5) / (orders - 1), axis=1), rtol=1e-14
    )
    assert np.all(classic > tight)
