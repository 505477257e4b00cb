"""A tuning procedure, fixed with its cost before the data is touched."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

from dpjax import accounting
from dpjax.tuning.candidates import Space
from dpjax.tuning.run_settings import (
    RunOptions,
    RunSetting,
    calibrated,
    run_settings,
    training_guarantee,
    validation_noise,
)
from dpjax.tuning.task import Task

Optimizer = Callable[[dict], Any]


@dataclasses.dataclass(frozen=True)
class Procedure:
    """Everything that is fixed, and public, before the data is touched.

    Attributes:
      space: the law candidates are drawn from.
      repetitions: the law of K.
      settings: the accounted settings a candidate may have.
      optimizer: hyperparameters -> optax transformation.
      score_noise: standard deviation of the discrete Gaussian on the number of correct validation
        predictions, in records; 0 for public validation data or a run that is not private.
      run_guarantee: the cost of one candidate, its score included; None if not private.
      guarantee: the cost of releasing the best candidate; None if not private.
    """

    space: Space
    repetitions: accounting.RepetitionLaw
    settings: tuple[RunSetting, ...]
    optimizer: Optimizer
    score_noise: float
    run_guarantee: accounting.Guarantee | None
    guarantee: accounting.Guarantee | None


def plan_procedure(
    task: Task,
    space: Space,
    *,
    repetitions: accounting.RepetitionLaw,
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
      repetitions: the law of K.
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
        private run, or if the target cannot be met.
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta {delta}: pass a number between 0 and 1, for example 1e-5")
    settings = run_settings(task, space, options)
    given = not any(math.isnan(setting.noise_multiplier) for setting in settings)
    if given == (epsilon is not None):
        raise ValueError(
            "pass either a target epsilon or noise multipliers (in the space or beside it), not "
            + ("both" if given else "neither")
        )
    fixed = functools.partial(Procedure, space=space, repetitions=repetitions, optimizer=optimizer)
    if not_private:
        return fixed(settings=tuple(settings), score_noise=0.0, run_guarantee=None, guarantee=None)
    select = functools.partial(accounting.best_of, law=repetitions)
    if given:
        if min(setting.noise_multiplier for setting in settings) <= 0:
            raise ValueError(
                "noise_multiplier 0 gives no privacy: pass a positive one, or say not_private"
            )
    else:
        if not (0 < epsilon < math.inf):
            raise ValueError(f"epsilon {epsilon}: pass a finite number > 0")
        settings = calibrated(settings, select, epsilon, delta)
    train = training_guarantee(settings)
    run = train
    deviation = 0.0
    if not validation_is_public:
        relation = settings[0].relation
        deviation = validation_noise(train, relation) if score_noise is None else score_noise

        def with_score(deviation: float) -> accounting.Guarantee:
            count = accounting.discrete_gaussian(noise_std=deviation, relation=relation)
            return accounting.parallel(train, count)

        run = with_score(deviation)
        if epsilon is not None:
            # The count's profile was compared on a grid; the total is what must meet the target.
            while score_noise is None and select(run).epsilon(delta) > epsilon and deviation < 1e5:
                deviation *= 1.1
                run = with_score(deviation)
    guarantee = select(run)
    if epsilon is not None and guarantee.epsilon(delta) > epsilon:
        raise ValueError(
            f"score_noise {score_noise} alone takes the total to epsilon "
            f"{guarantee.epsilon(delta):.4g}, above the target {epsilon}: pass a larger score_noise"
        )
    return fixed(
        settings=tuple(settings), score_noise=deviation, run_guarantee=run, guarantee=guarantee
    )
