"""Balls in bins: the law of the lots, their charges, runs and sweeps, what an adversary sees."""

import dataclasses
import functools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from audits import epsilon_lower_bound
from noisy_sums import noisy_sums
from scipy import stats

from dpjax import accounting, training
from dpjax.training.lots import family_of, lots_of_steps

BOUND, BINS, EPOCHS, RUNS = 12, 5, 3, 4000


def _key(seed=0):
    return training.candidate_keys(1, seed=seed)[0]


@functools.partial(jax.jit, static_argnames=("lots", "steps"))
def members(lots, steps, key, number):
    """Which records are in the lots of a run, bool (steps, bound)."""
    draw = lots_of_steps(lots, key, number)

    def of_step(step):
        indices, mask = draw(jax.random.fold_in(training.stream(key, "lots"), step), step)
        place = jnp.where(mask, indices, lots.dataset_size_bound)
        found = jnp.zeros(lots.dataset_size_bound + 1, jnp.int32).at[place].add(1)
        return found[:-1]

    return jax.lax.map(of_step, jnp.arange(steps, dtype=jnp.uint32))


@functools.cache
def bins_of_runs():
    """The bin of each record in each epoch of many runs, (RUNS, EPOCHS, BOUND)."""
    lots = training.BallsInBinsLots(BOUND, BINS, BOUND)
    found = jax.vmap(lambda key: members(lots, BINS * EPOCHS, key, BOUND))(
        training.candidate_keys(RUNS, seed=1)
    )
    found = np.asarray(found).reshape(RUNS, EPOCHS, BINS, BOUND)
    assert (found.sum(axis=2) == 1).all()  # Each record, once an epoch.
    return found.argmax(axis=2)


def least_p_value(bins):
    """The least p-value of uniformity of records, and independence of records and of epochs."""

    def of(counts):
        return stats.chisquare(np.ravel(counts)).pvalue

    found = [
        of(np.bincount(bins[:, e, n], minlength=BINS)) for e in range(EPOCHS) for n in range(BOUND)
    ]
    pairs = [((e, n), (e, m)) for e in range(EPOCHS) for n in range(BOUND) for m in range(n)]
    pairs += [((e, n), (f, m)) for e in range(EPOCHS) for f in range(e) for n in range(BOUND)
              for m in range(BOUND)]  # fmt: skip
    for one, other in pairs:
        both = bins[:, *one] * BINS + bins[:, *other]
        found.append(of(np.bincount(both, minlength=BINS * BINS)))
    return min(found) * len(found)


def test_each_record_is_in_one_uniform_lot_of_each_epoch_independently():
    bins = bins_of_runs()
    assert least_p_value(bins) > 1e-4
    # Laws that are near, but others, are told apart.
    generator = np.random.default_rng(0)
    kept = np.repeat(bins[:, :1], EPOCHS, axis=1)
    dealt = generator.permuted(np.broadcast_to(np.arange(BOUND) % BINS, bins.shape), axis=2)
    leaning = np.where(generator.random(bins.shape) < 0.05, 0, bins)
    copied = np.concatenate([bins[:, :, :-1], bins[:, :, :1]], axis=2)
    for wrong in (kept, dealt, leaning, copied):
        assert least_p_value(wrong) < 1e-9


def test_runs_differ_and_other_records_stay_in_their_lots_if_one_more_exists():
    lots = training.BallsInBinsLots(20, 4, 20)
    fewer, more = (np.asarray(members(lots, 8, _key(3), number)) for number in (12, 13))
    assert (fewer[:, :12] == more[:, :12]).all()
    assert more[:, 12].sum() == 2 and not fewer[:, 12:].any()
    assert (np.asarray(members(lots, 8, _key(4), 12)) != fewer).any()


def test_full_lots_keep_as_many_as_they_have_places_and_empty_ones_none():
    lots = training.BallsInBinsLots(30, 3, 4)
    found = np.asarray(members(lots, 6, _key(), 30))
    assert found.max() == 1 and set(found.sum(axis=1)) == {4}
    assert not np.asarray(members(lots, 6, _key(), 0)).any()
    alone = np.asarray(members(training.BallsInBinsLots(1, 7, 1), 14, _key(), 1)).reshape(2, 7)
    assert (alone.sum(axis=1) == 1).all()
    everyone = training.BallsInBinsLots(9, 1, 9)
    assert (np.asarray(members(everyone, 3, _key(), 9)) == 1).all()


def test_records_stand_at_random_places():
    """A record's place is uniform over all places, whoever else is in the lot."""
    lots = training.BallsInBinsLots(4, 2, 4)

    def place_of_first(key):
        indices, mask = lots.lots_of_steps(key, 4)(jax.random.fold_in(key, 1), jnp.uint32(0))
        here = (indices == 0) & mask
        return jnp.where(here.any(), jnp.argmax(here), -1)

    found = np.asarray(jax.vmap(place_of_first)(training.candidate_keys(3000, seed=2)))
    assert stats.chisquare(np.bincount(found[found >= 0], minlength=4)).pvalue > 1e-4


@pytest.mark.parametrize("bins", [1, 3, 937, 1000])
def test_the_charge_is_above_the_distance_from_uniform_bins(bins):
    lots = training.BallsInBinsLots(10 * bins, bins, 40)
    numbers = 2**96
    firsts = [place * numbers // bins for place in range(bins)] + [numbers]
    lengths = np.diff(np.array(firsts, object))
    distance = sum(abs(Fraction(int(n), numbers) - Fraction(1, bins)) for n in lengths) / 2
    assert distance <= lots.total_variation <= bins * 2.0**-96
    assert lots.failure_probability_per_draw >= (1 + math.exp(22)) * lots.total_variation
    assert lots.epochs(bins) == 1 and lots.epochs(2 * bins + 1) == 3


# Runs ---------------------------------------------------------------------------------------------

GIVEN = {"clip_norm": 1.0, "noise_multiplier": 0.0, "learning_rate": 1.0}


def config(lots, steps, **own):
    """Parameters are the sum of all lots' records and noises."""
    return training.TrainConfig(
        loss_fn=lambda w, row: -w @ row, lots=lots, steps=steps, expected_lot_size=1.0,
        optimizer=training.sgd(), **own,
    )  # fmt: skip


def test_an_epoch_trains_on_each_record_once():
    rows = np.eye(12, dtype=np.float32)
    made = config(training.BallsInBinsLots(12, 4, 12), steps=8, micro_batch_size=3)
    train = training.jit(training.make_train(made))
    assert train(_key(), GIVEN, jnp.zeros(12), rows).tolist() == pytest.approx([2.0] * 12, rel=1e-4)
    part = train(_key(), GIVEN, jnp.zeros(12), rows, 7)
    assert part.tolist() == pytest.approx([2.0] * 7 + [0.0] * 5, rel=1e-4)
    cut = training.make_train(dataclasses.replace(made, steps=6))(
        _key(), GIVEN, jnp.zeros(12), rows
    )
    assert set(np.round(np.asarray(cut), 3).tolist()) == {1.0, 2.0}
    assert made.relation == "add_or_remove_one"


def test_a_sweep_trains_each_candidate_as_alone():
    rows = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    lots = training.BallsInBinsLots(40, 4, 25)
    made = config(lots, steps=9)
    given = [GIVEN | {"noise_multiplier": 1.0, "learning_rate": rate} for rate in (0.1, 0.2, 0.3)]
    words = training.candidate_keys(3, seed=5)
    columns = {name: np.array([one[name] for one in given], np.float32) for name in GIVEN}
    configs = [made, dataclasses.replace(made, lots=training.BallsInBinsLots(40, 9, 25)), made]
    finished = training.mixed_sweep(
        configs, words, columns, rows, initial=lambda key: jnp.zeros(3), useful_work=0.5
    )
    for indices, found in finished:
        for index, own in zip(indices, np.asarray(found)):
            train = training.jit(training.make_train(configs[index]))
            alone = train(words[index], given[index], jnp.zeros(3), rows)
            np.testing.assert_allclose(own, alone, rtol=1e-4, atol=1e-5)
    shared = family_of(lots).lots_of_steps(_key(), {}, 35)
    for step in range(5):
        pair = [
            np.asarray(each)
            for draw in (shared, lots.lots_of_steps(_key(), 35))
            for each in draw(_key(1), jnp.uint32(step))
        ]
        assert (pair[0] == pair[2]).all() and (pair[1] == pair[3]).all()


# What an adversary sees ---------------------------------------------------------------------------

NOISE, DELTA, ATTACKS = 1.0, 0.05, 1 << 17


@functools.partial(jax.jit, static_argnames=("made", "number"))
def sums_seen(made, keys, number, noise):
    """The noisy sums of every step of many runs, (runs, steps), of one record or none."""
    given, rows = GIVEN | {"noise_multiplier": noise}, jnp.ones((1, 1))

    def one(key):
        return -noisy_sums(made, key, given, rows, jnp.zeros(1), number)[:, 0]

    return jax.vmap(one)(keys)


def attack(bins, epochs, noise):
    """Lower bound on epsilon, wrong with probability 1e-6, by the exact likelihood ratio."""
    made = config(training.BallsInBinsLots(1, bins, 1), bins * epochs)

    def statistics(number, seed):
        keys = training.candidate_keys(ATTACKS, seed=seed)
        seen = np.asarray(sums_seen(made, keys, number, np.float32(noise)), np.float64)
        gains = (seen.reshape(-1, epochs, bins) - 0.5) / NOISE**2
        return np.logaddexp.reduce(gains, axis=2).sum(axis=1)

    return epsilon_lower_bound(statistics(1, seed=1), statistics(0, seed=2), DELTA)


@pytest.mark.parametrize("bins, epochs", [(3, 2)])
def test_the_claim_holds_is_nearly_reached_and_half_the_noise_is_caught(bins, epochs):
    claimed = accounting.dp_sgd_balls_in_bins(NOISE, bins, epochs).epsilon(DELTA)
    found = attack(bins, epochs, NOISE)
    assert 0.8 * claimed < found <= claimed
    assert attack(bins, epochs, NOISE / 2) > claimed


def test_a_planned_run_costs_what_its_lots_say():
    """Records, lots and failures together, as `docs/training.md` prices them."""
    records, bins, steps, noise = 600, 12, 30, 1.2
    capacity = accounting.lot_capacity(records, 1 / bins, steps)
    lots = training.BallsInBinsLots(records, bins, capacity)
    failure = steps * lots.failure_probability_per_draw + accounting.truncation_probability(
        records, 1 / bins, capacity, steps
    )
    price = accounting.dp_sgd_balls_in_bins(
        noise, bins, lots.epochs(steps), failure_probability=failure
    )
    free = accounting.dp_sgd_balls_in_bins(noise, bins, 3)
    assert free.epsilon(1e-5) < price.epsilon(1e-5) < 1.001 * free.epsilon(1e-5)
