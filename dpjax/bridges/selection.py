"""A search among runs of other libraries: their seeds and models, and the release of the best.

K, candidates and noise are drawn, ranked and kept in a folder by `tuning.selection` and
`tuning.job`, as for every tuner.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import flax.serialization
import jax
import numpy as np

from dpjax import after_the_draw, checks, private_files
from dpjax.bridges.runs import FAILED, SEED_BITS, Label, Outcome, Procedure, statement
from dpjax.certificate import CERTIFICATE
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.releases import curator_page
from dpjax.releases.curator import CuratorRecord
from dpjax.releases.release import GUARANTEE_FILE, HYPERPARAMETERS_FILE, MODEL_FILE, Release
from dpjax.releases.unit_of_privacy import unit_of
from dpjax.tuning import cautions
from dpjax.tuning.job import Arrays, bound, read_bound
from dpjax.tuning.selection import Selection, draw, merged, written_executed
from dpjax.tuning.tuner import Result

# The stream of a seeded `HostRandomness`; `tuning.selection` has the others.
_STREAM_OF_SEEDS = 4

_SEEDS, _COUNT, _REMARKS, _FILE, _NO_COUNT = "seeds", "count", "remarks", "file_", -1
_NO_ARRAYS = jax.tree.structure(())
"""No arrays of a winner are kept here: a model may be of any kind, and is kept in files."""

Files = dict[str, bytes]
"""The content of a model's files, by name; empty without a model."""


class RunsWarning(UserWarning):
    """Some runs raised an error or returned no count: the curator should find out why."""


@dataclasses.dataclass(frozen=True)
class ModelFile:
    """The name of a model's file in a release, and the function that writes it.

    Without `save`, (model, path) -> None, the model is a pytree of arrays, written as dpjax's are.
    """

    name: str = MODEL_FILE
    save: Callable[[Any, str], object] | None = None

    def __post_init__(self) -> None:
        checks.text("model_file", self.name)
        plain = self.name == os.path.basename(self.name) and self.name not in ("", ".", "..")
        if not plain or self.name in (HYPERPARAMETERS_FILE, GUARANTEE_FILE, CERTIFICATE):
            raise ValueError(f"model_file {self.name!r}: pass a file's name, such as 'model.pt'")
        if self.save is not None:
            checks.function("save_model", self.save, "(model, path) -> None")
        elif self.name != MODEL_FILE:
            raise ValueError(f"model_file {self.name!r} has no writer: pass save_model as well")

    @classmethod
    def of(cls, save: Callable[[Any, str], object] | None, name: str | None = None) -> ModelFile:
        """Returns the file for these arguments; its name is "model" if only `save` is given."""
        usual = MODEL_FILE if save is None else "model"
        return cls(usual if name is None else name, save)

    def files(self, model: Any) -> Files:
        """Returns a model's files as they are released; none for None."""
        if model is None:
            return {}
        if self.save is not None:
            return {self.name: self._saved(self.save, model)}
        try:
            if any(np.asarray(leaf).dtype.kind in "OUS" for leaf in jax.tree.leaves(model)):
                raise TypeError("a leaf is not an array of numbers")
            return Release(model, {}, {}).model_files()
        except Exception:
            # Another library's model may fail with any error.
            raise ValueError(
                f"the model (a {type(model).__name__}) is not a pytree of arrays: pass "
                "save_model=(model, path) -> None, and model_file='model.pt' or the like"
            ) from None

    def read(self, files: Mapping[str, bytes]) -> Any:
        """Returns the model that an earlier process wrote: nested dicts; bytes with `save`."""
        if not files:
            return None
        content = files[self.name]
        return flax.serialization.msgpack_restore(content) if self.save is None else content

    def _saved(self, save: Callable[[Any, str], object], model: Any) -> bytes:
        """Returns the bytes that `save` writes, into a folder that only this user may enter."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, self.name)
            save(model, path)
            if not os.path.isfile(path):
                raise ValueError("save_model wrote no file at its path: write one, not a folder")
            with open(path, "rb") as file:
                return file.read()


@dataclasses.dataclass(frozen=True, repr=False)
class DeclaredRelease(Release):
    """A release whose model is of any kind, with its files (name -> content) from `ModelFile`."""

    files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)

    def model_files(self) -> Files:
        return dict(self.files)


def drawn(procedure: Procedure, seed: int | None) -> Arrays:
    """Draws K, and every candidate's noise, hyperparameters and seed, as arrays by name."""
    if procedure.ledger is not None:  # Before anything is drawn, so that no draw goes unrecorded.
        procedure.ledger.note(
            procedure.guarantee.epsilon(procedure.delta),
            procedure.delta,
            unit_of(procedure.guarantee.relation),
        )
    randomness, space = HostRandomness(seed), procedure.candidates.space
    arrays = draw(procedure.choice, space, randomness, score_noise=procedure.score_noise)
    words = randomness.words(len(arrays["noise"]), _STREAM_OF_SEEDS)
    return arrays | {_SEEDS: words >> np.uint64(64 - SEED_BITS)}


class Search:
    """K candidates with their seeds and outcomes, and the model of the best one so far.

    Formal guarantees:
      K, candidates, seeds and noise are drawn before (`drawn`), so that no result of a run can move
      them; what a candidate gets depends on nothing of another. Each candidate is reported once, to
      this process or an earlier one; there is no outcome before all K are; a candidate that failed
      counts and ranks worst (`tuning.selection.Selection`). In a folder, what a candidate gave is
      written whole or not at all, as it ends, failures too, and is never run again; a file of
      another draw is refused. The outcome, which replaces the draw (`Job.once`), has no seeds and
      no noise.
    """

    def __init__(
        self,
        procedure: Procedure,
        drawn: Arrays,
        model_file: ModelFile = ModelFile(),
        folder: str | None = None,
    ):
        """Reads the outcomes that an earlier process left in the folder of the draw."""
        self.procedure, self.model, self._files = procedure, None, Files()
        self._drawn, self._model_file, self._folder = drawn, model_file, folder
        self._selection = Selection(procedure.choice, drawn, procedure.score.public_size)
        self.number = len(self._selection.owners)
        self._remarks: dict[int, str] = {}
        for index in range(self.number if folder else 0):
            if os.path.lexists(path := self._path(index)):
                mend = "remove it, and its candidate runs again with the seed it has"
                ended = read_bound(path, drawn, mend)
                count, remark = int(ended[_COUNT]), json.loads(ended[_REMARKS].tobytes())
                files = _files_in(ended)
                self._rank(
                    index, None if count == _NO_COUNT else count, remark, files, model_file.read
                )

    def __repr__(self) -> str:
        """Shows no K."""
        return "Search(not private: for the curator only)"

    @property
    def left(self) -> list[int]:
        """Returns the candidates that are not reported yet, in order."""
        return self._selection.left.tolist()

    def candidate(self, index: int) -> tuple[int, dict[str, Label]]:
        """Returns the seed and a copy of the hyperparameters of one candidate."""
        drawn = {name: values[index] for name, values in self._selection.hyperparameters.items()}
        return int(self._drawn[_SEEDS][index]), self.procedure.candidates.values(drawn)

    def report(self, index: int, model: Any, count: Any) -> Outcome:
        """Reports the model and the count, not clipped yet, that a run returned."""
        counted, remark = self.procedure.score.counted(count)
        return self._store_and_rank(index, model, counted, remark)

    def failed(self, index: int, why: str) -> Outcome:
        """Reports that a run failed; it ranks worst."""
        return self._store_and_rank(index, None, None, f"{FAILED}{why}")

    def _store_and_rank(
        self, index: int, model: Any, count: int | None, remark: str | None
    ) -> Outcome:
        """Writes a candidate's result to the folder, if any; `count` is None for a failed one."""
        leads = self._selection.leads(index, count or 0, count is not None)
        # A model that cannot be written raises an error here, before anything is reported.
        files = self._model_file.files(model) if leads and count is not None else {}
        if self._folder is not None:
            arrays = {_COUNT: np.array(_NO_COUNT if count is None else count)}
            arrays |= {_REMARKS: _bytes(json.dumps(remark).encode())} | _file_arrays(files)
            private_files.write_once(self._path(index), bound(arrays, self._drawn))
        return self._rank(index, count, remark, files, lambda files: model)

    def _rank(
        self,
        index: int,
        count: int | None,
        remark: str | None,
        files: Files,
        model: Callable[[Files], Any],
    ) -> Outcome:
        """Ranks a candidate, keeps its model if it leads, and returns its outcome."""
        leads = self._selection.leads(index, count or 0, count is not None)
        self._selection.report([index], [count or 0], [count is not None], ())
        score = float(self._selection.scores[index] / self.procedure.score.public_size)
        if leads:  # The model that led before is dropped.
            self._files, self.model = files, model(files)
        if remark is not None:
            self._remarks[index] = remark
        return Outcome(index, self.candidate(index)[1], count, score, remark)

    def _path(self, index: int) -> str:
        """Returns the file in the folder for a candidate's result."""
        assert self._folder is not None
        return os.path.join(self._folder, f"ended_{index}.npz")

    def outcome(self) -> Arrays:
        """Returns all candidates' counts and remarks, and the winner's files, for `result`."""
        if self.left:
            raise ValueError(
                "candidates are left: run and report every one, failed ones too, before the result "
                "(stopping early would look at scores)"
            )
        ran = merged([self._selection.share()], self._drawn, _NO_ARRAYS)
        remarks = _bytes(json.dumps(dict(sorted(self._remarks.items()))).encode())
        return written_executed(ran) | {_REMARKS: remarks} | _file_arrays(self._files)


def result(
    procedure: Procedure,
    outcome: Arrays,
    model_file: ModelFile,
    default: Any,
    *,
    secret: bool,
    search: Search | None,
    started: float,
) -> Result:
    """Returns the winner, or `default`, which is public.

    The model is that of `search`, if it ran here; None: it is read from an earlier process's files.
    """
    candidates, size = procedure.candidates, procedure.score.public_size
    ran, remarks = merged([outcome], outcome, _NO_ARRAYS), json.loads(outcome[_REMARKS].tobytes())
    if ran.released is None:
        released, files = default, model_file.files(default)
        chosen: dict[str, Any] = dict.fromkeys(candidates.space.parameters)
        cautions.of_untrained("no run could be released (all failed, or none was drawn)")
    else:
        files = _files_in(outcome)
        released = model_file.read(files) if search is None else search.model
        drawn = {name: values[ran.released] for name, values in ran.hyperparameters.items()}
        chosen = dict(candidates.values(drawn))
    failed = np.isinf(ran.scores)
    if remarks:
        words = _all_failed(remarks["0"]) if failed.all() else _SOME_FAILED
        after_the_draw.told(words, RunsWarning)
    stated = statement(procedure, secret=secret)
    return Result(
        release=DeclaredRelease(
            params=released,
            hyperparameters=chosen,
            statement=stated,
            files=files,
        ),
        guarantee=procedure.guarantee,
        run_guarantee=procedure.run_guarantee,
        curator=CuratorRecord(
            number_of_candidates=len(ran.scores),
            winner=int(ran.best.candidate[0]),
            hyperparameters=ran.hyperparameters,
            scores=ran.scores / size,
            accuracies=np.where(failed, np.nan, ran.units) / size,
            seconds=time.time() - started,
            details={
                "remarks": remarks,
                "labels": {name: list(words) for name, words in candidates.labels.items()},
            },
            beside=functools.partial(curator_page.beside, statement=stated),
        ),
    )


_SOME_FAILED = (
    "some runs raised, or returned no whole number of correct predictions (an accuracy is a "
    "fraction, no count): for the curator, result.curator.details['remarks'] says which"
)


def _all_failed(first: str) -> str:
    """Returns the warning that every run failed, though the cost is spent.

    It names the type of the first error alone: its text may quote records, and a warning ends up in
    logs and reports more easily than the curator's record does.
    """
    kind = first.removeprefix(FAILED).partition(": ")[0]
    return (
        f"all runs failed and the whole epsilon is spent; of the first: {kind}; for the curator, "
        "result.curator.details['remarks'] has the message; before the next tuning, call "
        "run(seed, hyperparameters) on made-up data"
    )


def _bytes(content: bytes) -> np.ndarray:
    return np.frombuffer(content, np.uint8)


def _file_arrays(files: Files) -> Arrays:
    """Returns files as arrays, for a folder or an outcome; `_files_in` reads them."""
    return {f"{_FILE}{name}": _bytes(content) for name, content in files.items()}


def _files_in(arrays: Arrays) -> Files:
    found = (name for name in arrays if name.startswith(_FILE))
    return {name.removeprefix(_FILE): arrays[name].tobytes() for name in found}
