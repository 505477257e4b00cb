"""A law of K given by a table of probabilities."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

from dpjax import checks
from dpjax.accounting.selection.laws.law import (
    LARGEST_TABULATED,
    RepetitionLaw,
    law_family,
    set_field,
)


@law_family("tabulated")
@dataclasses.dataclass(frozen=True)
class Tabulated(RepetitionLaw):
    """K drawn by a table of probabilities.

    Example:
      >>> import numpy as np
      >>> from dpjax import accounting
      >>> accounting.Tabulated((1, 2, 8), (0.5, 0.25, 0.25)).mean
      3.0

    Attributes:
      k: (n,) whole numbers >= 0, ascending, at most a million.
      masses: (n,) P[K = k], > 0, that sum to 1.
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
