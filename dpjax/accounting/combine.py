"""Combines guarantees of mechanisms: on the same records, on disjoint ones, drawn at random.

Composition adds privacy losses (loss distributions are convolved, Renyi curves and pure epsilons
added); mechanisms on disjoint records cost the larger profile of the two; a mechanism drawn by a
public law costs the average of the profiles.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from dpjax.accounting import provenance
from dpjax.accounting.guarantee import Guarantee, check_guarantee, pair_from_curve
from dpjax.accounting.mechanisms.mechanism import mechanism
from dpjax.accounting.numerics import renyi
from dpjax.accounting.numerics.composition import composition
from dpjax.accounting.numerics.loss_distribution import (
    LARGEST_SIZE,
    LossDistribution,
    LossPair,
    whole_down,
    whole_up,
)
from dpjax.accounting.numerics.renyi import RenyiCurve
from dpjax.accounting.numerics.tradeoff import replaced_pair
from dpjax.checks import shown, vector, whole
from dpjax.neighbouring import ADD_OR_REMOVE_ONE, REPLACE_ONE

TIE = 1e-11
"""Largest relative difference of two profiles that counts as rounding."""

FINE, NARROW = 1e-4, 0.02
"""Coarsest grid on which loss distributions are compared, in nats and in standard deviations.

Splitting masses adds at most a quarter of its square to the variance: 0.01%.
"""


def compose(*guarantees: Guarantee) -> Guarantee:
    """Composes mechanisms that run on the same records, each seeing earlier results.

    The guarantees must be fixed before the first result. If an earlier result decides how much
    noise comes next, or whether anything does, add them up with a `PrivacyFilter`.

    Loss distributions are convolved (Sommer, Meiser & Mohammadi 2019), Renyi divergences added
    (Mironov 2017, Proposition 1).

    Args:
      *guarantees: one or more, under one neighbouring relation. The composed one has a Renyi
        curve, or a pure epsilon, if all of them have one.
    """
    relation = _common_relation("compose", guarantees)
    if len(guarantees) == 1:
        return guarantees[0]
    unique: list[Guarantee] = []
    counts: list[int] = []
    for guarantee in guarantees:
        for index, known in enumerate(unique):
            if known is guarantee:
                counts[index] += 1
                break
        else:
            unique.append(guarantee)
            counts.append(1)
    parts = [guarantee.provenance for guarantee in unique]
    tree = provenance.node("compose", {"counts": counts}, parts)
    return _composed(relation, tree, unique, counts)


def repeat(guarantee: Guarantee, times: int) -> Guarantee:
    """Composes `times` mechanisms of the same cost on the same records, as `compose` does."""
    _common_relation("repeat", (guarantee,))
    times = whole("times", times)
    if times == 1:
        return guarantee
    tree = provenance.node("compose", {"counts": [times]}, [guarantee.provenance])
    return _composed(guarantee.relation, tree, [guarantee], [times])


def parallel(*guarantees: Guarantee) -> Guarantee:
    """Prices mechanisms on disjoint records: each record is read by one of them only.

    McSherry 2009, Theorem 4, for whole privacy profiles.

    Example:
      >>> from dpjax import accounting
      >>> training, score = accounting.gaussian(2.0), accounting.gaussian(8.0)
      >>> both = accounting.parallel(training, score)  # No record is in both parts.
      >>> print(f"{both.epsilon(1e-5):.3f}, training alone {training.epsilon(1e-5):.3f}")
      1.993, training alone 1.993

    Args:
      *guarantees: one or more, under one neighbouring relation. Which record belongs where must
        not depend on other records (dpjax.data splits by a keyed hash of each record).
    """
    relation = _common_relation("parallel", guarantees)
    if len(guarantees) == 1:
        return guarantees[0]
    return _combined(
        guarantees,
        relation,
        provenance.node("parallel", {}, [g.provenance for g in guarantees]),
        lambda: _larger_pair([guarantee.pair for guarantee in guarantees]),
        renyi.maximum_of,
        max,
    )


def mixture(guarantees: Sequence[Guarantee], weights: Sequence[float] | None = None) -> Guarantee:
    """Prices one mechanism drawn from a public distribution, the draw itself released or not.

    The profile is the average of the candidates' profiles; mix BEFORE selecting (`best_of` of a
    mixture), never average guarantees of selections. (Joint convexity of the hockey-stick
    divergence: Balle, Barthe & Gaboardi 2018.)

    Example:
      >>> from dpjax import accounting
      >>> runs = [accounting.gaussian(2.0), accounting.gaussian(4.0)]
      >>> mixed = accounting.mixture(runs, [0.25, 0.75])
      >>> runs[1].epsilon(1e-5) < mixed.epsilon(1e-5) < runs[0].epsilon(1e-5)
      True

    Args:
      guarantees: one per candidate, under one neighbouring relation.
      weights: probabilities that sum to 1, independent of the data; None is uniform.
    """
    if not isinstance(guarantees, Sequence):
        raise ValueError(f"guarantees must be a list of Guarantees, not {shown(guarantees)}")
    relation = _common_relation("mixture", tuple(guarantees))
    count = len(guarantees)
    shares = np.full(count, 1.0 / count) if weights is None else vector("weights", weights)
    if shares.shape != (count,) or not np.all(shares >= 0) or abs(shares.sum() - 1.0) > 1e-9:
        raise ValueError(f"weights must be {count} probabilities that sum to 1")
    used = [(g, w) for g, w in zip(guarantees, shares.tolist()) if w > 0]
    parts = [guarantee for guarantee, _ in used]
    shares = np.array([weight for _, weight in used])
    if len(parts) == 1:
        return parts[0]
    return _combined(
        parts,
        relation,
        provenance.node("mixture", {"weights": shares.tolist()}, [g.provenance for g in parts]),
        lambda: parts[0].pair.mixed([g.pair for g in parts[1:]], shares),
        lambda curves: renyi.mixture_of(curves, shares),
        max,
    )


@mechanism
def replace_one(guarantee: Guarantee) -> Guarantee:
    """Converts a guarantee under add-or-remove one to one under replace one.

    A replacement removes one record and adds another: the trade-off of the first step is composed
    with that of the second (Dong, Roth & Su 2022, Theorem 2.14, on both directions of the
    dominating pair). A mechanism priced under replace one itself (`dp_sgd_fixed_lots`) costs less.

    Example:
      >>> from dpjax import accounting
      >>> print(f"{accounting.replace_one(accounting.gaussian(2.0)).epsilon(1e-5):.2f}")
      4.38

    Args:
      guarantee: under add-or-remove one. A pure epsilon doubles, a Renyi curve is lost.
    """
    check_guarantee("guarantee", guarantee)
    if guarantee.relation != ADD_OR_REMOVE_ONE:
        raise ValueError("guarantee is under replace_one already: pass one under add_or_remove_one")
    known = guarantee.pure_epsilon
    return Guarantee(
        relation=REPLACE_ONE,
        pair=lambda: replaced_pair(guarantee.pair),
        pure_epsilon=None if known is None else 2.0 * known,
    )


def _combined(
    parts: Sequence[Guarantee],
    relation: str,
    tree: dict,
    pair: Callable[[], LossPair] | None,
    of_curves: Callable[[list[RenyiCurve]], RenyiCurve],
    of_pures: Callable[[list[float]], float],
    basic: tuple[float, float] | None = None,
    rough: Callable[[], LossPair] | None = None,
) -> Guarantee:
    """Makes the combined guarantee; keeps a Renyi curve or a pure epsilon that all parts have."""
    curves = [part.renyi for part in parts if part.renyi is not None]
    pures = [part.pure_epsilon for part in parts if part.pure_epsilon is not None]
    return Guarantee(
        relation=relation,
        provenance=tree,
        pair=pair,
        renyi=of_curves(curves) if len(curves) == len(parts) else None,
        pure_epsilon=of_pures(pures) if len(pures) == len(parts) else None,
        basic=basic,
        rough=rough,
    )


def _basic_composition(
    parts: Sequence[Guarantee], counts: Sequence[int]
) -> tuple[float, float] | None:
    """Returns (epsilon, delta) by basic composition; None unless all parts have one.

    Epsilons add up, and some part fails to hold its own with probability at most
    1 - prod (1 - delta) (Kairouz, Oh & Viswanath 2015, Theorem 3.3), which is rounded up.
    """
    found = [part._basic for part in parts]
    pairs = [(*one, count) for one, count in zip(found, counts) if one is not None]
    if len(pairs) < len(found):
        return None
    epsilon = math.fsum(one * count for one, _, count in pairs)
    failing = [(delta, count) for _, delta, count in pairs if delta > 0.0]
    if not failing or (len(failing) == 1 and failing[0][1] == 1):
        return epsilon, failing[0][0] if failing else 0.0
    kept = math.fsum(count * math.log1p(-delta) for delta, count in failing)
    return epsilon, -math.expm1(kept) * (1.0 + 2.0**-48)


def _composed(
    relation: str, tree: dict, parts: Sequence[Guarantee], counts: Sequence[int]
) -> Guarantee:
    """Returns the guarantee of `counts` copies of each part, composed."""
    all_by_renyi = all(guarantee.known_by_renyi_only for guarantee in parts)
    return _combined(
        parts,
        relation,
        tree,
        None if all_by_renyi else lambda: _composed_pair(parts, counts),
        lambda curves: renyi.sum_of(curves, list(counts)),
        lambda pures: math.fsum(pure * count for pure, count in zip(pures, counts)),
        _basic_composition(parts, counts),
        None
        if all_by_renyi or all(part._rough is None for part in parts)
        else lambda: _composed_pair(parts, counts, rough=True),
    )


def _composed_pair(
    parts: Sequence[Guarantee], counts: Sequence[int], rough: bool = False
) -> LossPair:
    """Composes the parts' losses; parts known by Renyi curves alone are added as curves first.

    `rough` takes a part's dominating pair that is computed faster, if it has one.
    """
    # Renyi curves add up exactly; converting each to loss distributions first would lose much.
    by_renyi = [(g.renyi, n) for g, n in zip(parts, counts) if g.renyi and g.known_by_renyi_only]
    others = [(g, n) for g, n in zip(parts, counts) if not g.known_by_renyi_only]
    pairs = [(g._rough() if rough and g._rough else g.pair, n) for g, n in others]
    if by_renyi:
        curve = renyi.sum_of([c for c, _ in by_renyi], [n for _, n in by_renyi])
        pairs.append((pair_from_curve(curve), 1))
    return composition(pairs)


def _larger_pair(pairs: list[LossPair]) -> LossPair:
    """Forms the pair whose profile is the largest of the pairs' at every epsilon.

    If one pair's profile is nowhere below the others', it is the result. Else all are put on one
    grid. From knot to knot the largest profile is that of one pair, whose masses are taken as they
    are. Masses are differences of profiles only where another pair takes over: wherever a profile
    is straight, they would be rounding errors.
    """
    for one in pairs:
        ties = [_ties_at_worst(one, other) for other in pairs if other is not one]
        if all(tie is not None for tie in ties):
            return _raised(one, TIE) if any(ties) else one
    on_grid = [pair.regridded(_interval_to_compare_on(pairs)) for pair in pairs]
    forward, tied = _larger_law([(pair.forward, pair.backward) for pair in on_grid])
    if all(pair.symmetric for pair in pairs):
        found = LossPair(forward, forward)
    else:
        backward, also = _larger_law([(pair.backward, pair.forward) for pair in on_grid])
        found, tied = LossPair(forward, backward), tied or also
    return _raised(found, TIE * len(pairs)) if tied else found


def _ties_at_worst(one: LossPair, other: LossPair) -> bool | None:
    """Returns whether `one`'s profile is below `other`'s by rounding; None if by more.

    Both are linear in e^epsilon between their knots, and constant beyond them, so comparing them
    at the knots is enough.
    """
    tied = False
    for mine, its in ((one.forward, other.forward), (one.backward, other.backward)):
        last = max(mine.losses[-1], its.losses[-1], 0.0) + 1.0
        knots = np.concatenate([mine.losses, its.losses, [0.0, last]])
        here, there = mine.delta(knots[knots >= 0.0]), its.delta(knots[knots >= 0.0])
        if np.any(there > here * (1.0 + TIE)):
            return None
        tied |= bool(np.any(there > here))
    return tied


def _interval_to_compare_on(pairs: list[LossPair]) -> float:
    """Chooses the interval to compare on: one that all grids share, else a fine enough one."""
    # `most`: how many times finer than `finest` the grid may be for memory; below 1: coarser.
    finest = min(pair.interval for pair in pairs)
    most = LARGEST_SIZE * finest / (2.0 * max(pair.size * pair.interval for pair in pairs))
    if most < 1.0:
        return finest * whole_up(1.0 / most)
    for parts in range(1, min(10, whole_down(most)) + 1):
        ratios = np.array([pair.interval for pair in pairs]) * parts / finest
        if np.all(np.abs(ratios - np.round(ratios)) <= 1e-9 * ratios):
            return finest / parts
    narrowest = min((pair.spread() for pair in pairs if pair.spread() > 0.0), default=finest)
    wanted = min(FINE, NARROW * narrowest)
    return finest / max(1, min(whole_down(most), whole_up(finest / wanted)))


def _larger_law(
    laws: list[tuple[LossDistribution, LossDistribution]],
) -> tuple[LossDistribution, bool]:
    """Returns the distribution of the largest profile on a grid, and whether rounding made a tie.

    Where profile a is the largest at one knot and b at the next, the line between these two points
    bounds both. It adds to a's mass at the first knot (b - a) / (e^h - 1), a and b taken at the
    second, and to b's mass at the second (a - b) / (1 - e^-h), taken at the first. `laws` holds
    each pair's distributions in this direction and in the other.
    """
    h = laws[0][0].interval
    first = min(law.lowest for law, _ in laws) - 1
    last = max(law.lowest + law.masses.size for law, _ in laws)
    steps = np.arange(first, last + 1)
    masses, values = np.zeros((2, len(laws), steps.size))
    for row, (law, other) in enumerate(laws):
        start = law.lowest - first
        masses[row, start : start + law.masses.size] = law.masses
        # At negative epsilons only the excess over 1 - e^epsilon is stored; it is computed from the
        # other direction, so that nothing cancels.
        values[row] = np.where(
            steps >= 0,
            law.delta(h * steps),
            other.delta(-h * steps) * np.exp(np.minimum(h * steps, 0.0)),
        )
    chosen, best = np.zeros(steps.size, dtype=np.int64), values[0]
    for row in range(1, len(laws)):
        larger = values[row] > best * (1.0 + TIE)
        chosen, best = np.where(larger, row, chosen), np.where(larger, values[row], best)
    tied = bool(np.any(values.max(axis=0) > best))
    place = np.arange(steps.size)
    found = masses[chosen, place]
    change = np.flatnonzero(chosen[1:] != chosen[:-1])
    a, b = chosen[change], chosen[change + 1]
    found[change] += np.maximum(values[b, change + 1] - values[a, change + 1], 0.0) / math.expm1(h)
    found[change + 1] += np.maximum(values[a, change] - values[b, change], 0.0) / -math.expm1(-h)
    infinity = laws[int(chosen[-1])][0].infinity_mass
    return LossDistribution(h, first, found, infinity), tied


def _raised(pair: LossPair, share: float) -> LossPair:
    """Raises the pair's profiles by this share at epsilon >= 0; total masses stay 1."""

    def raised(law: LossDistribution) -> LossDistribution:
        # The mass at loss 0 shrinks, as no epsilon >= 0 counts it; all others grow.
        masses = law.masses * (1.0 + share)
        if 0 <= -law.lowest < masses.size:
            masses[-law.lowest] = max(0.0, law.masses[-law.lowest] - share)
        return dataclasses.replace(
            law, masses=masses, infinity_mass=law.infinity_mass * (1.0 + share)
        )

    forward = raised(pair.forward)
    return LossPair(forward, forward if pair.symmetric else raised(pair.backward))


def _common_relation(name: str, guarantees: Sequence[Guarantee]) -> str:
    """Returns the relation that all guarantees are under; refuses different ones."""
    if not guarantees:
        raise ValueError(f"{name} needs at least one guarantee: pass one, or more")
    for guarantee in guarantees:
        check_guarantee(f"every guarantee of {name}", guarantee)
    relations = {guarantee.relation for guarantee in guarantees}
    if len(relations) > 1:
        raise ValueError(
            f"{name} of guarantees under different neighbouring relations {sorted(relations)}: "
            "pass guarantees that share one"
        )
    return relations.pop()


def _rebuild_composition(parameters: dict, parts: list[Guarantee]) -> Guarantee:
    """Rebuilds a composition from its node; refuses counts that do not fit the parts."""
    counts = [whole("counts", count) for count in parameters["counts"]]
    if len(counts) != len(parts):
        raise ValueError(f"compose has {len(counts)} counts for {len(parts)} parts: pass one each")
    relation = _common_relation("compose", parts)
    tree = provenance.node("compose", {"counts": counts}, [part.provenance for part in parts])
    return _composed(relation, tree, parts, counts)


provenance.register("compose", _rebuild_composition)
provenance.register("parallel", lambda parameters, parts: parallel(*parts))
provenance.register("mixture", lambda parameters, parts: mixture(parts, parameters["weights"]))
