"""Private runs: a secret number of candidates, each trained by DP-SGD and scored with noise.

`execute` draws, trains and selects by a plan of `plans.plan_runs`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from dpjax import training
from dpjax.randomness import keys as key_streams
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.tuning.job import Arrays, Job
from dpjax.tuning.plans import RunsPlan
from dpjax.tuning.problem.task import Task
from dpjax.tuning.runner import trained_runs
from dpjax.tuning.selection import (
    Executed,
    Selection,
    draw,
    merged,
    written_executed,
)


def execute(
    plan: RunsPlan,
    *,
    randomness: HostRandomness,
    executions: int = 1,
    chunk_size: int = 16,
    progress: Callable[[int, int], None] | None = None,
    job: Job = Job(),  # noqa: B008 (immutable)
) -> Executed | None:
    """Runs the procedure `executions` times, each independent of the others.

    A release comes from one execution. Audits use many, which share compiled programs and device
    calls, nothing else.

    Formal guarantees:
      What is computed for a candidate depends on its own key and hyperparameters, the data,
      `chunk_size` and the placement, never on K or on another candidate. K, keys and scores' noise
      come from `randomness`; each candidate has its own key. Jobs that share a folder, and
      processes, share ONE draw of K and candidates; each candidate is trained from its own key, by
      one of them or, after an interruption, again to the same result; and one selection looks at
      all, once each is known to have been trained: the cost is that of one execution. The draw in a
      folder serves one procedure (records, traced programs and settings are compared by hash), one
      process or one set of shards at a time, and one selection, after which it is deleted: two
      releases never share K, keys or noise, as long as the folder is not copied.

    A shard leaves its results in the job's folder and returns None. If the folder's draw was
    consumed already, the outcome that was stored with it is returned.
    """

    with job.once(facts_of(plan, randomness, executions) if job.is_bound else None) as once:
        if once.wants_a_draw:
            once.begin(draw_of(plan, randomness, executions))
        drawn = once.drawn()
        if drawn is not None:
            once.end(_train_and_select(plan, drawn, executions, chunk_size, progress, job))
    return None if once.outcome is None else read_executed(once.outcome, plan.task)


def _train_and_select(
    plan: RunsPlan,
    drawn: Arrays,
    executions: int,
    chunk_size: int,
    progress: Callable[[int, int], None] | None,
    job: Job,
) -> Arrays | None:
    """Trains a draw's candidates and selects one; returns the outcome, or None for a shard."""
    task = plan.task
    keys = jax.random.wrap_key_data(drawn["keys"], impl=key_streams.IMPLEMENTATION)
    selection = Selection(plan.selection, drawn, task.validation.public_size, task.units)
    # Candidates of one setting train in order, so that a search for the first may end early.
    one_setting = len(plan.settings) == 1
    members = job.share(len(selection.reported))
    for indices, outputs in trained_runs(
        plan, selection.hyperparameters, keys, members, chunk_size, job
    ):
        selection.report(indices, outputs["units"], outputs["finite"], outputs["params"])
        if progress is not None:
            progress(int(np.sum(selection.reported)), len(members))
        if plan.selection.in_order and one_setting and np.isfinite(selection.best.score).all():
            selection.reported[members] = True  # Those after the winner are not needed.
            break
    shares = job.collected(selection.share(), drawn)
    return None if shares is None else written_executed(merged(shares, drawn, _structure(task)))


def read_executed(arrays: Arrays, task: Task) -> Executed:
    """Reads the outcome of runs on a task from the arrays of `written_executed`."""
    return merged([arrays], arrays, _structure(task))


def train_finally(
    plan: RunsPlan, *, randomness: HostRandomness, executions: int, chunk_size: int, job: Job
) -> Executed:
    """Runs the final training of each execution; it has no shards, and a single one no lanes."""
    alone = executions == 1
    ran = execute(
        plan,
        randomness=randomness,
        executions=executions,
        chunk_size=1 if alone else chunk_size,
        job=dataclasses.replace(job.of_one_run if alone else job, shard=None),
    )
    assert ran is not None  # Only a shard returns None.
    return ran


def winners(ran: Executed) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns which executions have a finite winner, and its hyperparameters, (executions,) each.

    The hyperparameters are nan where there is no winner.
    """
    best = ran.best
    found = (best.candidate >= 0) & np.isfinite(best.score)
    where = np.where(found, best.candidate, 0)
    return found, {
        name: np.where(found, np.append(values, np.nan)[where], np.nan)
        for name, values in sorted(ran.hyperparameters.items())
    }


def _structure(task: Task) -> Any:
    """Returns the pytree structure of a task's parameters."""
    return jax.tree.structure(jax.eval_shape(task.initial, jax.random.key(0)))


def draw_of(plan: RunsPlan, randomness: HostRandomness, executions: int) -> dict[str, np.ndarray]:
    """Draws K of every execution, and every candidate's hyperparameters, key and score noise."""
    drawn = draw(
        plan.selection,
        plan.problem.space,
        randomness,
        score_noise=plan.score_noise * plan.task.units,
        executions=executions,
    )
    total = len(drawn["noise"])
    keys = np.zeros((0, 2), np.uint32)
    if total:
        keys = np.asarray(jax.random.key_data(training.candidate_keys(total, seed=randomness.seed)))
    return drawn | {"keys": keys}


def facts_of(plan: RunsPlan, randomness: HostRandomness, executions: int) -> dict[str, Any]:
    """Returns all that a draw and the training from it depend on, by name, for JSON."""
    selection = plan.selection
    return {
        "number of executions": executions,
        "settings": [dataclasses.astuple(setting) for setting in plan.settings],
        "clipping": plan.problem.clipping.describe(),
        "search space": plan.problem.space.describe(),
        "selection": [selection.describe(), type(selection).__name__, selection.expected_runs],
        "score noise": plan.score_noise,
        "seed": randomness.seed,
    } | plan.problem.facts()
