"""The trade-off of a pair (P, Q): the largest Q mass of an event of given P mass."""

from __future__ import annotations

import numpy as np
from scipy import special

from dpjax.accounting.numerics.loss_distribution import LossDistribution, LossPair

SMALLEST = 1e-290
"""P masses below count as 0, which is downwards: slopes between subnormal ones overflow."""


def tradeoff_vertices(reverse: LossDistribution) -> tuple[np.ndarray, np.ndarray]:
    """Returns corner points (x, h) of h(x) = sup {Q(E) : P(E) <= x}, from log(dQ/dP) under Q.

    Events are taken in Neyman-Pearson order, largest loss of Q first; between the corners events
    are randomised, so h is concave and piecewise linear. Taken from the reverse law because there
    the small P masses, p' e^{-s'}, keep all their digits. Both ascend, x rounded down and h up;
    h = 1 beyond the last x.
    """
    held = reverse.masses > 0
    masses = reverse.masses[held][::-1]
    losses = reverse.losses[held][::-1]
    h = reverse.infinity_mass + np.append(0.0, np.cumsum(masses))
    x = np.append(0.0, np.cumsum(masses * np.exp(np.minimum(-losses, 700.0))))
    x = np.where(x < SMALLEST, 0.0, x)
    # Sums of positive numbers, wrong by half a unit of rounding a term at most.
    rounding = (masses.size + 4) * 2.0**-52
    return x * (1.0 - rounding), np.minimum(h * (1.0 + rounding), 1.0)


def largest_mass(reverse: LossDistribution, x: np.ndarray) -> np.ndarray:
    """Evaluates h at the P masses x, (n,) in [0, 1]: from above if `reverse` dominates."""
    corners, heights = tradeoff_vertices(reverse)
    inside = np.interp(x, corners, heights)
    return np.where(x >= corners[-1], 1.0, inside)


def right_slopes(reverse: LossDistribution, x: np.ndarray) -> np.ndarray:
    """Returns the slope of h just right of each x, (n,): the line from (x, h(x)) is above h there.

    A piece of h is one atom of loss s, and its slope is e^s; differences of the corners would lose
    all digits at atoms lighter than the rounding of x. Beyond the last corner the slope is 0.
    """
    corners, _ = tradeoff_vertices(reverse)
    losses = reverse.losses[reverse.masses > 0][::-1]
    slopes = np.append(np.exp(np.minimum(losses, 700.0)), 0.0)
    return slopes[np.searchsorted(corners, x, side="right") - 1]


def gaussian_mu(pair: LossPair, slack: float) -> float:
    """Finds the least mu with delta(e) <= (N(mu, 1) against N(0, 1))'s delta(e) + slack, e >= 0.

    It is rounded up; inf where a revealed mass exceeds the slack.

    h is concave and piecewise linear. A profile at epsilon e >= 0 is sup h(x) - e^e x, taken at a
    corner that only pieces of loss e or more lie left of; so it is enough that each corner left of
    which all losses are at least 0 lies below the Gaussian's h, raised by the slack (Dong, Roth &
    Su 2022, Corollary 2.13, corner by corner).
    """
    largest = 0.0
    for law in {id(law): law for law in (pair.forward, pair.backward)}.values():
        x, h = tradeoff_vertices(law)
        losses = law.losses[law.masses > 0][::-1]
        count = 1 + int(np.count_nonzero(losses >= 0.0))
        x, h = x[:count], h[:count] * (1.0 + 2.0**-52) - slack
        binding = h > x
        if np.any(binding & ((x <= 0.0) | (h >= 1.0))):
            return float("inf")
        found = special.ndtri(h[binding]) - special.ndtri(x[binding])
        largest = max(largest, float(np.max(found, initial=0.0)))
    # SciPy's quantiles are right to some 1e-15, relative.
    return largest * (1.0 + 1e-12)
