"""The schedule of a mixed sweep: which candidates share a program, and in how many slots.

NumPy on the host; public numbers in, no device. Candidates differ in rows of a lot and in steps.
Candidates of one bucket have their lots padded to one capacity and take turns in a fixed number of
slots that advance together; a slot whose candidate has finished takes the next one, the longest
first (Graham 1969: a makespan of at most 4/3 of the shortest possible).
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Hashable, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Candidates that share one program."""

    members: tuple[int, ...]  # candidate numbers, the longest run first
    capacity: int  # rows of their padded lots
    slots: int  # how many of them are trained side by side


@dataclasses.dataclass(frozen=True)
class Work:
    """Counts how much of what the device executed was needed.

    One unit is one row of one lot in one step of one candidate. What is needed are records: every
    candidate's steps times its expected lot size. What is executed is, for every bucket, slots
    times steps advanced times the rows of a step: the bucket's capacity or, in micro-batches, as
    many as the largest of the expected lots needs. Lots' padding, the reserve of Poisson lots
    against truncation included, rows added to reach the bucket's capacity, a last micro-batch that
    is part empty, slots that wait for others to finish and slots without a candidate are all lost.
    (All numbers are public: how large lots came out is not looked at.)
    """

    needed: int = 0
    executed: int = 0
    slot_steps_used: int = 0  # steps of candidates
    slot_steps_executed: int = 0  # steps of slots, with or without a candidate

    @property
    def useful(self) -> float:
        """Returns the fraction of useful work, needed over executed; 1 if there was none to do."""
        return self.needed / self.executed if self.executed else 1.0

    def __add__(self, other: Work) -> Work:
        return Work(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other))))


def plan_buckets(
    families: Sequence[Hashable],
    capacities: Sequence[int],
    steps: Sequence[int],
    *,
    slots: int,
    useful_work: float = 0.85,
    slots_multiple: int = 1,
) -> list[Bucket]:
    """Groups candidates so that at least a share `useful_work` of executed rows is useful.

    The padding of a candidate's own lots counts as useful here: no grouping saves it.

    Within a family, the candidate of the largest lot opens a bucket and the next smaller ones join
    while the padding stays small enough; then the bucket gets the most slots that waiting allows.
    A lower `useful_work` gives fewer buckets (compilations) and more slots side by side.

    Candidates of one bucket agree in their family; capacities are the rows of their own lots. At
    most `slots` are side by side, a multiple of `slots_multiple` (devices): `useful_work`, in
    (0, 1], is met unless that asks for more slots than the candidates can fill. Returns the
    buckets, that of the most work first.
    """
    if not 0 < useful_work <= 1:
        raise ValueError(f"useful_work is {useful_work}: pass a fraction in (0, 1], such as 0.85")
    if slots < slots_multiple or slots_multiple < 1:
        raise ValueError(f"{slots} slots: pass at least {slots_multiple}, one for each device")
    rows, lengths = np.asarray(capacities, np.int64), np.asarray(steps, np.int64)
    buckets = []
    for family in dict.fromkeys(families):
        waiting = [index for index, other in enumerate(families) if other == family]
        waiting.sort(key=lambda index: (-rows[index], index))
        while waiting:
            capacity = int(rows[waiting[0]])
            members, padding = _next_bucket(waiting, rows, lengths, math.sqrt(useful_work))
            waiting = waiting[len(members) :]
            members.sort(key=lambda index: (-lengths[index], index))
            own = lengths[members].tolist()
            width = _slots(own, slots, slots_multiple, useful_work / padding)
            buckets.append(Bucket(tuple(members), capacity, width))
    buckets.sort(key=lambda bucket: -bucket.capacity * int(lengths[list(bucket.members)].sum()))
    return buckets


def _next_bucket(
    waiting: list[int], capacities: np.ndarray, steps: np.ndarray, least: float
) -> tuple[list[int], float]:
    """Takes as many of `waiting`, in order, as keep the share of useful rows above `least`.

    The other rows are padding. Returns the runs taken, and their share.
    """
    rows = np.cumsum(steps[waiting] * capacities[waiting])
    useful = rows / (np.cumsum(steps[waiting]) * capacities[waiting[0]])
    # The longest prefix, not the first that fails: short runs of small lots may be carried by
    # longer runs of larger ones.
    number = int(np.flatnonzero(useful >= least)[-1]) + 1
    return waiting[:number], float(useful[number - 1])


def _slots(lengths: list[int], slots: int, multiple: int, least: float) -> int:
    """Returns the number of slots that finishes earliest while occupied for a share of `least`.

    It is the smallest such number, and a multiple of `multiple`.
    """
    most = min(slots // multiple, -(-len(lengths) // multiple))
    best, best_time = multiple, makespan(lengths, multiple)
    for groups in range(2, most + 1):
        width = groups * multiple
        time = makespan(lengths, width)
        if time < best_time and sum(lengths) >= least * width * time:
            best, best_time = width, time
    return best


def makespan(lengths: Sequence[int], slots: int) -> int:
    """Counts the steps until all runs are done, each taken in turn by the slot first free."""
    free = [0] * slots
    for length in lengths:
        heapq.heappush(free, heapq.heappop(free) + int(length))
    return max(free)
