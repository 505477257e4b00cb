"""Ding & Wu's loop with its noise: whole scores, exact discrete Laplace, a cap that is enforced.

Runs on private scores, so everything it returns but the selected candidate is the curator's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from fractions import Fraction

from dpjax.accounting.mechanisms.threshold_loop import ITERATIONS, ThresholdLoop, check_variant
from dpjax.randomness.exact_samplers import UniformBelow, discrete_laplace


@dataclasses.dataclass(frozen=True)
class LoopRun:
    """What one run of the loop did. Only `selected` was paid for; the rest depends on the data.

    Attributes:
      selected: index of the candidate of the last hit; None if there was none.
      levels: the threshold proposed in each iteration, in units of the granularity.
      answers: whether each was a hit.
      segments: mechanisms begun under the segment variant: hits, and a last run of misses.
    """

    selected: int | None
    levels: tuple[int, ...]
    answers: tuple[bool, ...]

    @property
    def iterations(self) -> int:
        """Queries asked."""
        return len(self.answers)

    @property
    def hits(self) -> int:
        """Queries that some candidate passed."""
        return sum(self.answers)

    @property
    def segments(self) -> int:
        """Hits, and one more if the loop ended in misses."""
        return self.hits + (not self.answers[-1])


def first_above(
    scores: Sequence[int],
    noisy_threshold: int,
    query_scale: Fraction,
    below: UniformBelow,
) -> int | None:
    """The first candidate whose noisy score reaches a noisy threshold; None if none does.

    Formal guarantees:
      One iteration: a threshold t plus rho of discrete Laplace law with scale 2 D / e (drawn by the
      caller), and this function with query_scale 4 D / e. If the integer scores each change by at
      most D between neighbours, what it returns is e-differentially private, as with continuous
      noise (Dwork & Roth 2014, Theorem 3.23). Proof. Fix the noises of all candidates before the
      i-th. The output i needs m < t + rho <= s_i + noise_i, m their largest noisy score. For the
      neighbour, m moves by at most D and s_i by at most D; so (rho, noise_i) -> (rho + D, noise_i +
      2 D), a bijection of the integers, maps the event into the neighbour's. It changes the
      probability of rho by at most e^{D / (2 D / e)} = e^{e/2} and that of noise_i by at most
      e^{2 D / (4 D / e)} = e^{e/2}. The output None needs m < t + rho only, and costs e/2. D is a
      whole number, so the shifts stay on the integers and no rounding enters. QED

    Args:
      scores: integers.
      noisy_threshold: t + rho.
      query_scale: of the noise on each score.
      below: the source of randomness.
    """
    for index, score in enumerate(scores):
        if score + discrete_laplace(query_scale, below) >= noisy_threshold:
            return index
    return None


def run_loop(
    scores: Sequence[int],
    loop: ThresholdLoop,
    threshold: Callable[[int], int],
    *,
    threshold_scale: Fraction,
    query_scale: Fraction,
    variant: str,
    below: UniformBelow,
) -> LoopRun:
    """Runs Algorithm 1 of Ding & Wu (2022) on integer scores.

    Formal guarantees:
      With scales 2 D / e and 4 D / e and scores of sensitivity D, `LoopRun.selected` costs at most
      `accounting.doubling_loop(e, ...)` with the caps of `loop`, for the same variant.
      "iterations": each iteration is one `first_above` with a threshold that depends on earlier
      answers only, all noise drawn anew. "segments": the threshold's noise is kept through
      consecutive misses and drawn anew after a hit; a segment is one `first_above` over all its
      queries, since its thresholds depend on answers only, and the noise of the last one is never
      released. `loop` ends by a cap known beforehand, whatever the answers.

    Args:
      scores: integers, one for each candidate.
      loop: fresh, with its caps.
      threshold: level -> the least score that reaches it.
      threshold_scale: of the noise on thresholds.
      query_scale: of the noise on scores.
      variant: "iterations" or "segments".
      below: the source of randomness.

    Raises:
      ValueError: for an unknown variant.
    """
    check_variant(variant)
    selected, noise = None, 0
    levels, answers = [], []
    while not loop.finished:
        if variant == ITERATIONS or loop.starts_segment:
            noise = discrete_laplace(threshold_scale, below)
        levels.append(loop.propose())
        found = first_above(scores, threshold(levels[-1]) + noise, query_scale, below)
        if found is not None:
            selected = found
        answers.append(found is not None)
        loop.record(found is not None)
    return LoopRun(selected, tuple(levels), tuple(answers))
