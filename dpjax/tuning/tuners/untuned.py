"""No tuning: one private run with a public default, what every tuner has to beat.

The whole epsilon goes into one training, and every record may train. Where the default is good,
that is hard to beat: choosing costs epsilon, and records to score by. `public_defaults` is the rule
that the default comes from.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dpjax import training
from dpjax.tuning.evaluations.one_run import RULE, NothingToChoose, OneRun
from dpjax.tuning.job import Job
from dpjax.tuning.problem.public_defaults import space_and_run
from dpjax.tuning.problem.run_settings import RunOptions
from dpjax.tuning.problem.space import Space
from dpjax.tuning.problem.task import Task
from dpjax.tuning.tuner import (
    KeepTheWinner,
    Optimizer,
    Progress,
    Result,
    register_tuner,
    tune,
)


@register_tuner("untuned", rule=RULE)
@dataclasses.dataclass(frozen=True)
class Untuned:
    """One private run with public hyperparameters, nothing chosen; see `untuned`.

    Example:
      >>> from dpjax import tuning
      >>> tuning.Untuned()
      Untuned()
    """

    evaluation = OneRun()
    choice = NothingToChoose()
    finish = KeepTheWinner()

    @classmethod
    def from_statement(cls, claim: Mapping[str, Any]) -> Untuned:
        return cls()


def untuned(
    task: Task,
    space: Space | None = None,
    *,
    epsilon: float | None = None,
    delta: float = 1e-5,
    noise_multiplier: float | None = None,
    lot_size: int | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    sampling: str = "poisson",
    optimizer: Optimizer | None = None,
    clipping: training.ClipRule = training.GlobalClipping(),  # noqa: B008 (immutable)
    seed: int | None = None,
    progress: Progress | None = None,
    job: Job | None = None,
) -> Result | None:
    """Trains one model privately with public hyperparameters; nothing is tuned.

    Formal guarantees:
      `result.release` is (`result.guarantee.epsilon(delta)`, delta)-differentially private under
      `result.guarantee.relation` for one record of the training data, if every argument was fixed
      without looking at the data and the randomness stays secret; it does not depend on the
      validation records at all. Enforced here: one run, whose cost is the whole cost; every
      hyperparameter is a number that was there before; a run that is not finite releases parameters
      that do not depend on data. Source: `accounting.dp_sgd` for the cost.

    Example:
      >>> from dpjax import data, models, tuning
      >>> parts = data.load("digits").without_validation()
      >>> task = tuning.classification(models.LogisticRegression(10), parts.train, parts.validation)
      >>> result = tuning.untuned(task, epsilon=2.0, steps=10)
      >>> print(f"{result.guarantee.epsilon(1e-5):.2f}")
      2.00

    Args:
      task: what to learn; its validation records are not used.
      space: the hyperparameters, each a number; None: `public_defaults` of the task.
      epsilon: target of the run; the noise is calibrated to it. Needed for the default.
      delta: of the run, in (0, 1).
      lot_size, steps: of the run; the default's where neither they nor a space are given.
      noise_multiplier, epochs, sampling, optimizer, clipping, seed, progress, job: as in
        `random_repetitions`. An optimiser other than the usual one needs a space.

    Returns:
      A `Result`; None for a shard, whose results only a merge turns into one.

    Raises:
      ValueError: with one line naming what to pass instead.

    Warns:
      cautions.LargeDeltaWarning, cautions.KnownRandomnessWarning: before anything is drawn.
      cautions.UntrainedReleaseWarning: if no trained model is released.
    """
    asked = RunOptions(lot_size, steps, epochs, noise_multiplier, sampling, clipping)
    space, run = space_and_run(task, space, asked, epsilon, delta, optimizer)
    return tune(
        task,
        space,
        Untuned(),
        epsilon=epsilon,
        delta=delta,
        run=run,
        optimizer=optimizer,
        seed=seed,
        progress=progress,
        job=job,
    )
