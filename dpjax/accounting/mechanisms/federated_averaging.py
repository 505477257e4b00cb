"""Prices federated averaging with distributed noise: seeing a noisy sum of clients' updates.

In every round each client sends a vector of integers of bounded length plus its own share of
discrete Gaussian noise; a secure sum shows the total and nothing else. The unit of privacy is a
client: neighbours replace one client with all of its records, in every round.

Kairouz, Liu & Steinke, "The Distributed Discrete Gaussian Mechanism for Federated Learning with
Secure Aggregation", ICML 2021 (PMLR 139:5201-5212), arXiv:2102.06387. The sum of discrete Gaussians
is not a discrete Gaussian; Proposition 14 there (the paper's first theorem, in Renyi form) bounds
what that costs by a term tau, which vanishes as soon as a share's standard deviation exceeds two.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from dpjax.accounting.calibration import calibrate
from dpjax.accounting.combine import compose
from dpjax.accounting.guarantee import Guarantee, check_guarantee
from dpjax.accounting.mechanisms.mechanism import mechanism
from dpjax.accounting.mechanisms.vote import minimum_survivors
from dpjax.accounting.numerics.renyi import RenyiCurve
from dpjax.checks import positive, probability, whole
from dpjax.neighbouring import REPLACE_ONE

LEAST_LOCAL_VARIANCE = 0.25
"""Least parameter: the proposition needs a local standard deviation of at least one half."""

MOST_TERMS = 10**7
"""Most terms of a sum over clients that are added one by one."""

_MOST_BEFORE = 0.99
"""Largest share of a target that may be spent before; above it, the rest needs too much noise."""


@mechanism
def federated_averaging(
    local_variance: float,
    bound: int,
    dimension: int,
    clients: int,
    rounds: int = 1,
    *,
    missing_fraction: float = 0.0,
) -> Guarantee:
    """Returns the cost of releasing, in each round, the noisy sum of all clients' integer vectors.

    Formal guarantees: replace one client; every client's vector, after rounding, is one of integers
    with Euclidean norm at most `bound`, whatever its records and whatever was released before;
    every client adds independent discrete Gaussian noise of parameter `local_variance` to every
    entry; in every round at least `minimum_survivors(clients, missing_fraction)` of the shares are
    in the sum and unknown to the adversary, and who they are does not depend on records. Replacing
    a client moves the sum by D2 = 2 bound in Euclidean norm and by D1 = min(sqrt(dimension) D2,
    D2^2) in the sum of absolute values, integers being at most their squares. With m shares of
    variance s^2, the Renyi divergence of order a of one round is at most the least of

      a D2^2 / (2 m s^2) + tau dimension,
      a / 2 (D2^2 / (m s^2) + 2 D1 tau / (sqrt(m) s) + tau^2 dimension),
      a / 2 (D2 / (sqrt(m) s) + tau sqrt(dimension))^2,

    tau = 10 sum_{k=1}^{m-1} exp(-2 pi^2 s^2 k / (k + 1)) (Kairouz, Liu & Steinke 2021, Proposition
    14); rounds compose adaptively. The bound is on concentrated differential privacy: against the
    exact Gaussian of the same variance it costs some percent of epsilon.

    Args:
      local_variance: parameter s^2 of one client's noise on one entry, at least 1/4.
      bound: Euclidean norm that no client's integer vector exceeds.
      dimension: entries of a vector.
      clients: n.
      rounds: how many sums are released.
      missing_fraction: xi, largest fraction of clients that drop out or collude, in [0, 1).
    """
    local_variance = positive("local_variance", local_variance)
    if local_variance < LEAST_LOCAL_VARIANCE:
        raise ValueError(
            f"local_variance {local_variance}: pass at least {LEAST_LOCAL_VARIANCE}, by larger "
            "integers; below it the sum of clients' noises is not a discrete Gaussian"
        )
    shares = minimum_survivors(clients, missing_fraction)
    moved = 2.0 * whole("bound", bound)
    dimension, rounds = whole("dimension", dimension), whole("rounds", rounds)

    def curve(orders: np.ndarray) -> np.ndarray:
        return rounds * _divergence_per_round(orders, local_variance, shares, moved, dimension)

    return Guarantee(relation=REPLACE_ONE, renyi=RenyiCurve(curve))


def calibrate_federated_averaging(
    epsilon: float,
    delta: float,
    *,
    bound: int,
    dimension: int,
    clients: int,
    rounds: int,
    missing_fraction: float = 0.0,
    before: Guarantee | None = None,
) -> float:
    """Finds the least noise of one client with which everything is (epsilon, delta)-private.

    If `before` has a Renyi curve that leaves some of the target, the search uses curves and takes
    milliseconds; the composition's own epsilon is then a little below the target (by less than a
    percent where the training costs most of it).

    Args:
      epsilon: target of `before` and all rounds together.
      delta: target, in (0, 1).
      bound, dimension, clients, rounds, missing_fraction: see `federated_averaging`.
      before: what was released from the same clients before, for example a vote.

    Returns:
      local_variance; if found by curves, too large by at most 4e-4, relative.
    """
    epsilon, delta = positive("epsilon", epsilon), probability("delta", delta)
    whole("dimension", dimension), whole("rounds", rounds)
    if before is not None:
        check_guarantee("before", before)
    if before is not None and before.epsilon(delta) >= _MOST_BEFORE * epsilon:
        raise ValueError(
            f"epsilon is {epsilon:g} in all, and what was released before costs "
            f"{before.epsilon(delta):.4g} alone: pass a larger epsilon, or spend less before"
        )
    shares = minimum_survivors(clients, missing_fraction)
    moved = 2.0 * whole("bound", bound)

    spent = before
    if before is not None and before.renyi is not None:
        # The curve alone: loss distributions would be convolved anew at every step of the search.
        by_curve = Guarantee(
            relation=before.relation, provenance=before.provenance, renyi=before.renyi
        )
        if by_curve.epsilon(delta) < _MOST_BEFORE * epsilon:
            spent = by_curve

    def variance(noise_multiplier: float) -> float:
        least = math.sqrt(LEAST_LOCAL_VARIANCE)
        return max(least, noise_multiplier * moved / math.sqrt(shares)) ** 2

    def total(noise_multiplier: float) -> Guarantee:
        training = federated_averaging(
            variance(noise_multiplier), bound, dimension, clients, rounds,
            missing_fraction=missing_fraction,
        )  # fmt: skip
        return training if spent is None else compose(spent, training)

    return variance(calibrate(total, epsilon=epsilon, delta=delta))


def _divergence_per_round(
    orders: np.ndarray, local_variance: float, shares: int, moved: float, dimension: int
) -> np.ndarray:
    """Bounds the Renyi divergence of a round at each order; a client moves the sum by `moved` (L2).

    By Proposition 14 of Kairouz, Liu & Steinke (2021).
    """
    ratio = moved / math.sqrt(shares * local_variance)
    tau = distance_from_discrete_gaussian(local_variance, shares)
    absolute = min(math.sqrt(dimension) * moved, moved**2)
    half = 0.5 * orders
    mixed = ratio**2 + 2.0 * absolute * tau * ratio / moved + tau**2 * dimension
    direct = (ratio + tau * math.sqrt(dimension)) ** 2
    return np.minimum(half * ratio**2 + tau * dimension, half * min(mixed, direct))


@functools.lru_cache(maxsize=64)
def distance_from_discrete_gaussian(local_variance: float, shares: int) -> float:
    """Bounds tau, the distance of a sum of discrete Gaussians from one of the same variance."""
    if shares > MOST_TERMS:  # Each term is at most the first, of k / (k + 1) = 1/2.
        return 10.0 * shares * math.exp(-(math.pi**2) * local_variance)
    k = np.arange(1, shares)
    return 10.0 * float(np.sum(np.exp(-2.0 * math.pi**2 * local_variance * k / (k + 1))))
