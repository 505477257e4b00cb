"""Candidates that differ in lot size and number of steps, trained side by side in slots.

`sweep` needs runs of one shape. Here every candidate has a configuration of its own: candidates of
similar lots share a program (`schedule.py`, `lot_families.py`), a fixed number of slots advances
together until the first of them has finished, and a finished slot takes the next candidate. No step
is executed that no candidate waits for, except in slots that have run out of candidates.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.training import keys as key_streams
from dpjax.training.dp_sgd import (
    TrainConfig,
    checked_number_of_records,
    merge,
    partition,
    step_function,
)
from dpjax.training.lot_families import LotFamily, family_of
from dpjax.training.placement import Placement
from dpjax.training.schedule import Bucket, Work, plan_buckets
from dpjax.training.sweep import checked_candidates

Tree = Any


def mixed_sweep(
    configs: Sequence[TrainConfig],
    keys: jax.Array,
    hyperparameters: Mapping[str, Any],
    data: Tree,
    *,
    initial: Callable[[jax.Array], Tree],
    finish: Callable[[Tree, Tree], Tree] = lambda params, finish_data: params,
    finish_data: Tree = (),
    chunk_size: int = 32,
    useful_work: float = 0.85,
    steps_per_call: int = 4096,
    placement: Placement | None = None,
    progress: Callable[[int, int], None] | None = None,
    report: Callable[[Work], None] | None = None,
) -> Iterator[tuple[np.ndarray, Tree]]:
    """Trains candidates that may differ in lots, number of steps and expected lot size.

    Formal guarantees:
      * Candidate i is trained as `make_train(configs[i])` trains it: with the lots of its own
        `configs[i].lots` (their capacity and failure probability are what its accounting needs;
        padding beyond them never holds a record), its own steps, key and hyperparameters. Its
        guarantee is that of `make_train`.
      * Its result does not depend on the other candidates, their order, the slots, the steps per
        call or the placement, up to float32 rounding.
      * A key given twice is refused; slots without a candidate get fresh keys, and what they
        compute is dropped.
      * The order and the times at which candidates finish depend on the number of candidates: they
        are the curator's to keep.

    Args:
      configs: one for each candidate, equal in everything but `lots`, `steps` and
        `expected_lot_size` (`dataclasses.replace`); all lots of one relation.
      keys: typed key array (candidates,), from `candidate_keys`.
      hyperparameters: name -> array (candidates,), taken as float32.
      data: pytree of arrays (rows, ...), the private records, shared by all candidates.
      initial: key -> parameters, given each candidate's own "initial" stream. Must not see data.
      finish: (trained parameters, finish_data) -> what to hand out of a candidate, a pytree of
        arrays; the parameters by default.
      finish_data: pytree of arrays that `finish` reads, for example validation records.
      chunk_size: THE memory knob: at most so many candidates side by side on one device.
      useful_work: least planned fraction of useful work, in (0, 1] (see `schedule.Work`). Lower:
        fewer compilations, more candidates side by side, more padding and waiting.
      steps_per_call: at most so many steps in one call to the device; the host can do nothing in
        between (progress, interruption, a checkpoint).
      placement: devices to spread over; its width is an upper limit beside chunk_size. None: the
        default device.
      progress: called with (candidates done, candidates in all) whenever some have finished.
      report: called once, at the end, with the `Work` done.

    Yields:
      indices int64 (k,) of finished candidates and their outputs, a pytree of host arrays (k, ...),
      in the order of finishing.

    Raises:
      ValueError: for configurations that differ elsewhere, another number of them than keys, lots
        that do not fit the data, and what `sweep` refuses. Raised by the call itself.
    """
    if chunk_size < 1:
        raise ValueError(f"chunk_size is {chunk_size}: pass at least 1")
    if steps_per_call < 1:
        raise ValueError(f"steps_per_call is {steps_per_call}: pass at least 1")
    values = checked_candidates(keys, hyperparameters)
    configs = list(configs)
    if len(configs) != keys.shape[0]:
        raise ValueError(
            f"{len(configs)} configurations for {keys.shape[0]} keys: pass one for each candidate"
        )
    _refuse_other_differences(configs)
    for lots in {config.lots for config in configs}:
        checked_number_of_records(lots, data, None)
    placement = Placement(chunk_size) if placement is None else placement
    families = [family_of(config.lots) for config in configs]
    buckets = plan_buckets(
        [dataclasses.replace(family, capacity=0) for family in families],
        [family.capacity for family in families],
        [config.steps for config in configs],
        slots=min(chunk_size, placement.width) * placement.device_count,
        useful_work=useful_work,
        slots_multiple=placement.device_count,
    )
    candidates = _Candidates(configs, families, np.asarray(jax.random.key_data(keys)), values)
    data = placement.put(jax.tree.map(np.asarray, data), whole=True)
    program = _Program(configs[0], initial, finish, data, finish_data) if configs else None
    return _trained(candidates, buckets, program, placement, steps_per_call, progress, report)


def _refuse_other_differences(configs: list[TrainConfig]) -> None:
    may_differ = ("lots", "steps", "expected_lot_size")
    for config in configs[1:]:
        for field in dataclasses.fields(TrainConfig):
            ours, first = getattr(config, field.name), getattr(configs[0], field.name)
            if field.name not in may_differ and ours is not first and ours != first:
                raise ValueError(
                    f"the candidates' configurations differ in {field.name}: make them from one by "
                    f"dataclasses.replace, changing only {', '.join(may_differ)}"
                )


@dataclasses.dataclass(frozen=True)
class _Candidates:
    """What tells candidates apart, on the host."""

    configs: list[TrainConfig]
    families: list[LotFamily]
    key_words: np.ndarray  # uint32 (candidates, 2)
    hyperparameters: dict[str, np.ndarray]  # float32 (candidates,)

    def fed(self, member: int, family: LotFamily) -> dict[str, Tree]:
        """What the device is told of one candidate."""
        config = self.configs[member]
        return {
            "key": self.key_words[member],
            "hyperparameters": {name: all_[member] for name, all_ in self.hyperparameters.items()},
            "lots": family.numbers_of(config.lots),
            "expected_lot_size": np.float32(config.expected_lot_size),
        }


class _Program:
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
            lot = family.draw(jax.random.fold_in(lots_key, number), fed["lots"], self._rows)
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


class _Slots:
    """The slots of one bucket while it runs."""

    def __init__(
        self, bucket: Bucket, candidates: _Candidates, program: _Program, placement: Placement
    ):
        self.bucket, self.work = bucket, Work()
        self._candidates, self._program = candidates, program
        self._placement = placement.with_lanes(bucket.slots)
        first = candidates.families[bucket.members[0]]
        self._family = dataclasses.replace(first, capacity=bucket.capacity)
        mapped = self._placement.mapped
        self._begin = jax.jit(mapped(program.begin, (0,)))
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
        self.state: Tree = None
        self._feed: list[dict[str, Tree]] = [
            candidates.fed(bucket.members[0], self._family)
            | {"key": np.asarray(jax.random.key_data(key_streams.candidate_keys(1)))[0]}
        ] * bucket.slots
        self._fed: Tree = None

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
        self.feed()
        if self.state is None:
            self.state = self._begin(self._fed)
        else:
            self.state = self._refill(self.state, self._fed, self._placement.put(fresh))

    def feed(self) -> None:
        """Tells the device who is in which slot."""
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *self._feed)
        self._fed = self._placement.put(stacked)

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
        needed = sum(self._candidates.families[m].capacity for m in self.member[active])
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


def _trained(
    candidates: _Candidates,
    buckets: list[Bucket],
    program: _Program | None,
    placement: Placement,
    steps_per_call: int,
    progress: Callable[[int, int], None] | None,
    report: Callable[[Work], None] | None,
) -> Iterator[tuple[np.ndarray, Tree]]:
    number, finished, work = len(candidates.configs), 0, Work()
    for bucket in buckets:
        slots = _Slots(bucket, candidates, program, placement)
        while not slots.finished:
            slots.take_candidates()
            harvest = slots.advance(steps_per_call)
            if not harvest:
                continue
            finished += len(harvest)
            if progress is not None:
                progress(finished, number)
            members, outputs = zip(*harvest)
            yield np.asarray(members), jax.tree.map(lambda *leaves: np.stack(leaves), *outputs)
        work += slots.work
    if report is not None:
        report(work)
