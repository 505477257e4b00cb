"""Distinct draws against a plain loop, and enough of them."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpjax.training.lots import (
    at_least,
    compact,
    distinct_records,
    draws_for_distinct,
)


@pytest.mark.parametrize(("size", "draws"), [(50, 200), (1000, 64), (2**20, 9000), (2**31 - 1, 40)])
def test_distinct_records_against_a_plain_loop(size, draws):
    words = np.random.default_rng(7).integers(0, 2**32, draws, dtype=np.uint32)
    words[3] = words[1]  # a repetition for certain
    words[5] = 2**32 - 1  # a rejected word, where the size does not divide 2^32
    share = 2**32 // size
    expected = list(dict.fromkeys(w // share for w in words.tolist() if w // share < size))
    records, distinct = distinct_records(jnp.asarray(words), size, draws)
    assert int(distinct) == len(expected) < draws
    np.testing.assert_array_equal(np.asarray(records)[: len(expected)], expected)


@pytest.mark.parametrize(
    ("size", "wanted"), [(60_000, 512), (100, 50), (60_000, 1), (64, 1), (10**6, 4000), (12, 6)]
)
def test_enough_draws_are_made(size, wanted):
    draws, failure = draws_for_distinct(size, wanted)
    share = 2**32 // size
    kept = share * size / 2**32 * (1 - (wanted - 1) / size)
    assert scipy.stats.binom.cdf(wanted - 1, draws, kept) <= float(failure)
    assert draws <= 1.2 * wanted / kept + 400


def test_multi_word_comparison():
    values = [0, 1, 2**32 - 1, 2**32, 2**32 + 1, 2**63, 2**64 - 1]
    words = jnp.array([[v >> 32 for v in values], [v % 2**32 for v in values]], jnp.uint32)
    result = at_least(words[:, :, None], np.asarray(words)[:, None, :])
    np.testing.assert_array_equal(result, [[a >= b for b in values] for a in values])


def test_compacting_keeps_the_first_members_that_fit():
    member = jnp.array([False, True, True, False, True])
    for capacity, expected in ((2, [1, 2]), (4, [1, 2, 4]), (7, [1, 2, 4])):
        indices, mask = compact(member, capacity)
        assert indices.shape == mask.shape == (capacity,)
        assert np.asarray(indices)[np.asarray(mask)].tolist() == expected
