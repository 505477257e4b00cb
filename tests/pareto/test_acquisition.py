"""Acquisitions: Monte Carlo integration, deterministic limits, dominated points, empty fronts."""

import numpy as np
import pytest
from scipy import integrate, special, stats

from dpjax.pareto import acquisition, fronts

ANTI_IDEAL = np.array([2.0, 1.5])
FRONT = np.array([[-2.0, 1.0], [-1.0, 0.2], [0.0, -0.3], [1.2, -1.0]])
EHVI = acquisition.expected_hypervolume_improvement
HVPOI = acquisition.hypervolume_probability_of_improvement


def _gain(points, front):
    """Gain in hypervolume of each point alone, as a difference of hypervolumes."""
    before = fronts.hypervolume(front, ANTI_IDEAL)
    after = [fronts.hypervolume(np.vstack([front, point]), ANTI_IDEAL) for point in points]
    return np.array(after) - before


def _gain_of_many(points, front):
    """The same for millions of points: box of the point, less its overlap with the dominated area.

    The dominated area inside the box is a staircase summed from right to left.
    """
    total = np.prod(np.maximum(ANTI_IDEAL - points, 0.0), axis=1)
    right = np.full(len(points), ANTI_IDEAL[0])
    for first, second in front[np.argsort(-front[:, 0])]:
        left = np.maximum(first, points[:, 0])
        height = ANTI_IDEAL[1] - np.maximum(second, points[:, 1])
        total -= np.maximum(right - left, 0.0) * np.maximum(height, 0.0)
        right = np.minimum(right, np.maximum(left, first))
    return total


def _improves(points, front):
    better = (points < ANTI_IDEAL).all(axis=1)
    for point in front:
        better &= ~(point <= points).all(axis=1)
    return better


CASES = [
    ((0.3, 0.4), (0.5, 0.8)),
    ((-1.5, 0.5), (1.0, 0.1)),
    ((1.5, 1.2), (0.7, 0.9)),
    ((-3.0, -2.0), (0.2, 0.3)),
    ((0.5, -0.2), (2.0, 2.5)),
    ((3.0, 2.5), (1.0, 1.0)),
]


@pytest.mark.parametrize("mean,variance", CASES)
@pytest.mark.parametrize("front", [FRONT, FRONT[:1], FRONT[:0]], ids=["four", "one", "empty"])
def test_agrees_with_monte_carlo_within_standard_errors(mean, variance, front):
    # 18 cases, two statistics each: 5 standard errors give a false alarm once in 5e4 runs.
    generator = np.random.default_rng(11)
    draws = generator.normal(mean, np.sqrt(variance), size=(1_000_000, 2))
    mean, variance = np.array([mean]), np.array([variance])
    gains = _gain_of_many(draws, front)
    np.testing.assert_allclose(gains[:50], _gain(draws[:50], front), atol=1e-12)
    exact = EHVI(mean, variance, front, ANTI_IDEAL)[0]
    assert abs(gains.mean() - exact) < 5 * gains.std() / 1e3
    improves = _improves(draws, front)
    share = acquisition.probability_of_improvement(mean, variance, front, ANTI_IDEAL)[0]
    assert abs(improves.mean() - share) < 5 * np.sqrt(share * (1 - share)) / 1e3 + 1e-12
    gain_of_mean = _gain(mean, front)[0]
    product = HVPOI(mean, variance, front, ANTI_IDEAL)[0]
    assert product == pytest.approx(gain_of_mean * share, rel=1e-12, abs=1e-13)


def test_no_variance_gives_the_deterministic_gain():
    points = np.random.default_rng(0).uniform(-3, 3, size=(500, 2))
    expected = _gain(points, FRONT)
    assert (expected > 0).any() and (expected == 0).any()
    for variance in [0.0, 1e-24]:
        values = EHVI(points, np.full_like(points, variance), FRONT, ANTI_IDEAL)
        np.testing.assert_allclose(values, expected, atol=1e-10)
    one_sided = EHVI(points, np.full_like(points, 1e-24) * [1.0, 0.0], FRONT, ANTI_IDEAL)
    np.testing.assert_allclose(one_sided, expected, atol=1e-10)
    poi = acquisition.probability_of_improvement(points, np.zeros_like(points), FRONT, ANTI_IDEAL)
    np.testing.assert_array_equal(poi, expected > 0)


def test_dominated_points_gain_nothing():
    points = np.concatenate([FRONT, FRONT + 0.3, [[2.0, -5.0], [-5.0, 1.5], [9.0, 9.0]]])
    small = np.full_like(points, 1e-6)
    # On the front itself chance still gains a little: standard deviations are 1e-3.
    assert EHVI(points, small, FRONT, ANTI_IDEAL)[4:8].max() < 1e-12
    assert EHVI(points, small, FRONT, ANTI_IDEAL).max() < 1e-2
    assert HVPOI(points, np.ones_like(points), FRONT, ANTI_IDEAL)[4:8].max() < 1e-12
    assert EHVI(points, np.zeros_like(points), FRONT, ANTI_IDEAL).max() == 0.0


def test_empty_front_is_the_box_to_the_anti_ideal():
    mean, none = np.array([[1.0, 1.0], [3.0, 1.0]]), np.zeros((2, 2))
    for front in [np.zeros((0, 2)), np.array([[5.0, -9.0]])]:
        np.testing.assert_allclose(EHVI(mean, none, front, ANTI_IDEAL), [0.5, 0.0], atol=1e-14)
        np.testing.assert_allclose(HVPOI(mean, none, front, ANTI_IDEAL), [0.5, 0.0], atol=1e-14)


def test_dominated_and_repeated_front_points_change_nothing():
    generator = np.random.default_rng(1)
    mean, variance = generator.normal(size=(200, 2)), generator.random((200, 2))
    cluttered = np.concatenate([FRONT[::-1] + 0.1, FRONT, FRONT, [[9.0, -9.0]]])
    for criterion in [EHVI, HVPOI]:
        np.testing.assert_allclose(
            criterion(mean, variance, cluttered, ANTI_IDEAL),
            criterion(mean, variance, FRONT, ANTI_IDEAL),
            rtol=1e-12,
        )


def test_values_fall_with_variance_and_with_a_growing_front():
    """What lets a batch value candidates lazily."""
    generator = np.random.default_rng(2)
    mean, variance = generator.normal(size=(3000, 2)), generator.random((3000, 2))
    values = EHVI(mean, variance, FRONT, ANTI_IDEAL)
    assert (values >= EHVI(mean, variance * [0.9, 0.5], FRONT, ANTI_IDEAL) - 1e-12).all()
    larger = np.vstack([FRONT, [0.1, -0.9]])
    assert (values >= EHVI(mean, variance, larger, ANTI_IDEAL) - 1e-12).all()


def test_far_tails_stay_finite_and_ordered():
    mean = np.array([[50.0, 0.0], [1e8, 1e8], [-1e8, -1e8], [12.0, 0.0]])
    values = EHVI(mean, np.ones_like(mean), FRONT, ANTI_IDEAL)
    assert np.isfinite(values).all() and (values >= 0).all()
    assert values[2] == pytest.approx(1e16, rel=1e-6)
    assert values[1] == 0.0 and values[3] < 1e-20


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"\(m, 2\)"):
        EHVI(np.zeros((3, 3)), np.zeros((3, 3)), FRONT, ANTI_IDEAL)


# In units of epsilon and error.

WORST = np.array([10.0, 1.0])
REPORTED = np.array([[0.5, 0.7], [1.0, 0.5], [4.0, 0.2], [7.0, 0.1]])
AREA = acquisition.expected_hypervolume_improvement_in_original_units


def _area(mean, variance, front):
    front = fronts.to_model_units(front) if len(front) else front
    return AREA(np.array([mean]), np.array([variance]), front, fronts.to_model_units(WORST))[0]


def _area_gains(points, front):
    before = fronts.hypervolume(front, [10.0, 0.999])
    after = [fronts.hypervolume(np.vstack([front, point]), [10.0, 0.999]) for point in points]
    return np.array(after) - before


AREA_CASES = [
    ((0.0, 0.0), (0.5, 0.8)),
    ((1.0, -1.5), (0.05, 2.0)),
    ((-2.0, 0.5), (2.0, 0.1)),
    ((2.5, -3.0), (1.0, 1.0)),
    ((1.0, 3.0), (0.3, 4.0)),
]


@pytest.mark.parametrize("mean,variance", AREA_CASES)
@pytest.mark.parametrize("front", [REPORTED, REPORTED[:0]], ids=["four", "empty"])
def test_area_agrees_with_monte_carlo_within_standard_errors(mean, variance, front):
    # 10 cases, 5 standard errors: a false alarm once in 1e5 runs.
    draws = np.random.default_rng(5).normal(mean, np.sqrt(variance), size=(20_000, 2))
    gains = _area_gains(fronts.from_model_units(draws), front)
    exact = _area(mean, variance, front)
    assert abs(gains.mean() - exact) < 5 * gains.std() / np.sqrt(len(draws))


@pytest.mark.parametrize("mean", [-4.0, 0.0, 1.0, 5.0])
@pytest.mark.parametrize("deviation", [1e-3, 0.1, 1.0, 4.0])
def test_terms_agree_with_adaptive_quadrature(mean, deviation):
    law = stats.norm(mean, deviation)
    bounds = np.array([-6.0, -1.0, 0.0, 0.9, 4.0])
    deviations = np.array([deviation])
    for transform, term in [
        (np.exp, acquisition._epsilon_below),
        (special.expit, acquisition._error_below),
    ]:
        if term is acquisition._epsilon_below:
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


def test_no_variance_gives_the_deterministic_gain_of_area():
    generator = np.random.default_rng(0)
    points = generator.uniform([0.05, 0.01], [12.0, 0.99], size=(300, 2))
    expected = _area_gains(points, REPORTED)
    assert (expected > 0).any() and (expected == 0).any()
    modelled = fronts.to_model_units(points)
    for variance in [0.0, 1e-20]:
        found = AREA(
            modelled, np.full_like(modelled, variance), fronts.to_model_units(REPORTED),
            fronts.to_model_units(WORST),
        )  # fmt: skip
        np.testing.assert_allclose(found, expected, atol=1e-8)


def test_far_tails_of_area_stay_finite():
    mean = np.array([[50.0, 0.0], [700.0, 0.0], [-700.0, -700.0], [0.0, 700.0]])
    none = np.zeros((0, 2))
    target = fronts.to_model_units(WORST)
    for variance in [1e-6, 1.0, 1e4]:
        values = AREA(mean, np.full_like(mean, variance), none, target)
        assert np.isfinite(values).all() and (values >= 0).all()
    assert AREA(mean, np.full_like(mean, 1e-6), none, target)[2] == pytest.approx(9.99, rel=1e-6)


def test_many_candidates_are_valued_alike_in_any_number():
    generator = np.random.default_rng(1)
    mean, variance = generator.normal(size=(700, 2)), generator.random((700, 2))
    front, target = fronts.to_model_units(REPORTED), fronts.to_model_units(WORST)
    together = AREA(mean, variance, front, target)
    alone = [AREA(mean[[i]], variance[[i]], front, target)[0] for i in (0, 255, 256, 699)]
    np.testing.assert_allclose(together[[0, 255, 256, 699]], alone, rtol=1e-12)
