"""Slots: candidates side by side on the devices, each at a step of its own.

What a slot computes for a candidate does not depend on the slot, on when it took the candidate or
on its neighbours; `mixed_sweep` decides who is trained when.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.randomness import keys as key_streams
from dpjax.training import stages as staged
from dpjax.training.compilation import jit
from dpjax.training.correlated_noise import BandedNoise
from dpjax.training.dp_sgd import (
    RunState,
    TrainConfig,
    advance,
    begin,
    returned,
    rows_of_micro_batch,
)
from dpjax.training.lots import LotFamily, Lots, family_of
from dpjax.training.mesh import LotMesh
from dpjax.training.micro_batches import Lot
from dpjax.training.sweep import hosts
from dpjax.training.sweep.checkpoints import Arrays, Checkpoints, named_leaves, unnamed_leaves
from dpjax.training.sweep.placement import Placement
from dpjax.training.sweep.schedule import Bucket, Work

Tree = Any
Inputs = dict[str, Tree]
"""The device's inputs for one candidate: arrays by name; `key`, uint32 (2,), is one of them."""

Harvest = tuple[np.ndarray, Tree]
"""Finished candidates int64 (k,) and their outputs, host arrays (k, ...); None for k = 0."""


def key_of(inputs: Inputs) -> jax.Array:
    """Returns the candidate's typed key, shape ()."""
    return jax.random.wrap_key_data(inputs["key"], impl=key_streams.IMPLEMENTATION)


def lots_of_slot(
    family: LotFamily, inputs: Inputs, number_of_records: jax.Array | None
) -> Callable[[jax.Array, jax.Array], Lot]:
    """Returns draw(key of a step, its number) -> the candidate's lot, of the stage it is in."""
    key, stages = key_of(inputs), inputs.get("stages")
    if stages is None:
        return family.lots_of_steps(key, inputs["lots"], number_of_records)
    return staged.lots_of_steps(family, key, stages, number_of_records)


@dataclasses.dataclass(frozen=True)
class Candidates:
    """Holds what differs between candidates, on the host."""

    configs: list[TrainConfig]
    key_words: np.ndarray  # uint32 (candidates, 2)
    hyperparameters: dict[str, np.ndarray]  # float32 (candidates,)

    def records(self, member: int) -> int:
        """Returns the expected size of a candidate's lot, to the nearest whole number."""
        return round(self.configs[member].expected_lot_size)

    def identity(self, buckets: list[Bucket], data: Tree, number_of_records: int) -> dict[str, str]:
        """Returns hashes by name, of all but code, that tell one sweep from another."""
        told: dict[str, list[Any]] = {
            "keys": [self.key_words],
            "data": [jax.tree.structure(data), *jax.tree.leaves(data)],
            "number of records": [number_of_records],
            "buckets": [buckets],
        }
        for name, values in self.hyperparameters.items():
            told[f"hyperparameter {name}"] = [values]
        for field in dataclasses.fields(TrainConfig):
            # Names do not tell functions apart: the caller has to compare what they compute.
            told[field.name] = [
                "a function" if callable(value) and field.name in _MAY_BE_FUNCTIONS else value
                for value in (getattr(config, field.name) for config in self.configs)
            ]
        return {name: _hash_of(parts) for name, parts in told.items()}

    def inputs(self, member: int, family: LotFamily, bands: int, stages: int) -> Inputs:
        """Returns the device's inputs for one candidate, padded to so many bands and stages."""
        config = self.configs[member]
        given = {
            "key": self.key_words[member],
            "hyperparameters": {name: all_[member] for name, all_ in self.hyperparameters.items()},
            "lots": family.numbers_of(config.lots),
            "expected_lot_size": np.float32(config.expected_lot_size),
            "total_steps": np.uint32(config.steps),
        }
        if bands > 1:
            given["noise"] = (config.noise or BandedNoise(1)).coefficients(config.steps, bands)
        if stages:
            own = config.stages or staged.ONE_STAGE
            given["stages"] = own.numbers(config.steps, config.lots, family, stages)
        return given


_MAY_BE_FUNCTIONS = ("loss_fn", "optimizer", "trainable")


def _hash_of(parts: list[Any]) -> str:
    """Returns a hash of arrays, device meshes and other values."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, np.ndarray | jax.Array):
            array = np.ascontiguousarray(part)
            digest.update(f"{array.shape}{array.dtype}".encode())
            digest.update(array.reshape(-1).view(np.uint8).data)
        elif isinstance(part, LotMesh):
            # Which devices they are differs.
            digest.update(f"over {part.candidates}x{part.groups}x{part.model};".encode())
        else:
            digest.update(f"{part!r};".encode())
    return digest.hexdigest()


class SlotProgram:
    """Holds the three device functions of a slot: begin, advance, finish."""

    def __init__(
        self,
        config: TrainConfig,
        initial: Callable[[jax.Array], Tree],
        finish: Callable[[Tree, Tree], Tree],
        data: Tree,
        finish_data: Tree,
        number_of_records: int,
        planned: Iterable[Lots],
        bands: int = 1,
        stages: int = 0,
    ):
        # The noise and the stages of each candidate are inputs; stages 0: no candidate has any.
        config = dataclasses.replace(config, noise=None, stages=None)
        self.bands, self.stages = bands, stages
        self._config, self._initial, self._finish = config, initial, finish
        self._planned = {family_of(lots): lots for lots in planned}
        self.mesh = config.mesh
        # Arguments of all programs: no number of records, and no record, is a constant of one.
        self.data = data, np.int32(number_of_records)
        self._finish_data, self._harvest = finish_data, jit(self._harvested)

    def begin(self, inputs: Inputs) -> RunState:
        """Returns the state of one slot before its first step."""
        params = self._initial(key_streams.stream(key_of(inputs), "initial"))
        state = begin(self._config, inputs["hyperparameters"], params, self.bands)
        return jax.tree.map(jnp.asarray, state)

    def refill(self, state: RunState, inputs: Inputs, fresh: jax.Array) -> RunState:
        """Returns the state of one slot, begun anew where `fresh`."""
        return jax.tree.map(lambda new, old: jnp.where(fresh, new, old), self.begin(inputs), state)

    def rows_at_once(self, family: LotFamily, inputs: Inputs, width: int) -> int:
        """Returns the rows of a micro-batch of lots of this family; inputs are (slots, ...).

        `width` slots are side by side on a device.
        """
        found = []

        def look(inputs: Inputs, data: tuple[Tree, jax.Array]) -> None:
            inputs = jax.tree.map(lambda leaf: leaf[0], inputs)
            state = self.begin(inputs)
            given = inputs["hyperparameters"]
            # By planned lots, not by those of the candidate that happens to be the first.
            config = dataclasses.replace(self._config, lots=self._planned[family])
            places = family.places
            found.append(rows_of_micro_batch(config, given, state, data[0], places, width))

        # Traced, not given shapes: the loss closes over frozen parameters, which must be arrays.
        jax.eval_shape(look, inputs, self.data)
        return found[0]

    def advance(
        self,
        family: LotFamily,
        state: RunState,
        inputs: Inputs,
        done: jax.Array,
        steps: jax.Array,
        data: tuple[Tree, jax.Array | None],
        rows_at_once: int | None = None,
        draw: Callable[[jax.Array, jax.Array], Lot] | None = None,
    ) -> RunState:
        """Returns one slot after `steps` more steps, the first of which has number `done`.

        Micro-batches have `rows_at_once` rows, if that is known already. `draw` gives the lots, if
        they were drawn already.
        """
        config, (records, number) = self._config, data
        if rows_at_once is not None:
            config = dataclasses.replace(config, micro_batch_size=rows_at_once)
        return advance(
            config,
            key_of(inputs),
            inputs["hyperparameters"],
            state,
            records,
            draw=draw or lots_of_slot(family, inputs, number),
            expected_lot_size=inputs["expected_lot_size"],
            steps=steps,
            first=done,
            total_steps=inputs["total_steps"],
            correlation=inputs.get("noise"),
            stages=inputs.get("stages"),
        )

    def harvest(self, state: RunState, slot: jax.Array) -> Tree:
        """Finishes the run in one slot."""
        return self._harvest(state, slot, self._finish_data)

    def harvest_shapes(self, state: RunState) -> Tree:
        """Returns the shapes and types of what `harvest` returns."""
        return jax.eval_shape(self._harvested, state, np.int32(0), self._finish_data)

    def _harvested(self, state: RunState, slot: jax.Array, finish_data: Tree) -> Tree:
        one = jax.tree.map(lambda leaf: leaf[slot], state)
        return self._finish(returned(self._config, one), finish_data)


class Slots:
    """The slots of one bucket while it runs; they take its members in order.

    A slot without a candidate has a key of its own: no two slots share noise, not even noise that
    is dropped.
    """

    def __init__(
        self, bucket: Bucket, candidates: Candidates, program: SlotProgram, placement: Placement
    ):
        self.bucket, self.placement = bucket, placement.with_lanes(bucket.slots)
        self._candidates, self._program = candidates, program
        self.taken = 0  # members that have, or have had, a slot
        self.member = np.full(bucket.slots, -1)  # who is in each slot; -1 without
        self.done = np.zeros(bucket.slots, np.uint32)  # steps, of each slot
        self.work = Work()
        first = family_of(candidates.configs[bucket.members[0]].lots)
        family = self.family = dataclasses.replace(first, capacity=bucket.capacity)
        # Cached: all slots get their inputs again whenever one changes, and a binomial table takes
        # a while to build.
        kept = functools.lru_cache(maxsize=bucket.slots)
        self._inputs_of = kept(
            lambda member: candidates.inputs(member, family, program.bands, program.stages)
        )
        like, words = self._inputs_of(bucket.members[0]), key_streams.candidate_keys(bucket.slots)
        self._without = [like | {"key": own} for own in np.asarray(jax.random.key_data(words))]
        self._feed()
        mapped = self.placement.mapped
        self._refill = jit(mapped(program.refill, (0, 0, 0)), donate_argnums=0)
        rows = self.rows_at_once = program.rows_at_once(family, self.inputs, self.placement.width)
        advance_one = functools.partial(program.advance, family, rows_at_once=rows)
        self._advance = jit(mapped(advance_one, (0, 0, 0, None, None)), donate_argnums=0)
        # Slots begin by the same program that refills them: first and later candidates are alike.
        shapes = jax.eval_shape(mapped(program.begin, (0,)), self.inputs)
        zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
        self.state = self._put(zeros)

    def _put(self, state: Tree) -> Tree:
        """Copies a state (slots, ...) to where it lies between calls."""
        mesh = self._program.mesh
        return self.placement.put(state) if mesh is None else mesh.put_params(state, slots=True)

    @property
    def finished(self) -> bool:
        return self.taken == len(self.bucket.members) and bool((self.member < 0).all())

    def _left(self) -> np.ndarray:
        """Returns the steps still to do, by slot; the largest integer for an empty one."""
        steps = [self._candidates.configs[m].steps if m >= 0 else 0 for m in self.member]
        return np.where(self.member < 0, np.iinfo(np.int64).max, steps - self.done.astype(np.int64))

    def _feed(self) -> None:
        """Copies the inputs of the candidates in the slots to the devices, (slots, ...)."""
        feed = [
            self._inputs_of(int(member)) if member >= 0 else without
            for member, without in zip(self.member, self._without)
        ]
        self.inputs = self.placement.put(jax.tree.map(lambda *leaves: np.stack(leaves), *feed))

    def take_candidates(self) -> None:
        """Gives the next candidates to the slots without one, and begins their runs."""
        free = np.flatnonzero(self.member < 0)
        coming = self.bucket.members[self.taken : self.taken + len(free)]
        if not coming:
            return
        fresh = np.zeros(self.bucket.slots, bool)
        fresh[free[: len(coming)]] = True
        self.member[fresh], self.done[fresh] = coming, 0
        self.taken += len(coming)
        self._feed()
        self.state = self._refill(self.state, self.inputs, self.placement.put(fresh))

    def to_arrays(self) -> Arrays:
        """Returns the state that changes while the bucket runs, as arrays by name."""
        leaves = jax.device_get(jax.tree.leaves(self.state))
        return {
            "taken": np.asarray(self.taken, np.int64),
            "member": self.member,
            "done": self.done,
            "work": np.asarray(dataclasses.astuple(self.work), np.int64),
        } | named_leaves("state", leaves)

    def from_arrays(self, arrays: Arrays) -> None:
        """Restores the state that `to_arrays` returned."""
        self.taken = int(arrays["taken"])
        self.member, self.done = arrays["member"].copy(), arrays["done"].copy()
        self.work = Work(*arrays["work"].tolist())
        self.state = self._put(unnamed_leaves("state", arrays, self.state))
        self._feed()

    def output_shapes(self) -> Tree:
        """Returns the shapes and types of one candidate's output."""
        return self._program.harvest_shapes(self.state)

    def take_steps(self, steps: int) -> RunState:
        """Returns the state after so many more steps of each slot; the one before is gone."""
        done = self.placement.put(self.done)
        return self._advance(self.state, self.inputs, done, np.uint32(steps), self._program.data)

    def advance(self, most: int) -> Harvest:
        """Advances all slots to the next end of a candidate, or by `most` steps."""
        left = self._left()
        steps = int(min(left.min(), most))
        self.state = self.take_steps(steps)
        self.done = self.done + np.uint32(steps)
        active = self.member >= 0
        records = [self._candidates.records(m) for m in self.member[active]]
        # Every slot takes as many micro-batches as the largest of the lots needs.
        rows = -(-max(1, *records) // self.rows_at_once) * self.rows_at_once
        self.work += Work(
            sum(records) * steps,
            self.bucket.slots * rows * steps,
            int(active.sum()) * steps,
            self.bucket.slots * steps,
        )
        ended = np.flatnonzero(left == steps)
        members = self.member[ended]
        self.member[ended] = -1
        outputs = [self._program.harvest(self.state, np.int32(slot)) for slot in ended]
        if not outputs:
            return members, None
        return members, jax.tree.map(lambda *leaves: np.stack(leaves), *hosts.fetched(outputs))


def train_buckets(
    buckets: list[Bucket],
    slots_of: Callable[[Bucket], Slots],
    steps_per_call: int,
    checkpoints: Checkpoints | None,
    identity: bytes,
    saved: tuple[Arrays | None, list[Arrays]],
    progress: Callable[[int, int], None] | None,
    report: Callable[[Work], None] | None,
) -> Iterator[Harvest]:
    """Trains one bucket after the other; yields what was `saved` first, then the rest."""
    total, finished = sum(len(bucket.members) for bucket in buckets), 0
    work, first, (standing, earlier) = Work(), 0, saved  # slots of the last save; what had finished
    if standing is not None:
        first, work = int(standing["bucket"]), Work(*standing["work_before"].tolist())
    unsaved: list[Harvest] = []
    for number in range(first, len(buckets)):
        slots = slots_of(buckets[number])
        if number == first and standing is not None:
            slots.from_arrays(standing)
            for arrays in earlier:
                members = arrays["members"]
                finished += len(members)
                yield members, unnamed_leaves("output", arrays, slots.output_shapes())
            if progress is not None:
                progress(finished, total)
        most = steps_per_call if checkpoints is None else 1
        while not slots.finished:
            slots.take_candidates()
            started = time.monotonic()
            harvest = slots.advance(most)
            found = len(harvest[0])
            finished += found
            if checkpoints is not None:
                # Doubled or halved so that a call takes at most half of the time between saves.
                jax.block_until_ready(slots.state)
                short = time.monotonic() - started < checkpoints.every_seconds / 4
                most = min(2 * most, steps_per_call) if short else max(1, most // 2)
                unsaved += [harvest] if found else []
                if checkpoints.due():
                    begun: Arrays = {
                        "identity": np.frombuffer(identity, np.uint8),
                        "bucket": np.asarray(number, np.int64),
                        "work_before": np.asarray(dataclasses.astuple(work), np.int64),
                    }
                    if checkpoints.save(begun | slots.to_arrays(), _outputs(unsaved)):
                        unsaved = []
            if found:
                if progress is not None:
                    progress(finished, total)
                yield harvest
        work += slots.work
    if checkpoints is not None:
        checkpoints.remove()
    if report is not None:
        report(work)


def _outputs(harvests: list[Harvest]) -> Arrays | None:
    """Returns finished outputs as arrays by name, for a checkpoint; None if there are none."""
    if not harvests:
        return None
    members, trees = zip(*harvests)
    joined = jax.tree.map(lambda *leaves: np.concatenate(leaves), *trees)
    return {"members": np.concatenate(members)} | named_leaves("output", jax.tree.leaves(joined))
