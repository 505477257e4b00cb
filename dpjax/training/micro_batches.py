"""Sums the clipped gradients of a lot in as many micro-batches as the drawn lot needs.

A compiled step has arrays of fixed size, but a Poisson lot varies: it has places for as many
records as it hardly ever exceeds, one and a half to two times its mean. If a row costs much
(images, sequences), the rows that were drawn are taken in micro-batches instead, by a loop whose
number of turns depends on the lot and so leaves out most empty places; memory is that of one
micro-batch, whatever the lot.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import checks
from dpjax.training import places
from dpjax.training.clipping import block_sums
from dpjax.training.clipping.checks import row_keys
from dpjax.training.clipping.clipped_grad import ClippedGrad
from dpjax.training.clipping.factored_terms import accumulator

Tree = Any
Lot = tuple[jax.Array, jax.Array]
"""(indices, mask), both (places,), as `lots.draw` returns them."""

AUTO = "auto"
MicroBatchSize = int | str | None
"""Rows of a micro-batch: a number, None for the whole lot at once, "auto" for `rows_by_rule`."""


def checked(name: str, value: object) -> MicroBatchSize:
    """Checks a micro-batch size and returns it, or raises a ValueError that names it."""
    if value is None or (isinstance(value, str) and value == AUTO):
        return value
    wanted = f"a whole number >= 1, {AUTO!r}, or None for the whole lot"
    try:
        return checks.whole(name, value)
    except ValueError:
        raise checks.refused(name, value, wanted) from None


_BYTES_OF_A_TURN = 2**26
"""Most bytes of a micro-batch's rows on a CPU, by `bytes_a_row`; a lot of half of it is taken
whole. Measured on 2 cores, CPU time of a whole step at lot 64 over the whole lot's: the
all-convolutional net 0.37 to 0.41 with 4 to 16 rows (8 MB a row), 0.54 with 32, and 0.47 to 0.56
with 1 to 16 for 4 candidates side by side; the benchmarks' transformer 0.47 with 4 to 16 (14 MB a
row), 0.61 with 32; the net of plain convolutions 0.47 with 4 to 16 (1.5 MB a row), 0.61 with 32."""

_TIMES_ON_AN_ACCELERATOR = 64
"""How many times more an accelerator takes at once: it idles on small arrays, and has the memory.
On an H100 the wide MLP takes 0.19 ms whole and 0.36 in halves at lot 256. Candidates side by side
share it: 64 all-convolutional nets at lots of 64 take 18 to 19 ms with 8, 16 or 32 rows each and
0.6, 1.2 or 2.2 GB, 23 ms and 8.5 GB whole."""

_SHARED_BY = 4
"""Up to so many candidates have it each; more share what these have. 64 figure-7 nets are fastest
with 8 or 16 rows each."""

_SHARE_OF_MEMORY = 3
"""Candidates together have at most a device's memory over this number: 16 GB would be more than
many a card has. A card of 80 GB, of which JAX takes three quarters, has room for all of it."""

_LEAST_SHARE = 4
"""A candidate's share is at least a CPU's over this number: 1,024 MLPs of 784-128-64-10 are fastest
with whole lots, which take a 64th of a turn."""

_PASSES = 32
"""A turn reads and writes arrays like the parameters several times, so its rows should take this
many times the parameters' bytes. On a CPU they take no more: as many turns are needed as the
fullest column of a lot has members, so more rows per turn are more empty places. At lot 64 the
all-convolutional net took 1.31, 1.20 and 1.13 of the time without empty places with 8, 4 and 2
rows, the U-Net 1.16, 1.06 and 0.93, the LSTM 1.35, 1.26 and 1.43 with 16, 8 and 4. The wide MLP of
the benchmarks (3 MB of parameters, 32 kB a row) took 1.2 of the whole lot's time with 128 rows, 1.9
with 32; ViT-Ti (21 MB, 127 MB a row) 1.2 of the time of 16 rows with 2 or 4, the same with 8."""

_FITTING_TURNS = 16
"""Lots of at most so many turns' bytes are taken whole where turns would mostly be passes over the
parameters; larger ones are not: memory comes first."""

_TURNS = 8
"""Least turns of a full lot: the last one is partly empty, by half on average."""


_SECONDS_A_MULTIPLICATION, _SECONDS_A_BYTE, _SECONDS_A_TURN = 2e-11, 2.9e-10, 2e-5
"""Time on a CPU core, roughly: of a row's arithmetic; of a turn for each byte of parameters, and
its fixed part. A text convolution (33 million multiplications a row, 1.1 MB of parameters)
at lot 64, CPU time of a step over the plain one's: 1.27 with 8 or 16 rows, 2.75 whole. The wide MLP
(2.4 million, 3 MB) above: 1.2 of the whole lot's."""


def _padding_costs_much(multiplications_a_row: float, bytes_of_params: int, capacity: int) -> bool:
    """Returns whether rows of padding take longer than the turns that leave them out.

    A Poisson lot of expected size n is padded to about n + 6 sqrt(n) rows, and the last turn is
    partly empty.
    """
    padding = min(capacity / 2, 6 * math.sqrt(capacity)) - capacity / (2 * _TURNS)
    saved = padding * multiplications_a_row * _SECONDS_A_MULTIPLICATION
    return saved > _TURNS * (_SECONDS_A_BYTE * bytes_of_params + _SECONDS_A_TURN)


def rows_by_rule(
    bytes_a_row: int,
    bytes_of_params: int,
    capacity: int,
    accelerator: bool,
    multiplications_a_row: float = 0.0,
    side_by_side: int = 1,
    memory: int | None = None,
) -> int:
    """Chooses the rows of a micro-batch from public numbers, for "auto".

    `side_by_side` candidates share an accelerator, each with a micro-batch of its own; it has
    `memory` bytes, None for unknown (`memory_of`).

    Returns a power of two, or `capacity`: the whole lot, where a row takes little memory (logistic
    regression, small MLPs) or the lot has few rows. `bytes_of_params` are those of the trained
    parameters' sums.
    """
    bytes_a_row = max(bytes_a_row, 1)
    fitting = _BYTES_OF_A_TURN
    if accelerator:
        together = _BYTES_OF_A_TURN * _TIMES_ON_AN_ACCELERATOR * _SHARED_BY
        if memory is not None:
            together = min(together, memory // _SHARE_OF_MEMORY)
        share = together // max(side_by_side, _SHARED_BY)
        fitting = max(share, _BYTES_OF_A_TURN // _LEAST_SHARE)
    expensive = not accelerator and _padding_costs_much(
        multiplications_a_row, bytes_of_params, capacity
    )
    if 2 * capacity * bytes_a_row <= fitting and not expensive:
        return capacity
    # With more rows than `most` there would be too few turns; with fewer than `least`, passes over
    # the parameters would take most of the time.
    most, least = capacity // _TURNS, _power_of_two(-(-_PASSES * bytes_of_params // bytes_a_row))
    fits = capacity * bytes_a_row <= _FITTING_TURNS * fitting
    if most < 1 or (least > most and fits and not expensive):
        return capacity
    rows = max(1, min(least, most))
    if accelerator:
        rows = max(rows, min(fitting // bytes_a_row, most))
    return 1 << (rows.bit_length() - 1)


def _power_of_two(number: int) -> int:
    """Returns the least power of two that is not smaller."""
    return 1 << max(0, number - 1).bit_length()


_BESIDE = contextvars.ContextVar("side_by_side", default=1)


@contextlib.contextmanager
def side_by_side(number: int) -> Iterator[None]:
    """Runs that are traced within this are `number` candidates that share a device, for "auto"."""
    before = _BESIDE.set(number)
    try:
        yield
    finally:
        _BESIDE.reset(before)


def candidates_beside() -> int:
    """Returns how many candidates share an accelerator with the run that is traced; 1 on a CPU."""
    return 1 if jax.default_backend() == "cpu" else _BESIDE.get()


def memory_of(devices: Sequence[jax.Device]) -> int | None:
    """Returns the bytes that programs may take on the smallest device; None if one is silent."""
    found = [int((device.memory_stats() or {}).get("bytes_limit", 0)) for device in devices]
    return min(found) if min(found) > 0 else None


def rows_at_once(
    setting: MicroBatchSize,
    grad_fn: ClippedGrad,
    params: Tree,
    data: Tree,
    capacity: int,
    side_by_side: int | None = None,
) -> int:
    """Returns the rows of a micro-batch, at most `capacity`, from a checked setting and shapes.

    `side_by_side` candidates are on the device; None for `candidates_beside`.
    """
    if setting is None:
        return capacity
    if isinstance(setting, int):
        return min(setting, capacity)
    leaves = jax.tree.leaves(params)
    bytes_of_params = sum(
        math.prod(leaf.shape) * jnp.dtype(accumulator(leaf.dtype)).itemsize for leaf in leaves
    )
    accelerator = jax.default_backend() != "cpu"
    cost = grad_fn.row_cost(params, data)
    return rows_by_rule(
        cost.bytes,
        bytes_of_params,
        capacity,
        accelerator,
        cost.multiplications,
        candidates_beside() if side_by_side is None else side_by_side,
        memory_of(jax.local_devices()) if accelerator else None,
    )


def sum_of_lot(
    grad_fn: ClippedGrad,
    params: Tree,
    data: Tree,
    lot: Lot,
    clip_norm: jax.Array,
    rng: jax.Array | None,
    size: int,
    share: tuple[int | jax.Array, int] = (0, 1),
    turns: jax.Array | None = None,
) -> tuple[Tree, Tree | None]:
    """Sums the clipped gradients of a lot's records.

    Formal guarantees:
      The sum is that of `grad_fn` over the whole lot, whatever `size` is, up to rounding:

      1. Every row whose mask is True stands in exactly one micro-batch, in the column of its place
         in the lot (`places.in_turns`); no other row counts. A row's key is its own in the lot
         (`row_keys`).
      2. Contributions are clipped for a sum of all places of the lot, whatever `size`, so that
         `grad_fn.sensitivity` bounds what one record moves: rounding within a micro-batch, and in
         the two that a record changes, is held back (`block_sums.influence_of_rounding`). Nothing
         is rounded between turns: sums are added up in pairs of floats (`added`), which lose less
         than 2**-46 of a total a turn, and noise is added to the pair (`add_gaussian_noise`).
      3. An empty lot takes no turn: its sum is zero. A share's micro-batch behind the last row has
         masked rows alone.

    How many turns are taken, and so how long it takes, depends on the lot.

    Takes data (rows, ...), a lot of indices into them and a mask, both (places,); `size` rows of
    a micro-batch, all places or more for the whole lot without a loop. A share (i, n), i perhaps
    traced, adds up only every n-th micro-batch from the i-th on; the n shares, always in pairs,
    add up to the lot's sum. `turns`, if given, are those of `places.turns_of` for micro-batches of
    all shares, or more. Returns the sum, a pytree like `params` in float32 or wider, and what it
    lacks of the unrounded total: a pytree like it, or None for nothing.
    """
    indices, mask = lot
    number, shares = share
    in_lot = mask.shape[0]
    if size >= in_lot and shares == 1:
        rng = row_keys(rng, in_lot, grad_fn.with_rng)
        if jax.default_backend() != "cpu" and (more := block_sums.missing_rows(in_lot)):
            # Empty places, so that blocks are alike.
            indices, rng = rows_of((indices, rng), jnp.arange(in_lot + more))
            mask = jnp.pad(mask, (0, more))
        records, rows = rows_of(data, indices), mask.shape[0]
        summed, auxiliary = grad_fn(params, records, clip_norm, mask, rng, rows, stored=True)
        return summed, auxiliary.lost
    size = min(size, in_lot)
    # Shares are the parts of one wide turn, so that a row keeps its device as well as its column.
    taken, live, needed = places.in_turns(mask, size * shares)
    indices = rows_of(indices, taken)
    row_rngs = row_keys(rng, in_lot, grad_fn.with_rng)
    if row_rngs is not None:
        row_rngs = rows_of(row_rngs, taken)
    first = jnp.asarray(number, jnp.uint32)

    def one_turn(turn: jax.Array, total: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
        micro_batch = first + turn * np.uint32(shares)

        def own(rows: jax.Array) -> jax.Array:
            return jax.lax.dynamic_slice_in_dim(rows, micro_batch * np.uint32(size), size)

        records, keys = rows_of(data, own(indices)), None if row_rngs is None else own(row_rngs)
        part, auxiliary = grad_fn(params, records, clip_norm, own(live), keys, in_lot, stored=True)
        return added(total, part, auxiliary.lost)

    # The sum, and what rounding takes from it (`added`), both start at zero.
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, accumulator(leaf.dtype)), params)
    # All shares take as many: devices that exchange something within a turn wait for each other.
    turns = needed if turns is None else turns
    return jax.lax.fori_loop(np.uint32(0), turns, one_turn, (zero, zero))


def rows_of(data: Tree, indices: jax.Array) -> Tree:
    """Gathers the rows at these indices from every array."""

    def gathered(rows: jax.Array) -> jax.Array:
        if not len(rows):  # Nothing to gather from: a lot of no records is all padding.
            rows = jnp.zeros((1, *rows.shape[1:]), rows.dtype)
        return rows.at[indices].get(mode="clip")

    return jax.tree.map(gathered, data)


def added(total: tuple[Tree, Tree], part: Tree, rest: Tree | None = None) -> tuple[Tree, Tree]:
    """Adds a pytree to a total that is kept in pairs, as `block_sums.added`.

    `rest`, if given, is what rounding took from `part`.
    """
    trees = (*total, part) if rest is None else (*total, part, rest)
    pairs = [block_sums.added(*leaves) for leaves in zip(*map(jax.tree.leaves, trees), strict=True)]
    structure = jax.tree.structure(part)
    return (
        jax.tree.unflatten(structure, [high for high, _ in pairs]),
        jax.tree.unflatten(structure, [low for _, low in pairs]),
    )
