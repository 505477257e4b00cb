"""Fronts and hypervolumes against definitions written out, and the units of the models."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpjax.pareto import fronts

# Few distinct values, so that ties and duplicates abound.
GRID = st.integers(0, 6).map(float)
ENDS = st.sampled_from([-np.inf, 0.0, -0.0, 1.0, np.inf])


def _points(values):
    rows = st.lists(st.tuples(values, values), max_size=12)
    return rows.map(lambda rows: np.array(rows).reshape(-1, 2))


POINTS = _points(GRID)


def _area(points, anti_ideal):
    """Area by cutting the plane at every coordinate: no sorting, no dominance."""
    xs = np.unique(np.append(points[:, 0], anti_ideal[0]))
    ys = np.unique(np.append(points[:, 1], anti_ideal[1]))
    total = 0.0
    for left, right in zip(xs[:-1], xs[1:]):
        for bottom, top in zip(ys[:-1], ys[1:]):
            inside = right <= anti_ideal[0] and top <= anti_ideal[1]
            if inside and np.any((points[:, 0] <= left) & (points[:, 1] <= bottom)):
                total += (right - left) * (top - bottom)
    return total


@given(POINTS | _points(ENDS))
@settings(max_examples=300, deadline=None)
def test_non_dominated_is_the_definition_with_the_first_of_duplicates(points):
    expected = [
        not any(
            (other <= point).all() and ((other < point).any() or (before < after))
            for before, other in enumerate(points)
            if before != after
        )
        for after, point in enumerate(points)
    ]
    mask = fronts.non_dominated(points)
    assert mask.dtype == bool and mask.shape == (len(points),)
    np.testing.assert_array_equal(mask, np.array(expected, dtype=bool))


@given(POINTS, st.tuples(GRID, GRID))
@settings(max_examples=200, deadline=None)
def test_hypervolume_is_the_dominated_area(points, anti_ideal):
    value = fronts.hypervolume(points, anti_ideal)
    assert isinstance(value, float)
    assert value == pytest.approx(_area(points, anti_ideal), abs=1e-12)


@given(POINTS)
@settings(max_examples=100, deadline=None)
def test_front_is_sorted_and_has_the_whole_hypervolume(points):
    front = fronts.front(points)
    assert (np.diff(front[:, 0]) > 0).all() and (np.diff(front[:, 1]) < 0).all()
    assert fronts.hypervolume(front, (7, 7)) == fronts.hypervolume(points, (7, 7))


def test_integer_anti_ideal_truncates_nothing():
    points = np.array([[2.5, 0.75], [7.25, 0.5]])
    expected = (7.25 - 2.5) * 0.25 + (10 - 7.25) * 0.5
    for anti_ideal in [(10, 1), [10, 1], np.array([10, 1]), (10.0, 1.0)]:
        assert fronts.hypervolume(points, anti_ideal) == pytest.approx(expected, rel=1e-14)
    assert fronts.check_anti_ideal((10, 1)).dtype == np.float64


def test_points_beyond_the_anti_ideal_and_no_points_contribute_nothing():
    assert fronts.hypervolume(np.zeros((0, 2)), (10, 1)) == 0.0
    assert fronts.hypervolume([], (10, 1)) == 0.0
    assert fronts.hypervolume([[12.0, 0.1], [np.inf, 0.1], [10.0, 0.1]], (10, 1)) == 0.0
    inside = [[1.0, 0.5]]
    assert fronts.hypervolume([*inside, [12.0, 0.0], [0.5, 1.5]], (10, 1)) == pytest.approx(4.5)
    assert fronts.front([]).shape == (0, 2)
    np.testing.assert_array_equal(
        fronts.non_dominated([[1.0, np.inf], [np.inf, 0.1], [1.0, 0.2]]), [False, True, True]
    )


def test_anti_ideal_is_checked():
    np.testing.assert_array_equal(
        fronts.check_anti_ideal((10, 1), [[11.0, 0.5], [9.0, 0.5]]), [10.0, 1.0]
    )
    with pytest.raises(ValueError, match="dominated by none of the 2 points: pass a larger one"):
        fronts.check_anti_ideal((1, 0.3), [[0.5, 0.3], [2.0, 0.1]])
    with pytest.raises(ValueError, match="none of the 0 points"):
        fronts.check_anti_ideal((1, 0.3), [])
    for wrong in [(10,), (10, 1, 1), (0, 1), (10, -1), (np.nan, 1), (np.inf, 1), "10,1", None]:
        with pytest.raises(ValueError, match="two finite positive numbers"):
            fronts.check_anti_ideal(wrong)
    with pytest.raises(ValueError, match="at most 1"):
        fronts.check_anti_ideal((10, 2))


@given(st.floats(1e-6, 1e6), st.floats(fronts.ERROR_MARGIN, 1 - fronts.ERROR_MARGIN))
@settings(max_examples=200, deadline=None)
def test_model_units_go_round(epsilon, error):
    values = fronts.to_model_units([epsilon, error])
    assert values[0] == pytest.approx(np.log(epsilon), abs=1e-12)
    assert values[1] == pytest.approx(-np.log((1 - error) / error), abs=1e-9)
    np.testing.assert_allclose(fronts.from_model_units(values), [epsilon, error], rtol=1e-11)


def test_ends_of_the_model_units():
    # .999 stands for an error of 1, as at the anti-ideal point of Avent et al. 2020.
    np.testing.assert_allclose(
        fronts.to_model_units((10, 1)), [np.log(10), np.log(999)], rtol=1e-12
    )
    np.testing.assert_allclose(
        fronts.to_model_units([[0.0, 0.0]]), [[np.log(1e-6), -np.log(999)]], rtol=1e-12
    )
    far = fronts.from_model_units([[0.0, -800.0], [0.0, 800.0]])
    np.testing.assert_allclose(far, [[1.0, 0.0], [1.0, 1.0]], atol=1e-300)
    wrongs = [(np.inf, 0.5), (-1.0, 0.5), (np.nan, 0.5), (1.0, 1.5), (1.0, -0.1), (1.0, np.nan)]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="leave failures out"):
            fronts.to_model_units(wrong)
    with pytest.raises(ValueError, match="pairs"):
        fronts.to_model_units([1.0, 0.5, 0.5])
    with pytest.raises(ValueError, match="pairs"):
        fronts.from_model_units(1.0)
