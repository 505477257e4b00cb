"""Poisson laws of K: Papernot & Steinke (ICLR 2022), section 3.3."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from dpjax.accounting.selection.laws.law import LogMoment, RepetitionLaw, law_family, set_field
from dpjax.checks import number

if TYPE_CHECKING:
    from dpjax.accounting.guarantee import Guarantee
    from dpjax.accounting.numerics.renyi import RenyiCurve


@law_family("poisson")
@dataclasses.dataclass(frozen=True)
class Poisson(RepetitionLaw):
    """K Poisson, K = 0 included (a data-independent default is then released).

    Example:
      >>> from dpjax import accounting
      >>> print(f"{float(accounting.Poisson(10).success_probability(0.1)):.2f}")
      0.63

    Attributes:
      mean: E[K] > 0.
    """

    mean: float

    has_formulas = True

    def __post_init__(self) -> None:
        set_field(self, "mean", number("the mean of this law", self.mean, finite=False))
        if not (math.isfinite(self.mean) and self.mean > 0.0):
            raise ValueError(f"the mean of a Poisson law must be > 0, not {self.mean}")

    @classmethod
    def of_mean(cls, mean: float) -> Poisson:
        """The law of this mean, for command lines and curves over the mean."""
        return cls(mean)

    @property
    def minimum(self) -> int:
        return 0

    def log_pmf(self, k: np.ndarray) -> np.ndarray:
        return k * math.log(self.mean) - self.mean - special.gammaln(k + 1.0)

    def generating_function(self, x: np.ndarray | float) -> np.ndarray:
        return np.exp(self.mean * (np.asarray(x, dtype=np.float64) - 1.0))

    def success_probability(self, y: np.ndarray | float) -> np.ndarray:
        return -np.expm1(-self.mean * np.asarray(y, dtype=np.float64))

    def derivative(self, y: np.ndarray | float) -> np.ndarray:
        return self.mean * np.exp(-self.mean * np.asarray(y, dtype=np.float64))

    def second_derivative(self, y: np.ndarray | float) -> np.ndarray:
        return self.mean * self.derivative(y)

    def thinned(self, failure: float) -> RepetitionLaw:
        return Poisson(self.mean * (1.0 - failure))

    def log_moment_theorem(self, guarantee: Guarantee, base: RenyiCurve) -> LogMoment:
        """Papernot & Steinke (2022), Theorem 6: D + mu delta + log(mu) / (l-1).

        delta is the base's at e^epsilon = 1 + 1/(l-1).
        """

        def log_moment(orders: np.ndarray) -> np.ndarray:
            epsilons = -np.log1p(-1.0 / orders)
            if guarantee.known_by_renyi_only:
                deltas = base.profile(epsilons, refined=True)
            else:
                # Given no failure delta is smaller, but not by a known amount: a part of
                # `parallel` may have no failure to condition on.
                deltas = guarantee.pair.delta(epsilons)
            return (orders - 1.0) * (base(orders) + self.mean * deltas) + math.log(self.mean)

        return log_moment

    def largest_log_ratio(self, epsilon: float) -> float:
        # f' is one exponential: the supremum is at the corner, x = 1/(1 + e^epsilon), h = 1 - x.
        return self.mean * math.tanh(0.5 * epsilon)
