"""One private choice by the exponential mechanism, then private training: the recommended selector.

The same k x |S| models and averaged utilities as Ding & Wu (2022, `doubling`), but one shot: a
candidate is drawn with weight exp(epsilon_0 u / (2 Delta)) (McSherry & Talwar, FOCS 2007). No
threshold, no loop, and the whole selection budget in one draw. At the cost of the paper's own
experiment (k = 10, epsilon 0.7) it selects candidates of mean true utility .742 where the loop
reaches .525.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from dpjax import accounting, checks
from dpjax.randomness.exact_samplers import UniformBelow, exponential_choice
from dpjax.tuning.evaluations.partitioned_selection import select_and_train
from dpjax.tuning.evaluations.partitions import AveragedUtility
from dpjax.tuning.evaluations.running import Result
from dpjax.tuning.problem.space import Space
from dpjax.tuning.problem.task import Task

RULE = "exponential mechanism, once, then private training"


@dataclasses.dataclass(frozen=True)
class ExponentialSelector:
    """The exponential mechanism as a `selection_plan.Selector`.

    Attributes:
      epsilon: epsilon_0, of the one choice.
    """

    epsilon: float

    def guarantee(self, relation: str) -> accounting.Guarantee:
        """See `Selector`."""
        return accounting.exponential_mechanism(self.epsilon, relation=relation)

    def select(
        self, scores: list[int], utility: AveragedUtility, below: UniformBelow
    ) -> tuple[int, dict[str, Any]]:
        """See `Selector`."""
        return exponential_choice(scores, utility.exponential_rate(self.epsilon), below), {}

    def describe(self, utility: AveragedUtility, delta: float) -> dict[str, Any]:
        """See `Selector`."""
        return {
            "rule": RULE,
            "epsilon_0": self.epsilon,
            "noise": "exact draw with weights exp(rate * units), the law of Gumbel noise",
            "rate_for_a_unit": float(utility.exponential_rate(self.epsilon)),
        }


def exponential(
    task: Task,
    space: Space,
    *,
    selection_epsilon: float = 1.0,
    **settings: Any,
) -> Result | None:
    """Selects a candidate by the exponential mechanism, then trains it privately on everything.

    Formal guarantees:
      `result.release` is (`result.guarantee.epsilon(delta)`, delta)-differentially private under
      `result.guarantee.relation` for one record of the training or validation data, under the
      conditions of `doubling`. Enforced here: each training record sits in one partition by a keyed
      hash of its identifier, so one record moves every candidate's utility by at most
      `AveragedUtility.sensitivity`; one candidate is drawn from the operating system's randomness
      with probability exactly proportional to exp(epsilon_0 u / (2 Delta)), which is
      epsilon_0-bounded-range; the draw and the final DP-SGD are composed. A private validation
      record is touched by the draw alone and pays no more than the composition. Source: McSherry &
      Talwar (2007); `accounting.exponential_mechanism` for the cost.

    Args:
      task, space: as in `doubling`.
      selection_epsilon: epsilon_0, of the whole selection.
      **settings: `candidates`, `partitions`, `partition_training`, `epsilon`, `delta`,
        `noise_multiplier`, `lot_size`, `steps`, `epochs`, `sampling`, `optimizer`,
        `validation_is_public`, `seed`, `chunk_size`, `progress` and `job`, as in `doubling`.

    Returns:
      A `Result`; None for a shard, whose results only a merge turns into one.

    Raises:
      ValueError: with one line naming what to pass instead.
      TypeError: for an unknown setting.

    Warns:
      cautions.LargeDeltaWarning, cautions.KnownRandomnessWarning: before anything is drawn.
      cautions.UntrainedReleaseWarning: if no trained model is released.
      partitions.SelectionNoiseWarning: if noise drowns the utilities, naming what would not.
      partitions.EmptyPartitionWarning: the curator's to see.
    """
    selector = ExponentialSelector(checks.positive("selection_epsilon", selection_epsilon))
    return select_and_train(task, space, selector, **settings)
