"""Integer noise laws and divergences against direct high-precision sums."""

import functools
import json
import math
import pathlib

import mpmath
import numpy as np
import pytest
from scipy import special, stats

from dpjax.accounting.numerics.integer_noise import (
    discrete_gaussian_sum,
    shift_pair,
    shift_rdp,
    skellam_noise,
)

ORACLES = pathlib.Path(__file__).parents[1] / "oracles"


def _exact_sum(local_variance, clients, reach):
    """Law of the sum on [-reach * clients, reach * clients], 50 digits."""
    with mpmath.workdps(50):
        local = [
            mpmath.exp(-mpmath.mpf(y * y) / (2 * mpmath.mpf(local_variance)))
            for y in range(-reach, reach + 1)
        ]
        total = mpmath.fsum(local)
        local = [value / total for value in local]
        law = local
        for _ in range(clients - 1):
            longer = [mpmath.mpf(0)] * (len(law) + len(local) - 1)
            for i, left in enumerate(law):
                for j, right in enumerate(local):
                    longer[i + j] += left * right
            law = longer
        return law


@pytest.mark.parametrize(("local_variance", "clients"), [(4.0, 2), (4.0, 3), (7.5, 4), (4.0, 1)])
def test_sum_of_discrete_gaussians_to_full_relative_precision(local_variance, clients):
    exact = _exact_sum(local_variance, clients, 24)
    centre = len(exact) // 2
    logs = discrete_gaussian_sum(local_variance, clients, 20).log_probabilities
    for j in range(21):
        with mpmath.workdps(50):
            assert logs[j] == pytest.approx(float(mpmath.log(exact[centre + j])), abs=1e-11)


@pytest.mark.parametrize(
    ("local_variance", "clients"), [(4.0, 1), (4.0, 2), (4.0, 3), (17.3, 50), (4.0, 700)]
)
def test_a_sum_is_the_convolved_one(local_variance, clients):
    """Two ways to one law: the closed form, and repeated convolution of the summands."""
    found = discrete_gaussian_sum(local_variance, clients, 60).log_probabilities
    one = np.exp(-0.5 * np.arange(-80, 81) ** 2 / local_variance)
    law = functools.reduce(np.convolve, [one / one.sum()] * clients)
    exact = law[law.size // 2 :][: found.size]
    held = exact > 1e-40
    np.testing.assert_allclose(found[: exact.size][held], np.log(exact[held]), rtol=0, atol=2e-11)


@pytest.mark.parametrize("clients", [2, 3, 4, 17, 100])
def test_what_tells_a_large_sum_from_a_discrete_gaussian_is_below_2e_17(clients):
    """eta of `discrete_gaussian_sum` at its least variance, 320 digits; it falls with variance."""
    with mpmath.workdps(320):
        a = 2 * mpmath.pi**2 * mpmath.mpf(4)

        def theta(t):
            return mpmath.fsum(mpmath.exp(-a * (z - t) ** 2) for z in range(-2, 4))

        # The trapezoidal rule on a periodic analytic function: exact to far below eta.
        points = 128 * math.isqrt(clients) + 256
        mean = mpmath.fsum(theta(mpmath.mpf(k) / points) ** clients for k in range(points)) / points
        eta = mpmath.sqrt(a * clients / mpmath.pi) * mean - 1
        # The nearest of the dual lattice: 2 n vectors (2 for n = 2) of squared norm (n - 1) / n.
        nearest = (2 if clients == 2 else 2 * clients) * mpmath.exp(-a * (clients - 1) / clients)
        assert nearest * mpmath.mpf("0.999") < eta < nearest * mpmath.mpf("1.001")
        assert eta < mpmath.mpf("2e-17")


def test_large_sums_are_sound_and_cost_what_the_continuous_gaussian_does():
    for local_variance, clients in ((1e4, 50), (1e6, 10), (1e8, 3)):
        orders = np.array([2.0, 8.0])
        ours = shift_rdp(functools.partial(discrete_gaussian_sum, local_variance, clients), orders)
        # Whole orders shift a lattice onto itself: the discrete divergence is the continuous one.
        exact = orders / (2.0 * local_variance * clients)
        assert np.all(ours >= exact)
        np.testing.assert_allclose(ours, exact, rtol=0, atol=3e-12)


def test_skellam_law():
    law = skellam_noise(20.0, 200)
    points = np.arange(120)
    np.testing.assert_allclose(
        law.log_probabilities[:120], np.log(special.ive(points, 20.0)), atol=1e-11
    )
    np.testing.assert_allclose(
        np.exp(law.log_probabilities[:40]), stats.skellam.pmf(np.arange(40), 10, 10), rtol=1e-9
    )
    # Far beyond the smallest float64.
    with mpmath.workdps(60):
        far = mpmath.log(mpmath.besseli(200, 20)) - 20
        assert law.log_probabilities[200] == pytest.approx(float(far), abs=1e-9)


@pytest.mark.parametrize("variance", [0.01, 1.0, 144.0, 1e4])
def test_laws_sum_to_one_and_tail_bound_holds(variance):
    laws = [skellam_noise(variance)]
    if variance >= 1.0:
        laws.append(discrete_gaussian_sum(4.0 * variance, 50))
    for law in laws:
        logs = law.log_probabilities
        assert np.exp(logs[0]) + 2 * np.exp(logs[1:]).sum() == pytest.approx(1.0, abs=1e-12)
    # I_j^2 / (I_{j-1} I_{j+1}) <= (j + 1) / j, the step behind the truncation bound.
    logs = laws[0].log_probabilities
    index = np.arange(1, logs.size - 1)
    assert np.all(2 * logs[1:-1] - logs[:-2] - logs[2:] <= np.log1p(1 / index) + 1e-10)


@pytest.mark.parametrize("row", json.loads((ORACLES / "dphype_discrete.json").read_text()))
def test_renyi_oracle(row):
    order = np.array([row["alpha"]])
    counts = 10  # the oracle: k = 5 votes moved, so 10 counts change
    skellam = counts * shift_rdp(lambda reach: skellam_noise(row["total_var"], reach), order)
    assert skellam[0] == pytest.approx(row["skellam_exact"], rel=1e-8)
    assert skellam[0] <= row["skellam_bound"]
    assert counts * order[0] / (2 * row["total_var"]) == pytest.approx(row["gauss"])


def test_renyi_against_direct_sums_where_float64_underflows():
    variance, order = 2.0, 60.5
    ours = shift_rdp(lambda reach: skellam_noise(variance, reach), np.array([order]))[0]
    with mpmath.workdps(60):
        law = {j: mpmath.besseli(abs(j), variance) * mpmath.exp(-variance) for j in range(-130, 90)}
        total = mpmath.fsum(law[j] ** order * law[j - 1] ** (1 - order) for j in range(-129, 90))
        exact = float(mpmath.log(total) / (order - 1))
    assert exact <= ours
    assert ours == pytest.approx(exact, rel=1e-10)


@pytest.mark.parametrize("shift", [1, 3])
def test_pair_dominates_the_true_profile(shift):
    epsilons = np.linspace(-1.5, 4, 23)
    for law in (skellam_noise(5.0), discrete_gaussian_sum(4.5, 20)):
        pair = shift_pair(law, 1e-3, shift)
        logs = np.concatenate([law.log_probabilities[:0:-1], law.log_probabilities])
        p, q = np.exp(logs[shift:]), np.exp(logs[:-shift])
        exact = [np.maximum(p - np.exp(e) * q, 0).sum() for e in epsilons]
        ours = pair.delta(epsilons)
        assert np.all(ours >= np.array(exact) - 1e-13)
        np.testing.assert_allclose(ours, exact, atol=2e-6)
        # The other direction is the mirror image: one distribution serves both.
        reverse = [np.maximum(q - np.exp(e) * p, 0).sum() for e in epsilons]
        np.testing.assert_allclose(reverse, exact, atol=1e-13)


def test_limits():
    law = shift_rdp(lambda reach: skellam_noise(1e4, reach), np.array([2.0, 8.0]))
    np.testing.assert_allclose(law, np.array([2.0, 8.0]) / 2e4, rtol=1e-4)
    # Orders beyond reach are infinite, never wrong.
    assert shift_rdp(lambda reach: skellam_noise(1.0, reach), np.array([1e7]))[0] == np.inf
    with pytest.raises(ValueError, match="continuous"):
        skellam_noise(1e12)
