"""One noisy iteration costs epsilon_0 and the loop around it is Ding & Wu's."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpjax import accounting
from dpjax.randomness.exact_samplers import discrete_laplace
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.tuning.tuners.doubling import first_above, run_loop
from dpjax.tuning.tuners.partitions import AveragedUtility

# Sensitivity 1, epsilon_0 = 1: neighbours that nearly exhaust it on "the last one answers".
EPSILON = 1.0
THRESHOLD, SCORES, NEIGHBOUR = 0, [0, 0, 0, 0, 0], [1, 1, 1, 1, -1]
UTILITY = AveragedUtility(partitions=1, validation_size=1)
RUNS = 20_000


def _at_least(scale, x):
    """P[noise >= x] for discrete Laplace noise, x an integer array."""
    ratio = math.exp(-1 / scale)
    upper = ratio ** np.maximum(x, 0) / (1 + ratio)
    return np.where(x >= 1, upper, 1 - ratio ** np.maximum(1 - x, 0) / (1 + ratio))


def _law(scores, threshold, threshold_scale, query_scale):
    """Exact probabilities of every output of one iteration, None last."""
    reach = int(60 * threshold_scale) + 2
    noise = np.arange(-reach, reach + 1)
    mass = math.tanh(1 / (2 * threshold_scale)) * np.exp(-np.abs(noise) / threshold_scale)
    missed, probabilities = mass, []
    for score in scores:
        hit = _at_least(query_scale, threshold + noise - score)
        probabilities.append(float(np.sum(missed * hit)))
        missed = missed * (1 - hit)
    return np.array([*probabilities, float(missed.sum())])


def _frequency(scores, factor, stream):
    """How often the last candidate answers, with noise at `factor` times the stated scales."""
    below = HostRandomness(seed=2).uniform_integers(stream)
    threshold_scale = factor * UTILITY.threshold_scale(EPSILON)
    query_scale = factor * UTILITY.query_scale(EPSILON)
    answers = [
        first_above(
            scores, THRESHOLD + discrete_laplace(threshold_scale, below), query_scale, below
        )
        for _ in range(RUNS)
    ]
    return sum(answer == len(scores) - 1 for answer in answers)


def _spent(factor, streams):
    """Observed log ratio of the two frequencies, and its standard error."""
    ours, theirs = (
        _frequency(scores, factor, stream)
        for scores, stream in zip((SCORES, NEIGHBOUR), streams, strict=True)
    )
    return math.log(ours / theirs), math.sqrt(1 / ours + 1 / theirs)


def test_frequencies_on_neighbours_respect_epsilon_and_half_the_noise_is_caught():
    # Exact log ratio 0.88 at the stated scales, 1.86 at half of them; false alarm 3e-5 (4 standard
    # errors, fixed seed), and half the noise is missed with probability below 1e-3.
    spent, error = _spent(Fraction(1), (0, 1))
    assert spent - 4 * error <= EPSILON
    assert spent + 4 * error > 0.6  # the test looks where the budget is spent
    spent, error = _spent(Fraction(1, 2), (2, 3))
    assert spent - 4 * error > EPSILON


def test_frequencies_are_the_exact_law():
    exact = _law(SCORES, THRESHOLD, 2.0, 4.0)
    observed = _frequency(SCORES, Fraction(1), 4)
    assert abs(exact.sum() - 1) < 1e-9
    spread = math.sqrt(RUNS * exact[4] * (1 - exact[4]))
    assert abs(observed - RUNS * exact[4]) < 4.5 * spread


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(-12, 12), min_size=1, max_size=6),
    st.data(),
    st.integers(1, 3),
    st.sampled_from([0.3, 1.0, 2.5]),
)
def test_every_output_on_any_neighbours_costs_at_most_epsilon(scores, data, sensitivity, epsilon):
    moves = st.integers(-sensitivity, sensitivity)
    neighbour = [score + data.draw(moves) for score in scores]
    scales = 2 * sensitivity / epsilon, 4 * sensitivity / epsilon
    ours, theirs = (_law(each, 0, *scales) for each in (scores, neighbour))
    ratio = np.abs(np.log(ours / theirs))
    assert np.all(ratio <= epsilon * (1 + 1e-6) + 1e-9)
    # A run of misses, however many queries, costs half: the segment variant rests on it.
    assert ratio[-1] <= epsilon / 2 * (1 + 1e-6) + 1e-9
    half = [_law(each, 0, scales[0] / 2, scales[1] / 2) for each in (SCORES, NEIGHBOUR)]
    if sensitivity == 1 and epsilon == 1.0:
        assert np.max(np.abs(np.log(half[0] / half[1]))) > 1.5 * epsilon


def _run(scores, *, scale=Fraction(1, 1000), variant="iterations", levels=20, below=None, **caps):
    below = below or HostRandomness(seed=4).uniform_integers(0)
    return run_loop(
        scores,
        accounting.ThresholdLoop(levels, **caps),
        lambda level: level * 100,
        threshold_scale=scale,
        query_scale=2 * scale,
        variant=variant,
        below=below,
    )


@pytest.mark.parametrize("variant", ["iterations", "segments"])
def test_without_noise_the_loop_finds_the_best_within_one_step(variant):
    # The last level that somebody reaches is 17; its first candidate is the one selected.
    ran = _run([500, 1799, 20, 1700], variant=variant)
    assert ran.selected == 1
    assert max(level for level, hit in zip(ran.levels, ran.answers) if hit) == 17
    assert ran.iterations <= 39 and ran.hits == sum(ran.answers)


def test_nothing_reached_selects_nobody_and_caps_hold():
    assert _run([-1000, -2000]).selected is None
    assert _run([10**6] * 3, maximum_iterations=2).iterations == 2
    loud = _run([10**6] * 3, variant="segments", maximum_hits=3)
    assert loud.hits == 3 == loud.segments
    misses = _run([-1000], variant="segments")
    assert misses.hits == 0 and misses.segments == 1


def test_segments_keep_the_threshold_noise_through_misses_and_only_then():
    """Coins that always make a noise of 0, and begin it by asking for the scale's numerator."""
    asked = []

    def below(bound):
        asked.append(bound)
        return int(bound == 2 and asked[-2:] == [1, 2])  # 1 ends the quotient's coins, 0 a sign.

    def ran(variant):
        asked.clear()
        found = _run([1750], scale=Fraction(7), variant=variant, below=below)
        # 7 begins a noise and its remainder's coins; the noise of a score begins with 14.
        assert asked.count(14) == 2 * found.iterations
        return found, asked.count(7) // 2

    fresh, thresholds = ran("iterations")
    assert thresholds == fresh.iterations
    kept, thresholds = ran("segments")
    assert kept.answers == fresh.answers  # no noise: the same path
    assert thresholds == kept.segments < kept.iterations


def test_never_more_iterations_than_charged():
    """Pure noise climbs and falls at random; the bound holds all the same."""
    below = HostRandomness(seed=5).uniform_integers(0)
    longest = 0
    for _ in range(300):
        ran = run_loop(
            [0, 0],
            accounting.ThresholdLoop(accounting.threshold_levels(0.1)),
            lambda level: level,
            threshold_scale=Fraction(20),
            query_scale=Fraction(40),
            variant="iterations",
            below=below,
        )
        longest = max(longest, ran.iterations)
    assert 3 < longest <= accounting.max_iterations(0.1)
