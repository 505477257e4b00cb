"""Acquisition functions over (log epsilon, logit error), two objectives, both minimised.

Two independent Gaussians at each candidate, a front, an anti-ideal point. The plane that dominates
the anti-ideal point and no front point is cut into vertical strips: with the front sorted by its
first objective, a_1 < ... < a_k with second objectives c_1 > ... > c_k, strip i is
[a_i, a_(i+1)) x (-inf, c_i), where a_0 = -inf, c_0 and a_(k+1) are the anti-ideal point's. Both
criteria are sums over k + 1 strips of products of one-dimensional terms: exact, O(k) a candidate.

Everything is NumPy float64 and vectorised over candidates.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from dpjax.pareto import fronts

# mean (m, 2), variance (m, 2), front (k, 2), anti_ideal (2,) -> values (m,), larger is better.
Acquisition = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def checked(
    mean: ArrayLike, variance: ArrayLike, front: ArrayLike, anti_ideal: ArrayLike
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns mean and standard deviation (m, 2) and the strips' (left, right, top) (3, k + 1)."""
    mean = np.asarray(mean, dtype=np.float64)
    variance = np.asarray(variance, dtype=np.float64)
    anti_ideal = np.asarray(anti_ideal, dtype=np.float64)
    if mean.ndim != 2 or mean.shape[1] != 2 or variance.shape != mean.shape:
        raise ValueError(
            f"mean and variance must be (m, 2) alike, not {mean.shape} and {variance.shape}"
        )
    if anti_ideal.shape != (2,) or not np.isfinite(anti_ideal).all():
        raise ValueError("anti_ideal must be two finite numbers, in the units of the mean")
    if not (variance >= 0).all():
        raise ValueError("variance must be >= 0")
    front = fronts.front(front)
    front = front[(front < anti_ideal).all(axis=1)]
    left = np.append(-np.inf, front[:, 0])
    right = np.append(front[:, 0], anti_ideal[0])
    top = np.append(anti_ideal[1], front[:, 1])
    return mean, np.sqrt(variance), np.stack([left, right, top])


def _below(bound: np.ndarray, mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """P(Y < bound), (m, strips), for Y normal; mean and deviation (m,), bound (strips,)."""
    gap = bound[None, :] - mean[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        standardised = gap / deviation[:, None]
    # No deviation: a step, which is 0 at the bound itself.
    step = np.where(gap > 0, np.inf, -np.inf)
    standardised = np.where(deviation[:, None] > 0, standardised, step)
    return special.ndtr(standardised)


def _mean_below(bound: np.ndarray, mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """E max(bound - Y, 0), (m, strips), for Y normal; 0 at a bound of -inf."""
    gap = np.where(np.isfinite(bound), bound, 0.0)[None, :] - mean[:, None]
    spread = np.where(deviation > 0, deviation, 1.0)[:, None]
    standardised = gap / spread
    density = np.exp(-0.5 * np.square(standardised)) / np.sqrt(2 * np.pi)
    # Both terms are tiny and of opposite sign far below; rounding must not make the sum negative.
    value = np.maximum(gap * special.ndtr(standardised) + spread * density, 0.0)
    value = np.where(deviation[:, None] > 0, value, np.maximum(gap, 0.0))
    return np.where(np.isfinite(bound)[None, :], value, 0.0)


def expected_hypervolume_improvement(
    mean: np.ndarray, variance: np.ndarray, front: np.ndarray, anti_ideal: np.ndarray
) -> np.ndarray:
    """The expected gain in hypervolume of evaluating each candidate once, without noise.

    The gain of a point y is the area it dominates in the strips, the sum of
    (length of [y1, inf) in the strip) x (c_i - y2)+, whose expectation factorises:
    sum_i (H1(a_(i+1)) - H1(a_i)) H2(c_i) with H(t) = E max(t - Y, 0) (Emmerich, Yang, Deutz, Wang &
    Fonseca 2016, "A multicriteria generalization of Bayesian global optimization";
    here in the form of products of one-dimensional terms).

    Args:
      mean: (m, 2) posterior means of (log epsilon, logit error).
      variance: (m, 2) posterior variances, >= 0; the objectives are independent.
      front: (n, 2) points so far, in the same units; dominated ones and those that do not dominate
        `anti_ideal` change nothing; may be empty.
      anti_ideal: (2,) in the same units.

    Returns:
      Array (m,), float64, >= 0.
    """
    mean, deviation, (left, right, top) = checked(mean, variance, front, anti_ideal)
    first = (mean[:, 0], deviation[:, 0])
    width = _mean_below(right, *first) - _mean_below(left, *first)
    height = _mean_below(top, mean[:, 1], deviation[:, 1])
    return np.sum(np.maximum(width, 0.0) * height, axis=1)


def probability_of_improvement(
    mean: np.ndarray, variance: np.ndarray, front: np.ndarray, anti_ideal: np.ndarray
) -> np.ndarray:
    """The probability (m,) that a candidate dominates `anti_ideal` and no front point dominates it.

    Arguments as for `expected_hypervolume_improvement`.
    """
    mean, deviation, (left, right, top) = checked(mean, variance, front, anti_ideal)
    first = (mean[:, 0], deviation[:, 0])
    width = _below(right, *first) - _below(left, *first)
    return np.sum(np.maximum(width, 0.0) * _below(top, mean[:, 1], deviation[:, 1]), axis=1)


def hypervolume_improvement(
    points: np.ndarray, front: np.ndarray, anti_ideal: np.ndarray
) -> np.ndarray:
    """The gain in hypervolume (m,) of adding each of `points` (m, 2) alone to the front."""
    return expected_hypervolume_improvement(points, np.zeros_like(points), front, anti_ideal)


def hypervolume_probability_of_improvement(
    mean: np.ndarray, variance: np.ndarray, front: np.ndarray, anti_ideal: np.ndarray
) -> np.ndarray:
    """The criterion of Avent et al. 2020: gain of the mean, times probability of improvement.

    It is 0 wherever the mean is dominated, however wide the uncertainty; with one proposal at a
    time it can stop exploring. Source: Couckuyt, Deschrijver & Dhaene 2014, "Fast calculation of
    multiobjective probability of improvement and expected improvement criteria for Pareto
    optimization" (there the hypervolume-based probability of improvement).

    Arguments and result as for `expected_hypervolume_improvement`.
    """
    gain = hypervolume_improvement(mean, front, anti_ideal)
    return gain * probability_of_improvement(mean, variance, front, anti_ideal)
