"""Slots: candidates side by side on the device, each at a step of its own.

What a slot computes for a candidate does not depend on the slot, on when it took the candidate or
on its neighbours; `mixed.py` decides who is trained when.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.randomness import keys as key_streams
from dpjax.randomness import threefry
from dpjax.training.dp_sgd import TrainConfig, merge, partition, step_function
from dpjax.training.lots.families import LotFamily, family_of
from dpjax.training.sweep.checkpoints import Arrays
from dpjax.training.sweep.placement import Placement
from dpjax.training.sweep.schedule import Bucket, Work

Tree = Any


@dataclasses.dataclass(frozen=True)
class Candidates:
    """What tells candidates apart, on the host."""

    configs: list[TrainConfig]
    key_words: np.ndarray  # uint32 (candidates, 2)
    hyperparameters: dict[str, np.ndarray]  # float32 (candidates,)

    def capacity(self, member: int) -> int:
        """Rows of a candidate's own lot."""
        return self.configs[member].lots.capacity

    def identity(self, buckets: list[Bucket]) -> bytes:
        """Tells one sweep from another, for checkpoints."""
        digest = hashlib.blake2b(self.key_words.tobytes(), digest_size=16)
        for name in sorted(self.hyperparameters):
            digest.update(name.encode() + self.hyperparameters[name].tobytes())
        for config in self.configs:
            digest.update(f"{config.lots} {config.steps} {config.expected_lot_size}".encode())
        digest.update(repr(buckets).encode())
        return digest.digest()

    def fed(self, member: int, family: LotFamily) -> dict[str, Tree]:
        """What the device is told of one candidate."""
        config = self.configs[member]
        return {
            "key": self.key_words[member],
            "hyperparameters": {name: all_[member] for name, all_ in self.hyperparameters.items()},
            "lots": family.numbers_of(config.lots),
            "expected_lot_size": np.float32(config.expected_lot_size),
        }


class SlotProgram:
    """The three device functions of a slot: begin, advance, finish."""

    def __init__(
        self,
        config: TrainConfig,
        initial: Callable[[jax.Array], Tree],
        finish: Callable[[Tree, Tree], Tree],
        data: Tree,
        finish_data: Tree,
    ):
        self._config, self._initial, self._finish = config, initial, finish
        self.data, self._finish_data = data, finish_data
        self._rows = len(jax.tree.leaves(data)[0])
        self.harvest = jax.jit(self._harvest)

    def begin(self, fed: dict[str, Tree]) -> dict[str, Tree]:
        """The state of one slot before its first step."""
        params = self._initial(key_streams.stream(_key(fed), "initial"))
        trained, frozen = partition(params, self._config.trainable)
        optimizer = self._config.optimizer(fed["hyperparameters"])
        return {
            "trained": trained,
            "frozen": jax.tree.map(jnp.asarray, frozen),
            "optimizer": jax.tree.map(jnp.asarray, optimizer.init(trained)),
        }

    def refill(self, state: Tree, fed: dict[str, Tree], fresh: jax.Array) -> Tree:
        """The state of one slot, begun anew where `fresh`."""
        return jax.tree.map(lambda new, old: jnp.where(fresh, new, old), self.begin(fed), state)

    def advance(
        self,
        family: LotFamily,
        state: dict[str, Tree],
        fed: dict[str, Tree],
        done: jax.Array,
        steps: jax.Array,
        data: Tree,
    ) -> dict[str, Tree]:
        """One slot after `steps` more steps, the first of which has number `done`."""
        key = _key(fed)
        step = step_function(self._config, key, fed["hyperparameters"], state["frozen"], data)
        lots_key = key_streams.stream(key, "lots")

        def one(offset: jax.Array, carry: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
            number = done + offset
            lot = family.draw(threefry.fold_in(lots_key, number), fed["lots"], self._rows)
            return step(carry, number, lot, fed["expected_lot_size"])

        trained, optimizer = jax.lax.fori_loop(
            jnp.uint32(0), steps, one, (state["trained"], state["optimizer"])
        )
        return state | {"trained": trained, "optimizer": optimizer}

    def _harvest(self, state: dict[str, Tree], slot: jax.Array) -> Tree:
        one = jax.tree.map(lambda leaf: leaf[slot], state)
        return self._finish(merge(one["trained"], one["frozen"]), self._finish_data)


def _key(fed: dict[str, Tree]) -> jax.Array:
    return jax.random.wrap_key_data(fed["key"], impl=key_streams.IMPLEMENTATION)


class Slots:
    """The slots of one bucket while it runs."""

    def __init__(
        self, bucket: Bucket, candidates: Candidates, program: SlotProgram, placement: Placement
    ):
        self.bucket, self.work = bucket, Work()
        self._candidates, self._program = candidates, program
        self._placement = placement.with_lanes(bucket.slots)
        first = family_of(candidates.configs[bucket.members[0]].lots)
        self._family = dataclasses.replace(first, capacity=bucket.capacity)
        mapped = self._placement.mapped
        self._refill = jax.jit(mapped(program.refill, (0, 0, 0)), donate_argnums=0)
        self._advance = jax.jit(
            mapped(
                lambda *arguments: program.advance(self._family, *arguments), (0, 0, 0, None, None)
            ),
            donate_argnums=0,
        )
        self.taken = 0  # members that have, or have had, a slot
        self.member = np.full(bucket.slots, -1)  # of each slot; -1 without
        self.done = np.zeros(bucket.slots, np.uint32)  # steps, of each slot
        empty = candidates.fed(bucket.members[0], self._family)
        self._feed: list[dict[str, Tree]] = [
            empty | {"key": np.asarray(jax.random.key_data(key))}
            for key in key_streams.candidate_keys(bucket.slots)
        ]
        self._fed = self._stacked_feed()
        # Slots begin by the program that refills them, so that nothing tells first from later.
        shapes = jax.eval_shape(mapped(program.begin, (0,)), self._fed)
        zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
        self.state = self._placement.put(zeros)

    @property
    def finished(self) -> bool:
        return self.taken == len(self.bucket.members) and (self.member < 0).all()

    def _left(self) -> np.ndarray:
        """Steps still to do, of each slot that has a candidate (others: the largest integer)."""
        steps = [self._candidates.configs[m].steps if m >= 0 else 0 for m in self.member]
        return np.where(self.member < 0, np.iinfo(np.int64).max, steps - self.done.astype(np.int64))

    def take_candidates(self) -> None:
        """Gives the next candidates to the slots without one."""
        fresh = np.zeros(self.bucket.slots, bool)
        for slot in np.flatnonzero(self.member < 0):
            if self.taken < len(self.bucket.members):
                self.member[slot] = self.bucket.members[self.taken]
                self._feed[slot] = self._candidates.fed(self.member[slot], self._family)
                self.done[slot], fresh[slot] = 0, True
                self.taken += 1
        if not fresh.any():
            return
        self._fed = self._stacked_feed()
        self.state = self._refill(self.state, self._fed, self._placement.put(fresh))

    def _stacked_feed(self) -> Tree:
        """What the device is told of whoever is in the slots."""
        return self._placement.put(jax.tree.map(lambda *leaves: np.stack(leaves), *self._feed))

    def to_arrays(self) -> Arrays:
        """All that changes while the bucket runs."""
        leaves = jax.device_get(jax.tree.leaves(self.state))
        return {
            "taken": np.int64(self.taken),
            "member": self.member,
            "done": self.done,
            "work": np.asarray(dataclasses.astuple(self.work), np.int64),
        } | named_leaves("state", leaves)

    def from_arrays(self, arrays: Arrays) -> None:
        """Goes on from what `to_arrays` returned."""
        self.taken = int(arrays["taken"])
        self.member, self.done = arrays["member"].copy(), arrays["done"].copy()
        self.work = Work(*arrays["work"].tolist())
        self.state = self._placement.put(unnamed_leaves("state", arrays, self.state))
        for slot in np.flatnonzero(self.member >= 0):
            self._feed[slot] = self._candidates.fed(self.member[slot], self._family)
        self._fed = self._stacked_feed()

    def output_shapes(self) -> Tree:
        """Shapes and types of one candidate's output."""
        return jax.eval_shape(self._program.harvest, self.state, np.int32(0))

    def advance(self, most: int) -> list[tuple[int, Tree]]:
        """Advances all slots to the next end of a candidate, or by `most` steps.

        Returns the candidates that finished, with their outputs on the host.
        """
        left = self._left()
        steps = int(min(left.min(), most))
        done = self._placement.put(self.done)
        self.state = self._advance(
            self.state, self._fed, done, np.uint32(steps), self._program.data
        )
        self.done = self.done + np.uint32(steps)
        active = self.member >= 0
        needed = sum(self._candidates.capacity(m) for m in self.member[active])
        self.work += Work(
            needed * steps,
            self.bucket.slots * self.bucket.capacity * steps,
            int(active.sum()) * steps,
            self.bucket.slots * steps,
        )
        ended = np.flatnonzero(left == steps)
        outputs = [self._program.harvest(self.state, np.int32(slot)) for slot in ended]
        harvest = list(zip(self.member[ended].tolist(), jax.device_get(outputs)))
        self.member[ended] = -1
        return harvest


def named_leaves(prefix: str, leaves: list[np.ndarray]) -> Arrays:
    """A tree's leaves by name, prefix_0, prefix_1, ..., as a checkpoint holds them."""
    return {f"{prefix}_{place}": np.asarray(leaf) for place, leaf in enumerate(leaves)}


def unnamed_leaves(prefix: str, arrays: Arrays, like: Tree) -> Tree:
    """The tree of structure `like` whose leaves `named_leaves` named."""
    structure = jax.tree.structure(like)
    return jax.tree.unflatten(
        structure, [arrays[f"{prefix}_{place}"] for place in range(structure.num_leaves)]
    )
