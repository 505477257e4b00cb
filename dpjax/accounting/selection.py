"""The guarantee of releasing the best of K private runs."""

from __future__ import annotations

import math

import numpy as np

from dpjax.accounting import provenance
from dpjax.accounting.guarantee import Guarantee
from dpjax.accounting.loss_distribution import LossPair
from dpjax.accounting.privacy_profile import pair_from_profiles
from dpjax.accounting.renyi import RenyiCurve
from dpjax.accounting.repetitions import (
    AtMost,
    RepetitionLaw,
    TruncatedNegativeBinomial,
    law_from_dict,
)
from dpjax.accounting.selection_envelope import selected_profiles
from dpjax.accounting.selection_renyi import selection_curve

METHODS = ("tight", "envelope", "rdp")


def best_of(guarantee: Guarantee, law: RepetitionLaw, method: str = "tight") -> Guarantee:
    """The guarantee of releasing only the best of K independent runs.

    Formal guarantees: it holds if
      - K is drawn from `law`, fixed before the data is seen, and is never revealed: not by logs,
        wall clock, file counts or array shapes;
      - every run uses fresh randomness and candidates drawn independently, with replacement, from
        one public law (for several noise levels pass `mixture` of their guarantees);
      - "best" is by a total order on the runs' private outputs, ties broken independently of the
        data; a failed run ranks worst, is not retried and counts;
      - nothing of the losing runs is released; K = 0 releases a data-independent default;
      - `guarantee` covers one run AND its score (a score on private validation data is composed
        into it, or joined by `parallel` where its records are disjoint).

    Args:
      guarantee: of one run and its score.
      law: of K.
      method: "tight", the smallest sound bound: the envelope bound (docs/envelope_bound.md), the
        Renyi theorems of Papernot & Steinke (ICLR 2022) as corrected in `selection_renyi`, and for
        a pure base the pure bound of `selected_pure_epsilon` (at most Corollary 3's); "envelope",
        the first alone; "rdp", the papers' theorems alone (Theorems 2 and 6, Lemmas 7, 20 and 22,
        Corollary 3).

    Returns:
      Guarantee under the same neighbouring relation; it composes, mixes and nests like any other.
      Its provenance names the law, never a drawn K.

    Raises:
      ValueError: no law given, an unknown method, or "rdp" for a base without a Renyi curve.
    """
    if not isinstance(law, RepetitionLaw):
        raise ValueError(f"best_of needs a law of K, such as Geometric(10), not {law!r}")
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}: pass one of {METHODS}")
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
        curve = selection_curve(guarantee, law)
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
    return Guarantee(
        relation=guarantee.relation,
        provenance=tree,
        pair=lambda: _selected_pair(guarantee.pair, law, pure, helpful),
        renyi=curve,
        pure_epsilon=pure,
    )


def _selected_pair(
    pair: LossPair, law: RepetitionLaw, pure: float | None, curve: RenyiCurve | None
) -> LossPair:
    """The smallest known profile of the selection, as loss distributions (spec 3.4)."""
    interval, profiles = selected_profiles(pair, law)
    improved = []
    for profile in profiles:
        epsilons = interval * np.arange(profile.size)
        if curve is not None:
            # The true profile is convex in e^epsilon, so chords of upper bounds are upper bounds.
            knots = np.unique(np.linspace(0, profile.size - 1, 800).astype(int))
            bounds = curve.profile(epsilons[knots])
            growth = np.exp(np.minimum(epsilons, 700.0))
            profile = np.minimum(profile, np.interp(growth, growth[knots], bounds))
        if pure is not None:
            profile = np.where(epsilons >= pure * (1.0 + 1e-12), 0.0, profile)
            if profile[-1] > 0.0:
                short = math.ceil(pure / interval) + 2 - profile.size
                held = np.full(max(0, short), profile[-1])
                profile = np.append(np.append(profile, held), 0.0)
        improved.append(profile)
    return pair_from_profiles(interval, *improved)


def selected_pure_epsilon(
    epsilon: float, law: RepetitionLaw, as_published: bool = False
) -> float | None:
    """A delta-free epsilon of the best of K runs of an epsilon-DP base.

    The density ratio of the winners is e^epsilon f'(1-x) / f'(1-h(x)) at most, with h the
    trade-off of randomised response. The supremum is at h's corner, x = 1/(1 + e^epsilon), for
    every law whose f' is a single power or exponential; for others the part left of the corner is
    searched on a grid, rounded upwards. It never exceeds Papernot & Steinke's Corollary 3, (2 +
    eta) epsilon.

    Args:
      epsilon: of one run.
      law: of K.
      as_published: return Corollary 3 itself, and None for laws it does not cover.
    """
    if as_published:
        if isinstance(law, TruncatedNegativeBinomial):
            return (2.0 + law.shape) * epsilon
        return None
    # One part in 1e12 covers the rounding of f'.
    margin = 1e-12 * (1.0 + epsilon)
    # K <= max(K) runs tell no more than all of them together.
    all_together = law.maximum * epsilon if epsilon > 0.0 else 0.0
    if epsilon > 700.0:
        # Beyond float64's exponentials: the largest ratio that any pair can have.
        ends = law.derivative(np.array([0.0, 1.0]))
        largest = epsilon + math.log(ends[0]) - math.log(ends[1]) if ends[1] > 0 else math.inf
        return min(largest + margin, all_together)
    corner = 1.0 / (1.0 + math.exp(epsilon))
    x = np.array([corner])
    # h rounded upwards, as f'(1 - h) may have all its digits in 1 - h.
    lowest = float(law.derivative(np.minimum((1.0 - x) * (1.0 + 2.0**-52), 1.0))[0])
    if lowest == 0.0:
        return all_together
    worst = float(law.derivative(x)[0]) / lowest
    if isinstance(law, AtMost):
        worst = _largest_ratio(law, epsilon, corner, worst)
    return min(epsilon + math.log(worst) + margin, all_together)


def _largest_ratio(law: RepetitionLaw, epsilon: float, corner: float, known: float) -> float:
    """sup of f'(1-x) / f'(1 - e^epsilon x) over x in [0, corner], by branch and bound, from above.

    A cell is bounded by f' at its left end over f' at the image of its right end; cells that might
    exceed the value known at the corner by more than 1e-6 are halved, 40 times at most.
    """
    cells = np.linspace(0.0, corner, 513)
    low, high = cells[:-1], cells[1:]
    growth = math.exp(epsilon)
    bound = known
    for _ in range(40):
        with np.errstate(divide="ignore"):
            beyond = np.minimum(growth * high * (1.0 + 2.0**-50), 1.0)
            bounds = law.derivative(low) / law.derivative(beyond)
        known = max(known, float(np.max(law.derivative(low) / law.derivative(growth * low))))
        bound = known * (1.0 + 1e-6)
        open_cells = bounds > bound
        if not open_cells.any() or open_cells.sum() > 4096:
            break
        bound = float(bounds.max())
        middle = 0.5 * (low + high)
        low, high, middle = low[open_cells], high[open_cells], middle[open_cells]
        low, high = np.append(low, middle), np.append(middle, high)
    return max(bound, float(bounds.max()) if open_cells.any() else 0.0)


def _rebuild(parameters: dict, parts: list[Guarantee]) -> Guarantee:
    return best_of(parts[0], law_from_dict(parameters["law"]), parameters["method"])


provenance.register("best_of", _rebuild)
