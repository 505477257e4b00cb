"""The best of K Gaussian releases, ranked by an order that costs it most: what a score could do.

A score is any function of the released number. Here it ranks small numbers first, then large ones
from the largest downwards: without the record the small ones are drawn more often and hide the
large ones. The event is that a large one is released. Masses of both ends are chosen by the closed
form of the event's two probabilities, then the selection is executed and the event counted.
"""

from __future__ import annotations

import time

import numpy as np
from scipy import optimize, special

from dpjax import accounting
from dpjax.auditing import Audit

_AT_ONCE = 500_000


def ends(law: accounting.RepetitionLaw, shift: float, epsilon: float) -> tuple[float, float]:
    """Where small numbers end and large ones begin, for noise of deviation 1 and this shift.

    They make the event's divergence of order e^epsilon largest.
    """

    def probability(low: float, high: float, mean: float) -> float:
        small, large = special.ndtr(low - mean), special.ndtr(mean - high)
        among = law.generating_function(np.array([1.0 - small, max(1.0 - small - large, 0.0)]))
        return float(among[0] - among[1])

    def divergence(places: np.ndarray) -> float:
        low, high = float(places[0]), float(max(places))
        return np.exp(epsilon) * probability(low, high, 0.0) - probability(low, high, shift)

    starts = [(low, high) for low in (-4.0, -2.0, -1.0, 0.0) for high in (0.5, 1.5, 2.5)]
    found = min(
        (optimize.minimize(divergence, start, method="Nelder-Mead") for start in starts),
        key=lambda result: result.fun,
    )
    return float(found.x[0]), float(max(found.x))


def _pieces(number: int) -> list[int]:
    """Executions that are made at once, for the memory's sake."""
    return [min(_AT_ONCE, number - start) for start in range(0, number, _AT_ONCE)]


def audited(
    law: accounting.RepetitionLaw,
    noise: float,
    delta: float,
    number: int,
    *,
    failure_probability: float,
    seed: int | None = None,
) -> Audit:
    """Executes the selection `number` times with the record and without it.

    `noise` is the deviation of a release, over what the record adds.
    """
    started = time.process_time()
    claim = accounting.best_of(accounting.gaussian(noise), law)
    low, high = ends(law, 1.0 / noise, claim.epsilon(delta))
    generator = np.random.default_rng(seed)

    def released(mean: float, number: int) -> np.ndarray:
        counts = law.sample(number, generator)
        owners = np.repeat(np.arange(number), counts)
        outputs = generator.normal(mean, 1.0, len(owners))
        ranks = np.where(outputs < low, 1e9 - outputs, outputs)
        order = np.lexsort((ranks, owners))
        last = np.append(np.flatnonzero(np.diff(owners[order])), len(owners) - 1)
        best = np.full(number, -np.inf)
        best[owners[order][last]] = outputs[order][last]
        return np.where(best > high, 1.0, 0.0)

    one, other = (
        np.concatenate([released(mean, part) for part in _pieces(number)])
        for mean in (1.0 / noise, 0.0)
    )
    return Audit.of(
        claim,
        one,
        other,
        delta,
        failure_probability=failure_probability,
        cpu_seconds=time.process_time() - started,
    )
