"""A tuning procedure, fixed with its cost before the data is touched."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

from dpjax import accounting, checks
from dpjax.tuning.problem.run_settings import (
    RunOptions,
    RunSetting,
    calibrated,
    run_settings,
    training_guarantee,
    validation_noise,
)
from dpjax.tuning.problem.space import Space
from dpjax.tuning.problem.task import Task
from dpjax.tuning.problem.unread import refuse_unread
from dpjax.tuning.tuners.selections import Selection

Optimizer = Callable[[dict], Any]


@dataclasses.dataclass(frozen=True)
class Procedure:
    """Everything that is fixed, and public, before the data is touched.

    Attributes:
      space: the law candidates are drawn from.
      selection: how many runs there are, and which of them is released.
      settings: the accounted settings a candidate may have.
      optimizer: hyperparameters -> optax transformation.
      score_noise: standard deviation of the discrete Gaussian on the number of correct validation
        predictions, in records; 0 for public validation data or a run that is not private.
      run_guarantee: the cost of one candidate, its score included; None if not private.
      guarantee: the cost of the release; None if not private.
    """

    space: Space
    selection: Selection
    settings: tuple[RunSetting, ...]
    optimizer: Optimizer
    score_noise: float
    run_guarantee: accounting.Guarantee | None
    guarantee: accounting.Guarantee | None


def check_target(
    task: Task, space: Space, epsilon: float | None, delta: float, validation_is_public: bool
) -> None:
    """Refuses what is no task, no space or no target, whatever is then planned for them.

    Raises:
      ValueError: naming it.
    """
    checks.instance("task", task, Task, "tuning.classification(model, train, validation)")
    checks.instance("space", space, Space, "tuning.Space(learning_rate=0.1)")
    checks.probability("delta", delta, hint=", for example 1e-5")
    if epsilon is not None:
        checks.positive("epsilon", epsilon)
    checks.flag("validation_is_public", validation_is_public)


def plan_procedure(
    task: Task,
    space: Space,
    *,
    selection: Selection,
    options: RunOptions,
    optimizer: Optimizer,
    epsilon: float | None,
    delta: float,
    validation_is_public: bool = False,
    score_noise: float | None = None,
    not_private: bool = False,
) -> Procedure:
    """Fixes the procedure and its cost, from public numbers only.

    Args:
      task: only its public numbers are read (and, for fixed-size lots, the public number of
        training records).
      space: the law of the candidates.
      selection: how many runs there are, and which of them is released.
      options: lot size, steps and noise where the space does not draw them.
      optimizer: hyperparameters -> optax transformation.
      epsilon: target for the whole procedure; the noise multiplier is calibrated to it. None if
        noise multipliers are given.
      delta: of the whole procedure.
      validation_is_public: the validation records are public, their score costs nothing.
      score_noise: standard deviation for the validation count, in records; None: the least one
        that adds nothing to the total.
      not_private: allow noise_multiplier 0; nothing is then guaranteed.

    Raises:
      ValueError: if target and noise are both given or both missing, if the noise is 0 in a
        private run, if nothing reads a hyperparameter of the space, or if the target cannot be met.
    """
    check_target(task, space, epsilon, delta, validation_is_public)
    if score_noise is not None:
        checks.positive("score_noise", score_noise)
    checks.flag("not_private", not_private)
    if "clip_norm" in space.parameters and not space.parameters["clip_norm"].lowest > 0:
        raise ValueError("clip_norm must be above 0: pass a law of positive numbers")
    settings = run_settings(task, space, options)
    given = not any(math.isnan(setting.noise_multiplier) for setting in settings)
    if given == (epsilon is not None):
        raise ValueError(
            "pass either a target epsilon or noise multipliers (in the space or beside it), not "
            + ("both" if given else "neither")
        )
    refuse_unread(task, optimizer, space.parameters)
    fixed = functools.partial(Procedure, space=space, selection=selection, optimizer=optimizer)
    if not_private and max(setting.noise_multiplier for setting in settings) > 0:
        raise ValueError("not_private trains without noise: drop it, or the noise_multiplier")
    if not_private:
        return fixed(settings=tuple(settings), score_noise=0.0, run_guarantee=None, guarantee=None)
    if given:
        if min(setting.noise_multiplier for setting in settings) <= 0:
            raise ValueError(
                "noise_multiplier 0 gives no privacy: pass a positive one, or say not_private"
            )
        run, deviation = _scored(settings, validation_is_public, score_noise)
        guarantee = selection.guarantee(run)
    else:
        # Training alone is calibrated first; the score may add a little, and is then made room for.
        aim = epsilon
        for _ in range(6):
            settings = calibrated(settings, selection.guarantee, aim, delta)
            run, deviation = _scored(settings, validation_is_public, score_noise)
            guarantee = selection.guarantee(run)
            reached = guarantee.epsilon(delta)
            if reached <= epsilon:
                break
            aim *= 0.9995 * epsilon / reached
        else:
            raise ValueError(
                f"score_noise {score_noise} takes the total to epsilon {reached:.4g} at least, "
                f"above the target {epsilon}: pass a larger score_noise or epsilon"
            )
    return fixed(
        settings=tuple(settings), score_noise=deviation, run_guarantee=run, guarantee=guarantee
    )


def _scored(
    settings: list[RunSetting], validation_is_public: bool, score_noise: float | None
) -> tuple[accounting.Guarantee, float]:
    """Returns the cost of one candidate with its score, and the score's noise, in records."""
    train = training_guarantee(settings)
    if validation_is_public:
        return train, 0.0
    relation = settings[0].relation
    deviation = validation_noise(train, relation) if score_noise is None else score_noise
    count = accounting.discrete_gaussian(noise_std=deviation, relation=relation)
    return accounting.parallel(train, count), deviation
