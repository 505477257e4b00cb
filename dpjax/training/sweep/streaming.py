"""Records that stay on the host: the rows of the next steps' lots are copied to the device.

The arrays may be memory-mapped files. While the devices take some steps, the host gathers the rows
of the lots of those that follow.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import checks
from dpjax.training.compilation import jit
from dpjax.training.dp_sgd import RunState, TrainConfig
from dpjax.training.lots import lots_of_run
from dpjax.training.micro_batches import Lot
from dpjax.training.sweep.placement import Placement
from dpjax.training.sweep.schedule import Bucket
from dpjax.training.sweep.slots import Candidates, Inputs, SlotProgram, Slots, key_of, lots_of_slot

Tree = Any
_BUFFERS = 2
"""Lots that the steps read, and lots that the host copies meanwhile."""

_READERS = 16
"""Threads that copy: pages of a file that are not in memory are waited for side by side. Records of
12 kB at random places of such a file: 2,400 to 4,900 per second by one thread, 6,900 to 8,000 by
16."""


def check_stream(stream_bytes: int, data: Tree, config: TrainConfig, placement: Placement) -> None:
    """Refuses records, and placements, for which lots cannot be gathered on the host."""
    checks.whole("stream_bytes", stream_bytes)
    if config.mesh is not None or placement.mesh is not None:
        words = " copies whole lots to one device: pass None, or mesh=None and a placement without"
        raise checks.Refused(("stream_bytes", stream_bytes), words)
    check_arrays(data)


def check_arrays(data: Tree) -> None:
    """Refuses arrays (n, ...) whose rows NumPy cannot gather for a device."""
    for leaf in jax.tree.leaves(data):
        if not isinstance(leaf, np.ndarray):
            words = (
                f" reads NumPy arrays, not {type(leaf).__name__}: pass np.load(path, mmap_mode='r')"
            )
            raise checks.Refused(("stream_bytes",), words)
        checks.record_array("the arrays", leaf)
        if leaf.dtype.kind not in "biuf" or not leaf.dtype.isnative:
            raise ValueError(
                f"the arrays are {leaf.dtype.str}: pass numbers in this machine's byte order, as "
                "np.save(path, rows.astype(np.float32)) writes them"
            )


def bytes_of_row(data: Tree) -> int:
    """Returns what a row of all arrays takes on a device."""
    return sum(
        math.prod(leaf.shape[1:]) * jax.dtypes.canonicalize_dtype(leaf.dtype).itemsize
        for leaf in jax.tree.leaves(data)
    )


class StreamedSlots(Slots):
    """The slots of one bucket, whose lots' rows the host gathers.

    Formal guarantees:
      Slots are advanced as `Slots` advances them where all rows lie on the device:
        * a step's lot is drawn by the same function from the same keys and number of records, only
          earlier, so that the same records are members;
        * each row stands at the place it was drawn for, and empty places are masked as there;
        * the host copies the rows that were drawn, whatever they hold, and does nothing else;
        * no shape or constant of a program depends on how many rows the arrays have.

    The places of the lots pass through the host's memory. They are as secret as the noise.

    A device holds at most `stream_bytes` of rows, or two steps' lots of its slots if these are
    more. How many steps that makes is planned for lots of `capacity` rows and at most `most_steps`.
    """

    def __init__(
        self,
        bucket: Bucket,
        candidates: Candidates,
        program: SlotProgram,
        placement: Placement,
        stream_bytes: int,
        most_steps: int,
    ):
        super().__init__(bucket, candidates, program, placement)
        data, self._number = program.data
        self._data: Tree = jax.tree.map(np.asarray, data)
        of_step = self.placement.width * self.family.places * bytes_of_row(self._data)
        most_steps = min(most_steps, (2**31 - 1) // self.family.places)  # Rows that int32 counts.
        self._length = max(1, min(stream_bytes // (_BUFFERS * of_step), most_steps))
        self._readers = ThreadPoolExecutor(_READERS)
        mapped = self.placement.mapped
        self._draw = jit(mapped(self._lots_of_one, (0, 0, None, None)))
        self._advance_on = jit(mapped(self._advanced, (0, 0, 0, None, 0, 0)), donate_argnums=0)

    def take_steps(self, steps: int) -> RunState:
        """Takes `steps` more steps of each slot, buffer by buffer; returns the new state."""
        pieces = [
            (self.placement.put(self.done + np.uint32(begun)), min(self._length, steps - begun))
            for begun in range(0, steps, self._length)
        ]
        state, rows = self.state, self._gathered(lots := self._drawn(*pieces[0]))
        for piece, later in zip(pieces, [*pieces[1:], None]):
            # Asked for first: devices work in order, and it would wait for the steps.
            coming = None if later is None else self._drawn(*later)
            # No more than the two buffers: that of the steps before is no longer needed.
            jax.block_until_ready(state)
            done, number = piece
            state = self._advance_on(state, self.inputs, done, np.uint32(number), rows, lots[1])
            if coming is not None:
                rows, lots = self._gathered(coming), coming
        return state

    def _drawn(self, done: jax.Array, steps: int) -> Lot:
        """Draws each slot's lots of so many steps: places and mask, (slots, length, places)."""
        return self._draw(self.inputs, done, np.uint32(steps), self._number)

    def _gathered(self, lots: Lot) -> Tree:
        """Copies the rows of lots to the devices, a pytree of (slots, length * places, ...)."""
        indices = np.asarray(lots[0])
        every = list(np.ndindex(indices.shape[:2]))

        def one(leaf: np.ndarray) -> np.ndarray:
            rows = np.zeros((*indices.shape, *leaf.shape[1:]), leaf.dtype)

            def copy(first: int) -> None:
                for lot in every[first::_READERS] if len(leaf) else ():
                    rows[lot] = leaf[indices[lot]]

            list(self._readers.map(copy, range(_READERS)))
            return rows.reshape(len(indices), -1, *leaf.shape[1:])

        # Every time another array: a device may read the host's own memory.
        return self.placement.put(jax.tree.map(one, self._data))

    def _lots_of_one(
        self, inputs: Inputs, done: jax.Array, steps: jax.Array, number_of_records: jax.Array
    ) -> Lot:
        """Draws the lots of one slot's next `steps` steps; those up to `length` are empty."""
        draw = lots_of_slot(self.family, inputs, number_of_records)
        lot_of = lots_of_run(key_of(inputs), draw)

        def one(offset: jax.Array, lots: Lot) -> Lot:
            own = lot_of(done + offset)
            return jax.tree.map(lambda all_, new: all_.at[offset].set(new), lots, own)

        shape = self._length, self.family.places
        empty = jnp.zeros(shape, jnp.int32), jnp.zeros(shape, bool)
        return jax.lax.fori_loop(np.uint32(0), steps, one, empty)

    def _advanced(
        self,
        state: RunState,
        inputs: Inputs,
        done: jax.Array,
        steps: jax.Array,
        rows: Tree,
        masks: jax.Array,
    ) -> RunState:
        """Advances one slot on the rows (length * places, ...) of lots, masks (length, places)."""
        places = masks.shape[1]

        def draw(lot_key: jax.Array, number: jax.Array) -> Lot:
            offset = (number - done).astype(jnp.int32)
            return offset * places + jnp.arange(places, dtype=jnp.int32), masks[offset]

        data = rows, None  # Their number has decided the masks.
        advance = self._program.advance
        return advance(self.family, state, inputs, done, steps, data, self.rows_at_once, draw)
