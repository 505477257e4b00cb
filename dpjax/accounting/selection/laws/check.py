"""Do the functions of a law of K belong to its pmf? Asked before a law of one's own is priced."""

from __future__ import annotations

import math
from typing import Any, NoReturn

import numpy as np

from dpjax.accounting.selection.laws.law import (
    DRAWING,
    LARGEST_TABULATED,
    RepetitionLaw,
    law_from_dict,
)

LONGEST_SUM = 1 << 18
"""Masses summed of a law without a largest K."""

POINTS = np.array([0.0, 1e-12, 1e-8, 1e-6, 1e-4, 1e-3, 0.01, 0.1, 0.3, 0.5, 0.8, 0.99, 1.0])
"""Values of y at which sums over the pmf are compared."""

TOLERANCE = 1e-6
"""Relative disagreement allowed; the formulas of the library's own laws keep 1e-9."""


def check_law(law: RepetitionLaw) -> None:
    """Refuses a law whose pmf, mean, ends and functions contradict each other, or that draws apart.

    The pmf is summed up to the largest K (without one up to 2^18, the rest bounded by the mass and
    mean that remain) and compared with every function at a few points; on a fine grid f' and f''
    must not rise with y, and f'' must be the slope of f'. What passes all this and is still wrong
    is priced as what its functions say. A family of the library has nothing to compare.

    Raises:
      ValueError: the first disagreement.
    """
    own = [name for name in DRAWING if getattr(type(law), name) is not getattr(RepetitionLaw, name)]
    if own:
        _refuse(law, f"it has {own[0]} of its own, and is priced by log_pmf: leave {own[0]} out")
    if law.proved:
        return
    mean, minimum, maximum = _ends(law)
    top = int(min(maximum, LARGEST_TABULATED if math.isfinite(maximum) else LONGEST_SUM))
    k = np.arange(top + 1.0)
    with np.errstate(divide="ignore"):
        masses = np.exp(np.asarray(law.log_pmf(k), dtype=np.float64))
    if masses.shape != k.shape or not np.all(np.isfinite(masses)):
        _refuse(law, "log_pmf must give one value below infinity for each k, and no NaN")
    total = float(masses.sum())
    rest = 1.0 - total
    complete = maximum <= top
    if abs(rest) > 1e-9 and (complete or rest < 0.0):
        _refuse(law, f"its masses sum to {total:.12g}, not to 1")
    rest = 0.0 if complete else max(rest, 0.0)
    if np.any(masses[:minimum] > 0.0):
        _refuse(law, f"minimum is {minimum}, and smaller K have positive mass")
    known = float(k @ masses)
    if known > mean * (1.0 + TOLERANCE) or (complete and known < mean * (1.0 - TOLERANCE)):
        _refuse(law, f"mean is {mean:.9g}, and the pmf's is {known:.9g}")
    _compare_sums(law, masses, rest, max(0.0, mean - known))
    _compare_slopes(law)
    _compare_plain_values(law, k[: 1 << 12])


def _ends(law: RepetitionLaw) -> tuple[float, int, float]:
    mean: Any = getattr(law, "mean", None)
    try:
        mean, maximum = float(mean), float(law.maximum)
    except (TypeError, ValueError):
        _refuse(law, f"mean and maximum must be numbers, not {mean!r} and {law.maximum!r}")
    if not (math.isfinite(mean) and mean > 0.0):
        _refuse(law, f"mean must be finite and > 0, not {mean}")
    if not (maximum >= 1.0 and (math.isinf(maximum) or maximum == math.floor(maximum))):
        _refuse(law, f"maximum must be a whole number >= 1, or infinite, not {maximum}")
    minimum = law.minimum
    if not (minimum >= 0 and minimum == int(minimum) and minimum <= maximum):
        _refuse(law, f"minimum must be a whole number from 0 to maximum, not {minimum}")
    return mean, int(minimum), maximum


def _compare_sums(law: RepetitionLaw, masses: np.ndarray, rest: float, rest_mean: float) -> None:
    """Each function against its sum; `rest` of the mass and `rest_mean` of E[K] lie beyond."""
    k = np.flatnonzero(masses).astype(np.float64)
    masses = masses[masses > 0.0]
    last = float(k[-1]) if rest == 0.0 else LONGEST_SUM
    with np.errstate(divide="ignore", under="ignore"):
        for y in POINTS.tolist():
            # What lies beyond has (1 - y)^(k-1) of at most this.
            shrunk = (1.0 - y) ** last
            powers = (1.0 - y) ** k
            plain = float(powers @ masses)
            _agree(law, "generating_function", 1.0 - y, plain, plain + rest * shrunk, 1e-9)
            hit = (
                float(-np.expm1(k * np.log1p(-y))[k > 0] @ masses[k > 0])
                if y < 1.0
                else (float(masses[k > 0].sum()))
            )
            _agree(law, "success_probability", y, hit, hit + rest, 1e-9)
            used = k >= 1
            slope = float((k * masses)[used] @ (1.0 - y) ** (k[used] - 1.0))
            _agree(law, "derivative", y, slope, slope + rest_mean * shrunk, 1e-300)
            used = k >= 2
            bend = float((k * (k - 1.0) * masses)[used] @ (1.0 - y) ** (k[used] - 2.0))
            # (k-1) (1-y)^(k-2) is largest at k - 1 = 1/y.
            most = max(last, 1.0 / y) if y > 0.0 else math.inf
            beyond = rest_mean * most * (1.0 - y) ** (last - 1.0) if rest_mean > 0.0 else 0.0
            _agree(law, "second_derivative", y, bend, bend + beyond, 1e-300)


def _agree(
    law: RepetitionLaw, name: str, at: float, low: float, high: float, absolute: float
) -> None:
    found = float(getattr(law, name)(at))
    if not low * (1.0 - TOLERANCE) - absolute <= found <= high * (1.0 + TOLERANCE) + absolute:
        _refuse(law, f"{name}({at:g}) is {found:.9g}, and the pmf's is {low:.9g}")


def _compare_slopes(law: RepetitionLaw) -> None:
    """Monotone derivatives, and the second the slope of the first, on 800 cells."""
    y = np.unique(np.concatenate([[0.0], np.geomspace(1e-9, 1.0, 400), np.linspace(0.0, 1.0, 401)]))
    first = np.asarray(law.derivative(y), dtype=np.float64)
    second = np.asarray(law.second_derivative(y), dtype=np.float64)
    slack = TOLERANCE * first[:-1]
    if not (np.all(first >= 0.0) and np.all(np.diff(first) <= slack)):
        _refuse(law, "derivative must be >= 0 and not rise with y")
    if not (np.all(second >= 0.0) and np.all(np.diff(second) <= TOLERANCE * second[:-1])):
        _refuse(law, "second_derivative must be >= 0 and not rise with y")
    drop, width = -np.diff(first), np.diff(y)
    if np.any(drop > second[:-1] * width + slack) or np.any(drop < second[1:] * width - slack):
        _refuse(law, "second_derivative is not the slope of derivative")


def _compare_plain_values(law: RepetitionLaw, k: np.ndarray) -> None:
    """A law written under another one's name would be rebuilt, and verified, as that one."""
    try:
        rebuilt = law_from_dict(law.to_dict())
    except ValueError:
        return  # Nothing can be rebuilt from these values, and whoever tries reads so.
    k = k[k <= min(law.maximum, rebuilt.maximum)]
    same = np.allclose(law.pmf(k), rebuilt.pmf(k), rtol=TOLERANCE, atol=1e-12)
    if not (same and law.maximum == rebuilt.maximum and math.isclose(law.mean, rebuilt.mean)):
        _refuse(law, f"to_dict() describes another law, {rebuilt!r}")


def _refuse(law: RepetitionLaw, what: str) -> NoReturn:
    raise ValueError(f"the law of K {type(law).__name__} contradicts itself: {what}")
