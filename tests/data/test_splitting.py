"""The keyed hash: one record moves no other, and the public bound on a part's size holds."""

import collections
import hashlib

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.stats

from dpjax.data import splitting

small_tables = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=30
)  # Few values, so that equal records are common.


def divide(table, fraction, key):
    """Returns the two parts as multisets of records, identified by content."""
    inputs = np.array([[row[0]] for row in table], np.float32)
    labels = np.array([row[1] for row in table], np.int32)
    member = splitting.validation_members(
        splitting.content_identifiers(inputs, labels), fraction, key
    )
    parts = (collections.Counter(), collections.Counter())
    for row, is_validation in zip(table, member):
        parts[int(is_validation)][row] += 1
    return parts


@hypothesis.given(small_tables, st.data(), st.floats(0.05, 0.95), st.binary(min_size=1, max_size=9))
@hypothesis.settings(deadline=None, max_examples=80)
def test_removing_a_record_changes_one_part_by_that_record(table, data, fraction, key):
    removed = data.draw(st.integers(0, len(table) - 1))
    before = divide(table, fraction, key)
    after = divide(table[:removed] + table[removed + 1 :], fraction, key)
    lost = [part - smaller for part, smaller in zip(before, after)]
    gained = [smaller - part for part, smaller in zip(before, after)]
    assert sum(sum(part.values()) for part in gained) == 0
    assert sum((list(part.elements()) for part in lost), []) == [table[removed]]


@hypothesis.given(st.integers(2, 200), st.data(), st.integers())
@hypothesis.settings(deadline=None, max_examples=30)
def test_given_identifiers_move_no_other_record(count, data, key):
    identifiers = splitting.slot_identifiers(count)
    removed = data.draw(st.integers(0, count - 1))
    everyone = splitting.validation_members(identifiers, 0.4, key)
    without = splitting.validation_members(np.delete(identifiers, removed), 0.4, key)
    np.testing.assert_array_equal(np.delete(everyone, removed), without)


def test_a_slot_keeps_its_part_when_the_record_in_it_is_replaced():
    # Slots do not look at the content at all; content identifiers would move about half.
    inputs = np.arange(200, dtype=np.float32)[:, None]
    labels = np.zeros(200, np.int32)
    old = splitting.validation_members(splitting.content_identifiers(inputs, labels), 0.5, 1)
    new = splitting.validation_members(splitting.content_identifiers(inputs + 1000, labels), 0.5, 1)
    assert (old != new).any()


def test_copies_are_spread_over_the_parts():
    # 20,000 equal records: a hash of the content alone would put them all on one side.
    identifiers = splitting.content_identifiers(
        np.zeros((20_000, 3), np.float32), np.zeros(20_000, np.int32)
    )
    assert len(np.unique(identifiers)) == 20_000
    share = splitting.validation_members(identifiers, 0.3, b"key").mean()
    assert abs(share - 0.3) < 6 * np.sqrt(0.3 * 0.7 / 20_000)


@pytest.mark.parametrize("fraction", [0.02, 0.1, 0.5, 0.9])
def test_the_share_is_the_fraction_asked_for(fraction):
    identifiers = splitting.slot_identifiers(50_000)
    count = splitting.validation_members(identifiers, fraction, b"a fixed key").sum()
    assert scipy.stats.binomtest(int(count), 50_000, fraction).pvalue > 1e-4
    # The test can tell: half and twice the share are rejected.
    assert scipy.stats.binomtest(int(count), 50_000, fraction / 2).pvalue < 1e-4


def test_membership_is_independent_over_keys():
    identifiers = splitting.slot_identifiers(2000)
    first = splitting.validation_members(identifiers, 0.5, 1)
    second = splitting.validation_members(identifiers, 0.5, 2)
    assert abs((first == second).mean() - 0.5) < 6 * 0.5 / np.sqrt(2000)
    np.testing.assert_array_equal(first, splitting.validation_members(identifiers, 0.5, 1))


def test_the_hash_is_the_documented_one():
    # Written out independently: parts must not change between versions of this project.
    digest = hashlib.blake2b(
        (41).to_bytes(8, "little"), key=b"7", digest_size=8, person=b"dpjax split"
    ).digest()
    share = int.from_bytes(digest, "little") / 2.0**64
    identifiers = np.array([41])
    assert splitting.validation_members(identifiers, share + 1e-6, 7)[0]
    assert not splitting.validation_members(identifiers, share - 1e-6, 7)[0]
    assert splitting.validation_members(identifiers.astype(np.int32), share + 1e-6, b"7")[0]


@pytest.mark.parametrize("count", [1, 7, 100, 5000, 60_000])
@pytest.mark.parametrize("share", [1e-4, 0.01, 0.1, 0.5, 0.99])
def test_the_bound_fails_with_probability_below_the_stated(count, share):
    bound = splitting.part_size_bound(count, share)
    assert scipy.stats.binom.sf(bound, count, share) <= np.exp(-32.0)
    assert bound <= count


def test_the_bound_is_not_wasteful():
    assert splitting.part_size_bound(60_000, 0.1) <= 6000 + 8 * np.sqrt(5400) + 23


@pytest.mark.parametrize("key", [b"", b"x" * 65, "text", 1.5, None, True])
def test_bad_keys_are_refused(key):
    with pytest.raises(ValueError, match="pass an integer or 1 to 64 bytes"):
        splitting.validation_members(splitting.slot_identifiers(3), 0.5, key)
