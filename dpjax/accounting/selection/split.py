"""Prices tuning on a secret random part of the records together with training on the rest."""

from __future__ import annotations

import math

import numpy as np

from dpjax import checks
from dpjax.accounting.combine import compose
from dpjax.accounting.guarantee import Guarantee
from dpjax.accounting.mechanisms.elementary import pure
from dpjax.accounting.mechanisms.mechanism import mechanism
from dpjax.accounting.numerics import renyi
from dpjax.accounting.numerics.loss_distribution import LossDistribution, LossPair, whole_up
from dpjax.accounting.numerics.privacy_profile import pair_from_laws, pair_from_profiles
from dpjax.neighbouring import ADD_OR_REMOVE_ONE

FINAL_ON = ("rest", "all")

KNOTS = (0.025, 400)
"""Knots of the distribution that is summed over: their distance in standard deviations around the
bulk, and their number elsewhere. They add less than 0.02% to epsilon, quadratic in the distance.
"""

FINENESS = 0.02
"""Distance of the epsilons at which the profile is written, in standard deviations of the loss."""

LONGEST = 8000
"""Most epsilons at which the profile is written."""

NEGLIGIBLE = 1e-16
"""Level at which the profile's finite part is cut; the rest counts as infinite loss."""

LARGEST_LOSS = 500.0
"""Largest finite loss of the distribution that is summed over; larger ones count as infinite."""

ROUNDING = 1e-12
"""Relative margin on densities, orders and sums, each towards the side that costs more."""

INCONSISTENT = 1e-9
"""Excess of mirrored mass above which a pair is rebuilt from its profiles at epsilon >= 0."""

_AT_ONCE = 1 << 16
"""Terms of the sum that are held in memory together."""


@mechanism
def split(
    tuned: Guarantee, final: Guarantee, *, probability: float, final_on: str = "rest"
) -> Guarantee:
    """Prices tuning on a secret random part of the records and training on the rest.

    The procedure is that of Koskela & Kulkarni (NeurIPS 2023, arXiv:2301.11989), who bound Renyi
    divergences; this is the exact cost of the two dominating pairs.

    Formal guarantees: it holds if
      - every record is in the first part with probability q = `probability`, independently of
        every other record and of all else, by randomness that nobody learns: the operating
        system's, never a hash that others can compute. A part that is known, or guessed better
        than by q, costs `parallel(tuned, final)`;
      - `tuned` covers all that is computed on the first part, such as `best_of` of runs: for two
        data sets that differ in one record of that part;
      - `final` covers what is computed afterwards, on the other records ("rest") or on all of them
        ("all"), whatever came out of the first part: the same guarantee for every outcome;
      - sizes of the parts, and what is computed from them, are not released: lots are divided by
        expected numbers.

    With a record of the data at hand, P, and without it, Q, and the likelihood ratios L_A of what
    is computed on the first part and L_M of what is computed afterwards, independent under Q, the
    ratio of everything is q L_A + (1 - q) L_M for "rest" and (1 - q + q L_A) L_M for "all". For
    t = e^epsilon

        H_t(P||Q) = E_Q[(q L_A + (1 - q) L_M - t)_+],  H_t(Q||P) = E_Q[(1 - t (q L_A + ...))_+]

    Proof: fix where the other records are; the parts are averaged over at the end, which the joint
    convexity of H_t allows. With the record P = q P_A x Q_M + (1 - q) Q_A x P_M, without it
    Q = Q_A x Q_M. By Blackwell's theorem a kernel maps a dominating pair onto (P_A, Q_A), and one
    for every outcome of A maps the other dominating pair onto what follows that outcome. The first,
    and then the one of what came out, map the mixture of the dominating pairs onto P, and their
    product onto Q.

    Example:
      >>> from dpjax import accounting
      >>> run = accounting.gaussian(2.0)
      >>> tuned = accounting.best_of(run, accounting.Geometric(10))
      >>> total = accounting.split(tuned, run, probability=0.1)
      >>> total.epsilon(1e-5) < tuned.epsilon(1e-5)
      True

    Args:
      tuned: guarantee of all that reads the first part, under add or remove one.
      final: guarantee of what follows, under add or remove one.
      probability: q in (0, 1), the probability that a record is in the first part.
      final_on: the records that what follows reads, "rest" or "all".

    Returns:
      Guarantee under add or remove one; it composes, mixes and nests like any other. For "rest" it
      never exceeds `parallel(tuned, final)`, up to the rounding of its grid; it is that of `final`
      as q approaches 0 and that of `tuned` as q approaches 1. It takes 0.1 to 0.5 s.
    """
    for name, guarantee in (("tuned", tuned), ("final", final)):
        checks.instance(name, guarantee, Guarantee, "accounting.gaussian(1.0)")
        if guarantee.relation != ADD_OR_REMOVE_ONE:
            raise ValueError(
                f"{name} is under {guarantee.relation!r}, for which a split has no price: pass a "
                f"guarantee under {ADD_OR_REMOVE_ONE!r} (Poisson lots)"
            )
    q = checks.probability("probability", probability)
    if checks.one_of("final_on", final_on, FINAL_ON) == "all":
        # The ratio 1 - q + q L_A is that of a first part followed by nothing.
        return compose(split(tuned, pure(0.0), probability=q), final)
    curve = None
    if tuned.renyi is not None and final.renyi is not None:
        # By joint convexity it costs at most a mechanism drawn by these weights.
        curve = renyi.mixture_of([tuned.renyi, final.renyi], np.array([q, 1.0 - q]))
    return Guarantee(
        relation=ADD_OR_REMOVE_ONE,
        pair=lambda: _split_pair(tuned.pair, final.pair, q),
        renyi=curve,
        pure_epsilon=_pure_epsilon(tuned.pure_epsilon, final.pure_epsilon, q),
    )


def _pure_epsilon(tuned: float | None, final: float | None, q: float) -> float | None:
    """Returns a pure epsilon of the split, the log of its largest likelihood ratio, or None."""
    if tuned is None or final is None:
        return None
    found = float(np.logaddexp(math.log(q) + tuned, math.log1p(-q) + final))
    # One part in 1e12 covers the rounding; a weighted mean is never above the larger.
    return min(found + ROUNDING * (1.0 + found), max(tuned, final))


def _split_pair(tuned: LossPair, final: LossPair, q: float) -> LossPair:
    """Forms the pair of ratio q L_A + (1 - q) L_M, from the pairs of the two ratios."""
    # The formula is symmetric, so the shorter distribution is summed over.
    (summed, weight), (other, other_weight) = sorted(
        [(_consistent(tuned), q), (_consistent(final), 1.0 - q)], key=lambda part: part[0].size
    )
    summed = LossPair(_thinned(summed.forward), _thinned(summed.backward))
    interval = _interval(summed, other, weight, other_weight)
    forward, backward = (
        _profile(terms, interval)
        for terms in (
            _Forward(summed.forward, other.forward, weight, other_weight),
            _Backward(summed.backward, other.backward, weight, other_weight),
        )
    )
    length = max(forward.size, backward.size)
    return pair_from_profiles(interval, _extended(forward, length), _extended(backward, length))


def _consistent(pair: LossPair) -> LossPair:
    """Returns the pair; one whose directions are not mirror images is rebuilt from its profiles."""
    laws = (pair.forward, pair.backward)
    excess = max(law.mirrored_mass() for law in laws) - 1.0
    return pair if excess <= INCONSISTENT else pair_from_laws(pair.interval, laws)


def _thinned(law: LossDistribution) -> LossDistribution:
    """Moves a distribution to fewer knots, pessimistically, if it has many."""
    law = law.completed()
    return law if law.masses.size <= KNOTS[1] else law.kept_at(law.knots(*KNOTS))


def _interval(summed: LossPair, other: LossPair, weight: float, other_weight: float) -> float:
    """Returns the spacing of the epsilons at which the profiles are written."""
    spread = math.hypot(weight * summed.spread(), other_weight * other.spread())
    laws = (summed.forward, summed.backward, other.forward, other.backward)
    # Backwards one ratio may be 0; the whole is then the other's weight times its ratio.
    reach = max(law.losses[-1] for law in laws) - math.log(min(weight, other_weight))
    # The spacing suits the bulk; how far the profile reaches is found while it is written.
    wanted = max(FINENESS * min(spread, 0.5), reach / LONGEST, 1e-9)
    # A multiple or a fraction of the other's interval: such grids compose exactly.
    if wanted < other.interval:
        return other.interval / whole_up(other.interval / wanted)
    return other.interval * whole_up(wanted / other.interval)


class _Forward:
    """Averages v H_tau(P'||Q') over one ratio x to give H_t(P||Q): tau = (t - w x) / v."""

    def __init__(
        self, summed: LossDistribution, other: LossDistribution, weight: float, other_weight: float
    ):
        self._other, self._weight, self._other_weight = other, weight, other_weight
        held = (summed.masses > 0.0) & (summed.losses <= LARGEST_LOSS)
        self._ratios = np.exp(summed.losses[held]) * (1.0 + ROUNDING)
        self._masses = summed.masses[held] / np.exp(summed.losses[held])  # Under Q.
        revealed = summed.infinity_mass + float(summed.masses[summed.losses > LARGEST_LOSS].sum())
        # Outcomes impossible under Q are added separately.
        self._revealed = weight * revealed
        self.least = self._revealed + other_weight * other.infinity_mass

    def __call__(self, t: np.ndarray) -> np.ndarray:
        """Evaluates at orders t, (n,)."""
        nothing = _divergence(self._other, t / self._other_weight)
        # The rest of Q's mass, which is not listed, has ratio x = 0.
        tau = (t[:, None] - self._weight * self._ratios) / self._other_weight
        more = np.maximum(_divergence(self._other, tau) - nothing[:, None], 0.0) @ self._masses
        return self._revealed + self._other_weight * (nothing + more)


class _Backward:
    """Averages c H_s(Q'||P') over one ratio x for H_t(Q||P): c = 1 - t w x, s = t v / c."""

    def __init__(
        self, summed: LossDistribution, other: LossDistribution, weight: float, other_weight: float
    ):
        self._other, self._weight, self._other_weight = other, weight, other_weight
        held = (summed.masses > 0.0) & (summed.losses >= -LARGEST_LOSS)
        self._ratios = np.exp(-summed.losses[held]) * (1.0 - ROUNDING)
        self._masses = summed.masses[held]  # Under Q.
        self._impossible = summed.infinity_mass  # Under P: x = 0.
        self.least = self._impossible * other.infinity_mass

    def __call__(self, t: np.ndarray) -> np.ndarray:
        """Evaluates at orders t, (n,)."""
        left = np.maximum(1.0 - t[:, None] * self._weight * self._ratios, 0.0)
        order = t[:, None] * self._other_weight / np.maximum(left, 1e-60)
        found = (left * _divergence(self._other, order)) @ self._masses
        return found + self._impossible * _divergence(self._other, t * self._other_weight)


def _divergence(law: LossDistribution, order: np.ndarray) -> np.ndarray:
    """Returns the hockey-stick divergence of any real order, rounded up; of `order`'s shape."""
    with np.errstate(divide="ignore"):
        # Clipped: a smaller order only costs more, and an infinite one would give NaN.
        epsilon = np.log(np.clip(order, 0.0, 1e304))
    found = law.delta(epsilon - ROUNDING * (1.0 + np.abs(epsilon)))
    return np.maximum(found, 1.0 - order)  # A lower bound; the exact value for orders <= 0.


def _profile(divergence: _Forward | _Backward, interval: float) -> np.ndarray:
    """Evaluates the profile at epsilon = 0, interval, ..., until NEGLIGIBLE, rounded up; (n,)."""
    # In blocks of epsilons, to bound memory, until only `least` is left.
    block = max(1, _AT_ONCE // max(1, divergence._ratios.size))
    found: list[np.ndarray] = []
    start, raised = 0, 1.0 + ROUNDING + 8.0 * divergence._ratios.size * 2.0**-53
    while True:
        epsilons = interval * np.arange(start, min(start + block, 2 * LONGEST))
        with np.errstate(over="ignore"):
            values = divergence(np.exp(np.minimum(epsilons, 700.0)))
        found.append(values)
        ended = np.flatnonzero(values - divergence.least <= NEGLIGIBLE)
        start += epsilons.size
        if ended.size:
            found[-1] = values[: ended[0] + 1]
            break
        if start >= 2 * LONGEST:
            break
    return np.minimum(raised * np.concatenate(found), 1.0)


def _extended(profile: np.ndarray, length: int) -> np.ndarray:
    """Extends the profile by its last value, (length,)."""
    return np.append(profile, np.full(length - profile.size, profile[-1]))
