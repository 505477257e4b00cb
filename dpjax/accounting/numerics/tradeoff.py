"""The trade-off of a pair (P, Q): the largest Q mass of an event of given P mass."""

from __future__ import annotations

import numpy as np

from dpjax.accounting.numerics.loss_distribution import LossDistribution

SMALLEST = 1e-290
"""P masses below count as 0, which is downwards: slopes between subnormal ones overflow."""


def tradeoff_vertices(reverse: LossDistribution) -> tuple[np.ndarray, np.ndarray]:
    """Corner points (x, h) of h(x) = sup {Q(E) : P(E) <= x}, from the law of log(dQ/dP) under Q.

    Events are taken in Neyman-Pearson order, largest loss of Q first; between the corners events
    are randomised, so h is concave and piecewise linear. Taken from the
    reverse law because there the small P masses, p' e^{-s'}, keep all their digits.

    Returns:
      x and h, each (n,), both ascending, x rounded down and h up; h = 1 beyond the last x.
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
    """h at the P masses x, (n,) in [0, 1]: an upper bound if `reverse` dominates the real law."""
    corners, heights = tradeoff_vertices(reverse)
    inside = np.interp(x, corners, heights)
    return np.where(x >= corners[-1], 1.0, inside)


def right_slopes(reverse: LossDistribution, x: np.ndarray) -> np.ndarray:
    """Slope of h just right of each x, (n,): the line from (x, h(x)) with it is above h there.

    A piece of h is one atom of loss s, and its slope is e^s; differences of the corners would lose
    all digits at atoms lighter than the rounding of x. Beyond the last corner the slope is 0.
    """
    corners, _ = tradeoff_vertices(reverse)
    losses = reverse.losses[reverse.masses > 0][::-1]
    slopes = np.append(np.exp(np.minimum(losses, 700.0)), 0.0)
    return slopes[np.searchsorted(corners, x, side="right") - 1]
