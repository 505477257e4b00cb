"""Ding & Wu's loop: its bound by exhaustion, its caps, and the simulated oracles."""

import functools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpjax import accounting
from dpjax.accounting.mechanisms.doubling import (
    ThresholdLoop,
    max_iterations,
    threshold_levels,
)


@pytest.mark.parametrize(
    ("granularity", "lower", "expected"),
    [
        (0.01, 0.0, 199),
        (0.1, 0.0, 19),
        (0.05, 0.0, 39),
        (0.07, 0.3, 19),
        (0.03, 0.0, 67),
        (1.0, 0.0, 1),
        (0.1, 0.9, 1),
        (Fraction(1, 3), 0.0, 5),
        (np.float64(0.001), 0.0, 1999),
    ],
)
def test_max_iterations_has_no_float_trap(granularity, lower, expected):
    assert max_iterations(granularity=granularity, lower_bound=lower) == expected


@pytest.mark.parametrize("levels", range(1, 9))
def test_bound_by_all_answer_sequences(levels):
    longest, most_hits = 0, 0
    stack = [()]
    while stack:
        answers = stack.pop()
        loop = ThresholdLoop(levels)
        for answer in answers:
            loop.record(answer)
        longest, most_hits = max(longest, loop.iterations), max(most_hits, loop.hits)
        if not loop.finished:
            stack += [(*answers, True), (*answers, False)]
    assert longest == 2 * levels - 1
    assert most_hits == levels


def test_bound_by_recursion_over_states():
    for levels in range(1, 120):

        @functools.cache
        def longest(level, step, levels=levels):
            if step == 0 or level >= levels:
                return 0
            return 1 + max(longest(level + step, 2 * step), longest(level, step // 2))

        assert longest(0, 1) == 2 * levels - 1


def test_float_thresholds_break_the_bound():
    """Why the loop counts in whole units: ten steps of 0.1 do not reach 1.0."""
    level, step, iterations, answers = 0.0, 0.1, 0, [True] + [False, True] * 20
    for hit in answers:
        if level >= 1.0 or step < 0.1:
            break
        iterations += 1
        if hit:
            level, step = level + step, 2 * step
        else:
            step /= 2
    assert iterations > max_iterations(granularity=0.1)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 60),
    st.one_of(st.none(), st.integers(1, 30)),
    st.one_of(st.none(), st.integers(1, 10)),
    st.lists(st.booleans(), min_size=130, max_size=130),
)
def test_caps_always_hold(levels, iterations, hits, answers):
    loop = ThresholdLoop(levels, iterations, hits)
    last = True
    for answer in answers:
        if loop.finished:
            break
        assert loop.propose() == loop.level + loop.step
        assert loop.starts_segment == last
        loop.record(answer)
        last = answer
    assert loop.finished
    assert loop.iterations <= min(2 * levels - 1, iterations or 10**9)
    assert loop.hits <= min(levels, hits or 10**9)
    with pytest.raises(ValueError, match="over"):
        loop.propose()
    with pytest.raises(ValueError, match="over"):
        loop.record(True)


def test_levels():
    assert threshold_levels(0.01) == 100
    assert threshold_levels(0.3) == 4


@pytest.mark.parametrize("granularity", [1 / 2, 1 / 3, 1 / 4])
def test_renyi_curve_is_never_below_whole_loops(granularity):
    """Every transcript of loops whose answers are epsilon-DP pairs chosen anew after each history.

    Among 30 loops: randomised response throughout, which comes nearest, and pairs at random.
    """
    epsilon, orders = 0.7, np.array([1.1, 1.5, 2.0, 4.0, 16.0])
    stated = accounting.doubling_loop(epsilon, granularity=granularity).rdp(orders)
    levels, most = accounting.threshold_levels(granularity), 0.0
    generator = np.random.default_rng(6)
    high = 1 / (1 + math.exp(-epsilon))

    def moments(history, p, q, response):
        """Sum over transcripts that begin with `history` of p^l q^(1 - l)."""
        loop = accounting.ThresholdLoop(levels)
        for hit in history:
            loop.record(hit)
        if loop.finished:
            return p**orders * q ** (1 - orders)
        first, second = (high, 1 - high) if generator.random() < 0.5 else (1 - high, high)
        if not response:  # A mixture of two epsilon-DP pairs is one.
            share, level = generator.random(), generator.random()
            first, second = (share * x + (1 - share) * level for x in (first, second))
        return moments((*history, True), p * first, q * second, response) + moments(
            (*history, False), p * (1 - first), q * (1 - second), response
        )

    for number in range(30):
        exact = np.log(moments((), 1.0, 1.0, number < 15)) / (orders - 1)
        assert np.all(exact <= stated * (1 + 1e-12))
        most = max(most, float((exact / stated).max()))
    assert most > 0.6
