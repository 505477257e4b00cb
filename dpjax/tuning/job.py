"""How the candidates of a procedure are trained: where, in which shares, and how it is resumed.

None of it changes what is computed for a candidate, nor what the procedure costs: however many jobs
train them, K and the candidates are drawn once, every candidate is trained from its own key, and
one selection looks at all of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from dpjax import checks, files, private_files, training
from dpjax.after_the_draw import beside_the_release
from dpjax.array_files import Arrays, packed, read_arrays, unpacked
from dpjax.training.sweep import hosts
from dpjax.training.sweep.streaming import check_arrays
from dpjax.tuning.selection import OUTPUT, leading

PyTree = Any

DRAWN_FILE, OUTCOME_FILE, CONSUMED_FILE, LOCK_FILE = "drawn.npz", "outcome.npz", "consumed", "lock"
_INNER, CHOICE = "inner_", "choice_"
SPARE_BYTES = 1 << 20
"""What an outcome or a run's folder takes beside the model: candidates, plots, pages."""

_UNTIL_CONSUMED = (
    DRAWN_FILE,
    "shard_*_of_*.npz",
    "checkpoints_*_of_*",
    "ended_*.npz",
    "partition_counts_*.npz",
    f"{CHOICE}*.npz",
    f"{_INNER}*",
    ".partial.*",  # What a killed write of one of these left.
)
"""What is removed when the draw is consumed: all that dpjax writes but the outcome."""

DRAW, IDENTITY, _CONSUMED = "draw", "identity", "spent"
"""Arrays in these files: the draw's own random name, which is written in every file of results made
of it; what it was begun with; and whether it is consumed."""

_CONSUMED_WORDS = b"The draw of this folder has decided a release, which outcome.npz holds.\n"
"""Where outcome.npz is lost, this file keeps the folder from being taken for a new one."""


@dataclasses.dataclass(frozen=True)
class Job:
    """How the candidates are trained.

    Attributes:
      placement: how candidates are placed on devices: rule (chosen by public sizes), vmap,
        one_by_one, devices, devices_one_by_one, lot_over_devices, model_over_devices, or three
        numbers. 2x4x3 trains 2 candidates at a time, each on 4 groups of devices that share its
        lots and the records; the 3 devices of a group share its parameters. Each process trains
        its own candidates, unless the first number is 1 and the others multiply to the devices of
        all processes. It changes results by rounding only. See `training.named_placement`.
      folder: the curator's working folder, or None. It holds the draw (with every candidate's
        secret key), checkpoints and shards' results, all unprotected, and in the end the result;
        delete it once the release is written. It belongs to one procedure. When the result is
        decided, the draw and all else made of it are removed; the same procedure finds the result
        there, any other is refused. A new folder gets mode 0700; one that exists must be this
        user's and closed to others.
      shard: (i, N): train the i-th of N shares of the candidates, i from 0, and select nothing.
        (None, N): train nothing, merge the results of all N shares and select.
      label: whatever else the result depends on, for example the command line: jobs that share a
        folder must agree on it.
      checkpoint_seconds: least time between two checkpoints, where there is a folder; 0 for as
        often as possible.
      micro_batch_size: records of which gradients are taken at once, the knob for memory and time:
        a number, None for the whole lot ("none" on a command line), or "auto" for what suits the
        model. It changes results by rounding only, and never their cost in privacy.
      stream_bytes: for records that do not fit the device: at most so many bytes of them, or two
        steps' lots of the candidates side by side, are on it at once, and the others stay in the
        task's arrays, such as `np.load(path, mmap_mode="r")`. It changes results by rounding only.
        None: all are on the device. See `training.mixed_sweep`.
      check_contributions: measure what this many records of every lot add to the sum, and end the
        job if one adds more than the clip norm. 0: none. See `training.TrainConfig`.
    """

    placement: str = "rule"
    folder: str | None = None
    shard: tuple[int | None, int] | None = None
    label: str = ""
    checkpoint_seconds: float = 300.0
    micro_batch_size: training.MicroBatchSize = "auto"
    stream_bytes: int | None = None
    check_contributions: int = 0

    def __post_init__(self) -> None:
        spread = training.spreads_runs(checks.text("placement", self.placement))
        if self.folder is not None:
            object.__setattr__(self, "folder", os.fspath(checks.path("folder", self.folder)))
        checks.text("label", self.label)
        checks.not_negative("checkpoint_seconds", self.checkpoint_seconds)
        size = training.checked_micro_batch_size("micro_batch_size", self.micro_batch_size)
        object.__setattr__(self, "micro_batch_size", size)
        rows = checks.whole("check_contributions", self.check_contributions, 0)
        if rows and spread:
            placement = ("placement", self.placement)
            words = " measures on one device: pass 0, or not "
            raise checks.Refused(("check_contributions",), words, placement)
        if self.stream_bytes is not None:
            whole = checks.whole("stream_bytes", self.stream_bytes)
            object.__setattr__(self, "stream_bytes", whole)
            if spread:
                words = " copies lots to one device: drop it, or pass "
                raise checks.Refused(("stream_bytes",), words, ("placement", "vmap"))
        if spread and self.folder is not None and self.spans_processes:
            raise checks.Refused(
                ("placement", self.placement),
                " is of several processes, which keep no common checkpoints: pass no folder, or "
                "numbers of this process's devices",
            )
        if self.shard is None:
            return
        index, count = self._checked_shard()
        if self.folder is None:
            raise ValueError("shards meet in a working folder: pass one, the same to all of them")
        if jax.process_count() > 1:
            words = "shards are jobs of one process each: drop "
            raise checks.Refused(words, ("coordinator",), ", or ", ("shard",))
        if count < 1 or (index is not None and not 0 <= index < count):
            raise ValueError(f"shard {index}/{count}: pass 0/{count} to {count - 1}/{count}")

    def _checked_shard(self) -> tuple[int | None, int]:
        """Checks the pair (index, count) of a shard, and keeps it as whole numbers."""
        if not isinstance(self.shard, tuple | list) or len(self.shard) != 2:
            raise checks.refused("shard", self.shard, "a pair such as (0, 2) or (None, 2)")
        index, count = self.shard
        index = None if index is None else checks.whole("the first number of a shard", index, 0)
        shard = index, checks.whole("the second number of a shard", count)
        object.__setattr__(self, "shard", shard)
        return shard

    @property
    def mesh(self) -> training.LotMesh | None:
        """Returns the devices of this process where several share a run, else None."""
        return training.mesh_named(self.placement)

    @property
    def spans_processes(self) -> bool:
        """Returns whether all processes train every candidate together."""
        if jax.process_count() == 1:
            return False
        mesh = self.mesh
        return mesh is not None and mesh.spans_processes

    @property
    def of_one_run(self) -> Job:
        """Returns the job for a single run: on all devices that share runs, else on one."""
        mesh = self.mesh
        alone = "one_by_one" if mesh is None else f"1x{mesh.groups * mesh.candidates}x{mesh.model}"
        return dataclasses.replace(self, placement=alone)

    @property
    def merges(self) -> bool:
        """Returns whether this job only merges what others trained."""
        return self.shard is not None and self.shard[0] is None

    def share(self, total: int) -> np.ndarray:
        """Returns the indices of the candidates that this process trains, of `total`."""
        if self.merges:
            return np.arange(0)
        if self.spans_processes:
            return np.arange(total)
        return hosts.own_share(total, *(self.shard or ()))

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Locks the folder while the block runs: shards work side by side, each of them once.

        Does nothing without a folder, or in a thread that holds it already. A ValueError says that
        another process works there, or that the folder is not this user's alone.
        """
        if self.folder is None:
            yield
            return
        private_files.private_folder(self.folder)
        shares = jax.process_count() > 1 or (self.shard is not None and not self.merges)
        path = os.path.join(self.folder, LOCK_FILE)
        with contextlib.ExitStack() as locks:
            # The input is checked after this, and a refusal must leave no empty folder behind.
            locks.callback(_remove_if_empty, self.folder)
            locks.enter_context(private_files.locked(path, self.folder, shared=shares))
            if shares:
                own = f"{path}_{self.name_of_share()}"
                locks.enter_context(private_files.locked(own, self.folder))
            yield

    def try_room(self, size: int) -> None:
        """Refuses a folder in which the outcome, of about `size` bytes, cannot be written."""
        if self.folder is None:
            return
        with self.held(), files.reserved(self._path_of(".partial.room"), size + SPARE_BYTES):
            pass

    def name_of_share(self) -> str:
        """Names this job's share of the candidates: its shard, else its process."""
        index, count = self.shard or (jax.process_index(), jax.process_count())
        return f"{index}_of_{count}"

    def inner(self, name: str, **changed: Any) -> Job:
        """Returns the same job in a subfolder of its own, for a step that makes its own draw.

        That folder is removed when the draw of this one is consumed.
        """
        folder = None if self.folder is None else f"{self.folder}/{_INNER}{name}"
        return dataclasses.replace(self, folder=folder, **changed)

    def once(
        self,
        facts: Callable[[], Mapping[str, Any]],
        draw: Callable[[], Arrays],
        decide: Callable[[Arrays], Arrays | None],
    ) -> Arrays | None:
        """Draws once, decides once, and returns what was decided; None for a shard.

        Formal guarantees:
          All jobs and processes share one draw: the first draws, the others read. This is the only
          way to a draw, and with the outcome decided it is consumed: the outcome takes its place,
          and keys, noise, counts, choices and checkpoints are removed; a warning names one that
          cannot be. So a draw decides one outcome, and a job that is run again finds it. Once a
          folder has an outcome, nothing is drawn there again, whichever one of its files is lost.

        Args:
          facts: returns what the draw and `decide` depend on, by name and for JSON. A folder is
            bound to it; without one it is not called.
          draw: makes the draw, where there is none yet.
          decide: turns the draw into the outcome; None where this is a shard, which leaves the
            rest to others.

        Raises:
          ValueError: the folder holds the draw of another procedure, a file of it is damaged, lost
            or another user's, another process works there, or there is nothing to merge.
        """
        with self.held():
            kept: Arrays | None = None
            identity: dict[str, str] = {}
            first = jax.process_index() == 0
            if self.folder is not None and first:
                # By hash: the file tells whether another call is the same, and none of its facts.
                identity = {
                    name: hashlib.blake2b(
                        json.dumps(fact, sort_keys=True, default=str).encode(), digest_size=16
                    ).hexdigest()
                    for name, fact in (*facts().items(), ("flags", self.label))
                }
                kept = self._found(identity)
            if first and kept is None:
                kept = draw() if self.folder is None else self._begun(draw(), identity)
            drawn = unpacked(hosts.bytes_from_one(None if kept is None else packed(kept)))
            if _CONSUMED in drawn:
                return drawn if self.shard is None or self.merges else None
            if self.share_is_done(drawn):
                return None
            outcome = decide(drawn)
            if outcome is not None and self.folder is not None and first:
                spent = {IDENTITY: drawn[IDENTITY], _CONSUMED: np.array(True)}
                private_files.write_once(self._path_of(OUTCOME_FILE), packed(outcome | spent))
                self._consume()
            return outcome

    def _begun(self, draw: Arrays, identity: Mapping[str, str]) -> Arrays:
        """Writes a draw to the folder, under a name of its own; returns it as it was written."""
        words = np.frombuffer(json.dumps(identity).encode(), np.uint8)
        name = np.frombuffer(secrets.token_bytes(16), np.uint8)
        path = self._path_of(DRAWN_FILE)
        private_files.write_once(path, packed(draw | {IDENTITY: words, DRAW: name}))
        return read_arrays(path, f"remove {self.folder} and begin anew")

    def _found(self, identity: Mapping[str, str]) -> Arrays | None:
        """Returns the folder's outcome, else its draw, else None; refuses another procedure's."""
        drawn, outcome = self._path_of(DRAWN_FILE), self._path_of(OUTCOME_FILE)
        path = outcome if os.path.lexists(outcome) else drawn
        if path == drawn and os.path.lexists(self._path_of(CONSUMED_FILE)):
            raise ValueError(
                f"{outcome} is lost, and its draw has decided a release: put it back, or pass "
                "another folder, for a new draw that is paid for anew"
            )
        if not os.path.lexists(path):
            if self.shard is not None and self.merges:
                raise ValueError(f"{path} is not there: run all {self.shard[1]} shards first")
            return None
        arrays = read_arrays(path, f"remove {self.folder} and begin anew")
        if others := checks.differing(json.loads(arrays[IDENTITY].tobytes()), identity):
            raise ValueError(
                f"{self.folder} was begun with other data or settings ({', '.join(others)}): pass "
                "the same ones, or another folder"
            )
        if path == outcome:
            self._consume()
        return arrays

    def _consume(self) -> None:
        """Removes the draw and all that came of it except the outcome; a file records this.

        The outcome is there already, so nothing here may keep a release back.
        """
        with beside_the_release(f"noting in {self.folder} that its draw is spent"):
            private_files.write_once(self._path_of(CONSUMED_FILE), _CONSUMED_WORDS)
        for pattern in _UNTIL_CONSUMED:
            for path in glob.glob(os.path.join(glob.escape(self._path_of("")), pattern)):
                with beside_the_release(
                    f"removing {path}, which holds secrets (remove it yourself),"
                ):
                    if os.path.isdir(path) and not os.path.islink(path):
                        shutil.rmtree(path)
                    else:
                        os.remove(path)

    def check_noise(self, bands: int | None, stages: training.Stages | None) -> None:
        """Refuses correlated noise and stages where several devices share a run; before a draw."""
        if not training.spreads_runs(self.placement):
            return
        if (bands or 1) > 1:
            words = " correlates noise on one device: drop it, or pass "
            raise checks.Refused(("bands", bands), words, ("placement", "vmap"))
        if stages is not None:
            words = " are of runs on one device: drop them, or pass "
            raise checks.Refused(("stages",), words, ("placement", "vmap"))

    def check_stream(self, streams: bool, arrays: PyTree) -> None:
        """Refuses a stream of what cannot be gathered, before anything is drawn.

        `streams` says whether the tuner can train from one.
        """
        if self.stream_bytes is None:
            return
        if not streams:
            words = " reads no partitions of records: drop it, or pass RandomRepetitions"
            raise checks.Refused(("stream_bytes",), words)
        check_arrays(arrays)

    def refuse_early_merge(self) -> None:
        """Refuses to merge before all shards have finished, and before anything is priced."""
        if self.shard is None or not self.merges:
            return
        count, here = self.shard[1], glob.escape(self._path_of(""))

        def found(name: str) -> bool:
            return bool(glob.glob(f"{here}**/{name}", recursive=True))

        if not found(OUTCOME_FILE) and not found(CONSUMED_FILE):  # Of a step that has decided.
            shards = [index for index in range(count) if not found(f"shard_{index}_of_{count}.npz")]
            _refuse_missing(shards, count)

    def checkpoints(self) -> training.Checkpoints | None:
        """Returns the checkpoints of this process's sweep; None without a folder."""
        if self.folder is None:
            return None
        return training.Checkpoints(
            os.path.join(self.folder, f"checkpoints_{self.name_of_share()}"),
            every_seconds=self.checkpoint_seconds,
        )

    def share_is_done(self, drawn: Arrays) -> bool:
        """Returns whether this job is a shard whose results are in the folder already."""
        index, count = self.shard or (None, 1)
        if index is None:
            return False
        path = self._path_of_share(index, count)
        return os.path.lexists(path) and self._share_at(path, drawn) is not None

    def collected(self, own: Arrays, drawn: Arrays) -> list[Arrays] | None:
        """Returns every share's results; None for a shard, which writes its own to the folder.

        Several processes exchange theirs: scores all with all, but models come only from those that
        have a winner. `drawn` is the folder's draw. A ValueError refuses a share that has not
        finished, that is damaged, or that was made of another draw.
        """

        def light(share: Arrays) -> Arrays:
            return {name: share[name] for name in share if not name.startswith(OUTPUT)}

        if self.shard is None and (jax.process_count() == 1 or self.spans_processes):
            return [own]
        if self.shard is None:
            shares = [unpacked(payload) for payload in hosts.bytes_from_all(packed(light(own)))]

            def whole(place: int) -> Arrays:
                return unpacked(hosts.bytes_from_one(packed(own), place))
        else:
            index, count = self.shard
            if index is not None:
                private_files.write_once(self._path_of_share(index, count), bound(own, drawn))
                return None
            paths = [self._path_of_share(i, count) for i in range(count)]
            _refuse_missing([i for i, path in enumerate(paths) if not os.path.lexists(path)], count)

            def whole(place: int) -> Arrays:
                return self._share_at(paths[place], drawn)

            # One after the other: all shares' models together may not fit in memory.
            shares = [light(whole(place)) for place in range(count)]
        for place in leading(shares):
            shares[place] = whole(place) | shares[place]
        return shares

    def _path_of(self, name: str) -> str:
        """Returns the path of a file in the job's folder."""
        assert self.folder is not None  # Only jobs with a folder keep files.
        return os.path.join(self.folder, name)

    def _path_of_share(self, index: int, count: int) -> str:
        return self._path_of(f"shard_{index}_of_{count}.npz")

    def _share_at(self, path: str, drawn: Arrays) -> Arrays:
        return read_bound(path, drawn, "remove it, and run that shard again")


def checked_job(
    chunk_size: int, progress: Callable[[int, int], None] | None, job: Job | None
) -> tuple[int, Job]:
    """Checks the arguments that every procedure has; returns the chunk size and the job."""
    if progress is not None:
        checks.function("progress", progress, "of two numbers, done and in all")
    if job is not None:
        checks.instance("job", job, Job, "tuning.Job(folder='work')")
    return checks.whole("chunk_size", chunk_size), job or Job()


def bound(arrays: Arrays, drawn: Arrays) -> bytes:
    """Returns the bytes of a file of results, with the name of the draw they were made of."""
    return packed(arrays | {DRAW: drawn[DRAW]})


def read_bound(path: str, drawn: Arrays, mend: str) -> Arrays:
    """Reads a file whose bytes `bound` made; refuses results of another draw."""
    arrays = read_arrays(path, mend)
    if not np.array_equal(arrays.pop(DRAW, np.zeros(0)), drawn[DRAW]):
        raise ValueError(f"{path} was made of another draw than the folder's: {mend}")
    return arrays


def _refuse_missing(shards: Sequence[int], count: int) -> None:
    if shards:
        missing = ", ".join(map(str, shards))
        raise ValueError(f"shards {missing} of {count} have not finished: run them, then merge")


def _remove_if_empty(folder: str) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(folder)
