"""Lanes: candidates side by side on the devices, and the loop over their buckets.

All that sweeps have in common: who is in which lane, what the device is given of him, and the order
in which results, progress and checkpoints leave. `sweep.py` fills lanes with whole runs, `slots.py`
with runs that advance step by step.
"""

from __future__ import annotations

import abc
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from dpjax.randomness import keys as key_streams
from dpjax.training.sweep.checkpoints import Arrays, Checkpoints, named_leaves, unnamed_leaves
from dpjax.training.sweep.placement import Placement
from dpjax.training.sweep.schedule import Bucket, Work

Tree = Any
LaneInputs = dict[str, Tree]
"""What the device is given of one candidate: arrays by name; `key`, uint32 (2,), is one of them."""
Harvest = tuple[np.ndarray, Tree]
"""Finished candidates int64 (k,) and their outputs, host arrays (k, ...); None for k = 0."""


def key_of(inputs: LaneInputs) -> jax.Array:
    """The candidate's typed key, shape ()."""
    return jax.random.wrap_key_data(inputs["key"], impl=key_streams.IMPLEMENTATION)


class Lanes(abc.ABC):
    """The lanes of one bucket while it runs; they take its members in order.

    A lane without a candidate has a key of its own: no two lanes share noise, not even noise that
    is dropped.

    Attributes:
      bucket: whose members are trained here.
      placement: one that has as many lanes as the bucket asks for.
      taken: members that have, or have had, a lane.
      member: int64 (lanes,), who is in each; -1 without.
      inputs: pytree (lanes, ...) on the devices, what they are given of each.
      work: done so far, where it is counted.
    """

    def __init__(
        self, bucket: Bucket, placement: Placement, inputs_of: Callable[[int], LaneInputs]
    ):
        """Lanes without candidates; `inputs_of` gives what the device is given of a member."""
        self.bucket, self.placement = bucket, placement.with_lanes(bucket.slots)
        self.taken, self.member, self.work = 0, np.full(bucket.slots, -1), Work()
        self._inputs_of = inputs_of
        like, words = inputs_of(bucket.members[0]), key_streams.candidate_keys(bucket.slots)
        self._without = [like | {"key": own} for own in np.asarray(jax.random.key_data(words))]
        self.feed()

    @property
    def finished(self) -> bool:
        return self.taken == len(self.bucket.members) and bool((self.member < 0).all())

    def take_candidates(self) -> np.ndarray:
        """Gives the next candidates to the lanes without one; says which lanes, bool (lanes,)."""
        free = np.flatnonzero(self.member < 0)
        coming = self.bucket.members[self.taken : self.taken + len(free)]
        fresh = np.zeros(self.bucket.slots, bool)
        fresh[free[: len(coming)]] = True
        self.member[fresh] = coming
        self.taken += len(coming)
        if len(coming):
            self.feed()
        return fresh

    def feed(self) -> None:
        """Gives the devices what they need of whoever is in the lanes."""
        feed = [
            self._inputs_of(int(member)) if member >= 0 else without
            for member, without in zip(self.member, self._without)
        ]
        self.inputs = self.placement.put(jax.tree.map(lambda *leaves: np.stack(leaves), *feed))

    @abc.abstractmethod
    def advance(self, most: int) -> Harvest:
        """Trains on, by at most `most` steps or until a candidate ends; empties lanes that end."""


@dataclasses.dataclass(frozen=True)
class BucketLoop:
    """All buckets, one after the other.

    Attributes:
      buckets: who is trained together.
      lanes_of: bucket -> its `Lanes`; `Slots` where there are checkpoints.
      steps_per_call: at most so many steps in one call to the device.
      checkpoints: where to save; None: nowhere.
      identity: tells this sweep from another, for checkpoints.
    """

    buckets: list[Bucket]
    lanes_of: Callable[[Bucket], Any]
    steps_per_call: int = 1
    checkpoints: Checkpoints | None = None
    identity: bytes = b""

    def results(
        self,
        saved: tuple[Arrays | None, list[Arrays]] | None,
        progress: Callable[[int, int], None] | None,
        report: Callable[[Work], None] | None,
    ) -> Iterator[Harvest]:
        """Trains what is not in `saved`; yields everything."""
        total, finished = sum(len(bucket.members) for bucket in self.buckets), 0
        work, first = Work(), 0
        standing, earlier = saved or (None, [])
        if standing is not None:
            first, work = int(standing["bucket"]), Work(*standing["work_before"].tolist())
        unsaved: list[Harvest] = []
        for number in range(first, len(self.buckets)):
            lanes = self.lanes_of(self.buckets[number])
            if number == first and standing is not None:
                lanes.from_arrays(standing)
                for arrays in earlier:
                    members = arrays["members"]
                    finished += len(members)
                    yield members, unnamed_leaves("output", arrays, lanes.output_shapes())
                if progress is not None:
                    progress(finished, total)
            most = self.steps_per_call if self.checkpoints is None else 1
            while not lanes.finished:
                lanes.take_candidates()
                started = time.monotonic()
                harvest = lanes.advance(most)
                found = len(harvest[0])
                finished += found
                if self.checkpoints is not None:
                    # Calls of at most half the time between saves, found by doubling.
                    jax.block_until_ready(lanes.state)
                    short = time.monotonic() - started < self.checkpoints.every_seconds / 4
                    most = min(2 * most, self.steps_per_call) if short else max(1, most // 2)
                    unsaved += [harvest] if found else []
                    if self.checkpoints.due():
                        self._save(self.checkpoints, number, work, lanes, unsaved)
                        unsaved = []
                if not found:
                    continue
                if progress is not None:
                    progress(finished, total)
                yield harvest
            work += lanes.work
        if self.checkpoints is not None:
            self.checkpoints.remove()
        if report is not None:
            report(work)

    def _save(
        self, checkpoints: Checkpoints, number: int, work: Work, slots: Any, unsaved: list[Harvest]
    ) -> None:
        outputs = None
        if unsaved:
            members, trees = zip(*unsaved)
            joined = jax.tree.map(lambda *leaves: np.concatenate(leaves), *trees)
            outputs = {"members": np.concatenate(members)}
            outputs |= named_leaves("output", jax.tree.leaves(joined))
        sweep = {
            "identity": np.frombuffer(self.identity, np.uint8),
            "bucket": np.int64(number),
            "work_before": np.asarray(dataclasses.astuple(work), np.int64),
        }
        checkpoints.save(sweep | slots.to_arrays(), outputs)
