"""Spreads one candidate's lots over a mesh of devices, for models that are slow on one device.
Every device of the mesh has the parameters, takes gradients of its share of a lot's micro-batches
and adds them up; the sums of all are then added up, and noise is added to their total, once. All
but the sum over a device's own rows is one program on arrays that are distributed over devices,
which `jax.jit` computes as it would on one.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dpjax.randomness import threefry
from dpjax.training import micro_batches
from dpjax.training.clipping.clipped_grad import ClippedGrad
from dpjax.training.micro_batches import Lot

Tree = Any
AXIS = "rows"


@dataclasses.dataclass(frozen=True)
class LotMesh:
    """Names the devices that share the rows of every lot of a run, `TrainConfig(mesh=LotMesh())`.

    Formal guarantees:
      A step computes what `dp_sgd` computes on one device, up to rounding:

      1. Every row of a lot that counts is on exactly one device, in one micro-batch: of the
         micro-batches of `micro_batches.sum_of_lot`, device i of n has the i-th, the (i+n)-th ...
      2. Contributions are clipped for a sum of the whole lot's `capacity` rows, on every device,
         and the devices' sums are added up as micro-batches are, in pairs of floats that lose less
         than 2**-46 of a total each time (`total`); nothing rounds them before noise is added. So
         the sensitivity that `sum_of_lot` argues for is that of the spread sum.
      3. Noise is one draw of `number of entries` numbers from the step's one key. The devices make
         pieces of it, each entry once, and put them together (`dithered_normal`): they are bit for
         bit the numbers that one device makes, and they are added to the total, not to the
         devices' sums.

    The data is whole on each device.

    Attributes:
      devices: of this process and, under `jax.distributed`, of the others; by default all there
        are. One or more, all different.
      shard_state: between steps, split parameters and the optimiser's state over the devices, each
        array along the longest axis that divides evenly (others stay whole). Saves memory, costs
        time; gradients are taken of whole parameters, which every device must hold meanwhile.
    """

    devices: tuple[jax.Device, ...] | None = None
    shard_state: bool = False

    def __post_init__(self) -> None:
        devices = tuple(jax.devices() if self.devices is None else self.devices)
        if not devices or len(set(devices)) < len(devices):
            raise ValueError(
                f"a mesh of the devices {devices}: pass different ones, such as jax.devices()"
            )
        object.__setattr__(self, "devices", devices)

    @property
    def size(self) -> int:
        """Returns the number of devices."""
        return len(self.devices or ())

    @property
    def mesh(self) -> Mesh:
        """Returns JAX's mesh, of one axis, `AXIS`."""
        return Mesh(np.asarray(self.devices), (AXIS,))

    @property
    def whole(self) -> NamedSharding:
        """Returns the sharding of an array that every device holds whole."""
        return NamedSharding(self.mesh, P())

    def share_of(self, capacity: int) -> int:
        """Returns the most rows of a lot that one device has when they are dealt out evenly."""
        return -(-capacity // self.size)

    def put(self, tree: Tree) -> Tree:
        """Copies arrays and keys, the same in all processes, whole to every device."""

        def one(leaf: Any) -> jax.Array:
            if jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key):
                words = one(jax.random.key_data(leaf))
                return jax.random.wrap_key_data(words, impl=jax.random.key_impl(leaf))
            if isinstance(leaf, jax.Array) and leaf.sharding == self.whole:
                return leaf
            array = np.asarray(leaf)
            array = array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
            return jax.make_array_from_callback(array.shape, self.whole, lambda _: array)

        return jax.tree.map(one, tree)

    def sum_of_lot(
        self,
        grad_fn: ClippedGrad,
        params: Tree,
        data: Tree,
        lot: Lot,
        clip_norm: jax.Array,
        rng: jax.Array | None,
        size: int,
    ) -> tuple[Tree, Tree]:
        """Sums as `micro_batches.sum_of_lot`; every device sums its share of the micro-batches."""

        def own(params: Tree, data: Tree, lot: Lot, clip_norm: jax.Array, rng: Any) -> Tree:
            share = jax.lax.axis_index(AXIS), self.size
            return self.total(
                micro_batches.sum_of_lot(grad_fn, params, data, lot, clip_norm, rng, size, share)
            )

        arguments = (params, data, lot, clip_norm, rng)
        return self.on_each(own, (P(),) * 5, P())(*arguments)

    def total(self, own: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
        """Adds up all devices' pairs, the same on every device; inside `on_each` only.
        Each device adds up one part of every array, in the order of the devices, and sends it to
        the others: all then have the same total, to the last bit.
        """
        if self.size == 1:
            return own
        high, low = (jax.tree.map(self._parts, tree) for tree in own)

        def of(device: int, tree: Tree) -> Tree:
            return jax.tree.map(lambda parts: parts[device], tree)

        summed = of(0, high), of(0, low)
        for device in range(1, self.size):
            summed = micro_batches.added(summed, of(device, high), of(device, low))
        return tuple(jax.tree.map(_gather_parts, tree, like) for tree, like in zip(summed, own))

    def _parts(self, array: jax.Array) -> jax.Array:
        """Returns every device's numbers for this device's part of an array, (devices, entries)."""
        entries = self.share_of(array.size)
        flat = jnp.pad(array.reshape(-1), (0, entries * self.size - array.size))
        return jax.lax.all_to_all(flat.reshape(self.size, entries), AXIS, 0, 0)

    def dithered_normal(self, key: jax.Array, number: int, scale: jax.Array) -> jax.Array:
        """Draws as `threefry.dithered_normal`; every device draws a piece, all get the whole."""
        if number >= 2**31:
            # Entries are counted in 32 bits: from 2^32 on noise would repeat.
            raise ValueError(f"{number} random numbers at once: split the array below {2**31}")
        length = self.share_of(number)

        def own(key: jax.Array, scale: jax.Array) -> jax.Array:
            start = jax.lax.axis_index(AXIS).astype(jnp.uint32) * np.uint32(length)
            piece = threefry.dithered_normal(key, length, scale, start=start)
            return jax.lax.all_gather(piece, AXIS, tiled=True)

        return self.on_each(own, (P(), P()), P())(key, scale)[:number]

    def on_each(self, function: Any, in_specs: Any, out_specs: Any) -> Any:
        """Returns a function that runs `function` on every device, on its part of the arguments."""
        return jax.shard_map(
            function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
        )

    def between_steps(self, state: Tree) -> Tree:
        """Splits the state over the devices between two steps, if `shard_state`; traced."""
        if not self.shard_state:
            return state

        def one(leaf: jax.Array) -> jax.Array:
            even = [axis for axis in range(leaf.ndim) if leaf.shape[axis] % self.size == 0]
            axes: list[str | None] = [None] * leaf.ndim
            if leaf.size and even:
                axes[max(even, key=lambda axis: leaf.shape[axis])] = AXIS
            return jax.lax.with_sharding_constraint(leaf, NamedSharding(self.mesh, P(*axes)))

        return jax.tree.map(one, state)

    def gathered(self, state: Tree) -> Tree:
        """Gathers the whole state on every device again; traced."""
        return jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, self.whole), state)


def _gather_parts(part: jax.Array, like: jax.Array) -> jax.Array:
    """Gathers the array of which every device has one part."""
    return jax.lax.all_gather(part, AXIS, tiled=True)[: like.size].reshape(like.shape)
