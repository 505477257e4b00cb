"""Threshold proposals with a doubling step: Ding & Wu's tuning, with a guarantee that holds.

Youlong Ding and Xueyang Wu, "Revisiting Hyperparameter Tuning with Differential Privacy", 2022,
https://arxiv.org/abs/2211.01852, Algorithm 1. Every candidate is trained on k disjoint partitions;
a loop proposes utility thresholds and asks, with noise, whether some candidate reaches them; the
last that did is trained privately on everything. The paper charges the iterations that happened,
which is no guarantee; here a number known beforehand is charged. `Exponential` selects better by
the same utilities at the same cost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from dpjax import accounting, checks
from dpjax.accounting.mechanisms.doubling import ITERATIONS, SEGMENTS, ThresholdLoop, check_variant
from dpjax.randomness.exact_samplers import UniformBelow, discrete_laplace
from dpjax.tuning.tuner import register_tuner
from dpjax.tuning.tuners.partition_models import Candidates, PartitionModels
from dpjax.tuning.tuners.partitions import PARTITION_TRAININGS, REHEARSAL, AveragedUtility

RULE = "doubling loop over thresholds (Ding & Wu 2022), then private training"

DEFAULT_CANDIDATE = 0
"""The candidate trained where the loop never had a hit: the first of the public list."""


@dataclasses.dataclass(frozen=True)
class LoopRun:
    """Holds what one run of the loop did. Only `selected` was paid for; the rest depends on data.

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
        """Returns the number of queries asked."""
        return len(self.answers)

    @property
    def hits(self) -> int:
        """Returns the number of queries that some candidate passed."""
        return sum(self.answers)

    @property
    def segments(self) -> int:
        """Returns the number of hits, and one more if the loop ended in misses."""
        return self.hits + (not self.answers[-1])


def first_above(
    scores: Sequence[int], noisy_threshold: int, query_scale: Fraction, below: UniformBelow
) -> int | None:
    """Returns the first candidate whose noisy score reaches a noisy threshold; None if none does.

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


@dataclasses.dataclass(frozen=True)
class DoublingChoice:
    """The doubling loop as a `partition_models.UtilityChoice`.

    Attributes:
      epsilon: epsilon_0, of one iteration (of one segment).
      granularity: smallest step of the threshold, in (0, 1 - lower_bound].
      lower_bound: utility known to be reached, in [0, 1).
      variant: "iterations" or "segments".
      iterations: cap on the iterations, or None.
      hits: cap on the hits, "segments" only, or None.
    """

    epsilon: float
    granularity: float
    lower_bound: float
    variant: str
    iterations: int | None
    hits: int | None

    @property
    def cap(self) -> int:
        """Returns how many mechanisms are charged: the least of the caps and the loop's bound."""
        parameters = self.guarantee("add_or_remove_one").provenance["parameters"]
        return parameters["hits" if self.variant == SEGMENTS else "iterations"]

    def guarantee(self, relation: str) -> accounting.Guarantee:
        return accounting.doubling_loop(
            self.epsilon,
            self.iterations,
            granularity=self.granularity,
            lower_bound=self.lower_bound,
            variant=self.variant,
            hits=self.hits,
            relation=relation,
        )

    def select(
        self, scores: list[int], utility: AveragedUtility, below: UniformBelow
    ) -> tuple[int, dict[str, Any]]:
        """See `UtilityChoice`. Without any hit, `DEFAULT_CANDIDATE`."""
        ran = run_loop(
            scores,
            accounting.ThresholdLoop(
                accounting.threshold_levels(self.granularity, self.lower_bound),
                self.iterations,
                self.hits,
            ),
            lambda level: utility.threshold(level, self.granularity, self.lower_bound),
            threshold_scale=utility.threshold_scale(self.epsilon),
            query_scale=utility.query_scale(self.epsilon),
            variant=self.variant,
            below=below,
        )
        events = {
            "iterations": ran.iterations,
            "hits": ran.hits,
            "thresholds": [self.lower_bound + self.granularity * level for level in ran.levels],
            "answers": list(ran.answers),
            "no_hit_so_the_default_candidate": ran.selected is None,
        }
        return (DEFAULT_CANDIDATE if ran.selected is None else ran.selected), events

    def describe(self, utility: AveragedUtility, delta: float) -> dict[str, Any]:
        return {
            "rule": RULE,
            "epsilon_0": self.epsilon,
            "granularity": self.granularity,
            "lower_bound": self.lower_bound,
            "variant": self.variant,
            "charged": {self.variant: self.cap},
            "noise": "exact discrete Laplace, in units",
            "threshold_noise_scale": float(utility.threshold_scale(self.epsilon)),
            "query_noise_scale": float(utility.query_scale(self.epsilon)),
            "candidate_where_no_threshold_is_reached": DEFAULT_CANDIDATE,
            "not_claimed": {
                "what": "the paper's own advanced composition of the loop, at the charged number",
                "epsilon": accounting.advanced_composition(self.epsilon, self.cap, delta),
                "delta": delta,
            },
        }


@register_tuner("doubling", rule=RULE)
@dataclasses.dataclass(frozen=True)
class Doubling(PartitionModels):
    """Selects a candidate by Ding & Wu's doubling loop, then trains it privately on everything.

    Formal guarantees:
      `result.release` is (`result.guarantee.epsilon(delta)`, delta)-differentially private under
      `result.guarantee.relation` for one record of the training or validation data, if the space,
      the candidates and every argument were fixed without looking at the data, and utilities, the
      number of iterations, the console and the wall clock stay with the curator. Enforced here:
      each training record sits in one partition by a keyed hash of its identifier, so one record
      moves every candidate's utility by at most `AveragedUtility.sensitivity`, Delta; the loop runs
      on integers with exact discrete Laplace noise from the operating system's randomness, of
      scales 2 Delta / epsilon_0 and 4 Delta / epsilon_0; it ends by a cap known beforehand, and
      that number of epsilon_0-differentially private mechanisms is charged, not the number that
      happened; where nothing is ever reached, the first candidate of the public list is trained;
      the loop and the final DP-SGD are composed. A private validation record is touched by the loop
      alone and pays no more than the composition. Released are the chosen candidate's
      hyperparameters, its finally trained parameters and the public list of candidates. Source:
      Ding & Wu (2022), Algorithm 1; `accounting.doubling_loop` for the cost.

    Example:
      >>> from dpjax import tuning
      >>> type(tuning.Doubling()).__name__
      'Doubling'

    Attributes:
      selection_epsilon: epsilon_0, of one iteration (of one segment).
      candidates: how many are drawn, once, from the space; public. Or a public list of them.
      partitions: parts of the training records; each candidate is trained on each.
      partition_training: how models of partitions are trained: rehearsal (with the clipping and the
        noise of an averaged gradient that the final training will have) or non_private;
        the guarantee is the same.
      granularity: smallest step of the threshold.
      lower_bound: average accuracy that is known to be reached, in [0, 1).
      variant: what is charged: every iteration, or hits only (segments: the threshold's noise is
        kept through misses).
      iterations: cap on iterations; None for the loop's own bound. On command lines 0 stands for
        that, and unset for 20, or none with segments.
      hits: of segments, cap on hits; None for the loop's own bound. On command lines 0 stands for
        that, and unset for 10.
    """

    selection_epsilon: float = 0.1
    candidates: Candidates = 16
    partitions: int = 24
    partition_training: str = dataclasses.field(
        default=REHEARSAL, metadata={"choices": PARTITION_TRAININGS}
    )
    granularity: float = 0.01
    lower_bound: float = 0.0
    variant: str = dataclasses.field(
        default=ITERATIONS, metadata={"choices": (ITERATIONS, SEGMENTS)}
    )
    iterations: int | None = dataclasses.field(default=None, metadata={"flag": "iterations_cap"})
    hits: int | None = dataclasses.field(default=None, metadata={"flag": "hits_cap"})

    @property
    def choice(self) -> DoublingChoice:
        """Returns the noisy loop over thresholds, with these settings checked."""
        return DoublingChoice(
            checks.positive("selection_epsilon", self.selection_epsilon),
            checks.kept(self.granularity, checks.number("granularity", self.granularity)),
            self.lower_bound,
            self.variant,
            self.iterations,
            self.hits,
        )

    @classmethod
    def from_flags(
        cls,
        *,
        variant: str = ITERATIONS,
        iterations: int | None = None,
        hits: int | None = None,
        **values: Any,
    ) -> Doubling:
        """Returns the tuner that a command line asks for; caps of 0 and None as in `Doubling`.

        Raises:
          ValueError: for a cap below 0, or one that the variant does not charge.
        """
        for name, cap in (("iterations", iterations), ("hits", hits)):
            if cap is not None and cap < 0:
                raise checks.Refused((name, cap), ": pass at least 1, or 0 for no cap")
        if hits and variant != SEGMENTS:
            raise checks.Refused(("hits",), " caps one variant alone: pass ", ("variant", SEGMENTS))
        if variant == SEGMENTS:
            caps = iterations or None, 10 if hits is None else hits or None
        else:
            caps = 20 if iterations is None else iterations or None, None
        return cls(variant=variant, iterations=caps[0], hits=caps[1], **values)

    @classmethod
    def from_statement(cls, claim: Mapping[str, Any]) -> Doubling:
        words = claim["selection"]
        return cls(
            float(words["epsilon_0"]),
            **cls.stated(claim),
            granularity=float(words["granularity"]),
            lower_bound=float(words["lower_bound"]),
            variant=words["variant"],
            iterations=words["charged"].get("iterations"),
            hits=words["charged"].get("segments"),
        )
