"""A clip norm that follows a quantile: its price, its noise, its law, and its place in a run."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import accounting, training
from dpjax.randomness import keys as key_streams
from dpjax.training import dp_sgd, quantile_clipping

_compiled = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
RULE = training.QuantileClipping(quantile=0.6, rate=0.3, count_noise_ratio=1.5)
ROWS = 24
VECTORS = (
    np.random.default_rng(5).normal(size=(ROWS, 2)) * np.linspace(0.1, 4, ROWS)[:, None]
).astype(np.float32)
GIVEN = {"clip_norm": 0.7, "noise_multiplier": 0.8, "learning_rate": 0.1}


def given(**changes):
    return {name: np.float32(value) for name, value in (GIVEN | changes).items()}


def loss(params, row):
    """A row is its own gradient."""
    return jnp.vdot(params, row)


def config_of(rule=RULE, lots=None, **changes):
    lots = training.PoissonLots(ROWS, 1.0, ROWS) if lots is None else lots
    options = dict(steps=4, expected_lot_size=ROWS, optimizer=training.sgd()) | changes
    return training.TrainConfig(loss_fn=loss, lots=lots, clipping=rule, **options)


def state_after(config, key, hyperparameters, data, number=None, steps=None, first=0, state=None):
    """What a run keeps after its steps, the clip norm too."""
    number = len(data) if number is None else number
    if state is None:
        state = dp_sgd.begin(config, hyperparameters, jnp.zeros(2))
    return dp_sgd.advance(
        config,
        key,
        hyperparameters,
        state,
        jnp.asarray(data),
        draw=lambda lot_key: config.lots.draw(lot_key, number),
        expected_lot_size=config.expected_lot_size,
        steps=jnp.asarray(config.steps if steps is None else steps, jnp.uint32),
        first=jnp.asarray(first, jnp.uint32),
    )


# What it costs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize("ratio", [1.01, 2.0, 10.0])
def test_sum_and_count_together_cost_what_is_accounted_for(relation, ratio):
    """Two Gaussian mechanisms of the noises that are added, composed: that of the claim."""
    total = 1.3
    rule = training.QuantileClipping(count_noise_ratio=ratio)
    of_sum = accounting.gaussian(total * rule.noise_factor(), relation=relation)
    of_count = accounting.gaussian(total * ratio, relation=relation)
    both, claimed = (
        one.epsilon(1e-5)
        for one in (
            accounting.compose(of_sum, of_count),
            accounting.gaussian(total, relation=relation),
        )
    )
    assert both == pytest.approx(claimed, rel=1e-4)
    # Rounded up, never down.
    assert rule.noise_factor() ** -2 + ratio**-2 <= 1.0


def test_a_record_moves_the_centred_count_by_what_is_stated():
    measure = RULE.measure(jnp.float32(1.0))
    norms = jnp.asarray([0.2, 1.0, 1.5, np.nan, np.inf, 0.3])
    for relation in ("add_or_remove_one", "replace_one"):
        counts = {
            (mask, other): float(measure(norms.at[0].set(other), jnp.arange(6) < 6 * mask))
            for mask in (0, 1)
            for other in (0.2, 1.5, np.nan)
        }
        assert counts[0, 0.2] == 0.0
        assert counts[1, 0.2] == 1.0  # Four finite ones, three below.
        alone = [float(measure(jnp.asarray([x]), jnp.ones(1, bool))) for x in (0.2, 1.5, np.nan)]
        assert alone == [0.5, -0.5, 0.0]
        moves = alone if relation == "add_or_remove_one" else np.subtract.outer(alone, alone)
        assert np.abs(moves).max() == RULE.count_sensitivity(relation)


def test_the_formal_guarantees_have_the_derivation():
    stated = " ".join(training.QuantileClipping.__doc__.split())
    for words in (
        "the clipped sum and the count are ONE such mechanism",
        "(C / s)^2 + (1 / (2 t))^2",
        "(2 C / s)^2 + (1 / t)^2",
        "1 / z^2 = 1 / z_g^2 + 1 / z_b^2",
        "so that the total is the z that was accounted for",
    ):
        assert words in stated


# Which noise is added ----------------------------------------------------------------------------

RUNS = 4096


@functools.cache
def _noises(relation):
    """One step of many runs: (of the sum over the clip norm, of the count), each (RUNS, ...)."""
    lots = training.PoissonLots(ROWS, 1.0, ROWS)
    if relation == "replace_one":
        lots = training.FixedLots(ROWS, ROWS)
    config = config_of(lots=lots, steps=1)

    def run(key):
        after = state_after(config, key, given(), VECTORS)
        quiet = state_after(config, key, given(noise_multiplier=0.0), VECTORS)
        moved = (quiet.trained - after.trained) / GIVEN["learning_rate"] * ROWS
        followed = -jnp.log(after.clipping / quiet.clipping) / RULE.rate * ROWS
        return moved / GIVEN["clip_norm"], followed

    return jax.device_get(_compiled(jax.vmap(run))(training.candidate_keys(RUNS, seed=2)))


def _scale_fits(sample, deviation):
    """Of a chi-squared test of the variance, at six deviations."""
    ratio = float(np.mean(np.square(sample))) / deviation**2
    return abs(ratio - 1) < 6 * math.sqrt(2 / sample.size)


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_noises_have_the_scales_of_the_derivation(relation):
    of_sum, of_count = _noises(relation)
    z, times = GIVEN["noise_multiplier"], 1.0 if relation == "add_or_remove_one" else 2.0
    wanted = z / math.sqrt(1 - RULE.count_noise_ratio**-2) * times
    wanted_of_count = z * RULE.count_noise_ratio * times / 2
    for sample, deviation in ((of_sum, wanted), (of_count, wanted_of_count)):
        assert _scale_fits(sample, deviation)
        assert not _scale_fits(sample, deviation * 2 / 3)
        assert not _scale_fits(sample, deviation * 3 / 2)
    # That of the sum alone would be the accounted one, were it not raised.
    assert not _scale_fits(of_sum, z * times)


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_the_counts_noise_is_its_own(relation):
    of_sum, of_count = _noises(relation)
    for entry in of_sum.T:
        assert abs(np.corrcoef(entry, of_count)[0, 1]) < 6 / math.sqrt(RUNS)
    assert key_streams.STREAMS["count"] not in [
        number for name, number in key_streams.STREAMS.items() if name != "count"
    ]


def test_every_step_has_a_count_noise_of_its_own():
    config = config_of(dataclasses.replace(RULE, quantile=0.5))
    empty = _compiled(functools.partial(state_after, config, data=VECTORS, number=0))
    one_by_one, state = [], None
    for step in range(3):
        state = empty(jax.random.key(1), given(), steps=1, first=step, state=state)
        one_by_one.append(float(state.clipping))
    moves = np.diff(np.log([GIVEN["clip_norm"], *one_by_one]))
    assert len(np.unique(moves.round(6))) == 3
    assert np.abs(moves).min() > 1e-5


# Which law it follows ----------------------------------------------------------------------------


def _by_hand(vectors, steps, rule=RULE):
    clip_norm, found = GIVEN["clip_norm"], []
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
    for _ in range(steps):
        fraction = 0.5 + np.sum(np.where(norms <= clip_norm, 0.5, -0.5)) / ROWS
        clip_norm *= math.exp(-rule.rate * (fraction - rule.quantile))
        found.append(clip_norm)
    return found


@pytest.mark.parametrize("size", [None, 5])
def test_without_noise_it_is_the_papers_update(size):
    config = config_of(micro_batch_size=size)
    run = _compiled(functools.partial(state_after, config, data=VECTORS))
    for number in (ROWS, 10, 0):
        state = run(jax.random.key(0), given(noise_multiplier=0.0), number=number)
        want = _by_hand(VECTORS[:number], 4)[-1]
        np.testing.assert_allclose(state.clipping, want, rtol=1e-5)


def test_sums_are_clipped_to_the_clip_norm_of_their_step():
    config = config_of()
    state = _compiled(functools.partial(state_after, config, data=VECTORS))(
        jax.random.key(0), given(noise_multiplier=0.0)
    )
    norms = np.linalg.norm(VECTORS.astype(np.float64), axis=1)
    moved = np.zeros(2)
    for clip_norm in [GIVEN["clip_norm"], *_by_hand(VECTORS, 3)]:
        clipped = VECTORS * np.minimum(1, clip_norm / norms)[:, None]
        moved -= GIVEN["learning_rate"] * clipped.sum(axis=0) / ROWS
    np.testing.assert_allclose(state.trained, moved, rtol=1e-4, atol=1e-6)


def test_noise_follows_the_clip_norm_of_its_step():
    """Twice the clip norm, twice the noise: of lots without records, nothing else is seen."""
    config = config_of(steps=1)

    def run(key, clip_norm):
        hyperparameters = given() | {"clip_norm": clip_norm}
        begun = dp_sgd.begin(config, hyperparameters, jnp.zeros(2))
        begun = begun._replace(clipping=clip_norm)
        # The hyperparameter is where a run begins, no more.
        return state_after(config, key, given(), VECTORS, number=0, state=begun).trained

    one, two = (_compiled(run)(jax.random.key(4), jnp.float32(c)) for c in (0.5, 1.0))
    np.testing.assert_allclose(2 * one, two, rtol=1e-5)


@pytest.mark.parametrize("quantile", [0.2, 0.8])
def test_it_finds_the_quantile_from_far_away_in_spite_of_noise(quantile):
    rule = training.QuantileClipping(quantile=quantile, rate=0.5)
    config = config_of(rule, steps=150)
    wanted = np.quantile(np.linalg.norm(VECTORS, axis=1), quantile)
    run = _compiled(jax.vmap(functools.partial(state_after, config, data=VECTORS), (0, None)))
    for begun in (1e-3, 1e3):
        keys = training.candidate_keys(16, seed=3)
        state = run(keys, given(clip_norm=begun, noise_multiplier=0.3))
        middle = float(np.median(state.clipping))
        assert 0.6 * wanted < middle < 1.6 * wanted


def test_rows_that_fail_are_counted_nowhere():
    poisoned = VECTORS.copy()
    poisoned[3], poisoned[7, 0] = np.nan, np.inf
    config = config_of()
    run = _compiled(functools.partial(state_after, config))
    state = run(jax.random.key(0), given(noise_multiplier=0.0), poisoned)
    left = np.delete(VECTORS, [3, 7], axis=0)
    np.testing.assert_allclose(state.clipping, _by_hand(left, 4)[-1], rtol=1e-5)
    assert np.isfinite(state.trained).all()


def test_it_stays_where_float32_holds_its_square():
    rule = training.QuantileClipping(rate=50.0)
    run = _compiled(functools.partial(state_after, config_of(rule, steps=20), data=VECTORS))
    for number, noise in ((0, 100.0), (ROWS, 0.0), (ROWS, 1e6)):
        state = run(jax.random.key(0), given(noise_multiplier=noise), number=number)
        assert quantile_clipping._SMALLEST <= state.clipping <= quantile_clipping._LARGEST


# Where it stands in a run ------------------------------------------------------------------------


def test_steps_may_be_taken_in_parts_bit_for_bit():
    run = _compiled(functools.partial(state_after, config_of(), data=VECTORS))
    key = jax.random.key(8)
    whole = run(key, given(), steps=4)
    parts = run(key, given(), steps=3, first=1, state=run(key, given(), steps=1))
    jax.tree.map(np.testing.assert_array_equal, whole, parts)


BASE = config_of()
CONFIGS = [
    dataclasses.replace(
        BASE,
        lots=training.PoissonLots(ROWS, rate, capacity),
        steps=steps,
        expected_lot_size=rate * ROWS,
    )
    for rate, capacity, steps in ((0.2, 14, 5), (0.4, 20, 7), (0.2, 14, 2), (0.5, 22, 4))
]
KEYS = training.candidate_keys(len(CONFIGS), seed=5)


def mixed(configs=CONFIGS, **options):
    found = {}
    for indices, outputs in training.mixed_sweep(
        configs,
        KEYS,
        {name: np.full(4, value) for name, value in GIVEN.items()}
        | {"clip_norm": np.array([0.1, 1.0, 10.0, 0.3])},
        VECTORS,
        initial=lambda key: jnp.zeros(2),
        **{"chunk_size": 2, "useful_work": 0.3, "steps_per_call": 2} | options,
    ):
        found |= dict(zip(indices.tolist(), outputs))
    return [found[index] for index in range(len(configs))]


def test_slots_begin_with_their_own_clip_norm_and_resume_with_the_one_they_had(tmp_path):
    class Killed(Exception):
        pass

    def kill(done, total):
        if done == 2:
            raise Killed

    def saved():
        folder = str(tmp_path / "checkpoints")
        return {"checkpoints": training.Checkpoints(folder, every_seconds=0.0)}

    undisturbed = mixed()
    for index, clip_norm in enumerate((0.1, 1.0, 10.0, 0.3)):
        alone = _compiled(training.make_train(CONFIGS[index]))(
            KEYS[index], given(clip_norm=clip_norm), jnp.zeros(2), VECTORS
        )
        np.testing.assert_allclose(undisturbed[index], alone, rtol=1e-5, atol=1e-6)
    with pytest.raises(Killed):
        mixed(progress=kill, **saved())
    other = training.QuantileClipping(quantile=0.6, rate=0.3)
    with pytest.raises(ValueError, match="checkpoints of another sweep"):
        mixed([dataclasses.replace(config, clipping=other) for config in CONFIGS], **saved())
    for left, right in zip(mixed(**saved()), undisturbed):
        np.testing.assert_array_equal(left, right)
