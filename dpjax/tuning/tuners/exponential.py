"""One private choice by the exponential mechanism, then private training: the recommended selector.

The same k x |S| models and averaged utilities as Ding & Wu (2022, `Doubling`), but one shot: a
candidate is drawn with weight exp(epsilon_0 u / (2 Delta)) (McSherry & Talwar, FOCS 2007). No
threshold, no loop, and the whole selection budget in one draw. At the cost of the paper's own
experiment (k = 10, epsilon 0.7) it selects candidates of mean true utility .742 where the loop
reaches .525.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dpjax import accounting, checks
from dpjax.randomness.exact_samplers import UniformBelow, exponential_choice
from dpjax.tuning.evaluations.partition_models import Candidates, PartitionModels
from dpjax.tuning.evaluations.partitions import PARTITION_TRAININGS, REHEARSAL, AveragedUtility
from dpjax.tuning.tuner import register_tuner

RULE = "exponential mechanism, once, then private training"


@dataclasses.dataclass(frozen=True)
class ExponentialChoice:
    """The exponential mechanism as a `partition_models.UtilityChoice`.

    Attributes:
      epsilon: epsilon_0, of the one choice.
    """

    epsilon: float

    def guarantee(self, relation: str) -> accounting.Guarantee:
        """See `UtilityChoice`."""
        return accounting.exponential_mechanism(self.epsilon, relation=relation)

    def select(
        self, scores: list[int], utility: AveragedUtility, below: UniformBelow
    ) -> tuple[int, dict[str, Any]]:
        """See `UtilityChoice`."""
        return exponential_choice(scores, utility.exponential_rate(self.epsilon), below), {}

    def describe(self, utility: AveragedUtility, delta: float) -> dict[str, Any]:
        """See `UtilityChoice`."""
        return {
            "rule": RULE,
            "epsilon_0": self.epsilon,
            "noise": "exact draw with weights exp(rate * units), the law of Gumbel noise",
            "rate_for_a_unit": float(utility.exponential_rate(self.epsilon)),
        }


@register_tuner("exponential", rule=RULE)
@dataclasses.dataclass(frozen=True)
class Exponential:
    """Selects a candidate by the exponential mechanism, then trains it privately on everything.

    Formal guarantees:
      `result.release` is (`result.guarantee.epsilon(delta)`, delta)-differentially private under
      `result.guarantee.relation` for one record of the training or validation data, under the
      conditions of `Doubling`. Enforced here: each training record sits in one partition by a keyed
      hash of its identifier, so one record moves every candidate's utility by at most
      `AveragedUtility.sensitivity`; one candidate is drawn from the operating system's randomness
      with probability exactly proportional to exp(epsilon_0 u / (2 Delta)), which is
      epsilon_0-bounded-range; the draw and the final DP-SGD are composed. A private validation
      record is touched by the draw alone and pays no more than the composition. Source: McSherry &
      Talwar (2007); `accounting.exponential_mechanism` for the cost.

    Example:
      >>> from dpjax import tuning
      >>> type(tuning.Exponential()).__name__
      'Exponential'

    Attributes:
      selection_epsilon: epsilon_0, of the one draw.
      candidates: how many are drawn, once, from the space; public. Or a public list of them.
      partitions: parts of the training records; each candidate is trained on each.
      partition_training: how models of partitions are trained: rehearsal (with the clipping and the
        noise of an averaged gradient that the final training will have) or non_private;
        the guarantee is the same.
    """

    selection_epsilon: float = 1.0
    candidates: Candidates = 16
    partitions: int = 24
    partition_training: str = dataclasses.field(
        default=REHEARSAL, metadata={"choices": PARTITION_TRAININGS}
    )

    @property
    def evaluation(self) -> PartitionModels:
        return PartitionModels(self.candidates, self.partitions, self.partition_training)

    @property
    def choice(self) -> ExponentialChoice:
        return ExponentialChoice(checks.positive("selection_epsilon", self.selection_epsilon))

    @classmethod
    def from_statement(cls, claim: Mapping[str, Any]) -> Exponential:
        models = PartitionModels.from_statement(claim)
        return cls(float(claim["selection"]["epsilon_0"]), **vars(models))
