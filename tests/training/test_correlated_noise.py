"""Noise that is correlated over steps: its law, its lots, its cost, and what an adversary sees."""

import dataclasses
import functools
import itertools
import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import side_by_side
from audits import epsilon_lower_bound
from noisy_sums import noisy_sums
from scipy import optimize, stats

from dpjax import accounting, training
from dpjax.training import dp_sgd
from dpjax.training.lots import family_of, lots_of_steps
from dpjax.training.places import random_order

STEPS, ENTRIES = 12, 20_000
PLAIN = training.sgd()
GIVEN = {"clip_norm": 1.0, "noise_multiplier": 1.5, "learning_rate": 1.0}
NOTHING = jnp.zeros((40, 1))
LOSS, DATA = side_by_side.loss, side_by_side.DATA


def config(bands=4, steps=STEPS, cycle=None, loss=lambda w, row: 0.0 * jnp.sum(w) * row[0], **own):
    """Plain SGD at rate 1, divided by 1: parameters are minus the sum of all noisy sums."""
    return training.TrainConfig(
        loss_fn=loss,
        lots=training.CyclicPoissonLots(40, 0.5, 40, cycle or bands),
        steps=steps,
        expected_lot_size=1.0,
        optimizer=PLAIN,
        noise=training.BandedNoise(bands),
        **own,
    )


def matrix(bands, steps=STEPS):
    """The strategy, float64 (steps, steps)."""
    c = training.BandedNoise(bands).strategy(steps)
    return sum(np.diag(np.full(steps - j, c[j]), -j) for j in range(min(bands, steps)))


def sums_seen(made, key, rows, params, number, **changed):
    return noisy_sums(made, key, GIVEN | changed, rows, params, number)


def _key(seed=0):
    return training.candidate_keys(1, seed=seed)[0]


@functools.cache
def noises(bands):
    """The noises of a run, float64 (steps, entries): nothing else is in its sums."""
    seen = jax.jit(lambda key: sums_seen(config(bands), key, NOTHING, jnp.zeros(ENTRIES), 40))
    return np.asarray(seen(_key()), np.float64)


# Its law ------------------------------------------------------------------------------------------


def off(own, bands, std):
    """How far C N is from independent noise of this std, in standard errors: the worst entry."""
    z = matrix(bands) @ own / std
    moments = z @ z.T / ENTRIES - np.eye(STEPS)
    return np.abs(moments / np.sqrt((1 + np.eye(STEPS)) / ENTRIES)).max()


@pytest.mark.parametrize("bands", [2, 4, 12, 20])
def test_the_noise_has_the_covariance_of_the_strategy_and_no_other_scale(bands):
    """Within 5.5 standard errors in all 78 moments: wrong with probability 3e-6."""
    own = noises(bands)
    assert off(own, bands, 1.5) < 5.5
    for factor in (2 / 3, 0.98, 1.02, 1.5):
        assert off(own, bands, 1.5 * factor) > 5.5
    assert off(np.random.default_rng(0).normal(size=own.shape) * 1.5, bands, 1.5) > 20
    assert off(own, 3, 1.5) > 5.5


def test_one_band_is_independent_noise_to_the_bit():
    lots = training.PoissonLots(40, 0.5, 40)
    rows = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    made = config(1, cycle=2, loss=lambda w, row: (w @ row - 1.0) ** 2)
    for own in (lots, made.lots):
        plain = dataclasses.replace(made, lots=own, noise=None)
        banded = dataclasses.replace(plain, noise=training.BandedNoise(1))
        found = [
            training.jit(training.make_train(one))(_key(), GIVEN, jnp.zeros(3), rows)
            for one in (plain, banded)
        ]
        assert (np.asarray(found[0]) == np.asarray(found[1])).all()


def test_a_strategy_is_the_best_there_is_and_has_norm_1():
    """No other coefficients leave less in prefix sums; more bands leave less."""
    bands, steps = 4, 30
    noise = training.BandedNoise(bands)

    def error(tail):
        c = np.append(1.0, tail)
        toeplitz = sum(np.diag(np.full(steps - j, c[j]), -j) for j in range(bands))
        sums = np.tril(np.ones((steps, steps))) @ np.linalg.inv(toeplitz)
        return np.linalg.norm(sums) / math.sqrt(steps) * np.linalg.norm(c)

    best = optimize.minimize(error, [0.3, 0.2, 0.1], method="Nelder-Mead", tol=1e-10).fun
    assert noise.error(steps) == pytest.approx(best, rel=1e-6)
    assert np.linalg.norm(noise.strategy(steps)) == pytest.approx(1.0, abs=1e-15)
    errors = [training.BandedNoise(one).error(steps) for one in (1, 2, 4, 8, 30)]
    assert errors[0] == pytest.approx(math.sqrt(15.5)) and errors == sorted(errors, reverse=True)


@pytest.mark.parametrize("bands", [3, 16])
def test_optimizers_are_told_the_std_of_the_noise_in_all(bands):
    c = training.BandedNoise(bands).coefficients(STEPS)
    in_all = np.linalg.norm(np.linalg.inv(matrix(bands))[-1])
    assert c["spread"] == pytest.approx(in_all, rel=1e-6)


# Lots and sensitivity -----------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames=("lots", "steps"))
def members(lots, steps, key, number):
    """Which records are in the lots of a run, bool (steps, bound)."""
    draw = lots_of_steps(lots, key, number)

    def of_step(step):
        indices, mask = draw(jax.random.fold_in(key, step), step)
        bound = lots.dataset_size_bound
        return jnp.zeros(bound, bool).at[jnp.where(mask, indices, bound)].set(True, mode="drop")

    return jax.lax.map(of_step, jnp.arange(steps, dtype=jnp.uint32))


@pytest.mark.parametrize("bound, cycle, chance", [(30, 4, 0.5), (31, 4, 0.9), (5, 5, 1.0)])
def test_a_record_is_in_lots_of_one_part_with_the_stated_probability(bound, cycle, chance):
    lots = training.CyclicPoissonLots(bound, chance, -(-bound // cycle), cycle)
    steps, runs = 6 * cycle, 400
    found = jax.vmap(lambda key: members(lots, steps, key, bound))(
        training.candidate_keys(runs, seed=4)
    )
    found = np.asarray(found).reshape(runs, 6, cycle, bound)
    parts = found.any(axis=1)  # In whose turns is a record ever, (runs, cycle, bound).
    assert (parts.sum(axis=1) <= 1).all()
    # Counts of independent memberships, in 5 standard errors, a record and in all.
    each = found.sum(axis=(0, 1, 2)) / (6 * runs)
    error = math.sqrt(chance * (1 - chance) / (6 * runs))
    assert np.abs(each - chance).max() <= 5 * error
    # Each record is in each part equally often: parts differ from run to run.
    where = parts.sum(axis=0)
    expected = runs * (1 - (1 - chance) ** 6) / cycle
    assert np.abs(where - expected).max() < 5.5 * math.sqrt(expected)
    sizes = [bound // cycle, -(-bound // cycle)]
    if chance == 1.0:
        assert set(np.unique(parts.sum(axis=2))) <= set(sizes)


def test_other_records_stay_in_their_lots_if_one_more_exists():
    lots = training.CyclicPoissonLots(20, 0.6, 5, 4)
    fewer, more = (np.asarray(members(lots, 16, _key(3), number)) for number in (12, 13))
    assert (fewer[:, :12] == more[:, :12]).all()
    assert more[:, 12].any() and not fewer[:, 12:].any()


def test_shared_programs_draw_the_same_lots():
    lots = training.CyclicPoissonLots(40, 0.2, 6, 4)
    family = dataclasses.replace(family_of(lots), capacity=9)
    own = lots_of_steps(lots, _key(), 35)
    shared = family.lots_of_steps(_key(), family.numbers_of(lots), 35)
    for step in range(8):
        key = jax.random.fold_in(_key(1), step)
        one, other = (draw(key, jnp.uint32(step)) for draw in (own, shared))
        drawn = [sorted(np.asarray(indices)[np.asarray(mask)]) for indices, mask in (one, other)]
        assert drawn[0] == drawn[1]


@pytest.mark.parametrize("bands, cycle", [(1, 1), (2, 2), (3, 3), (3, 4)])
def test_what_a_record_moves_by_brute_force(bands, cycle):
    """All patterns of a record's lots and signs of its gradients: one clip norm a lot, no more."""
    steps = 8
    strategy = matrix(bands, steps)
    for part in range(cycle):
        turns = range(part, steps, cycle)
        for picked in itertools.product((-1, 0, 1), repeat=len(turns)):
            moved = np.zeros(steps)
            moved[list(turns)] = picked
            moved = strategy @ moved
            for turn, one in zip(turns, picked):  # Each lot moves its own round, by 1 at most.
                assert np.linalg.norm(moved[turn : turn + cycle]) <= abs(one) * (1 + 1e-12)
            assert np.linalg.norm(moved[:part]) == 0
    if bands > 1:
        # Were they nearer, they would move it by more: what `check_lots` refuses.
        near = np.zeros(steps)
        near[[0, bands - 1]] = 1.0
        assert np.linalg.norm(strategy @ near) > 1.05 * math.sqrt(2.0)


# Cost ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "records, lot, steps, bands, noise", [(6000, 60, 500, 5, 1.0), (1000, 50, 99, 10, 2.0)]
)
def test_the_price_is_that_of_jax_privacy(records, lot, steps, bands, noise):
    from jax_privacy.accounting import accountants, analysis

    lots = training.CyclicPoissonLots(records, bands * lot / records, lot * 3, bands)
    ours = accounting.dp_sgd(lots.sampling_probability, noise, lots.most_participations(steps))
    accountant = analysis.DpsgdTrainingAccountant(
        accountants.PldAccountantConfig(value_discretization_interval=1e-5)
    )
    theirs = accountant.compute_epsilon(
        steps,
        analysis.DpParams(
            noise_multipliers=noise, num_samples=records, delta=1e-5, batch_size=lot,
            cycle_length=bands,
        ),
    )  # fmt: skip
    assert ours.epsilon(1e-5) == pytest.approx(theirs, rel=1e-4)


def test_the_price_is_exact_where_every_record_of_a_part_is_drawn():
    """With q = 1 the run is one Gaussian: C G + Z, by the norm of what a record adds to C G."""
    bands, steps, noise = 3, 10, 4.0
    lots = training.CyclicPoissonLots(9, 1.0, 3, bands)
    moved = np.zeros(steps)
    moved[::bands] = 1.0
    mu = np.linalg.norm(matrix(bands, steps) @ moved) / noise
    epsilon = accounting.dp_sgd(1.0, noise, lots.most_participations(steps)).epsilon(1e-5)
    exact = optimize.brentq(
        lambda e: (
            stats.norm.cdf(mu / 2 - e / mu) - math.exp(e) * stats.norm.cdf(-mu / 2 - e / mu) - 1e-5
        ),
        0.0,
        20.0,
    )
    # The last turn's bands are cut off: the price is that of all four in full.
    assert exact <= epsilon < 1.05 * exact


RUNS, DELTA = 1 << 17, 0.02


@functools.partial(jax.jit, static_argnames=("made", "number"))
def _attacked(made, keys, number, noise):
    def one(key):
        bound, cycle = made.lots.dataset_size_bound, made.lots.cycle
        rows = jnp.zeros((bound, 1)).at[0].set(1.0)
        order = random_order(training.stream(key, "parts"), bound)
        first = jnp.argmin(order) % cycle == 0  # The record, or the empty place, is in part 0.
        return sums_seen(made, key, rows, jnp.zeros(()), number, noise_multiplier=noise), first

    return jax.vmap(one)(keys)


def attack(made, noise):
    """Lower bound on epsilon, wrong with probability 1e-6, by the exact likelihood ratio.

    The price holds for an adversary who knows the parts: of runs whose record is in the first.
    """
    chance, strategy = made.lots.sampling_probability, matrix(made.bands, made.steps)

    def statistics(number, seed):
        keys = training.candidate_keys(RUNS, seed=seed)
        seen, first = _attacked(made, keys, number, np.float32(noise))
        y = np.asarray(seen, np.float64)[np.asarray(first)] @ strategy.T
        total = np.zeros(len(y))
        for turn in range(0, made.steps, made.lots.cycle):
            u = strategy[:, turn]
            outside = math.log1p(-chance) if chance < 1 else -math.inf
            total += np.logaddexp(outside, math.log(chance) + (y @ u - u @ u / 2) / NOISE**2)
        return total

    return epsilon_lower_bound(statistics(1, seed=1), statistics(0, seed=2), DELTA)


NOISE = 1.2


@pytest.mark.parametrize("bands, chance", [(2, 1.0), (2, 0.5), (3, 1.0)])
def test_the_claim_holds_is_nearly_reached_and_half_the_noise_is_caught(bands, chance):
    """The adversary sees every noisy sum of many runs of the program, on one record or none."""
    steps = 6
    made = dataclasses.replace(
        config(bands, steps, loss=lambda w, row: -w * row[0]),
        lots=training.CyclicPoissonLots(bands, chance, 1, bands),
    )
    claim = accounting.dp_sgd(chance, NOISE, made.lots.most_participations(steps)).epsilon(DELTA)
    found = attack(made, NOISE)
    assert found <= claim
    assert found > 0.6 * claim
    assert attack(made, NOISE / 2) > 1.2 * claim


# In runs and sweeps -------------------------------------------------------------------------------


def _candidates():
    base = config(2, loss=LOSS)
    lots = training.PoissonLots(40, 0.3, 25)
    return [
        dataclasses.replace(base, lots=lots, noise=None, steps=9),
        base,
        config(4, steps=9, loss=LOSS),
        config(3, steps=7, cycle=4, loss=LOSS),
        dataclasses.replace(base, noise=None, steps=5),
    ]


def test_candidates_side_by_side_are_those_alone():
    configs = _candidates()
    found = side_by_side.assert_those_alone(configs, GIVEN)
    keys = training.candidate_keys(len(configs), seed=side_by_side.SEED)
    given = GIVEN | {"learning_rate": side_by_side.RATE}
    vmapped = jax.vmap(training.make_train(configs[2]), in_axes=(0, None, None, None))
    both = training.jit(vmapped)(keys[1:3], given, {"w": jnp.zeros(3)}, DATA)
    np.testing.assert_allclose(both["w"][1], found[2], rtol=2e-5, atol=1e-6)


def test_a_sweep_that_is_killed_goes_on_to_the_identical_result(tmp_path):
    side_by_side.assert_killed_goes_on(_candidates, GIVEN, tmp_path / "checkpoints")


def test_a_run_in_pieces_is_the_whole_run():
    made = config(4, loss=LOSS)
    whole = training.jit(training.make_train(made))(_key(), GIVEN, {"w": jnp.zeros(3)}, DATA)
    given = {name: jnp.float32(value) for name, value in GIVEN.items()}

    @jax.jit
    def pieces():
        state = dp_sgd.begin(made, given, {"w": jnp.zeros(3)})
        draw = lots_of_steps(made.lots, _key(), 40)
        for first, steps in ((0, 5), (5, 1), (6, 6)):
            state = dp_sgd.advance(
                made, _key(), given, state, DATA, draw=draw, expected_lot_size=1.0,
                steps=np.uint32(steps), first=np.uint32(first),
            )  # fmt: skip
        return state.trained

    np.testing.assert_allclose(pieces()["w"], whole["w"], rtol=1e-5)


def test_a_candidate_with_more_bands_than_the_population_is_refused():
    with pytest.raises(ValueError, match="noise of 4 bands, which the population lacks"):
        side_by_side.mixed(
            [config(4, loss=LOSS)], GIVEN, population=[config(2, cycle=4, loss=LOSS)]
        )


@pytest.mark.parametrize("bands, steps, most", [(2, 1000, 15.93), (4, 10_000, 35.6)])
def test_few_bands_and_many_steps_have_the_best_strategy_too(bands, steps, most):
    """Strategies on the way there whose noise grows without end do not stop the search."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        noise = training.BandedNoise(bands)
        assert noise.error(steps) < most
    for wrong in (0, -1, 1.5, math.nan, "4"):
        with pytest.raises(ValueError, match="steps must be a whole number"):
            noise.error(wrong)
