"""An adversary of fixed lots, who chooses the other records at each step by the loss so far.

A lot of fixed size that misses the replaced record holds another record in its place. That other
record may be like the new one or like the old one, and which is worse depends on what was released
before. The adversary decides at each step, and the value of this game is solved backwards on a grid
of losses. A grid's error falls with the square of its step, so two grids give the value.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import fft, optimize, stats

_TAIL = 10.0
"""Standard deviations of a step's noise that are looked at."""


def kernel(losses: np.ndarray, masses: np.ndarray, step: float, reach: int) -> np.ndarray:
    """Masses on the grid of 2 * reach + 1 losses, which keep E[exp(-loss)] and the total."""
    below = np.floor(losses / step)
    low, high = np.exp(-below * step), np.exp(-(below + 1) * step)
    share = (low - np.exp(-losses)) / (low - high)
    found = np.zeros(2 * reach + 1)
    np.add.at(found, below.astype(int) + reach, masses * (1.0 - share))
    np.add.at(found, below.astype(int) + reach + 1, masses * share)
    return found


def delta_on_grid(
    q: float, noise: float, steps: int, epsilon: float, others: str, step: float
) -> float:
    """The game's delta on one grid, slightly too large; `others` is "new", "old" or "either"."""
    z = np.linspace(-_TAIL * noise, _TAIL * noise + 1.0, 200_001)
    never, always = (stats.norm.pdf(z, moved, noise) * (z[1] - z[0]) for moved in (0.0, 1.0))
    sampled = (1.0 - q) * never + q * always
    loss = np.log1p(q * np.expm1((z - 0.5) / noise**2))
    reach = int(np.abs(loss).max() / step) + 2
    kernels = {
        "new": [kernel(loss, sampled, step, reach)],
        "old": [kernel(-loss, never, step, reach)],
    }
    kernels["either"] = kernels["new"] + kernels["old"]
    places = np.arange(int(-5.0 / step), int((epsilon + 6.0) / step) + 1)
    size = fft.next_fast_len(places.size + 2 * reach)
    moves = [fft.rfft(one[::-1], size) for one in kernels[others]]
    value = np.maximum(0.0, -np.expm1(epsilon - places * step))
    for _ in range(steps):
        # A loss beyond those kept is worth as much as the nearest of them.
        spectrum = fft.rfft(np.pad(value, reach, mode="edge"), size)
        following = [fft.irfft(spectrum * move, size) for move in moves]
        value = np.maximum.reduce(following)[2 * reach : 2 * reach + places.size]
        value = np.clip(value, 0.0, 1.0)
    return float(value[-places[0]])


def delta_reached(
    q: float,
    noise: float,
    steps: int,
    epsilon: float,
    others: str = "either",
    step: float = 1e-3,
) -> float:
    """The delta that fixed lots cost at an epsilon, to about one part in a thousand.

    Args:
      q: lot size / number of records.
      noise, steps: as in `accounting.dp_sgd_fixed_lots`.
      epsilon: below or about what is stated; beyond it the value is lost in rounding.
      others: the other records are always like the "new" one, like the "old" one, or "either".
      step: distance of two losses of the finer grid, in nats.
    """
    fine, coarse = (delta_on_grid(q, noise, steps, epsilon, others, s) for s in (step, 2 * step))
    return fine * (fine / coarse) ** (1.0 / 3.0)


def reached(dataset_size: int, lot_size: int, noise: float, steps: int, delta: float) -> float:
    """The epsilon that fixed lots cost at a delta, to about 0.001."""
    q = lot_size / dataset_size
    return optimize.brentq(
        lambda epsilon: math.log(delta_reached(q, noise, steps, epsilon) / delta),
        *(1.5, 3.0),
        xtol=5e-4,
    )
