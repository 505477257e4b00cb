"""The plan of a mixed sweep wastes no more than allowed, at the extremes and on a real domain."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpjax.training.sweep.schedule import Work, makespan, plan_buckets

ADULT_RECORDS = 30_956


def planned_work(buckets, capacities, steps):
    """The work of whole lots, each of its bucket's capacity, that a sweep over these will do."""
    total = Work()
    for bucket in buckets:
        lengths = [int(steps[member]) for member in bucket.members]
        needed = sum(int(steps[member]) * int(capacities[member]) for member in bucket.members)
        slot_steps = bucket.slots * makespan(lengths, bucket.slots)
        total += Work(needed, slot_steps * bucket.capacity, sum(lengths), slot_steps)
    return total


def brute_force_makespan(lengths, slots):
    """The schedule by a clock that ticks once a step."""
    waiting, running, clock = list(lengths), [0] * slots, 0
    while waiting or any(running):
        for slot in range(slots):
            if running[slot] == 0 and waiting:
                running[slot] = waiting.pop(0)
        running = [max(0, left - 1) for left in running]
        clock += 1
    return clock


@pytest.mark.parametrize("slots", [1, 2, 3, 7])
def test_makespan_is_that_of_a_clock(slots):
    lengths = [9, 7, 7, 5, 4, 1, 1]
    assert makespan(lengths, slots) == brute_force_makespan(lengths, slots)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(1, 4000), st.integers(1, 9999)),
        min_size=1,
        max_size=40,
    ),
    st.integers(1, 16),
    st.sampled_from([0.5, 0.85, 1.0]),
)
def test_every_candidate_once_and_the_promise_kept(candidates, slots, useful_work):
    families, capacities, steps = (list(column) for column in zip(*candidates))
    buckets = plan_buckets(families, capacities, steps, slots=slots, useful_work=useful_work)
    members = list(itertools.chain.from_iterable(bucket.members for bucket in buckets))
    assert sorted(members) == list(range(len(candidates)))
    for bucket in buckets:
        assert len({families[member] for member in bucket.members}) == 1
        assert max(capacities[member] for member in bucket.members) == bucket.capacity
        assert 1 <= bucket.slots <= min(slots, len(bucket.members))
    work = planned_work(buckets, capacities, steps)
    assert work.useful >= useful_work - 1e-9
    assert work.needed == sum(c * s for c, s in zip(capacities, steps))


@pytest.mark.parametrize("spread", ["uniform", "logarithmic"])
@pytest.mark.parametrize("number", [16, 256])
def test_useful_work_on_the_adult_domain_of_dpareto(spread, number):
    """Lots of 16 to 4000 and 1 to 400 epochs of 30,956 records: at least 0.85 useful."""
    generator = np.random.default_rng(0)

    def draw(low, high):
        if spread == "uniform":
            return generator.integers(low, high + 1, number)
        return np.exp(generator.uniform(np.log(low), np.log(high), number)).round().astype(int)

    lots, epochs = draw(16, 4000), draw(1, 400)
    steps = np.maximum(1, np.round(epochs * ADULT_RECORDS / lots)).astype(int)
    buckets = plan_buckets(["fixed"] * number, lots, steps, slots=64)
    assert planned_work(buckets, lots, steps).useful >= 0.85
    assert len(buckets) < 30  # compilations
    if spread == "uniform" and number == 256:
        assert max(bucket.slots for bucket in buckets) >= 16
    # One bucket with as many slots as allowed is what this is better than.
    naive = plan_buckets(["fixed"] * number, lots, steps, slots=64, useful_work=1e-9)
    assert len(naive) == 1 and planned_work(naive, lots, steps).useful < 0.5


def test_equal_candidates_fill_the_slots_evenly():
    """33 equal runs in at most 32 slots: 17 of them or fewer, not 32 with 31 waiting."""
    (bucket,) = plan_buckets(["a"] * 33, [8] * 33, [10] * 33, slots=32)
    assert bucket.slots == 17
    assert planned_work([bucket], [8] * 33, [10] * 33).useful == 33 / 34


def test_slots_are_a_multiple_of_the_devices_even_if_some_stay_empty():
    (bucket,) = plan_buckets(["a"] * 6, [8] * 6, [10] * 6, slots=16, slots_multiple=4)
    assert bucket.slots == 4
    assert planned_work([bucket], [8] * 6, [10] * 6).useful == 6 / 8


def test_no_work_is_useful_and_work_adds_up():
    assert Work().useful == 1.0
    assert Work(1, 2, 3, 4) + Work(10, 20, 30, 40) == Work(11, 22, 33, 44)
