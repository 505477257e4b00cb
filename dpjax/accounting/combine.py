"""Guarantees of several mechanisms: on the same records, on disjoint ones, drawn at random.

Composition adds privacy losses (loss distributions are convolved, Renyi curves and pure epsilons
added); mechanisms on disjoint records cost the larger profile of the two; a mechanism drawn by a
public law costs the average of the profiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np

from dpjax.accounting import provenance
from dpjax.accounting.guarantee import Guarantee, check_guarantee, pair_from_curve
from dpjax.accounting.numerics import renyi
from dpjax.accounting.numerics.composition import composition
from dpjax.accounting.numerics.loss_distribution import LossPair, common_interval
from dpjax.accounting.numerics.privacy_profile import pair_from_profiles
from dpjax.checks import shown, vector, whole

Known = TypeVar("Known")


def compose(*guarantees: Guarantee) -> Guarantee:
    """The guarantee of running every mechanism on the same records, each seeing earlier results.

    Loss distributions are convolved (Sommer, Meiser & Mohammadi 2019), Renyi divergences added
    (Mironov 2017, Proposition 1).

    Example:
      >>> from dpjax import accounting
      >>> both = accounting.compose(accounting.gaussian(2.0), accounting.pure(0.1))
      >>> both.epsilon(1e-5) < accounting.gaussian(2.0).epsilon(1e-5) + 0.1
      True

    Args:
      *guarantees: one or more, under one neighbouring relation.

    Returns:
      The composed Guarantee; it has a Renyi curve, or a pure epsilon, where all parts have one.

    Raises:
      ValueError: no guarantee given, or relations that differ.
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
    """The guarantee of `times` mechanisms of the same cost on the same records.

    Example:
      >>> from dpjax import accounting
      >>> ten = accounting.repeat(accounting.gaussian(8.0), 10)
      >>> print(f"{ten.epsilon(1e-5):.2f}")
      1.53

    Raises:
      ValueError: times < 1.
    """
    _common_relation("repeat", (guarantee,))
    times = whole("times", times)
    if times == 1:
        return guarantee
    tree = provenance.node("compose", {"counts": [times]}, [guarantee.provenance])
    return _composed(guarantee.relation, tree, [guarantee], [times])


def parallel(*guarantees: Guarantee) -> Guarantee:
    """The guarantee of mechanisms on disjoint records: any record is in one of them only.

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

    Returns:
      The Guarantee with the pointwise larger profile.

    Raises:
      ValueError: no guarantee given, or relations that differ.
    """
    relation = _common_relation("parallel", guarantees)
    if len(guarantees) == 1:
        return guarantees[0]
    curves = _all_known(guarantee.renyi for guarantee in guarantees)
    pures = _all_known(guarantee.pure_epsilon for guarantee in guarantees)
    return Guarantee(
        relation=relation,
        provenance=provenance.node("parallel", {}, [g.provenance for g in guarantees]),
        pair=lambda: _larger_pair([guarantee.pair for guarantee in guarantees]),
        renyi=None if curves is None else renyi.maximum_of(curves),
        pure_epsilon=None if pures is None else max(pures),
    )


def mixture(guarantees: Sequence[Guarantee], weights: Sequence[float] | None = None) -> Guarantee:
    """The guarantee of one mechanism drawn by a public law, the draw itself released or not.

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

    Returns:
      The mixed Guarantee.

    Raises:
      ValueError: empty list, relations that differ, weights that are no probabilities.
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
    curves = _all_known(guarantee.renyi for guarantee in parts)
    pures = _all_known(guarantee.pure_epsilon for guarantee in parts)
    return Guarantee(
        relation=relation,
        provenance=provenance.node(
            "mixture", {"weights": shares.tolist()}, [guarantee.provenance for guarantee in parts]
        ),
        pair=lambda: parts[0].pair.mixed([g.pair for g in parts[1:]], shares),
        renyi=None if curves is None else renyi.mixture_of(curves, shares),
        pure_epsilon=None if pures is None else max(pures),
    )


def _all_known(values: Iterable[Known | None]) -> list[Known] | None:
    """The values, or None where one of them is."""
    found = list(values)
    known = [value for value in found if value is not None]
    return known if len(known) == len(found) else None


def _composed(
    relation: str, tree: dict, parts: Sequence[Guarantee], counts: Sequence[int]
) -> Guarantee:
    curves = _all_known(guarantee.renyi for guarantee in parts)
    pures = _all_known(guarantee.pure_epsilon for guarantee in parts)
    all_by_renyi = all(guarantee.known_by_renyi_only for guarantee in parts)
    return Guarantee(
        relation=relation,
        provenance=tree,
        pair=None if all_by_renyi else lambda: _composed_pair(parts, counts),
        renyi=None if curves is None else renyi.sum_of(curves, list(counts)),
        pure_epsilon=None
        if pures is None
        else math.fsum(pure * count for pure, count in zip(pures, counts)),
    )


def _composed_pair(parts: Sequence[Guarantee], counts: Sequence[int]) -> LossPair:
    # Parts known by Renyi alone add exactly as curves; converting each first would lose much.
    by_renyi = [(g.renyi, n) for g, n in zip(parts, counts) if g.renyi and g.known_by_renyi_only]
    pairs = [(g.pair, n) for g, n in zip(parts, counts) if not g.known_by_renyi_only]
    if by_renyi:
        curve = renyi.sum_of([c for c, _ in by_renyi], [n for _, n in by_renyi])
        pairs.append((pair_from_curve(curve), 1))
    return composition(pairs)


def _larger_pair(pairs: list[LossPair]) -> LossPair:
    interval = common_interval(pairs)
    laws = [law for pair in pairs for law in (pair.forward, pair.backward)]
    highest = max((law.lowest + law.masses.size) * law.interval for law in laws)
    epsilons = interval * np.arange(math.ceil(highest / interval) + 2)
    forward = np.max([pair.forward.delta(epsilons) for pair in pairs], axis=0)
    if all(pair.symmetric for pair in pairs):
        return pair_from_profiles(interval, forward)
    backward = np.max([pair.backward.delta(epsilons) for pair in pairs], axis=0)
    return pair_from_profiles(interval, forward, backward)


def _common_relation(name: str, guarantees: Sequence[Guarantee]) -> str:
    if not guarantees:
        raise ValueError(f"{name} needs at least one guarantee")
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
    counts = [whole("counts", count) for count in parameters["counts"]]
    if len(counts) != len(parts):
        raise ValueError(f"compose has {len(counts)} counts for {len(parts)} parts: pass one each")
    relation = _common_relation("compose", parts)
    tree = provenance.node("compose", {"counts": counts}, [part.provenance for part in parts])
    return _composed(relation, tree, parts, counts)


provenance.register("compose", _rebuild_composition)
provenance.register("parallel", lambda parameters, parts: parallel(*parts))
provenance.register("mixture", lambda parameters, parts: mixture(parts, parameters["weights"]))
