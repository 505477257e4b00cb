"""Plans: what is fixed, and public, before the data is touched, with its cost."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping

import numpy as np

from dpjax import accounting, checks
from dpjax.tuning.problem.problem import Problem
from dpjax.tuning.problem.run_settings import (
    RunSetting,
    check_score_noise,
    count_guarantee,
    meet_target,
    noise_on_training_scores,
    run_settings,
    training_guarantee,
    validation_noise,
)
from dpjax.tuning.problem.space import GivenSpace
from dpjax.tuning.problem.task import Task
from dpjax.tuning.selection import BestOf, RunChoice


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that is fixed, and public, before the data is touched; a tuner adds its own.

    `run_guarantee` is the cost of one private run with its score, `selection_guarantee` that of the
    selection alone where a training follows it, `guarantee` that of the release. The first and the
    last are None if the run is not private. `task` is what is learned.
    """

    problem: Problem
    run_guarantee: accounting.Guarantee | None
    guarantee: accounting.Guarantee | None
    selection_guarantee: accounting.Guarantee | None = None
    task: Task = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # None for a problem rebuilt from a statement, which is priced and never trained.
        object.__setattr__(self, "task", self.problem.task)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunsPlan(Plan):
    """A plan of private runs, of which one is selected.

    `settings` are those that a candidate may have. `score_noise` is the std of the discrete
    Gaussian on the sum of validation scores (the count of correct predictions), in records; 0 for
    public validation data or a run that is not private.
    """

    selection: RunChoice
    settings: tuple[RunSetting, ...]
    score_noise: float
    score_on_training: bool = False


def plan_runs(
    problem: Problem,
    selection: RunChoice,
    *,
    score_noise: float | None = None,
    not_private: bool = False,
    score_on_training: bool = False,
) -> RunsPlan:
    """Plans private runs with their cost, from public numbers only; the noise meets the target.

    `score_noise` None stands for the smallest one that adds nothing to the total. With
    `not_private` noise multiplier 0 is allowed, and nothing is guaranteed. `score_on_training`
    scores candidates on the records they are trained on: it costs more than scoring on other
    records, and the task's validation records are not used.
    """
    epsilon, delta = problem.epsilon, problem.delta
    check_score_noise(score_noise, problem.units)
    checks.flag("not_private", not_private)
    checks.flag("score_on_training", score_on_training)
    if score_on_training:
        problem = problem.scored_on_training()
    charged = functools.partial(
        _cost_with_score,
        units=problem.units,
        validation_is_public=problem.validation_is_public,
        score_noise=score_noise,
        composed_at=delta if score_on_training else None,
    )
    settings = run_settings(problem)
    given = not any(math.isnan(setting.noise_multiplier) for setting in settings)
    if given == (epsilon is not None):
        raise ValueError(
            "pass either a target epsilon or noise multipliers (in the space, or "
            "run=RunOptions(noise_multiplier=...)), not " + ("both" if given else "neither")
        )
    problem.check()
    fixed = functools.partial(
        RunsPlan, problem=problem, selection=selection, score_on_training=score_on_training
    )
    if not_private and max(setting.noise_multiplier for setting in settings) > 0:
        raise ValueError("not_private trains without noise: drop it, or the noise_multiplier")
    if not_private:
        return fixed(settings=tuple(settings), score_noise=0.0, run_guarantee=None, guarantee=None)
    if epsilon is None and min(setting.noise_multiplier for setting in settings) <= 0:
        raise ValueError(
            "noise_multiplier 0 gives no privacy: pass a positive one, or say not_private"
        )

    def price(
        settings: list[RunSetting],
    ) -> tuple[accounting.Guarantee, tuple[accounting.Guarantee, float]]:
        run, noise = charged(settings)
        return selection.guarantee(run), (run, noise)

    settings, (guarantee, (run, noise)) = meet_target(
        settings, problem, selection.guarantee, selection.guarantee, price, score_noise
    )
    return fixed(
        settings=tuple(settings), score_noise=noise, run_guarantee=run, guarantee=guarantee
    )


def _cost_with_score(
    settings: list[RunSetting],
    *,
    units: int,
    validation_is_public: bool,
    score_noise: float | None,
    composed_at: float | None,
) -> tuple[accounting.Guarantee, float]:
    """Returns the cost of training and scoring one candidate, and the score's noise, in records.

    `composed_at` is None where no record is both trained on and scored; else the two compose, and
    it is the delta at which the noise is chosen.
    """
    train = training_guarantee(settings)
    if validation_is_public:
        return train, 0.0
    std = score_noise
    if composed_at is not None:
        relation = settings[0].relation
        if std is None:
            std = noise_on_training_scores(train, relation, composed_at, units)
        return accounting.compose(train, count_guarantee(std, relation, units)), std
    if std is None:
        std = validation_noise(train, settings[0].relation, units)
    count = count_guarantee(std, settings[0].relation, units)
    return accounting.parallel(train, count), std


def final_run(plan: Plan, setting: RunSetting, chosen: Mapping[str, np.ndarray]) -> RunsPlan:
    """Plans the final private training of a plan: one run, without a score.

    `chosen`, name -> (executions,) float64, are each execution's hyperparameters.
    """
    space = GivenSpace(plan.problem.space, chosen)
    return RunsPlan(
        problem=dataclasses.replace(plan.problem, space=space),
        selection=BestOf(accounting.Fixed(1)),
        settings=(setting,),
        score_noise=0.0,
        run_guarantee=plan.run_guarantee,
        guarantee=plan.guarantee,
    )
