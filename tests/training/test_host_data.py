"""Records that stay on the host train what records on the device train, read as lots need them."""

import dataclasses
import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import one_run
import pytest
from one_run import DATA, GIVEN, ROWS, START, loss

from dpjax import training
from dpjax.randomness import keys as key_streams
from dpjax.training import host_data

BASE = dataclasses.replace(one_run.BASE, steps=4, micro_batch_size=4)
LOTS = {
    # Of a data set smaller than its bound, members lie anywhere in the lot.
    "poisson": (training.PoissonLots(ROWS, 0.3, 20), 31, 4),
    "whole": (training.PoissonLots(ROWS, 0.3, 20), 31, None),
    "most of the records": (training.FixedLots(ROWS, 27), ROWS, 5),
}


MOST = dataclasses.replace(BASE, lots=LOTS["most of the records"][0], relation=None)


class Records:
    """A source of single records, as grain's and TFDS's are; keeps who was asked for."""

    def __init__(self, rows=ROWS, many=False):
        self._rows, self.asked = rows, []
        if many:
            self.__getitems__ = lambda numbers: [self[number] for number in numbers]

    def __len__(self):
        return self._rows

    def __getitem__(self, number):
        assert type(number) is int
        self.asked.append(number)
        return {name: values[number] for name, values in DATA.items()}


class OneArray(Records):
    """A source whose records are one array, filled anew for each."""

    def __init__(self):
        super().__init__()
        self._record = {name: np.zeros_like(values[0]) for name, values in DATA.items()}
        self._record = {name: np.atleast_1d(array) for name, array in self._record.items()}

    def __getitem__(self, number):
        for name, values in DATA.items():
            self._record[name][...] = values[number]
        return {name: a.reshape(DATA[name].shape[1:]) for name, a in self._record.items()}


def given(**changes):
    return {name: np.float32(value) for name, value in (GIVEN | changes).items()}


@functools.cache
def from_host_of(config):
    return training.train_from_host(config)


def from_host(data, config=BASE, key=3, number=None, hyperparameters=None, **options):
    values = hyperparameters or given()
    return from_host_of(config)(jax.random.key(key), values, START, data, number, **options)


@functools.cache
def on_device(config=BASE, key=3, number=None):
    train = jax.jit(training.make_train(config), static_argnums=4)
    return jax.device_get(train(jax.random.key(key), given(), START, DATA, number))


def lots_of(config=BASE, key=3, number=ROWS):
    """The records of every step's lot, as `make_train` draws them."""
    lots_key, found = key_streams.stream(jax.random.key(key), "lots"), []
    for step in range(config.steps):
        indices, mask = config.lots.draw(jax.random.fold_in(lots_key, step), number)
        found.append(np.asarray(indices)[np.asarray(mask)].tolist())
    return found


def assert_close(left, right):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6), left, right)


def assert_identical(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)


def moved(params):
    return max(float(np.abs(params[name] - START[name]).max()) for name in ("bias", "kernel"))


# The same numbers as records on the device -------------------------------------------------------


@pytest.mark.parametrize("name", LOTS)
def test_the_host_trains_what_the_device_trains(name):
    lots, number, size = LOTS[name]
    config = dataclasses.replace(BASE, lots=lots, relation=None, micro_batch_size=size)
    result = from_host(DATA, config, number=number)
    assert_close(result, on_device(config, number=number))
    assert moved(result) > 0.05
    assert result["frozen"] == START["frozen"]


def memmaps(folder):
    maps = {}
    for name, values in DATA.items():
        maps[name] = np.memmap(folder / name, values.dtype, "w+", shape=values.shape)
        maps[name][:] = values
    return maps


def test_every_kind_of_source_prefetch_and_reader_gives_the_same_bits(tmp_path):
    expected = from_host(DATA)
    assert_close(expected, on_device())
    for source in (
        memmaps(tmp_path),
        Records(),
        Records(many=True),
        OneArray(),
        training.HostData(Records(), prefetch=0),
        training.HostData(Records(), prefetch=7, readers=3),
        training.HostData(DATA, prefetch=0),
        [{name: values[row] for name, values in DATA.items()} for row in range(ROWS)],
    ):
        assert_identical(from_host(source), expected)


def test_other_trees_of_arrays_are_columns():
    def tuple_loss(params, example):
        return loss(
            params, {"x": example[0], "y": example[1].astype(jnp.float32)}, jax.random.key(0)
        )

    config = dataclasses.replace(BASE, loss_fn=tuple_loss, with_rng=False)
    # Types are those that arrays on the device have.
    wide = (DATA["x"].astype(np.float64), np.arange(ROWS))
    train = jax.jit(training.make_train(config))
    assert_close(
        from_host(wide, config), jax.device_get(train(jax.random.key(3), given(), START, wide))
    )


def test_the_records_of_the_lots_are_read_once_each_and_no_others():
    source, lots = Records(), lots_of(number=31)
    from_host(source, number=31)
    assert source.asked[0] == 0  # for the shapes
    assert source.asked[1:] == sum(lots, [])
    assert sum(lots, []) != sorted(sum(lots, [])) and max(sum(lots, [])) < 31


def test_an_empty_lot_reads_nothing_and_still_gets_noise():
    config = dataclasses.replace(BASE, lots=training.PoissonLots(ROWS, 1e-30, 20))
    source = Records()
    result = from_host(source, config)
    assert source.asked == [0]
    assert moved(result) > 0.01
    assert_identical(result, on_device(config))
    assert moved(from_host(DATA, config, hyperparameters=given(noise_multiplier=0.0))) == 0.0


def test_a_record_is_held_back_for_the_rows_of_a_whole_lot():
    """A lot of one record and a capacity of 2^14, in micro-batches of 4."""
    config = dataclasses.replace(
        BASE, lots=training.PoissonLots(ROWS, 1.0, 2**14), steps=1, expected_lot_size=1,
        optimizer=training.sgd(),
    )  # fmt: skip
    values = given(clip_norm=0.01, noise_multiplier=0.0, learning_rate=1.0)
    result = from_host(DATA, config, number=1, hyperparameters=values)
    steps = [np.ravel(result[name] - START[name]) for name in ("bias", "kernel")]
    held = np.linalg.norm(np.concatenate(steps).astype(np.float64)) / 0.01
    assert held * (1 + 2**14 * 2.0**-23) == pytest.approx(1.0, abs=1e-4)


def test_rows_that_fail_count_for_nothing():
    records = {name: rows.copy() for name, rows in DATA.items()}
    records["y"][2], records["x"][5, 0] = np.nan, np.inf
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(from_host(records)))


# Going on ----------------------------------------------------------------------------------------


class Killed(Exception):
    pass


def test_a_killed_run_resumes_to_the_identical_result(tmp_path):
    folder, source = str(tmp_path / "run"), Records()

    def saved():
        return training.Checkpoints(folder, every_seconds=0.0)

    def kill(done, total):
        if done == 3:
            raise Killed

    with pytest.raises(Killed):
        from_host(source, checkpoints=saved(), progress=kill)
    for changes in ({"key": 4}, {"hyperparameters": given(clip_norm=0.6)}, {"number": 39}):
        with pytest.raises(ValueError, match="checkpoints are of another run"):
            from_host(source, checkpoints=saved(), **changes)
    source.asked.clear()
    seen = []
    result = from_host(source, checkpoints=saved(), progress=lambda *done: seen.append(done))
    assert_identical(result, from_host(DATA))
    assert seen == [(3, 4), (4, 4)]
    assert source.asked[1:] == sum(lots_of()[2:], [])
    assert not (tmp_path / "run").exists()


# The thread --------------------------------------------------------------------------------------


def prefetchers():
    return [each for each in threading.enumerate() if each.name == "dpjax-prefetch"]


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_items_are_made_ahead_in_order_and_no_further(depth):
    made = []

    def items():
        for number in range(20):
            made.append(number)
            yield number

    ahead = host_data._ahead(items(), depth)
    found = []
    for item in ahead:
        found.append(item)
        assert len(made) <= item + 1 + depth + (depth > 0)
        if item == 12:
            break
    ahead.close()
    assert found == list(range(13))
    assert not prefetchers()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_what_a_source_raises_is_raised_and_the_thread_ends(prefetch):
    class Broken(Records):
        def __getitem__(self, number):
            if len(self.asked) == 15:
                raise OSError("the disc is gone")
            return super().__getitem__(number)

    with pytest.raises(OSError, match="the disc is gone"):
        from_host(training.HostData(Broken(), prefetch=prefetch))
    assert not prefetchers()


def test_memory_is_that_of_micro_batches_whatever_the_lot():
    """What a lot of 16,384 records asks of the source at once, and holds on the device."""
    largest = []

    class Large(Records):
        def __getitems__(self, numbers):
            largest.append(len(numbers))
            return [
                {name: values[number % ROWS] for name, values in DATA.items()} for number in numbers
            ]

    config = dataclasses.replace(
        BASE, lots=training.PoissonLots(60_000, 16_384 / 60_000, 17_156), steps=1,
        expected_lot_size=16_384, micro_batch_size=512,
    )  # fmt: skip
    source = Large(60_000)
    sizes = []
    others = (
        jax.live_arrays()
    )  # of other tests; kept, so that none of this run takes an id of theirs
    known = set(map(id, others))

    def progress(done, total):
        own = (array for array in jax.live_arrays() if id(array) not in known)
        sizes.extend(array.shape for array in own if array.ndim and array.shape[0] > 512)

    from_host(source, config, progress=progress)
    assert max(largest) == 512 and 15_000 < sum(largest) < 17_156
    assert not sizes


# What is refused ---------------------------------------------------------------------------------


def test_bad_sources_are_refused_in_one_line():
    class Uneven(Records):
        def __getitem__(self, number):
            return np.zeros(number % 2 + 1)

    for make, words in (
        (lambda: training.HostData(3), "pass an array"),
        (lambda: training.HostData({"x": 3}), "pass an array"),
        (lambda: training.HostData(iter([1])), "__len__ and __getitem__"),
        (lambda: training.HostData([DATA["x"], DATA["y"]]), "pass a tuple of columns"),
        (lambda: training.HostData((DATA["x"], DATA["y"][:3])), "of one number of rows"),
        (lambda: training.HostData([]), "without records"),
        (lambda: training.HostData(DATA, prefetch=-1), "prefetch"),
        (lambda: training.HostData(DATA, readers=0), "readers"),
        (lambda: training.HostData(Uneven()).rows(np.arange(2)), "all have the same shape"),
        (lambda: from_host(DATA, number=41), "pass at most"),
        (lambda: from_host(DATA, number=-1), "number_of_records must be"),
        (lambda: from_host(DATA, number=jnp.int32(9)), "number_of_records must be"),
        # Fixed lots are drawn from their own number of rows, whatever is asked for.
        (lambda: from_host(DATA, MOST, number=31), "made for exactly 40"),
        (lambda: from_host(DATA, progress=3), "progress"),
        (lambda: from_host(Records(50), dataclasses.replace(BASE)), "lots were made for 0 to 40"),
    ):
        with pytest.raises(ValueError, match=words) as error:
            make()
        assert "\n" not in str(error.value)


def test_formal_guarantees_are_stated():
    stated = " ".join(host_data.train_from_host.__doc__.split())
    for words in (
        "Formal guarantees:",
        "Every record of a lot stands in one micro-batch once",
        "noise is added once",
        "An empty lot reads nothing",
    ):
        assert words in stated
