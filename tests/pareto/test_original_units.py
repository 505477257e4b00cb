"""Expected gain in units of epsilon and error: Monte Carlo, quadrature, limits."""

import numpy as np
import pytest
from scipy import integrate, special, stats

from dpjax.pareto import fronts
from dpjax.pareto import original_units as units

ANTI_IDEAL = np.array([10.0, 1.0])
FRONT = np.array([[0.5, 0.7], [1.0, 0.5], [4.0, 0.2], [7.0, 0.1]])
EHVI = units.expected_hypervolume_improvement_in_original_units


def _value(mean, variance, front):
    front = fronts.to_model_units(front) if len(front) else front
    return EHVI(np.array([mean]), np.array([variance]), front, fronts.to_model_units(ANTI_IDEAL))[0]


def _gains(points, front):
    before = fronts.hypervolume(front, [10.0, 0.999])
    after = [fronts.hypervolume(np.vstack([front, point]), [10.0, 0.999]) for point in points]
    return np.array(after) - before


CASES = [
    ((0.0, 0.0), (0.5, 0.8)),
    ((1.0, -1.5), (0.05, 2.0)),
    ((-2.0, 0.5), (2.0, 0.1)),
    ((2.5, -3.0), (1.0, 1.0)),
    ((1.0, 3.0), (0.3, 4.0)),
]


@pytest.mark.parametrize("mean,variance", CASES)
@pytest.mark.parametrize("front", [FRONT, FRONT[:0]], ids=["four", "empty"])
def test_agrees_with_monte_carlo_within_standard_errors(mean, variance, front):
    # 10 cases, 5 standard errors: a false alarm once in 1e5 runs.
    draws = np.random.default_rng(5).normal(mean, np.sqrt(variance), size=(20_000, 2))
    gains = _gains(fronts.from_model_units(draws), front)
    exact = _value(mean, variance, front)
    assert abs(gains.mean() - exact) < 5 * gains.std() / np.sqrt(len(draws))


@pytest.mark.parametrize("mean", [-4.0, 0.0, 1.0, 5.0])
@pytest.mark.parametrize("deviation", [1e-3, 0.1, 1.0, 4.0])
def test_terms_agree_with_adaptive_quadrature(mean, deviation):
    law = stats.norm(mean, deviation)
    bounds = np.array([-6.0, -1.0, 0.0, 0.9, 4.0])
    deviations = np.array([deviation])
    for transform, term in [(np.exp, units._epsilon_below), (special.expit, units._error_below)]:
        if term is units._epsilon_below:
            found = term(bounds, np.array([mean]), deviations)[0]
        else:
            found = term(bounds, np.full(5, mean), np.full(5, deviation))
        for bound, value in zip(bounds, found):
            end = min(bound, mean + 9 * deviation)
            expected = 0.0
            if end > mean - 9 * deviation:
                expected, _ = integrate.quad(
                    lambda x, bound=bound, transform=transform: (
                        (transform(bound) - transform(x)) * law.pdf(x)
                    ),
                    mean - 9 * deviation,
                    end,
                    epsabs=1e-13,
                    limit=200,
                )
            assert value == pytest.approx(expected, rel=1e-4, abs=1e-10)


def test_no_variance_gives_the_deterministic_gain():
    generator = np.random.default_rng(0)
    points = generator.uniform([0.05, 0.01], [12.0, 0.99], size=(300, 2))
    expected = _gains(points, FRONT)
    assert (expected > 0).any() and (expected == 0).any()
    modelled = fronts.to_model_units(points)
    for variance in [0.0, 1e-20]:
        found = EHVI(
            modelled, np.full_like(modelled, variance), fronts.to_model_units(FRONT),
            fronts.to_model_units(ANTI_IDEAL),
        )  # fmt: skip
        np.testing.assert_allclose(found, expected, atol=1e-8)


def test_far_tails_stay_finite():
    mean = np.array([[50.0, 0.0], [700.0, 0.0], [-700.0, -700.0], [0.0, 700.0]])
    none = np.zeros((0, 2))
    target = fronts.to_model_units(ANTI_IDEAL)
    for variance in [1e-6, 1.0, 1e4]:
        values = EHVI(mean, np.full_like(mean, variance), none, target)
        assert np.isfinite(values).all() and (values >= 0).all()
    assert EHVI(mean, np.full_like(mean, 1e-6), none, target)[2] == pytest.approx(9.99, rel=1e-6)


def test_many_candidates_are_valued_alike_in_any_number():
    generator = np.random.default_rng(1)
    mean, variance = generator.normal(size=(700, 2)), generator.random((700, 2))
    front, target = fronts.to_model_units(FRONT), fronts.to_model_units(ANTI_IDEAL)
    together = EHVI(mean, variance, front, target)
    alone = [EHVI(mean[[i]], variance[[i]], front, target)[0] for i in (0, 255, 256, 699)]
    np.testing.assert_allclose(together[[0, 255, 256, 699]], alone, rtol=1e-12)
