"""Laws of K with a largest value: binomial, fixed, and any law conditioned on a cap."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
from scipy import special

from dpjax.accounting.repetition_law import RepetitionLaw, set_field, whole_number


@dataclasses.dataclass(frozen=True)
class Binomial(RepetitionLaw):
    """K binomial: each of `trials` runs happens with this probability; K = 0 included.

    Attributes:
      trials: whole number >= 1.
      probability: in (0, 1]; 1 is `Fixed(trials)`.
    """

    trials: int
    probability: float

    def __post_init__(self) -> None:
        set_field(self, "trials", whole_number("trials", self.trials, 1))
        set_field(self, "probability", float(self.probability))
        if not 0.0 < self.probability <= 1.0:
            raise ValueError(f"probability must be in (0, 1], not {self.probability}")

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

    def to_dict(self) -> dict[str, Any]:
        return {"law": "binomial", "trials": self.trials, "probability": self.probability}


class Fixed(Binomial):
    """Exactly k runs. Costly for privacy: about k times one run (Papernot & Steinke, Prop. 17).

    Args:
      k: whole number >= 1.
    """

    def __init__(self, k: int):
        super().__init__(whole_number("k", k, 1), 1.0)

    def __repr__(self) -> str:
        return f"Fixed(k={self.trials})"

    def thinned(self, failure: float) -> RepetitionLaw:
        return self

    def to_dict(self) -> dict[str, Any]:
        return {"law": "fixed", "k": self.trials}


@dataclasses.dataclass(frozen=True)
class AtMost(RepetitionLaw):
    """A law conditioned on K <= cap: drawn again until it fits, never min(K, cap).

    Attributes:
      law: the law to condition.
      cap: whole number >= max(1, law.minimum).
    """

    law: RepetitionLaw
    cap: int

    def __post_init__(self) -> None:
        if not isinstance(self.law, RepetitionLaw):
            raise ValueError(f"AtMost needs a law of K, such as Geometric(10), not {self.law!r}")
        set_field(self, "cap", whole_number("cap", self.cap, max(1, self.law.minimum)))
        if self.cap > 1_000_000:
            raise ValueError(f"cap must be at most 1,000,000, not {self.cap}")

    @functools.cached_property
    def _table(self) -> tuple[np.ndarray, np.ndarray]:
        """k = 0..cap and P[K = k]; each (cap + 1,)."""
        k = np.arange(min(self.cap, self.law.maximum) + 1, dtype=np.float64)
        with np.errstate(divide="ignore"):
            logs = self.law.log_pmf(k)
        weights = np.exp(logs - logs.max())
        return k, weights / weights.sum()

    @functools.cached_property
    def kept(self) -> float:
        """P[the inner law <= cap]."""
        k, _ = self._table
        with np.errstate(divide="ignore"):
            return min(1.0, float(np.exp(self.law.log_pmf(k)).sum()))

    @functools.cached_property
    def mean(self) -> float:
        k, p = self._table
        return float(np.sum(k * p))

    @property
    def minimum(self) -> int:
        return self.law.minimum

    @property
    def maximum(self) -> float:
        return min(self.cap, self.law.maximum)

    def log_pmf(self, k: np.ndarray) -> np.ndarray:
        support, p = self._table
        k = np.asarray(k, dtype=np.float64)
        inside = k < support.size
        chosen = p[np.where(inside, k, 0.0).astype(np.int64)]
        with np.errstate(divide="ignore"):
            return np.where(inside, np.log(chosen), -np.inf)

    def generating_function(self, x: np.ndarray | float) -> np.ndarray:
        return _polynomial(self._table[1], np.asarray(x, dtype=np.float64))

    def success_probability(self, y: np.ndarray | float) -> np.ndarray:
        k, p = self._table
        y = np.asarray(y, dtype=np.float64)
        with np.errstate(divide="ignore"):
            log_miss = np.log1p(-y)
        total = np.zeros(y.shape)
        for count, weight in zip(k[1:], p[1:]):
            total = total - weight * np.expm1(count * log_miss)
        return total

    def derivative(self, y: np.ndarray | float) -> np.ndarray:
        k, p = self._table
        return _polynomial((k * p)[1:], 1.0 - np.asarray(y, dtype=np.float64))

    def second_derivative(self, y: np.ndarray | float) -> np.ndarray:
        k, p = self._table
        return _polynomial((k * (k - 1.0) * p)[2:], 1.0 - np.asarray(y, dtype=np.float64))

    def thinned(self, failure: float) -> RepetitionLaw:
        return AtMost(self.law.thinned(failure), self.cap)

    def to_dict(self) -> dict[str, Any]:
        return {"law": "at_most", "inner": self.law.to_dict(), "cap": self.cap}


def _polynomial(coefficients: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Horner's rule for non-negative coefficients, lowest first, at x in [0, 1]."""
    # Top coefficients far below the rounding of the sum at x = 1 change no digit.
    rest = np.cumsum(coefficients[::-1])
    useful = int(np.count_nonzero(rest > 1e-25 * rest[-1])) if rest.size else 0
    total = np.zeros(x.shape)
    for coefficient in coefficients[:useful][::-1]:
        total = total * x + coefficient
    return total
