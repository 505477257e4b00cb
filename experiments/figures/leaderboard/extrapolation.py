"""Extrapolation: the best rate at small epsilons, a line in epsilon, one training at the large one.

Ashwinee Panda, Xinyu Tang, Saeed Mahloujifar, Vikash Sehwag and Prateek Mittal, "A New Linear
Scaling Rule for Private Adaptive Hyperparameter Optimization", ICML 2024,
https://arxiv.org/abs/2212.04486. Runs at small epsilons are cheap, and what is best there, as
learning rate x steps, is taken to grow linearly in epsilon: a line through two or more such winners
is read at the epsilon of the final training. Read far outside of them, a free line multiplies their
noise, and often ends at an end of the law; one through the origin is the default here. What was
measured, and that random repetitions did better, is in `third_party_notes/papers.md`.

Here everything is charged: each stage is the best of a secret number K of runs with private scores
(`RandomRepetitions`, Papernot & Steinke 2022), which costs less than three composed runs at K of
mean 10; stages and final training compose. Steps are the same in all runs, so that rate x steps is
extrapolated by the rate alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpjax import accounting, checks
from dpjax.tuning import statements
from dpjax.tuning.private_runs import Plan, RunsPlan, plan_runs
from dpjax.tuning.problem.problem import Material, Problem
from dpjax.tuning.problem.run_settings import (
    RunSetting,
    calibrated_beside,
    the_one_setting,
    training_guarantee,
)
from dpjax.tuning.problem.space import ACCOUNTED, Law, Space
from dpjax.tuning.selection import BestOf
from dpjax.tuning.steps import Chosen, Ran, Select, Steps, Train, record
from dpjax.tuning.tuner import Tuner, register_tuner

RULE = "a line through the best of K runs at several small epsilons, then private training"

ORIGIN, FREE = "through_origin", "free"
FITS = (ORIGIN, FREE)
"""Lines: proportional to epsilon, or of any height at 0, as the paper's through two points."""

_LEAST_SQUARES = (
    "least squares of it times the steps, which are the same in all runs, in the epsilon of a run"
)
_READ = "read at the final run's and clamped to its law"
_LINES = {
    ORIGIN: f"{_LEAST_SQUARES}, through the origin; {_READ}",
    FREE: f"{_LEAST_SQUARES}; {_READ}",
}

STAGE, FINAL_TRAINING = "a candidate of stage {}", "the extrapolated candidate"
"""Which runs have the settings that a release states."""

_ASSUMPTIONS = (
    "the search space, the law of K, the split between stages and every setting were fixed before "
    "the data was seen",
    "K of every stage, its candidates and scores, the console and the wall clock stay with the "
    "curator",
)

DEFAULT_SHARES = (0.1, 0.25)
"""Of the target, for the stages: the final training keeps nine tenths of it or so."""


@dataclasses.dataclass(frozen=True)
class FittedLine:
    """Least squares of a hyperparameter x steps in the epsilon of a run.

    Attributes:
      extrapolated: the hyperparameter's name.
      fit: one of `FITS`.
    """

    extrapolated: str
    fit: str = ORIGIN

    def check(self, space: Space) -> None:
        """Refuses a space that it has nothing to extrapolate in."""
        checks.text("extrapolated", self.extrapolated)
        checks.one_of("fit", self.fit, FITS)
        law = space.parameters.get(self.extrapolated)
        if law is None or not law.lowest < law.highest:
            raise ValueError(
                f"extrapolated={self.extrapolated!r} must be drawn from a range: pass "
                f"Space({self.extrapolated}=LogUniform(0.01, 10)), or the name of another "
                "hyperparameter"
            )

    def values(
        self,
        space: Space,
        winners: Sequence[Mapping[str, np.ndarray]],
        epsilons: Sequence[float],
        final_epsilon: float,
        steps: int,
    ) -> dict[str, np.ndarray]:
        """What else the space draws is the last stage's winner's, of the largest epsilon. Where a
        stage found nothing, everything is the middle of its law.
        """
        law = space.parameters[self.extrapolated]
        heights = steps * np.stack([stage[self.extrapolated] for stage in winners], axis=1)
        places = np.asarray(epsilons, np.float64)
        centre, level = 0.0, np.zeros(len(heights))
        if self.fit == FREE:
            centre, level = places.mean(), heights.mean(axis=1)
        away = places - centre
        slopes = (heights - level[:, None]) @ away / (away @ away)
        reached = level + slopes * (final_epsilon - centre)
        values = np.clip(reached / steps, law.lowest, law.highest)
        if law.values is not None:
            listed = np.asarray(law.values, np.float64)
            values = listed[np.argmin(np.abs(listed[None, :] - values[:, None]), axis=1)]
        found = np.all(np.isfinite(heights), axis=1)
        chosen = dict(winners[-1]) | {self.extrapolated: values}
        return {
            name: np.where(found, chosen[name], middle(one))
            for name, one in sorted(space.parameters.items())
        }

    def describe(self) -> dict[str, Any]:
        """Returns the public rule as JSON-able data."""
        return {
            "rule": RULE,
            "extrapolated": self.extrapolated,
            "fit": self.fit,
            "line": _LINES[self.fit],
            "other_hyperparameters": "of the last stage's best run",
            "where_a_stage_finds_nothing": "the middle of every law",
            "not_stated": "what the stages found; they have paid for it",
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagesPlan(Plan):
    """Stages of private runs, and one final training of `setting`; costs as of `Plan`."""

    line: FittedLine
    repetitions: accounting.RepetitionLaw
    stages: tuple[RunsPlan, ...]
    setting: RunSetting

    @property
    def epsilons(self) -> list[float]:
        """Returns what training one run of each stage costs by itself: the line's public places."""
        delta = self.problem.delta
        return [training_guarantee(list(one.settings)).epsilon(delta) for one in self.stages]

    @property
    def final_epsilon(self) -> float:
        """Returns what the final training costs, by itself: where the line is read."""
        assert self.run_guarantee is not None  # It was planned as private.
        return self.run_guarantee.epsilon(self.problem.delta)

    def chosen(self, stages: Sequence[Ran]) -> dict[str, float]:
        """Returns what the line says of the stages' winners, for the final training."""
        space = self.problem.space
        nothing = dict.fromkeys(space.parameters, math.nan)
        winners = [
            {name: np.array([value]) for name, value in (one.hyperparameters or nothing).items()}
            for one in stages
        ]
        read = self.line.values(
            space, winners, self.epsilons, self.final_epsilon, self.setting.steps
        )
        return {name: float(values[0]) for name, values in read.items()}


@register_tuner("extrapolation", rule=RULE)
@dataclasses.dataclass(frozen=True)
class Extrapolation(Tuner):
    """Finds good rates at small epsilons and extrapolates them to one private training.

    Formal guarantees:
      `result.release` is (`result.guarantee.epsilon(delta)`, delta)-differentially private under
      `result.guarantee.relation`, for one record of the training or validation data, under the
      conditions of `RandomRepetitions`, of every stage. Enforced here: each stage is an execution
      of random repetitions with its own secret K, keys and noise, and is charged as such; the final
      training reads the stages' winners only, through a public line, within the public law (the
      middle of every law, where a stage found nothing: that is an outcome that the stage has paid
      for); the stages and the final DP-SGD are composed, at noise that does not depend on what the
      stages found. Which winners they were is paid for and not stated: the release names the final
      hyperparameters alone. A private validation record is touched by the stages only, and pays no
      more than the composition. Source: Papernot & Steinke (ICLR 2022) for a stage,
      `accounting.best_of` and `accounting.compose` for the cost; Panda et al. (ICML 2024) for the
      line, which is a heuristic: no privacy rests on it.

    Attributes:
      repetitions: public law of the number K of candidates of each stage.
      stage_shares: each stage's epsilon over the target of the whole, ascending; public.
      stage_noise: noise multipliers of the stages' runs, descending; in place of stage_shares.
      extrapolated: the hyperparameter that the line is of.
      fit: through_origin, or a free line, which multiplies the noise of the stages' winners.
      score_noise: standard deviations of the noise on the stages' counts of correct predictions, in
        records; the least ones that add nothing to a run's cost if unset.
    """

    repetitions: accounting.RepetitionLaw = accounting.AtMost(accounting.Geometric(10), cap=64)
    stage_shares: Sequence[float] = DEFAULT_SHARES
    stage_noise: Sequence[float] | None = None
    extrapolated: str = "learning_rate"
    fit: str = dataclasses.field(default=ORIGIN, metadata={"choices": FITS})
    score_noise: Sequence[float] | None = None

    @classmethod
    def from_statement(cls, claim: Mapping[str, Any]) -> Extrapolation:
        selection, public = claim["selection"], claim["score"]["validation_is_public"]
        noises = claim["score"]["noise_standard_deviations_in_records"]
        return cls(
            accounting.law_from_dict(selection["law_of_K"]),
            stage_noise=tuple(float(one["noise_multiplier"]) for one in claim["training"][:-1]),
            extrapolated=selection["extrapolated"],
            fit=selection["fit"],
            score_noise=None if public else tuple(map(float, noises)),
        )

    def plan(self, problem: Problem) -> StagesPlan:
        space, epsilon = problem.space, problem.epsilon
        accounted = [name for name in ACCOUNTED if name in space.parameters]
        if accounted:
            raise ValueError(
                f"{accounted[0]} is the same for all runs of an extrapolation: pass it beside the "
                "space, not in it"
            )
        line = FittedLine(self.extrapolated, self.fit)
        line.check(space)
        setting = the_one_setting(problem)
        targets, noises = self._targets(epsilon)
        deviations = [None] * len(targets) if self.score_noise is None else self.score_noise
        selection = BestOf(self.repetitions)
        stages = tuple(
            plan_runs(
                dataclasses.replace(
                    problem,
                    epsilon=target,
                    run=dataclasses.replace(problem.run, noise_multiplier=noise),
                ),
                selection,
                score_noise=deviation,
            )
            for target, noise, deviation in zip(targets, noises, deviations, strict=True)
        )
        chosen = accounting.compose(*(_paid(stage) for stage in stages))
        setting = calibrated_beside(
            chosen,
            setting,
            problem,
            "the stages alone cost",
            *("smaller ", ("stage_shares",), ", more ", ("stage_noise",)),
        )
        final = setting.guarantee()
        fixed = StagesPlan(
            problem=problem,
            line=line,
            repetitions=self.repetitions,
            stages=stages,
            setting=setting,
            selection_guarantee=chosen,
            run_guarantee=final,
            guarantee=accounting.compose(chosen, final),
        )
        places = fixed.epsilons
        if not all(one < other for one, other in zip(places, places[1:])):
            raise ValueError(
                "the stages' runs must cost ascending epsilons, for a line through them: pass "
                "ascending stage_shares, or descending stage_noise"
            )
        return fixed

    def _targets(
        self, epsilon: float | None
    ) -> tuple[Sequence[float | None], Sequence[float | None]]:
        """Returns each stage's target epsilon and noise multiplier, of which one is None."""
        shares = checks.vector("stage_shares", self.stage_shares).tolist()
        if len(shares) < 2 or not 0 < min(shares) <= max(shares) < 1:
            raise ValueError(
                "stage_shares must be two or more numbers between 0 and 1, as in 0.1,0.25"
            )
        if self.stage_noise is not None:
            noises = checks.vector("stage_noise", self.stage_noise).tolist()
            if len(noises) < 2 or not min(noises) > 0:
                raise ValueError("stage_noise must be two or more numbers above 0, as in 20,10")
            return [None] * len(noises), noises
        if epsilon is None:
            raise ValueError(
                "stage_shares are of a target epsilon: pass one, or stage_noise instead"
            )
        return [share * epsilon for share in shares], [None] * len(shares)

    def steps(self, plan: StagesPlan, material: Material) -> Steps:
        """Runs the stages, reads the line and trains.

        Formal guarantees:
          Every stage is one execution of `private_runs.execute`, which enforces what its price
          needs; the final training is one private run whose hyperparameters are a function of the
          stages' winners and of public numbers. Stages and final training share no key, no K and no
          noise, and what has been drawn is not drawn again: `driver.drive` sees to both.
        """
        stages: list[Ran] = []
        for number, stage in enumerate(plan.stages):
            stages.append((yield Select(f"stage_{number + 1}", stage, lambda: material)))
        chosen = plan.chosen(stages)
        final = yield Train("final", plan, lambda: material, plan.setting, chosen)
        known = record(
            material,
            stages,
            candidates_of_stages=[int(stage.executed.counts[0]) for stage in stages],
            winners_of_stages=[int(stage.executed.best.candidate[0]) for stage in stages],
            extrapolated=dict(sorted(chosen.items())),
            final_model_validation_accuracy=float(final.executed.units[0])
            / (plan.problem.units * max(material.task.validation.number, 1)),
        )
        return Chosen(final.params, chosen, known)

    def may_release(self, plan: StagesPlan, released: Mapping[str, Any]) -> bool:
        return statements.can_be_drawn(released, plan.problem.space)

    def statement(
        self, plan: StagesPlan, *, secret: bool, versions: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        delta = plan.problem.delta
        settings = [(one.settings[0], STAGE.format(n + 1)) for n, one in enumerate(plan.stages)]
        settings.append((plan.setting, FINAL_TRAINING))
        stds = [stage.score_noise for stage in plan.stages]
        claim = statements.written(
            **statements.of_problem(plan.problem),
            guarantee=plan.guarantee,
            selection=plan.line.describe()
            | {
                "law_of_K": plan.repetitions.to_dict(),
                "stages": len(plan.stages),
                "epsilon_of_a_run_of_each_stage": plan.epsilons,
                "epsilon_of_the_final_run": plan.final_epsilon,
            },
            score=statements.of_noisy_scores(plan.problem)
            | {"noise_standard_deviations_in_records": stds},
            settings=[statements.of_setting(setting, of) for setting, of in settings],
            randomness_is_secret=secret,
            assumptions=_ASSUMPTIONS,
            versions=versions,
        )
        return claim | {
            "epsilon_of_parts": {
                "each_stage_alone": [_paid(stage).epsilon(delta) for stage in plan.stages]
            }
            | statements.of_parts(plan.selection_guarantee, plan.run_guarantee, delta, "the stages")
        }


def _paid(stage: RunsPlan) -> accounting.Guarantee:
    """Returns what a stage costs: training, scores and selection."""
    assert stage.guarantee is not None  # It was planned as private.
    return stage.guarantee


def middle(law: Law) -> float:
    """Returns the public default of a hyperparameter: the middle of its distribution."""
    return float(law.grid(1)[0])
