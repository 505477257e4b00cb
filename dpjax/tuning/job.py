"""How the candidates of a procedure are trained: where, in which shares, and what survives a stop.

None of it changes what is computed for a candidate, nor what the procedure costs: however many jobs
train them, K and the candidates are drawn once, every candidate is trained from its own key, and
one selection looks at all of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from dpjax import training
from dpjax.training import hosts
from dpjax.tuning.best_of_runs import BestOfRuns

PyTree = Any
Arrays = dict[str, np.ndarray]

DRAWN_FILE = "drawn.npz"


@dataclasses.dataclass(frozen=True)
class Job:
    """How the candidates are trained.

    Attributes:
      placement: see `training.sweep`.
      folder: the curator's working folder, or None. It holds the draw (with every candidate's
        secret key), checkpoints and shards' results, all unprotected; delete it with the release
        written.
      shard: (i, N): train the i-th of N shares of the candidates, i from 0, and select nothing.
        (None, N): train nothing, merge the results of all N shares and select.
      label: whatever else the result depends on, for example the command line: jobs that share a
        folder must agree on it.
      checkpoint_seconds: least time between two checkpoints; 0 for as often as possible.

    Raises:
      ValueError: for a shard without a folder, or one out of range.
    """

    placement: str = "vmap"
    folder: str | None = None
    shard: tuple[int | None, int] | None = None
    label: str = ""
    checkpoint_seconds: float = 300.0

    def __post_init__(self) -> None:
        if self.placement not in training.placement_names:
            raise ValueError(
                f"placement {self.placement!r}: pass one of {', '.join(training.placement_names)}"
            )
        if self.shard is None:
            return
        index, count = self.shard
        if self.folder is None:
            raise ValueError("shards meet in a working folder: pass one (--out_dir)")
        if jax.process_count() > 1:
            raise ValueError(
                "shards are jobs of one process each: drop the coordinator, or --shard"
            )
        if count < 1 or (index is not None and not 0 <= index < count):
            raise ValueError(f"shard {index}/{count}: pass 0/{count} to {count - 1}/{count}")

    @property
    def merges(self) -> bool:
        """Whether this job only merges what others trained."""
        return self.shard is not None and self.shard[0] is None

    def share(self, total: int) -> np.ndarray:
        """The candidates that this process trains, of `total`."""
        if self.merges:
            return np.arange(0)
        return hosts.own_share(total, *(self.shard or ()))

    def agreed(self, draw: Callable[[], Arrays], facts: Any) -> Arrays:
        """The draw that all jobs and processes share: whoever comes first draws, the others read.

        Args:
          draw: makes it.
          facts: JSON-able; what the draw and its training depend on.

        Raises:
          ValueError: if the folder holds the draw of another procedure, or if there is nothing to
            merge yet.
        """
        payload = None
        if jax.process_index() == 0:
            payload = self._drawn_by_first(draw, facts) if self.folder else packed(draw())
        return unpacked(hosts.bytes_from_first(payload))

    def _drawn_by_first(self, draw: Callable[[], Arrays], facts: Any) -> bytes:
        identity = hashlib.blake2b(
            json.dumps([facts, self.label], sort_keys=True, default=str).encode(), digest_size=16
        ).digest()
        path = os.path.join(self.folder, DRAWN_FILE)
        if not os.path.exists(path):
            if self.merges:
                raise ValueError(f"{path} is not there: run all {self.shard[1]} shards first")
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            write_once(path, packed(draw() | {"identity": np.frombuffer(identity, np.uint8)}))
        with open(path, "rb") as file:
            payload = file.read()
        if unpacked(payload)["identity"].tobytes() != identity:
            raise ValueError(
                f"{self.folder} was begun with other data or flags: pass the same ones, or another "
                "--out_dir"
            )
        return payload

    def checkpoints(self) -> training.Checkpoints | None:
        """Where this process saves its sweep; None without a folder."""
        if self.folder is None:
            return None
        index, count = self.shard or (jax.process_index(), jax.process_count())
        return training.Checkpoints(
            os.path.join(self.folder, f"checkpoints_{index}_of_{count}"),
            every_seconds=self.checkpoint_seconds,
        )

    def collected(self, own: Arrays) -> list[Arrays] | None:
        """Puts shares together: every share's results, or None where others are still to come.

        A shard's own are written to the folder; several processes exchange theirs.

        Raises:
          ValueError: if a shard to be merged has not finished.
        """
        if self.shard is None:
            return [unpacked(payload) for payload in hosts.bytes_from_all(packed(own))]
        index, count = self.shard
        paths = [os.path.join(self.folder, f"shard_{i}_of_{count}.npz") for i in range(count)]
        if not self.merges:
            write_once(paths[index], packed(own))
            return None
        missing = [str(i) for i, path in enumerate(paths) if not os.path.exists(path)]
        if missing:
            raise ValueError(
                f"shards {', '.join(missing)} of {count} have not finished: run them, then merge"
            )
        results = []
        for path in paths:
            with open(path, "rb") as file:
                results.append(unpacked(file.read()))
        return results


def share_arrays(
    members: np.ndarray, correct: np.ndarray, scores: np.ndarray, best: BestOfRuns
) -> Arrays:
    """One share's results, for `Job.collected`: members (n,), their counts and scores, the best."""
    arrays = {
        "members": members,
        "correct": correct[members],
        "scores": scores[members],
        "best_score": best.score,
        "best_candidate": best.candidate,
    }
    kept = jax.tree.leaves(best.outputs)
    return arrays | {f"best_output_{place}": leaf for place, leaf in enumerate(kept)}


def put_together(
    shares: list[Arrays], correct: np.ndarray, scores: np.ndarray, structure: Any
) -> BestOfRuns:
    """Fills `correct` and `scores` (candidates,) from all shares; returns the best of all.

    Raises:
      ValueError: if the shares do not hold every candidate exactly once.
    """
    members = np.concatenate([share["members"] for share in shares])
    if not np.array_equal(np.sort(members), np.arange(len(correct))):
        raise ValueError("the shares do not hold every candidate once: merge shards of one draw")
    best = BestOfRuns(len(shares[0]["best_score"]))
    for share in shares:
        correct[share["members"]] = share["correct"]
        scores[share["members"]] = share["scores"]
        owners = np.flatnonzero(share["best_candidate"] >= 0)
        if len(owners):
            outputs = jax.tree.unflatten(
                structure,
                [share[f"best_output_{place}"][owners] for place in range(structure.num_leaves)],
            )
            best.update(
                owners, share["best_candidate"][owners], share["best_score"][owners], outputs
            )
    return best


def packed(arrays: Arrays) -> bytes:
    """Arrays by name as the bytes of an .npz file."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def unpacked(payload: bytes) -> Arrays:
    """What `packed` packed."""
    with np.load(io.BytesIO(payload), allow_pickle=False) as file:
        return dict(file)


def write_once(path: str, payload: bytes) -> None:
    """Writes a file whole, readable by its owner only; one that is there already stays."""
    descriptor, partial = tempfile.mkstemp(dir=os.path.dirname(path))
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        # A link, unlike a rename, never replaces what another job was quicker to write.
        with contextlib.suppress(FileExistsError):
            os.link(partial, path)
    finally:
        os.remove(partial)
