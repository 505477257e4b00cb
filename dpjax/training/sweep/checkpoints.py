"""Checkpoints of a sweep: written whole or not at all.

A checkpoint is the slots as they stand (parameters, optimiser state, steps done, whose they are)
and every candidate that had finished before, with its output. All of it is unprotected: it stays in
the curator's folder and is removed when the sweep has ended.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from typing import Any

import jax
import numpy as np

from dpjax.after_the_draw import AfterTheDrawWarning, told
from dpjax.array_files import Arrays, packed, unpacked
from dpjax.private_files import private_folder, read_private, write_anew

Tree = Any

_SLOTS, _FINISHED = "slots", "finished"
_SAVE = re.compile(rf"({_SLOTS}|{_FINISHED})_([0-9]+)\.npz")
_HALF_WRITTEN = ".partial."


class Checkpoints:
    """Saves a sweep in a folder, and reads it to resume.

    `save` first writes what finished since the last save, then the slots, each a file that is there
    only when it is complete and that holds a hash of its arrays. A sweep killed at any moment
    therefore finds a last complete pair; what was half written is dropped and computed again, from
    the same keys, to the same bits. What was damaged since is noticed by its hash.

    One process writes one folder; several processes need a folder each.
    """

    def __init__(self, folder: str | os.PathLike, *, every_seconds: float = 300.0):
        """Opens the folder, of this sweep alone; a new one is made readable by its owner only.

        `every_seconds` is the least time between two saves; 0 saves at every opportunity.
        """
        if every_seconds < 0:
            raise ValueError(f"every_seconds is {every_seconds}: pass 0 or more")
        self.folder = os.path.abspath(os.fspath(folder))
        self.every_seconds = every_seconds
        private_folder(self.folder)
        self._ended = f"{self.folder}.ended"
        shutil.rmtree(self._ended, ignore_errors=True)
        saves = self._saves()
        self._next = max(saves[_SLOTS], default=-1) + 1
        for number in saves[_FINISHED]:
            # Finished candidates are written before the slots: a last file without its slots is a
            # save that was cut short, and its candidates are trained again.
            if number == self._next:
                os.remove(self._path(_FINISHED, number))
            elif number > self._next:
                raise self.damaged()
        self._saved_at = time.monotonic()

    def due(self) -> bool:
        """Returns whether it is time for another save."""
        return time.monotonic() - self._saved_at >= self.every_seconds

    def save(self, slots: Arrays, finished: Arrays | None) -> bool:
        """Saves the slots, and what finished since the last save (None: nothing).

        Where the disk does not take them it warns and returns False: the training goes on, and what
        finished has to be in the next save.
        """
        self._saved_at = time.monotonic()
        try:
            if finished is not None:
                write_anew(self._path(_FINISHED, self._next), packed(finished))
            write_anew(self._path(_SLOTS, self._next), packed(slots))
        except OSError as error:
            told(f"no checkpoint could be saved ({error})", AfterTheDrawWarning)
            return False
        for number in self._saves()[_SLOTS]:
            if number < self._next:
                os.remove(self._path(_SLOTS, number))
        self._next += 1
        return True

    def restore(self) -> tuple[Arrays | None, list[Arrays]]:
        """Reads the slots of the last save (None: nothing is saved) and all that had finished."""
        if not self._next:
            return None, []
        finished = [self._read(_FINISHED, number) for number in self._saves()[_FINISHED]]
        return self._read(_SLOTS, self._next - 1), finished

    def damaged(self) -> ValueError:
        """Returns the error to raise for saves that do not fit together."""
        return ValueError(
            f"the checkpoints in {self.folder} are damaged or incomplete, or an earlier version "
            "wrote them: remove that folder, and what they held is trained again, from the same "
            "keys"
        )

    def remove(self) -> None:
        """Deletes the folder: the sweep has ended and handed everything out."""
        # Renamed first: if this is interrupted, no half-deleted folder is taken for a save.
        os.rename(self.folder, self._ended)
        shutil.rmtree(self._ended)

    def _saves(self) -> dict[str, list[int]]:
        """Returns the sorted numbers of the saves in the folder; removes half-written ones."""
        found: dict[str, list[int]] = {_SLOTS: [], _FINISHED: []}
        for name in os.listdir(self.folder):
            if name.startswith(_HALF_WRITTEN):
                os.remove(os.path.join(self.folder, name))
            elif save := _SAVE.fullmatch(name):
                found[save[1]].append(int(save[2]))
            else:
                raise self.damaged()
        return {kind: sorted(numbers) for kind, numbers in found.items()}

    def _path(self, kind: str, number: int) -> str:
        return os.path.join(self.folder, f"{kind}_{number}.npz")

    def _read(self, kind: str, number: int) -> Arrays:
        """Reads one file of a save; refuses a damaged one."""
        try:
            return unpacked(read_private(self._path(kind, number)))
        except (MemoryError, PermissionError):
            raise
        except Exception:
            # NumPy raises many kinds of error for a broken file; what to do is always the same.
            raise self.damaged() from None


def named_leaves(prefix: str, leaves: list[np.ndarray]) -> Arrays:
    """Names a tree's leaves prefix_0, prefix_1, ..., as a checkpoint holds them."""
    return {f"{prefix}_{place}": np.asarray(leaf) for place, leaf in enumerate(leaves)}


def unnamed_leaves(prefix: str, arrays: Arrays, like: Tree) -> Tree:
    """Rebuilds a tree of the structure of `like` from leaves that `named_leaves` named."""
    structure = jax.tree.structure(like)
    return jax.tree.unflatten(
        structure, [arrays[f"{prefix}_{place}"] for place in range(structure.num_leaves)]
    )
