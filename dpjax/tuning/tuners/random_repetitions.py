"""Random repetitions: release the best of a random number of private runs.

Nicolas Papernot and Thomas Steinke, "Hyperparameter Tuning with Renyi Differential Privacy", ICLR
2022, https://arxiv.org/abs/2110.03620. One run = draw hyperparameters from a public law, train by
DP-SGD, score on validation data (privately). K runs, K from a public law and secret; only the best
run is released. The cost hardly grows with the mean of K, because nobody learns K.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dpjax import accounting
from dpjax.tuning.choices import BEST_OF, BestOf
from dpjax.tuning.evaluations.private_runs import PrivateRuns
from dpjax.tuning.tuner import register_tuner

DEFAULT_REPETITIONS = accounting.AtMost(accounting.Geometric(mean=10), cap=64)


@register_tuner("random_repetitions", rule=BEST_OF)
@dataclasses.dataclass(frozen=True)
class RandomRepetitions:
    """Trains a secret random number of candidates and releases the best one.

    Formal guarantees:
      `result.release` is (`result.guarantee.epsilon(delta)`, delta)-differentially private under
      `result.guarantee.relation`, for one record of the training or validation data, if the space
      and every argument were fixed without looking at the data, and K, the other candidates, the
      console and the wall clock stay with the curator. Enforced here: K is drawn from the operating
      system's randomness and appears in nothing that is released; candidates are independent draws
      from the space with independent keys; a candidate that is not finite ranks worst, is not
      retried and still counts; no candidate, or none that is finite, releases parameters that do
      not depend on data; a validation record costs what is stated by noise on the count of correct
      predictions; with `score_on_training` the run and the noisy count compose. Source: Papernot &
      Steinke (ICLR 2022), Theorems 2 and 6, as corrected and tightened in `accounting.best_of`.

    Example:
      >>> from dpjax import accounting, tuning
      >>> tuning.RandomRepetitions(accounting.Geometric(10)).repetitions.mean
      10.0

    Attributes:
      repetitions: public law of the number K of candidates.
      score_noise: standard deviation of the noise on the count of correct predictions, in records;
        the least one that adds nothing to the total if unset.
      not_private: train without noise, for comparison; the release then says so.
      score_on_training: score candidates on the records they are trained on, for a little more
        epsilon, so that no record is kept from training; validation records are not used.
    """

    repetitions: accounting.RepetitionLaw = DEFAULT_REPETITIONS
    score_noise: float | None = None
    not_private: bool = False
    score_on_training: bool = False

    @property
    def evaluation(self) -> PrivateRuns:
        return PrivateRuns(self.score_noise, self.not_private, self.score_on_training)

    @property
    def choice(self) -> BestOf:
        return BestOf(self.repetitions)

    @classmethod
    def from_statement(cls, claim: Mapping[str, Any]) -> RandomRepetitions:
        return cls(accounting.law_from_dict(claim["selection"]["law_of_K"]))
