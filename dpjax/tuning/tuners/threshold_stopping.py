"""Threshold stopping: run until one run is good enough, or a coin says stop.

Jingcheng Liu and Kunal Talwar, "Private Selection from Private Candidates", STOC 2019; Papernot &
Steinke (ICLR 2022), Appendix C. Without the coin the procedure would have no guarantee at all: how
long it searches depends on the data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dpjax import checks
from dpjax.tuning.choices import FIRST_ABOVE, FirstAbove
from dpjax.tuning.evaluations.private_runs import PrivateRuns
from dpjax.tuning.tuner import register_tuner


@register_tuner("threshold_stopping", rule=FIRST_ABOVE)
@dataclasses.dataclass(frozen=True)
class ThresholdStopping:
    """Trains candidates until one scores at least `threshold`, and releases that one.

    Before each run a coin says stop with probability `halting_probability`; then the release holds
    parameters that do not depend on data. So at most 1 / halting_probability - 1 runs are made on
    average, and fewer where good candidates are common.

    Formal guarantees:
      `result.release` is (`result.guarantee.epsilon(delta)`, delta)-differentially private under
      the conditions of `RandomRepetitions`, with the number of runs in place of K: it is secret,
      the coin comes from the operating system's randomness, and the threshold was fixed before the
      data was seen. The cost is `accounting.stop_at_threshold`'s.

    Example:
      >>> from dpjax import tuning
      >>> tuning.ThresholdStopping(threshold=0.9, halting_probability=0.1).threshold
      0.9

    Attributes:
      threshold: the accuracy that is good enough, on the noisy score, in [0, 1].
      halting_probability: chance to stop before each run, in (0, 1].
      score_noise: standard deviation of the noise on the count of correct predictions, in records;
        the least one that adds nothing to the total if unset.
      not_private: train without noise, for comparison; the release then says so.
    """

    threshold: float
    halting_probability: float = 0.05
    score_noise: float | None = None
    not_private: bool = False

    def __post_init__(self) -> None:
        threshold = checks.probability("threshold", self.threshold, zero=True, one=True)
        halting = checks.probability("halting_probability", self.halting_probability, one=True)
        object.__setattr__(self, "threshold", threshold)
        object.__setattr__(self, "halting_probability", halting)

    @property
    def evaluation(self) -> PrivateRuns:
        return PrivateRuns(self.score_noise, self.not_private)

    @property
    def choice(self) -> FirstAbove:
        return FirstAbove(self.threshold, self.halting_probability)

    @classmethod
    def from_statement(cls, claim: Mapping[str, Any]) -> ThresholdStopping:
        words = claim["selection"]
        return cls(float(words["threshold"]), float(words["halting_probability"]))
