"""One candidate over a mesh of devices: for models that one device is too slow or too small for.

The devices stand in groups. Every group takes gradients of its share of a lot's micro-batches and
adds them up; the sums of all are then added up, and noise is added to their total, once. The
devices of a group share the parameters between them, each array along one axis, and whatever is
like them: gradients, sums, noise, the optimiser's state. All but the sum over a group's own rows is
one program whose arrays happen to lie on several devices: `jax.jit` keeps its meaning whatever lies
where, so that a norm over all parameters is added up over the devices that share them. Several
candidates side by side have a set of such groups each (`sweep.placement`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dpjax import checks
from dpjax.randomness import threefry
from dpjax.training import micro_batches, places
from dpjax.training.clipping.clipped_grad import ClippedGrad
from dpjax.training.micro_batches import Lot

Tree = Any
CANDIDATES, AXIS, MODEL = "candidates", "rows", "model"
MOST_OF_A_SHARE = 1.15
"""A device holds at most so many times its even share of the parameters."""


@dataclasses.dataclass(frozen=True)
class LotMesh:
    """Names the devices that share a run's lots, its model or both: `TrainConfig(mesh=LotMesh())`.

    Formal guarantees:
      A step computes what `dp_sgd` computes on one device, up to rounding:

      1. Every row of a lot that counts is in exactly one group, in one micro-batch: of the
         micro-batches of `micro_batches.sum_of_lot`, group i of n has the i-th, the (i+n)-th ...
      2. Contributions are clipped for a sum of the whole lot's places, in every group,
         and the groups' sums are added up as micro-batches are, in pairs of floats that lose less
         than 2**-46 of a total each time (`total`); nothing rounds them before noise is added. So
         the sensitivity that `sum_of_lot` argues for is that of the spread sum.
      3. A contribution is clipped as a whole, by its norm over all parameters, wherever they lie.
      4. Noise is one draw of `number of entries` numbers from the step's one key. An entry's
         number follows from its place among all entries (`dithered_normal`), not from the device
         that makes it: the numbers are bit for bit those that one device makes, and they are added
         to the total, not to the groups' sums.

      5. Where the data is split, a lot's records are gathered on every device before a gradient is
         taken: each from the one device that has it, the others add zeros.

    Attributes:
      devices: of this process and, under `jax.distributed`, of the others; by default all there
        are. One or more, all different.
      shard_state: between steps, split parameters and the optimiser's state over all the devices.
        Saves memory, costs time; within a step every group gathers the parameters again.
      model: devices of a group, which share the parameters within steps too: 1, all of them, or a
        number between that divides theirs. Each array is split along the longest axis that divides
        evenly, others stay whole; a model of which a device would have to hold more than 1.15
        times its even share is refused.
      split_data: records lie on all the devices, each one on one of them (`put_records`); every
        device holds one whole lot besides. By default each device has all records.
      candidates: sets that the devices stand in, each of which trains a candidate of its own
        (`Placement(1, mesh=)`) and has all records; 1, or more where the devices are all of this
        process. What is said above of the devices then holds for those of one set.
    """

    devices: tuple[jax.Device, ...] | None = None
    shard_state: bool = False
    model: int = 1
    split_data: bool = False
    candidates: int = 1

    def __post_init__(self) -> None:
        devices = tuple(jax.devices() if self.devices is None else self.devices)
        if not devices or len(set(devices)) < len(devices):
            raise ValueError(
                f"a mesh of the devices {devices}: pass different ones, such as jax.devices()"
            )
        object.__setattr__(self, "devices", devices)
        if len(devices) % checks.whole("model", self.model):
            raise ValueError(
                f"groups of {self.model} devices, but there are {len(devices)}: pass as model a "
                "number that divides theirs"
            )
        if len(devices) // self.model % checks.whole("candidates", self.candidates):
            raise ValueError(
                f"{self.candidates} candidates on {len(devices) // self.model} groups of devices: "
                "pass a number that divides theirs"
            )
        if self.candidates > 1 and self.spans_processes:
            raise ValueError(
                "candidates side by side on devices of several processes: pass "
                "jax.local_devices(), or candidates=1"
            )

    @property
    def spans_processes(self) -> bool:
        """Returns whether devices of several processes train one candidate."""
        return len({device.process_index for device in self.devices or ()}) > 1

    @property
    def size(self) -> int:
        """Returns the number of devices that train one candidate."""
        return len(self.devices or ()) // self.candidates

    @property
    def groups(self) -> int:
        """Counts the groups of devices, which share the rows of a lot."""
        return self.size // self.model

    @property
    def mesh(self) -> Mesh | AbstractMesh:
        """Returns JAX's mesh: `AXIS` over the groups, `MODEL` over the devices of one.

        With several candidates `CANDIDATES` goes before them, over the sets; while a run is mapped
        over these, JAX knows the mesh as the one around it.
        """
        around = jax.sharding.get_abstract_mesh()
        if CANDIDATES in around.axis_names:
            sizes = self.candidates, self.groups, self.model
            if around.shape != dict(zip((CANDIDATES, AXIS, MODEL), sizes)):
                # Groups by other numbers would take rows of a lot twice, or never.
                raise ValueError(
                    f"a run over {'x'.join(map(str, sizes))} devices in a placement over "
                    f"{'x'.join(map(str, around.shape.values()))}: pass Placement(1, mesh=) with "
                    "the mesh of its TrainConfig"
                )
            return around
        several = self.candidates > 1
        shape = (self.candidates,) * several + (self.groups, self.model)
        names = (CANDIDATES,) * several + (AXIS, MODEL)
        return Mesh(np.reshape(self.devices or (), shape), names)

    @property
    def whole(self) -> NamedSharding:
        """Returns the sharding of an array that every device holds whole."""
        return NamedSharding(self.mesh, P())

    def share_of(self, capacity: int) -> int:
        """Returns the most rows of a lot that one group has when they are dealt out evenly."""
        return -(-capacity // self.groups)

    def layout(self, shape: tuple[int, ...], over_groups: bool = False) -> NamedSharding:
        """Returns the layout of parameters of this shape in a step: split along one axis, or whole.

        They are split over the devices of a group, with `over_groups` over all, where that is even.
        """
        in_group = (MODEL,) * (self.model > 1)
        over_all = in_group + (AXIS,) * over_groups
        for parts, names in ((self.size, over_all), (self.model, in_group)):
            even = [axis for axis, length in enumerate(shape) if length and length % parts == 0]
            if even and names:
                longest = max(even, key=lambda axis: shape[axis])
                return NamedSharding(self.mesh, P(*[None] * longest, names))
        return self.whole

    def put_params(self, params: Tree, slots: bool = False) -> Tree:
        """Puts arrays of the host on devices, as parameters lie between steps: none is given all.

        With `slots` arrays have a leading axis, of the candidates side by side.
        """
        first = (CANDIDATES if self.candidates > 1 else None,) * slots

        def one(leaf: Any) -> jax.Array:
            spec = self.layout(np.shape(leaf)[len(first) :], self.shard_state).spec
            return _laid_out(leaf, NamedSharding(self.mesh, P(*first, *spec)))

        return jax.tree.map(one, params)

    def check_layout(self, params: Tree) -> None:
        """Refuses parameters, or their shapes, that the devices of a group cannot share evenly."""
        # A device holds its share of each array that can be divided, and all of every other.
        held, total, largest = 0, 0, (0, ())
        for leaf in jax.tree.leaves(params):
            size = math.prod(leaf.shape) * leaf.dtype.itemsize
            whole = self.layout(leaf.shape) == self.whole
            held, total = held + (size if whole else size // self.model), total + size
            if whole:
                largest = max(largest, (size, leaf.shape))
        if held > MOST_OF_A_SHARE * total / self.model:
            raise ValueError(
                f"model={self.model}: every device would hold {held / 2**20:.3g} of the "
                f"{total / 2**20:.3g} MiB of parameters, since an array {largest[1]} has no axis "
                f"that {self.model} divides: pad it, or pass a model that divides an axis of each "
                "large array"
            )

    def put_records(self, records: Tree, *, by_all: bool = False, rows: int = 1) -> Tree:
        """Puts a process's records on its devices, each one on one: for `split_data`.

        Takes arrays of the host (rows, ...). With several processes each passes only its own rows,
        as many as the others do, and the data are those of process 0, then of process 1, and so on.
        With `by_all` each passes all rows but reads only those of its devices, as matters where a
        file is mapped. Rows of zeros then fill up to `rows`, a public number, and to what the
        devices can share evenly.

        Raises:
          ValueError: for a number of rows that the devices cannot share evenly, unless `by_all`.
        """
        if by_all:
            for leaf in jax.tree.leaves(records) if rows > 1 else ():
                places.refuse_more(leaf, rows)
            return jax.tree.map(
                lambda leaf: _laid_out(leaf, self._records, self.size, rows), records
            )
        own = sum(device.process_index == jax.process_index() for device in self.devices or ())
        own //= self.candidates
        for leaf in jax.tree.leaves(records):
            if len(leaf) % own:
                raise ValueError(
                    f"{len(leaf)} records on {own} devices: append rows up to a multiple of {own}, "
                    "and pass number_of_records, so that they are none"
                )
        return jax.tree.map(
            lambda leaf: jax.make_array_from_process_local_data(self._records, np.asarray(leaf)),
            records,
        )

    @property
    def _records(self) -> NamedSharding:
        return NamedSharding(self.mesh, P((AXIS, MODEL)))

    def put(self, tree: Tree) -> Tree:
        """Puts arrays of the host, or keys, whole on every device; the same in all processes.

        The parameters of a split model are put by `put_params` instead.
        """

        def one(leaf: Any) -> jax.Array:
            if jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key):
                words = one(jax.random.key_data(leaf))
                return jax.random.wrap_key_data(words, impl=jax.random.key_impl(leaf))
            if isinstance(leaf, jax.Array) and leaf.sharding == self.whole:
                return leaf
            return _laid_out(leaf, self.whole)

        return jax.tree.map(one, tree)

    def sum_of_lot(
        self,
        grad_fn_of: Callable[[Tree], ClippedGrad],
        closed: Tree,
        params: Tree,
        data: Tree,
        lot: Lot,
        clip_norm: jax.Array,
        rng: jax.Array | None,
        size: int,
    ) -> tuple[Tree, Tree]:
        """Sums as `micro_batches.sum_of_lot`, every group its share of the micro-batches.

        The gradient is that of `grad_fn_of(closed)`, which reads no other traced array: a group's
        program may not close over those of the program around it.
        """

        def own(
            closed: Tree,
            turns: jax.Array,
            params: Tree,
            data: Tree,
            lot: Lot,
            clip_norm: jax.Array,
            rng: Any,
        ) -> Tree:
            share = jax.lax.axis_index(AXIS), self.groups
            lot_of = grad_fn_of(closed), params, data, lot, clip_norm, rng
            return self.total(micro_batches.sum_of_lot(*lot_of, size, share, turns))

        turns = places.turns_of(lot[1], min(size, len(lot[1])) * self.groups)
        if CANDIDATES in jax.sharding.get_abstract_mesh().axis_names:
            # Candidates side by side take as many turns: on some devices an exchange within a turn
            # waits for all of the program's, those of other candidates included.
            turns = jax.lax.pmax(turns, CANDIDATES)

        if self.split_data:
            indices, mask = lot
            data = jax.lax.with_sharding_constraint(data, self._records)
            data = jax.lax.with_sharding_constraint(
                micro_batches.rows_of(data, indices), self.whole
            )
            lot = jnp.arange(len(indices)), mask
        arguments = (closed, turns, params, data, lot, clip_norm, rng)
        return self.on_each(own, (P(),) * 7, P())(*arguments)

    def total(self, own: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
        """Adds up all groups' pairs, the same in every group; inside `on_each` only.

        Each group adds up one part of every array, in the order of the groups, and hands it out:
        what all of them then have is the same to the last bit.
        """
        if self.groups == 1:
            return own
        high, low = (jax.tree.map(self._parts, tree) for tree in own)

        def of(group: int, tree: Tree) -> Tree:
            return jax.tree.map(lambda parts: parts[group], tree)

        summed = of(0, high), of(0, low)
        for group in range(1, self.groups):
            summed = micro_batches.added(summed, of(group, high), of(group, low))
        return tuple(
            jax.tree.map(self._put_together, tree, like) for tree, like in zip(summed, own)
        )

    def _dealt_axis(self, shape: tuple[int, ...]) -> int:
        """Returns the axis along which groups share an addition: not the one they split."""
        split = self.layout(shape).spec
        free = [axis for axis in range(len(shape)) if axis >= len(split) or split[axis] is None]
        return max(free or range(len(shape)), key=lambda axis: shape[axis])

    def _parts(self, array: jax.Array) -> jax.Array:
        """Returns, of one part of an array, what each group has: (groups, its length, ...)."""
        array = jnp.atleast_1d(array)
        array = jnp.moveaxis(array, self._dealt_axis(array.shape), 0)
        length = self.share_of(len(array))
        padding = [(0, length * self.groups - len(array))] + [(0, 0)] * (array.ndim - 1)
        parts = jnp.pad(array, padding).reshape(self.groups, length, *array.shape[1:])
        return jax.lax.all_to_all(parts, AXIS, 0, 0)

    def _put_together(self, part: jax.Array, like: jax.Array) -> jax.Array:
        """Returns the array of which every group has one part."""
        axis = self._dealt_axis(jnp.atleast_1d(like).shape)
        array = jax.lax.all_gather(part, AXIS, tiled=True)[: jnp.atleast_1d(like).shape[axis]]
        return jnp.moveaxis(array, 0, axis).reshape(like.shape)

    def dithered_normal(
        self, key: jax.Array, shapes: Sequence[tuple[int, ...]], scale: jax.Array
    ) -> list[jax.Array]:
        """Draws as `noise.cut_draw`: each device makes a share of every array's numbers."""
        number = sum(map(math.prod, shapes))
        if number >= 2**31:
            # Places are counted in 32 bits: from 2^32 on noise would repeat.
            raise ValueError(
                f"{number} random numbers at once: train fewer than {2**31} parameters"
            )
        drawn, start = [], 0
        for shape in shapes:
            place = jnp.full(shape, start, jnp.uint32)
            for axis in range(len(shape)):
                stride = np.uint32(math.prod(shape[axis + 1 :]))
                place = place + stride * jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
            place = jax.lax.with_sharding_constraint(place, self.layout(shape, over_groups=True))
            numbers = threefry.dithered_normal_at(key, place, scale)
            drawn.append(jax.lax.with_sharding_constraint(numbers, self.layout(shape)))
            start += math.prod(shape)
        return drawn

    def on_each(self, function: Any, in_specs: Any, out_specs: Any) -> Any:
        """Runs `function` in every group, on the part of the arguments that the group has."""
        # With one device per group there is nothing left for the compiler to split.
        axes = {AXIS, MODEL} if self.model == 1 else {AXIS}
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            axis_names=axes,
            check_vma=False,
        )

    def between_steps(self, state: Tree) -> Tree:
        """Places the state as it lies between two steps; traced."""
        if self.model == 1 and not self.shard_state:
            return state
        return self._constrained(state, self.shard_state)

    def gathered(self, state: Tree) -> Tree:
        """Gathers the state on every group again, whole if a group is one device; traced."""
        return self._constrained(state, over_groups=False)

    def _constrained(self, state: Tree, over_groups: bool) -> Tree:
        def one(leaf: jax.Array) -> jax.Array:
            return jax.lax.with_sharding_constraint(leaf, self.layout(leaf.shape, over_groups))

        return jax.tree.map(one, state)


def _laid_out(
    leaf: Any, layout: NamedSharding, multiple: int | None = None, rows: int = 1
) -> jax.Array:
    """Copies an array of the host to devices, to each its part, in a type that JAX keeps.

    With `multiple`, rows of zeros are appended up to a number of rows that it divides, at least it
    and at least `rows`.
    """
    array = np.asarray(leaf)
    kind, shape = jax.dtypes.canonicalize_dtype(array.dtype), list(array.shape)
    if multiple is not None:
        shape[0] = -(-max(rows, len(array)) // multiple) * multiple

    def part(place: tuple[slice, ...]) -> np.ndarray:
        own = array[place].astype(kind, copy=False)
        missing = len(range(*place[0].indices(shape[0]))) - len(own) if multiple else 0
        return np.pad(own, [(0, missing), *[(0, 0)] * (own.ndim - 1)]) if missing else own

    return jax.make_array_from_callback(tuple(shape), layout, part)
