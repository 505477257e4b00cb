"""Pareto fronts of (epsilon, 1 - utility): non-dominated points, hypervolume, model units.

A point is a pair (epsilon, error) with error = 1 - utility, both minimised. The quality of a set of
points is its hypervolume: the area dominated by the set and dominating an anti-ideal point (Zitzler
& Thiele 1999). Everything is NumPy float64.

Nothing here is private: a front is a function of utilities measured on data. Noise in measured
utilities also makes the front of the measured points look better than it is (the winner's curse);
evaluate its settings again before quoting a hypervolume.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from dpjax import checks

# Errors are clipped to [this, 1 - this] before the logit: 0.999 stands for 1, as in Avent et
# al. 2020; epsilons below the smallest are as good as it.
ERROR_MARGIN = 1e-3
SMALLEST_EPSILON = 1e-6


def _points(points: ArrayLike) -> np.ndarray:
    """Returns a checked (n, 2) float64 array; an empty list gives (0, 2)."""
    points = checks.array("points", points, nan=True)
    if points.size == 0:
        return points.reshape(0, 2)
    if points.ndim != 2 or points.shape[1] != 2:
        raise ValueError(f"points have shape {points.shape}: pass pairs (epsilon, error), (n, 2)")
    if np.isnan(points).any():
        raise ValueError("points hold a NaN: leave failed evaluations out")
    return points


def check_anti_ideal(anti_ideal: ArrayLike, points: ArrayLike | None = None) -> np.ndarray:
    """Checks an anti-ideal point and returns it as floats (2,).

    Args:
      anti_ideal: (epsilon, error), the worst values that still count, for instance (10, 1).
      points: evaluated points (n, 2); when given, at least one has to dominate `anti_ideal`.
    """
    wanted = "two finite positive numbers (epsilon, error), for example (10, 1)"
    anti_ideal = checks.array("anti_ideal", anti_ideal, wanted)
    if anti_ideal.shape != (2,) or not np.isfinite(anti_ideal).all() or (anti_ideal <= 0).any():
        raise checks.refused("anti_ideal", anti_ideal, wanted)
    if anti_ideal[1] > 1:
        raise ValueError(f"anti_ideal error {anti_ideal[1]}: pass 1 - utility, at most 1")
    if points is not None:
        points = _points(points)
        if not (points < anti_ideal).all(axis=1).any():
            least = points.min(axis=0) if len(points) else np.full(2, np.nan)
            raise ValueError(
                f"anti_ideal ({anti_ideal[0]:g}, {anti_ideal[1]:g}) is dominated by none of the "
                f"{len(points)} points: pass a larger one (the least epsilon seen is "
                f"{least[0]:.3g}, the least error {least[1]:.3g})"
            )
    return anti_ideal


def non_dominated(points: ArrayLike) -> np.ndarray:
    """Marks the points that no other point dominates, (n,) bool.

    Of exact duplicates only the first is kept; a point that equals another in one objective and is
    worse in the other is dominated.

    Args:
      points: (n, 2), both columns minimised. Infinities are allowed, NaN is not.
    """
    points = _points(points)
    # By epsilon, then error, then place: whatever dominates a point or equals it comes before it.
    order = np.lexsort((points[:, 1], points[:, 0]))
    errors = points[order, 1]
    kept = np.ones(len(points), dtype=bool)
    kept[order[1:]] = errors[1:] < np.minimum.accumulate(errors)[:-1]
    return kept


def front(points: ArrayLike) -> np.ndarray:
    """Returns the non-dominated points (k, 2) by increasing epsilon, hence decreasing error.

    Example:
      >>> from dpjax import pareto
      >>> pareto.front([[1.0, 0.2], [2.0, 0.1], [2.0, 0.3]]).tolist()
      [[1.0, 0.2], [2.0, 0.1]]
    """
    found = _points(points)
    found = found[non_dominated(found)]
    return found[np.argsort(found[:, 0], kind="stable")]


def hypervolume(points: ArrayLike, anti_ideal: ArrayLike) -> float:
    """Returns the area that dominates `anti_ideal` and is dominated by some point.

    Example:
      >>> from dpjax import pareto
      >>> pareto.hypervolume([[1.0, 0.5], [2.0, 0.25]], (10.0, 1.0))
      6.5

    Args:
      points: (n, 2); points that do not dominate `anti_ideal` contribute nothing.
      anti_ideal: (2,) worst values that count, in the units of `points` (any units: this is plain
        geometry; `check_anti_ideal` checks one in units of (epsilon, error)).
    """
    points = _points(points)
    anti_ideal = checks.array("anti_ideal", anti_ideal, "two finite numbers")
    if anti_ideal.shape != (2,) or not np.isfinite(anti_ideal).all():
        raise ValueError("anti_ideal must be two finite numbers")
    steps = front(points[(points < anti_ideal).all(axis=1)])
    # Strips, from each point's epsilon to the next one's.
    widths = np.diff(np.append(steps[:, 0], anti_ideal[0]))
    return float(widths @ (anti_ideal[1] - steps[:, 1]))


def to_model_units(points: ArrayLike) -> np.ndarray:
    """Returns (log epsilon, logit error) of points (n, 2) or (2,): the units of the processes.

    The logit of the error is minus the logit of the utility, so modelling one is modelling the
    other. Errors are clipped to [0.001, 0.999] first, epsilons to 1e-6 from below; an anti-ideal
    point is taken to model units by the same function (Avent et al. 2020, section 4).
    """
    points = np.asarray(points, dtype=np.float64)
    if points.shape[-1:] != (2,):
        raise ValueError(f"points must be pairs (epsilon, error), not of shape {points.shape}")
    epsilon, error = points[..., 0], points[..., 1]
    if not (np.isfinite(epsilon) & (epsilon >= 0) & (error >= 0) & (error <= 1)).all():
        raise ValueError("epsilon must be finite and >= 0, error in [0, 1]: leave failures out")
    error = np.clip(error, ERROR_MARGIN, 1 - ERROR_MARGIN)
    epsilon = np.maximum(epsilon, SMALLEST_EPSILON)
    return np.stack([np.log(epsilon), np.log(error) - np.log1p(-error)], axis=-1)


def from_model_units(values: ArrayLike) -> np.ndarray:
    """Returns (epsilon, error) of (log epsilon, logit error): the inverse of `to_model_units`."""
    values = np.asarray(values, dtype=np.float64)
    if values.shape[-1:] != (2,):
        raise ValueError(f"values must be pairs, not of shape {values.shape}")
    # 1 / (1 + exp(-x)) by tanh: no overflow at either end.
    return np.stack([np.exp(values[..., 0]), 0.5 * (1.0 + np.tanh(0.5 * values[..., 1]))], axis=-1)
