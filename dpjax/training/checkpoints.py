"""Checkpoints of a sweep: written whole or not at all, by Orbax.

A checkpoint is the slots as they stand (parameters, optimiser state, steps done, whose they are)
and every candidate that had finished before, with its output. All of it is unprotected: it stays in
the curator's folder and is removed when the sweep has ended.
"""

from __future__ import annotations

import os
import shutil
import time
from typing import Any

import jax
import numpy as np

Arrays = dict[str, np.ndarray]


class Checkpoints:
    """Where a sweep saves itself, and from where it resumes.

    `save` first writes what finished since the last save, then the slots, each under a name that
    Orbax gives only when it is complete. A sweep killed at any moment therefore finds a last
    complete pair; what was half written is dropped and computed again, from the same keys, to the
    same bits.

    One process writes one folder; several processes need a folder each.
    """

    def __init__(self, folder: str | os.PathLike, *, every_seconds: float = 300.0):
        """Opens the folder, which is made readable by its owner only if it is not there.

        Args:
          folder: of this sweep alone.
          every_seconds: least time between two saves; 0 saves at every opportunity.
        """
        if every_seconds < 0:
            raise ValueError(f"every_seconds is {every_seconds}: pass 0 or more")
        self.folder = os.path.abspath(os.fspath(folder))
        self.every_seconds = every_seconds
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        self._slots = self._manager("slots", keep=1)
        self._finished = self._manager("finished", keep=None)
        # What finished after the last complete pair was written belongs to no pair.
        last = self._slots.latest_step()
        for step in self._finished.all_steps():
            if last is None or step > last:
                self._finished.delete(step)
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
        self._next += 1
        self._saved_at = time.monotonic()

    def restore(self) -> tuple[Arrays | None, list[Arrays]]:
        """The slots of the last save (None: there is none) and all that had finished by then."""
        last = self._slots.latest_step()
        if last is None:
            return None, []
        finished = [self._read(self._finished, step) for step in self._finished.all_steps()]
        return self._read(self._slots, last), finished

    def remove(self) -> None:
        """Deletes the folder: the sweep has ended and handed everything out."""
        self.close()
        shutil.rmtree(self.folder)

    def close(self) -> None:
        """Lets go of the folder."""
        self._slots.close()
        self._finished.close()

    def _manager(self, name: str, keep: int | None) -> Any:
        import orbax.checkpoint as orbax  # slow to import, and most sweeps need none of it

        path = os.path.join(self.folder, name)
        os.makedirs(path, mode=0o700, exist_ok=True)
        this = jax.process_index()
        return orbax.CheckpointManager(
            path,
            options=orbax.CheckpointManagerOptions(
                max_to_keep=keep,
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

    def _read(self, manager: Any, step: int) -> Arrays:
        import orbax.checkpoint as orbax

        restored = manager.restore(step, args=orbax.args.StandardRestore())
        return {name: np.asarray(value) for name, value in restored.items()}
