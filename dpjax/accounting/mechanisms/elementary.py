"""Prices single mechanisms: Gaussian noise, and any known by a number or a table alone."""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from dpjax.accounting.guarantee import Guarantee, pure_pair
from dpjax.accounting.mechanisms.mechanism import mechanism
from dpjax.accounting.numerics import renyi
from dpjax.accounting.numerics.loss_distribution import (
    LARGEST_SIZE,
    LossDistribution,
    LossPair,
    whole_up,
)
from dpjax.accounting.numerics.privacy_profile import pair_from_function
from dpjax.checks import Refused, not_negative, positive, probability, vector, whole
from dpjax.neighbouring import ADD_OR_REMOVE_ONE, REPLACE_ONE

TAIL_DEVIATIONS = 10.6
"""Standard deviations of a Gaussian beyond which 1e-25 of its mass lies."""


@mechanism
def gaussian(
    noise_multiplier: float, *, relation: object = ADD_OR_REMOVE_ONE, steps: int = 1
) -> Guarantee:
    """Prices Gaussian noise on a sum or any vector of bounded L2 sensitivity.

    The profile is exact (Balle & Wang 2018, Theorem 8): Phi(m/2 - epsilon/m) - e^epsilon
    Phi(-m/2 - epsilon/m) with m = sqrt(steps) / noise_multiplier; the Renyi divergence is
    steps * order / (2 noise_multiplier^2).

    Example:
      >>> from dpjax import accounting
      >>> print(f"{accounting.gaussian(noise_multiplier=4.0, steps=10).epsilon(1e-5):.2f}")
      3.34

    Args:
      noise_multiplier: noise standard deviation / L2 sensitivity UNDER `relation`. For a sum of
        vectors clipped to norm C the sensitivity is C when adding or removing one record and 2C
        when replacing one.
      relation: neighbouring relation.
      steps: number of such (adaptive) releases; n of them equal one with noise_multiplier /
        sqrt(n).
    """
    noise_multiplier = positive("noise_multiplier", noise_multiplier)
    steps = whole("steps", steps)
    effective = noise_multiplier / math.sqrt(steps)
    return Guarantee(
        relation=relation,
        pair=lambda: gaussian_pair(effective),
        renyi=renyi.gaussian_curve(noise_multiplier, steps),
    )


def gaussian_pair(noise_multiplier: float) -> LossPair:
    """Returns the losses of N(0, s^2) against N(1, s^2), s = noise_multiplier; symmetric."""
    largest, interval = _gaussian_grid(noise_multiplier)
    return pair_from_function(
        lambda epsilons: gaussian_delta(epsilons, noise_multiplier), interval, largest
    )


def _gaussian_grid(noise_multiplier: float) -> tuple[float, float]:
    """Returns the largest loss worth keeping, and the grid's interval."""
    largest = TAIL_DEVIATIONS / noise_multiplier + 0.5 / noise_multiplier**2
    spread = 1.0 / noise_multiplier
    return largest, grid_interval(min(1e-4, spread / 200.0), 2.0 * largest)


def gaussian_delta(epsilons: np.ndarray | float, noise_multiplier: float) -> np.ndarray:
    """Returns the hockey-stick divergence of N(1, s^2) and N(0, s^2) at real epsilons; shape kept.

    It is rounded up: for large noise it is a small difference of two tails, each of which is off by
    some 60 units of rounding (SciPy's functions) and, through its argument, by 4 units times the
    argument's square.
    """
    shift = 0.5 / noise_multiplier
    scaled = epsilons * noise_multiplier
    above = special.ndtr(shift - scaled)
    below = np.exp(np.minimum(epsilons + special.log_ndtr(-shift - scaled), 0.0))
    square = np.minimum((np.abs(scaled) + shift) ** 2, 3000.0)
    rounding = (64.0 + 16.0 * square) * 2.0**-53 * (above + below)
    return np.clip(above - below + rounding, 0.0, 1.0)


@mechanism
def output_perturbation(sensitivity: float, noise_std: float) -> Guarantee:
    """Prices releasing parameters with Gaussian noise on every coordinate, replace one.

    Wu et al. 2017, as in DPareto's example: projected stochastic gradient descent on a strongly
    convex objective moves its output little when one record is replaced.

    Formal guarantees: exact profile of the Gaussian mechanism (Balle & Wang 2018, Theorem 8), for
    parameters whose Euclidean distance is at most `sensitivity` when one record is replaced. Only
    the noisy final parameters are covered: no intermediate ones, no training curve.

    Args:
      sensitivity: Euclidean, under replacement of one record, above 0.
      noise_std: standard deviation of the noise on each coordinate, above 0.
    """
    sensitivity, noise_std = positive("sensitivity", sensitivity), positive("noise_std", noise_std)
    return gaussian(noise_std / sensitivity, relation=REPLACE_ONE)


@mechanism
def discrete_gaussian(
    noise_std: float, sensitivity: int = 1, *, relation: object = ADD_OR_REMOVE_ONE
) -> Guarantee:
    """Prices discrete Gaussian noise on an integer count (Canonne, Kamath & Steinke 2020).

    The losses of two shifted discrete Gaussians lie on the grid of step sensitivity / (2
    noise_std^2), so the loss distribution is exact, nothing is rounded. From a noise_std of about
    40,000 on it is the Gaussian's, raised by the most that the two can differ.

    Args:
      noise_std: the parameter sigma; P[noise = x] proportional to exp(-x^2 / (2 sigma^2)). The
        standard deviation is at most sigma, and equal to 1e-6 from sigma = 1 on.
      sensitivity: largest integer change of the count UNDER `relation`.
      relation: neighbouring relation.
    """
    noise_std = positive("noise_std", noise_std)
    sensitivity = whole("sensitivity", sensitivity)
    return Guarantee(
        relation=relation,
        pair=lambda: _discrete_gaussian_pair(noise_std, sensitivity),
        renyi=renyi.RenyiCurve(
            lambda orders: _discrete_gaussian_divergences(orders, noise_std, sensitivity)
        ),
    )


def _discrete_gaussian_pair(noise_std: float, sensitivity: int) -> LossPair:
    """Tabulates the losses of discrete Gaussian noise, or bounds them if it is too wide."""
    if 25.0 * noise_std + 2.0 * sensitivity > LARGEST_SIZE:
        return _smooth_discrete_gaussian_pair(noise_std, sensitivity)
    reach = whole_up(12.5 * noise_std) + sensitivity
    support = np.arange(-reach, reach + 1)
    weights = np.exp(-0.5 * (support / noise_std) ** 2)
    # The loss at x of N(0) against N(sensitivity) is a whole number of steps of this grid.
    index = sensitivity * (sensitivity - 2 * support) // math.gcd(sensitivity * 2, sensitivity**2)
    interval = math.gcd(sensitivity * 2, sensitivity**2) / (2.0 * noise_std**2)
    masses = np.zeros(int(index.max() - index.min()) + 1)
    np.add.at(masses, index - index.min(), weights / weights.sum())
    # Beyond the support each weight is at most `ratio` times the one before; both tails reveal all.
    first, ratio = reach + 1, math.exp(-(reach + 1) / noise_std**2)
    tail = 2.0 * math.exp(-0.5 * (first / noise_std) ** 2) / (1.0 - ratio) / weights.sum()
    law = LossDistribution(interval, int(index.min()), masses, tail)
    return LossPair(law, law)


def _smooth_discrete_gaussian_pair(noise_std: float, sensitivity: int) -> LossPair:
    """Returns the pair for noise too wide to be tabulated: the Gaussian's profile, raised.

    With p the density, the sum of f(x) = p(x) - e^epsilon p(x - sensitivity) over whole x up to a
    cut is the integral up to the cut + 1/2, which is at most the Gaussian's divergence, but for the
    error of the midpoint rule: at most 1/24 of the sum of |f''|. f'' is (x^2 / sigma^2 - 1) /
    sigma^2 times f, and a second term of that size; up to 10.6 standard deviations that is less
    than 20 / sigma^2 of the divergence itself (6 where it was summed in 40 digits).
    """
    ratio = noise_std / sensitivity
    largest, interval = _gaussian_grid(ratio)
    raised = 1.0 + 20.0 / noise_std**2
    return pair_from_function(lambda e: raised * gaussian_delta(e, ratio), interval, largest)


def _discrete_gaussian_divergences(
    orders: np.ndarray, noise_std: float, sensitivity: int
) -> np.ndarray:
    """Returns the Renyi divergences, at these orders a, of discrete Gaussian noise and its shift.

    These are a s^2 / (2 sigma^2) + log(theta(frac(a s)) / theta(0)) / (a - 1), s the sensitivity.
    """
    plain = orders * sensitivity**2 / (2.0 * noise_std**2)
    if noise_std >= 3.0:
        # theta varies by less than 4 exp(-2 pi^2 sigma^2) < 1e-76, and only downwards.
        return plain
    support = np.arange(-40, 41)
    shift = orders * sensitivity
    offsets = (shift - np.floor(shift))[:, None]
    # In log space: with a small sigma every term would underflow.
    theta = special.logsumexp(-0.5 * ((support - offsets) / noise_std) ** 2, axis=1)
    centre = special.logsumexp(-0.5 * (support / noise_std) ** 2)
    return plain + np.minimum(theta - centre, 0.0) / (orders - 1.0)


@mechanism
def zcdp(rho: float, *, relation: object = ADD_OR_REMOVE_ONE) -> Guarantee:
    """Prices a mechanism known to be rho-zCDP: Renyi divergence rho * order at every order.

    Its loss distributions are derived from the curve: Lemma 14 of Papernot & Steinke
    (2022) minimised over orders at each epsilon.

    Args:
      rho: nats, under `relation`.
      relation: neighbouring relation.
    """
    rho = positive("rho", rho)
    return Guarantee(relation=relation, renyi=renyi.zcdp_curve(rho))


@mechanism
def pure(epsilon: float, *, relation: object = ADD_OR_REMOVE_ONE) -> Guarantee:
    """Prices a mechanism known to be epsilon-DP, as randomised response, which dominates it.

    Its loss distributions are on a grid of step `epsilon`, so that compositions are exact (optimal
    composition of Kairouz, Oh & Viswanath 2015).

    Args:
      epsilon: nats, >= 0 (0 costs nothing), under `relation`.
      relation: neighbouring relation.
    """
    epsilon = not_negative("epsilon", epsilon)
    return Guarantee(relation=relation, pair=lambda: pure_pair(epsilon), pure_epsilon=epsilon)


@mechanism
def approximate(epsilon: float, delta: float, *, relation: object = ADD_OR_REMOVE_ONE) -> Guarantee:
    """Prices a mechanism known to be (epsilon, delta)-DP, and nothing else.

    With probability delta everything is revealed, else there is randomised response at epsilon:
    that pair dominates every such mechanism (Kairouz, Oh & Viswanath 2015, Theorem 3.4). So a
    composition or a selection costs more than with a mechanism whose whole profile is known, and
    nothing is known at deltas below what may be revealed: use a delta of several times this one.
    In Renyi terms it is pure but for a failure of probability delta (Papernot & Steinke 2022, E).

    Args:
      epsilon: nats, >= 0, under `relation`.
      delta: in (0, 1); `epsilon` at smaller deltas is inf.
      relation: neighbouring relation.
    """
    epsilon = not_negative("epsilon", epsilon)
    delta = probability("delta", delta, hint="; for delta 0 use accounting.pure")
    return Guarantee(
        relation=relation,
        pair=lambda: pure_pair(epsilon).with_failure(delta),
        renyi=renyi.RenyiCurve(renyi.pure_curve(epsilon).evaluate, delta),
        basic=(epsilon, delta),
    )


@mechanism
def renyi_only(
    orders: np.ndarray, divergences: np.ndarray, *, relation: object = ADD_OR_REMOVE_ONE
) -> Guarantee:
    """Prices a mechanism known by a table of Renyi divergences alone, in both directions.

    Between the orders the cumulant generating function (order - 1) * divergence, which is convex
    (van Erven & Harremoes 2014, Corollary 2), is interpolated; above the largest order nothing is
    known.

    Example:
      >>> import numpy as np
      >>> from dpjax import accounting
      >>> orders = np.arange(2.0, 65.0)
      >>> curve = accounting.renyi_only(orders, orders / 8)  # A Gaussian's.
      >>> print(f"{curve.epsilon(1e-5):.2f}, exactly {accounting.gaussian(2.0).epsilon(1e-5):.2f}")
      2.17, exactly 1.99

    Args:
      orders: (n,) strictly ascending, finite, each > 1.
      divergences: (n,) nats, >= 0; infinite where nothing is known.
      relation: neighbouring relation.
    """
    orders = vector("orders", orders, finite=False)
    divergences = vector("divergences", divergences, finite=False)
    if orders.shape != divergences.shape:
        raise Refused(("orders",), " and ", ("divergences",), " must be two lists of one length")
    if np.any(np.isinf(orders)):
        # Interpolation up to an infinite order would price every order in between at nothing.
        words = " must be finite: leave infinity out, or pass its divergence to accounting.pure"
        raise Refused(("orders",), words)
    if not (np.all(orders > 1.0) and np.all(np.diff(orders) > 0) and np.all(divergences >= 0)):
        words = " must ascend, each above 1, and divergences be >= 0: pass such lists"
        raise Refused(("orders",), words)
    curve = renyi.table_curve(
        orders, (orders - 1.0) * divergences, lambda wanted: np.full(wanted.shape, np.inf)
    )
    return Guarantee(relation=relation, renyi=curve)


def grid_interval(wanted: float, extent: float) -> float:
    """Rounds `wanted` down to 1, 2 or 5 x 10^-k, and coarsens it until `extent` fits the memory."""
    exponent = math.floor(math.log10(wanted))
    candidates = [m * 10.0**e for e in range(exponent, exponent + 12) for m in (1.0, 2.0, 5.0)]
    fitting = [c for c in candidates if extent / c <= LARGEST_SIZE]
    if not fitting:
        raise ValueError(
            f"privacy losses up to {extent:.3g} fit no grid: pass more noise, or a smaller epsilon"
        )
    below = [c for c in fitting if c <= wanted * (1 + 1e-12)]
    return max(below) if below else min(fitting)
