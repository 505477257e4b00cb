"""Prices releasing the best of K private runs.

In Renyi terms the bounds are those of Papernot & Steinke (ICLR 2022) with two corrections (E1 in
third_party_notes/papers.md): Lemma 7 and Theorem 6 of the paper omit the event K = 0, on which both
outputs agree; without its P[K = 0] they claim negative divergences when E[K] < 1. The form used
here, valid for every law of K, is

    exp((l-1) D_l(A||A')) <= P[K=0] + exp((l-1) D_l(Q||Q')) sup f'(q)^l f'(q')^(1-l).

Every bound is made non-decreasing in the order l (a divergence of larger order is larger).
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable

import numpy as np

from dpjax.accounting import provenance
from dpjax.accounting.guarantee import Guarantee, check_guarantee
from dpjax.accounting.numerics.composition import composed_points, composition
from dpjax.accounting.numerics.loss_distribution import LossPair, whole_down, whole_up
from dpjax.accounting.numerics.privacy_profile import pair_from_profiles, touching_line
from dpjax.accounting.numerics.renyi import ORDERS, RenyiCurve
from dpjax.accounting.selection.envelope import selected_profiles
from dpjax.accounting.selection.exact import TAIL_DELTA, tightened
from dpjax.accounting.selection.laws import (
    LogMoment,
    RepetitionLaw,
    check_law,
    law_from_dict,
)
from dpjax.checks import one_of

METHODS = ("tight", "envelope", "rdp")

LARGEST_TOGETHER = 64
"""Largest K whose runs are also priced all together; above it the envelope is mostly tighter."""

LONGEST_TOGETHER = 1 << 19
"""Most grid points of all runs together, a second's work; beyond, their interval is coarsened."""

SINGLE_COUNTS = 8
"""If K varies, numbers of runs up to this are composed one by one; more count as the largest K."""

ROUGH_GRID = 0.05
"""Interval, in standard deviations of the loss, of a rough check if all runs together help."""

HELPS = 1.1
"""They may help only if this times a line of the other bounds exceeds the rough profile."""

LARGEST_CUT = 1e-12
"""Mass beyond the end of the envelope's profile above which the profile is made longer."""

WARNED_CUT = 1e-6
"""The same if all runs together are priced too; above it a warning calls the price loose."""

FEW_LOSSES = 2000
"""If the base has fewer losses, a price at one delta looks at the selection's whole profile."""

LOUD = 1e6
"""A mass below this many times what one run reveals gives no warning: it may stem from that."""

LEFT_FLOAT64 = (
    "best_of with {!r}: privacy losses with a probability up to {:.2g} leave float64 and are "
    "priced by looser bounds, at most by all runs together, {:g} times one: pass more noise, or a "
    "law such as accounting.Geometric"
)
"""The warning; its fields are the law, that probability and the largest K."""

LONGEST_TAIL = 100_000
"""Most grid points by which a profile is lengthened to reach a pure epsilon."""


def best_of(guarantee: Guarantee, law: RepetitionLaw, method: str = "tight") -> Guarantee:
    """Prices releasing only the best of K independent runs, K drawn from a distribution.

    Formal guarantees: it holds if
      - K is drawn from `law`, fixed before the data is seen, before the first run and whatever the
        runs give, and is never revealed: not by logs, wall clock, file counts or array shapes;
      - every run uses fresh randomness and candidates drawn independently, with replacement, from
        one public law (for several noise levels pass `mixture` of their guarantees);
      - "best" is by a score of the runs' private outputs (a total preorder), ties broken
        independently of the data; a failed run ranks worst, is not retried and counts;
      - nothing of the losing runs is released; K = 0 releases a data-independent default;
      - `guarantee` covers one run AND its score (a score on private validation data is composed
        into it, or joined by `parallel` where its records are disjoint).

    Example:
      >>> from dpjax import accounting
      >>> run = accounting.gaussian(noise_multiplier=2.0)
      >>> best = accounting.best_of(run, accounting.Geometric(10))
      >>> print(f"{run.epsilon(1e-5):.2f} for one run, {best.epsilon(1e-5):.2f} for the best of K")
      1.99 for one run, 3.01 for the best of K

    Args:
      guarantee: of one run and its score.
      law: the law of K; pass one of your own as `Tabulated`.
      method: "tight" takes the smallest of these bounds: the envelope bound; the exact bound over
        all orders of the outcomes (docs/envelope_bound.md); the composition of all runs, if K is at
        most 64; the Renyi theorems of Papernot & Steinke (ICLR 2022) as corrected here; and, if one
        run has pure privacy, `selected_pure_epsilon` (at most Corollary 3's). "envelope" takes the
        envelope bound alone, "rdp" the paper's theorems alone (Theorems 2 and 6, Lemmas 7, 20 and
        22, Corollary 3). The envelope takes 20 to 60 ms, the exact bound 0.1 to 0.3 s at one delta.
        For truncated negative binomial laws of shape at most 2, capped or not, the exact bound is
        computed only at deltas above 1e-5, or if the selection is composed, mixed or selected from.

    Returns:
      Guarantee under the same neighbouring relation; it composes, mixes and nests like any other.
      Its provenance names the law, never a drawn K.
    """
    check_law("best_of", law)
    check_guarantee("guarantee", guarantee)
    if method == "profile":  # Statements of old releases may name it.
        raise ValueError("method='profile' was last priced by version 0.2.0: pass method='tight'")
    one_of("method", method, METHODS)
    if method == "rdp" and guarantee.renyi is None:
        raise ValueError("the base has no Renyi curve: pass method='tight' or 'envelope'")
    tree = provenance.node(
        "best_of", {"law": law.to_dict(), "method": method}, [guarantee.provenance]
    )
    if law.minimum == 1 and law.maximum == 1:
        # One run, whatever the method: f' = 1.
        return Guarantee(
            relation=guarantee.relation,
            provenance=tree,
            pair=None if guarantee.known_by_renyi_only else lambda: guarantee.pair,
            renyi=guarantee.renyi,
            pure_epsilon=guarantee.pure_epsilon,
        )
    curve = None
    if guarantee.renyi is not None and method != "envelope":
        curve = _selection_curve(guarantee, guarantee.renyi, law)
    pure = None
    if guarantee.pure_epsilon is not None:
        pure = selected_pure_epsilon(guarantee.pure_epsilon, law, as_published=method == "rdp")
        if pure is not None and not math.isfinite(pure):
            pure = None
    if method == "rdp":
        return Guarantee(
            relation=guarantee.relation, provenance=tree, renyi=curve, pure_epsilon=pure
        )
    helpful = curve if guarantee.known_by_renyi_only else None
    tight = method == "tight"

    def at_delta(delta: float) -> LossPair:
        # Both of two runs together cost as much as the better of them, at small delta.
        sufficient = law.envelope_suffices or law.minimum == law.maximum == 2
        exact = delta > TAIL_DELTA or not sufficient
        # A profile with corners may be convex across one only when all of it is looked at.
        few = np.count_nonzero(guarantee.pair.forward.masses) < FEW_LOSSES
        wanted = None if exact and few else delta
        return _selected_pair(guarantee.pair, law, pure, helpful, exact=exact, delta=wanted)

    def rough() -> LossPair:
        return _selected_pair(guarantee.pair, law, pure, helpful, together=False, exact=False)

    return Guarantee(
        relation=guarantee.relation,
        provenance=tree,
        pair=lambda: _selected_pair(guarantee.pair, law, pure, helpful, tight, exact=tight),
        renyi=curve,
        pure_epsilon=pure,
        at_delta=at_delta if tight else None,
        rough=rough if tight else None,
    )


def _selected_pair(
    pair: LossPair,
    law: RepetitionLaw,
    pure: float | None,
    curve: RenyiCurve | None,
    together: bool = True,
    exact: bool = True,
    delta: float | None = None,
) -> LossPair:
    """Forms the pair of the selection's smallest known profile, by all bounds that apply.

    For one `delta` it is the smallest there, and a bound elsewhere.
    """
    interval, profiles = selected_profiles(pair, law)
    # Where the envelope's profile ends too early, it is computed again as far as float64 reaches.
    # With few runs, "all together" continues it anyway; with two it is as good everywhere.
    most = LARGEST_CUT if law.maximum > LARGEST_TOGETHER else WARNED_CUT
    far = law.maximum > 2 and _left(pair, law, profiles) > most
    if far:
        interval, profiles = selected_profiles(pair, law, far)
    if exact:
        profiles = tightened(pair, law, interval, profiles, far, delta)
    left = _left(pair, law, profiles)
    revealed = max(pair.forward.infinity_mass, pair.backward.infinity_mass)
    if far and left > max(WARNED_CUT, LOUD * revealed):
        warnings.warn(LEFT_FLOAT64.format(law, left, law.maximum), stacklevel=2)
    smallest = _with_theorems(interval, profiles, curve, pure)
    together &= law.maximum <= LARGEST_TOGETHER
    if together and (delta is None or _together_may_help(pair, law, interval, smallest, delta)):
        interval, profiles = _all_together(pair, law, interval, profiles)
        smallest = _with_theorems(interval, profiles, curve, pure)
    return pair_from_profiles(interval, *smallest)


def _with_theorems(
    interval: float, profiles: list[np.ndarray], curve: RenyiCurve | None, pure: float | None
) -> list[np.ndarray]:
    """Lowers the profiles to the bounds by a Renyi curve and a pure epsilon, if smaller."""
    improved = []
    for profile in profiles:
        epsilons = interval * np.arange(profile.size)
        if curve is not None:
            # The true profile is convex in e^epsilon, so chords of upper bounds are upper bounds.
            knots = np.unique(np.linspace(0, profile.size - 1, 800).astype(int))
            bounds = curve.profile(epsilons[knots])
            profile = np.minimum(profile, _chords(epsilons, knots, bounds))
        if pure is not None:
            profile = np.where(epsilons >= pure * (1.0 + 1e-12), 0.0, profile)
            short = whole_up(pure / interval) + 2 - profile.size
            if profile[-1] > 0.0 and short <= LONGEST_TAIL:
                held = np.full(max(0, short), profile[-1])
                profile = np.append(np.append(profile, held), 0.0)
        improved.append(profile)
    return improved


def _left(pair: LossPair, law: RepetitionLaw, profiles: list[np.ndarray]) -> float:
    """Returns the mass beyond the end of the profiles, less the mass that runs reveal anyway."""
    revealed = max(pair.forward.infinity_mass, pair.backward.infinity_mass) * law.mean
    return max(float(profile[-1]) for profile in profiles) - min(revealed, 1.0)


def _together_may_help(
    pair: LossPair, law: RepetitionLaw, interval: float, profiles: list[np.ndarray], delta: float
) -> bool:
    """Returns whether releasing all K runs may cost less at `delta` than the given profiles say.

    A bound above the line that touches a profile's convex hull at `delta` cannot lower the hull
    there, even if it is below the profile elsewhere.
    """
    grids = [interval * np.arange(profile.size) for profile in profiles]
    lines = [touching_line(*found, delta) for found in zip(grids, profiles)]
    if any(line[-1] > 0.0 for line in lines):
        return True  # It may be met beyond the profile's end.
    coarser = max(1, whole_down(ROUGH_GRID * pair.spread() / pair.interval))
    rough = pair.regridded(pair.interval * coarser)
    # The most expensive come first: often they decide alone.
    for count, mass in sorted(_counts(law).items(), key=lambda item: -item[0] * item[1]):
        total = _ReleaseOfAllRuns(rough, {count: mass})
        lines = [
            line - total(direction, epsilons) / HELPS
            for direction, (epsilons, line) in enumerate(zip(grids, lines))
        ]
        if all(np.all(line <= 0.0) for line in lines):
            return False
    return True


def _counts(law: RepetitionLaw) -> dict[int, float]:
    """Returns number of runs -> mass; large numbers count as the largest K, which tells no less."""
    largest = int(law.maximum)
    masses = law.pmf(np.arange(largest + 1))
    counts = {k: float(masses[k]) for k in range(1, min(SINGLE_COUNTS, largest) + 1)}
    if largest > SINGLE_COUNTS:
        counts[largest] = float(masses[SINGLE_COUNTS + 1 :].sum())
    return {count: mass for count, mass in counts.items() if mass > 0.0}


def _all_together(
    pair: LossPair, law: RepetitionLaw, interval: float, profiles: list[np.ndarray]
) -> tuple[float, list[np.ndarray]]:
    """Returns the interval, and the smaller of the given profiles and those of all K runs released.

    K does not depend on the data, so the latter is sum_k P[K = k] H(P^k || P'^k).
    """
    ends = max(profile[-1] for profile in profiles) > LARGEST_CUT
    total = _ReleaseOfAllRuns(pair, _counts(law))
    if ends:
        # The envelope ends 80 nats above one run's losses; the composition's profile goes on.
        short = whole_up(total.end / interval) + 2
        profiles = [np.append(p, np.full(max(0, short - p.size), p[-1])) for p in profiles]
        # Keeping every n-th knot is still a bound: the pair is linear between knots.
        every = whole_up(short / LONGEST_TOGETHER)
        interval *= every
        profiles = [np.append(p[::every], p[-1]) for p in profiles] if every > 1 else profiles
    smaller = []
    for direction, profile in enumerate(profiles):
        epsilons = interval * np.arange(profile.size)
        smaller.append(np.minimum(profile, total(direction, epsilons)))
    return interval, smaller


class _ReleaseOfAllRuns:
    """Represents releasing K and all K runs; `counts` are masses of the numbers of runs."""

    def __init__(self, pair: LossPair, counts: dict[int, float]):
        self.parts = []
        for count, mass in counts.items():
            size = count * pair.size
            if size > LONGEST_TOGETHER:
                size = composed_points(pair, count)
            coarser = 2.0 ** max(0, whole_up(math.log2(size / LONGEST_TOGETHER)))
            composed = composition([(pair.regridded(pair.interval * coarser), count)])
            self.parts.append((mass, (composed.forward, composed.backward)))
        self.end = max(law_of_loss.losses[-1] for _, both in self.parts for law_of_loss in both)

    def __call__(self, direction: int, epsilons: np.ndarray) -> np.ndarray:
        """Returns the profile in one direction at the epsilons (n,)."""
        profiles = [mass * both[direction].delta(epsilons) for mass, both in self.parts]
        return np.sum(profiles, axis=0)


def _chords(epsilons: np.ndarray, knots: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Interpolates linearly in e^epsilon between knots, where e^epsilon overflows too; (n,)."""
    cell = np.clip(np.searchsorted(knots, np.arange(epsilons.size), "right") - 1, 0, knots.size - 2)
    left, right = epsilons[knots[cell]], epsilons[knots[cell + 1]]
    with np.errstate(invalid="ignore"):
        share = np.expm1(left - epsilons) / np.expm1(left - right) * np.exp(epsilons - right)
    low, high = bounds[cell], bounds[cell + 1]
    return np.maximum(low + (high - low) * share, np.minimum(low, high))


def _selection_curve(guarantee: Guarantee, base: RenyiCurve, law: RepetitionLaw) -> RenyiCurve:
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
            # The best of the runs tells no more than all max(K) runs together.
            return np.minimum(selected, law.maximum * inside(orders))

        return monotone(raw)

    return RenyiCurve(lambda orders: bound()(orders), failed)


def monotone(raw: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """Makes a bound non-decreasing in the order, since a value at a larger order is a bound too.

    It takes the smallest of the value at the order itself, at the larger orders of the grid, and at
    the order that is best of all, if that is larger.
    """
    curve = RenyiCurve(raw)
    lowest, place = curve.minimise(lambda orders, values: values)
    suffix = np.append(np.minimum.accumulate(curve.on_grid[::-1])[::-1], np.inf)

    def evaluate(orders: np.ndarray) -> np.ndarray:
        later = suffix[np.searchsorted(ORDERS, orders, side="left")]
        later = np.where(orders <= place, np.minimum(later, lowest), later)
        return np.minimum(curve(orders), later)

    return evaluate


def selected_pure_epsilon(
    epsilon: float, law: RepetitionLaw, as_published: bool = False
) -> float | None:
    """Returns a delta-free epsilon of the best of K runs of an epsilon-DP base.

    The density ratio of the winners is e^epsilon f'(1-x) / f'(1-h(x)) at most, with h the
    trade-off of randomised response: `law.largest_log_ratio`. It never exceeds Papernot & Steinke's
    Corollary 3, (2 + eta) epsilon, which is returned itself if `as_published`, None for laws that
    it does not cover.
    """
    if as_published:
        return law.published_pure_epsilon(epsilon)
    # K <= max(K) runs tell no more than all of them together.
    all_together = law.maximum * epsilon if epsilon > 0.0 else 0.0
    found = epsilon + law.largest_log_ratio(epsilon)
    # One part in 1e12 covers the rounding of f'.
    return min(found + 1e-12 * (1.0 + found), all_together)


provenance.register(
    "best_of",
    lambda parameters, parts: best_of(
        parts[0], law_from_dict(parameters["law"]), parameters["method"]
    ),
)
