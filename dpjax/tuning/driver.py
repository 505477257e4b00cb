"""The driver: answers what a tuner asks for, and keeps the answers in the job's folder.

The folder is the log of a tuner's answers. A tuner that ends is told them all once more, so a job
that has just finished, one that finished long ago, and one that was merged from shards return by
the same lines.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from dpjax.array_files import Arrays
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.tuning.asked import Asked, begun, checked_material
from dpjax.tuning.job import Job
from dpjax.tuning.private_runs import Plan
from dpjax.tuning.problem.inspection import clipping_facts
from dpjax.tuning.problem.problem import Material
from dpjax.tuning.steps import Chosen, Draw, How, Progress, Steps

# The driver's streams of a seeded `HostRandomness`. Requests use other numbers.
_STREAM_OF_LATER, _STREAM_OF_EXECUTIONS, _STREAM_OF_TOGETHER = 22, 23, 24

MOST_KINDS = 1 << 11
"""Most requests of one name, in an audit's executions, that cannot be answered together."""


class Asks(Protocol):
    """The part of a tuner that the driver reads."""

    def steps(self, plan: Any, material: Material) -> Steps:
        """Returns what it asks for, as a generator."""

    def statement(self, plan: Any, *, secret: bool) -> dict[str, Any]:
        """Returns the statement of a plan's release."""


def drive(
    tuner: Asks,
    plan: Plan,
    material: Material,
    *,
    randomness: HostRandomness,
    executions: int = 1,
    chunk_size: int = 16,
    progress: Progress | None = None,
    job: Job = Job(),  # noqa: B008 (immutable)
) -> list[Chosen] | None:
    """Answers a tuner, `executions` times independently; returns None for a shard.

    A release comes from one execution. Audits use many, which share compiled programs and device
    calls, nothing else.

    Formal guarantees:
      What a tuner draws is drawn before anything is trained, from the operating system's randomness
      or from the seed, for each execution by itself. Jobs that share a folder, and processes, share
      ONE draw and one answer to each request, which a job that is resumed reads again: nothing is
      drawn, chosen or selected twice. Requests that train share no key, of a seed neither. With the
      outcome decided, the draws that are not public are removed, with all that was made of them.
    """

    def answered(drawn: Arrays) -> Arrays | None:
        asked = [_Execution.of(tuner, plan, material, one) for one in range(executions)]
        return _answers(material, asked, drawn, randomness, chunk_size, progress, job)

    outcome = job.once(
        lambda: _facts(tuner, plan, material, randomness, executions),
        lambda: _draws(_Execution.of(tuner, plan, material, 0), randomness, executions),
        answered,
    )
    return None if outcome is None else _told(tuner, plan, material, outcome, executions)


def _facts(
    tuner: Asks, plan: Plan, material: Material, randomness: HostRandomness, executions: int
) -> dict[str, Any]:
    """Returns all that a draw, and the training from it, depend on, by name, for JSON."""
    claim = tuner.statement(plan, secret=randomness.secret)
    settings: tuple[Any, ...] = dataclasses.fields(tuner) if dataclasses.is_dataclass(tuner) else ()
    return (
        {field.name: getattr(tuner, field.name) for field in settings}
        | {
            "method": type(tuner).__name__,
            "selection": claim["selection"],
            "search space": claim["candidates_drawn_from"],
            "scores": claim["score"],
            "settings": claim["training"],
            "clipping": clipping_facts(plan.problem.clipping, material.task),
            "run options": {
                name: value for name, value in claim["run_options"].items() if name != "clipping"
            },
            "seed": randomness.seed,
            "number of executions": executions,
        }
        | material.facts
    )


def _of(randomness: HostRandomness, execution: int) -> HostRandomness:
    """Returns the randomness of one execution; that of a release is the first."""
    return randomness.fold_in(_STREAM_OF_EXECUTIONS, execution) if execution else randomness


def _draws(asked: _Execution, randomness: HostRandomness, executions: int) -> Arrays:
    """Answers a tuner's draws for all executions: name -> (executions, ...)."""
    arrays: Arrays = {}
    while isinstance(draw := asked.request, Draw):
        own = [draw.draw(_of(randomness, one)) for one in range(executions)]
        arrays[draw.name] = np.stack(own)
        asked.tell(own[0])
    return arrays


_EXECUTIONS = "executions"


@dataclasses.dataclass
class _Execution:
    """One execution: its tuner, and what it asks for now, or the `Chosen` that it ended with."""

    execution: int
    steps: Steps
    asked: Asked
    request: Any = None

    @classmethod
    def of(cls, tuner: Asks, plan: Any, material: Material, execution: int) -> _Execution:
        """Begins one, which then has its first request."""
        one = cls(execution, begun(tuner, plan, material), Asked(tuner, plan))
        one.tell(None)
        return one

    def tell(self, answer: Any) -> None:
        """Tells the tuner an answer, and notes what it asks for next."""
        self.request = self.asked.next(self.steps, answer)


def _answers(
    material: Material,
    asked: Sequence[_Execution],
    drawn: Arrays,
    randomness: HostRandomness,
    chunk_size: int,
    progress: Progress | None,
    job: Job,
) -> Arrays | None:
    """Answers the requests of all executions; returns the answers and the draws that stay.

    None where a shard's work ends.
    """
    kept: Arrays = {}
    bar = _Bar(progress)
    for one in asked:
        while isinstance(draw := one.request, Draw):
            if draw.public:
                kept[draw.name] = drawn[draw.name]
            one.tell(drawn[draw.name][one.execution])
    answered: dict[str, int] = {}  # By name, how many groups.
    trainings = 0
    while left := [one for one in asked if not isinstance(one.request, Chosen)]:
        first = left[0].request
        for group in _alike([one for one in left if one.request.name == first.name]):
            request = group[0].request
            checked_material(request, material)
            kind = answered.get(request.name, 0)
            each = [_of(randomness, one.execution) for one in group]
            together = each[0] if len(group) == 1 else each[0].fold_in(_STREAM_OF_TOGETHER, 0)
            arrays = request.answer(
                [one.request for one in group],
                How(
                    randomness=_apart(together, trainings),
                    each=each,
                    chunk_size=chunk_size,
                    progress=progress and bar.told,
                    job=job,
                    kind=kind,
                    drawn=drawn,
                ),
            )
            if arrays is None:
                return None
            members = np.array([one.execution for one in group])
            kept |= _named(f"{request.name}#{kind}", arrays | {_EXECUTIONS: members})
            answered[request.name] = kind + 1
            for one, answer in zip(group, request.read(arrays, material), strict=True):
                one.asked.pay(one.request, answer)
                one.tell(answer)
        trainings += first.trains
        # Only the first request is shared out; a merge works out what follows.
        job = dataclasses.replace(job, shard=None)
    bar.end()
    return kept


def _alike(waiting: list[_Execution]) -> list[list[_Execution]]:
    """Groups executions whose requests can be answered together."""
    if len(waiting) == 1:
        return [waiting]
    groups: dict[Any, list[_Execution]] = {}
    for one in waiting:
        groups.setdefault(one.request.alike(), []).append(one)
    if len(groups) > MOST_KINDS:
        raise ValueError(
            f"{len(waiting)} executions drew {len(groups)} different parts or partitions, each of "
            "which is computed by itself: pass a task of at most 10 training records, or fewer "
            "executions"
        )
    return list(groups.values())


def _apart(randomness: HostRandomness, trainings: int) -> HostRandomness:
    """Returns randomness for what trains after `trainings` others, with keys of its own."""
    if randomness.secret or not trainings:
        return randomness
    words = randomness.words(trainings, _STREAM_OF_LATER)
    return HostRandomness(int(words[-1] >> np.uint64(32)))


class _Bar:
    """A progress bar that ends full, although nobody reports the last training."""

    def __init__(self, progress: Progress | None):
        self._progress = progress
        self._last = 0, 0

    def told(self, done: int, total: int) -> None:
        """Hands a call on."""
        assert self._progress is not None  # Else nobody is handed this.
        self._last = done, total
        self._progress(done, total)

    def end(self) -> None:
        """Fills the bar, if it is not full."""
        done, total = self._last
        if done < total:
            self.told(total, total)


def _told(
    tuner: Asks, plan: Plan, material: Material, outcome: Arrays, executions: int
) -> list[Chosen]:
    """Tells every execution the answers of an outcome; returns what each of them returns."""
    read: dict[str, Sequence[Any]] = {}
    parts = [name.rpartition("/")[0] for name in outcome if name.endswith(f"/{_EXECUTIONS}")]
    where = {
        (part.rpartition("#")[0], execution): (part, place)
        for part in parts
        for place, execution in enumerate(outcome[f"{part}/{_EXECUTIONS}"].tolist())
    }
    ended = []
    for execution in range(executions):
        one = _Execution.of(tuner, plan, material, execution)
        while not isinstance(request := one.request, Chosen):
            if isinstance(request, Draw):
                answer = outcome[request.name][execution] if request.public else None
            else:
                part, place = where[request.name, execution]
                if part not in read:
                    read[part] = request.read(_within(outcome, part), material)
                answer = read[part][place]
            one.tell(answer)
        ended.append(request)
    return ended


def _named(part: str, arrays: Arrays) -> Arrays:
    """Prefixes the names of arrays with a part of an outcome, "part/"; `_within` undoes it."""
    return {f"{part}/{name}": array for name, array in arrays.items()}


def _within(outcome: Arrays, part: str) -> Arrays:
    """Returns the arrays of one part of an outcome, without the prefix that `_named` gave them."""
    found = (name for name in outcome if name.startswith(f"{part}/"))
    return {name.removeprefix(f"{part}/"): outcome[name] for name in found}
