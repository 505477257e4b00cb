"""Random repetitions, and threshold stopping: one of a secret number of private runs is released.

Nicolas Papernot and Thomas Steinke, "Hyperparameter Tuning with Renyi Differential Privacy", ICLR
2022, https://arxiv.org/abs/2110.03620. One run = draw hyperparameters from a public law, train by
DP-SGD, score on validation data (privately). K runs, K from a public law and secret; only the best
run is released. The cost hardly grows with the mean of K, because nobody learns K.

Jingcheng Liu and Kunal Talwar, "Private Selection from Private Candidates", STOC 2019; Papernot &
Steinke (ICLR 2022), Appendix C: run until one run is good enough, or a coin says stop. Without the
coin that would have no guarantee at all: how long it searches depends on the data.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any

from dpjax import accounting, checks
from dpjax.releases.claims import flag
from dpjax.tuning import statements
from dpjax.tuning.private_runs import RunsPlan, plan_runs
from dpjax.tuning.problem.fitting_law import fitting_law
from dpjax.tuning.problem.problem import Material, Problem
from dpjax.tuning.problem.space import Space
from dpjax.tuning.selection import BEST_OF, FIRST_ABOVE, BestOf, FirstAbove, RunChoice
from dpjax.tuning.steps import Chosen, Select, Steps, record
from dpjax.tuning.tuner import Tuner, register_tuner


class PrivateRuns(Tuner):
    """Base of tuners that release one of many private runs, by their `choice_in`.

    The settings are those of `plan_runs`; a subclass declares as fields the ones it supports.
    """

    score_noise: float | None = None
    not_private: bool = False
    score_on_training: bool = False
    without_a_model = "no run could be released (none was good enough, or none was drawn)"

    @abc.abstractmethod
    def choice_in(self, space: Space) -> RunChoice:
        """Returns how many runs of a space there are, and which one is released."""

    def plan(self, problem: Problem) -> RunsPlan:
        return plan_runs(
            problem,
            self.choice_in(problem.space),
            score_noise=self.score_noise,
            not_private=self.not_private,
            score_on_training=self.score_on_training,
        )

    def steps(self, plan: RunsPlan, material: Material) -> Steps:
        used = material.scored_on_training() if plan.score_on_training else material
        ran = yield Select("runs", plan, lambda: used)
        return Chosen(ran.params, ran.hyperparameters, record(used, [ran]))

    def statement(
        self, plan: RunsPlan, *, secret: bool, versions: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        score = statements.of_noisy_scores(plan.problem, on_training=plan.score_on_training)
        return statements.written(
            **statements.of_problem(plan.problem),
            guarantee=plan.guarantee,
            selection=plan.selection.describe(),
            score=score | {"noise_standard_deviation_in_records": plan.score_noise},
            settings=[statements.of_setting(setting) for setting in plan.settings],
            randomness_is_secret=secret,
            versions=versions,
        )


def stated_score_noise(claim: Mapping[str, Any]) -> float | None:
    """Reads the std of score noise from a statement, in records; None for public scores."""
    if flag(claim["score"].get("validation_is_public", False)):
        return None
    return float(claim["score"]["noise_standard_deviation_in_records"])


@register_tuner("random_repetitions", rule=BEST_OF)
@dataclasses.dataclass(frozen=True)
class RandomRepetitions(PrivateRuns):
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
      repetitions: public law of the number K of candidates; None: the one that fits the space,
        `tuning.fitting_law`.
      score_noise: standard deviation of the noise on the count of correct predictions, in records;
        the least one that adds nothing to the total if unset.
      not_private: train without noise, for comparison; the release then says so.
      score_on_training: score candidates on the records they are trained on, for a little more
        epsilon, so that no record is kept from training; validation records are not used.
    """

    repetitions: accounting.RepetitionLaw | None = None
    score_noise: float | None = None
    not_private: bool = False
    score_on_training: bool = False

    def choice_in(self, space: Space) -> BestOf:
        return BestOf(fitting_law(space) if self.repetitions is None else self.repetitions)

    @classmethod
    def from_statement(cls, claim: Mapping[str, Any]) -> RandomRepetitions:
        return cls(
            accounting.law_from_dict(claim["selection"]["law_of_K"]),
            stated_score_noise(claim),
            score_on_training=claim["score"].get("records") == statements.THE_TRAINING_RECORDS,
        )


@register_tuner("threshold_stopping", rule=FIRST_ABOVE)
@dataclasses.dataclass(frozen=True)
class ThresholdStopping(PrivateRuns):
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

    def choice_in(self, space: Space) -> FirstAbove:
        del space
        return FirstAbove(self.threshold, self.halting_probability)

    @classmethod
    def from_statement(cls, claim: Mapping[str, Any]) -> ThresholdStopping:
        words, noise = claim["selection"], stated_score_noise(claim)
        return cls(float(words["threshold"]), float(words["halting_probability"]), noise)
