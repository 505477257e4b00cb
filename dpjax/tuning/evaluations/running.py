"""From a task and a selection to a result: fix the procedure, execute it, release the winner."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dpjax import accounting, training
from dpjax.randomness import host_randomness
from dpjax.tuning import cautions, described
from dpjax.tuning.curator import CuratorRecord
from dpjax.tuning.evaluations.candidate_runs import untrained
from dpjax.tuning.evaluations.execution import execute
from dpjax.tuning.evaluations.procedure import Optimizer, Procedure, plan_procedure
from dpjax.tuning.job import Job, settled
from dpjax.tuning.problem.run_settings import RunOptions
from dpjax.tuning.problem.space import Space
from dpjax.tuning.problem.task import Task
from dpjax.tuning.release import Release, statement
from dpjax.tuning.tuners.selections import Selection


@dataclasses.dataclass(frozen=True)
class Result:
    """What a procedure ends in.

    Attributes:
      release: the only part that may leave the curator's hands.
      guarantee: the cost of the release; None if the run is not private.
      run_guarantee: the cost of one candidate alone; None if the run is not private.
      curator: everything else; not private, never to be published.
      selection_guarantee: the cost of the selection alone, where a private training follows it.
    """

    release: Release
    guarantee: accounting.Guarantee | None
    run_guarantee: accounting.Guarantee | None
    curator: CuratorRecord
    selection_guarantee: accounting.Guarantee | None = None


def run_selection(
    task: Task,
    space: Space,
    selection: Selection,
    options: RunOptions,
    *,
    epsilon: float | None,
    delta: float,
    optimizer: Optimizer | None,
    validation_is_public: bool,
    score_noise: float | None,
    not_private: bool,
    seed: int | None,
    chunk_size: int,
    progress: Callable[[int, int], None] | None,
    job: Job | None = None,
) -> Result | None:
    """Runs one procedure; `random_repetitions` explains the arguments and what is guaranteed.

    Raises:
      ValueError: with one line naming what to pass instead.
    """
    chunk_size, job = settled(chunk_size, progress, job)
    randomness = host_randomness.HostRandomness(seed)
    procedure = plan_procedure(
        task,
        space,
        selection=selection,
        options=options,
        optimizer=training.momentum() if optimizer is None else optimizer,
        epsilon=epsilon,
        delta=delta,
        validation_is_public=validation_is_public,
        score_noise=score_noise,
        not_private=not_private,
    )
    cautions.of_arguments(delta, task.train.public_size, seed, stacklevel=3)
    started = time.time()
    executed = execute(
        task,
        procedure,
        randomness=randomness,
        chunk_size=chunk_size,
        progress=progress,
        job=job,
    )
    if executed is None:
        return None
    winner = int(executed.best.candidate[0])
    names = sorted(executed.hyperparameters)
    if winner < 0 or not np.isfinite(executed.best.score[0]):
        # No candidate, or none that is finite: what comes out must not depend on data.
        params = untrained(task)
        hyperparameters = dict.fromkeys(names)
        cautions.of_untrained(
            "no run could be released (none was good enough, or none was drawn)", stacklevel=3
        )
    else:
        params = executed.best.output(0)
        hyperparameters = described.as_used(
            {name: float(executed.hyperparameters[name][winner]) for name in names}
        )
    claim = public_claim(
        procedure,
        options,
        delta=delta,
        validation_size=task.validation.public_size,
        validation_is_public=validation_is_public,
        training=described.of_training(
            task, procedure.optimizer, procedure.settings, options.sampling
        ),
        secret=randomness.secret,
    )
    return Result(
        release=Release(params=params, hyperparameters=hyperparameters, statement=claim),
        guarantee=procedure.guarantee,
        run_guarantee=procedure.run_guarantee,
        curator=CuratorRecord(
            number_of_candidates=int(executed.counts[0]),
            winner=winner,
            hyperparameters=executed.hyperparameters,
            scores=executed.scores / task.validation.public_size,
            accuracies=executed.correct / max(task.validation.number, 1),
            seconds=time.time() - started,
        ),
    )


def public_claim(
    procedure: Procedure,
    options: RunOptions,
    *,
    delta: float,
    validation_size: int,
    validation_is_public: bool,
    training: Mapping[str, Any],
    secret: bool,
    versions: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """What the release of a procedure states; a function of public words and numbers alone.

    Args:
      procedure: what was fixed before the data was touched.
      options: what was asked of a run beside the space.
      delta: of the claim.
      validation_size: the public number of validation records.
      validation_is_public: whether they are nobody's secret.
      training: as from `described.of_training`.
      secret: whether no seed was given.
      versions: see `release.statement`.
    """
    return statement(
        guarantee=procedure.guarantee,
        delta=delta,
        selection=procedure.selection.describe(),
        space=procedure.space.describe(),
        score={
            "what": "number of correct validation predictions plus noise, over the public size",
            "noise": "discrete Gaussian",
            "noise_standard_deviation_in_records": procedure.score_noise,
            "public_size": validation_size,
            "validation_is_public": validation_is_public,
        },
        **training,
        options=described.of_options(options),
        randomness_is_secret=secret,
        versions=versions,
    )
