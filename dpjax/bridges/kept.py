"""What a selection keeps in a job's folder: its draw, what ended candidates gave, what came out."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import os
import types
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from dpjax import checks, private_files
from dpjax.bridges.model_files import Files, ModelFile
from dpjax.bridges.procedure import Procedure
from dpjax.tuning.curator import fingerprint
from dpjax.tuning.job import DRAW, IDENTITY, Arrays, Job, bound, read_bound

NUMBER, NOISE, SEEDS = "number", "noise", "seeds"
"""Arrays of a draw, beside the candidates' hyperparameters."""

_UNTIL_CONSUMED = (SEEDS, NOISE, DRAW, IDENTITY)
"""Those of a folder's draw that are not kept once it is consumed."""

_COUNTS, _SCORES, _REMARKS = "counts", "scores", "remarks"
_HYPERPARAMETER, _FILE, _NO_COUNT = "hyperparameter_", "file_", -1


@runtime_checkable
class DescribesItself(Protocol):
    """A run that knows what it depends on beside the code of its own class."""

    def facts(self) -> list[Any]:
        """Returns JSON-able data, the same in every process."""


@dataclasses.dataclass(frozen=True)
class Ended:
    """What one candidate's run gave, for the curator; fields as in `Outcome`.

    `files` are its model's, None where an earlier candidate was better when it ended.
    """

    count: int | None
    score: float
    remark: str | None
    files: Files | None


def checked_job(job: Job | None) -> Job:
    """Returns the job; refuses more than a folder and a label, since dpjax places no such run."""
    if job is None:
        return Job()
    checks.instance("job", job, Job, "tuning.Job(folder='work')")
    if job != Job(folder=job.folder, label=job.label):
        raise ValueError(
            "runs here are the caller's to place, and a job keeps what they gave: pass "
            "job=tuning.Job(folder='work') with folder and label alone, and executor for a pool"
        )
    if job.folder is not None and jax.process_count() > 1:
        raise ValueError("one process selects: call bridges.tune in one, with executor for others")
    return job


class Kept:
    """One selection's part of a job's folder; without a folder nothing is kept.

    Formal guarantees:
      K, candidates, seeds and noise are drawn once (`Job.once`): what a folder holds is read and
      never drawn anew. What a candidate gave is written whole or not at all, as it ends, failures
      too, and is never run again; a file of another draw is refused. Once all have ended the draw
      is consumed: seeds and noise are removed, and the same arguments find what came out.
    """

    def __init__(self, job: Job, drawn: Arrays):
        self._job, self.drawn = job, drawn

    @property
    def hyperparameters(self) -> dict[str, np.ndarray]:
        """Returns those of all candidates, name -> (K,) float64."""
        found = (name for name in self.drawn if name.startswith(_HYPERPARAMETER))
        return {name.removeprefix(_HYPERPARAMETER): self.drawn[name] for name in found}

    def ended(self) -> Iterator[tuple[int, Ended]]:
        """Yields what earlier processes left, by candidate."""
        if self._job.folder is None:
            return
        for index in range(int(self.drawn[NUMBER])):
            if _COUNTS in self.drawn:
                yield index, _read(self.drawn, index)
            elif os.path.lexists(path := self._path(index)):
                mend = "remove it, and its candidate runs again with the seed it has"
                yield index, _read(read_bound(path, self.drawn, mend), 0)

    def keep(self, index: int, ended: Ended) -> None:
        """Writes what one candidate gave, with its model where it is the best so far."""
        if self._job.folder is not None:
            payload = bound(_written([ended]), self.drawn)
            private_files.write_once(self._path(index), payload)

    def consumed(self, all_ended: list[Ended]) -> Arrays:
        """Returns what replaces the draw: what all candidates gave, with the winner's files."""
        kept = {name: self.drawn[name] for name in self.drawn if name not in _UNTIL_CONSUMED}
        return kept | _written(all_ended)

    def _path(self, index: int) -> str:
        assert self._job.folder is not None
        return os.path.join(self._job.folder, f"ended_{index}.npz")


def named(hyperparameters: Mapping[str, np.ndarray]) -> Arrays:
    """Returns a draw's hyperparameters as arrays of its file."""
    return {f"{_HYPERPARAMETER}{name}": values for name, values in hyperparameters.items()}


def _written(several: list[Ended]) -> Arrays:
    """Returns candidates in order as arrays, with the files of one of them at most."""
    counts = [_NO_COUNT if one.count is None else one.count for one in several]
    arrays: Arrays = {
        _COUNTS: np.array(counts, np.int64),
        _SCORES: np.array([one.score for one in several], np.float64),
        _REMARKS: np.frombuffer(json.dumps([one.remark for one in several]).encode(), np.uint8),
    }
    for place, one in enumerate(several):
        if one.files is not None:
            arrays["owner"] = np.array(place)
            for name, content in one.files.items():
                arrays[f"{_FILE}{name}"] = np.frombuffer(content, np.uint8)
    return arrays


def _read(arrays: Arrays, place: int) -> Ended:
    """Reads one of the candidates that `_written` wrote."""
    count = int(arrays[_COUNTS][place])
    files = None
    if "owner" in arrays and int(arrays["owner"]) == place:
        found = (name for name in arrays if name.startswith(_FILE))
        files = {name.removeprefix(_FILE): arrays[name].tobytes() for name in found}
    return Ended(
        count=None if count == _NO_COUNT else count,
        score=float(arrays[_SCORES][place]),
        remark=json.loads(arrays[_REMARKS].tobytes())[place],
        files=files,
    )


def facts(
    procedure: Procedure, *, run: Any, default: Any, model_file: ModelFile, seed: int | None
) -> dict[str, Any]:
    """Returns what a draw and its runs depend on, by the names of the arguments."""
    score, leaves = procedure.score, jax.tree.leaves(default)
    return {
        "space": procedure.candidates.describe(),
        "base": procedure.base.provenance,
        "score": [score.records, score.public_size, score.noise],
        "repetitions": procedure.choice.describe(),
        "delta": procedure.delta,
        "model": procedure.model,
        "seed": seed,
        "ledger": procedure.ledger and procedure.ledger.seen.fingerprint,
        "run": run.facts() if isinstance(run, DescribesItself) else code(run),
        "default": fingerprint(default) if _are_numbers(leaves) else type(default).__qualname__,
        "model_file": model_file.name,
        "save_model": code(model_file.save),
    }


def _are_numbers(leaves: list[Any]) -> bool:
    return all(isinstance(leaf, int | float | np.ndarray | jax.Array) for leaf in leaves)


def code(function: Any) -> list[Any]:
    """Returns a function's name and what its lines compile to, JSON-able.

    What it calls, closes over or is bound to is not looked into.
    """
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function) if callable(function) else function
    function = getattr(function, "__func__", function)
    # An object that is called goes by its class.
    of = function if hasattr(function, "__qualname__") else type(function)
    found = getattr(function, "__code__", None)
    if found is None:
        found = getattr(type(function).__call__, "__code__", None) if callable(function) else None
    return [of.__module__, of.__qualname__, _words(found)]


def _words(constant: Any) -> Any:
    """Returns a constant of compiled code as text that is the same in every process."""
    if isinstance(constant, types.CodeType):
        inside = [_words(one) for one in constant.co_consts]
        return [constant.co_code.hex(), constant.co_names, constant.co_varnames, inside]
    if isinstance(constant, frozenset):  # Its order follows the process's hash of text.
        return sorted(map(repr, constant))
    return repr(constant)
