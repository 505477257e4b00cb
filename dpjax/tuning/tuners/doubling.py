"""Threshold proposals with a doubling step: Ding & Wu's tuning, with a guarantee that holds.

Youlong Ding and Xueyang Wu, "Revisiting Hyperparameter Tuning with Differential Privacy", 2022,
https://arxiv.org/abs/2211.01852, Algorithm 1. Every candidate is trained on k disjoint partitions;
a loop proposes utility thresholds and asks, with noise, whether some candidate reaches them; the
last that did is trained privately on everything. The paper charges the iterations that happened,
which is no guarantee; here a number known beforehand is charged. `exponential` selects better by
the same utilities at the same cost.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from dpjax import accounting, checks
from dpjax.accounting.mechanisms.threshold_loop import ITERATIONS, SEGMENTS
from dpjax.randomness.exact_samplers import UniformBelow
from dpjax.tuning.evaluations.partitioned_selection import select_and_train
from dpjax.tuning.evaluations.partitions import AveragedUtility
from dpjax.tuning.evaluations.running import Result
from dpjax.tuning.problem.space import Space
from dpjax.tuning.problem.task import Task
from dpjax.tuning.tuners.noisy_loop import run_loop

RULE = "doubling loop over thresholds (Ding & Wu 2022), then private training"

DEFAULT_CANDIDATE = 0
"""The candidate trained where the loop never had a hit: the first of the public list."""


@dataclasses.dataclass(frozen=True)
class DoublingSelector:
    """The doubling loop as a `selection_plan.Selector`.

    Attributes:
      epsilon: epsilon_0, of one iteration (of one segment).
      granularity: smallest step of the threshold, in (0, 1 - lower_bound].
      lower_bound: utility known to be reached, in [0, 1).
      variant: "iterations" or "segments".
      iterations: cap on the iterations, or None.
      hits: cap on the hits, "segments" only, or None.
      failure_probability: of the odometer's readings, for the curator.
    """

    epsilon: float
    granularity: float
    lower_bound: float
    variant: str
    iterations: int | None
    hits: int | None
    failure_probability: float

    @property
    def cap(self) -> int:
        """Mechanisms that are charged: the least of the caps and the loop's own bound."""
        parameters = self.guarantee("add_or_remove_one").provenance["parameters"]
        return parameters["hits" if self.variant == SEGMENTS else "iterations"]

    def guarantee(self, relation: str) -> accounting.Guarantee:
        """See `Selector`."""
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
        """See `Selector`. Without any hit, `DEFAULT_CANDIDATE`."""
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
        count = ran.iterations if self.variant == ITERATIONS else ran.segments
        reading = accounting.Odometer(self.epsilon, self.failure_probability).read(count)
        events = {
            "iterations": ran.iterations,
            "hits": ran.hits,
            "thresholds": [self.lower_bound + self.granularity * level for level in ran.levels],
            "answers": list(ran.answers),
            "no_hit_so_the_default_candidate": ran.selected is None,
            "odometer": {
                "privacy_loss_so_far": reading.privacy_loss_so_far,
                "note": "depends on the data: NOT an (epsilon, delta) guarantee",
            },
        }
        return (DEFAULT_CANDIDATE if ran.selected is None else ran.selected), events

    def describe(self, utility: AveragedUtility, delta: float) -> dict[str, Any]:
        """See `Selector`."""
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


def doubling(
    task: Task,
    space: Space,
    *,
    selection_epsilon: float = 0.1,
    granularity: float = 0.01,
    lower_bound: float = 0.0,
    variant: str = ITERATIONS,
    iterations: int | None = None,
    hits: int | None = None,
    delta: float = 1e-5,
    **settings: Any,
) -> Result | None:
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

    Args:
      task: what to learn; its training records need identifiers (`data` gives them).
      space: public law of the hyperparameters. What changes a run's cost (noise multiplier, lot
        size, steps) must be constant.
      selection_epsilon: epsilon_0, of one iteration (of one segment).
      granularity: smallest step of the threshold, in (0, 1 - lower_bound].
      lower_bound: utility that is known to be reached, in [0, 1).
      variant: "iterations", fresh threshold noise in every iteration, up to 2N - 1 of them charged,
        N = ceil((1 - lower_bound) / granularity); or "segments", threshold noise kept through
        misses, up to N hits charged.
      iterations: cap on the iterations, at least 1; None: the loop's own bound.
      hits: cap on the hits, for "segments".
      delta: of the whole procedure, in (0, 1).
      **settings: any of
        candidates: how many are drawn, once, from the space (16); or a public list of them, each a
          mapping of the space's names to numbers;
        partitions: k, at most the public number of training records (24);
        partition_training: "rehearsal" (default), "non_private" or "private", see
          `partitions.PARTITION_TRAININGS`; the guarantee is the same. Without clipping and noise
          ("non_private", the paper's) candidates that differ in clip_norm only are alike;
        epsilon: target of the whole procedure; the final training's noise is calibrated to it; or
        noise_multiplier: of the final training;
        lot_size, steps, epochs, sampling, optimizer: of the final training, as in
          `random_repetitions`; the models of partitions take as many steps;
        validation_is_public: only training records are protected;
        seed: for reproduction; the randomness is then not secret and the release says so;
        chunk_size: models trained at once (64); the memory knob;
        progress: called with (models done, models in all); the curator's to see;
        job: placement over devices, checkpoints, shards; None for one plain job.

    Returns:
      A `Result`; None for a shard, whose results only a merge turns into one. Where the final
      training is not finite, untrained parameters are released under the chosen hyperparameters.

    Raises:
      ValueError: with one line naming what to pass instead.
      TypeError: for an unknown setting.

    Warns:
      cautions.LargeDeltaWarning, cautions.KnownRandomnessWarning: before anything is drawn.
      cautions.UntrainedReleaseWarning: if no trained model is released.
      partitions.SelectionNoiseWarning: if noise drowns the utilities, naming what would not.
      partitions.EmptyPartitionWarning: the curator's to see.
    """
    selector = DoublingSelector(
        checks.positive("selection_epsilon", selection_epsilon),
        checks.kept(granularity, checks.number("granularity", granularity)),
        lower_bound,
        variant,
        iterations,
        hits,
        failure_probability=delta,
    )
    return select_and_train(task, space, selector, delta=delta, **settings)
