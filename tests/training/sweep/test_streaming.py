"""Records that stay in files train to the last bit what records on the device train."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpjax import training

ROWS, BOUND, FEATURES = 37, 40, 3
GENERATOR = np.random.default_rng(11)
DATA = {
    "x": GENERATOR.normal(size=(ROWS, FEATURES)).astype(np.float32),
    "y": GENERATOR.integers(0, 2, ROWS).astype(np.int64),
}


def loss(params, example, key):
    kept = jax.random.bernoulli(key, 0.8, (FEATURES,))
    hidden = jnp.tanh(jnp.where(kept, example["x"], 0.0) @ params["first"])
    return 0.5 * (hidden @ params["second"] - example["y"]) ** 2


def initial(key):
    return {
        "first": jax.random.normal(key, (FEATURES, 5)),
        "second": 0.1 * jax.random.normal(key, (5,)),
    }


def candidates(lots, **changes):
    base = training.TrainConfig(
        loss_fn=loss,
        lots=lots[0],
        steps=1,
        expected_lot_size=4,
        optimizer=training.momentum(),
        with_rng=True,
    )
    made = [
        dataclasses.replace(base, lots=own, steps=steps)
        for own, steps in zip(lots, (7, 3, 11, 5, 1), strict=True)
    ]
    return [dataclasses.replace(one, **changes) for one in made]


def poisson(chances=(0.1, 0.25, 0.1, 0.1, 0.2)):
    return [training.PoissonLots(BOUND, chance, round(8 + 60 * chance)) for chance in chances]


def cyclic():
    return [training.CyclicPoissonLots(BOUND, 0.4, 9, 4)] * 5


STAGES = training.Stages((0.6, 0.4), noise=(1.3, 0.6), lot_size=(0.5, 1.2))
KINDS = {
    "poisson": candidates(poisson()),
    "dense": candidates([training.PoissonLots(BOUND, 0.5, 38)] * 5),
    "fixed": candidates([training.FixedLots(ROWS, size) for size in (4, 9, 4, 4, 6)]),
    "most of them": candidates([training.FixedLots(ROWS, 30)] * 5),
    "balls in bins": candidates([training.BallsInBinsLots(BOUND, 5, 24)] * 5),
    "in stages": [
        dataclasses.replace(one, stages=STAGES) if one.steps > 2 else one
        for one in candidates(poisson())
    ],
    "parts": candidates(cyclic(), noise=training.BandedNoise(3)),
    "averaged, in turns": candidates(
        poisson(), micro_batch_size=3, average=training.TailAverage(0.5)
    ),
    "checked": candidates(poisson(), check_contributions=2),
}


def sweep(configs, data, **options):
    number = len(configs)
    given = {
        "clip_norm": np.linspace(0.7, 1.3, number),
        "noise_multiplier": np.linspace(0.5, 1.0, number),
        "learning_rate": np.linspace(0.05, 0.2, number),
        "momentum": np.full(number, 0.9),
    }
    keys = training.candidate_keys(number, seed=5)
    options = {"chunk_size": 2, "useful_work": 0.3, "steps_per_call": 4} | options
    return training.mixed_sweep(configs, keys, given, data, initial=initial, **options)


def collected(results):
    return {
        int(index): jax.tree.map(lambda leaf, row=row: leaf[row], outputs)
        for indices, outputs in results
        for row, index in enumerate(indices)
    }


def on_device(configs, data=DATA, **options):
    rows = {name: training.padded(leaf, BOUND) for name, leaf in data.items()}
    fixed = isinstance(configs[0].lots, training.FixedLots)
    rows = data if fixed else rows
    return collected(sweep(configs, rows, number_of_records=len(data["x"]), **options))


def mapped(folder, data=DATA):
    for name, leaf in data.items():
        np.save(folder / name, leaf)
    return {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in data}


def assert_identical(found, wanted):
    assert found.keys() == wanted.keys()
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


@pytest.fixture
def optimised():
    """Compiles as a user's process does, for claims about last bits."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.mark.parametrize("kind", KINDS)
def test_lots_from_files_train_the_same_to_the_last_bit(kind, tmp_path, optimised):
    """Of several candidates with different lots and steps, whatever the buffer holds."""
    configs, files = KINDS[kind], mapped(tmp_path)
    wanted = on_device(configs)
    for stream_bytes in (1, 5000, 10**6) if kind == "poisson" else (5000,):
        assert_identical(collected(sweep(configs, files, stream_bytes=stream_bytes)), wanted)


@pytest.mark.parametrize("options", [{"chunk_size": 1}, {"chunk_size": 5, "steps_per_call": 100}])
def test_slots_and_calls_do_not_show(options, tmp_path):
    configs, files = KINDS["poisson"], mapped(tmp_path)
    found = collected(sweep(configs, files, stream_bytes=3000, **options))
    assert_identical(found, on_device(configs, **options))


def test_a_record_that_is_no_number_counts_as_on_the_device(tmp_path, optimised):
    """Row 0 too, which the empty places of a lot name."""
    data = DATA | {"x": DATA["x"].copy()}
    data["x"][[0, 5]] = np.nan
    data["x"][7] = np.inf
    configs = KINDS["poisson"]
    found = collected(sweep(configs, mapped(tmp_path, data), stream_bytes=5000))
    assert_identical(found, on_device(configs, data))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))


def test_rows_beyond_the_records_are_never_read_into_a_lot(tmp_path):
    """Files may have more rows than records, and more than the bound."""
    longer = {
        "x": np.concatenate([DATA["x"], np.full((20, FEATURES), 1e9, np.float32)]),
        "y": np.concatenate([DATA["y"], np.ones(20, np.int64)]),
    }
    configs = KINDS["poisson"]
    files = mapped(tmp_path, longer)
    found = collected(sweep(configs, files, stream_bytes=5000, number_of_records=ROWS))
    assert_identical(found, on_device(configs))


def test_no_record_at_all(tmp_path):
    none = {name: leaf[:0] for name, leaf in DATA.items()}
    configs = KINDS["poisson"]
    assert_identical(collected(sweep(configs, none, stream_bytes=99)), on_device(configs, none))


def test_views_of_files_are_read_in_place(tmp_path):
    """Such as the inputs of sequences of tokens: rows that are not next to each other."""
    wide = np.concatenate([DATA["x"], DATA["x"] + 1], axis=1)
    np.save(tmp_path / "wide", wide)
    view = np.load(tmp_path / "wide.npy", mmap_mode="r")[:, :FEATURES]
    configs, data = KINDS["poisson"], DATA | {"x": view}
    assert_identical(collected(sweep(configs, data, stream_bytes=5000)), on_device(configs))


def test_numbers_are_those_that_a_device_makes_of_them(tmp_path):
    """Files of float64, int8 or float16 are read as arrays of these types are."""
    data = {"x": (100 * DATA["x"]).astype(np.float64) / 3, "y": DATA["y"].astype(np.int8)}
    configs = candidates(poisson())
    assert_identical(
        collected(sweep(configs, mapped(tmp_path, data), stream_bytes=5000)),
        on_device(configs, data),
    )


@pytest.mark.parametrize("harvests", [1, 3])
def test_a_killed_sweep_goes_on_from_files_to_the_identical_result(harvests, tmp_path):
    """With another buffer, or with the records on the device."""
    configs, files = KINDS["poisson"], mapped(tmp_path)
    wanted = on_device(configs)
    for number, stream_bytes in enumerate((500, 10**6)):
        folder = tmp_path / f"checkpoints_{number}"

        def begun(folder=folder, **options):
            checkpoints = training.Checkpoints(folder, every_seconds=0.0)
            return sweep(configs, files, checkpoints=checkpoints, **options)

        killed = begun(stream_bytes=5000)
        for _ in range(harvests):
            next(killed)
        del killed
        assert_identical(collected(begun(stream_bytes=stream_bytes)), wanted)


def test_other_files_do_not_go_on_with_a_sweep(tmp_path):
    folder, configs = tmp_path / "checkpoints", KINDS["poisson"]
    files = mapped(tmp_path)

    def begun(data):
        checkpoints = training.Checkpoints(folder, every_seconds=0.0)
        return sweep(configs, data, checkpoints=checkpoints, stream_bytes=5000)

    killed = begun(files)
    next(killed)
    del killed
    for other in (
        files | {"x": np.asarray(files["x"], np.float64)},
        files | {"x": files["x"] + np.float32(1)},
    ):
        with pytest.raises(ValueError, match=r"checkpoints of another sweep \(data\)"):
            next(begun(other))


def test_a_buffer_holds_half_of_the_rows_that_a_device_was_allowed(tmp_path):
    """Two slots of lots of 14 places. The optimiser's steps see the buffer that they read, and no
    other: a program with a callback ends before the next rows are copied."""
    seen, number = [], 33
    before = jax.live_arrays()  # Of other tests.

    def look(_):
        own = [leaf for leaf in jax.live_arrays() if not any(leaf is other for other in before)]
        assert all(leaf.shape[:1] != (number,) for leaf in own)
        live = [leaf for leaf in own if leaf.ndim == 3 and leaf.shape[-1] == FEATURES]
        seen.append(sum(leaf.nbytes for leaf in live))

    def watched(given):
        inner = training.momentum()(given)

        def update(gradient, state, params=None):
            jax.debug.callback(look, gradient["second"])
            return inner.update(gradient, state, params)

        return optax.GradientTransformation(inner.init, update)

    configs = candidates(poisson((0.1,) * 5), optimizer=watched)
    rows = {"x": mapped(tmp_path)["x"][:number], "y": np.zeros(number, np.float32)}
    step = 2 * configs[0].lots.places * FEATURES * 4
    list(sweep(configs, rows, stream_bytes=6 * step, steps_per_call=100, chunk_size=2))
    # The labels take a third as much: two steps fit into a half, not three.
    assert max(seen) == 2 * step


def test_what_is_no_file_of_numbers_is_refused(tmp_path):
    configs = KINDS["poisson"]

    def refused(words, data=DATA, configs=configs, **options):
        with pytest.raises(ValueError, match=words):
            sweep(configs, data, **{"stream_bytes": 5000} | options)

    refused("must be a whole number >= 1", stream_bytes=0)
    refused("reads NumPy arrays, not ", jax.tree.map(jnp.asarray, DATA))
    refused("the arrays are >f4: pass numbers in this", DATA | {"x": DATA["x"].astype(">f4")})
    refused(r"the arrays are \|V4: pass numbers in this", DATA | {"x": DATA["x"].view("V4")})
    refused("the arrays are object: pass arrays of real", DATA | {"y": DATA["y"].astype(object)})
    refused("disagree on the number of rows", DATA | {"y": DATA["y"][1:]})
    refused("number_of_records is 38 but data has 37 rows", number_of_records=38)
    refused("41 records, but these lots were made for 0 to 40", {"x": np.zeros((41, FEATURES))})
    fixed = KINDS["fixed"]
    refused("fixed lots of 37 records, but data has 36", {"x": DATA["x"][1:]}, configs=fixed)
    spread = [dataclasses.replace(one, mesh=training.LotMesh()) for one in configs]
    refused("copies whole lots to one device", configs=spread)
    np.save(tmp_path / "short", DATA["x"])
    whole = (tmp_path / "short.npy").read_bytes()
    (tmp_path / "short.npy").write_bytes(whole[:-1])
    with pytest.raises(ValueError):
        np.load(tmp_path / "short.npy", mmap_mode="r")
