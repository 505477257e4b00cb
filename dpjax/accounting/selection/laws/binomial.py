"""Binomial laws of K, and a fixed K."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from scipy import special

from dpjax import checks
from dpjax.accounting.selection.laws.law import (
    LARGEST_TABULATED,
    RepetitionLaw,
    law_family,
    set_field,
)


@law_family("binomial")
@dataclasses.dataclass(frozen=True)
class Binomial(RepetitionLaw):
    """K binomial: each of `trials` runs happens with this probability; K = 0 included.

    Example:
      >>> from dpjax import accounting
      >>> accounting.Binomial(20, 0.5).mean
      10.0

    Attributes:
      trials: whole number >= 1, at most a million unless the probability is 1.
      probability: in (0, 1]; 1 is `Fixed(trials)`.
    """

    trials: int
    probability: float

    has_formulas = True

    def __post_init__(self) -> None:
        set_field(self, "trials", checks.whole("trials", self.trials, 1))
        share = checks.probability("probability", self.probability, one=True)
        set_field(self, "probability", share)
        # The masses that K is drawn by lose digits beyond.
        if self.trials > LARGEST_TABULATED and share < 1.0:
            raise ValueError(
                f"trials must be at most {LARGEST_TABULATED}, not {checks.shown(self.trials)}: "
                "pass Poisson, which such a law comes near"
            )

    @classmethod
    def of_mean(cls, mean: float, trials: int = 20) -> Binomial:
        """The law of this mean, for command lines and curves over the mean."""
        trials = checks.whole("trials", trials, 1)
        if not 0 < mean <= trials:
            raise ValueError(f"trials={trials}: pass at least as many trials as the mean")
        return Binomial(trials, mean / trials)

    @property
    def mean(self) -> float:
        return self.trials * self.probability

    @property
    def minimum(self) -> int:
        return self.trials if self.probability == 1.0 else 0

    @property
    def maximum(self) -> float:
        return self.trials

    def log_pmf(self, k: np.ndarray) -> np.ndarray:
        inside = k <= self.trials
        k = np.where(inside, k, 0.0)
        rest = self.trials - k
        log_p = special.gammaln(self.trials + 1.0) - special.gammaln(k + 1.0)
        log_p = log_p - special.gammaln(rest + 1.0) + k * math.log(self.probability)
        log_p = log_p + special.xlog1py(rest, -self.probability)
        return np.where(inside, log_p, -np.inf)

    def _log_miss(self, y: np.ndarray | float) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return np.log1p(-self.probability * np.asarray(y, dtype=np.float64))

    def generating_function(self, x: np.ndarray | float) -> np.ndarray:
        hit = self.probability * np.asarray(x, dtype=np.float64)
        return ((1.0 - self.probability) + hit) ** self.trials

    def success_probability(self, y: np.ndarray | float) -> np.ndarray:
        return -np.expm1(self.trials * self._log_miss(y))

    def derivative(self, y: np.ndarray | float) -> np.ndarray:
        if self.trials == 1:
            return np.full(np.shape(y), self.mean)
        return self.mean * np.exp((self.trials - 1.0) * self._log_miss(y))

    def second_derivative(self, y: np.ndarray | float) -> np.ndarray:
        first = self.mean * (self.trials - 1.0) * self.probability
        if self.trials <= 2:
            return np.full(np.shape(y), first)
        return first * np.exp((self.trials - 2.0) * self._log_miss(y))

    def thinned(self, failure: float) -> RepetitionLaw:
        p = self.probability
        return Binomial(self.trials, p * (1.0 - failure) / (1.0 - p * failure))

    def largest_log_ratio(self, epsilon: float) -> float:
        # f' is one power of 1 - p x: the supremum is at the corner, x = 1/(1 + e^epsilon), h = 1-x.
        p, log_x = self.probability, -float(np.logaddexp(0.0, epsilon))
        with np.errstate(divide="ignore"):
            log_rare = float(np.logaddexp(np.log1p(-p), math.log(p) + log_x))
        return (self.trials - 1.0) * (math.log1p(-p * math.exp(log_x)) - log_rare)


@law_family("fixed")
class Fixed(Binomial):
    """Exactly k runs. Costly for privacy: about k times one run (Papernot & Steinke, Prop. 17).

    Example:
      >>> from dpjax import accounting
      >>> accounting.Fixed(10).mean
      10.0

    Args:
      k: whole number >= 1.
    """

    def __init__(self, k: int):
        super().__init__(checks.whole("k", k, 1), 1.0)

    @classmethod
    def of_mean(cls, mean: float) -> Fixed:  # type: ignore[override] # Its probability is 1.
        """K = mean, a whole number, for command lines and curves over the mean."""
        return cls(checks.whole("the number of runs", mean, 1))

    @property
    def k(self) -> int:
        return self.trials

    def __repr__(self) -> str:
        return f"Fixed(k={self.trials})"

    def thinned(self, failure: float) -> RepetitionLaw:
        return self
