"""Laws of K whose functions are formulas: truncated negative binomial, Poisson, binomial, fixed.

Papernot & Steinke (ICLR 2022), Definition 1 and section 3.3, and their limits.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
from scipy import special

from dpjax import checks
from dpjax.accounting.selection.laws import (
    LARGEST_TABULATED,
    LogMoment,
    RepetitionLaw,
    law_family,
    set_field,
)

if TYPE_CHECKING:
    from dpjax.accounting.guarantee import Guarantee
    from dpjax.accounting.numerics.renyi import RenyiCurve

LARGEST_SHAPE = 1e6
"""Largest shape: beyond it masses lose digits, and the law is nearly Poisson given K >= 1."""


@classmethod  # type: ignore[misc] # A method of the classes that take it.
def _of_mean_alone(cls: Any, mean: float) -> Any:
    """Returns the law of this mean, for command lines and curves over the mean."""
    return cls(mean)


@law_family("binomial")
@dataclasses.dataclass(frozen=True)
class Binomial(RepetitionLaw):
    """K binomial: each of `trials` runs happens with this probability; K = 0 included.

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
                "pass Poisson, which such a law is close to"
            )

    @classmethod
    def of_mean(cls, mean: float, trials: int = 20) -> Binomial:
        """Returns the law of this mean, for command lines and curves over the mean."""
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

    Args:
      k: whole number >= 1.
    """

    def __init__(self, k: int):
        super().__init__(checks.whole("k", k, 1), 1.0)

    @classmethod
    def of_mean(cls, mean: float) -> Fixed:  # type: ignore[override] # No `trials`: they are k.
        """Returns the law K = mean, a whole number, for command lines and curves over the mean."""
        return cls(checks.whole("the number of runs", mean, 1))

    @property
    def k(self) -> int:
        return self.trials

    def __repr__(self) -> str:
        return f"Fixed(k={self.trials})"

    def thinned(self, failure: float) -> RepetitionLaw:
        return self


@law_family("truncated_negative_binomial")
@dataclasses.dataclass(frozen=True)
class TruncatedNegativeBinomial(RepetitionLaw):
    """Papernot & Steinke's family (Definition 1), K >= 1; shape 0 logarithmic, 1 geometric.

    P[K = k] = (1-g)^k / (g^-shape - 1) * prod_{l<k} (l + shape)/(l + 1), with g in (0, 1] fixed by
    the mean.

    Attributes:
      shape: eta > -1, at most a million.
      mean: E[K] >= 1.
    """

    shape: float
    mean: float

    has_formulas = True

    def __post_init__(self) -> None:
        set_field(self, "shape", checks.number("shape", self.shape, "finite and > -1"))
        set_field(self, "mean", checks.number("the mean of this law", self.mean, finite=False))
        if not (self.shape > -1.0 and math.isfinite(self.shape)):
            raise ValueError(f"shape must be finite and > -1, not {self.shape}")
        if self.shape > LARGEST_SHAPE:
            raise ValueError(
                f"shape {self.shape:g} is beyond float64: pass at most {LARGEST_SHAPE:g}, or "
                "Poisson, which such a law is close to"
            )
        if not (math.isfinite(self.mean) and self.mean >= 1.0):
            raise ValueError(f"the mean of this law must be finite and >= 1, not {self.mean}")
        checks.positive("the mean of this law", self.mean)
        _ = self.gamma  # refuses what float64 cannot hold

    @classmethod
    def of_mean(cls, mean: float, shape: float = 0.5) -> TruncatedNegativeBinomial:
        """Returns the law of this mean, for command lines and curves over the mean."""
        return TruncatedNegativeBinomial(shape, mean)

    @property
    def minimum(self) -> int:
        return 1

    @property
    def maximum(self) -> float:
        return 1 if self.gamma == 1.0 else math.inf

    @property
    def envelope_suffices(self) -> bool:
        """Returns whether the shape is at most 2 (docs/envelope_bound.md has the differences)."""
        return self.shape <= 2.0

    @functools.cached_property
    def gamma(self) -> float:
        """Returns the parameter g in (0, 1] that gives the mean; at g = 1, K is 1."""
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
        """Returns log(1/g)."""
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
        """Returns log(w / g), w = g + (1-g) y = 1 - (1-g) x."""
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
        """Returns Papernot & Steinke (2022), Theorem 2, at the best second order m > 1.

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
        """Returns the bound of Corollary 3."""
        return (2.0 + self.shape) * epsilon


@law_family("logarithmic")
class Logarithmic(TruncatedNegativeBinomial):
    """K logarithmic: P[K = k] = (1-g)^k / (k log(1/g)), K >= 1; shape 0 of the family."""

    def __init__(self, mean: float):
        super().__init__(0.0, mean)

    of_mean = _of_mean_alone  # type: ignore[assignment] # No `shape`: it is fixed.

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

    of_mean = _of_mean_alone  # type: ignore[assignment] # No `shape`: it is fixed.

    def __repr__(self) -> str:
        return f"Geometric(mean={self.mean})"


def _log_mean(shape: float, z: float) -> float:
    """Returns log E[K] at g = e^-z, of shape (1-g) / (g (1 - g^shape)); stable at all z > 0."""
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


@law_family("poisson")
@dataclasses.dataclass(frozen=True)
class Poisson(RepetitionLaw):
    """K Poisson, K = 0 included (a data-independent default is then released).

    Attributes:
      mean: E[K] > 0.
    """

    mean: float

    has_formulas = True

    def __post_init__(self) -> None:
        set_field(self, "mean", checks.number("the mean of this law", self.mean, finite=False))
        if not (math.isfinite(self.mean) and self.mean > 0.0):
            raise ValueError(f"the mean of a Poisson law must be > 0, not {self.mean}")
        checks.positive("the mean of a Poisson law", self.mean)

    of_mean = _of_mean_alone

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
        """Returns Papernot & Steinke (2022), Theorem 6: D + mu delta + log(mu) / (l-1).

        delta is the base's at e^epsilon = 1 + 1/(l-1).
        """

        def log_moment(orders: np.ndarray) -> np.ndarray:
            epsilons = -np.log1p(-1.0 / orders)
            if guarantee.known_by_renyi_only:
                deltas = base.profile(epsilons, refined=True)
            else:
                # Given no failure delta would be smaller, but by an unknown amount: a part of
                # `parallel` may have no failure to condition on.
                deltas = guarantee.pair.delta(epsilons)
            return (orders - 1.0) * (base(orders) + self.mean * deltas) + math.log(self.mean)

        return log_moment

    def largest_log_ratio(self, epsilon: float) -> float:
        # f' is one exponential: the supremum is at the corner, x = 1/(1 + e^epsilon), h = 1 - x.
        return self.mean * math.tanh(0.5 * epsilon)
