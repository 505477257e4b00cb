"""One private choice by permute-and-flip, then private training: for claims of pure epsilon.

Ryan McKenna and Daniel Sheldon, "Permute-and-Flip: A New Mechanism for Differentially Private
Selection", NeurIPS 2020, https://arxiv.org/abs/2010.12603. The same candidates, partitions and
averaged utilities as `exponential`, and another draw: candidates come up in random order, each is
chosen with probability exp(-epsilon_0 gap / (2 Delta)), gap being how far its utility is below the
best. That is report-noisy-max with exponential noise (Ding et al., "The Permute-and-Flip Mechanism
Is Identical to Report-Noisy-Max with Exponential Noise", 2021, https://arxiv.org/abs/2105.07260).

Its expected utility is never below the exponential mechanism's at one epsilon_0. But where that one
is bounded-range, and costs less when composed, this one is known to be pure and no more: beside a
private training it takes more of a total than an exponential mechanism of the same epsilon_0.
`docs/threshold_proposals.md` has both by numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dpjax import accounting, checks
from dpjax.randomness.exact_samplers import UniformBelow, permute_and_flip_choice
from dpjax.tuning.evaluations.partition_models import Candidates, PartitionModels
from dpjax.tuning.evaluations.partitions import PARTITION_TRAININGS, REHEARSAL, AveragedUtility
from dpjax.tuning.tuner import register_tuner

RULE = "permute-and-flip, once, then private training"


@dataclasses.dataclass(frozen=True)
class PermuteAndFlipChoice:
    """Permute-and-flip as a `partition_models.UtilityChoice`.

    Attributes:
      epsilon: epsilon_0, of the one choice.
    """

    epsilon: float

    def guarantee(self, relation: str) -> accounting.Guarantee:
        """See `UtilityChoice`. Pure, and not bounded-range: see `permute_and_flip_choice`."""
        return accounting.pure(self.epsilon, relation=relation)

    def select(
        self, scores: list[int], utility: AveragedUtility, below: UniformBelow
    ) -> tuple[int, dict[str, Any]]:
        """See `UtilityChoice`."""
        return permute_and_flip_choice(scores, utility.exponential_rate(self.epsilon), below), {}

    def describe(self, utility: AveragedUtility, delta: float) -> dict[str, Any]:
        """See `UtilityChoice`."""
        return {
            "rule": RULE,
            "epsilon_0": self.epsilon,
            "noise": "exact coins of heads exp(-rate * units below the best) in a random order, "
            "the law of exponential noise",
            "rate_for_a_unit": float(utility.exponential_rate(self.epsilon)),
        }


@register_tuner("permute_and_flip", rule=RULE)
@dataclasses.dataclass(frozen=True)
class PermuteAndFlip:
    """Selects a candidate by permute-and-flip, then trains it privately on everything.

    Formal guarantees:
      `result.release` is (`result.guarantee.epsilon(delta)`, delta)-differentially private under
      `result.guarantee.relation` for one record of the training or validation data, under the
      conditions of `Doubling`. Enforced here: each training record sits in one partition by a keyed
      hash of its identifier, so one record moves every candidate's utility by at most
      `AveragedUtility.sensitivity`; one candidate is drawn by exact coins from the operating
      system's randomness (`exact_samplers.permute_and_flip_choice`), which is epsilon_0-DP and is
      charged as pure, NOT as bounded-range; the draw and the final DP-SGD are composed. A private
      validation record is touched by the draw alone and pays no more than the composition. Source:
      McKenna & Sheldon (2020), Theorem 1; `accounting.pure` for the cost.

    Example:
      >>> from dpjax import tuning
      >>> type(tuning.PermuteAndFlip()).__name__
      'PermuteAndFlip'

    Attributes:
      selection_epsilon: epsilon_0, of the one choice.
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
    def choice(self) -> PermuteAndFlipChoice:
        return PermuteAndFlipChoice(checks.positive("selection_epsilon", self.selection_epsilon))

    @classmethod
    def from_statement(cls, claim: Mapping[str, Any]) -> PermuteAndFlip:
        models = PartitionModels.from_statement(claim)
        return cls(float(claim["selection"]["epsilon_0"]), **vars(models))
