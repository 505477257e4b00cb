"""Run until a score passes a fixed threshold, or a coin says stop."""

from __future__ import annotations

import math

import numpy as np

from dpjax.accounting import provenance
from dpjax.accounting.guarantee import Guarantee
from dpjax.accounting.loss_distribution import LossDistribution, LossPair
from dpjax.accounting.privacy_profile import pair_from_profiles
from dpjax.accounting.selection_envelope import output_interval
from dpjax.accounting.tradeoff import largest_mass

CELLS = 800
"""Cells of the grid of halting masses."""

LONGEST = 4000
"""Epsilons at which the profile is written."""


def stop_at_threshold(guarantee: Guarantee, halting_probability: float) -> Guarantee:
    """The guarantee of running until one output is good enough (Liu & Talwar 2019).

    Formal guarantees: covers this loop. Repeat: (1) with probability p = `halting_probability`
    stop and release only that nothing was found; (2) else run the mechanism; if its output lies in
    a set S fixed before the data is seen (score at least a threshold), stop and release it; else
    discard it. The number of rounds is secret.

    With u = Q(S), X = p + (1-p) u, X' = p + (1-p) h(u) and h(u) the largest Q' mass of an event of
    Q mass u (spec 3.7; Papernot & Steinke 2022, Appendix C, treats the same loop in Renyi terms):

        delta(epsilon) <= sup_u ((1-p)/X) delta_Q(epsilon - log(X'/X))
                                + (p/X) [1 - e^epsilon X/X']_+

    Proof: the released output has density (1-p) Q / X on S, and p/X on "nothing"; increasing
    Q'(S) to h(u) only increases X', hence both terms. On a cell of u the left end replaces X, the
    right end X', so that the grid can only raise the bound.

    Args:
      guarantee: of one run, its score included.
      halting_probability: p in (0, 1]; the expected number of rounds is at most 1/p.

    Returns:
      Guarantee under the same relation; for a pure base a pure one too, of less than twice the
      base's epsilon.

    Raises:
      ValueError: halting_probability outside (0, 1].
    """
    halting_probability = float(halting_probability)
    if not 0.0 < halting_probability <= 1.0:
        raise ValueError(f"halting_probability must be in (0, 1], not {halting_probability}")
    pure = None
    if guarantee.pure_epsilon is not None:
        # X'/X is largest at the corner u = 1/(1 + e^epsilon) of randomised response's trade-off.
        corner = math.exp(-np.logaddexp(0.0, guarantee.pure_epsilon))
        rest = 1.0 - halting_probability
        growth = (halting_probability + rest * (1.0 - corner)) / (
            halting_probability + rest * corner
        )
        pure = guarantee.pure_epsilon + math.log(growth)
    return Guarantee(
        relation=guarantee.relation,
        provenance=provenance.node(
            "stop_at_threshold",
            {"halting_probability": halting_probability},
            [guarantee.provenance],
        ),
        pair=lambda: _stopped_pair(guarantee.pair, halting_probability),
        pure_epsilon=pure,
    )


def _stopped_pair(pair: LossPair, p: float) -> LossPair:
    pair = pair.regridded(output_interval(pair))
    directions = [(pair.forward, pair.backward)]
    if not pair.symmetric:
        directions.append((pair.backward, pair.forward))
    cells = [_cells(reverse, p) for _, reverse in directions]
    last = max(
        (forward.lowest + forward.masses.size) * pair.interval + float(shift.max())
        for (forward, _), (_, shift) in zip(directions, cells)
    )
    interval = pair.interval * max(1, math.ceil(last / pair.interval / LONGEST))
    epsilons = interval * np.arange(math.ceil(max(last, interval) / interval) + 2)
    profiles = []
    for (forward, _), (x, shift) in zip(directions, cells):
        profile = np.zeros(epsilons.size)
        for weight, move in zip(x, shift):
            first = (1.0 - p) / weight * forward.delta(epsilons - move)
            second = p / weight * np.maximum(-np.expm1(np.minimum(epsilons - move, 0.0)), 0.0)
            np.maximum(profile, first + second, out=profile)
        profiles.append(np.minimum(profile, 1.0))
    return pair_from_profiles(interval, *profiles)


def _cells(reverse: LossDistribution, p: float) -> tuple[np.ndarray, np.ndarray]:
    """Smallest X and largest log(X'/X) of each cell that can hold the supremum."""
    small = np.geomspace(1e-14, 0.5, CELLS // 2)
    u = np.unique(np.concatenate([[0.0, 1.0], small, 1.0 - small]))
    excess = max(0.0, reverse.mirrored_mass() - 1.0)
    h = largest_mass(reverse, np.minimum(u + excess, 1.0))
    x = (p + (1.0 - p) * u)[:-1]
    shift = np.log((p + (1.0 - p) * h)[1:] / x)
    # Both terms grow with 1/X and with the shift.
    order = np.lexsort((-shift, x))
    best = np.maximum.accumulate(shift[order])
    keep = order[np.append(True, best[1:] > best[:-1])]
    return x[keep], shift[keep]


provenance.register(
    "stop_at_threshold",
    lambda parameters, parts: stop_at_threshold(parts[0], parameters["halting_probability"]),
)
