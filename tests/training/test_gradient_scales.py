"""Scaled gradients: what is clipped, what one record can add at most, and which noise is left."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from audits import epsilon_lower_bound
from jax_privacy import clipping

from dpjax import accounting, training, tuning
from dpjax.training import dp_sgd
from dpjax.training.gradient_scales import adaptive_scale, scale_of

_compiled = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
ROWS, CLIP = 6, 0.7


def loss(params, example):
    image = jax.lax.conv(example["image"][None], params["filters"], (1, 1), "VALID").ravel()
    hidden = jnp.tanh(example["x"] @ params["kernel"] + params["bias"] + image[:5])
    words = jnp.sum(params["table"][example["words"]], axis=0)
    return jnp.sum(jnp.square(hidden[:3] * words - example["y"])) + jnp.sum(image[5:])


def problem(seed=0):
    draws = np.random.default_rng(seed)

    def normal(*shape):
        return jnp.asarray(draws.normal(size=shape), jnp.float32)

    params = {
        "bias": normal(5),
        "filters": normal(2, 1, 2, 2),
        "kernel": normal(4, 5),
        "table": normal(7, 3),
    }
    batch = {
        "image": normal(ROWS, 1, 4, 4),
        "x": normal(ROWS, 4),
        "y": normal(ROWS, 3),
        "words": jnp.asarray(draws.integers(0, 7, (ROWS, 4))),
    }
    scale = jax.tree.map(
        lambda leaf: jnp.asarray(10.0 ** draws.uniform(-3, 0, leaf.shape), jnp.float32), params
    )
    return params, batch, scale


def by_hand(params, batch, scale, clip_norm):
    """The sum of clipped scaled gradients, NumPy float64, by name."""
    gradients = jax.vmap(jax.grad(loss), (None, 0))(params, batch)
    scaled = {name: np.float64(gradients[name]) * np.float64(scale[name]) for name in gradients}
    squares = sum(np.square(leaf).reshape(ROWS, -1).sum(1) for leaf in scaled.values())
    weights = np.minimum(1, clip_norm / np.sqrt(squares))
    return {name: np.tensordot(weights, leaf, 1) for name, leaf in scaled.items()}


@pytest.mark.parametrize("method", ["auto", "factored", "materialised"])
def test_the_scaled_gradient_is_what_is_clipped(method):
    params, batch, scale = problem()
    gradient = training.clipped_grad(training.scaled_gradient(loss, scale), method=method)
    summed, auxiliary = _compiled(gradient)(params, batch, CLIP)
    for name, wanted in by_hand(params, batch, scale, CLIP).items():
        np.testing.assert_allclose(summed[name], wanted, rtol=2e-3, atol=1e-6)
    values = jax.vmap(loss, (None, 0))(params, batch)
    np.testing.assert_allclose(auxiliary.values, values, rtol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Of optax's, called by jax-privacy.
def test_the_sum_is_that_of_jax_privacy_with_the_scale_as_its_transform():
    params, batch, scale = problem()
    theirs = clipping.clipped_grad(
        loss,
        l2_clip_norm=CLIP,
        keep_batch_dim=False,
        pre_clipping_transform=lambda gradient: jax.tree.map(jnp.multiply, gradient, scale),
    )
    ours = training.clipped_grad(training.scaled_gradient(loss, scale))
    summed, _ = _compiled(ours)(params, batch, CLIP)
    for name, wanted in _compiled(theirs)(params, batch).items():
        np.testing.assert_allclose(summed[name], wanted, rtol=2e-3, atol=1e-6)


def test_norms_are_taken_without_forming_gradients():
    params, batch, scale = problem()
    found = training.clipped_grad(training.scaled_gradient(loss, scale)).explain(params, batch)
    forms = {name: (each.form, each.held) for name, each in found.items()}
    assert forms["kernel"] == ("entrywise", 0)
    assert forms["table"] == ("rows", 0)
    assert forms["filters"] == ("product", 8)  # Several positions: formed once, and used twice.
    # One number for a parameter costs nothing at all.
    scale = {"bias": 1.0, "filters": 0.5, "kernel": 0.1, "table": 0.3}
    found = training.clipped_grad(training.scaled_gradient(loss, scale)).explain(params, batch)
    assert found["kernel"].form == "outer"


def test_no_record_adds_more_whatever_an_adversary_chooses():
    """Ascent on the record and on the scale, from many starts; the clip norm is what stops it."""
    params, _, _ = problem()
    names = sorted(params)

    def length(chosen):
        record, logs = chosen
        scale = {name: jnp.exp(-jnp.square(logs[name])) for name in names}  # In (0, 1].
        gradient = training.clipped_grad(training.scaled_gradient(loss, scale))
        row = jax.tree.map(lambda leaf: leaf[None], record)
        summed, _ = gradient(params, row | {"words": jnp.array([[0, 0, 3, 3]])}, CLIP)
        return optax.tree.norm(summed)

    def own(chosen):  # Before clipping: what the adversary climbs.
        record, logs = chosen
        scale = {name: jnp.exp(-jnp.square(logs[name])) for name in names}
        found = jax.grad(loss)(params, record | {"words": jnp.array([0, 0, 3, 3])})
        return jnp.log(optax.tree.norm(jax.tree.map(jnp.multiply, found, scale)))

    def start(key):
        keys = iter(jax.random.split(key, 7))
        record = {
            "image": jax.random.normal(next(keys), (1, 4, 4)),
            "x": jax.random.normal(next(keys), (4,)),
            "y": jax.random.normal(next(keys), (3,)),
        }
        return record, {name: jax.random.normal(next(keys), params[name].shape) for name in names}

    def climbed(key):
        def step(chosen, _):
            moved = jax.tree.map(lambda a, b: a + 0.3 * b, chosen, jax.grad(own)(chosen))
            return moved, length(moved)

        return jax.lax.scan(step, start(key), None, length=30)[1]

    found = _compiled(jax.vmap(climbed))(jax.random.split(jax.random.key(0), 20))
    assert found.max() <= CLIP
    assert found[:, -1].min() > 0.99 * CLIP  # The adversary did get there.


@pytest.mark.parametrize("wrong", [0.0, -0.5, 1.5, np.nan, np.inf])
def test_a_scale_outside_its_range_leaves_nothing_of_the_records(wrong):
    params, batch, scale = problem()
    scale["kernel"] = scale["kernel"].at[1, 2].set(wrong)
    run = _compiled(training.clipped_grad(training.scaled_gradient(loss, scale)))
    summed, other = run(params, batch, CLIP)[0], run(params, problem(1)[1], CLIP)[0]
    jax.tree.map(np.testing.assert_array_equal, summed, other)
    assert np.isnan(summed["kernel"]).sum() == 1
    assert not np.nansum(np.abs(np.concatenate([one.ravel() for one in summed.values()])))


# Runs ---------------------------------------------------------------------------------------------

PUBLIC = {"a": np.array([4.0, 0.5, 1.0]), "b": 2.0}
GIVEN = {"clip_norm": 0.7, "noise_multiplier": 0.0, "learning_rate": 1.0}
DATA = {
    "x": np.float32(np.random.default_rng(2).normal(size=(40, 3))),
    "y": np.float32(np.random.default_rng(3).normal(size=40)),
}


def linear(params, example):
    return 0.5 * (example["x"] @ params["a"] + params["b"] - example["y"]) ** 2


def publicly(given):
    return optax.chain(training.public_scale(PUBLIC), optax.sgd(given["learning_rate"]))


def config(optimizer=publicly, steps=3, **changes):
    return training.TrainConfig(**{
        "loss_fn": linear, "lots": training.PoissonLots(40, 1.0, 40), "steps": steps,
        "expected_lot_size": 10.0, "optimizer": optimizer,
    } | changes)  # fmt: skip


def trained(made, seed=0, **changed):
    params = {"a": jnp.zeros(3), "b": jnp.zeros(())}
    (key,) = training.candidate_keys(1, seed=seed)
    return _compiled(training.make_train(made))(key, GIVEN | changed, params, DATA)


def stepped(params, scale):
    """One step without noise, in NumPy: clipped as scaled, summed, scaled back."""
    slope = DATA["x"] @ params["a"] + params["b"] - DATA["y"]
    gradients = np.concatenate([DATA["x"], np.ones((40, 1))], 1) * slope[:, None] * scale
    weights = np.minimum(1, GIVEN["clip_norm"] / np.linalg.norm(gradients, axis=1))
    moved = weights @ gradients / scale / 10.0
    return {"a": params["a"] - moved[:3], "b": params["b"] - moved[3]}


WAYS = {
    "one device": {},
    "micro-batches": {"micro_batch_size": 7},
    "a mesh": {"mesh": training.LotMesh(tuple(jax.local_devices()))},
    "checked": {"check_contributions": 40},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_public_scale_is_taken_off_again(way):
    found = trained(config(**WAYS[way]))
    if way == "checked":
        training.refuse_long(found.longest)
        assert found.longest > 0.99
        found = found.params
    wanted = {"a": np.zeros(3), "b": 0.0}
    for _ in range(3):
        wanted = stepped(wanted, np.array([4.0, 0.5, 1.0, 2.0]) / 4.0)  # Only ratios count.
    np.testing.assert_allclose(found["a"], wanted["a"], atol=1e-3)
    np.testing.assert_allclose(found["b"], wanted["b"], atol=1e-3)


def test_the_noise_is_that_of_the_price_over_the_scale():
    rows, params = {"x": jnp.zeros((2, 3)), "y": jnp.zeros(2)}, {"a": jnp.zeros(3), "b": 0.0}
    made = config(steps=1, lots=training.PoissonLots(2, 0.5, 2))
    run = training.make_train(made)
    given = GIVEN | {"noise_multiplier": 1.5}
    seen = _compiled(jax.vmap(lambda key: run(key, given, params, rows)))(
        training.candidate_keys(4000, seed=5)
    )
    ratio = np.std(np.column_stack([seen["a"], seen["b"]]), axis=0) / (1.5 * 0.7 / 10.0)
    np.testing.assert_allclose(ratio * [1.0, 0.125, 0.25, 0.5], 1.0, rtol=0.06)


RUNS, STEPS, NOISE, DELTA = 1 << 15, 2, 1.6, 0.02


def sums_seen(with_canary, factor, seed):
    """Noisy sums of an adaptive scale's steps, along the canary, in units of the clip norm.

    The adversary knows the scale, since he sees what it is computed from.
    """
    made = config(
        lambda given: optax.chain(adaptive_scale(0.5, 0.3, 1.0), optax.sgd(1.0)), steps=STEPS,
        loss_fn=lambda params, row: jnp.sum(params * row), expected_lot_size=1.0,
    )  # fmt: skip
    given = {"clip_norm": jnp.float32(1.0), "noise_multiplier": jnp.float32(NOISE * factor)}
    canary = jnp.array([3.0, 1e4])

    def run(key):
        state, seen = dp_sgd.begin(made, given, jnp.zeros(2)), []
        for step in range(STEPS):
            scale = scale_of(state.optimizer)
            after = dp_sgd.advance(
                made, key, given, state, canary[None],
                draw=lambda *_: (jnp.zeros(1, int), jnp.array([with_canary])),
                expected_lot_size=1.0, steps=np.uint32(1), first=np.uint32(step),
            )  # fmt: skip
            along = canary * scale / jnp.linalg.norm(canary * scale)
            seen.append(jnp.sum((state.trained - after.trained) * scale * along))
            state = after
        return jnp.stack(seen)

    seen = _compiled(jax.vmap(run))(training.candidate_keys(RUNS, seed=seed))
    return np.sum(np.asarray(seen, np.float64), axis=1)


def audited(factor):
    return epsilon_lower_bound(sums_seen(True, factor, 1), sums_seen(False, factor, 2), DELTA)


def test_the_price_of_an_adaptive_scale_is_that_of_none():
    claim = accounting.dp_sgd(1.0, NOISE, STEPS).epsilon(DELTA)
    assert 0.6 * claim < audited(1.0) <= claim
    assert audited(0.5) > 1.2 * claim


# The adaptive scale -------------------------------------------------------------------------------


def followed(noisy, decay, damping, delay):
    """The gradients that it gives on and its scales, NumPy float64 (steps, entries)."""
    scale, square, summed = np.ones(noisy.shape[1]), 0.0, 0.0
    gradients, scales = [], []
    for step, one in enumerate(noisy, 1):
        gradients.append(one / scale)
        summed = summed + gradients[-1]
        if step % delay == 0:
            kept = decay**delay
            square = kept * square + (1 - kept) * (summed / delay) ** 2
            summed, root = 0.0, np.sqrt(square)
            scale = 1 / (1 + root / root.mean() / damping)
        scales.append(scale)
    return np.array(gradients), np.array(scales)


@pytest.mark.parametrize("delay", [1.0, 3.0])
def test_the_scale_follows_the_gradients_before(delay):
    noisy = np.random.default_rng(1).normal(size=(7, 4)) * [1.0, 10.0, 0.1, 3.0]
    scaled = adaptive_scale(jnp.float32(0.8), jnp.float32(0.5), jnp.float32(delay))
    state, gradients, scales = scaled.init({"a": jnp.zeros(3), "b": jnp.zeros(1)}), [], []
    assert all((leaf == 1).all() for leaf in jax.tree.leaves(scale_of(state)))
    for one in np.float32(noisy):
        found, state = scaled.update({"a": one[:3], "b": one[3:]}, state)
        gradients.append(np.concatenate([found["a"], found["b"]]))
        scales.append(np.concatenate(jax.tree.leaves(scale_of(state))))
    wanted = followed(noisy, 0.8, 0.5, delay)
    np.testing.assert_allclose(gradients, wanted[0], rtol=1e-4)
    np.testing.assert_allclose(scales, wanted[1], rtol=1e-4)


def test_a_gradient_of_zeros_keeps_its_scale():
    scaled = adaptive_scale(0.9, 1.0, 1.0)
    state = scaled.init(jnp.zeros(3, jnp.bfloat16))
    _, state = scaled.update(jnp.zeros(3), state)
    np.testing.assert_array_equal(scale_of(state), np.ones(3))
    assert scale_of(state).dtype == jnp.bfloat16


def test_every_step_is_clipped_by_the_scale_that_the_steps_before_left():
    """Without noise a run is that of `stepped` with the scales of `followed`, undamped by Adam."""
    found = trained(
        config(lambda given: optax.chain(adaptive_scale(0.5, 0.3, 1.0), optax.sgd(1.0)))
    )
    wanted, scale, square = {"a": np.zeros(3), "b": 0.0}, np.ones(4), np.zeros(4)
    for _ in range(3):
        after = stepped(wanted, scale)
        gradient = np.append(wanted["a"] - after["a"], wanted["b"] - after["b"])
        square = 0.5 * square + 0.5 * gradient**2
        scale = 1 / (1 + np.sqrt(square) / np.sqrt(square).mean() / 0.3)
        wanted = after
    np.testing.assert_allclose(found["a"], wanted["a"], atol=1e-3)
    np.testing.assert_allclose(found["b"], wanted["b"], atol=1e-3)


def test_candidates_of_a_sweep_differ_in_damping_and_delay():
    made = config(training.adam_scaled(), steps=4)
    given = {
        "clip_norm": np.full(3, 0.7), "noise_multiplier": np.full(3, 1.0),
        "learning_rate": np.full(3, 0.1), "damping": np.array([0.1, 3.0, 1.0]),
        "delay": np.array([1.0, 1.0, 2.0]),
    }  # fmt: skip
    keys = training.candidate_keys(3, seed=1)
    params = {"a": jnp.zeros(3), "b": jnp.zeros(())}
    together = {}
    for places, found in training.mixed_sweep(
        [made] * 3, keys, given, DATA, initial=lambda key: params
    ):
        together |= {place: found["a"][row] for row, place in enumerate(places)}
    assert len({tuple(np.asarray(values)) for values in together.values()}) == 3
    run = _compiled(training.make_train(made))
    for place, values in together.items():
        alone = run(keys[place], {name: all_[place] for name, all_ in given.items()}, params, DATA)
        np.testing.assert_allclose(values, alone["a"], rtol=1e-4, atol=1e-6)


def _tuned(optimizer, **more):
    x = DATA["x"]
    task = tuning.Task(
        initial=lambda key: {"a": jnp.zeros(3), "b": jnp.zeros(())},
        loss=lambda params, example: linear(params, {"x": example[0], "y": example[1]}),
        score=lambda params, example: 1.0 / (1.0 + jnp.abs(example[0] @ params["a"])),
        train=tuning.Records((x[:30], DATA["y"][:30]), public_size=30, size_bound=35),
        validation=tuning.Records((x[30:], DATA["y"][30:]), public_size=10, size_bound=15),
    )
    space = tuning.Space(learning_rate=tuning.LogUniform(0.01, 0.1), clip_norm=1.0, **more)
    run = tuning.RunOptions(noise_multiplier=2.0, lot_size=6, steps=3)
    return tuning.tune(task, space, tuning.RandomRepetitions(), optimizer=optimizer, run=run)


def test_a_tuning_prices_and_names_it_like_any_optimiser():
    plain, scaled = _tuned(training.adam()), _tuned(training.adam_scaled(), damping=0.5)
    assert plain.guarantee.epsilon(1e-5) == scaled.guarantee.epsilon(1e-5)
    named = scaled.release.statement["optimizer"]
    assert named["name"] == "dpjax.training.optimizers.adam_scaled"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"damping": 0}, "damping=0.0: gradients are divided by it, so pass numbers above 0"),
        ({"damping": tuning.Choice([0.5, -1.0])}, "damping=-1.0: "),
        ({"delay": 0}, "delay=0.0: it counts the steps of a mean, so pass whole numbers from 1 on"),
        ({"delay": tuning.Choice([0.5, 3])}, "delay=0.5: "),
    ],
)
def test_damping_and_delay_that_divide_by_nothing_are_refused_before_the_draw(given, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        _tuned(training.scheduled(training.adam_scaled, "cosine"), **given)
