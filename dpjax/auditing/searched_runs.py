"""Repeats the one run that follows a search on public data, many times and independently."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np

from dpjax import checks, training
from dpjax.auditing.executions import Released, released
from dpjax.pareto.oracles import TrainingCost
from dpjax.pareto.released_run import PlannedRun
from dpjax.training.optimizers import Optimizer
from dpjax.tuning.problem.task import Task
from dpjax.tuning.runner import placed_records


def searched_run_executions(
    task: Task,
    cost: TrainingCost,
    setting: Mapping[str, float],
    optimizer: Optimizer,
    number: int,
    *,
    seed: int | None = None,
) -> Released:
    """Repeats `pareto.released_run` `number` times, each run independent of the others.

    Formal guarantees:
      Each execution has the law of what `released_run` releases with the same arguments: the same
      plan, price and training, with a key of its own. Together they have no guarantee at all.

    Example:
      >>> from dpjax import auditing, pareto
      >>> canary = auditing.CANARIES["gradient"]
      >>> cost = pareto.TrainingCost(pareto.RunShapes(4, "poisson"))
      >>> run = {"epochs": 1, "lot_size": 4, "noise_multiplier": 2.0}
      >>> setting = run | {"clip_norm": 1.0, "learning_rate": 1.0}
      >>> found = auditing.searched_run_executions(
      ...     canary.task(False, 4), cost, setting, canary.optimizer, 100
      ... )
      >>> found.params.shape
      (100,)

    Args:
      task, cost, setting, optimizer: as in `released_run`; the setting may not depend on the
        records of `task`.
      number: of executions.
      seed: None for the operating system's randomness, as users run it.

    Raises:
      ValueError: with one line naming what to pass instead.
    """
    number = checks.whole("number", number)
    planned = PlannedRun.of(task, cost, setting, optimizer)
    keys = training.candidate_keys(number, seed=seed)
    whole_run = training.jit(jax.vmap(planned.trained, in_axes=(0, None, None)))
    params, finite = jax.device_get(
        whole_run(keys, dict(planned.hyperparameters), placed_records(task.train))
    )
    chosen = {name: np.full(number, float(value)) for name, value in setting.items()}
    return released(task, params, chosen, np.asarray(finite), planned.run.guarantee())
