"""A lot's clipped sum in micro-batches: the whole lot's numbers, in no more turns than it needs."""

import dataclasses
import functools
from fractions import Fraction

import held_back
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from one_run import BASE, DATA, GIVEN, ROWS, START, loss

from dpjax import models, training, tuning
from dpjax.randomness import keys as key_streams
from dpjax.randomness import noise, threefry
from dpjax.training import micro_batches
from dpjax.training.sweep.schedule import Work
from experiments.figures.papernot_steinke.all_conv_nets import AllConvNet

LOTS = {
    # Of a data set smaller than its bound, members lie anywhere in the lot.
    "poisson": (training.PoissonLots(ROWS, 0.3, 20), 31),
    "dense poisson": (training.PoissonLots(ROWS, 0.6, 33), 31),
    "fixed": (training.FixedLots(ROWS, 11), ROWS),
    "most of the records": (training.FixedLots(ROWS, 27), ROWS),
}


def given(**changes):
    return {n: np.float32(v) for n, v in (GIVEN | changes).items()}


@functools.cache
def compiled(config):
    return jax.jit(training.make_train(config))


def trained(size, key=3, number=None, data=DATA, config=BASE, hyperparameters=None, **changes):
    config = dataclasses.replace(config, micro_batch_size=size, **changes)
    number = np.int32(ROWS if number is None else number)
    values = given() if hyperparameters is None else hyperparameters
    return jax.device_get(compiled(config)(jax.random.key(key), values, START, data, number))


def assert_close(left, right, error=1e-6):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=error, atol=error), left, right)


SHARES = held_back.share(40, 40)
"""What contributions to lots of these runs, whole or in turns, differ by: where they are clipped,
sums are of rows that are shorter by what is held back, and this is the most of it."""


def assert_identical(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)


def moved(params):
    return max(float(np.abs(params[name] - START[name]).max()) for name in ("bias", "kernel"))


# The same numbers as the whole lot's -------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 17])
@pytest.mark.parametrize("name", LOTS)
def test_micro_batches_give_the_whole_lots_numbers(name, size):
    """Keys of rows, rows that are clipped or not, frozen leaves, and members that lie anywhere."""
    lots, number = LOTS[name]
    changes = {"lots": lots, "relation": None, "number": number}
    whole = trained(None, **changes)
    assert_close(trained(size, **changes), whole, 2 * SHARES)
    assert moved(whole) > 0.05
    assert whole["frozen"] == START["frozen"]
    # Where no row is clipped nothing is held back; the same noise.
    changes["hyperparameters"] = given(clip_norm=700.0, noise_multiplier=0.0005)
    whole = trained(None, **changes)
    assert_close(trained(size, **changes), whole)
    assert moved(whole) > 0.05


def test_members_of_these_lots_do_lie_anywhere():
    """Else the equality above says nothing of where they stand."""
    lots, number = LOTS["poisson"]
    lots_key = key_streams.stream(jax.random.key(3), "lots")
    masks = [lots.draw(jax.random.fold_in(lots_key, step), number)[1] for step in range(3)]
    assert any((np.diff(np.asarray(mask, int)) > 0).any() for mask in masks)


def test_a_size_above_the_capacity_is_the_whole_lot_bit_for_bit():
    assert_identical(trained(100), trained(None))
    assert_identical(trained(20), trained(None))


ALL = {"lots": training.PoissonLots(12, 1.0, 12), "data": {n: v[:12] for n, v in DATA.items()}}


def turns_needed(lots, number, size, steps):
    """Most records of a column, lot by lot, for a run by key 3."""
    lots_key = key_streams.stream(jax.random.key(3), "lots")
    masks = [lots.draw(jax.random.fold_in(lots_key, step), number)[1] for step in range(steps)]
    return [max(int(np.asarray(mask)[column::size].sum()) for column in range(size))
            for mask in masks]  # fmt: skip


@pytest.mark.parametrize(
    ("number", "size"), [(0, 6), (6, 6), (7, 6), (12, 5), (5, 1), (12, 6), (3, 12)]
)
def test_turns_are_those_that_the_lot_needs(number, size):
    """Every row whose loss is evaluated counts itself; lots of known sizes, all of the records."""
    seen = []
    turns = turns_needed(ALL["lots"], number, size, 2)
    assert all(-(-number // size) <= each <= -(-12 // size) for each in turns)
    executed = size * sum(turns)

    def counting(params, example, rng):
        jax.debug.callback(lambda y: seen.append(float(y)), example["y"])
        return loss(params, example, rng)

    result = trained(size, number=number, loss_fn=counting, steps=2, **ALL)
    jax.effects_barrier()
    assert len(seen) == executed
    whole = trained(None, number=number, loss_fn=counting, steps=2, **ALL)
    jax.effects_barrier()
    assert len(seen) == executed + 2 * 12
    assert_close(result, whole, 2 * SHARES)


def test_an_empty_lot_takes_no_turn_and_still_gets_noise():
    poisoned = {name: np.full_like(rows, np.nan) for name, rows in DATA.items()}
    noisy, quiet = trained(4, number=0, data=poisoned), given(noise_multiplier=0.0)
    assert moved(noisy) > 0.01
    assert_identical(noisy, trained(4, number=0))
    assert moved(trained(4, number=0, hyperparameters=quiet)) == 0.0
    assert_close(noisy, trained(None, number=0))


def test_rows_that_fail_and_rows_beyond_the_records_count_for_nothing():
    records = {name: rows.copy() for name, rows in DATA.items()}
    records["y"][2], records["x"][5, 0] = np.nan, np.inf
    for rows in records.values():
        rows[31:] = np.nan
    for lots in (training.PoissonLots(ROWS, 0.5, 20), training.PoissonLots(ROWS, 0.9, 40)):
        result = trained(3, data=records, number=31, lots=lots)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result))
        assert_close(result, trained(None, data=records, number=31, lots=lots), 2 * SHARES)


def test_every_row_of_every_step_has_a_key_of_its_own():
    def marking_loss(params, example, rng):
        return params["w"][jax.random.randint(rng, (), 0, 100_000)] + 0.0 * example["y"]

    config = dataclasses.replace(
        BASE, loss_fn=marking_loss, lots=ALL["lots"], expected_lot_size=1, trainable=None,
        optimizer=training.sgd(), micro_batch_size=5,
    )  # fmt: skip
    values = given(clip_norm=np.inf, noise_multiplier=0.0, learning_rate=1.0)
    run = jax.jit(training.make_train(config))
    result = run(jax.random.key(0), values, {"w": jnp.zeros(100_000)}, ALL["data"])
    assert np.count_nonzero(result["w"]) == 3 * 12  # a collision by chance: probability 0.6 %


# Side by side ------------------------------------------------------------------------------------


@functools.cache
def side_by_side():
    config = dataclasses.replace(BASE, micro_batch_size=4)
    return jax.jit(jax.vmap(training.make_train(config), (0, None, None, None, 0)))


def test_candidates_side_by_side_are_as_alone_and_do_not_see_each_other():
    """Lots of other sizes, an empty one among them: lanes wait for the largest, and stay."""
    keys, numbers = training.candidate_keys(4, seed=1), np.array([40, 0, 17, 31], np.int32)
    together = jax.device_get(side_by_side()(keys, given(), START, DATA, numbers))
    for lane, number in enumerate(numbers):
        alone = compiled(dataclasses.replace(BASE, micro_batch_size=4))(
            keys[lane], given(), START, DATA, number
        )
        own = jax.tree.map(lambda leaf, lane=lane: leaf[lane], together)
        assert_close(own, jax.device_get(alone))
    # Others with other keys, and with lots that need more turns or fewer, change no bit.
    others = training.candidate_keys(4, seed=2)
    keys = jax.random.wrap_key_data(
        jnp.where(np.array([1, 0, 1, 0], bool)[:, None], *map(jax.random.key_data, (keys, others)))
    )
    numbers = np.array([40, 40, 17, 0], np.int32)
    again = jax.device_get(side_by_side()(keys, given(), START, DATA, numbers))
    for lane in (0, 2):
        assert_identical(*(jax.tree.map(lambda leaf: leaf[lane], r) for r in (together, again)))  # noqa: B023


SLOT_CONFIGS = [
    dataclasses.replace(
        BASE,
        lots=training.PoissonLots(ROWS, rate, capacity),
        steps=steps,
        expected_lot_size=rate * ROWS,
        micro_batch_size=4,
    )
    for rate, capacity, steps in ((0.1, 12, 5), (0.2, 18, 7), (0.1, 12, 2), (0.3, 20, 4))
]
KEYS = training.candidate_keys(len(SLOT_CONFIGS), seed=5)


def initial(key):
    return jax.tree.map(jnp.asarray, START)


def keyless(params, example, rng):
    """Lots padded to those of a bucket have other places, and a row's key is its place's."""
    return loss(params, example, jax.random.key(8))


def mixed(configs=SLOT_CONFIGS, **options):
    found = {}
    for indices, outputs in training.mixed_sweep(
        configs,
        KEYS[: len(configs)],
        {name: np.full(len(configs), value) for name, value in given().items()},
        DATA,
        initial=initial,
        **{"chunk_size": 2, "useful_work": 0.3} | options,
    ):
        for row, index in enumerate(indices.tolist()):
            found[index] = jax.tree.map(lambda leaf, row=row: leaf[row], outputs)
    return [found[index] for index in range(len(configs))]


def test_slots_train_as_alone_in_whole_lots():
    configs = [dataclasses.replace(config, loss_fn=keyless) for config in SLOT_CONFIGS]
    for index, result in enumerate(mixed(configs)):
        whole = compiled(dataclasses.replace(configs[index], micro_batch_size=None))
        alone = jax.device_get(whole(KEYS[index], given(), START, DATA))
        assert_close(result, alone, 2 * SHARES)
        assert moved(alone) > 0.05


def test_slots_count_records_as_needed_and_turns_as_executed():
    """Runs of 6, 3, 2 and 2 steps in two slots: 13 of 14 slot steps, 4 records expected."""
    configs = [dataclasses.replace(SLOT_CONFIGS[0], steps=steps) for steps in (2, 6, 3, 2)]
    for size, rows in ((None, 12), (3, 6), (4, 4)):
        reports = []
        of_size = [dataclasses.replace(config, micro_batch_size=size) for config in configs]
        mixed(of_size, useful_work=0.5, report=reports.append)
        assert reports == [Work(13 * 4, 14 * rows, 13, 14)]


def test_a_killed_sweep_resumes_to_the_identical_result(tmp_path):
    folder = str(tmp_path / "checkpoints")

    def saved():
        return {"checkpoints": training.Checkpoints(folder, every_seconds=0.0)}

    class Killed(Exception):
        pass

    def kill(done, total):
        if done == 2:
            raise Killed

    undisturbed = mixed(steps_per_call=2)
    with pytest.raises(Killed):
        mixed(steps_per_call=2, progress=kill, **saved())
    others = [dataclasses.replace(config, micro_batch_size=5) for config in SLOT_CONFIGS]
    with pytest.raises(ValueError, match="checkpoints of another sweep"):
        mixed(others, steps_per_call=2, **saved())
    for left, right in zip(mixed(steps_per_call=2, **saved()), undisturbed):
        assert_identical(left, right)


def test_the_loss_is_traced_no_oftener_for_more_candidates_or_slots():
    traces = []

    def counted(params, example, rng):
        traces.append(1)
        return loss(params, example, rng)

    def of(count, size):
        configs = [dataclasses.replace(SLOT_CONFIGS[0], steps=steps) for steps in (4, 3, 2, 2)]
        traces.clear()
        mixed([
            dataclasses.replace(config, loss_fn=counted, micro_batch_size=size)
            for config in configs[:count]
        ])  # fmt: skip
        return len(traces)

    for size in (4, "auto"):
        assert of(4, size) == of(1, size)


# Rounding ----------------------------------------------------------------------------------------


def sums(size, mask, vectors):
    """High and low parts of the clipped sum of rows that are their own gradients."""
    grad_fn = training.clipped_grad(lambda params, row: jnp.vdot(params["w"], row))
    params, lot = {"w": jnp.zeros(vectors.shape[1])}, (jnp.arange(len(vectors)), mask)
    high, low = micro_batches.sum_of_lot(grad_fn, params, vectors, lot, 1.0, None, size)
    return high["w"], jnp.zeros_like(high["w"]) if low is None else low["w"]


@pytest.mark.parametrize("size", [1, 37, 512, 2048])
def test_rounding_moves_a_long_sum_no_further_than_the_clip_norm(size):
    """4,096 nearly equal rows, with and without one of them: of its column the last one moves."""
    rows, generator = 4096, np.random.default_rng(0)
    vectors = generator.normal(size=256) + 1e-3 * generator.normal(size=(rows, 256))
    summed = jax.jit(functools.partial(sums, size, vectors=jnp.asarray(vectors, jnp.float32)))
    masks = np.ones((6, rows), bool)
    masks[np.arange(5), generator.integers(0, rows, 5)] = False
    *without, whole = (sum(np.asarray(part, np.float64) for part in summed(m)) for m in masks)
    assert max(np.linalg.norm(whole - less) for less in without) <= 1.0
    # A row by itself shows how much is held back: for blocks of 64 rows at most, two of which move.
    alone = np.linalg.norm(sum(np.asarray(p, np.float64) for p in summed(np.arange(rows) == 7)))
    of_norm = 256 * held_back.UNIT  # a norm has an allowance for its entries
    assert 1 - 2.0**-17 - of_norm < alone * (1 + held_back.share(size, rows)) <= 1.0


@pytest.mark.parametrize("size", [1, 16])
def test_nothing_is_rounded_between_turns(size):
    """Equal rows, so that plain additions would round the same way many times."""
    vectors = jnp.asarray(np.tile(np.random.default_rng(1).normal(size=256), (3000, 1)), np.float32)
    part = np.asarray(sums(size, np.arange(3000) < size, vectors)[0], np.float64)
    turns = 3000 // size
    high, low = (np.asarray(each, np.float64) for each in sums(
        size, np.arange(3000) < turns * size, vectors
    ))  # fmt: skip
    np.testing.assert_allclose(high + low, turns * part, rtol=1e-10)
    assert (np.abs(low) <= np.spacing(np.abs(high).astype(np.float32)) / 2).all()
    plain = functools.reduce(np.add, [part.astype(np.float32)] * turns)
    assert np.abs(plain / (turns * part) - 1).max() > 1e-6


def test_a_sum_that_overflows_is_infinite_as_without_turns():
    large, zero = {"w": jnp.full(3, 3e38)}, {"w": jnp.zeros(3)}
    high, low = micro_batches.added((large, zero), large)
    assert np.isinf(high["w"]).all() and (low["w"] == 0).all()
    assert np.isinf(micro_batches.added((high, low), zero)[0]["w"]).all()


def test_noise_meets_the_sum_that_nothing_has_rounded():
    """Against fractions: entries with what they lack, of all sizes and signs."""
    generator, size, deviation = np.random.default_rng(1), 300, 0.7
    exponents = generator.uniform(-40, 24, size)
    high = (deviation * generator.choice([-1, 1], size) * 2.0**exponents).astype(np.float32)
    low = (np.spacing(np.abs(high)) * generator.uniform(-0.5, 0.5, size)).astype(np.float32)
    key = jax.random.key(4, impl="threefry2x32")
    seen = np.asarray(noise.add_gaussian_noise(key, high, deviation, low))
    used = np.float32(np.float32(deviation) * np.float32(noise.NOISE_ALLOWANCE))
    cell = 2.0 ** np.floor(np.log2(used)) / noise._CELLS
    drawn = np.asarray(threefry.dithered_normal(key, size, np.float32(used / cell)))
    decided = 0
    for value, rest, sample, found in zip(high, low, drawn, seen):
        exact = (Fraction(float(value)) + Fraction(float(rest))) / Fraction(float(cell))
        exact += Fraction(float(sample))
        wholes = [(exact + Fraction(1, 2) + Fraction(sign, 2**21)) // 1 for sign in (-1, 1)]
        assert found in [np.float32(float(whole)) * np.float64(cell) for whole in wholes]
        decided += abs(Fraction(float(rest)) / Fraction(float(cell))) > 1
    assert decided > 10  # remainders of more than a cell
    zero = np.asarray(noise.add_gaussian_noise(key, high, 0.0, low))
    np.testing.assert_array_equal(zero, high)


def test_the_noise_is_given_what_the_sum_lacks():
    """Of a row of 2^24 and one of 1 the sum in float32 has the first alone."""
    data = np.float32([[2.0**24] * 64, [1.0] * 64])
    config = training.TrainConfig(
        loss_fn=jnp.vdot,
        lots=training.PoissonLots(2, 1.0, 2),
        steps=1,
        expected_lot_size=1,
        optimizer=training.sgd(),
        micro_batch_size=1,
    )
    key = jax.random.key(4, impl="threefry2x32")
    values = {"clip_norm": 2.0**28, "noise_multiplier": 2.0**-26, "learning_rate": 1.0}
    found = jax.jit(training.make_train(config))(key, values, jnp.zeros(64), data)
    own, high = threefry.fold_in(training.stream(key, "noise"), 0), data[0]
    with_it, without = (
        np.asarray(noise.add_gaussian_noise(own, high, 4.0, *rest), np.float32)
        for rest in ((np.ones(64, np.float32),), ())
    )
    np.testing.assert_array_equal(-found, with_it)
    assert (with_it != without).mean() > 0.2


# The rule, and what is refused -------------------------------------------------------------------


def rows_of(model, example, capacity, setting="auto"):
    """What "auto" means for a model; nothing is computed."""
    functional = models.functional(model, example)
    params = jax.eval_shape(functional.init, jax.random.key(0))
    grad_fn = training.clipped_grad(functional.example_loss(models.cross_entropy))
    data = (
        jax.ShapeDtypeStruct((60_000, *example.shape), jnp.float32),
        jax.ShapeDtypeStruct((60_000,), jnp.int32),
    )
    return micro_batches.rows_at_once(setting, grad_fn, params, data, capacity)


def test_auto_is_the_whole_lot_for_small_models_and_few_rows_for_large_ones():
    flat, image = np.zeros(784, np.float32), np.zeros((28, 28, 1), np.float32)
    for model in (
        models.LogisticRegression(10),
        models.MLP((128, 64), 10),
        models.MLP((1000,), 10),
    ):
        assert [rows_of(model, flat, capacity) for capacity in (52, 377, 1256)] == [52, 377, 1256]
    # What is held does not grow with the lot.
    net = AllConvNet(10)
    assert [rows_of(net, image, capacity) for capacity in (129, 377, 17_156)] == [2, 2, 2]
    assert rows_of(net, image, 17_156, None) == 17_156
    assert rows_of(net, image, 129, 1000) == 129
    assert rows_of(models.MLP((128, 64), 10), flat, 125, 8) == 8


@pytest.mark.parametrize("accelerator", [False, True])
def test_the_rule_depends_on_its_arguments_alone_and_is_monotone(accelerator):
    rule = functools.partial(micro_batches.rows_by_rule, accelerator=accelerator)
    for capacity in (1, 7, 129, 20_000):
        found = [rule(size, 10**6, capacity) for size in (0, 10, 10**4, 10**7, 10**10)]
        assert found == sorted(found, reverse=True)
        assert found[0] == capacity and all(1 <= rows <= capacity for rows in found)
    # A turn would read the parameters for next to nothing; but a lot that does not fit is cut.
    large, many = 10**12, 10**4 * (64 if accelerator else 1)
    assert [rule(size, large, 129) for size in (100 * many, 10_000 * many)] == [129, 16]


def test_candidates_side_by_side_share_an_accelerator():
    """Lots of 64 have 129 places; a row of the all-convolutional net holds some 8 MB."""

    def rows(row, side_by_side, accelerator=True, params=10**5):
        rule = micro_batches.rows_by_rule
        return rule(row, params, 129, accelerator, side_by_side=side_by_side)

    net = [rows(8 * 10**6, width) for width in (1, 4, 16, 64, 256, 1024)]
    assert net == [129, 129, 16, 16, 8, 2]
    # All of them together take no more than four do alone.
    for width in (4, 16, 64, 256, 1024):
        assert width * rows(8 * 10**6, width) * 8 * 10**6 <= 4 * 2**32
    # A small model's lot is whole, however many there are; a CPU's rule asks nobody.
    assert [rows(60_000, width) for width in (1, 64, 1024)] == [129] * 3
    assert rows(8 * 10**6, 64, accelerator=False) == rows(8 * 10**6, 1, accelerator=False)


@pytest.mark.parametrize(("gigabytes", "alone"), [(2, 16), (12, 64), (24, 128), (60, 128)])
def test_candidates_share_the_memory_that_a_device_has(gigabytes, alone):
    """A third of it at most, by estimate; with three quarters of 80 GB as without a limit."""

    def rows(side_by_side, memory):
        return micro_batches.rows_by_rule(
            8 * 10**6, 10**5, 1290, True, side_by_side=side_by_side, memory=memory
        )

    assert rows(1, gigabytes * 10**9) == alone
    for width in (1, 4, 16, 64):
        found = rows(width, gigabytes * 10**9)
        # However many there are, each has 16 MB.
        assert found * width * 8 * 10**6 <= max(gigabytes * 10**9 / 3, width * 2**24)
        assert found == rows(width, None) if gigabytes == 60 else found <= rows(width, None)


def test_rows_outweigh_the_parameters_that_a_turn_reads():
    """ViT-Ti has 127 MB a row, for memory one row too many, and 21 MB of parameters."""
    assert micro_batches.rows_by_rule(127 * 10**6, 21 * 10**6, 125, False) == 8
    assert micro_batches.rows_by_rule(127 * 10**6, 10**6, 125, False) == 1


@pytest.mark.parametrize("value", [0, -1, 2.5, "x", True, "4", float("nan"), "whole"])
def test_bad_sizes_are_refused_in_one_line(value):
    for made in (
        lambda: dataclasses.replace(BASE, micro_batch_size=value),
        lambda: tuning.Job(micro_batch_size=value),
    ):
        with pytest.raises(ValueError, match="^micro_batch_size must be a whole number") as error:
            made()
        assert "\n" not in str(error.value)


def test_good_sizes_are_kept():
    for value in (1, 64, None, "auto", np.int64(8)):
        assert dataclasses.replace(BASE, micro_batch_size=value).micro_batch_size == value
        assert tuning.Job(micro_batch_size=value).micro_batch_size == value
    assert BASE.micro_batch_size == "auto"


def test_keys_of_rows_and_rows_of_a_sum_are_checked():
    grad_fn = training.clipped_grad(loss, with_rng=True)
    batch = jax.tree.map(lambda rows: rows[:4], DATA)
    params = {name: jnp.asarray(value) for name, value in START.items()}
    keys = jax.random.split(jax.random.key(0), 4)
    own = grad_fn(params, batch, 1.0, rng=keys)[0]
    assert_identical(own, grad_fn(params, batch, 1.0, rng=jax.random.key(0))[0])
    with pytest.raises(ValueError, match="pass one key, or one for each of 4 rows"):
        grad_fn(params, batch, 1.0, rng=keys[:3])
    with pytest.raises(ValueError, match="rows_in_sum is 3: pass at least 4"):
        grad_fn(params, batch, 1.0, rng=keys, rows_in_sum=3)


def test_memory_is_that_of_a_micro_batch_whatever_the_lot():
    image = np.zeros((16, 16, 1), np.float32)
    functional = models.functional(AllConvNet(10), image)
    data = (
        jax.ShapeDtypeStruct((60_000, *image.shape), jnp.float32),
        jax.ShapeDtypeStruct((60_000,), jnp.int32),
    )
    params, held = jax.eval_shape(functional.init, jax.random.key(0)), []
    for lot, capacity in ((256, 377), (16_384, 17_156)):
        train = training.make_train(
            dataclasses.replace(
                BASE,
                loss_fn=functional.example_loss(models.cross_entropy),
                lots=training.PoissonLots(60_000, lot / 60_000, capacity),
                with_rng=False,
                steps=2,
                trainable=None,
            )
        )
        shapes = (jax.eval_shape(lambda: jax.random.key(0)), given(), params, data)
        held.append(jax.jit(train).lower(*shapes).compile().memory_analysis().temp_size_in_bytes)
    assert held[1] <= 1.2 * held[0]


def test_micro_batches_lower_for_tpu():
    config = dataclasses.replace(BASE, micro_batch_size=4)
    run = jax.vmap(training.make_train(config), (0, None, None, None))
    shapes = (jax.eval_shape(lambda: training.candidate_keys(3, seed=0)), given(), START, DATA)
    exported = export.export(jax.jit(run), platforms=["tpu"])(*shapes)
    assert "stablehlo.while" in exported.mlir_module()
    assert "f64" not in exported.mlir_module()
