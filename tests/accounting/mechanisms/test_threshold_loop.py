"""Ding & Wu's loop: its bound by exhaustion, its caps, and the simulated oracles."""

import functools
import json
import pathlib
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpjax.accounting.mechanisms.threshold_loop import (
    ThresholdLoop,
    max_iterations,
    simulate_loop,
    threshold_levels,
)

ORACLES = pathlib.Path(__file__).parents[1] / "oracles"
UTILITY_RANGE = {  # partitions k and largest true utility of each simulated setting
    "paper k=10 eps0=.1": (10, 1.0),
    "k=100": (100, 1.0),
    "k=1000": (1000, 1.0),
    "k=1e5 (near noiseless)": (1e5, 1.0),
    "paper cand in (0,.5)": (10, 0.5),
    "k=1000, cand in (0,.5)": (1000, 0.5),
}


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


@pytest.mark.parametrize(
    ("granularity", "lower"),
    [(0.0, 0.0), (-0.1, 0.0), (1.1, 0.0), (0.2, 0.9), (0.1, 1.0), (0.1, -0.1), (np.nan, 0.0)],
)
def test_bound_refuses_bad_ranges(granularity, lower):
    with pytest.raises(ValueError, match=r"granularity|lower_bound"):
        max_iterations(granularity=granularity, lower_bound=lower)


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


@pytest.mark.parametrize("bad", [0, -1, 1.5, "3"])
def test_loop_refuses_bad_counts(bad):
    with pytest.raises(ValueError, match="levels"):
        ThresholdLoop(bad)
    with pytest.raises(ValueError, match="maximum_hits"):
        ThresholdLoop(3, maximum_hits=bad)


def _traces(partitions, top, variant, granularity=0.01, epsilon=0.1):
    traces, selected, best = [], [], []
    for seed in range(1000):
        generator = np.random.default_rng(seed)
        utilities = generator.uniform(0, top, 100)
        trace = simulate_loop(
            utilities,
            generator,
            granularity=granularity,
            threshold_scale=2 / (partitions * epsilon),
            query_scale=4 / (partitions * epsilon),
            variant=variant,
        )
        traces.append(trace)
        best.append(utilities.max())
        if trace.selected is not None:
            selected.append(utilities[trace.selected])
    return traces, selected, best


@pytest.mark.parametrize("setting", UTILITY_RANGE)
@pytest.mark.parametrize(
    ("mode", "variant"), [("always", "iterations"), ("after_true", "segments")]
)
def test_simulation_oracle_exactly(setting, mode, variant):
    expected = json.loads((ORACLES / "svt_simulation.json").read_text())[f"{setting} | {mode}"]
    traces, selected, best = _traces(*UTILITY_RANGE[setting], variant)
    iterations = [trace.iterations for trace in traces]
    hits = [trace.hits for trace in traces]
    found = {
        "T_median": np.median(iterations),
        "T_mean": np.mean(iterations),
        "T_p99": np.percentile(iterations, 99),
        "T_p999": np.percentile(iterations, 99.9),
        "T_max": max(iterations),
        "true_median": np.median(hits),
        "true_p99": np.percentile(hits, 99),
        "true_max": max(hits),
        "none": 1000 - len(selected),
    }
    assert found == {name: expected[name] for name in found}
    assert np.mean(selected) == pytest.approx(expected["mean_u_selected"], rel=1e-12)
    assert np.mean(best) == pytest.approx(expected["mean_u_max"], rel=1e-12)


def test_figure_2_oracle_exactly():
    for row in json.loads((ORACLES / "svt_fig2.json").read_text()):
        granularity = Fraction(1, row["ratio"])
        traces, _, _ = _traces(10, 1.0, "iterations", granularity=float(granularity))
        iterations = [trace.iterations for trace in traces]
        assert np.median(iterations) == row["median"] == row["ceil_log2"]
        assert np.percentile(iterations, 99) == row["p99"]
        assert max(iterations) == row["max"]
        assert max_iterations(granularity) == row["Tmax"]


def test_levels():
    assert threshold_levels(0.01) == 100
    assert threshold_levels(0.3) == 4
