"""Any law of K conditioned on a cap."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING

import numpy as np

from dpjax import checks
from dpjax.accounting.selection.laws.law import (
    LARGEST_TABULATED,
    LogMoment,
    RepetitionLaw,
    check_law,
    law_family,
    set_field,
)

if TYPE_CHECKING:
    from dpjax.accounting.guarantee import Guarantee
    from dpjax.accounting.numerics.renyi import RenyiCurve


@law_family("at_most", law="inner")
@dataclasses.dataclass(frozen=True)
class AtMost(RepetitionLaw):
    """A law conditioned on K <= cap: drawn again until it fits, never min(K, cap).

    Example:
      >>> from dpjax import accounting
      >>> law = accounting.AtMost(accounting.Geometric(10), 64)
      >>> print(f"mean {law.mean:.2f}, at most {law.maximum:.0f}")
      mean 9.92, at most 64

    Attributes:
      law: the law to condition.
      cap: whole number >= max(1, law.minimum), at most a million.
    """

    law: RepetitionLaw
    cap: int

    def __post_init__(self) -> None:
        check_law("AtMost", self.law)
        set_field(self, "cap", checks.whole("cap", self.cap, 1))
        if self.cap > LARGEST_TABULATED:
            raise ValueError(f"cap must be at most 1,000,000, not {self.cap}")
        if self.kept == 0.0:
            raise ValueError(f"cap must be a whole number >= {self.law.minimum}, not {self.cap}")

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
            return super().thinned(failure)  # AtMost refuses `Thinned`, which is no family.
        return AtMost(self.law.thinned(failure), self.cap)

    @property
    def envelope_suffices(self) -> bool:
        return self.law.envelope_suffices

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
