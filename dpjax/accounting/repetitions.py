"""Laws of the number of runs K that a selection draws, and keeps secret.

A law must be fixed before the data is seen. Formulas: Papernot & Steinke (ICLR 2022), Definition 1
(truncated negative binomial), section 3.3 (Poisson). All are evaluated in y = 1 - x, where the
generating function f(x) = E[x^K] loses no digits near x = 1.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
import os
from typing import Any

import numpy as np
from scipy import optimize, special

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


@dataclasses.dataclass(frozen=True)
class TruncatedNegativeBinomial(RepetitionLaw):
    """Papernot & Steinke's family (Definition 1), K >= 1; shape 0 logarithmic, 1 geometric.

    P[K = k] = (1-g)^k / (g^-shape - 1) * prod_{l<k} (l + shape)/(l + 1), with g in (0, 1] fixed by
    the mean.

    Attributes:
      shape: eta > -1.
      mean: E[K] >= 1.

    Raises:
      ValueError: shape <= -1 or infinite, or mean < 1.
    """

    shape: float
    mean: float

    def __post_init__(self) -> None:
        _set(self, "shape", float(self.shape))
        _set(self, "mean", float(self.mean))
        if not (self.shape > -1.0 and math.isfinite(self.shape)):
            raise ValueError(f"shape must be finite and > -1, not {self.shape}")
        _check_mean(self.mean, 1.0)

    @property
    def minimum(self) -> int:
        return 1

    @property
    def maximum(self) -> float:
        return 1 if self.gamma == 1.0 else math.inf

    @functools.cached_property
    def gamma(self) -> float:
        """The parameter g in (0, 1]; 1 is K = 1."""
        if self.mean == 1.0:
            return 1.0
        if self.shape == 1.0:
            return 1.0 / self.mean
        target = math.log(self.mean)
        # log(1/g) = z; the mean grows with z from 1 at z = 0.
        high = 1.0
        while _log_mean(self.shape, high) < target:
            high *= 2.0
        root = optimize.brentq(
            lambda z: _log_mean(self.shape, z) - target, 1e-300, high, xtol=1e-300, rtol=1e-15
        )
        return math.exp(-root)

    @functools.cached_property
    def log_inverse_gamma(self) -> float:
        """log(1/g)."""
        return -math.log(self.gamma)

    def log_pmf(self, k: np.ndarray) -> np.ndarray:
        if self.gamma == 1.0:
            return np.where(k == 1, 0.0, -np.inf)
        k = np.asarray(k, dtype=np.float64)
        safe = np.maximum(k, 1.0)
        power = safe * math.log1p(-self.gamma)
        if self.shape == 0.0:
            log_p = power - np.log(safe) - math.log(self.log_inverse_gamma)
        else:
            z = self.log_inverse_gamma
            # prod (l + eta)/(l + 1) = eta Gamma(k + eta) / (Gamma(1 + eta) k!), and the ratio
            # eta / (g^-eta - 1) is positive for either sign of eta.
            log_ratio = math.log(self.shape / math.expm1(self.shape * z))
            log_p = (
                power
                + special.gammaln(safe + self.shape)
                - special.gammaln(1.0 + self.shape)
                - special.gammaln(safe + 1.0)
                + log_ratio
            )
        return np.where(k >= 1, log_p, -np.inf)

    def _log_growth(self, y: np.ndarray | float) -> np.ndarray:
        """log(w / g), w = g + (1-g) y = 1 - (1-g) x."""
        y = np.asarray(y, dtype=np.float64)
        return np.log1p((1.0 - self.gamma) / self.gamma * y)

    def generating_function(self, x: np.ndarray | float) -> np.ndarray:
        z = self.log_inverse_gamma
        growth = -np.log1p(-(1.0 - self.gamma) * np.asarray(x, dtype=np.float64))
        if self.gamma == 1.0:
            return np.asarray(x, dtype=np.float64)
        if abs(self.shape) * z < 1e-12:
            return growth / z
        return np.expm1(self.shape * growth) / math.expm1(self.shape * z)

    def success_probability(self, y: np.ndarray | float) -> np.ndarray:
        growth, z = self._log_growth(y), self.log_inverse_gamma
        if self.gamma == 1.0:
            return np.asarray(y, dtype=np.float64)
        if abs(self.shape) * z < 1e-12:
            return growth / z
        return np.expm1(-self.shape * growth) / math.expm1(-self.shape * z)

    def derivative(self, y: np.ndarray | float) -> np.ndarray:
        return self.mean * np.exp(-(1.0 + self.shape) * self._log_growth(y))

    def thinned(self, failure: float) -> RepetitionLaw:
        # Lemma 20: D_{eta, g + d - g d}.
        gamma = self.gamma + failure - self.gamma * failure
        return TruncatedNegativeBinomial(
            self.shape, max(1.0, math.exp(_log_mean(self.shape, -math.log(gamma))))
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "law": "truncated_negative_binomial",
            "shape": self.shape,
            "mean": self.mean,
        }


class Logarithmic(TruncatedNegativeBinomial):
    """K logarithmic: P[K = k] = (1-g)^k / (k log(1/g)), K >= 1; shape 0 of the family."""

    def __init__(self, mean: float):
        super().__init__(0.0, mean)

    def __repr__(self) -> str:
        return f"Logarithmic(mean={self.mean})"

    def to_dict(self) -> dict[str, Any]:
        return {"law": "logarithmic", "mean": self.mean}


class Geometric(TruncatedNegativeBinomial):
    """K geometric: P[K = k] = g (1-g)^(k-1), g = 1/mean, K >= 1; shape 1 of the family."""

    def __init__(self, mean: float):
        super().__init__(1.0, mean)

    def __repr__(self) -> str:
        return f"Geometric(mean={self.mean})"

    def to_dict(self) -> dict[str, Any]:
        return {"law": "geometric", "mean": self.mean}


@dataclasses.dataclass(frozen=True)
class Poisson(RepetitionLaw):
    """K Poisson, K = 0 included (a data-independent default is then released).

    Attributes:
      mean: E[K] > 0.
    """

    mean: float

    def __post_init__(self) -> None:
        _set(self, "mean", float(self.mean))
        if not (math.isfinite(self.mean) and self.mean > 0.0):
            raise ValueError(f"the mean of a Poisson law must be > 0, not {self.mean}")

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

    def thinned(self, failure: float) -> RepetitionLaw:
        return Poisson(self.mean * (1.0 - failure))

    def to_dict(self) -> dict[str, Any]:
        return {"law": "poisson", "mean": self.mean}


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
        _set(self, "trials", _whole("trials", self.trials, 1))
        _set(self, "probability", float(self.probability))
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
        super().__init__(_whole("k", k, 1), 1.0)

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
        _set(self, "cap", _whole("cap", self.cap, max(1, self.law.minimum)))
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
        x = np.asarray(x, dtype=np.float64)
        total = np.zeros(x.shape)
        for weight in self._table[1][::-1]:
            total = total * x + weight
        return total

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
        x = 1.0 - np.asarray(y, dtype=np.float64)
        total = np.zeros(x.shape)
        for coefficient in (k * p)[:0:-1]:
            total = total * x + coefficient
        return total

    def thinned(self, failure: float) -> RepetitionLaw:
        return AtMost(self.law.thinned(failure), self.cap)

    def to_dict(self) -> dict[str, Any]:
        return {"law": "at_most", "inner": self.law.to_dict(), "cap": self.cap}


def law_from_dict(values: dict[str, Any]) -> RepetitionLaw:
    """The law that wrote these plain values.

    Raises:
      ValueError: for an unknown name or missing values.
    """
    makers = {
        "truncated_negative_binomial": lambda v: TruncatedNegativeBinomial(v["shape"], v["mean"]),
        "logarithmic": lambda v: Logarithmic(v["mean"]),
        "geometric": lambda v: Geometric(v["mean"]),
        "poisson": lambda v: Poisson(v["mean"]),
        "binomial": lambda v: Binomial(v["trials"], v["probability"]),
        "fixed": lambda v: Fixed(v["k"]),
        "at_most": lambda v: AtMost(law_from_dict(v["inner"]), v["cap"]),
    }
    if values.get("law") not in makers:
        raise ValueError(f"unknown law {values.get('law')!r}: pass one of {sorted(makers)}")
    try:
        return makers[values["law"]](values)
    except KeyError as error:
        raise ValueError(f"a {values['law']} law needs the value {error}") from None


def _log_mean(shape: float, z: float) -> float:
    """log E[K] of the family at g = e^-z: shape (1-g) / (g (1 - g^shape)), stable at all z > 0."""
    if z == 0.0:
        return 0.0
    # E[K] = (expm1(z) / z) / ((1 - e^{-shape z}) / (shape z)).
    grown = z + math.log1p(-math.exp(-z)) if z > 30 else math.log(math.expm1(z))
    t = shape * z
    if abs(t) < 1e-8:
        log_ratio = -t / 2.0
    elif t > 0:
        log_ratio = math.log(-math.expm1(-t) / t)
    else:
        log_ratio = -t + math.log(math.expm1(t) / t) if t < -30 else math.log(math.expm1(-t) / -t)
    return grown - math.log(z) - log_ratio


def _check_mean(mean: float, smallest: float) -> None:
    if not (math.isfinite(mean) and mean >= smallest):
        raise ValueError(f"the mean of this law must be finite and >= {smallest:g}, not {mean}")


def _whole(name: str, value: float, smallest: int) -> int:
    if int(value) != value or value < smallest:
        raise ValueError(f"{name} must be a whole number >= {smallest}, not {value}")
    return int(value)


def _set(law: RepetitionLaw, name: str, value: object) -> None:
    object.__setattr__(law, name, value)
