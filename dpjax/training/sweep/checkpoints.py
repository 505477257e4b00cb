"""Checkpoints of a sweep: written whole or not at all, by Orbax.

A checkpoint is the slots as they stand (parameters, optimiser state, steps done, whose they are)
and every candidate that had finished before, with its output. All of it is unprotected: it stays in
the curator's folder and is removed when the sweep has ended.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from dpjax.private_files import private_folder, read_private, write_anew

Tree = Any
Arrays = dict[str, np.ndarray]


class Checkpoints:
    """Where a sweep saves itself, and from where it resumes.

    `save` first writes what finished since the last save, then the slots, each under a name that
    Orbax gives only when it is complete, and after each a hash of its files. A sweep killed at any
    moment therefore finds a last complete pair; what was half written is dropped and computed
    again, from the same keys, to the same bits. What was damaged since is noticed by its hash.

    One process writes one folder; several processes need a folder each.

    Example:
      >>> from dpjax import training
      >>> training.Checkpoints("work", every_seconds=60).every_seconds
      60
    """

    def __init__(self, folder: str | os.PathLike, *, every_seconds: float = 300.0):
        """Opens the folder, which is made readable by its owner only if it is not there.

        Args:
          folder: of this sweep alone.
          every_seconds: least time between two saves; 0 saves at every opportunity.

        Raises:
          ValueError: if the folder is another user's or open to others, or cannot be read.
        """
        if every_seconds < 0:
            raise ValueError(f"every_seconds is {every_seconds}: pass 0 or more")
        self.folder = os.path.abspath(os.fspath(folder))
        self.every_seconds = every_seconds
        private_folder(self.folder)
        self._ended = f"{self.folder}.ended"
        shutil.rmtree(self._ended, ignore_errors=True)
        with self._damage_named():
            self._slots, self._finished = self._manager("slots"), self._manager("finished")
            # What was written after the last complete pair belongs to no pair.
            last = self._last_complete()
            for manager in (self._slots, self._finished):
                for step in manager.all_steps():
                    if last is None or step > last:
                        self._delete(manager, step)
        self._next = 0 if last is None else last + 1
        self._saved_at = time.monotonic()

    def due(self) -> bool:
        """Whether it is time for another save."""
        return time.monotonic() - self._saved_at >= self.every_seconds

    def save(self, slots: Arrays, finished: Arrays | None) -> None:
        """Saves the slots, and what finished since the last save (None: nothing)."""
        if finished is not None:
            self._write(self._finished, finished)
        self._write(self._slots, slots)
        for step in self._slots.all_steps():
            if step != self._next:
                self._delete(self._slots, step)
        self._next += 1
        self._saved_at = time.monotonic()

    def restore(self) -> tuple[Arrays | None, list[Arrays]]:
        """The slots of the last save (None: there is none) and all that had finished by then.

        Raises:
          ValueError: if a save is damaged.
        """
        with self._damage_named():
            last = self._last_complete()
            if last is None:
                return None, []
            finished = [self._read(self._finished, step) for step in self._finished.all_steps()]
            return self._read(self._slots, last), finished

    def damaged(self) -> ValueError:
        """The error to raise for saves that do not fit together."""
        return ValueError(
            f"the checkpoints in {self.folder} are damaged or incomplete: remove that folder, and "
            "what they held is trained again, from the same keys"
        )

    @contextlib.contextmanager
    def _damage_named(self) -> Iterator[None]:
        try:
            yield
        except (ImportError, MemoryError, PermissionError):
            raise
        except Exception:
            # Orbax raises many things, many lines long, for the many ways in which a save can be
            # broken; which of them it was does not change what to do.
            raise self.damaged() from None

    def remove(self) -> None:
        """Deletes the folder: the sweep has ended and handed everything out."""
        self.close()
        # Under its name the folder is there whole or not at all, whenever this is interrupted.
        os.rename(self.folder, self._ended)
        shutil.rmtree(self._ended)

    def close(self) -> None:
        """Lets go of the folder."""
        self._slots.close()
        self._finished.close()

    def _last_complete(self) -> int | None:
        steps = self._slots.all_steps()
        return max((s for s in steps if os.path.exists(self._hash(self._slots, s))), default=None)

    @staticmethod
    def _hash(manager: Any, step: int) -> str:
        """The file that holds the hash of a save's files."""
        return f"{manager.directory}_{step}.hash"

    def _delete(self, manager: Any, step: int) -> None:
        # The hash first: a save without one counts for nothing.
        with contextlib.suppress(FileNotFoundError):
            os.remove(self._hash(manager, step))
        manager.delete(step)

    def _manager(self, name: str) -> Any:
        import orbax.checkpoint as orbax  # slow to import, and most sweeps need none of it

        path = os.path.join(self.folder, name)
        os.makedirs(path, mode=0o700, exist_ok=True)
        this = jax.process_index()
        return orbax.CheckpointManager(
            path,
            options=orbax.CheckpointManagerOptions(
                max_to_keep=None,
                create=False,
                enable_async_checkpointing=False,
                # Every process saves its own share, and waits for no other.
                multiprocessing_options=orbax.options.MultiprocessingOptions(
                    primary_host=this,
                    active_processes={this},
                    barrier_sync_key_prefix=f"process_{this}",
                ),
            ),
        )

    def _write(self, manager: Any, arrays: Arrays) -> None:
        import orbax.checkpoint as orbax

        manager.save(self._next, args=orbax.args.StandardSave(dict(arrays)))
        hashed = _hash_of_files(os.path.join(manager.directory, str(self._next)))
        write_anew(self._hash(manager, self._next), hashed)

    def _read(self, manager: Any, step: int) -> Arrays:
        import orbax.checkpoint as orbax

        hashed = read_private(self._hash(manager, step))
        # Orbax would say at length what is wrong with a broken file, from threads of its own.
        if _hash_of_files(os.path.join(manager.directory, str(step))) != hashed:
            raise self.damaged()
        restored = manager.restore(step, args=orbax.args.StandardRestore())
        return {name: np.asarray(value) for name, value in restored.items()}


def named_leaves(prefix: str, leaves: list[np.ndarray]) -> Arrays:
    """A tree's leaves by name, prefix_0, prefix_1, ..., as a checkpoint holds them."""
    return {f"{prefix}_{place}": np.asarray(leaf) for place, leaf in enumerate(leaves)}


def unnamed_leaves(prefix: str, arrays: Arrays, like: Tree) -> Tree:
    """The tree of structure `like` whose leaves `named_leaves` named."""
    structure = jax.tree.structure(like)
    return jax.tree.unflatten(
        structure, [arrays[f"{prefix}_{place}"] for place in range(structure.num_leaves)]
    )


def _hash_of_files(folder: str) -> bytes:
    """A hash of all files below a folder, names included."""
    digest = hashlib.blake2b(digest_size=16)
    for path, _, names in sorted(os.walk(folder)):
        for name in sorted(names):
            with open(os.path.join(path, name), "rb") as file:
                content = hashlib.file_digest(file, "blake2b").digest()
            place = os.path.relpath(os.path.join(path, name), folder)
            digest.update(os.fsencode(place) + b"\0" + content)
    return digest.hexdigest().encode()
