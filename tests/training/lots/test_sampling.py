"""Lots have the law they claim, and a wrong law would be noticed.

Every statistical test has a fixed seed and an error rate of at most 1e-4.
"""

import functools
import itertools
import math
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpjax.training import FixedLots, PoissonLots

ERROR_RATE = 1e-4


@functools.cache
def compiled_draw(lots):
    return jax.jit(jax.vmap(lots.draw, in_axes=(0, None)))


@functools.cache
def draw_many(lots, number_of_records: int, draws: int):
    keys = jax.random.split(jax.random.key(0), draws)
    return tuple(map(np.asarray, compiled_draw(lots)(keys, jnp.int32(number_of_records))))


def membership(lots, number_of_records: int, draws: int) -> np.ndarray:
    """bool (draws, number_of_records)."""
    indices, mask = draw_many(lots, number_of_records, draws)
    member = np.zeros((draws, number_of_records), bool)
    rows = np.broadcast_to(np.arange(draws)[:, None], indices.shape)
    member[rows[mask], indices[mask]] = True
    assert member.sum() == mask.sum(), "a lot holds a record twice"
    return member


def binomial_law(trials: int, probability: float, cap: int) -> np.ndarray:
    law = scipy.stats.binom.pmf(np.arange(cap + 1), trials, probability)
    law[cap] = scipy.stats.binom.sf(cap - 1, trials, probability)
    return law


def count_p_value(counts: np.ndarray, law: np.ndarray) -> float:
    """Chi-square against a law of counts, outcomes expected less than 10 times lumped together."""
    observed = np.bincount(counts, minlength=len(law)).astype(float)
    expected = law * len(counts)
    rare = expected < 10
    observed = np.append(observed[~rare], observed[rare].sum())
    expected = np.append(expected[~rare], max(expected[rare].sum(), 1e-300))
    if expected[-1] < 1:  # too rare to test, but it may not be what is common
        assert observed[-1] <= 20
        observed, expected = observed[:-1], expected[:-1]
        expected *= observed.sum() / expected.sum()
    return scipy.stats.chisquare(observed, expected).pvalue


POISSON_CASES = [
    PoissonLots(40, 0.2, 20),  # from the count table
    PoissonLots(40, 0.2, 40),  # one number per record
    PoissonLots(3000, 0.01, 70),
]


@pytest.mark.parametrize("lots", POISSON_CASES)
def test_lot_sizes_are_binomial(lots):
    counts = draw_many(lots, lots.dataset_size_bound, 20_000)[1].sum(axis=1)
    size, probability = lots.dataset_size_bound, lots.sampling_probability
    accepted = count_p_value(counts, binomial_law(size, probability, lots.capacity))
    assert accepted > ERROR_RATE
    for factor in (2 / 3, 3 / 2):
        wrong = binomial_law(size, probability * factor, lots.capacity)
        assert count_p_value(counts, wrong + 1e-12) < 1e-30


@pytest.mark.parametrize("lots", POISSON_CASES[:2])
def test_memberships_are_equally_likely_and_pairwise_independent(lots):
    draws, size, probability = 20_000, lots.dataset_size_bound, lots.sampling_probability
    member = membership(lots, size, draws).astype(float)
    spread = math.sqrt(probability * (1 - probability) / draws)
    z_scores = (member.mean(axis=0) - probability) / spread
    # Normal tails: 40 records at 5.5 sigma is 1.5e-6; 780 pairs at 5.5 sigma is 3e-5.
    assert np.abs(z_scores).max() < 5.5
    assert np.abs(z_scores).max() > 1.0  # frequencies equal to the letter are not random either
    together = member.T @ member / draws
    pair = probability**2
    pair_spread = math.sqrt(pair * (1 - pair) / draws)
    upper = np.triu_indices(size, 1)
    assert np.abs((together[upper] - pair) / pair_spread).max() < 5.5
    for factor in (2 / 3, 3 / 2):
        assert np.abs((member.mean() - probability * factor) / spread) > 8


@pytest.mark.parametrize(
    "lots", [PoissonLots(8, 0.3, 4), PoissonLots(7, 0.6, 7), PoissonLots(6, 0.5, 4)]
)
def test_every_subset_has_its_exact_probability(lots):
    """Over all subsets; full lots are compared by their number only where they may be truncated."""
    size, capacity, probability = (
        lots.dataset_size_bound,
        lots.capacity,
        lots.sampling_probability,
    )
    draws = 100_000
    member = membership(lots, size, draws)
    codes = Counter((member @ (1 << np.arange(size))).tolist())
    observed, expected = [], []
    for count in range(min(capacity, size + 1)):
        for subset in itertools.combinations(range(size), count):
            observed.append(codes[sum(1 << record for record in subset)])
            expected.append(draws * probability**count * (1 - probability) ** (size - count))
    if capacity <= size:
        observed.append(draws - sum(observed))
        expected.append(draws - sum(expected))
    assert min(expected) > 5
    assert scipy.stats.chisquare(observed, expected).pvalue > ERROR_RATE


@pytest.mark.parametrize(("size", "lot_size"), [(7, 3), (8, 5), (6, 1), (9, 4), (5, 4)])
def test_fixed_lots_are_uniform_over_subsets(size, lot_size):
    draws = 50_000
    member = membership(FixedLots(size, lot_size), size, draws)
    assert (member.sum(axis=1) == lot_size).all()
    codes = Counter((member @ (1 << np.arange(size))).tolist())
    assert len(codes) == math.comb(size, lot_size)
    assert scipy.stats.chisquare(list(codes.values())).pvalue > ERROR_RATE


def test_the_uniformity_test_rejects_a_biased_sampler():
    """Keeping the smallest of too many draws, as a careless truncation would, is noticed."""
    member = membership(FixedLots(7, 4), 7, 50_000)
    biased = member & (np.cumsum(member, axis=1) <= 3)
    codes = Counter((biased @ (1 << np.arange(7))).tolist())
    observed = [
        codes[sum(1 << record for record in subset)]
        for subset in itertools.combinations(range(7), 3)
    ]
    assert scipy.stats.chisquare(observed).pvalue < 1e-30


@pytest.mark.parametrize("lots", [FixedLots(60_000, 512), FixedLots(2**30, 300), FixedLots(3, 3)])
def test_fixed_lots_are_full_and_distinct(lots):
    indices, mask = draw_many(lots, lots.dataset_size, 50)
    assert mask.all()
    assert all(len(set(row)) == lots.lot_size for row in indices.tolist())
    assert indices.min() >= 0 and indices.max() < lots.dataset_size
    if lots.dataset_size > 3:  # a uniform mean, to 6 standard errors
        expected = (lots.dataset_size - 1) / 2
        spread = lots.dataset_size / math.sqrt(12 * indices.size)
        assert abs(indices.mean() - expected) < 6 * spread


def test_the_lot_does_not_depend_on_the_number_of_records():
    """One record more changes nothing but that record's own membership."""
    for lots in (PoissonLots(40, 0.3, 20), PoissonLots(40, 0.3, 40)):
        smaller, larger = membership(lots, 29, 500), membership(lots, 30, 500)
        np.testing.assert_array_equal(smaller, larger[:, :29])
        assert larger[:, 29].any()
        indices, mask = draw_many(lots, 0, 500)
        assert not mask.any() and not indices.any()


def test_static_and_traced_numbers_agree_and_padding_is_harmless():
    lots = PoissonLots(40, 0.3, 20)
    keys = jax.random.split(jax.random.key(0), 500)
    traced = draw_many(lots, 25, 500)
    static = jax.jit(jax.vmap(lambda key: lots.draw(key, 25)))(keys)
    for left, right in zip(traced, static, strict=True):
        np.testing.assert_array_equal(left, right)
    assert not np.asarray(traced[0])[~np.asarray(traced[1])].any()


@pytest.mark.parametrize("lots", [PoissonLots(100, 0.4, 40), PoissonLots(100, 0.4, 50)])
def test_truncation_keeps_capacity_records(lots):
    _, mask = draw_many(lots, 100, 2000)
    assert mask.shape[1] == lots.places == lots.capacity
    share_full = (mask.sum(axis=1) == lots.capacity).mean()
    expected = scipy.stats.binom.sf(lots.capacity - 1, 100, 0.4)
    assert abs(share_full - expected) < 5 * math.sqrt(0.25 / 2000)
    # The charge is what the accounting adds; quantisation must stay negligible beside it.
    assert lots.failure_probability_per_draw < 1e-15


def test_a_lot_with_a_place_for_every_record_leaves_none_out():
    """Whatever its capacity, which the accounting charges for none the less."""
    lots = PoissonLots(100, 0.75, 76)
    counts = draw_many(lots, 100, 2000)[1].sum(axis=1)
    assert lots.places == 100 and counts.max() > 76
    assert count_p_value(counts, binomial_law(100, 0.75, 100)) > ERROR_RATE
    assert count_p_value(np.minimum(counts, 76), binomial_law(100, 0.75, 100) + 1e-12) < 1e-30
    assert lots.failure_probability_per_draw < 1e-15


@pytest.mark.parametrize("capacity", [23, 30, 31])
def test_probability_one_takes_every_record(capacity):
    lots = PoissonLots(30, 1.0, capacity)
    indices, mask = lots.draw(jax.random.key(0), 20)
    assert sorted(np.asarray(indices)[np.asarray(mask)].tolist()) == list(range(20))
    assert indices.shape == (30,) and lots.failure_probability_per_draw == 0.0


def test_failure_probability_includes_the_factor_for_epsilon():
    lots = PoissonLots(60_000, 256 / 60_000, 376)
    assert lots.total_variation >= 2.0**-96
    assert lots.failure_probability_per_draw >= (1 + math.exp(22)) * lots.total_variation
    assert lots.failure_probability_per_draw * 1e4 < 1e-12
    assert FixedLots(60_000, 512).failure_probability_per_draw >= 2.0**-64
