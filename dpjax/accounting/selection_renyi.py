"""Best of K runs in Renyi terms: Papernot & Steinke (ICLR 2022), corrected.

Two corrections (spec E1): Lemma 7 and Theorem 6 of the paper omit the event K = 0, on which both
outputs agree; without its P[K = 0] they claim negative divergences when E[K] < 1. The form used
here, valid for every law of K, is

    exp((l-1) D_l(A||A')) <= P[K=0] + exp((l-1) D_l(Q||Q')) sup f'(q)^l f'(q')^(1-l).

Every bound is made non-decreasing in the order l (a divergence of larger order is larger).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from dpjax.accounting.guarantee import Guarantee
from dpjax.accounting.renyi import ORDERS, RenyiCurve
from dpjax.accounting.repetitions import (
    AtMost,
    Poisson,
    RepetitionLaw,
    TruncatedNegativeBinomial,
)
from dpjax.accounting.tradeoff import largest_mass

LogMoment = Callable[[np.ndarray], np.ndarray]


def selection_curve(guarantee: Guarantee, law: RepetitionLaw) -> RenyiCurve:
    """Renyi curve of releasing the best of K runs.

    Args:
      guarantee: of one run; its Renyi curve must be known.
      law: of K.

    Returns:
      The curve: Theorem 2 (truncated negative binomial), Theorem 6 corrected (Poisson), Lemma 22
      on top of either (`AtMost`), Lemma 7 corrected with the base's exact trade-off (other laws);
      and max(K) times the base's curve where K is bounded. A base with a failure event of
      probability d fails with 1 - f(1 - d), and given no failure is selected by the thinned law
      (Lemma 20).
    """
    base = guarantee.renyi
    failure = base.failure_mass
    inside = RenyiCurve(base.evaluate)
    failed = float(law.success_probability(failure)) if failure > 0.0 else 0.0
    if failure > 0.0:
        law = law.thinned(failure)
    with np.errstate(divide="ignore"):
        log_none = float(law.log_pmf(np.array([0.0]))[0])

    @functools.cache
    def bound() -> LogMoment:
        # Deferred: the constants of the theorems are optima over orders of the base's curve.
        log_moment = _log_moment_bound(guarantee, inside, law)

        def raw(orders: np.ndarray) -> np.ndarray:
            selected = np.logaddexp(log_none, log_moment(orders)) / (orders - 1.0)
            if math.isinf(law.maximum):
                return selected
            # All K <= max(K) runs together already tell everything about the best of them.
            return np.minimum(selected, law.maximum * inside(orders))

        return _monotone(raw)

    return RenyiCurve(lambda orders: bound()(orders), failed)


def _monotone(raw: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """The infimum of `raw` over all larger orders: grid points, the global optimum, itself."""
    curve = RenyiCurve(raw)
    lowest, place = curve.minimise(lambda orders, values: values)
    suffix = np.append(np.minimum.accumulate(curve.on_grid[::-1])[::-1], np.inf)

    def evaluate(orders: np.ndarray) -> np.ndarray:
        later = suffix[np.searchsorted(ORDERS, orders, side="left")]
        later = np.where(orders <= place, np.minimum(later, lowest), later)
        return np.minimum(curve(orders), later)

    return evaluate


def _log_moment_bound(guarantee: Guarantee, base: RenyiCurve, law: RepetitionLaw) -> LogMoment:
    """orders -> log of the bound on exp((l-1) D_l), the event K = 0 left out."""
    if isinstance(law, TruncatedNegativeBinomial):
        return _theorem_2(base, law)
    if isinstance(law, Poisson):
        return _theorem_6(guarantee, base, law)
    if isinstance(law, AtMost) and isinstance(law.law, TruncatedNegativeBinomial | Poisson):
        inner = _log_moment_bound(guarantee, base, law.law)
        # Lemma 22: f' shrinks by at most E[K; K<=m] / E[K], and is divided by P[K<=m].
        log_kept = np.log(law.kept)
        log_share = np.log(law.mean) + log_kept - np.log(law.law.mean)
        return lambda orders: inner(orders) - log_kept - (orders - 1.0) * log_share
    return _lemma_7(guarantee, base, law)


def _theorem_2(base: RenyiCurve, law: TruncatedNegativeBinomial) -> LogMoment:
    """eps + (1+eta)(1 - 1/l^) eps^ + (1+eta) log(1/g) / l^ + log E[K] / (l-1), best l^ > 1."""
    constant, _ = base.minimise(
        lambda orders, values: (1.0 - 1.0 / orders) * values + law.log_inverse_gamma / orders
    )
    constant *= 1.0 + law.shape
    return lambda orders: (orders - 1.0) * (base(orders) + constant) + np.log(law.mean)


def _theorem_6(guarantee: Guarantee, base: RenyiCurve, law: Poisson) -> LogMoment:
    """eps + mu delta^ + log(mu) / (l-1), delta^ the profile at e^eps^ = 1 + 1/(l-1)."""

    def log_moment(orders: np.ndarray) -> np.ndarray:
        epsilons = -np.log1p(-1.0 / orders)
        if guarantee.known_by_renyi_only:
            deltas = base.profile(epsilons, refined=True)
        else:
            # Given no failure delta is smaller, but not by a known amount: a part of `parallel`
            # may have no failure to condition on.
            deltas = guarantee.pair.delta(epsilons)
        return (orders - 1.0) * (base(orders) + law.mean * deltas) + np.log(law.mean)

    return log_moment


def _lemma_7(guarantee: Guarantee, base: RenyiCurve, law: RepetitionLaw) -> LogMoment:
    """(l-1) eps + log sup f'(q)^l f'(q')^(1-l) over the events the base's trade-off allows."""
    tails = np.append(0.0, np.geomspace(1e-16, 0.5, 2000))
    tails = np.append(tails, 1.0 - tails[-2::-1])
    pieces = []
    # With failures counted h is only larger, as it may be.
    pair = guarantee.pair
    for law_of_loss in {id(pair.forward): pair.forward, id(pair.backward): pair.backward}.values():
        reached = largest_mass(law_of_loss, tails)
        with np.errstate(divide="ignore"):
            # On a cell the left end bounds f'(q) from above, the right end f'(q') from below.
            pieces.append((np.log(law.derivative(tails[:-1])), np.log(law.derivative(reached[1:]))))

    def log_moment(orders: np.ndarray) -> np.ndarray:
        worst = np.full(orders.shape, -np.inf)
        for upper, lower in pieces:
            for index, order in enumerate(orders):
                terms = order * upper + (1.0 - order) * np.maximum(lower, -1e300)
                worst[index] = max(worst[index], float(np.max(terms)))
        return (orders - 1.0) * base(orders) + worst

    return log_moment
