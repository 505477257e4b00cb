"""One training run: Poisson and fixed-size lots, capacity, calibration."""

import importlib
import json
import math
import pathlib

import mpmath
import numpy as np
import pytest
from dp_accounting import dp_event as dp_events
from dp_accounting import pld as pld_accounting
from scipy import special, stats

from dpjax import accounting
from dpjax.accounting.mechanisms.elementary import gaussian_delta

dp_sgd_module = importlib.import_module("dpjax.accounting.mechanisms.dp_sgd")
ORACLES = pathlib.Path(__file__).parents[1] / "oracles"


@pytest.mark.parametrize(
    "q,sigma,steps", [(0.01, 1.0, 1000), (0.2, 0.8, 5), (0.05, 2.0, 500), (1.0, 5.0, 10)]
)
def test_poisson_equals_dp_accounting(q, sigma, steps):
    accountant = pld_accounting.PLDAccountant(value_discretization_interval=1e-3)
    event = dp_events.GaussianDpEvent(sigma)
    if q < 1.0:
        event = dp_events.PoissonSampledDpEvent(q, event)
    accountant.compose(event, steps)
    run = accounting.dp_sgd(q, sigma, steps)
    for delta in (1e-3, 1e-5, 1e-7):
        assert run.epsilon(delta) == pytest.approx(accountant.get_epsilon(delta), abs=2e-3)


def test_one_step_is_the_exact_mixture():
    """Divergences of (1-q) N(0, s^2) + q N(1, s^2) and N(0, s^2) by dense integration."""
    q, sigma = 0.1, 0.9
    x = np.linspace(-14, 15, 2_000_001)
    width = x[1] - x[0]
    base = np.exp(-0.5 * (x / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))
    mixed = base * (1 - q + q * np.exp((2 * x - 1) / (2 * sigma**2)))
    pair = accounting.dp_sgd(q, sigma, 1).pair
    for epsilon in (-0.08, 0.0, 0.05, 0.09, 0.5, 2.0):
        remove = np.maximum(mixed - math.exp(epsilon) * base, 0.0).sum() * width
        add = np.maximum(base - math.exp(epsilon) * mixed, 0.0).sum() * width
        assert remove - 1e-9 <= float(pair.forward.delta(epsilon)) <= remove + 1e-8
        assert add - 1e-9 <= float(pair.backward.delta(epsilon)) <= add + 1e-8


@pytest.mark.parametrize("noise", [0.05, 0.3, 1.1, 20.0, 1e4, 1e7])
@pytest.mark.parametrize("q", [1e-6, 0.004, 0.5])
def test_one_steps_profiles_are_rounded_up(q, noise):
    """Differences of nearly equal tails, in 50 digits: never below, and hardly above."""
    reach = min(10.6 / noise + 0.5 / noise**2, 600.0)
    with mpmath.workdps(50):
        s, share = mpmath.mpf(noise), mpmath.mpf(q)

        def gaussian_profile(e):
            low, high = -1 / (2 * s) - e * s, 1 / (2 * s) - e * s
            return mpmath.ncdf(high) - mpmath.exp(e) * mpmath.ncdf(low)

        def add_profile(e):
            room = mpmath.exp(-e) - (1 - share)
            if room <= 0:
                return mpmath.mpf(0)
            cut = s * s * mpmath.log(room / share) + mpmath.mpf(1) / 2
            kept = mpmath.ncdf(cut / s) * (1 - mpmath.exp(e) * (1 - share))
            return kept - mpmath.exp(e) * share * mpmath.ncdf((cut - 1) / s)

        removed = np.linspace(0.0, math.log1p(q * math.expm1(reach)), 9)
        added = np.linspace(0.0, -math.log1p(q * math.expm1(-reach)), 9)
        profiles = (
            (
                gaussian_delta(np.linspace(0.0, reach, 9), noise),
                np.linspace(0.0, reach, 9),
                gaussian_profile,
            ),
            (
                dp_sgd_module._amplified(removed, q, noise),
                removed,
                lambda e: share * gaussian_profile(mpmath.log(1 + mpmath.expm1(e) / share)),
            ),
            (dp_sgd_module._reversed(added, q, noise), added, add_profile),
        )
        for found, epsilons, exact in profiles:
            for value, epsilon in zip(found, epsilons):
                truth = exact(mpmath.mpf(float(epsilon)))
                assert value >= truth * (1 - mpmath.mpf(10) ** -40), (epsilon, value, truth)
                assert value <= truth * (1 + 1e-4) + 1e-12 * q


def test_grids_cost_a_tenth_of_a_percent(monkeypatch):
    """Against one four times as fine: the slack of a grid is quadratic in its interval."""
    for parameters in ((256 / 60000, 1.1, 14062), (0.1, 1.0, 300)):
        run = accounting.dp_sgd(*parameters)
        with monkeypatch.context() as patched:
            patched.setattr(dp_sgd_module, "GRID_VARIANCE", dp_sgd_module.GRID_VARIANCE / 16)
            finer = accounting.dp_sgd(*parameters)
            for delta in (1e-5, 1e-10):
                fine = finer.epsilon(delta)
                assert fine - 1e-9 <= run.epsilon(delta) <= fine * 1.001


def test_very_many_steps():
    """A trillion steps asked for 7 TiB; they are composed in stages."""
    run = accounting.dp_sgd(1e-6, 5.0, 10**12)
    # The central limit: a Gaussian of noise multiplier 1 / (q sqrt(T (e^{1/z^2} - 1))).
    limit = accounting.gaussian(1.0 / math.sqrt(math.expm1(1.0 / 25.0)))
    assert run.epsilon(1e-5) == pytest.approx(limit.epsilon(1e-5), rel=2e-3)
    assert run.epsilon(1e-5) < run.epsilon(1e-5, "rdp")


def test_sparse_sampling_gets_a_finer_grid():
    """A fixed interval of 1e-3 would overstate epsilon several times here."""
    run = accounting.dp_sgd(1e-4, 0.8, 100_000)
    assert run.pair.interval < 2e-4
    assert run.epsilon(1e-5) < 0.21
    # A million steps, each of spread 1e-5: the range of their sum must not be overrated.
    longer = accounting.dp_sgd(1e-5, 1.0, 1_000_000)
    assert longer.epsilon(1e-6) == pytest.approx(0.04534, abs=1e-4)
    assert longer.pair.size < 1_000_000


@pytest.mark.parametrize("sigma", [0.05, 0.2])
def test_very_small_noise_still_answers(sigma):
    run = accounting.dp_sgd(0.01, sigma, 200)
    assert run.epsilon(1e-5) <= accounting.gaussian(sigma, steps=200).epsilon(1e-5) * 1.01
    assert run.epsilon(1e-5) > accounting.dp_sgd(0.01, 0.4, 200).epsilon(1e-5)


def test_rare_lots_with_very_small_noise_fit_in_memory():
    """The losses of one step reach 5,000 nats: a thousand of them asked for gigabytes."""
    run = accounting.dp_sgd(1e-6, 0.01, 1000)
    # A record that is ever in a lot is seen: with probability 1e-3 at most.
    assert run.delta(0.0) == pytest.approx(1e-3, rel=0.01)
    assert run.epsilon(1e-5) < accounting.gaussian(0.01).epsilon(1e-5)


def test_failure_probability_is_infinite_loss():
    clean = accounting.dp_sgd(0.01, 1.0, 1000)
    failing = accounting.dp_sgd(0.01, 1.0, 1000, failure_probability=1e-6)
    for epsilon in (0.0, 1.0, 2.0):
        expected = 1e-6 + (1 - 1e-6) * clean.pair.delta(epsilon)
        assert failing.pair.delta(epsilon) == pytest.approx(expected, rel=1e-9)
    assert failing.epsilon(1e-6) == math.inf
    assert failing.epsilon(1e-5) == pytest.approx(clean.epsilon(0.9e-5), abs=1e-5)
    assert failing.epsilon(1e-5, "rdp") == pytest.approx(clean.epsilon(0.9e-5, "rdp"), abs=1e-5)
    with pytest.raises(ValueError, match="takes it out of delta"):
        failing.rdp([2.0])
    twice = accounting.repeat(failing, 2)
    assert twice.pair.forward.infinity_mass == pytest.approx(2e-6, rel=1e-5)


@pytest.mark.parametrize("row", json.loads((ORACLES / "dpareto_wor_pld.json").read_text()))
def test_fixed_lots_oracles(row):
    run = accounting.dp_sgd_fixed_lots(row["n"], row["m"], row["sigma"], row["steps"])
    assert run.epsilon(row["delta"]) == pytest.approx(row["eps_wor_pld"], abs=1e-3)
    assert run.epsilon(row["delta"], "rdp") == pytest.approx(row["eps_wor_rdp_wang"], abs=1e-5)
    assert run.relation == "replace_one"


def test_fixed_lots_third_figure_and_table():
    run = accounting.dp_sgd_fixed_lots(30956, 64, 1.0, 1932)
    assert run.epsilon(1e-5) == pytest.approx(0.559, abs=1e-3)
    assert run.epsilon(1e-5, "rdp") == pytest.approx(1.077, abs=1e-3)
    for row in json.loads((ORACLES / "dpareto_wor.json").read_text()):
        step = accounting.dp_sgd_fixed_lots(row["n"], row["m"], row["sigma"], 1)
        for order, value in row["rdp_per_step"].items():
            assert step.rdp(float(order)) <= value * (1 + 1e-9)
        assert step.rdp(2.0) == pytest.approx(row["rdp_per_step"]["2"], rel=1e-9)


def test_fixed_lots_of_everything_are_the_plain_gaussian():
    run = accounting.dp_sgd_fixed_lots(100, 100, 2.0, 4)
    plain = accounting.gaussian(2.0, relation="replace_one", steps=4)
    assert run.epsilon(1e-6) == pytest.approx(plain.epsilon(1e-6), abs=1e-9)


def test_fixed_lots_profile_is_exact_for_one_record():
    """n = 2, m = 1, records of norm 2C apart: both output laws are mixtures we can integrate."""
    sigma = 1.2
    run = accounting.dp_sgd_fixed_lots(2, 1, sigma, 1)
    # Record 1 is kept (say at 0), record 2 moves by one sensitivity: centres {0, 0} and {0, 1}.
    x = np.linspace(-16, 17, 1_000_001)
    width = x[1] - x[0]
    first = np.exp(-0.5 * (x / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))
    second = 0.5 * first + 0.5 * np.exp(-0.5 * ((x - 1) / sigma) ** 2) / (
        sigma * math.sqrt(2 * math.pi)
    )
    for epsilon in (0.0, 0.3, 1.0):
        growth = math.exp(epsilon)
        exact = max(
            np.maximum(first - growth * second, 0.0).sum() * width,
            np.maximum(second - growth * first, 0.0).sum() * width,
        )
        assert run.delta(epsilon) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize(
    "n,q,capacity,steps",
    [(60000, 128 / 60000, 216, 10000), (60000, 1024 / 60000, 1200, 10), (500, 0.3, 200, 7)],
)
def test_truncation_probability_is_the_binomial_tail(n, q, capacity, steps):
    exact = steps * stats.binom.sf(capacity - 1, n, q)
    found = accounting.truncation_probability(n, q, capacity, steps)
    assert exact * (1 - 1e-9) <= found <= min(1.0, exact * (1 + 1e-6))


def test_truncation_probability_in_the_far_tail():
    """Below the smallest double of `sf`, by the incomplete beta function's leading term."""
    found = accounting.truncation_probability(1000, 0.001, 150, 1)
    log_term = (
        special.gammaln(1001)
        - special.gammaln(151)
        - special.gammaln(851)
        + 150 * math.log(0.001)
        + 850 * math.log1p(-0.001)
    )
    assert math.exp(log_term) <= found <= math.exp(log_term) * 1.02
    assert accounting.truncation_probability(100, 0.5, 101, 5) == 0.0
    assert accounting.truncation_probability(100, 0.5, 40, 5) == 1.0


@pytest.mark.parametrize("lot,expected", [(128, 215), (256, 376), (1024, 1255)])
def test_capacity_meets_its_target_and_one_less_does_not(lot, expected):
    capacity = accounting.lot_capacity(60000, lot / 60000, 10000, 1e-8)
    # The design's figures count overflow from capacity + 1 on; one place is kept for the record.
    assert capacity == expected + 1
    assert accounting.truncation_probability(60000, lot / 60000, capacity, 10000) <= 1e-8
    assert accounting.truncation_probability(60000, lot / 60000, capacity - 1, 10000) > 1e-8


def test_calibration_meets_the_target_from_above():
    for make, target in [
        (lambda z: accounting.dp_sgd(0.01, z, 1000), 1.0),
        (lambda z: accounting.gaussian(z), 0.3),
        (
            lambda z: accounting.best_of(accounting.dp_sgd(0.02, z, 500), accounting.Geometric(10)),
            2.0,
        ),
    ]:
        noise = accounting.calibrate(make, epsilon=target, delta=1e-5)
        assert make(noise).epsilon(1e-5) <= target
        assert make(noise * (1 - 1e-3)).epsilon(1e-5) > target


def test_calibration_names_what_is_attainable():
    with pytest.raises(ValueError, match=r"largest noise multiplier 2 attains 0\.\d+"):
        accounting.calibrate(
            lambda z: accounting.dp_sgd(0.01, z, 1000), epsilon=0.01, delta=1e-5, bracket=(0.5, 2)
        )
    failing = lambda z: accounting.dp_sgd(0.01, z, 10, failure_probability=1e-4)  # noqa: E731
    with pytest.raises(ValueError, match="attains inf"):
        accounting.calibrate(failing, epsilon=1.0, delta=1e-5, bracket=(0.5, 8))
    with pytest.raises(ValueError, match="bracket must be"):
        accounting.calibrate(accounting.gaussian, epsilon=1.0, delta=1e-5, bracket=(2, 1))
    with pytest.raises(ValueError, match="epsilon must be > 0"):
        accounting.calibrate(accounting.gaussian, epsilon=0.0, delta=1e-5)
