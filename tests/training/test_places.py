"""Where the records of a lot stand tells nothing of one of them, and moves no other.

Every statistical test has a fixed seed and an error rate of at most 1e-4.
"""

import functools
import itertools
import math
from collections import Counter

import held_back
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpjax import training
from dpjax.randomness import threefry
from dpjax.training import micro_batches, places

DRAWS = 100_000
ERROR_RATE = 1e-4
OPTIMISED = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}


# The law ------------------------------------------------------------------------------------------

SMALL = {
    "sparse": training.PoissonLots(6, 0.4, 3),
    "dense": training.PoissonLots(4, 0.4, 4),
    "all": training.PoissonLots(5, 1.0, 5),
}


@functools.cache
def drawn(lots, number):
    """Records by place, int (draws, places); -1 where a place is empty."""
    draw = jax.jit(jax.vmap(lots.draw, in_axes=(0, None)))
    indices, mask = draw(jax.random.split(jax.random.key(2), DRAWS), jnp.int32(number))
    return np.where(np.asarray(mask), np.asarray(indices), -1)


def law(lots, number):
    """Probability of each (places, members): members Poisson, cut if need be, places uniform."""
    size, width, rate = lots.dataset_size_bound, lots.places, lots.sampling_probability
    sizes = scipy.stats.binom.pmf(np.arange(size + 1), size, rate)
    most = min(size, width)
    sizes = np.append(sizes[:most], sizes[most:].sum())
    found = Counter()
    for members in range(most + 1):
        for some in itertools.permutations(range(size), members):
            for at in itertools.combinations(range(width), members):
                state = [-1] * width
                for place, record in zip(at, some):
                    state[place] = record if record < number else -1
                ways = math.perm(size, members) * math.comb(width, members)
                found[tuple(state)] += sizes[members] / ways
    return found


def p_value(states, expected):
    """Chi-square; states expected fewer than 5 times are taken together."""
    seen = Counter(map(tuple, states.tolist()))
    assert not set(seen) - {state for state, share in expected.items() if share > 0}
    common = [state for state, share in expected.items() if share * len(states) >= 5]
    observed = [seen[state] for state in common]
    wanted = [expected[state] * len(states) for state in common]
    if len(states) - sum(wanted) > 1:
        observed.append(len(states) - sum(observed))
        wanted.append(len(states) - sum(wanted))
    return scipy.stats.chisquare(observed, np.array(wanted) * sum(observed) / sum(wanted)).pvalue


def test_an_order_is_that_of_words_of_64_bits():
    """Half of them tie among so many places, and would be drawn anew."""
    number, key = 2**16, jax.random.key(4, impl="threefry2x32")
    high, low = map(np.asarray, threefry.random_words(key, number, start=np.uint32(2**31)))
    assert len(np.unique(high)) < number
    words = (high.astype(np.uint64) << np.uint64(32)) | low
    expected = np.argsort(words - words % np.uint64(number), stable=True)
    np.testing.assert_array_equal(places.random_order(key, number), expected)


@pytest.mark.parametrize("name", SMALL)
def test_members_are_poisson_and_stand_at_uniformly_random_places(name):
    """All places and members together: exchangeable in both, each member with the probability."""
    lots = SMALL[name]
    size, rate = lots.dataset_size_bound, lots.sampling_probability
    for number in (size, size - 1):
        states = drawn(lots, number)
        assert states.shape == (DRAWS, lots.places)
        assert p_value(states, law(lots, number)) > ERROR_RATE
    states = drawn(lots, size)
    for record in range(size):
        members = int((states == record).any(axis=1).sum())
        if lots.dense:
            assert scipy.stats.binomtest(members, DRAWS, rate).pvalue > ERROR_RATE / size


def old_rule(states):
    """Members fill the first places, as lots had it."""
    members = np.where(states < 0, 10**6, states).argsort(axis=1, kind="stable")
    return np.take_along_axis(states, members, axis=1)


@pytest.mark.parametrize("name", ["sparse", "dense"])
def test_the_law_of_places_rejects_members_that_fill_the_first_places(name):
    lots = SMALL[name]
    with pytest.raises(AssertionError):  # an order without a law, in some states only
        assert p_value(old_rule(drawn(lots, lots.dataset_size_bound)), law(lots, 10)) > ERROR_RATE


def independence(states, record):
    """P-value of: the others' places say nothing of whether this record is a member."""
    member = (states == record).any(axis=1)
    others = np.where(states == record, -1, states)
    # Which places they occupy, and where one of them stands.
    occupied = (others >= 0) @ (1 << np.arange(states.shape[1]))
    place = np.where((others == 1).any(axis=1), (others == 1).argmax(axis=1), -1)
    table = Counter(zip(member.tolist(), occupied.tolist(), place.tolist()))
    kinds = {state[1:] for state in table}
    kinds = [kind for kind in kinds if sum(table[(m, *kind)] for m in (False, True)) > 100]
    counts = [[table[(m, *kind)] for kind in kinds] for m in (False, True)]
    return scipy.stats.chi2_contingency(counts).pvalue


@pytest.mark.parametrize(
    "lots", [training.PoissonLots(12, 0.05, 6), training.PoissonLots(6, 0.4, 6)]
)
def test_the_places_of_others_say_nothing_of_one_membership(lots):
    """Capacities that cut hardly any lot: a cut is charged by itself."""
    states = drawn(lots, lots.dataset_size_bound)
    for record in (0, lots.dataset_size_bound - 1):
        assert independence(states, record) > ERROR_RATE
    # The first record of all leaves a hole at the first place.
    assert independence(old_rule(states), 0) < 1e-30


@pytest.mark.parametrize("lots", [training.PoissonLots(40, 0.2, 20), training.PoissonLots(8, 1, 8)])
def test_one_record_less_leaves_a_hole_and_moves_nothing(lots):
    size = lots.dataset_size_bound
    more, less = drawn(lots, size), drawn(lots, size - 1)
    np.testing.assert_array_equal(np.where(more == size - 1, -1, more), less)
    assert (more == size - 1).any()


@pytest.mark.parametrize(
    "rows", [1, 2, 3, 100, pytest.param(2**21 + 5, id="places of more than 21 digits")]
)
def test_an_order_has_every_place_once(rows):
    order = jax.jit(places.random_order, static_argnums=1)(jax.random.key(1), rows)
    np.testing.assert_array_equal(np.sort(order), np.arange(rows))
    if rows >= 100:  # as far from its own place as a random one is, on average a third
        apart = np.abs(np.asarray(order) - np.arange(rows)).mean() / rows
        assert abs(apart - 1 / 3) < 5 * 0.24 / math.sqrt(rows)


def test_all_orders_are_equally_likely():
    keys = jax.random.split(jax.random.key(3), DRAWS)
    orders = jax.jit(jax.vmap(lambda key: places.random_order(key, 5)))(keys)
    assert p_value(np.asarray(orders), dict.fromkeys(itertools.permutations(range(5)), 1 / 120)) > (
        ERROR_RATE
    )


# Turns --------------------------------------------------------------------------------------------


def tables(lots_of_records, width):
    """For lots (lots, places) of records, -1 where empty: what stands where, in each turn."""
    states = np.asarray(lots_of_records)
    taken, live, turns = jax.vmap(functools.partial(places.in_turns, width=width))(states >= 0)
    rows = np.take_along_axis(states, np.minimum(taken, states.shape[1] - 1), axis=1)
    rows = np.where(np.asarray(live), rows, -1).reshape(len(states), -1, width)
    return rows, np.asarray(turns)


def all_lots(members, width):
    """All the ways in which members stand at so many places."""
    found = []
    for at in itertools.permutations(range(width), len(members)):
        state = np.full(width, -1)
        state[list(at)] = members
        found.append(state)
    return np.array(found)


@pytest.mark.parametrize(("rows", "width"), [(6, 2), (7, 3), (5, 5), (4, 1), (3, 4)])
def test_rows_stay_in_their_columns_and_fill_the_first_turns(rows, width):
    masks = np.array(list(itertools.product([False, True], repeat=rows)))
    found, turns = tables(np.where(masks, np.arange(rows), -1), width)
    for mask, table, number in zip(masks, found, turns):
        columns = [[p for p in range(column, rows, width) if mask[p]] for column in range(width)]
        assert number == max(map(len, columns))
        for column, own in enumerate(columns):
            np.testing.assert_array_equal(table[: len(own), column], own)
            assert (table[len(own) :, column] == -1).all()


OTHERS = (1, 2, 3, 4)


@pytest.mark.parametrize(("rows", "width"), [(5, 2), (6, 2), (6, 3), (5, 1)])
def test_with_and_without_a_record_turns_are_coupled(rows, width):
    """Exactly, over all orders: put the last of its column in the record's place. That gives every
    lot of the others equally often; and two micro-batches differ, in one column."""
    (with_one, _), (without, _) = (
        tables(all_lots(members, rows), width) for members in ((0, *OTHERS), OTHERS)
    )
    images = []
    for table in with_one:
        ((turn, column),) = np.argwhere(table == 0)
        last = int((table[:, column] >= 0).sum()) - 1
        image = table.copy()
        image[turn, column], image[last, column] = table[last, column], -1
        images.append(image)
        assert ((image != table).any(axis=1)).sum() == (1 if last == turn else 2)
        assert (np.delete(image, column, axis=1) == np.delete(table, column, axis=1)).all()
    wanted = Counter(table.tobytes() for table in without)
    found = Counter(image.tobytes() for image in images)
    assert set(found) == set(wanted)
    for key, count in found.items():
        assert count * len(without) == wanted[key] * len(images)


def test_the_coupling_does_not_hold_where_members_are_moved_together():
    """As `compact` did: the columns of others differ, so the two lots have other tables."""
    rows, width = 6, 2

    def compacted(members):
        states = old_rule(all_lots(members, rows))
        return tables(states, width)[0]

    with_one = {np.where(t == 0, -1, t).tobytes() for t in compacted((0, *OTHERS))}
    assert with_one.isdisjoint(t.tobytes() for t in compacted(OTHERS))


# Rows whose last bits depend on their place -------------------------------------------------------


def _regression(params, row):
    return 0.5 * (row[0] @ params - row[1]) ** 2


def _convolved(kernel, pixels):
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        pixels[None], kernel, (1, 1), "SAME", dimension_numbers=numbers
    )[0, ..., 0]


def _of_pixels(kernel, row):
    return 0.5 * jnp.sum(jnp.square(_convolved(kernel, row[0]) - row[1]))


def _rows_that_hang_on_their_place(size, shape, params, outputs):
    """A row whose outputs have other bits from some place of a batch on, that place, None if this
    machine rounds alike everywhere, and the outputs at the first place."""
    generator = np.random.default_rng(0)
    batched = jax.jit(
        lambda rows: jax.vmap(outputs, (None, 0))(params, rows), compiler_options=OPTIMISED
    )
    for _ in range(40):
        pixel = np.round(generator.uniform(0, 255, size=shape[-1])).astype(np.float32) * 64
        row = np.broadcast_to(pixel, shape).copy()
        found = np.asarray(batched(np.repeat(row[None], size, 0)))
        other = (found != found[0]).reshape(size, -1).any(axis=1)
        if other.any():
            return row, int(other.argmax()), found[0]
    return row, None, found[0]


CASES = {
    "regression, 100": (_regression, 100, (784,), (784,), lambda w, x: x @ w),
    "regression, 12": (_regression, 12, (784,), (784,), lambda w, x: x @ w),
    "a convolution to one channel, 4": (_of_pixels, 4, (5, 5, 63), (1, 1, 63, 1), _convolved),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("hole", ["at row 1", "in the rows' own column"])
def test_a_hole_moves_no_other_row_in_a_micro_batch(name, hole):
    """It is a record of zeros: its own contribution is zero. Rows stand at the first of the last
    places of each micro-batch, and have a gradient there and none before. They moved the sum by 20,
    100 and 50 clip norms when the hole moved them up by a place."""
    loss, size, shape, of_params, outputs = CASES[name]
    params = np.random.default_rng(1).normal(size=of_params).astype(np.float32)
    row, place, output = _rows_that_hang_on_their_place(size, shape, params, outputs)
    rows = 20 * size
    x, y = np.zeros((rows, *shape), np.float32), np.zeros((rows, *output.shape), np.float32)
    rounds_otherwise, place = place is not None, size - 1 if place is None else place
    first, removed = (place, 1) if hole == "at row 1" else (place + size, place)
    x[first::size], y[first::size] = row, output
    assert not x[removed].any()
    grad_fn = training.clipped_grad(loss)

    def summed(indices, mask):
        data = jnp.asarray(x), jnp.asarray(y)
        return micro_batches.sum_of_lot(
            grad_fn, jnp.asarray(params), data, (indices, mask), 1.0, None, size
        )

    compiled = jax.jit(summed, compiler_options=OPTIMISED)

    def total(indices, mask):
        return sum(np.asarray(part, np.float64) for part in compiled(indices, mask))

    own, present = np.arange(rows), np.ones(rows, bool)
    whole, less = total(own, present), total(own, own != removed)
    held = {"terms": 25, "cancels": True} if "convolution" in name else {}
    assert np.linalg.norm(whole - less) <= held_back.influence(size, rows, **held)
    if rounds_otherwise:  # Moved up by one, rows leave their column.
        up = np.append(np.delete(own, removed), removed)
        assert np.linalg.norm(whole - total(up, own != rows - 1)) > 10
