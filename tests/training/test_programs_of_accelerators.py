"""Programs as accelerators get them, executed on a CPU: the same runs, and rows that are cleared.

There the rows of a factor are not cleared in a copy, blocks are an axis of a product, and the lots
of several steps are drawn at once.
"""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from one_run import BASE, DATA, GIVEN, ROWS, START

from dpjax import models, training
from dpjax.training.clipping.factored_terms import bounded
from experiments.benchmarks import h100
from experiments.benchmarks.zoo import ZOO

LARGE = np.float32(2.0**100)


def both(function, *arguments):
    """What a CPU's program gives, and an accelerator's."""
    own = jax.device_get(jax.jit(lambda *given: function(*given))(*arguments))
    with h100.traced():
        return own, jax.device_get(jax.jit(lambda *given: function(*given))(*arguments))


def assert_close(found, wanted, error=2e-5):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=error, atol=error), found, wanted
    )


def assert_identical(found, wanted):
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


# Numbers that are cut ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_numbers_that_are_none_or_too_large_are_cut_and_no_other_changes(dtype):
    plain = np.array([0.0, -0.0, 1e-40, -3.5, 2.0**99, LARGE, -LARGE], dtype)
    kept = np.asarray(jax.jit(bounded)(plain))
    assert kept.dtype == dtype and kept.tobytes() == plain.tobytes()
    large = np.array([np.nan, -np.nan, np.inf, -np.inf, 2.0**101, -(2.0**127)], dtype)
    found = np.asarray(jax.jit(bounded)(large)).astype(np.float32)
    np.testing.assert_array_equal(np.abs(found), LARGE)
    np.testing.assert_array_equal(np.sign(found)[2:], [1, -1, 1, -1])


FACTORS = {
    "a record": lambda w, x: jnp.sum(jnp.tanh(x[None] @ w["k"]) ** 2),
    "narrow numbers": lambda w, x: jnp.sum(
        jnp.tanh(x.astype(jnp.bfloat16)[None] @ w["k"].astype(jnp.bfloat16)).astype(jnp.float32)
    ),
    "an argument": lambda w, x: jnp.sum(jnp.tanh(x @ w["k"]) ** 2),
    "a picture": lambda w, x: jnp.sum(jnp.tanh(x.reshape(2, 2, 1).reshape(-1) @ w["k"]) ** 2),
    "an activation": lambda w, x: jnp.sum(jnp.exp(x) @ w["k"]),
    "a cotangent": lambda w, x: jnp.sum(jnp.exp(x[0] * 1e-3 + x[:2] @ w["t"]) ** 2),
    "positions": lambda w, x: jnp.sum(jnp.cos(jnp.stack([x, 2 * x, x - 1]) @ w["k"])),
    "a part": lambda w, x: jnp.sum(jnp.sin(x[1:] @ w["k"][1:])),
    "twice": lambda w, x: jnp.sum(jnp.sin(x @ w["k"])) + jnp.sum(x[::-1] @ w["k"] @ w["t"].T),
    "a masked kernel": lambda w, x: jnp.sum(jnp.sin(x @ (w["k"] * jnp.eye(4, 3)))),
}
PARAMS = {"k": np.full((4, 3), 0.3, np.float32), "t": np.full((2, 3), 0.2, np.float32)}
ROWS_OF_SIX = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
BAD = {"no number": np.nan, "infinite": -np.inf, "large": 1e35, "its square": 1e21}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("factor", FACTORS)
def test_a_row_that_is_not_finite_adds_nothing_and_changes_no_other(factor, bad):
    """Bit for bit, beside the sum without it; so does one that is masked, whatever it holds."""
    summing = training.clipped_grad(FACTORS[factor])
    keep = np.arange(6) != 2
    other = ROWS_OF_SIX.copy()
    other[2] = 0.5
    worse = ROWS_OF_SIX.copy()
    worse[2, 3] = BAD[bad]

    def summed(rows, mask):
        return summing(PARAMS, rows, 1.0, mask, stored=True)[0]

    with h100.traced():
        run = jax.jit(lambda rows, mask: summed(rows, mask))
        without = jax.device_get(run(other, keep))
        assert_identical(jax.device_get(run(worse, keep)), without)
        with_bad = jax.device_get(run(worse, np.ones(6, bool)))
    wanted = jax.device_get(jax.jit(summed)(worse, np.ones(6, bool)))
    # Plans differ by device, and with them the share of the clip norm that is held back.
    assert_close(with_bad, wanted, 2e-4)
    if not np.isfinite(BAD[bad]) and factor not in ("a cotangent", "an activation"):
        assert_identical(with_bad, without)


def test_what_the_loss_does_not_read_may_hold_anything():
    """A loss that fills in what is missing keeps its record: the input itself is not cut."""

    def loss(w, x):
        return jnp.sum(jnp.tanh(jnp.where(jnp.isnan(x), 0.5, x) @ w))

    rows = ROWS_OF_SIX.copy()
    rows[1:4, 2] = np.nan
    rows[:, 0] = np.nan

    def summed(rows):
        return training.clipped_grad(loss)(PARAMS["k"], rows, 0.1, stored=True)[0]

    own, found = both(summed, rows)
    assert np.abs(own).sum() > 0.1
    assert_close(found, own)


def test_factors_are_cut_instead_of_copied():
    """Of a dense layer on records the program selects no row of its larger factor."""
    summing = training.clipped_grad(FACTORS["a record"])

    def selections():
        def summed(rows):
            return summing(PARAMS, rows, 1.0, np.ones(6, bool), stored=True)[0]

        program = str(jax.make_jaxpr(summed)(ROWS_OF_SIX))
        cuts = re.findall(r":u32\[[\d,]*\] = min ", program)
        return program.count("f32[6,4] = select_n"), len(cuts)

    own = selections()
    with h100.traced():
        assert (own, selections()) == ((1, 0), (0, 1))


# Whole runs --------------------------------------------------------------------------------------

MODELS = [("mlp_784_128_64_10", None), ("text_convolution", 4), ("weight_norm", None)]
MODELS += [("scaled_and_masked", 4)]


@pytest.mark.parametrize(("name", "rows"), MODELS)
def test_models_take_the_same_run(name, rows):
    problem = ZOO[name](True, 24)
    config = training.TrainConfig(
        loss_fn=problem.loss,
        lots=training.PoissonLots(24, 0.4, 17),
        steps=4,
        expected_lot_size=10,
        optimizer=training.sgd(),
        micro_batch_size=rows,
    )
    given = {"clip_norm": 1.0, "noise_multiplier": 0.1, "learning_rate": 0.05}
    run = training.make_train(config)
    key = training.candidate_keys(1, seed=1)[0]
    own, found = both(lambda params, data: run(key, given, params, data), *problem[1:])
    moved = jax.tree.map(lambda a, b: np.abs(np.float32(a) - np.float32(b)).max(), own, found)
    changed = jax.tree.map(
        lambda a, b: np.abs(np.float32(a) - np.float32(b)).max(), own, problem.params
    )
    most = max(jax.tree.leaves(changed))
    assert max(jax.tree.leaves(moved)) < 2e-3 * most


def run_of(config, *, number=ROWS, data=DATA, key=3, **changes):
    config = dataclasses.replace(config, **changes)
    given = {name: np.float32(value) for name, value in GIVEN.items()}
    train = training.make_train(config)
    return functools.partial(
        lambda data, number: train(jax.random.key(key), given, START, data, number),
        data,
        np.int32(number),
    )


LOTS = {
    "poisson": training.PoissonLots(ROWS, 0.3, 20),
    "dense": training.PoissonLots(ROWS, 0.6, 33),
    "in parts": training.CyclicPoissonLots(ROWS, 0.6, 14, 3),
    "fixed": training.FixedLots(ROWS, 11),
    "bins": training.BallsInBinsLots(ROWS, 4, 20),
}


@pytest.mark.parametrize(
    ("lots", "steps"), [*((name, 12) for name in LOTS), ("poisson", 1), ("poisson", 500)]
)
def test_lots_that_are_drawn_ahead_are_those_of_their_steps(lots, steps):
    """Of 500 steps a quarter at a time."""
    relation = "replace_one" if lots == "fixed" else "add_or_remove_one"
    run = run_of(BASE, lots=LOTS[lots], steps=steps, relation=relation)
    assert_close(*both(run), 1e-3 if steps > 100 else 2e-5)


def test_lots_are_drawn_ahead_of_many_steps_by_the_same_operations():
    def program(steps):
        with h100.traced():
            return str(jax.make_jaxpr(run_of(BASE, lots=LOTS["poisson"], steps=steps))())

    assert program(12).count("= sort[") == program(24).count("= sort[") > 0
    # As one more axis of the words that are sorted.
    assert program(12).count("u64[12,20] = sort[") == program(7).count("u64[7,20] = sort[") > 0


def test_candidates_of_unlike_lengths_take_their_own_lots_in_slots():
    """Only the device knows how many steps it takes; calls end between draws, and after some."""
    lengths = (450, 211, 1, 300)
    configs = [dataclasses.replace(BASE, steps=steps) for steps in lengths]
    given = {name: np.full(4, value, np.float32) for name, value in GIVEN.items()}

    def swept():
        found = {}
        for members, outputs in training.mixed_sweep(
            configs,
            training.candidate_keys(4, seed=0),
            given,
            DATA,
            initial=lambda key: jax.tree.map(jnp.asarray, START),
            finish=lambda params, _: params,
            chunk_size=2,
        ):
            for place, member in enumerate(members.tolist()):
                found[member] = jax.tree.map(lambda leaf: leaf[place], outputs)  # noqa: B023
        return [found[member] for member in range(4)]

    own = swept()
    with h100.traced():
        assert_close(swept(), own, 1e-3)


def test_empty_places_that_point_to_a_bad_record_add_nothing():
    """The first record stands at every empty place; it is no number, and in no lot that counts."""
    config = dataclasses.replace(BASE, lots=LOTS["poisson"])
    found = []
    for bad in (np.nan, 1e30):
        data = jax.tree.map(np.array, DATA)
        data["x"][0], data["y"][0] = bad, bad
        with h100.traced():
            found.append(jax.device_get(jax.jit(run_of(config, data=data))()))
    assert_identical(*found)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))


# Blocks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_rng", [False, True])
@pytest.mark.parametrize("places", [129, 145, 257, 400])
def test_sums_of_lots_of_several_blocks_are_the_same(places, with_rng):
    """Whole, a little longer than a block, in even blocks; a lot may lack rows for these."""
    generator = np.random.default_rng(places)
    rows = generator.normal(size=(500, 5)).astype(np.float32)
    net = models.MLP((4,), 3)
    params = net.init(jax.random.key(0), rows[:1])

    def loss(params, x, *key):
        noise = jax.random.normal(key[0], x.shape) if key else 0.0
        return models.cross_entropy(net.apply(params, (x + noise)[None])[0], jnp.int32(1))

    summing = training.clipped_grad(loss, with_rng=with_rng)
    lot = generator.permutation(500)[:places].astype(np.int32), generator.random(places) < 0.6
    key = jax.random.key(5) if with_rng else None

    def summed(rows, lot):
        high, low = training.micro_batches.sum_of_lot(
            summing, params, rows, lot, jnp.float32(0.3), key, places
        )
        return high if low is None else jax.tree.map(jnp.add, high, low)

    own, found = both(summed, rows, lot)
    assert_close(found, own, 1e-5)
