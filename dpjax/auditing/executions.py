"""A tuner run many times over, independently, on records few enough to do so: what was released.

One execution of `tuning.tune` compiles its programs; ten thousand would take hours. Here all of
them share the compiled programs and the device calls, nothing else: K, parts, partitions,
candidates, keys and noise are drawn anew for each, by the code that draws them for a release. What
is made of these executions is for audits, never for publishing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import tempfile
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from dpjax import accounting, checks, training
from dpjax.randomness import keys as key_streams
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.training.optimizers import Optimizer
from dpjax.tuning.evaluations import (
    one_run,
    partition_models,
    private_runs,
    runs_on_a_part,
    staged_runs,
)
from dpjax.tuning.evaluations.candidate_runs import untrained
from dpjax.tuning.evaluations.one_run import OneRun
from dpjax.tuning.evaluations.partition_counts import partition_counts, partitioned
from dpjax.tuning.evaluations.partition_models import PartitionModels
from dpjax.tuning.evaluations.private_runs import PrivateRuns, Procedure
from dpjax.tuning.evaluations.runs_on_a_part import RunsOnAPart
from dpjax.tuning.evaluations.staged_runs import GivenSpace, StagedRuns
from dpjax.tuning.job import Job
from dpjax.tuning.problem.problem import Problem
from dpjax.tuning.problem.run_shape import RunOptions
from dpjax.tuning.problem.space import Space
from dpjax.tuning.problem.task import Task
from dpjax.tuning.scored_runs import Executed
from dpjax.tuning.tuner import Tuner

MOST_RECORDS = 10
"""Training records of a tuner that draws a part or partitions of them: each draw is one of so many
programs, and with few records many executions share one."""
_CHUNK = 1 << 16
_STREAM_OF_SEEDS, _STREAM_OF_CANDIDATES, _STREAM_OF_PARTITIONS, _STREAM_OF_SELECTION = (
    21,
    22,
    23,
    24,
)


@dataclasses.dataclass(frozen=True)
class Released:
    """The releases of many independent executions; for audits only.

    Example:
      >>> from dpjax import auditing, pareto
      >>> canary = auditing.CANARIES["gradient"]
      >>> cost = pareto.TrainingCost(pareto.RunShapes(4, "poisson"))
      >>> run = {"epochs": 1, "lot_size": 4, "noise_multiplier": 2.0}
      >>> found = auditing.searched_run_executions(
      ...     canary.task(True, 4),
      ...     cost,
      ...     run | {"clip_norm": 1.0, "learning_rate": 1.0},
      ...     canary.optimizer,
      ...     100,
      ... )
      >>> found.params.shape, found.hyperparameters["learning_rate"].shape, found.table.shape
      ((100,), (100,), (100, 6))

    Attributes:
      params: pytree of arrays (executions, ...); untrained ones where nothing could be chosen.
      hyperparameters: name -> (executions,) float64; nan where nothing could be chosen.
      guarantee: what each of them states.
    """

    params: Any
    hyperparameters: Mapping[str, np.ndarray]
    guarantee: accounting.Guarantee

    @property
    def table(self) -> np.ndarray:
        """All numbers of a release side by side, (executions, numbers) float64; nan as it is."""
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
      task: with few records: at most 10 training records where a part or partitions are drawn.
      space, epsilon, delta, run, optimizer, validation_is_public: as of `tuning.tune`.
      number: of executions.
      shards: a tuner of private runs is shared out among so many jobs in one folder, each stopped
        once, gone on with, and then merged, as by `tuning.Job(folder=, shard=)`: its draw, files,
        checkpoint and merge are those of a release. None: one process, no folder.
      seed: None for the operating system's randomness, as users run it.

    Raises:
      ValueError: with one line naming what to pass instead.
    """
    number = _checked(tuner, task, space, number)
    problem = Problem.of(task, space, run, optimizer, epsilon, delta, validation_is_public)
    if shards is not None:
        if not isinstance(tuner.evaluation, PrivateRuns):
            raise ValueError(
                f"{type(tuner).__name__} cannot be shared out: drop shards, or pass a tuner of "
                "private runs, such as RandomRepetitions()"
            )
        procedure = tuner.evaluation.planned(problem, tuner.choice)
        return _by_shards(procedure, number, HostRandomness(seed), checks.whole("shards", shards))
    return many(tuner.evaluation, problem, tuner.choice, number, HostRandomness(seed))


def _checked(tuner: Tuner, task: Task, space: Space, number: int) -> int:
    """The number of executions; refuses what is no tuner, no task or no space."""
    checks.instance("task", task, Task, "tuning.classification(model, train, validation)")
    checks.instance("space", space, Space, "tuning.Space(learning_rate=1.0, clip_norm=1.0)")
    number = checks.whole("number", number)
    if getattr(tuner, "evaluation", None) is None or isinstance(tuner, type):
        shown = checks.shown(tuner)
        raise ValueError(f"tuner must be a tuner, such as RandomRepetitions(), not {shown}")
    if "clip_norm" not in space.parameters:
        raise ValueError(
            "the space has no clip_norm, and how much a record is seen hangs on it: pass "
            "Space(..., clip_norm=1.0)"
        )
    return number


class _Stopped(Exception):
    """An interruption of a job."""


def _by_shards(
    procedure: Procedure, number: int, randomness: HostRandomness, shards: int
) -> Released:
    """`executions` of private runs by several jobs, each stopped once."""

    def job(share: int | None, folder: str, stop: bool = False) -> Executed | None:
        calls = []

        def progress(done: int, total: int) -> None:
            calls.append(done)
            if stop and len(calls) == 2:  # Something was trained, and a checkpoint written.
                raise _Stopped

        # A checkpoint after every chunk until the stop; each takes a while.
        how = Job(folder=folder, shard=(share, shards), checkpoint_seconds=0.0 if stop else 1e9)
        return private_runs.execute(
            procedure,
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
        ran = job(None, folder)
    assert ran is not None  # It merged.
    return _of_winners(procedure.task, ran, procedure.guarantee)


@functools.singledispatch
def many(
    evaluation: Any,
    problem: Problem,
    choice: Any,
    number: int,
    randomness: HostRandomness,
) -> Released:
    """`executions` of one kind of evaluation; a new kind registers its own.

    Raises:
      ValueError: for an evaluation that has none.
    """
    raise ValueError(
        f"{type(evaluation).__name__} cannot be run many times at once: register a function of it "
        "with dpjax.auditing.executions.many"
    )


@many.register
def _(
    evaluation: PrivateRuns,
    problem: Problem,
    choice: Any,
    number: int,
    randomness: HostRandomness,
) -> Released:
    procedure = evaluation.planned(problem, choice)
    ran = private_runs.execute(
        procedure, randomness=randomness, executions=number, chunk_size=_CHUNK
    )
    assert ran is not None  # It is no shard's.
    return _of_winners(procedure.task, ran, procedure.guarantee)


@many.register
def _(
    evaluation: OneRun,
    problem: Problem,
    choice: Any,
    number: int,
    randomness: HostRandomness,
) -> Released:
    fixed = one_run.planned(problem)
    ran = private_runs.execute(fixed, randomness=randomness, executions=number, chunk_size=_CHUNK)
    assert ran is not None
    return _of_winners(fixed.task, ran, fixed.guarantee)


@many.register
def _(
    evaluation: StagedRuns,
    problem: Problem,
    choice: Any,
    number: int,
    randomness: HostRandomness,
) -> Released:
    fixed = staged_runs.plan(problem, evaluation, choice)
    ran = staged_runs.executed(fixed, randomness=randomness, executions=number, chunk_size=_CHUNK)
    # What was extrapolated is released even where the final training is not finite.
    final = _of_winners(fixed.task, ran.final, fixed.guarantee)
    return dataclasses.replace(final, hyperparameters=dict(ran.chosen))


@many.register
def _(
    evaluation: RunsOnAPart,
    problem: Problem,
    choice: Any,
    number: int,
    randomness: HostRandomness,
) -> Released:
    fixed = runs_on_a_part.plan(problem, evaluation, choice)
    task, records = fixed.task, _few(fixed.task)
    parts = runs_on_a_part.drawn_part(number * records, fixed.probability, randomness)
    whole = _Assembled(task, fixed.space, number)
    for kind, (in_part, members) in enumerate(_kinds(parts.reshape(number, records))):
        searched = private_runs.execute(
            fixed.search(in_part),
            randomness=randomness.apart(_STREAM_OF_SEEDS, 2 * kind),
            executions=len(members),
            chunk_size=_CHUNK,
        )
        assert searched is not None
        chosen = staged_runs.winners(searched)
        found = np.isfinite(next(iter(chosen.values())))
        first = (
            {name: float(values[found][0]) for name, values in chosen.items()} if any(found) else {}
        )
        if first:
            final = fixed.final_training(in_part, first)
            _train(
                whole,
                final,
                members[found],
                chosen,
                found,
                randomness.apart(_STREAM_OF_SEEDS, 2 * kind + 1),
            )
    return whole.released(fixed.guarantee)


@many.register
def _(
    evaluation: PartitionModels,
    problem: Problem,
    choice: Any,
    number: int,
    randomness: HostRandomness,
) -> Released:
    fixed = partition_models.plan(problem, evaluation, choice)
    task = fixed.task
    _few(task)
    partitions, candidates = fixed.utility.partitions, fixed.number
    words = randomness.words(4 * number, _STREAM_OF_PARTITIONS).reshape(number, 4)
    drawn = [partitioned(task.train, partitions, key.tobytes()) for key in words]
    whole = _Assembled(task, fixed.space, number)
    # Partitions of the same records, in the same order, are one program's data.
    looks = np.stack(
        [
            np.concatenate([one.sizes, *(np.ravel(leaf) for leaf in jax.tree.leaves(one.arrays))])
            for one in drawn
        ]
    )
    below = randomness.uniform_integers(_STREAM_OF_SELECTION)
    for kind, (_, members) in enumerate(_kinds(looks)):
        source = randomness.apart(_STREAM_OF_SEEDS, 2 * kind)
        total = len(members) * candidates
        if fixed.listed is None:
            given = fixed.space.sample(total, source.generator(_STREAM_OF_CANDIDATES))
        else:
            given = {
                name: np.tile([float(one[name]) for one in fixed.listed], len(members))
                for name in fixed.space.parameters
            }
        models = training.candidate_keys(total * partitions, seed=source.seed)
        words_of_keys = np.asarray(jax.random.key_data(models))
        counts = partition_counts(
            task,
            drawn[members[0]],
            fixed.lots,
            fixed.setting.steps,
            given,
            jax.random.wrap_key_data(words_of_keys, impl=key_streams.IMPLEMENTATION),
            optimizer=fixed.problem.inspected.optimizer,
            clipping=fixed.problem.run.clipping,
            chunk_size=_CHUNK,
            job=Job(),
        )
        assert counts is not None
        winners = np.array(
            [
                candidates * place
                + fixed.choice.select(fixed.utility.total(of_one), fixed.utility, below)[0]
                for place, of_one in enumerate(counts.reshape(-1, candidates, partitions))
            ]
        )
        chosen = {name: values[winners] for name, values in given.items()}
        first = {name: float(values[0]) for name, values in chosen.items()}
        final = partition_models.final_procedure(fixed, first)
        every = np.ones(len(members), bool)
        _train(
            whole, final, members, chosen, every, randomness.apart(_STREAM_OF_SEEDS, 2 * kind + 1)
        )
    return whole.released(fixed.guarantee)


class _Assembled:
    """Releases that come in by the kind of their part or partitions."""

    def __init__(self, task: Task, space: Space, number: int):
        self._task = task
        self._found = np.zeros(number, bool)
        self._chosen = {name: np.full(number, np.nan) for name in space.parameters}
        self._params = jax.tree.map(
            lambda leaf: np.zeros((number, *np.shape(leaf)), np.asarray(leaf).dtype),
            untrained(task),
        )

    def add(self, members: np.ndarray, chosen: Mapping[str, np.ndarray], ran: Executed) -> None:
        """Puts in what some executions ended in."""
        self._found[members] = np.isfinite(ran.best.score)
        for name, values in chosen.items():
            self._chosen[name][members] = values
        for kept, new in zip(jax.tree.leaves(self._params), jax.tree.leaves(ran.best.outputs)):
            kept[members] = new

    def released(self, guarantee: accounting.Guarantee | None) -> Released:
        """All of them."""
        return released(self._task, self._params, self._chosen, self._found, guarantee)


def _train(
    whole: _Assembled,
    final: Procedure,
    members: np.ndarray,
    chosen: Mapping[str, np.ndarray],
    found: np.ndarray,
    randomness: HostRandomness,
) -> None:
    """The final training of each execution's own choice, in one go."""
    own = {name: values[found] for name, values in chosen.items()}
    space = GivenSpace(final.problem.space, own)
    ran = private_runs.execute(
        dataclasses.replace(final, problem=dataclasses.replace(final.problem, space=space)),
        randomness=randomness,
        executions=len(members),
        chunk_size=_CHUNK,
    )
    assert ran is not None
    whole.add(members, own, ran)


def _of_winners(task: Task, ran: Executed, guarantee: accounting.Guarantee | None) -> Released:
    found = (ran.best.candidate >= 0) & np.isfinite(ran.best.score)
    return released(task, ran.best.outputs, staged_runs.winners(ran), found, guarantee)


def released(
    task: Task,
    params: Any,
    chosen: Mapping[str, np.ndarray],
    found: np.ndarray,
    guarantee: accounting.Guarantee | None,
) -> Released:
    """What each execution publishes: untrained parameters where it has no winner."""
    if guarantee is None:
        raise ValueError("a tuning that is not private claims nothing: drop not_private")
    default = untrained(task)
    if params is None:  # No execution had a candidate.
        params = jax.tree.map(lambda leaf: np.zeros((len(found), *np.shape(leaf))), default)

    def one(leaf: Any, start: Any) -> np.ndarray:
        there = found.reshape(-1, *([1] * np.ndim(start)))
        return np.where(there, np.asarray(leaf), np.asarray(start))

    kept = {name: np.where(found, values, np.nan) for name, values in chosen.items()}
    return Released(jax.tree.map(one, params, default), kept, guarantee)


def _few(task: Task) -> int:
    records = task.train.number
    if records > MOST_RECORDS:
        raise ValueError(
            f"the task has {records} training records: pass at most {MOST_RECORDS} to a tuner that "
            "draws a part or partitions of them"
        )
    return records


def _kinds(rows: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """The different rows, and the places where each stands."""
    different, kind = np.unique(rows, axis=0, return_inverse=True)
    return [(row, np.flatnonzero(kind.ravel() == i)) for i, row in enumerate(different)]
