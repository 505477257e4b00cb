"""Noise that is correlated over steps: banded matrix factorisation (BandMF).

A step adds noise of which later steps take a part off again, so that sums over steps, which is what
parameters are made of, carry less of it than independent noise would leave. With C the strategy, a
lower-triangular Toeplitz matrix with `bands` diagonals c_0, c_1, ... of Euclidean norm 1, and Z
independent Gaussian noise, step t adds row t of C^-1 Z (Choquette-Choo et al. 2023,
https://arxiv.org/abs/2306.08153; Toeplitz strategies: McKenna 2024, https://arxiv.org/abs/2405.15913).
What this costs: docs/proofs/correlated_noise.md.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import checks
from dpjax.randomness.noise import Shapes, add_gaussian_noise, cut
from dpjax.randomness.threefry import dithered_normal
from dpjax.training.lots import CyclicPoissonLots, Lots

Tree = Any
Coefficients = Mapping[str, Any]
"""What `BandedNoise.coefficients` returns; arrays of the host, or traced."""


@dataclasses.dataclass(frozen=True)
class BandedNoise:
    """Correlates the noise of up to `bands` steps in a row, by the best strategy for sums.

    Formal guarantees:
      With lots of a `cycle` of at least `bands` (`CyclicPoissonLots`), the noisy sums of all steps
      cost what `accounting.dp_sgd` says of the lots' sampling probability, the same noise
      multiplier and `lots.most_participations(steps)` steps (docs/proofs/correlated_noise.md):
      columns of C have norm at most 1, and those of a record's lots do not overlap. The cost does
      not depend on the strategy beyond that.
      In floating point: a step's noise is computed from noise alone, in float32, and its sum with
      the clipped sum is rounded to the grid of `add_gaussian_noise`. A step's independent part is
      off by some 1e-7 of its std, measured for up to 64 bands: a relative entropy of 5e-15 an
      entry. As the coarseness of the normal numbers, it is not charged.

    The strategy has the least mean squared error of all prefix sums of `steps` noises, whatever the
    learning rate: ||A C^-1||_F times the norm of c, with A the matrix of ones on and below the
    diagonal. The search for it begins at the square root of A, cut off after `bands` diagonals.

    Example:
      >>> from dpjax import training
      >>> [round(float(c), 3) for c in training.BandedNoise(3).strategy(steps=100)]
      [0.719, 0.532, 0.447]

    Attributes:
      bands: 1 is independent noise. A run keeps as many copies of what is trained, less one.
    """

    bands: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "bands", checks.whole("bands", self.bands))

    def check_lots(self, lots: Lots) -> None:
        """Refuses lots under which no cost of this noise is proven."""
        cycle = lots.cycle if isinstance(lots, CyclicPoissonLots) else 1
        if self.bands > cycle:
            raise checks.Refused(
                ("bands", self.bands),
                " has no proven cost unless a record's lots are as many steps apart: pass lots="
                f"training.CyclicPoissonLots(..., cycle={self.bands}), or fewer bands",
            )

    def strategy(self, steps: int) -> np.ndarray:
        """Returns c_0, c_1, ..., float64 (bands,), of norm 1, for a run of so many steps."""
        steps = checks.whole("steps", steps)
        return np.array(_strategy(min(self.bands, steps), steps) + (0.0,) * (self.bands - steps))

    def error(self, steps: int) -> float:
        """Returns the noise of a sum over steps, root mean square over the sums of 1 to all steps.

        It is in units of a step's own noise (noise multiplier times sensitivity). To compare
        bands, multiply by the noise multiplier of each. For one band it is sqrt((steps + 1) / 2).
        """
        steps = checks.whole("steps", steps)
        sums = _divided(np.ones(steps), self.strategy(steps))
        return math.sqrt(np.arange(steps, 0, -1.0) @ sums**2 / steps)

    def coefficients(self, steps: int, bands: int | None = None) -> Coefficients:
        """Returns what `add_correlated_noise` reads, padded to so many `bands`.

        `kept`, float32: 1 / c_0; `taken`, float32 (bands - 1,): c_j / c_0; `spread`, float32: the
        std of a step's correlated noise, divided by that of its independent part.
        """
        c = self.strategy(steps)
        response = _divided(np.eye(1, steps)[0], c)
        taken = np.zeros((bands or self.bands) - 1, np.float32)
        taken[: self.bands - 1] = c[1:] / c[0]
        return {
            "kept": np.float32(1.0 / c[0]),
            "taken": taken,
            "spread": np.float32(math.sqrt(response @ response)),
        }


def add_correlated_noise(
    key: jax.Array,
    tree: Tree,
    standard_deviation: jax.Array,
    remainder: Tree | None,
    coefficients: Coefficients,
    owed: jax.Array,
) -> tuple[Tree, jax.Array]:
    """Adds a step's noise to a pytree, as `add_gaussian_noise`; returns what is `owed` next, too.

    What is owed is written once a step. This is at least as fast as keeping former noises in a ring
    (one CPU core, 10,000 to a million entries). To remake noise from its keys would cost a draw for
    every step before.

    `standard_deviation` is that of the noise that is the step's own, before it is correlated.
    `owed`, float32 (bands - 1, entries), is what the noises of earlier steps take off those of this
    step, the next one, ..., in cells of the grid; zeros at first.
    """
    spread, owed_next = jnp.asarray(coefficients["spread"]), []

    def draw(key: jax.Array, shapes: Shapes, scale: jax.Array) -> list[jax.Array]:
        fresh = dithered_normal(key, owed.shape[1], scale / spread)
        noise = fresh * coefficients["kept"] - owed[0]
        later = jnp.concatenate([owed[1:], jnp.zeros_like(owed[:1])])
        owed_next.append(later + jnp.asarray(coefficients["taken"])[:, None] * noise[None])
        return cut(noise, shapes)

    # The grid is that of the noise in all: hardly any of it leaves 2^24 cells.
    noisy = add_gaussian_noise(key, tree, standard_deviation * spread, remainder, draw=draw)
    return noisy, owed_next[0]


@functools.lru_cache(maxsize=64)
def _strategy(bands: int, steps: int) -> tuple[float, ...]:
    """Returns the best coefficients of norm 1; with as many bands as steps at most."""
    from scipy import optimize  # Half a second to import, which only correlated noise waits for.

    weights = np.arange(steps, 0, -1.0)  # Noise t of the response is in steps - t prefix sums.
    ones = np.ones(steps)

    def error(tail: np.ndarray) -> tuple[float, np.ndarray]:
        """Returns the log of ||A C^-1||_F^2 ||c||^2 for c = (1, *tail), and its gradient."""
        c = np.append(1.0, tail)
        with np.errstate(over="ignore", invalid="ignore"):
            response = _divided(ones, c)  # The first column of A C^-1.
            if not weights @ response**2 < 1e300:
                # No strategy: its noise grows without end. A level so high sends the search back.
                return 1e3, np.zeros_like(tail)
        again = _divided(response, c)
        weighted = weights * response
        total, square = weighted @ response, c @ c
        slopes = [-2.0 * weighted[j:] @ again[: steps - j] for j in range(1, bands)]
        return math.log(total * square), np.array(slopes) / total + 2.0 * tail / square

    root = np.cumprod([1.0] + [(2 * j - 1) / (2 * j) for j in range(1, bands)])
    tail = root[1:]
    if bands > 1:
        tail = optimize.minimize(error, tail, jac=True, method="L-BFGS-B").x
    c = np.append(1.0, tail)
    return tuple(c / math.sqrt(c @ c))


def _divided(series: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Returns the power series `series` over the one with coefficients c, to as many terms."""
    from scipy import signal

    return signal.lfilter([1.0], c, series)
