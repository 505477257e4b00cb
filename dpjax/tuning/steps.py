"""What a tuner asks for, step by step, and what it is answered; `driver` sees to the answers.

A tuner's `steps` is a generator. It yields requests, and each `yield` returns the answer to one. It
holds no file, no key, no share of the candidates and no second execution. The same answers lead to
the same requests, so a job that is resumed, or asked once more, is answered from its folder.

A tuner of your own imports `Tuner` or `PrivateRuns` from `dpjax.tuning`, and from here what it asks
for: `docs/howto/own_tuner.md` has a whole one.
"""

from __future__ import annotations

import abc
import dataclasses
import json
import os
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from dpjax import private_files
from dpjax.array_files import Arrays, fingerprint
from dpjax.checks import Refused
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.releases.curator import CuratorRecord
from dpjax.training.sweep import hosts
from dpjax.tuning.job import CHOICE, Job, bound, read_bound
from dpjax.tuning.private_runs import (
    Plan,
    RunsPlan,
    execute,
    final_run,
    plan_runs,
    read_executed,
    train_finally,
)
from dpjax.tuning.problem.problem import Material, Problem
from dpjax.tuning.problem.run_settings import RunSetting
from dpjax.tuning.selection import BestOf, BestOfRuns, Executed, written_executed

__all__ = [
    "BestOf",
    "Choose",
    "Chosen",
    "Draw",
    "Material",
    "Plan",
    "Problem",
    "Ran",
    "Refused",
    "RunsPlan",
    "Select",
    "Train",
    "plan_runs",
    "record",
]

PyTree = Any
Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class How:
    """The randomness that a request is answered with, and where and how it is worked out.

    Attributes:
      randomness: of what is computed for all executions together.
      each: the randomness of each execution by itself.
      chunk_size: the most models trained at once.
      progress: called with (models done, models in all), or None.
      job: whose folder the answer may be worked out in.
      kind: tells requests of one name apart that are answered one after another.
      drawn: the folder's draw, which its files are bound to.
    """

    randomness: HostRandomness
    each: Sequence[HostRandomness]
    chunk_size: int
    progress: Progress | None
    job: Job
    kind: int
    drawn: Arrays

    def folder_of(self, name: str) -> Job:
        """Returns the job with a folder of this request's own, for a draw of its own."""
        return self.job.inner(f"{name}{self.kind or ''}")


class Request(abc.ABC):
    """What a tuner yields after its draws; the names of a tuner's requests differ."""

    name: str
    trains: ClassVar[bool] = False
    """Whether it makes keys from the randomness, which no other request may then use."""

    @abc.abstractmethod
    def alike(self) -> Hashable:
        """Returns what requests that can be answered together have in common."""

    @abc.abstractmethod
    def answer(self, asked: Sequence[Any], how: How) -> Arrays | None:
        """Answers requests that are alike, one per execution; None where a shard's work ends.

        The arrays are what a folder keeps. They go to nobody but the curator.
        """

    @abc.abstractmethod
    def read(self, arrays: Arrays, material: Material) -> Sequence[Any]:
        """Reads the answer of each execution from the arrays of `answer`."""


@dataclasses.dataclass(frozen=True)
class Draw:
    """Asks for secret host randomness; before any other request. Answered by its array.

    Once the outcome is decided the array is removed, and then the answer is None: use it inside the
    functions of later requests only, never beside them. One that is `public` stays.
    """

    name: str
    draw: Callable[[HostRandomness], np.ndarray]
    public: bool = False


@dataclasses.dataclass(frozen=True)
class Ran:
    """One execution's private runs: the winner, None where there is none, and all of them.

    `executed` is for the curator. Of it, steps may decide by `executed.best.score[0]` (the winner's
    noisy score, in records; -inf where there is none) and by `executed.scores` (those of all runs)
    if the plan's guarantee charges all of them. `executed.units` is exact and decides nothing.
    """

    params: PyTree
    hyperparameters: Mapping[str, float] | None
    executed: Executed


@dataclasses.dataclass(frozen=True)
class Select(Request):
    """Asks for one execution of a plan's private runs. Answered by a `Ran`.

    `material` gives what they are trained on: a function, for it may depend on a secret draw.
    """

    name: str
    plan: RunsPlan
    material: Callable[[], Material]
    trains = True

    def alike(self) -> Hashable:
        """See `Request`: they train on the same records, by the same settings."""
        arrays = self.material().task.train.arrays
        return fingerprint(arrays), self.plan.settings, self.plan.score_noise

    def answer(self, asked: Sequence[Select], how: How) -> Arrays | None:
        ran = execute(
            self.plan,
            self.material(),
            randomness=how.randomness,
            executions=len(asked),
            chunk_size=how.chunk_size,
            progress=how.progress,
            job=how.folder_of(self.name),
        )
        return None if ran is None else written_executed(ran)

    def read(self, arrays: Arrays, material: Material) -> list[Ran]:
        return one_by_one(read_executed(arrays, material.task))


@dataclasses.dataclass(frozen=True)
class Train(Request):
    """Asks for one private run of `setting` with these hyperparameters. Answered by a `Ran`.

    `plan` gives what a run costs, `material` what it is trained on, as in `Select`. The run has no
    noisy score, so its `Ran` has NaN, and -inf where it may not be released.
    """

    name: str
    plan: Plan
    material: Callable[[], Material]
    setting: RunSetting
    hyperparameters: Mapping[str, float]
    trains = True

    def alike(self) -> Hashable:
        """See `Request`: they train on the same records, by the same setting."""
        return fingerprint(self.material().task.train.arrays), self.setting

    def answer(self, asked: Sequence[Train], how: How) -> Arrays | None:
        chosen = {
            name: np.array([one.hyperparameters[name] for one in asked], np.float64)
            for name in self.hyperparameters
        }
        ran = train_finally(
            final_run(self.plan, self.setting, chosen),
            self.material(),
            randomness=how.randomness,
            executions=len(asked),
            chunk_size=how.chunk_size,
            job=how.folder_of(self.name),
        )
        return written_executed(ran)

    def read(self, arrays: Arrays, material: Material) -> list[Ran]:
        every = one_by_one(read_executed(arrays, material.task))
        for ran in every:
            # These scores have no noise, and no guarantee pays for them: hide them.
            for scores in (ran.executed.scores, ran.executed.best.score):
                scores[np.isfinite(scores)] = np.nan
        return every


@dataclasses.dataclass(frozen=True)
class Choose(Request):
    """Asks for a choice by secret host randomness. Answered by what it returns, data for JSON.

    It is made once, for all processes and for a job that is resumed: a folder keeps it until the
    outcome is decided.
    """

    name: str
    choose: Callable[[HostRandomness], Any]

    def alike(self) -> Hashable:
        """See `Request`: all are."""
        return ()

    def answer(self, asked: Sequence[Choose], how: How) -> Arrays | None:
        payload = None
        if jax.process_index() == 0:
            folder = how.job.folder
            path = folder and os.path.join(folder, f"{CHOICE}{self.name}{how.kind or ''}.npz")
            if path is not None and os.path.lexists(path):
                kept = read_bound(path, how.drawn, f"remove {folder} and begin anew")
                payload = kept["choice"].tobytes()
            else:
                made = [one.choose(own) for one, own in zip(asked, how.each, strict=True)]
                payload = json.dumps(made).encode()
                if path is not None:
                    arrays = {"choice": np.frombuffer(payload, np.uint8)}
                    private_files.write_once(path, bound(arrays, how.drawn))
        return {"choice": np.frombuffer(hosts.bytes_from_one(payload), np.uint8)}

    def read(self, arrays: Arrays, material: Material) -> Sequence[Any]:
        return json.loads(arrays["choice"].tobytes())


@dataclasses.dataclass(frozen=True)
class Chosen:
    """What a tuner's steps return: what it releases, and the record of the curator.

    Attributes:
      params: the model; None where none may be released, and an untrained one stands in for it.
      hyperparameters: the model's, name -> number; None where nothing was chosen.
      record: everything else, for the curator.
      plan: the tuner's, with the public numbers that were drawn; None where none were.
    """

    params: PyTree
    hyperparameters: Mapping[str, float] | None
    record: CuratorRecord
    plan: Plan | None = None


Steps = Generator[Draw | Request, Any, Chosen]


def record(
    material: Material, runs: Sequence[Ran], winner: int = -1, **details: Any
) -> CuratorRecord:
    """Returns the curator's record of an execution's scored runs, given in their order.

    Args:
      material: whose task has the scored records.
      runs: answers of `Select`.
      winner: the index of the answer whose winner is released, or whose choice is trained.
      details: for JSON, by name.
    """
    task, every = material.task, [one.executed for one in runs]
    first = np.cumsum([0, *(one.counts[0] for one in every)])
    own = int(every[winner].best.candidate[0])
    units = np.concatenate([one.units for one in every])
    return CuratorRecord(
        number_of_candidates=int(first[-1]),
        winner=own if own < 0 else own + int(first[range(len(every))[winner]]),
        hyperparameters={
            name: np.concatenate([one.hyperparameters[name] for one in every])
            for name in every[0].hyperparameters
        },
        scores=np.concatenate([one.scores for one in every]) / task.validation.public_size,
        accuracies=units / (task.units * max(task.validation.number, 1)),
        seconds=0.0,
        details=details,
    )


def one_by_one(ran: Executed) -> list[Ran]:
    """Divides runs by execution."""
    ends = np.cumsum(ran.counts)
    return [_ran(ran, place, last) for place, last in enumerate(ends.tolist())]


def _ran(ran: Executed, place: int, last: int) -> Ran:
    """Returns one execution, whose runs end before `last`."""
    runs = slice(last - int(ran.counts[place]), last)
    best = BestOfRuns(1)
    winner, score = int(ran.best.candidate[place]), float(ran.best.score[place])
    best.score[0], best.candidate[0] = score, winner - runs.start if winner >= 0 else -1
    own = {name: values[runs] for name, values in ran.hyperparameters.items()}
    alone = Executed(best, ran.counts[[place]], own, ran.units[runs], ran.scores[runs])
    if winner < 0 or not np.isfinite(score):
        return Ran(None, None, alone)
    chosen = {name: float(own[name][best.candidate[0]]) for name in sorted(own)}
    return Ran(ran.best.output(place), chosen, alone)
