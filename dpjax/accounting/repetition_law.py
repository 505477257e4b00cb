"""What every law of the number of runs K offers: its functions, quantiles and draws.

A law must be fixed before the data is seen. All functions are evaluated in y = 1 - x, where the
generating function f(x) = E[x^K] loses no digits near x = 1.
"""

from __future__ import annotations

import abc
import functools
import math
import os
from typing import Any

import numpy as np

LONGEST_TABLE = 1 << 22
"""Largest K a law tabulates; a draw beyond it (only for means near a million) is refused."""


class RepetitionLaw(abc.ABC):
    """Law of K. Subclasses are frozen dataclasses; equal parameters make equal laws.

    Attributes:
      mean: E[K].
    """

    mean: float

    @property
    @abc.abstractmethod
    def minimum(self) -> int:
        """Smallest K of positive probability: 0, 1, or all of `Fixed`."""

    @property
    def maximum(self) -> float:
        """Largest K of positive probability; inf where there is none."""
        return math.inf

    @abc.abstractmethod
    def log_pmf(self, k: np.ndarray) -> np.ndarray:
        """log P[K = k] at whole numbers k, (n,) -> (n,)."""

    @abc.abstractmethod
    def generating_function(self, x: np.ndarray | float) -> np.ndarray:
        """f(x) = E[x^K] at x in [0, 1], accurate near x = 0."""

    @abc.abstractmethod
    def success_probability(self, y: np.ndarray | float) -> np.ndarray:
        """1 - f(1 - y): that at least one of K runs hits an event of probability y."""

    @abc.abstractmethod
    def derivative(self, y: np.ndarray | float) -> np.ndarray:
        """f'(1 - y) = E[K (1 - y)^(K-1)], decreasing in y in [0, 1], E[K] at 0."""

    @abc.abstractmethod
    def second_derivative(self, y: np.ndarray | float) -> np.ndarray:
        """f''(1 - y) = E[K (K-1) (1 - y)^(K-2)], decreasing in y in [0, 1]."""

    @abc.abstractmethod
    def thinned(self, failure: float) -> RepetitionLaw:
        """K given that none of K runs failed, each failing with this probability.

        Its generating function is f(x (1 - failure)) / f(1 - failure) (Papernot & Steinke 2022,
        Lemma 20).
        """

    @abc.abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain values that `law_from_dict` turns back into this law."""

    def pmf(self, k: np.ndarray | int) -> np.ndarray:
        """P[K = k]; zero at negative or fractional k. Shape of `k`."""
        k = np.asarray(k, dtype=np.float64)
        whole = (k >= 0) & (k == np.floor(k))
        with np.errstate(divide="ignore"):
            values = np.exp(self.log_pmf(np.where(whole, k, 0.0).ravel())).reshape(k.shape)
        return np.where(whole, values, 0.0)

    def quantile(self, probability: float) -> int:
        """Smallest k with P[K <= k] >= probability, probability in [0, 1).

        Raises:
          ValueError: probability outside [0, 1), or a quantile beyond 2^22.
        """
        if not 0.0 <= probability < 1.0:
            raise ValueError(f"probability must be in [0, 1), not {probability}")
        return self._invert(probability, "left")

    def sample(self, size: int | None = None, source: np.random.Generator | None = None):
        """Draws K by inversion of the pmf at 53-bit uniforms.

        Formal guarantees: with `source` None the bits come from the operating system
        (os.urandom); the law drawn is within 2^-53 plus float64 rounding of the pmf. K is secret:
        it may reach no log, file, array shape or clock that leaves the curator.

        Args:
          size: number of independent draws; None for one.
          source: a NumPy generator, to reproduce a run; K is then only as secret as its seed.

        Returns:
          int, or int64 array (size,).
        """
        count = 1 if size is None else int(size)
        if source is None:
            words = np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
            uniforms = (words >> np.uint64(11)) * 2.0**-53
        else:
            uniforms = source.random(count)
        draws = np.array([self._invert(u, "right") for u in uniforms], dtype=np.int64)
        return int(draws[0]) if size is None else draws

    def _invert(self, probability: float, side: str) -> int:
        length = 1024
        while True:
            table = self._cumulative(length)
            index = int(np.searchsorted(table, probability, side=side))
            if index < table.size:
                return index
            if length > self.maximum:
                # Rounding left the table's end just below 1.
                return int(self.maximum)
            if length >= LONGEST_TABLE:
                raise ValueError(f"K beyond {LONGEST_TABLE}: pass a smaller mean, or AtMost")
            length *= 4

    @functools.lru_cache(maxsize=8)  # noqa: B019 - laws are small, frozen and few.
    def _cumulative(self, length: int) -> np.ndarray:
        """P[K <= k] for k = 0..length - 1 (or to the maximum)."""
        top = int(min(length - 1, self.maximum))
        with np.errstate(divide="ignore"):
            return np.cumsum(np.exp(self.log_pmf(np.arange(top + 1, dtype=np.float64))))


def whole_number(name: str, value: float, smallest: int) -> int:
    """`value` as an int of at least `smallest`, or a ValueError that names it."""
    if int(value) != value or value < smallest:
        raise ValueError(f"{name} must be a whole number >= {smallest}, not {value}")
    return int(value)


def set_field(law: RepetitionLaw, name: str, value: object) -> None:
    """Sets a field of a frozen law while it is being made."""
    object.__setattr__(law, name, value)
