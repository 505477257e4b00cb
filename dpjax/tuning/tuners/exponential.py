"""One private choice by averaged utilities, then private training: the recommended selector.

The k x |S| models and averaged utilities are those of Ding & Wu (2022, `Doubling`), but there is no
threshold and no loop: the whole selection budget goes into one draw, by either of two mechanisms:

* the exponential mechanism: a candidate is drawn with weight exp(epsilon_0 u / (2 Delta)) (McSherry
  & Talwar, FOCS 2007). At the cost of the paper's own experiment (k = 10, epsilon 0.7) it selects
  candidates of mean true utility 0.742 where the loop reaches 0.525.
* permute-and-flip (McKenna & Sheldon, NeurIPS 2020, https://arxiv.org/abs/2010.12603): candidates
  come up in random order, each is chosen with probability exp(-epsilon_0 gap / (2 Delta)), the
  gap being how far its utility is below the best. That is report-noisy-max with exponential noise
  (Ding et al. 2021, https://arxiv.org/abs/2105.07260). Its expected utility is never below the
  other's at one epsilon_0. But where that one is bounded-range, and costs less when composed, this
  one is known to be pure and no more: beside a private training it takes more of a total. It is for
  claims of pure epsilon; `docs/threshold_proposals.md` has both by numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from dpjax import accounting, checks
from dpjax.randomness.exact_samplers import (
    UniformBelow,
    exponential_choice,
    permute_and_flip_choice,
)
from dpjax.releases.rules import register_rule
from dpjax.tuning.tuner import rebuilt_by, register_tuner
from dpjax.tuning.tuners.partition_models import Candidates, PartitionModels
from dpjax.tuning.tuners.partitions import PARTITION_TRAININGS, REHEARSAL, AveragedUtility

RULE = "exponential mechanism, once, then private training"
RULE_OF_FLIPS = "permute-and-flip, once, then private training"

EXPONENTIAL, PERMUTE_AND_FLIP = "exponential", "permute_and_flip"
MECHANISMS = (EXPONENTIAL, PERMUTE_AND_FLIP)


@dataclasses.dataclass(frozen=True)
class _OneDraw:
    """Describes either mechanism, as a `partition_models.UtilityChoice` does.

    Attributes:
      epsilon: epsilon_0, of the one choice.
    """

    epsilon: float
    rule: ClassVar[str]
    noise: ClassVar[str]

    def describe(self, utility: AveragedUtility, delta: float) -> dict[str, Any]:
        return {
            "rule": self.rule,
            "epsilon_0": self.epsilon,
            "noise": self.noise,
            "rate_for_a_unit": float(utility.exponential_rate(self.epsilon)),
        }


@dataclasses.dataclass(frozen=True)
class ExponentialChoice(_OneDraw):
    """The exponential mechanism as a `partition_models.UtilityChoice`."""

    rule = RULE
    noise = "exact draw with weights exp(rate * units), the law of Gumbel noise"

    def guarantee(self, relation: str) -> accounting.Guarantee:
        return accounting.exponential_mechanism(self.epsilon, relation=relation)

    def select(
        self, scores: list[int], utility: AveragedUtility, below: UniformBelow
    ) -> tuple[int, dict[str, Any]]:
        return exponential_choice(scores, utility.exponential_rate(self.epsilon), below), {}


@dataclasses.dataclass(frozen=True)
class PermuteAndFlipChoice(_OneDraw):
    """Permute-and-flip as a `partition_models.UtilityChoice`."""

    rule = RULE_OF_FLIPS
    noise = (
        "exact coins of heads exp(-rate * units below the best) in a random order, the law of "
        "exponential noise"
    )

    def guarantee(self, relation: str) -> accounting.Guarantee:
        """See `UtilityChoice`. Pure, and not bounded-range: see `permute_and_flip_choice`."""
        return accounting.pure(self.epsilon, relation=relation)

    def select(
        self, scores: list[int], utility: AveragedUtility, below: UniformBelow
    ) -> tuple[int, dict[str, Any]]:
        return permute_and_flip_choice(scores, utility.exponential_rate(self.epsilon), below), {}


@register_tuner("exponential", rule=RULE)
@dataclasses.dataclass(frozen=True)
class Exponential(PartitionModels):
    """Selects a candidate by one private draw, then trains it privately on everything.

    Formal guarantees:
      `result.release` is (`result.guarantee.epsilon(delta)`, delta)-differentially private under
      `result.guarantee.relation` for one record of the training or validation data, under the
      conditions of `Doubling`. Enforced here: each training record sits in one partition by a keyed
      hash of its identifier, so one record moves every candidate's utility by at most
      `AveragedUtility.sensitivity`; one candidate is drawn from the operating system's randomness.
      By the exponential mechanism, its probability is exactly proportional to
      exp(epsilon_0 u / (2 Delta)), which is epsilon_0-bounded-range; by permute-and-flip, exact
      coins decide (`exact_samplers.permute_and_flip_choice`), which is epsilon_0-DP and is charged
      as pure, NOT as bounded-range. The draw and the final DP-SGD are composed. A private
      validation record is touched by the draw alone and pays no more than the composition. Source:
      McSherry & Talwar (2007), `accounting.exponential_mechanism` for the cost; McKenna & Sheldon
      (2020), Theorem 1, `accounting.pure` for the cost.

    Example:
      >>> from dpjax import tuning
      >>> tuning.Exponential(mechanism="permute_and_flip").choice
      PermuteAndFlipChoice(epsilon=1.0)

    Attributes:
      selection_epsilon: epsilon_0, of the one draw.
      candidates: how many are drawn, once, from the space; public. Or a public list of them.
      partitions: parts of the training records; each candidate is trained on each.
      partition_training: how models of partitions are trained: rehearsal (with the clipping and the
        noise of an averaged gradient that the final training will have) or non_private;
        the guarantee is the same.
      mechanism: how the one candidate is drawn: exponential, which costs less beside a training, or
        permute_and_flip, for claims of pure epsilon.
    """

    selection_epsilon: float = 1.0
    candidates: Candidates = 16
    partitions: int = 24
    partition_training: str = dataclasses.field(
        default=REHEARSAL, metadata={"choices": PARTITION_TRAININGS}
    )
    mechanism: str = dataclasses.field(default=EXPONENTIAL, metadata={"choices": MECHANISMS})

    @property
    def choice(self) -> ExponentialChoice | PermuteAndFlipChoice:
        """Returns the private choice among candidates that the settings name."""
        epsilon = checks.positive("selection_epsilon", self.selection_epsilon)
        if checks.one_of("mechanism", self.mechanism, MECHANISMS) == EXPONENTIAL:
            return ExponentialChoice(epsilon)
        return PermuteAndFlipChoice(epsilon)

    @classmethod
    def from_statement(cls, claim: Mapping[str, Any]) -> Exponential:
        selection = claim["selection"]
        mechanism = EXPONENTIAL if selection["rule"] == RULE else PERMUTE_AND_FLIP
        return cls(float(selection["epsilon_0"]), **cls.stated(claim), mechanism=mechanism)


register_rule(RULE_OF_FLIPS, lambda claim: rebuilt_by(Exponential.from_statement(claim), claim))
