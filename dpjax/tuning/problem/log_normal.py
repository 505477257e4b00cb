"""A law for what is roughly known beforehand: most draws lie around a public guess."""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy import special

from dpjax import checks
from dpjax.tuning.problem.space import Law, named_law

CUT = 3.0
"""Standard deviations of the logarithm that are drawn at most: one draw in 370 lies beyond them."""


@named_law("lognormal", "log_normal")
@dataclasses.dataclass(frozen=True)
class LogNormal(Law):
    """exp of a normal around log median, of standard deviation log factor, cut at three of them.

    68% of the draws lie between median / factor and median * factor, all between median /
    factor^3 and median * factor^3. A prior like any other law: the guess is public, and made before
    the data is looked at.

    Attributes:
      median: above 0; the guess, such as a default that held up on public data.
      factor: above 1; how far off it is expected to be.
    """

    median: float
    factor: float

    def __post_init__(self) -> None:
        for name in ("median", "factor"):
            number = getattr(self, name)
            object.__setattr__(self, name, checks.kept(number, checks.positive(name, number)))
        if not self.factor > 1:
            raise ValueError(f"factor={self.factor}: pass a number above 1, such as 2")

    @property
    def lowest(self) -> float:
        return float(self._at(np.array(-CUT)))

    @property
    def highest(self) -> float:
        return float(self._at(np.array(CUT)))

    def from_unit(self, unit: np.ndarray) -> np.ndarray:
        below, above = special.ndtr([-CUT, CUT])
        inside = below + np.asarray(unit, np.float64) * (above - below)
        return self._at(np.clip(special.ndtri(inside), -CUT, CUT))

    def to_unit(self, values: np.ndarray) -> np.ndarray:
        inside = np.clip(np.asarray(values, np.float64), self.lowest, self.highest)
        z = np.log(inside / self.median) / np.log(self.factor)
        below, above = special.ndtr([-CUT, CUT])
        return np.clip((special.ndtr(z) - below) / (above - below), 0.0, 1.0)

    def _at(self, z: np.ndarray) -> np.ndarray:
        return self.median * np.exp(z * np.log(self.factor))
