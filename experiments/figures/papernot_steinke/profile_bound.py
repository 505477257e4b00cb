"""The best of K runs by one number of the base's privacy profile: a published bound, to compare.

With y = Q(rank > r) and y' the same under Q', every event of a neighbouring pair obeys
y' <= e^e1 y + d1, d1 the base's profile at e1 >= 0. So the factors f'(1-y) and f'(1-y') by which
the winner's densities exceed a run's differ by a ratio R at most, wherever the rank is:

    truncated negative binomial (shape eta, g):  R = (e^e1 + (1-g)/g d1)^(eta+1)
    Poisson:                                     R = exp(E[K] (e^e1 - 1 + d1))

and H_{e^epsilon}(A||A') <= E[K] H_{e^epsilon / R}(Q||Q'). Believed to be the form of the theorems
of Koskela, Redberg & Wang, "Privacy Profiles for Private Selection" (ICML 2024, arXiv:2402.06701),
whose text we had no access to; derived for this project. The envelope is never above it: its
phi(u) <= E[K] (1 - u/R)_+.
"""

from __future__ import annotations

import numpy as np

from dpjax.accounting import Poisson, TruncatedNegativeBinomial
from dpjax.accounting.numerics.loss_distribution import LossPair, whole_up
from dpjax.accounting.numerics.privacy_profile import pair_from_profiles
from dpjax.accounting.selection.envelope import NEGLIGIBLE, output_interval
from dpjax.accounting.selection.laws import RepetitionLaw

ROUNDING = 1e-12
"""Relative, of the ratio and the profile: both are raised by it."""

LARGEST_RATIO = 690.0
"""log R beyond which nothing is claimed: e^690 is near the end of float64."""


def profile_bound(pair: LossPair, law: RepetitionLaw) -> LossPair:
    """Returns E[K] delta(epsilon - log R), R at the best e1, for laws that state the ratio."""
    ratio = smallest_log_ratio(pair, law)
    if not ratio < LARGEST_RATIO:
        return pair_from_profiles(pair.interval, np.ones(2))
    interval = output_interval(pair, ratio)
    end = max(float(part.losses[-1]) for part in (pair.forward, pair.backward)) + ratio
    epsilons = interval * np.arange(max(2, whole_up(max(end, 0.0) / interval) + 2))
    profile = (1.0 + ROUNDING) * law.mean * pair.delta(epsilons - ratio)
    infinite = law.mean * max(pair.forward.infinity_mass, pair.backward.infinity_mass)
    # What is cut off stays as infinite loss: the last value kept.
    beyond = np.flatnonzero(profile - infinite <= NEGLIGIBLE)
    stop = int(beyond[0]) + 1 if beyond.size else profile.size
    return pair_from_profiles(interval, np.minimum(profile[: max(2, stop)], 1.0))


def smallest_log_ratio(pair: LossPair, law: RepetitionLaw) -> float:
    """Returns log R at the best e1 >= 0, from above.

    R grows with e^e1 + c d(e1), which between losses of the base is linear in e^e1: the best e1 is
    one of them, or 0.
    """
    grids = [part.losses[part.losses > 0.0] for part in (pair.forward, pair.backward)]
    epsilons = np.unique(np.concatenate([[0.0], *grids]))
    epsilons = epsilons[epsilons <= LARGEST_RATIO]
    smallest = float(np.min(log_ratio(law, epsilons, pair.delta(epsilons))))
    return smallest + ROUNDING * (1.0 + smallest)


def log_ratio(law: RepetitionLaw, epsilons: np.ndarray, deltas: np.ndarray) -> np.ndarray:
    """log sup f'(1-y) / f'(1-y') over y' <= e^epsilon y + delta, (n,), of a profile's points."""
    if isinstance(law, Poisson):
        # E[K] (y' - y), with y <= 1.
        return law.mean * (np.expm1(epsilons) + deltas)
    if isinstance(law, TruncatedNegativeBinomial):
        # (g + (1-g) y') / (g + (1-g) y), to the power 1 + eta.
        with np.errstate(divide="ignore"):
            log_more = np.log((1.0 - law.gamma) / law.gamma * deltas)
        return (1.0 + law.shape) * np.logaddexp(epsilons, log_more)
    raise ValueError(
        f"no published profile bound covers {law!r}: pass a truncated negative binomial or Poisson"
    )
