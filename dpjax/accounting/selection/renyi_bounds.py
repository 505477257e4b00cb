"""Best of K runs in Renyi terms: Papernot & Steinke (ICLR 2022), corrected.

Two corrections (E1 in third_party_notes/papers.md): Lemma 7 and Theorem 6 of the paper omit the
event K = 0, on which both outputs agree; without its P[K = 0] they claim negative divergences when
E[K] < 1. The form used here, valid for every law of K, is

    exp((l-1) D_l(A||A')) <= P[K=0] + exp((l-1) D_l(Q||Q')) sup f'(q)^l f'(q')^(1-l).

Every bound is made non-decreasing in the order l (a divergence of larger order is larger).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from dpjax.accounting.guarantee import Guarantee
from dpjax.accounting.numerics.renyi import ORDERS, RenyiCurve
from dpjax.accounting.selection.laws.law import LogMoment, RepetitionLaw


def selection_curve(guarantee: Guarantee, base: RenyiCurve, law: RepetitionLaw) -> RenyiCurve:
    """Returns the Renyi curve of releasing the best of K runs.

    It is by `law.log_moment`: Theorem 2 (truncated negative binomial), Theorem 6 corrected
    (Poisson), Lemma 22 on top of either (`AtMost`), Lemma 7 corrected with the base's exact
    trade-off (every other law); and max(K) times the base's curve where K is bounded. A base with a
    failure event of probability d fails with 1 - f(1 - d), and given no failure is selected by the
    thinned law (Lemma 20).
    """
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
        log_moment = law.log_moment(guarantee, inside)

        def raw(orders: np.ndarray) -> np.ndarray:
            selected = np.logaddexp(log_none, log_moment(orders)) / (orders - 1.0)
            if math.isinf(law.maximum):
                return selected
            # All K <= max(K) runs together already tell everything about the best of them.
            return np.minimum(selected, law.maximum * inside(orders))

        return _monotone(raw)

    return RenyiCurve(lambda orders: bound()(orders), failed)


def _monotone(raw: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """Takes the infimum of `raw` over larger orders: grid points, the global optimum, itself."""
    curve = RenyiCurve(raw)
    lowest, place = curve.minimise(lambda orders, values: values)
    suffix = np.append(np.minimum.accumulate(curve.on_grid[::-1])[::-1], np.inf)

    def evaluate(orders: np.ndarray) -> np.ndarray:
        later = suffix[np.searchsorted(ORDERS, orders, side="left")]
        later = np.where(orders <= place, np.minimum(later, lowest), later)
        return np.minimum(curve(orders), later)

    return evaluate
