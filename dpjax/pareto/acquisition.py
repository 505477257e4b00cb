"""Acquisition functions over (log epsilon, logit error), two objectives, both minimised.

All take mean (m, 2) and variance (m, 2) of two independent Gaussians at m candidates, a front
(n, 2) and an anti-ideal point (2,), and return (m,), larger being better; dominated points of the
front, and those that do not dominate the anti-ideal point, change nothing. The points that dominate
the anti-ideal point and that no front point dominates are cut into vertical strips: with the front
sorted by its first objective, a_1 < ... < a_k, and second objectives c_1 > ... > c_k, strip i is
[a_i, a_(i+1)) x (-inf, c_i), where a_0 = -inf, c_0 and a_(k+1) are the anti-ideal point's. Every
criterion sums products of one-dimensional terms over k + 1 strips: O(k) per candidate.

Everything is NumPy float64 and vectorised over candidates.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from dpjax.pareto import fronts

Acquisition = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(32)
_REACH = 7.0  # standard deviations; 1e-12 of a normal law lies beyond
_AT_ONCE = 256  # candidates, to bound the memory of candidates x strips x nodes


def _checked(
    mean: ArrayLike, variance: ArrayLike, front: ArrayLike, anti_ideal: ArrayLike
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Checks the arguments; returns mean and std (m, 2), strips (left, right, top) (3, k + 1)."""
    mean = np.asarray(mean, dtype=np.float64)
    variance = np.asarray(variance, dtype=np.float64)
    anti_ideal = np.asarray(anti_ideal, dtype=np.float64)
    if mean.ndim != 2 or mean.shape[1] != 2 or variance.shape != mean.shape:
        raise ValueError(
            f"mean and variance must both be (m, 2), not {mean.shape} and {variance.shape}: pass "
            "a row for each candidate"
        )
    if anti_ideal.shape != (2,) or not np.isfinite(anti_ideal).all():
        raise ValueError("anti_ideal: pass two finite numbers, in the units of the mean")
    if not (variance >= 0).all():
        raise ValueError("variance must be >= 0: pass the squares of standard deviations")
    front = fronts.front(front)
    front = front[(front < anti_ideal).all(axis=1)]
    left = np.append(-np.inf, front[:, 0])
    right = np.append(front[:, 0], anti_ideal[0])
    top = np.append(anti_ideal[1], front[:, 1])
    return mean, np.sqrt(variance), np.stack([left, right, top])


# One-dimensional terms, (m, strips): bounds are (strips,); Y is normal, its mean and std (m,).


def _below(bound: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Returns P(Y < bound)."""
    gap = bound[None, :] - mean[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        standardised = gap / std[:, None]
    # Without spread the distribution function is a step, 0 at the bound itself.
    step = np.where(gap > 0, np.inf, -np.inf)
    standardised = np.where(std[:, None] > 0, standardised, step)
    return special.ndtr(standardised)


def _mean_below(bound: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Returns E max(bound - Y, 0), 0 at a bound of -inf."""
    gap = np.where(np.isfinite(bound), bound, 0.0)[None, :] - mean[:, None]
    spread = np.where(std > 0, std, 1.0)[:, None]
    standardised = gap / spread
    density = np.exp(-0.5 * np.square(standardised)) / np.sqrt(2 * np.pi)
    # Far below the mean the terms nearly cancel; rounding must not make their sum negative.
    value = np.maximum(gap * special.ndtr(standardised) + spread * density, 0.0)
    value = np.where(std[:, None] > 0, value, np.maximum(gap, 0.0))
    return np.where(np.isfinite(bound)[None, :], value, 0.0)


def _epsilon_below(bound: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Returns E max(e^bound - e^Y, 0), 0 at a bound of -inf: the Black-Scholes formula of a put."""
    finite = np.where(np.isfinite(bound), bound, 0.0)[None, :]
    mean, spread = mean[:, None], np.where(std > 0, std, 1.0)[:, None]
    standardised = (finite - mean) / spread
    paid = np.exp(mean + 0.5 * spread**2 + special.log_ndtr(standardised - spread))
    value = np.exp(finite) * special.ndtr(standardised) - paid
    certain = np.exp(finite) - np.exp(np.minimum(mean, finite))
    value = np.where(std[:, None] > 0, np.maximum(value, 0.0), certain)
    return np.where(np.isfinite(bound)[None, :], value, 0.0)


def _error_below(bound: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Returns E max(s(bound) - s(Y), 0) with s(x) = 1 / (1 + e^-x); all are (m,), bounds too.

    By Gauss-Legendre nodes up to the kink, to 1e-4 of the value for std up to 4.
    """
    spread = np.where(std > 0, std, 1.0)[:, None]
    end = np.clip((bound[:, None] - mean[:, None]) / spread, -_REACH, _REACH)
    half = 0.5 * (end + _REACH)
    nodes = half * (1.0 + _NODES) - _REACH
    density = np.exp(-0.5 * np.square(nodes)) / np.sqrt(2 * np.pi)
    gain = special.expit(bound)[:, None] - special.expit(mean[:, None] + spread * nodes)
    value = np.sum(half * _WEIGHTS * density * np.maximum(gain, 0.0), axis=1)
    certain = np.maximum(special.expit(bound) - special.expit(mean), 0.0)
    return np.where(std > 0, value, certain)


def expected_hypervolume_improvement(
    mean: np.ndarray, variance: np.ndarray, front: np.ndarray, anti_ideal: np.ndarray
) -> np.ndarray:
    """Returns the expected gain in hypervolume of evaluating each candidate once, without noise.

    The gain of a point y is the area it dominates in the strips, the sum of
    (length of [y1, inf) in the strip) x (c_i - y2)+, whose expectation factorises:
    sum_i (H1(a_(i+1)) - H1(a_i)) H2(c_i) with H(t) = E max(t - Y, 0) (Emmerich, Yang, Deutz, Wang &
    Fonseca 2016, "A multicriteria generalization of Bayesian global optimization";
    here in the form of products of one-dimensional terms).
    """
    mean, std, (left, right, top) = _checked(mean, variance, front, anti_ideal)
    first = (mean[:, 0], std[:, 0])
    width = _mean_below(right, *first) - _mean_below(left, *first)
    height = _mean_below(top, mean[:, 1], std[:, 1])
    return np.sum(np.maximum(width, 0.0) * height, axis=1)


def expected_hypervolume_improvement_in_original_units(
    mean: np.ndarray, variance: np.ndarray, front: np.ndarray, anti_ideal: np.ndarray
) -> np.ndarray:
    """Returns the expected gain in hypervolume of (epsilon, error); arguments are in model units.

    In model units a step from epsilon 0.01 to 0.001 gains as much as one from 10 to 1, though the
    first hardly changes the hypervolume that a search is scored by. Here the same sum over strips
    uses H1 of the log-normal epsilon and H2 of the logit-normal error.
    """
    mean, std, (left, right, top) = _checked(mean, variance, front, anti_ideal)
    values = np.zeros(len(mean))
    for start in range(0, len(mean), _AT_ONCE):
        rows = slice(start, start + _AT_ONCE)
        first = (mean[rows, 0], std[rows, 0])
        width = _epsilon_below(right, *first) - _epsilon_below(left, *first)
        # The integral is the slow part: where it or its factor is 0, it is left out.
        error, spread = mean[rows, 1], std[rows, 1]
        within = top[None, :] > (error - _REACH * spread)[:, None]
        row, strip = np.nonzero((width > 0) & within)
        gains = width[row, strip] * _error_below(top[strip], error[row], spread[row])
        values[rows] = np.bincount(row, gains, minlength=len(error))
    return values


def probability_of_improvement(
    mean: np.ndarray, variance: np.ndarray, front: np.ndarray, anti_ideal: np.ndarray
) -> np.ndarray:
    """Returns P(a candidate dominates the anti-ideal point and no front point dominates it)."""
    mean, std, (left, right, top) = _checked(mean, variance, front, anti_ideal)
    first = (mean[:, 0], std[:, 0])
    width = _below(right, *first) - _below(left, *first)
    return np.sum(np.maximum(width, 0.0) * _below(top, mean[:, 1], std[:, 1]), axis=1)


def hypervolume_probability_of_improvement(
    mean: np.ndarray, variance: np.ndarray, front: np.ndarray, anti_ideal: np.ndarray
) -> np.ndarray:
    """Returns the criterion of Avent et al. 2020: the mean's gain times P(improvement).

    It is 0 wherever the mean is dominated, however wide the uncertainty; with one proposal at a
    time it can stop exploring. Source: Couckuyt, Deschrijver & Dhaene 2014, "Fast calculation of
    multiobjective probability of improvement and expected improvement criteria for Pareto
    optimization" (there the hypervolume-based probability of improvement).
    """
    gain = expected_hypervolume_improvement(mean, np.zeros_like(mean), front, anti_ideal)
    return gain * probability_of_improvement(mean, variance, front, anti_ideal)
