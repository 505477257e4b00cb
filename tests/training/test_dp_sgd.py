"""Whole training runs at their limits, where the right answer is known."""

import functools
import itertools

import held_back
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats
from scipy.special import ndtri

from dpjax import training
from dpjax.randomness import keys as key_streams
from dpjax.randomness import threefry
from dpjax.training.clipping import clip_rules

ROWS, FEATURES = 12, 3
GENERATOR = np.random.default_rng(5)
DATA = {
    "x": GENERATOR.normal(size=(ROWS, FEATURES)).astype(np.float32),
    "y": GENERATOR.normal(size=ROWS).astype(np.float32),
}
PARAMS = {"bias": np.float32(0.1), "kernel": np.array([0.3, -0.2, 0.5], np.float32)}
HALF = training.PoissonLots(ROWS, 0.5, ROWS)
ALL = training.PoissonLots(ROWS, 1.0, ROWS)
PLAIN = {"clip_norm": np.inf, "noise_multiplier": 0.0, "learning_rate": 0.05}


def squared_error(params, example):
    return 0.5 * (example["x"] @ params["kernel"] + params["bias"] - example["y"]) ** 2


def train_config(**changes):
    return training.TrainConfig(**{
        "loss_fn": squared_error,
        "lots": HALF,
        "steps": 4,
        "expected_lot_size": 6,
        "optimizer": training.sgd(),
        **changes,
    })  # fmt: skip


@functools.cache
def compiled_train(changes):
    return jax.jit(training.make_train(train_config(**dict(changes))), static_argnums=4)


def train(key=0, hyperparameters=PLAIN, params=PARAMS, data=DATA, number=None, **changes):
    """One run; tests that ask for the same static configuration share its compilation."""
    try:
        run = compiled_train(tuple(sorted(changes.items())))
    except TypeError:  # a mask given as a dictionary cannot be a cache's key
        run = jax.jit(training.make_train(train_config(**changes)), static_argnums=4)
    hyperparameters = {name: np.float32(value) for name, value in hyperparameters.items()}
    return run(jax.random.key(key), hyperparameters, params, data, number)


def assert_close(left, right, rtol=1e-5, atol=1e-6):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol), dict(left), dict(right)
    )


def largest_move(left, right) -> float:
    difference = jax.tree.map(lambda a, b: jnp.ravel(a - b), dict(left), dict(right))
    return float(jnp.linalg.norm(jnp.concatenate(jax.tree.leaves(difference))))


def mean_loss(params, data, mask, normaliser):
    losses = jax.vmap(squared_error, in_axes=(None, 0))(params, data)
    return jnp.sum(losses * mask) / normaliser


@pytest.mark.parametrize(
    ("optimizer", "reference", "extra"),
    [
        (training.sgd(), optax.sgd(0.05), {}),
        (training.momentum(), optax.sgd(0.05, momentum=0.9), {"momentum": 0.9}),
        (training.adam(), optax.adam(0.05), {}),
        (
            training.sgd(optax.cosine_decay_schedule(1.0, 4)),
            optax.sgd(optax.cosine_decay_schedule(0.05, 4)),
            {},
        ),
    ],
)
def test_without_noise_and_clipping_it_is_the_plain_optimiser(optimizer, reference, extra):
    """Same lots, by hand: gradients of the masked sum over the public normaliser."""
    result = train(hyperparameters=PLAIN | extra, optimizer=optimizer)
    lots_key = key_streams.stream(jax.random.key(0), "lots")
    params, state = PARAMS, reference.init(PARAMS)
    for step in range(4):
        indices, mask = HALF.draw(jax.random.fold_in(lots_key, step), ROWS)
        lot = jax.tree.map(lambda rows, i=indices: rows[np.asarray(i)], DATA)
        gradient = jax.grad(mean_loss)(params, lot, mask, 6)
        updates, state = reference.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    assert_close(result, params)
    assert largest_move(result, PARAMS) > 1e-2


@pytest.mark.parametrize("lots", [HALF, training.FixedLots(ROWS, 5)])
def test_a_vanishing_clip_norm_leaves_the_start(lots):
    tiny = {"clip_norm": 1e-9, "noise_multiplier": 1.0, "learning_rate": 0.05}
    assert_close(train(hyperparameters=tiny, lots=lots), PARAMS, rtol=0, atol=1e-7)


@pytest.mark.parametrize("wrong", [{"clip_norm": -1.0}, {"noise_multiplier": -1.0}])
@pytest.mark.parametrize("clipping", ["global", "per_leaf", "automatic"])
def test_what_is_negative_trains_nothing(wrong, clipping):
    """Clipped to -1 a gradient has norm 1, and noise of a negative deviation would be none."""
    given = {"clip_norm": 1.0, "noise_multiplier": 5.0, "learning_rate": 0.05}
    sound, result = (
        train(hyperparameters=given | more, clipping=clip_rules.CLIP_RULES[clipping]())
        for more in ({}, wrong)
    )
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(sound))
    assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(result))


def noise_of(lots, relation, clip_norm, multiplier, steps, size=3000):
    """Final parameters of a run whose gradients are all zero: the noise, rescaled to one step."""
    result = train(
        key=3,
        hyperparameters={
            "clip_norm": clip_norm, "noise_multiplier": multiplier, "learning_rate": 0.5
        },
        params={"w": np.zeros(size, np.float32), "v": np.zeros((size // 10, 10), np.float32)},
        loss_fn=lambda params, example: 0.0 * jnp.sum(params["w"]) * example["y"],
        lots=lots,
        relation=relation,
        steps=steps,
        expected_lot_size=8,
    )  # fmt: skip
    samples = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(result)])
    return samples * 8 / 0.5 / np.sqrt(steps)


@pytest.mark.parametrize(
    ("lots", "relation", "sensitivity"),
    [(HALF, "add_or_remove_one", 1.0), (training.FixedLots(ROWS, 5), "replace_one", 2.0)],
)
@pytest.mark.parametrize("steps", [1, 3])
def test_noise_scale_is_multiplier_times_sensitivity(lots, relation, sensitivity, steps):
    """Accepted at 1, rejected at 2/3 and 3/2; fixed seed, error rate 1e-4."""
    samples = noise_of(lots, relation, clip_norm=0.7, multiplier=1.3, steps=steps)

    def p_value(deviation):
        statistic = np.sum((samples / deviation) ** 2)
        law = scipy.stats.chi2(samples.size)
        return 2 * min(law.cdf(statistic), law.sf(statistic))

    deviation = 1.3 * 0.7 * sensitivity
    assert p_value(deviation) > 1e-4
    assert p_value(deviation * 2 / 3) < 1e-12
    assert p_value(deviation * 3 / 2) < 1e-12


@pytest.mark.parametrize("multiplier", [1.1, 0.7 + 1e-9, 1.0 + 2.0**-25, 3.3333333])
def test_no_rounding_leaves_less_noise_than_was_accounted(multiplier):
    """Noise multipliers are float64, training is float32: rounding would lower half of them."""
    samples = noise_of(HALF, None, clip_norm=0.7, multiplier=multiplier, steps=1, size=300)
    stream = key_streams.stream(jax.random.key(3), "noise")
    words = threefry.random_words(jax.random.fold_in(stream, 0), 600)
    first, second = (np.asarray(word).astype(np.float64) for word in words)
    ideal = -ndtri((np.floor(first / 2) + 0.5) * 2.0**-32)
    # The dither comes on top and is taken off; rounding to a cell averages out.
    cell = 2.0 ** np.floor(np.log2(multiplier * 0.7) - 19)
    values = 2**threefry.DITHER_BITS
    dither = cell * ((values - 1) / 2 - second % values)
    unsigned = -samples.astype(np.float64) * (1 - 2 * (first % 2))
    found = np.sum(unsigned - dither) / np.sum(ideal)
    assert multiplier <= found / np.float32(0.7) <= multiplier * (1.0 + 1.2e-5)


def test_noise_comes_from_its_own_stream_anew_every_step():
    samples = noise_of(HALF, None, clip_norm=1.0, multiplier=1.0, steps=3, size=300)
    stream = key_streams.stream(jax.random.key(3), "noise")
    by_hand = -sum(
        threefry.dithered_normal(jax.random.fold_in(stream, step), 600, 2.0**19) / 2.0**19
        for step in range(3)
    ) / np.sqrt(3)
    np.testing.assert_allclose(samples, by_hand, rtol=1e-4, atol=1e-5)


def test_an_empty_lot_still_gets_noise():
    moved = train(hyperparameters=PLAIN | {"clip_norm": 1.0, "noise_multiplier": 1.0}, number=0)
    noise = np.concatenate([np.ravel(moved[name] - PARAMS[name]) for name in PARAMS])
    assert np.abs(noise).min() > 1e-4 and np.abs(noise).max() < 0.05 / 6 * np.sqrt(4) * 5
    assert_close(train(number=0), PARAMS, rtol=0, atol=0)


def test_one_record_moves_the_sum_by_at_most_the_sensitivity():
    """One noiseless step of size 1: the parameters move by the clipped sum itself."""
    wild = DATA | {"y": DATA["y"] * 1e4}
    step = {"clip_norm": 0.5, "noise_multiplier": 0.0, "learning_rate": 1.0}
    common = {"hyperparameters": step, "steps": 1, "expected_lot_size": 1}
    results = [train(data=wild, lots=ALL, number=number, **common) for number in (4, 5, 6)]
    moves = [largest_move(*pair) for pair in itertools.pairwise(results)]
    np.testing.assert_allclose(
        moves, 0.5 * held_back.longest(ROWS, ROWS), rtol=1e-5
    )  # these records reach the bound
    assert max(moves) <= 0.5 * (1 + 1e-6)

    opposite = wild | {"y": np.concatenate([-wild["y"][:1], wild["y"][1:]])}
    fixed = {"lots": training.FixedLots(ROWS, ROWS), **common}
    move = largest_move(train(data=wild, **fixed), train(data=opposite, **fixed))
    assert 0.9 < move <= 1.0 + 1e-6


def test_padding_rows_are_never_read():
    given = PLAIN | {"clip_norm": 1.0, "noise_multiplier": 1.0}
    padded = jax.tree.map(
        lambda leaf: np.concatenate([leaf[:9], np.full_like(leaf[9:], np.nan)]), DATA
    )
    short = jax.tree.map(lambda leaf: leaf[:9], DATA)
    exact = train(hyperparameters=given, data=training.padded(short, ROWS), number=9)
    traced = jax.jit(training.make_train(train_config()))
    assert_close(traced(jax.random.key(0), given, PARAMS, padded, jnp.int32(9)), exact)
    # A traced number above the rows cannot be refused; it must not read the last row twice. Rows
    # behind the first record count, so 9 of 12 are left.
    behind = jax.tree.map(lambda leaf: np.concatenate([leaf[9:], leaf[:9]]), DATA)
    result = traced(jax.random.key(0), given, PARAMS, behind, jnp.int32(12), np.int32(3))
    assert_close(result, exact)


def test_data_of_fewer_rows_than_the_bound_are_refused():
    """As many rows as there are records would shape the program by a private number."""
    short = jax.tree.map(lambda leaf: leaf[:9], DATA)
    for number in (None, 9):
        with pytest.raises(ValueError, match="data has 9 rows: pass training.padded\\(data, 12"):
            train(data=short, number=number)
    assert_close(train(data=training.padded(DATA, ROWS + 3), number=ROWS), train())


def test_one_candidate_vectorised_equals_unbatched_and_candidates_differ():
    given = {
        "clip_norm": np.array([0.5, 1.0, 2.0], np.float32),
        "noise_multiplier": np.array([1.0, 0.5, 2.0], np.float32),
        "learning_rate": np.array([0.1, 0.01, 0.05], np.float32),
    }
    keys = training.candidate_keys(3, seed=0)
    run = training.make_train(train_config())

    def one(key, hyperparameters, data):
        return run(key, hyperparameters, PARAMS, data)

    def train_one(index):
        values = {name: value[index] for name, value in given.items()}
        return compiled_train(())(keys[index], values, PARAMS, DATA, None)

    together = {}
    for indices, outputs in training.sweep(one, keys, given, DATA, chunk_size=2):
        for row, index in enumerate(indices):
            together[int(index)] = jax.tree.map(lambda leaf, row=row: leaf[row], outputs)
    for index in range(3):
        assert_close(together[index], train_one(index))
    kernels = np.stack([together[index]["kernel"] for index in range(3)])
    assert len(np.unique(kernels)) == 3 * FEATURES


MASKS = [
    {"bias": False, "kernel": True},
    lambda path, leaf: path == ("kernel",) and leaf.ndim == 1,
]


@pytest.mark.parametrize("mask", MASKS)
def test_frozen_leaves_come_back_bit_for_bit(mask):
    given = PLAIN | {"clip_norm": 1.0, "noise_multiplier": 1.0}
    result = train(hyperparameters=given, trainable=mask)
    assert np.asarray(result["bias"]).tobytes() == np.asarray(PARAMS["bias"]).tobytes()
    assert np.abs(np.asarray(result["kernel"]) - PARAMS["kernel"]).min() > 0


def test_frozen_leaves_do_not_use_up_the_clip_norm():
    """With the bias frozen, the kernel's own gradient is what is clipped."""
    step = {"clip_norm": 0.5, "noise_multiplier": 0.0, "learning_rate": 1.0}
    result = train(
        hyperparameters=step, steps=1, expected_lot_size=1, lots=ALL, number=1, trainable=MASKS[0],
        data=DATA | {"y": DATA["y"] * 1e4},
    )  # fmt: skip
    moved = np.linalg.norm(result["kernel"] - PARAMS["kernel"])
    np.testing.assert_allclose(moved, 0.5 * held_back.longest(ROWS, ROWS), rtol=1e-5)


def test_frozen_leaves_of_any_type_pass_through():
    params = PARAMS | {"table": np.arange(3), "nothing": None}
    result = train(
        params=params,
        trainable=lambda path, leaf: path[0] != "table",
        loss_fn=lambda params, example: squared_error(params, example) * params["table"][1],
    )
    np.testing.assert_array_equal(result["table"], [0, 1, 2])
    assert result["nothing"] is None
    assert_close({name: result[name] for name in PARAMS}, train())


def test_every_step_and_example_has_randomness_of_its_own():
    """Each draw of the loss marks one of many slots: no slot is marked twice, none is missing."""

    def marking_loss(params, example, rng):
        return params["w"][jax.random.randint(rng, (), 0, 100_000)] + 0.0 * example["y"]

    result = train(
        loss_fn=marking_loss,
        with_rng=True,
        params={"w": jnp.zeros(100_000)},
        hyperparameters=PLAIN | {"learning_rate": 1.0},
        lots=ALL,
        steps=3,
        expected_lot_size=1,
    )
    assert np.count_nonzero(result["w"]) == 3 * ROWS  # a collision by chance: probability 0.6 %
    assert float(result["w"].sum()) == -3 * ROWS


def test_runs_are_reproducible_and_keys_matter():
    given = PLAIN | {"clip_norm": 1.0, "noise_multiplier": 1.0}
    assert_close(train(1, given), train(1, given), rtol=0, atol=0)
    assert largest_move(train(1, given), train(2, given)) > 1e-3


def test_relations_follow_the_lots():
    assert train_config().relation == "add_or_remove_one"
    fixed = training.FixedLots(ROWS, 5)
    assert train_config(lots=fixed, relation="Replace-One").relation == "replace_one"
    with pytest.raises(ValueError, match="no accounting under 'replace_one'"):
        train_config(relation="replace_one")
    with pytest.raises(ValueError, match="pass relation='replace_one'"):
        train_config(lots=fixed, relation="add_or_remove_one")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hyperparameters": {"clip_norm": 1.0}}, "DP-SGD needs the hyperparameter noise_multi"),
        ({"data": DATA | {"y": DATA["y"][:5]}}, "disagree on the number of rows"),
        ({"data": {"x": np.float32(1.0)}}, "disagree on the number of rows"),
        ({"number": ROWS + 1}, "12 rows"),
        ({"lots": training.PoissonLots(ROWS - 1, 0.5, 5)}, "never exceeds"),
        ({"lots": training.FixedLots(ROWS + 1, 5)}, "FixedLots\\(dataset_size=12"),
        ({"lots": training.FixedLots(ROWS, 5), "number": 7}, "exactly 12"),
        ({"trainable": {"kernel": True}}, "does not have the structure"),
        ({"trainable": lambda path, leaf: False}, "something to train"),
        ({"params": PARAMS | {"table": np.arange(3)}}, "table has type int32"),
    ],
)
def test_bad_input_at_the_call_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        train(**arguments)


def test_fixed_lots_of_another_traced_number_of_records_train_nothing():
    """They would be drawn from all the rows there are."""
    run = jax.jit(training.make_train(train_config(lots=training.FixedLots(ROWS, 5))))
    given = {name: np.float32(value) for name, value in PLAIN.items()}
    for number, finite in ((ROWS, True), (ROWS - 1, False)):
        result = run(jax.random.key(0), given, PARAMS, DATA, number)
        assert all(np.isfinite(leaf).all() == finite for leaf in jax.tree.leaves(result))


@pytest.mark.parametrize("lots", [training.FixedLots(5, 4), training.PoissonLots(ROWS, 0.5, ROWS)])
def test_a_traced_first_record_that_is_no_row_trains_nothing(lots):
    """Gathering clips: one record would stand in a lot many times."""
    run = jax.jit(training.make_train(train_config(lots=lots)))
    given = {name: np.float32(value) for name, value in PLAIN.items()}
    last = ROWS - 5 if isinstance(lots, training.FixedLots) else ROWS
    firsts = (0, last, last + 1, -1, np.uint32(2**32 - 20))
    for first, finite in zip(firsts, (True, True, False, False, False)):
        result = run(jax.random.key(0), given, PARAMS, DATA, None, first)
        assert all(np.isfinite(leaf).all() == finite for leaf in jax.tree.leaves(result)), first


def test_fixed_lots_of_another_number_in_an_array_train_nothing():
    run = training.make_train(train_config(lots=training.FixedLots(ROWS, 5)))
    given = {name: np.float32(value) for name, value in PLAIN.items()}
    result = run(jax.random.key(0), given, PARAMS, DATA, np.asarray(ROWS - 1))
    assert not any(np.isfinite(leaf).any() for leaf in jax.tree.leaves(result))


def test_automatic_clipping_to_a_clip_norm_that_overflows_trains_nothing():
    """A record whose weighted factor overflows would be the only one to give NaN."""
    run = jax.jit(training.make_train(train_config(clipping="automatic")))
    given = {name: np.float32(value) for name, value in PLAIN.items()} | {"noise_multiplier": 1.0}
    for clip_norm, number, finite in ((2.0**60, ROWS, True), (2.0**61, 0, False)):
        result = run(jax.random.key(0), given | {"clip_norm": clip_norm}, PARAMS, DATA, number)
        assert all(np.isfinite(leaf).all() == finite for leaf in jax.tree.leaves(result))


@pytest.mark.parametrize("name", ["clip_norm", "noise_multiplier"])
def test_one_run_takes_one_clip_norm_and_one_noise_multiplier(name):
    """Two entries would get noise of their own each."""
    given = PLAIN | {name: np.array([1.0, 0.0], np.float32)}
    with pytest.raises(ValueError, match=f"{name} has shape \\(2,\\): pass one number"):
        training.make_train(train_config())(jax.random.key(0), given, PARAMS, DATA)
