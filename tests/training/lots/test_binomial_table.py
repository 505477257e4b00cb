"""The count table against exact rational arithmetic."""

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpjax.training.binomial_table import binomial_count_table, round_up, split_into_words


def exact_law(trials: int, probability: float, cap: int) -> list[Fraction]:
    """P[min(Binomial, cap) = k] as fractions."""
    q = Fraction(probability)
    law = [comb(trials, k) * q**k * (1 - q) ** (trials - k) for k in range(trials + 1)]
    return [*law[:cap], sum(law[cap:], Fraction(0))]


def table_law(thresholds: np.ndarray) -> list[Fraction]:
    """The law that a table gives to a uniform integer."""
    words = thresholds.shape[0]
    values = [0, *(sum(int(w) << (32 * (words - 1 - i)) for i, w in enumerate(column))
                   for column in thresholds.T), 1 << (32 * words)]  # fmt: skip
    return [
        Fraction(high - low, 1 << (32 * words))
        for low, high in zip(values[:-1], values[1:], strict=True)
    ]


def distance(left: list[Fraction], right: list[Fraction]) -> Fraction:
    return sum((abs(a - b) for a, b in zip(left, right, strict=True)), Fraction(0)) / 2


@pytest.mark.parametrize("words", [1, 2, 3])
@settings(deadline=None, max_examples=40, derandomize=True)
@given(
    trials=st.integers(1, 40),
    probability=st.floats(1e-6, 1 - 1e-6),
    data=st.data(),
)
def test_bound_on_the_error_holds_and_is_close(words, trials, probability, data):
    cap = data.draw(st.integers(1, trials))
    table = binomial_count_table(trials, probability, cap, words=words)
    true = distance(exact_law(trials, probability, cap), table_law(table.thresholds))
    assert true <= Fraction(table.total_variation)
    # Interval widths add next to nothing; the last outcome's share may count twice.
    slack = Fraction(1, 2 ** (32 * words + 200))
    assert Fraction(table.total_variation) <= 2 * true + slack + true / 2**40
    # As fine as its words: every threshold is a nearest integer, or the largest there is.
    assert Fraction(table.total_variation) <= Fraction(cap + 1, 2 ** (32 * words))


def test_a_coarse_table_admits_its_error():
    coarse = binomial_count_table(60_000, 256 / 60_000, 376, words=1)
    fine = binomial_count_table(60_000, 256 / 60_000, 376, words=3)
    assert 1e-9 < coarse.total_variation < 1e-7
    assert 0 < fine.total_variation < 376 * 2.0**-96


@pytest.mark.parametrize("factor", [2 / 3, 3 / 2])
def test_distance_would_notice_another_probability(factor):
    table = binomial_count_table(30, 0.2, 12, words=3)
    assert distance(exact_law(30, 0.2 * factor, 12), table_law(table.thresholds)) > 0.1


def test_words_are_split_high_word_first():
    words = split_into_words([1, (5 << 64) + (6 << 32) + 7], 3)
    np.testing.assert_array_equal(words, [[0, 5], [0, 6], [1, 7]])
    assert words.dtype == np.uint32


@given(st.fractions(min_value=0, max_value=1))
def test_rounding_never_goes_down(value):
    rounded = round_up(value)
    assert Fraction(rounded) >= value
    assert Fraction(float(np.nextafter(rounded, -1))) < value or value == 0


@pytest.mark.parametrize("trials", [400, 3000])
@pytest.mark.parametrize("cap", [1, 700, 1100])
def test_every_threshold_is_the_nearest_integer_where_tails_are_cut(trials, cap):
    """Probability 1/4 makes the law a fraction of 4^trials; both tails of 3,000 are cut."""
    cap = min(cap, trials)
    weight, total, cumulative, expected = 3**trials, 4**trials, 0, []
    for count in range(cap):
        cumulative += weight
        weight = weight * (trials - count) // (3 * (count + 1))
        expected.append(min((2 * cumulative * 2**96 + total) // (2 * total), 2**96 - 1))
    table = binomial_count_table(trials, 0.25, cap, words=3)
    np.testing.assert_array_equal(table.thresholds, split_into_words(expected, 3))


def test_many_records_and_large_lots():
    """Figures of the recursion from P[0] in 480,000-bit integers, which took two minutes."""
    table = binomial_count_table(300_000, 1 / 3, 101_820, words=3)
    assert table.total_variation == pytest.approx(1.9977567300101004e-26, rel=1e-12)
    counts = np.arange(98_000, 101_820, 10)
    cumulative = table.thresholds[:, counts].T @ (2.0 ** np.array([-32, -64, -96]))
    np.testing.assert_allclose(cumulative, stats.binom.cdf(counts, 300_000, 1 / 3), rtol=1e-8)
