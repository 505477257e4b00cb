"""Training on records that stay on the host: `numpy.memmap`, or any source of single records.

The lots are those of `dp_sgd.make_train`: drawn by the same programs from the same streams of the
run's key, so that they are known before they are needed. A thread draws ahead, reads the records of
a lot from the source and sends them to the devices, one micro-batch after the other; what devices
hold is a few micro-batches, whatever the lot. Sums, noise and updates are `dp_sgd.advance`'s.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import io
import itertools
import queue
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from dpjax import checks
from dpjax.randomness import keys, threefry
from dpjax.training import dp_sgd, micro_batches, optimizers
from dpjax.training.clipping.checks import row_keys
from dpjax.training.dp_sgd import RunState, TrainConfig
from dpjax.training.mesh import AXIS, LotMesh
from dpjax.training.micro_batches import Lot
from dpjax.training.sweep import hosts
from dpjax.training.sweep.checkpoints import Arrays, Checkpoints, named_leaves, unnamed_leaves

Tree = Any

_LOTS_AT_ONCE = 32
"""Lots drawn in one call of the device: calls cost, and so does drawing what is never used."""


@dataclasses.dataclass(frozen=True, eq=False)
class HostData:
    """Records on the host, read when a lot holds them.

    Example:
      >>> import numpy as np
      >>> from dpjax import training
      >>> training.HostData(np.ones((100, 2), np.float32), prefetch=2)
      HostData(..., prefetch=2, readers=1)

    Attributes:
      source: an array (rows, ...), or a dict or tuple of them (`numpy.memmap`: what is not read is
        not loaded); or anything with `__len__` and `__getitem__(number)` -> one record, a pytree of
        numbers and arrays of one shape for all (grain and TFDS random-access sources, torch data
        sets). A source that has `__getitems__(numbers)` too is asked for many at once, and must
        return each in memory of its own. A record must depend on its number alone: what a source
        draws at random (augmentation) depends on threads and on resuming, and is no part of what a
        seed reproduces.
      prefetch: so many micro-batches are read ahead, by a thread; 0 for none, without the thread.
        Memory for two more is needed. Results do not depend on it.
      readers: threads that read single records; `__getitem__` may then be called from several at
        once. Results do not depend on it.

    Raises:
      ValueError: for a source that is neither, one without records, arrays that disagree on the
        number of rows, and numbers that are not whole.
    """

    source: Any
    prefetch: int = 2
    readers: int = 1

    def __repr__(self) -> str:
        """Shows no record."""
        return f"HostData(..., prefetch={self.prefetch}, readers={self.readers})"

    def __post_init__(self) -> None:
        checks.whole("prefetch", self.prefetch, 0)
        checks.whole("readers", self.readers)
        kind = type(self.source).__name__
        if self._columns is not None:
            sizes = {np.shape(array)[:1] for array in self._columns}
            if len(sizes) != 1 or () in sizes:
                raise ValueError(
                    f"the source's arrays have leading sizes {sorted(sizes)}: pass arrays (rows, "
                    "...) of one number of rows"
                )
        elif isinstance(self.source, Mapping | tuple) or not (
            hasattr(self.source, "__len__") and hasattr(self.source, "__getitem__")
        ):
            raise ValueError(
                f"a source of type {kind}: pass an array (numpy.memmap), a dict or tuple of arrays "
                "(rows, ...), or an object with __len__ and __getitem__(number)"
            )
        elif isinstance(self.source, list) and any(_is_array(each) for each in self.source):
            raise ValueError(
                "a list of arrays could be columns or records: pass a tuple of columns (rows, "
                "...), or an object with __len__ and __getitem__(number)"
            )
        if not len(self):
            raise ValueError("a source without records: pass one with at least one")

    @functools.cached_property
    def _columns(self) -> list[np.ndarray] | None:
        """The arrays, in the order of their tree; None for a source of single records."""
        if not (_is_array(self.source) or isinstance(self.source, Mapping | tuple)):
            return None
        leaves = jax.tree.leaves(self.source)
        return leaves if leaves and all(map(_is_array, leaves)) else None

    @functools.cached_property
    def _pool(self) -> concurrent.futures.Executor:
        return concurrent.futures.ThreadPoolExecutor(self.readers, "dpjax-reader")

    def __len__(self) -> int:
        return len(self.source if self._columns is None else self._columns[0])

    def rows(self, numbers: np.ndarray, size: int | None = None) -> Tree:
        """The records of these numbers, in their order.

        Args:
          numbers: int (k,), of records.
          size: rows of the result, at least k, those beyond all zero; k by default.

        Returns:
          Pytree of arrays (size, ...), of the types that JAX gives them.

        Raises:
          ValueError: for records of different shapes.
        """
        size = len(numbers) if size is None else size
        if self._columns is not None:
            return jax.tree.map(lambda array: _filled(array[numbers], size), self.source)
        # A batch without rows has shapes too: those of the first record.
        wanted = [int(number) for number in numbers] or [0]
        if hasattr(self.source, "__getitems__"):
            records = list(self.source.__getitems__(wanted))
        elif self.readers > 1:
            records = list(self._pool.map(self._record, wanted))
        else:
            records = [self._record(number) for number in wanted]
        trees = {jax.tree.structure(record) for record in records}
        shapes = {tuple(np.shape(leaf) for leaf in jax.tree.leaves(record)) for record in records}
        if len(trees) != 1 or len(shapes) != 1 or len(records) != len(wanted):
            raise ValueError(
                f"the source returned {len(records)} records of {len(shapes)} shapes for "
                f"{len(wanted)} numbers: pass one whose records all have the same shape"
            )
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *records)
        return jax.tree.map(lambda rows: _filled(rows[: len(numbers)], size), stacked)

    def _record(self, number: int) -> Tree:
        """One record in memory of its own.

        A source may hand out one array that it fills anew each time: a lot would hold the last
        record many times.
        """
        return jax.tree.map(np.array, self.source[number])

    def shapes(self) -> Tree:
        """All records as a pytree of `jax.ShapeDtypeStruct` (rows, ...); reads the first."""
        return jax.tree.map(
            lambda rows: jax.ShapeDtypeStruct((len(self), *rows.shape[1:]), rows.dtype),
            self.rows(np.zeros(1, np.int64)),
        )


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray | jax.Array)


def _filled(rows: Any, size: int) -> np.ndarray:
    """The rows and zeros below them, (size, ...)."""
    rows = np.asarray(rows)
    if rows.dtype.kind in "OUSMm":
        raise ValueError(
            f"the source's records hold {rows.dtype}: pass one of numbers and arrays of them"
        )
    filled = np.zeros((size, *rows.shape[1:]), jax.dtypes.canonicalize_dtype(rows.dtype))
    filled[: len(rows)] = rows
    return filled


TrainFromHost = Callable[..., Tree]
"""train(key, hyperparameters, params, data, number_of_records=None, *, checkpoints, progress)."""


def train_from_host(config: TrainConfig) -> TrainFromHost:
    """Builds the function of one whole private training run on records of the host.

    The result, `train(key, hyperparameters, params, data, number_of_records=None, *,
    checkpoints=None, progress=None)`, takes what `make_train`'s function takes, but
      data: a `HostData`, or what makes one.
      number_of_records: static; None for all.
      checkpoints: a `Checkpoints` of this run alone, or None: where it saves its state, and goes on
        from if it is called again with the same arguments, to the same bits. Removed at the end.
        Where several processes share a mesh, process 0's counts and the others pass None.
      progress: called with (steps done, steps in all) after every step.
    and returns the final parameters on the host. It is no function to trace: it calls programs that
    it compiles once. With `config.mesh` it spreads every lot over devices, of several processes
    perhaps, each of which must have the source and reads the rows of its own devices.

    Formal guarantees:
      Those of `make_train`. The sequence of lots is the one that it draws: the same draws from the
      same sub-keys, of the same number of records. Every record of a lot stands in one micro-batch
      once; its padding counts for nothing, whatever it holds. Contributions are clipped for the
      whole lot's capacity, sums are added up in pairs of floats (`micro_batches.added`), noise is
      added once to their total, and the public `expected_lot_size` divides it: by the same
      `dp_sgd.advance`. An empty lot reads nothing and still gets noise.

      Which records are read, when, and how long a step takes, show the lots to whoever watches the
      host and its discs: both are the curator's.

    Raises (when called):
      ValueError: as `make_train`, as `HostData`, and for checkpoints of another run.

    Example:
      >>> import numpy as np
      >>> from dpjax import training
      >>> config = training.TrainConfig(
      ...     loss_fn=lambda w, x: (x @ w - 1.0) ** 2,
      ...     lots=training.PoissonLots(100, 0.1, 40),
      ...     steps=3,
      ...     expected_lot_size=10,
      ...     optimizer=training.sgd(),
      ... )
      >>> train = training.train_from_host(config)
      >>> given = {"clip_norm": 1.0, "noise_multiplier": 1.0, "learning_rate": 0.1}
      >>> (key,) = training.candidate_keys(1, seed=0)
      >>> train(key, given, np.zeros(2, np.float32), np.ones((100, 2), np.float32)).shape
      (2,)
    """
    mesh = config.mesh or LotMesh((_default_device(),))
    return _HostRun(dataclasses.replace(config, mesh=mesh), mesh).train


def _default_device() -> jax.Device:
    default = jax.config.jax_default_device
    return default if isinstance(default, jax.Device) else jax.local_devices()[0]


class _HostRun:
    """The programs of a run whose records stay on the host; `config.mesh` is `mesh`."""

    def __init__(self, config: TrainConfig, mesh: LotMesh):
        self.config, self.mesh = config, mesh
        self.capacity = config.lots.capacity
        self._draw = jax.jit(self._lots)
        self._begin = jax.jit(self._begun)
        self._zero = jax.jit(self._nothing, out_shardings=self.mesh.split)
        self._add = jax.jit(self._with_micro_batches, donate_argnums=0)
        self._finish = jax.jit(self._stepped)
        self._whole = jax.jit(self.mesh.gathered)

    def train(
        self,
        key: jax.Array,
        hyperparameters: Mapping[str, Any],
        params: Tree,
        data: Any,
        number_of_records: int | None = None,
        *,
        checkpoints: Checkpoints | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Tree:
        """See `train_from_host`."""
        config, mesh = self.config, self.mesh
        data = data if isinstance(data, HostData) else HostData(data)
        if progress is not None:
            checks.function("progress", progress, "of two numbers, steps done and in all")
        shapes = data.shapes()
        if number_of_records is not None:
            number_of_records = checks.whole("number_of_records", number_of_records, 0)
        number = dp_sgd.checked_number_of_records(config.lots, shapes, number_of_records)
        given = {name: np.float32(value) for name, value in hyperparameters.items()}
        identity = self._identity(key, given, params, shapes, number)
        local_key, (key, given) = key, mesh.put((key, given))
        state = self._begin(given, mesh.put(params))
        done, state = self._restored(checkpoints, identity, state)
        size = dp_sgd.rows_of_micro_batch(config, given, state, shapes, self.capacity)
        batches = self._micro_batches(data, local_key, number, done, size)
        with contextlib.closing(_ahead(batches, data.prefetch)) as ahead:
            total = params = None
            for step, batch in ahead:
                if total is None:
                    total, params = self._zero(state), self._whole(self._to_lose(state))
                if batch is not None:
                    total = self._add(total, params, key, given, np.uint32(step), *batch)
                    # Else the device's queue would hold the batches that the thread's must not.
                    jax.block_until_ready(total)
                    continue
                state, total = self._finish(state, key, given, np.uint32(step), total), None
                done = step + 1
                if progress is not None:
                    progress(done, config.steps)
                if done < config.steps and self._due(checkpoints):
                    self._save(checkpoints, identity, done, state)
        if checkpoints is not None:
            checkpoints.remove()
        return jax.tree.map(np.asarray, dp_sgd.returned(config, self._whole(state)))

    @staticmethod
    def _to_lose(state: RunState) -> RunState:
        """What a loss and its clip norm read of a state."""
        return state._replace(optimizer=None, average=())

    # Programs --------------------------------------------------------------------------------

    def _lots(self, key: jax.Array, first: jax.Array, number: jax.Array) -> tuple:
        """Some lots, the first of them that of step `first`: indices and mask (lots, capacity)."""
        lots_key = keys.stream(key, "lots")

        def one(step: jax.Array) -> tuple[jax.Array, jax.Array]:
            return self.config.lots.draw(threefry.fold_in(lots_key, step), number)

        return jax.vmap(one)(first + jnp.arange(_LOTS_AT_ONCE, dtype=jnp.uint32))

    def _begun(self, given: Mapping[str, jax.Array], params: Tree) -> RunState:
        state = dp_sgd.begin(self.config, given, params)
        return self.mesh.between_steps(jax.tree.map(jnp.asarray, state))

    def _nothing(self, state: RunState) -> tuple[Tree, Tree]:
        """Pairs of zeros for every device, (devices, ...)."""
        measure = self.config.clipping.measure(jnp.float32(1.0))
        like = jax.eval_shape(lambda params: micro_batches.nothing(params, measure), state.trained)
        zeros = jax.tree.map(
            lambda leaf: jnp.zeros((self.mesh.size, *leaf.shape), leaf.dtype), like
        )
        return zeros, zeros

    def _with_micro_batches(
        self,
        total: tuple[Tree, Tree],
        state: RunState,
        key: jax.Array,
        given: Mapping[str, jax.Array],
        number: jax.Array,
        records: Tree,
        places: jax.Array,
        live: jax.Array,
    ) -> tuple[Tree, Tree]:
        """The devices' pairs with one more micro-batch each.

        Args:
          total: (devices, ...).
          state, key, given, number: of the run and its step; the state whole on every device, and
            without the optimiser's.
          records: pytree of arrays (devices * rows, ...).
          places: int32 (devices * rows,), where in the lot each stands.
          live: bool (devices * rows,), which of them count.
        """
        config, capacity = self.config, self.capacity
        initial, _ = optimizers.read(given, "DP-SGD", "clip_norm", "noise_multiplier")
        clip_norm = config.clipping.clip_norm(initial, state.clipping)
        rng = threefry.fold_in(keys.stream(key, "loss"), number) if config.with_rng else None

        def own(
            total: tuple[Tree, Tree],
            state: RunState,
            given: Mapping[str, jax.Array],
            clip_norm: jax.Array,
            rngs: jax.Array | None,
            records: Tree,
            live: jax.Array,
        ) -> tuple[Tree, Tree]:
            part, auxiliary = dp_sgd.grad_fn_of(config, given, state).of_stored(
                state.trained,
                records,
                clip_norm=clip_norm,
                mask=live,
                rows_in_sum=capacity,
                **({} if rngs is None else {"rng": rngs}),
            )
            measure = config.clipping.measure(clip_norm)
            part = micro_batches.with_measured(measure, part, auxiliary, live)
            one = jax.tree.map(lambda leaf: leaf[0], total)
            return jax.tree.map(lambda leaf: leaf[None], micro_batches.added(one, part))

        rngs = row_keys(rng, capacity, config.with_rng)
        rngs = None if rngs is None else rngs[places]
        split, whole = P(AXIS), P()
        specs = (split, whole, whole, whole, split, split, split)
        mapped = self.mesh.on_each(own, specs, split)
        return mapped(total, state, given, clip_norm, rngs, records, live)

    def _stepped(
        self,
        state: RunState,
        key: jax.Array,
        given: Mapping[str, jax.Array],
        number: jax.Array,
        total: tuple[Tree, Tree],
    ) -> RunState:
        """The state after the step whose clipped sum is that of the devices' pairs."""

        def of_all(own: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
            return self.mesh.total(jax.tree.map(lambda leaf: leaf[0], own))

        summed = self.mesh.on_each(of_all, (P(AXIS),), P())
        return dp_sgd.advance(
            self.config,
            key,
            given,
            state,
            None,
            draw=_no_draw,
            expected_lot_size=self.config.expected_lot_size,
            steps=np.uint32(1),
            first=number,
            summed=lambda number, trained, clip_norm: summed(total),
        )

    # Lots and their records ------------------------------------------------------------------

    def _micro_batches(
        self, data: HostData, key: jax.Array, number: int, first: int, size: int
    ) -> Iterator[tuple[int, tuple[Tree, jax.Array, jax.Array] | None]]:
        """All micro-batches of all steps from `first` on, on the devices; None ends a step.

        As many at once as there are devices: device i of n has the i-th, the (i+n)-th ... of a lot.
        """
        rows = size * self.mesh.size
        local = [
            (place, device)
            for place, device in enumerate(self.mesh.devices or ())
            if device.process_index == jax.process_index()
        ]

        def sent(trees: list[Tree]) -> Tree:
            """What each local device gets, as one array over all devices."""

            def one(*leaves: np.ndarray) -> jax.Array:
                shape = (rows, *leaves[0].shape[1:])
                pieces = [jax.device_put(leaf, to) for leaf, (_, to) in zip(leaves, local)]
                return jax.make_array_from_single_device_arrays(shape, self.mesh.split, pieces)

            return jax.tree.map(one, *trees)

        for step, lot in enumerate(self._host_lots(key, number, first), first):
            if step == self.config.steps:
                return
            indices, mask = lot
            places = np.flatnonzero(mask).astype(np.int32)
            for start in range(0, len(places), rows):
                trees = []
                for device, _ in local:
                    begin = start + device * size
                    own = places[begin : begin + size]
                    live = np.arange(size) < len(own)
                    trees.append((data.rows(indices[own], size), _filled(own, size), live))
                yield step, sent(trees)
            yield step, None

    def _host_lots(
        self, key: jax.Array, number: int, first: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Lots of the steps from `first` on, without end."""
        for block in itertools.count(first, _LOTS_AT_ONCE):
            drawn = self._draw(key, np.uint32(block), np.int32(number))
            yield from zip(*map(np.asarray, jax.device_get(drawn)))

    # Checkpoints -----------------------------------------------------------------------------

    def _identity(
        self,
        key: jax.Array,
        given: Mapping[str, np.float32],
        params: Tree,
        shapes: Tree,
        number: int,
    ) -> np.ndarray:
        """Tells one run from another."""
        config = self.config
        digest = hashlib.blake2b(np.asarray(jax.random.key_data(key)).tobytes(), digest_size=16)
        for name in sorted(given):
            digest.update(name.encode() + given[name].tobytes())
        for leaf in jax.tree.leaves(params):
            digest.update(np.asarray(leaf).tobytes())
        public = (config.lots, config.steps, config.expected_lot_size, config.micro_batch_size)
        rules = (config.clipping, config.average)
        digest.update(repr((*public, *rules, self.mesh.size, shapes, number)).encode())
        return np.frombuffer(digest.digest(), np.uint8)

    def _restored(
        self, checkpoints: Checkpoints | None, identity: np.ndarray, state: RunState
    ) -> tuple[int, RunState]:
        """Steps done and the state after them, as last saved; else 0 and the state given."""
        arrays = None if checkpoints is None else checkpoints.restore()[0]
        if self._several:
            arrays = _arrays(hosts.bytes_from_first(_bytes(arrays)))
        if not arrays:
            return 0, state
        if not np.array_equal(arrays["identity"], identity):
            raise ValueError(
                "the checkpoints are of another run: pass Checkpoints of another folder, or the "
                "arguments that this run was begun with"
            )
        held = self.mesh.put(unnamed_leaves("state", arrays, state))
        return int(arrays["done"]), jax.jit(self.mesh.between_steps)(held)

    def _due(self, checkpoints: Checkpoints | None) -> bool:
        due = checkpoints is not None and checkpoints.due()
        if self._several and self.mesh.shard_state:
            # All put the state together, or none.
            return hosts.bytes_from_first(b"due" if due else b"") == b"due"
        return due

    def _save(
        self, checkpoints: Checkpoints | None, identity: np.ndarray, done: int, state: RunState
    ) -> None:
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(self._whole(state))]
        if checkpoints is not None:
            own: Arrays = {"identity": identity, "done": np.asarray(done, np.int64)}
            checkpoints.save(own | named_leaves("state", leaves), None)

    @property
    def _several(self) -> bool:
        """Whether other processes have devices of the mesh."""
        return len({device.process_index for device in self.mesh.devices or ()}) > 1


def _no_draw(key: jax.Array) -> Lot:
    raise AssertionError("lots of records on the host are drawn and summed before the step")


def _bytes(arrays: Arrays | None) -> bytes:
    if not arrays:
        return b""
    file = io.BytesIO()
    np.savez(file, **dict[str, Any](arrays))
    return file.getvalue()


def _arrays(payload: bytes) -> Arrays:
    return dict(np.load(io.BytesIO(payload))) if payload else {}


def _ahead(items: Iterator[Any], depth: int) -> Generator[Any, None, None]:
    """The same items in the same order, up to `depth` of them made ahead by a thread.

    What the items raise is raised here, after those before it. The thread ends with this iterator.
    """
    if depth == 0:
        yield from items
        return
    made: queue.Queue[tuple[bool, Any]] = queue.Queue(depth)
    left = threading.Event()

    def put(item: tuple[bool, Any]) -> None:
        while not left.is_set():
            with contextlib.suppress(queue.Full):
                made.put(item, timeout=0.1)
                return

    # A setting of the thread that asks, where it is a context's.
    wide = jax.config.jax_enable_x64

    def work() -> None:
        try:
            with jax.enable_x64(wide):
                for item in items:
                    put((True, item))
                    if left.is_set():
                        return
            put((False, None))
        except BaseException as error:
            put((False, error))

    thread = threading.Thread(target=work, name="dpjax-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            more, item = made.get()
            if more:
                yield item
            elif item is None:
                return
            else:
                raise item
    finally:
        left.set()
        thread.join()
