"""Laws of K with a largest value: binomial, fixed, a table, any law conditioned on a cap."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from dpjax import checks
from dpjax.accounting.repetition_law import (
    LARGEST_TABULATED,
    LogMoment,
    RepetitionLaw,
    set_field,
)

if TYPE_CHECKING:
    from dpjax.accounting.guarantee import Guarantee
    from dpjax.accounting.renyi import RenyiCurve


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
        set_field(self, "trials", checks.whole("trials", self.trials, 1))
        share = checks.probability("probability", self.probability, one=True)
        set_field(self, "probability", share)

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

    def check(self) -> None:
        """Nothing to compare: the formulas are the family's."""

    def largest_log_ratio(self, epsilon: float) -> float:
        # f' is one power of 1 - p x: the supremum is at the corner, x = 1/(1 + e^epsilon), h = 1-x.
        p, log_x = self.probability, -float(np.logaddexp(0.0, epsilon))
        with np.errstate(divide="ignore"):
            log_rare = float(np.logaddexp(np.log1p(-p), math.log(p) + log_x))
        return (self.trials - 1.0) * (math.log1p(-p * math.exp(log_x)) - log_rare)

    def to_dict(self) -> dict[str, Any]:
        return {"law": "binomial", "trials": self.trials, "probability": self.probability}


class Fixed(Binomial):
    """Exactly k runs. Costly for privacy: about k times one run (Papernot & Steinke, Prop. 17).

    Args:
      k: whole number >= 1.
    """

    def __init__(self, k: int):
        super().__init__(checks.whole("k", k, 1), 1.0)

    def __repr__(self) -> str:
        return f"Fixed(k={self.trials})"

    def thinned(self, failure: float) -> RepetitionLaw:
        return self

    def to_dict(self) -> dict[str, Any]:
        return {"law": "fixed", "k": self.trials}


@dataclasses.dataclass(frozen=True)
class Tabulated(RepetitionLaw):
    """K drawn by a table of probabilities.

    Attributes:
      k: (n,) whole numbers >= 0, ascending, at most a million.
      masses: (n,) P[K = k], > 0, that sum to 1.

    Raises:
      ValueError: k not ascending whole numbers, or masses that are no probabilities.
    """

    k: tuple[int, ...]
    masses: tuple[float, ...]

    def __init__(self, k: Sequence[int], masses: Sequence[float]):
        values, shares = checks.vector("k", k).tolist(), checks.vector("masses", masses)
        set_field(self, "k", tuple(checks.whole("k", value, 0) for value in values))
        set_field(self, "masses", tuple(shares.tolist()))
        if not self.k or len(self.k) != len(self.masses) or np.any(np.diff(self.k) <= 0):
            raise ValueError("a table needs ascending k and as many masses")
        if self.k[-1] > LARGEST_TABULATED:
            raise ValueError(f"k must be at most {LARGEST_TABULATED}, not {self.k[-1]}")
        total = math.fsum(self.masses)
        if not (min(self.masses) > 0.0 and abs(total - 1.0) <= 1e-9):
            raise ValueError(f"masses must be > 0 and sum to 1, not to {total}")

    @functools.cached_property
    def _table(self) -> np.ndarray:
        table = np.zeros(self.k[-1] + 1)
        table[list(self.k)] = self.masses
        return table

    @functools.cached_property
    def mean(self) -> float:
        return math.fsum(k * mass for k, mass in zip(self.k, self.masses))

    @property
    def minimum(self) -> int:
        return self.k[0]

    @property
    def maximum(self) -> float:
        return self.k[-1]

    def log_pmf(self, k: np.ndarray) -> np.ndarray:
        place = np.minimum(np.searchsorted(self.k, k), len(self.k) - 1)
        found = np.asarray(self.k)[place] == k
        with np.errstate(divide="ignore"):
            return np.log(np.where(found, np.asarray(self.masses)[place], 0.0))

    def check(self) -> None:
        """Nothing to compare: every function is derived from the table."""

    def to_dict(self) -> dict[str, Any]:
        return {"law": "tabulated", "k": list(self.k), "masses": list(self.masses)}


@dataclasses.dataclass(frozen=True)
class AtMost(RepetitionLaw):
    """A law conditioned on K <= cap: drawn again until it fits, never min(K, cap).

    Attributes:
      law: the law to condition; only its pmf is used.
      cap: whole number >= max(1, law.minimum), at most a million.
    """

    law: RepetitionLaw
    cap: int

    def __post_init__(self) -> None:
        if not isinstance(self.law, RepetitionLaw):
            raise ValueError(f"AtMost needs a law of K, such as Geometric(10), not {self.law!r}")
        set_field(self, "cap", checks.whole("cap", self.cap, 1))
        if self.cap > LARGEST_TABULATED:
            raise ValueError(f"cap must be at most 1,000,000, not {self.cap}")
        if self.kept == 0.0:
            least = self.law.minimum if self.law.maximum <= LARGEST_TABULATED else self.cap + 1
            raise ValueError(f"cap must be a whole number >= {least}, not {self.cap}")

    @functools.cached_property
    def _inner_logs(self) -> np.ndarray:
        """log P[inner K = k], k = 0..maximum."""
        with np.errstate(divide="ignore"):
            return np.asarray(self.law.log_pmf(np.arange(self.maximum + 1.0)), dtype=np.float64)

    @functools.cached_property
    def _table(self) -> np.ndarray:
        weights = np.exp(self._inner_logs - self._inner_logs.max())
        return weights / weights.sum()

    @functools.cached_property
    def kept(self) -> float:
        """P[the inner law <= cap]."""
        return min(1.0, float(np.exp(self._inner_logs).sum()))

    @functools.cached_property
    def mean(self) -> float:
        return float(np.sum(np.arange(self._table.size) * self._table))

    @property
    def maximum(self) -> float:
        return int(min(self.cap, self.law.maximum))

    def log_pmf(self, k: np.ndarray) -> np.ndarray:
        k = np.asarray(k, dtype=np.float64)
        inside = k < self._table.size
        chosen = self._table[np.where(inside, k, 0.0).astype(np.int64)]
        with np.errstate(divide="ignore"):
            return np.where(inside, np.log(chosen), -np.inf)

    def thinned(self, failure: float) -> RepetitionLaw:
        if type(self.law).thinned is RepetitionLaw.thinned:
            return super().thinned(failure)  # The inner law's functions may not be known.
        return AtMost(self.law.thinned(failure), self.cap)

    def check(self) -> None:
        """A family has nothing to compare; of any other law only the pmf is used, and checked."""
        if type(self.law).check is RepetitionLaw.check:
            super().check()

    def log_moment_theorem(self, guarantee: Guarantee, base: RenyiCurve) -> LogMoment | None:
        """Papernot & Steinke (2022), Lemma 22, on top of the inner law's theorem.

        f' shrinks by at most E[K; K <= cap] / E[K], and is divided by P[K <= cap].
        """
        inner = self.law.log_moment_theorem(guarantee, base)
        if inner is None:
            return None
        log_kept = math.log(self.kept)
        log_share = math.log(self.mean) + log_kept - math.log(self.law.mean)
        return lambda orders: inner(orders) - log_kept - (orders - 1.0) * log_share

    def to_dict(self) -> dict[str, Any]:
        return {"law": "at_most", "inner": self.law.to_dict(), "cap": self.cap}
