"""Runs a tuner many times independently on a few records, and returns all releases.

One execution of `tuning.tune` compiles its programs; ten thousand would take hours. Here all of
them share the compiled programs and the device calls, nothing else: K, parts, partitions,
candidates, keys and noise are drawn anew for each, by the code that draws them for a release. The
results are for audits, never for publishing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from dpjax import accounting, checks
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.training.optimizers import Optimizer
from dpjax.tuning.driver import drive
from dpjax.tuning.job import Job
from dpjax.tuning.private_runs import Plan
from dpjax.tuning.problem.problem import Material, Problem, RunOptions
from dpjax.tuning.problem.space import Space
from dpjax.tuning.problem.task import Task
from dpjax.tuning.runner import untrained
from dpjax.tuning.steps import Chosen
from dpjax.tuning.tuner import Tuner, check_tuner
from dpjax.tuning.tuners.random_repetitions import PrivateRuns

_CHUNK = 1 << 16


@dataclasses.dataclass(frozen=True)
class Released:
    """The releases of many independent executions; for audits only.

    Example:
      >>> from dpjax import auditing, tuning
      >>> canary = auditing.CANARIES["gradient"]
      >>> found = auditing.executions(
      ...     tuning.Untuned(),
      ...     canary.task(True, 4),
      ...     tuning.Space(learning_rate=1.0, clip_norm=1.0),
      ...     100,
      ...     delta=0.02,
      ...     run=tuning.RunOptions(lot_size=4, steps=1, noise_multiplier=2.0),
      ...     optimizer=canary.optimizer,
      ... )
      >>> found.params.shape, found.hyperparameters["learning_rate"].shape, found.table.shape
      ((100,), (100,), (100, 3))

    Attributes:
      params: pytree of arrays (executions, ...); untrained ones if nothing could be chosen.
      hyperparameters: name -> (executions,) float64; nan if nothing could be chosen.
      guarantee: the guarantee that each of them states.
    """

    params: Any
    hyperparameters: Mapping[str, np.ndarray]
    guarantee: accounting.Guarantee

    @property
    def table(self) -> np.ndarray:
        """Returns all numbers of each release side by side, (executions, numbers) float64."""
        columns = [np.reshape(leaf, (len(leaf), -1)) for leaf in jax.tree.leaves(self.params)]
        columns += [self.hyperparameters[name][:, None] for name in sorted(self.hyperparameters)]
        return np.concatenate([np.asarray(column, np.float64) for column in columns], axis=1)


def executions(
    tuner: Tuner,
    task: Task,
    space: Space,
    number: int,
    *,
    epsilon: float | None = None,
    delta: float = 1e-5,
    run: RunOptions = RunOptions(),  # noqa: B008 (immutable)
    optimizer: Optimizer | None = None,
    validation_is_public: bool = False,
    shards: int | None = None,
    seed: int | None = None,
) -> Released:
    """Runs a tuner `number` times, each run independent of the others.

    Formal guarantees:
      Each execution has the law of what `tuning.tune` releases with the same arguments: plan,
      draws, training, scores, choice and finish are the same functions, and nothing of one is used
      in another. Together they have no guarantee at all: what they say of a record adds up.

    Example:
      >>> from dpjax import auditing, tuning
      >>> canary = auditing.CANARIES["gradient"]
      >>> found = auditing.executions(
      ...     tuning.Untuned(),
      ...     canary.task(True),  # With the canary.
      ...     tuning.Space(learning_rate=1.0, clip_norm=1.0),
      ...     500,
      ...     delta=0.02,
      ...     run=tuning.RunOptions(lot_size=8, steps=1, noise_multiplier=2.0),
      ...     optimizer=canary.optimizer,
      ... )
      >>> canary.numbers(found).shape
      (500,)

    Args:
      tuner: such as `RandomRepetitions(accounting.Geometric(20))`.
      task: with few records: at most 10 training records if a part or partitions are drawn.
      space, epsilon, delta, run, optimizer, validation_is_public: as in `tuning.tune`.
      number: number of executions.
      shards: divides a tuner of private runs among so many jobs in one folder; each is stopped and
        resumed once, then all are merged, as by `tuning.Job(folder=, shard=)`, so that draw, files,
        checkpoint and merge are those of a release. None: one process, no folder.
      seed: None for the operating system's randomness, as users run it.
    """
    number = _checked(tuner, task, space, number)
    problem = Problem.of(task, space, run, optimizer, epsilon, delta, validation_is_public)
    material = Material.of(task, space, optimizer, run.compute_dtype)
    material.check()
    plan, randomness = tuner.plan(problem), HostRandomness(seed)
    if plan.guarantee is None:
        raise ValueError("a tuning that is not private claims nothing: drop not_private")
    if shards is None:
        found = drive(
            tuner, plan, material, randomness=randomness, executions=number, chunk_size=_CHUNK
        )
    elif isinstance(tuner, PrivateRuns):
        shards = checks.whole("shards", shards)
        found = _by_shards(tuner, plan, material, number, randomness, shards)
    else:
        raise ValueError(
            f"{type(tuner).__name__} cannot be shared out: drop shards, or pass a tuner of private "
            "runs, such as RandomRepetitions()"
        )
    assert found is not None  # Only a shard returns None.
    names = space.parameters
    chosen = {
        name: np.array([(one.hyperparameters or {}).get(name, np.nan) for one in found])
        for name in sorted(names)
    }
    default = untrained(task)
    params = jax.tree.map(
        lambda *leaves: np.stack(leaves),
        *(default if one.params is None else one.params for one in found),
    )
    return Released(params, chosen, plan.guarantee)


def _checked(tuner: Tuner, task: Task, space: Space, number: int) -> int:
    """Returns the number of executions; refuses anything but a tuner, a task and a space."""
    checks.instance("task", task, Task, "tuning.classification(model, train, validation)")
    checks.instance("space", space, Space, "tuning.Space(learning_rate=1.0, clip_norm=1.0)")
    number = checks.whole("number", number)
    check_tuner(tuner)
    if "clip_norm" not in space.parameters:
        raise ValueError(
            "the space has no clip_norm, on which depends how well a record shows: pass "
            "Space(..., clip_norm=1.0)"
        )
    return number


class _Stopped(Exception):
    """Stands for the interruption of a job."""


def _by_shards(
    tuner: Tuner,
    plan: Plan,
    material: Material,
    number: int,
    randomness: HostRandomness,
    shards: int,
) -> list[Chosen] | None:
    """Runs the executions as several shards of a job, each stopped once and resumed."""

    def job(share: int | None, folder: str, stop: bool = False) -> list[Chosen] | None:
        calls = []

        def progress(done: int, total: int) -> None:
            calls.append(done)
            if stop and len(calls) == 2:  # By now a chunk is trained and a checkpoint written.
                raise _Stopped

        # A checkpoint after every chunk until the stop, then none: each takes a while.
        how = Job(folder=folder, shard=(share, shards), checkpoint_seconds=0.0 if stop else 1e9)
        return drive(
            tuner,
            plan,
            material,
            randomness=randomness,
            executions=number,
            chunk_size=_CHUNK,
            progress=progress,
            job=how,
        )

    with tempfile.TemporaryDirectory() as folder:
        for share in range(shards):
            with contextlib.suppress(_Stopped):
                job(share, folder, stop=True)
            job(share, folder)
        return job(None, folder)
