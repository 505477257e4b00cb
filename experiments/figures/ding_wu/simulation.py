"""The paper's simulated setting: candidates whose utilities are uniform random numbers.

No data and no training: 100 utilities uniform in (0, 1), 1000 seeds. Seed s draws everything from
`numpy.random.default_rng(s)`: first the utilities, then the loop's noise in the order stated in
`run_loop`, or one Gumbel number a candidate for the exponential mechanism. The
loop runs a thousand seeds in a quarter of a second, so it is not vectorised.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from dpjax.accounting.mechanisms.doubling import (
    ITERATIONS,
    ThresholdLoop,
    threshold_levels,
)

SEEDS = 1000
CANDIDATES = 100
EPSILON = 0.1
"""The paper's epsilon_0, of one iteration."""

GRANULARITY = 0.01


@dataclasses.dataclass(frozen=True)
class LoopTrace:
    """What one run of the loop did: queries asked, how many some candidate passed, who passed last.

    `answers` say of every query, in order, whether some candidate passed.
    """

    iterations: int
    hits: int
    selected: int | None
    answers: tuple[bool, ...] = ()


@dataclasses.dataclass(frozen=True)
class Simulated:
    """What one seed gave: true utilities of the selected, the best and a random candidate.

    Iterations and hits are 0 for the exponential mechanism, `selected` is None without a hit.
    """

    trace: LoopTrace
    selected: float | None
    best: float
    random: float


def run_loop(
    utilities: np.ndarray,
    generator: np.random.Generator,
    *,
    granularity: float,
    threshold_scale: float,
    query_scale: float,
    variant: str = ITERATIONS,
) -> LoopTrace:
    """Runs the doubling loop on known utilities, with floating-point Laplace noise: NOT private.

    The generator draws the threshold noise where fresh, then one noise a candidate.
    """
    loop = ThresholdLoop(threshold_levels(granularity))
    selected, threshold_noise = None, 0.0
    answers: list[bool] = []
    while not loop.finished:
        if variant == ITERATIONS or loop.starts_segment:
            threshold_noise = generator.laplace(0.0, threshold_scale)
        noisy = utilities + generator.laplace(0.0, query_scale, size=len(utilities))
        above = noisy >= loop.propose() * granularity + threshold_noise
        hit = bool(above.any())
        if hit:
            selected = int(np.argmax(above))
        loop.record(hit)
        answers.append(hit)
    return LoopTrace(loop.iterations, loop.hits, selected, tuple(answers))


def loop(
    seed: int,
    *,
    partitions: float,
    epsilon: float = EPSILON,
    granularity: float = GRANULARITY,
    highest_utility: float = 1.0,
    variant: str = ITERATIONS,
) -> Simulated:
    """Runs the doubling loop on one seed's utilities, uniform between 0 and `highest_utility`.

    A utility has sensitivity 1/k, k the partitions. Each iteration's epsilon stands for Laplace
    noise of scale 2/(k epsilon) on the threshold and 4/(k epsilon) on every utility.
    """
    generator = np.random.default_rng(seed)
    utilities = generator.uniform(0.0, highest_utility, CANDIDATES)
    trace = run_loop(
        utilities,
        generator,
        granularity=granularity,
        threshold_scale=2.0 / (partitions * epsilon),
        query_scale=4.0 / (partitions * epsilon),
        variant=variant,
    )
    return _simulated(utilities, trace)


def exponential(seed: int, *, partitions: float, epsilon: float) -> Simulated:
    """Draws once from the exponential mechanism, weights exp(epsilon k u / 2), by Gumbel noise.

    The utilities of a seed are those of `loop`.
    """
    generator = np.random.default_rng(seed)
    utilities = generator.uniform(0.0, 1.0, CANDIDATES)
    noise = generator.gumbel(0.0, 2.0 / (partitions * epsilon), CANDIDATES)
    return _simulated(utilities, LoopTrace(0, 0, int(np.argmax(utilities + noise))))


def _simulated(utilities: np.ndarray, trace: LoopTrace) -> Simulated:
    selected = None if trace.selected is None else float(utilities[trace.selected])
    # The utilities are independent, so the first is as good as one drawn at random.
    return Simulated(trace, selected, float(utilities.max()), float(utilities[0]))
