"""Truncated negative binomial laws of K: Papernot & Steinke (ICLR 2022), Definition 1."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING

import numpy as np
import scipy
from scipy import special

from dpjax.accounting.selection.laws.law import LogMoment, RepetitionLaw, law_family, set_field
from dpjax.checks import number

if TYPE_CHECKING:
    from dpjax.accounting.guarantee import Guarantee
    from dpjax.accounting.numerics.renyi import RenyiCurve

LARGEST_SHAPE = 1e6
"""Beyond it the masses that K is drawn by lose digits; the law is then Poisson's, given K >= 1."""


@law_family("truncated_negative_binomial")
@dataclasses.dataclass(frozen=True)
class TruncatedNegativeBinomial(RepetitionLaw):
    """Papernot & Steinke's family (Definition 1), K >= 1; shape 0 logarithmic, 1 geometric.

    P[K = k] = (1-g)^k / (g^-shape - 1) * prod_{l<k} (l + shape)/(l + 1), with g in (0, 1] fixed by
    the mean.

    Example:
      >>> from dpjax import accounting
      >>> law = accounting.TruncatedNegativeBinomial(-0.5, 10.0)
      >>> print(f"{float(law.success_probability(0.1)):.2f}")
      0.28

    Attributes:
      shape: eta > -1, at most a million.
      mean: E[K] >= 1.
    """

    shape: float
    mean: float

    has_formulas = True

    def __post_init__(self) -> None:
        set_field(self, "shape", number("shape", self.shape, "finite and > -1"))
        set_field(self, "mean", number("the mean of this law", self.mean, finite=False))
        if not (self.shape > -1.0 and math.isfinite(self.shape)):
            raise ValueError(f"shape must be finite and > -1, not {self.shape}")
        if self.shape > LARGEST_SHAPE:
            raise ValueError(
                f"shape {self.shape:g} is beyond float64: pass one of {LARGEST_SHAPE:g} at "
                "most, or Poisson, which such a law comes near"
            )
        _check_mean(self.mean, 1.0)
        _ = self.gamma  # refuses what float64 cannot hold

    @classmethod
    def of_mean(cls, mean: float, shape: float = 0.5) -> TruncatedNegativeBinomial:
        """The law of this mean, for command lines and curves over the mean."""
        return TruncatedNegativeBinomial(shape, mean)

    @property
    def minimum(self) -> int:
        return 1

    @property
    def maximum(self) -> float:
        return 1 if self.gamma == 1.0 else math.inf

    @property
    def envelope_suffices(self) -> bool:
        """At shape 2 at most (docs/envelope_bound.md has the differences)."""
        return self.shape <= 2.0

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
        root = scipy.optimize.brentq(
            lambda z: _log_mean(self.shape, z) - target, 1e-300, high, xtol=1e-300, rtol=1e-15
        )
        if root > 700.0:
            raise ValueError(
                f"shape {self.shape} needs gamma = e^-{root:.0f} for mean {self.mean:g}, beyond "
                "float64: pass a larger shape or a smaller mean"
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

    def second_derivative(self, y: np.ndarray | float) -> np.ndarray:
        first = self.mean * (1.0 + self.shape) * (1.0 - self.gamma) / self.gamma
        return first * np.exp(-(2.0 + self.shape) * self._log_growth(y))

    def thinned(self, failure: float) -> RepetitionLaw:
        # Lemma 20: D_{eta, g + d - g d}.
        gamma = self.gamma + failure - self.gamma * failure
        return TruncatedNegativeBinomial(
            self.shape, max(1.0, math.exp(_log_mean(self.shape, -math.log(gamma))))
        )

    def log_moment_theorem(self, guarantee: Guarantee, base: RenyiCurve) -> LogMoment:
        """Papernot & Steinke (2022), Theorem 2, at the best second order m > 1.

        D + (1+eta)(1 - 1/m) D_m + (1+eta) log(1/g) / m + log E[K] / (l-1).
        """
        constant, _ = base.minimise(
            lambda orders, values: (1.0 - 1.0 / orders) * values + self.log_inverse_gamma / orders
        )
        constant *= 1.0 + self.shape
        return lambda orders: (orders - 1.0) * (base(orders) + constant) + math.log(self.mean)

    def largest_log_ratio(self, epsilon: float) -> float:
        # f' is one power of 1 - (1-g) x: the supremum is at the corner, x and h = 1 - x.
        x = math.exp(-np.logaddexp(0.0, epsilon))
        return (1.0 + self.shape) * float(self._log_growth(1.0 - x) - self._log_growth(x))

    def published_pure_epsilon(self, epsilon: float) -> float:
        """Corollary 3."""
        return (2.0 + self.shape) * epsilon


@law_family("logarithmic")
class Logarithmic(TruncatedNegativeBinomial):
    """K logarithmic: P[K = k] = (1-g)^k / (k log(1/g)), K >= 1; shape 0 of the family.

    Example:
      >>> from dpjax import accounting
      >>> print(f"{float(accounting.Logarithmic(4).success_probability(0.1)):.2f}")
      0.28
    """

    def __init__(self, mean: float):
        super().__init__(0.0, mean)

    @classmethod
    def of_mean(cls, mean: float) -> Logarithmic:  # type: ignore[override] # Its shape is fixed.
        """The law of this mean, for command lines and curves over the mean."""
        return cls(mean)

    def __repr__(self) -> str:
        return f"Logarithmic(mean={self.mean})"


@law_family("geometric")
class Geometric(TruncatedNegativeBinomial):
    """K geometric: P[K = k] = g (1-g)^(k-1), g = 1/mean, K >= 1; shape 1 of the family.

    Example:
      >>> from dpjax import accounting
      >>> print(f"{float(accounting.Geometric(10).success_probability(0.1)):.2f}")
      0.53
    """

    def __init__(self, mean: float):
        super().__init__(1.0, mean)

    @classmethod
    def of_mean(cls, mean: float) -> Geometric:  # type: ignore[override] # Its shape is fixed.
        """The law of this mean, for command lines and curves over the mean."""
        return cls(mean)

    def __repr__(self) -> str:
        return f"Geometric(mean={self.mean})"


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
