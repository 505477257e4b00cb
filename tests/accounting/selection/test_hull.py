"""The upper hull of points, however many rounds it takes, is that of the definition."""

import itertools

import numpy as np
import pytest

from dpjax.accounting.selection.envelope import upper_hull

GENERATOR = np.random.default_rng(4)
# Concave, then one point above: a round takes the last vertex but one alone.
SLOW = (np.arange(120.0), np.append(np.sqrt(np.arange(119.0)), 1e4))
CASES = {
    "drawn": tuple(GENERATOR.normal(size=(2, 60))),
    "drawn, equal abscissas": (GENERATOR.integers(0, 9, 60) * 1.0, GENERATOR.normal(size=60)),
    "one vertex a round": SLOW,
    "one vertex a round, from the other side": (-SLOW[0], SLOW[1]),
    "rising again and again": (np.arange(90.0), np.sqrt(np.arange(90.0)) + np.arange(90) // 45),
    "two": (np.array([1.0, 0.0]), np.array([3.0, 2.0])),
}


def _above(a, b, x):
    """The largest chord at x."""
    best = max(b[a == x], default=-np.inf)
    for (p, u), (q, v) in itertools.combinations(zip(a, b), 2):
        if min(p, q) < x < max(p, q):
            best = max(best, u + (v - u) * (x - p) / (q - p))
    return best


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_least_concave_function_above_all_points(name):
    a, b = CASES[name]
    hull_a, hull_b = upper_hull(a, b)
    assert np.all(np.diff(hull_a) > 0)
    for x in np.unique(a)[:: max(1, len(a) // 12)]:
        assert np.interp(x, hull_a, hull_b) == pytest.approx(_above(a, b, x), abs=1e-9)
    # Every vertex is one of the points, and turns.
    assert set(zip(hull_a, hull_b)) <= set(zip(a, b))
    if len(hull_a) > 2:
        assert np.all(np.diff(np.diff(hull_b) / np.diff(hull_a)) < 0)
