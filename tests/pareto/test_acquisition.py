"""Acquisitions: Monte Carlo integration, deterministic limits, dominated points, empty fronts."""

import numpy as np
import pytest

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
    np.testing.assert_allclose(
        acquisition.hypervolume_improvement(points, FRONT, ANTI_IDEAL), expected, atol=1e-10
    )
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
    good = np.zeros((3, 2))
    with pytest.raises(ValueError, match=r"\(m, 2\)"):
        EHVI(np.zeros((3, 3)), np.zeros((3, 3)), FRONT, ANTI_IDEAL)
    with pytest.raises(ValueError, match="variance must be >= 0"):
        EHVI(good, good - 1, FRONT, ANTI_IDEAL)
    with pytest.raises(ValueError, match="anti_ideal"):
        EHVI(good, good, FRONT, (np.inf, 1.0))
