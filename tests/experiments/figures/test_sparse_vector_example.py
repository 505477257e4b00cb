"""The sparse vector example: the mechanism query by query, exact means, the published front."""

import json
import pathlib

import numpy as np
import pytest

from dpjax.pareto import fronts
from experiments.figures.dpareto import sparse_vector_example
from experiments.figures.dpareto.sparse_vector_example import SparseVectorExample

EXAMPLE = SparseVectorExample()
ORACLES = pathlib.Path(__file__).parents[2] / "accounting" / "oracles"


def query_by_query(noise, bound, repetitions, source, queries=100, ones=10):
    """F1 scores of the mechanism as it is stated: one query after the other, until C passed."""
    of_threshold = noise / (1 + (2 * bound) ** (1 / 3))
    scores = []
    for _ in range(repetitions):
        truth = source.permutation(np.repeat([1.0, 0.0], [ones, queries - ones]))
        threshold = 0.5 + source.laplace(scale=of_threshold)
        answers = np.zeros(queries)
        for place, value in enumerate(truth):
            if value + source.laplace(scale=noise - of_threshold) >= threshold:
                answers[place] = 1.0
                if answers.sum() == bound:
                    break
        hits = truth @ answers
        if hits == 0:
            scores.append(0.0)
            continue
        precision, recall = hits / answers.sum(), hits / ones
        scores.append(2 * precision * recall / (precision + recall))
    return np.array(scores)


@pytest.fixture(scope="module")
def front_grid():
    """Grid, its points by exact means, and by four simulations of 1000 repetitions each."""
    settings = sparse_vector_example.grid(101)
    epsilons = EXAMPLE.epsilons(settings)
    exact = EXAMPLE.expected_utilities(settings)
    simulated = [
        EXAMPLE.utilities(settings, 1000, source=np.random.default_rng(seed)).mean(axis=1)
        for seed in range(4)
    ]
    return epsilons, exact, simulated


@pytest.mark.parametrize("noise,bound", [(0.1, 5), (0.4, 10), (2.0, 1), (3.0, 20), (50.0, 30)])
def test_simulation_has_the_law_of_the_mechanism(noise, bound):
    direct = query_by_query(noise, bound, 2000, np.random.default_rng(1))
    settings = {"noise": [noise], "bound": [bound]}
    fast = EXAMPLE.utilities(settings, 40_000, source=np.random.default_rng(2))[0]
    exact = EXAMPLE.expected_utilities(settings)[0]
    error = np.hypot(direct.std() / len(direct) ** 0.5, 1e-9)
    assert direct.mean() == pytest.approx(exact, abs=5 * error)  # 6e-7 to fail, five times
    assert fast.mean() == pytest.approx(exact, abs=5 * fast.std() / len(fast) ** 0.5 + 1e-9)
    assert fast.std() == pytest.approx(direct.std(), rel=0.15, abs=1e-3)
    # Kolmogorov's distance of the two laws; 2.2 sqrt(1/n + 1/m) is exceeded once in 10,000.
    direct, fast = np.round(direct, 9), np.round(fast, 9)
    values = np.unique(np.concatenate([direct, fast]))
    of_direct = np.searchsorted(np.sort(direct), values, side="right") / len(direct)
    of_fast = np.searchsorted(np.sort(fast), values, side="right") / len(fast)
    assert np.abs(of_direct - of_fast).max() < 2.2 * (1 / len(direct) + 1 / len(fast)) ** 0.5


def test_another_split_of_the_noise_is_told_apart():
    """With the scales of threshold and query exchanged the mean is another."""
    noise, bound = 0.6, 5
    exact = EXAMPLE.expected_utilities({"noise": [noise], "bound": [bound]})[0]
    source = np.random.default_rng(3)
    of_query = noise / (1 + (2 * bound) ** (1 / 3))
    scores = []
    for _ in range(4000):
        truth = source.permutation(np.repeat([1.0, 0.0], [10, 90]))
        threshold = 0.5 + source.laplace(scale=noise - of_query)
        passed = truth + source.laplace(scale=of_query, size=100) >= threshold
        passed &= np.cumsum(passed) <= bound
        scores.append(2 * (truth @ passed) / (passed.sum() + 10))
    assert abs(np.mean(scores) - exact) > 10 * np.std(scores) / len(scores) ** 0.5


def test_without_noise_the_first_ones_are_found():
    bounds = np.arange(1, 31)
    settings = {"noise": np.full(30, 1e-3), "bound": bounds}
    expected = 2 * np.minimum(bounds, 10) / (np.minimum(bounds, 10) + 10)
    assert EXAMPLE.expected_utilities(settings) == pytest.approx(expected, abs=1e-12)
    runs = EXAMPLE.utilities(settings, 7, source=np.random.default_rng(0))
    assert runs == pytest.approx(np.repeat(expected[:, None], 7, axis=1))


def test_pure_noise_finds_ones_at_their_rate():
    """Noise of 1e6 and C = 1: the one answer is right one time in ten; there may be none."""
    exact = EXAMPLE.expected_utilities({"noise": [1e6], "bound": [1]})[0]
    # In units of a query's noise the threshold is Laplace of scale 1 / 2^(1/3); values are nothing.
    threshold = np.random.default_rng(4).laplace(scale=2 ** (-1 / 3), size=1_000_000)
    tail = 0.5 * np.exp(-np.abs(threshold))
    none_passes = np.mean(np.where(threshold > 0, 1 - tail, tail) ** 100)
    assert exact == pytest.approx(0.1 * 2 / (1 + 10) * (1 - none_passes), rel=1e-3)


def test_mean_is_exact_to_rounding():
    settings = sparse_vector_example.grid(5)
    coarse = EXAMPLE.expected_utilities(settings)
    assert EXAMPLE.expected_utilities(settings, nodes=120) == pytest.approx(coarse, abs=1e-9)


def test_epsilons_are_the_authors():
    for row in json.loads((ORACLES / "dpareto_svt.json").read_text()):
        epsilon = EXAMPLE.epsilons({"noise": [row["b"]], "bound": [row["C"]]})
        assert epsilon == pytest.approx(row["P0"], rel=1e-9)
    assert EXAMPLE.epsilons({"noise": [0.1], "bound": [5]}) == pytest.approx(177.9602, abs=1e-4)


def test_the_grid_front_has_the_published_hypervolumes(front_grid):
    """1000 repetitions: 1.566 at (10, 1), 39.24 at (100, 1), within 1% (mean of 4 seeds)."""
    epsilons, _, simulated = front_grid
    for anti_ideal, published in (((10, 1), 1.566), ((100, 1), 39.24)):
        found = [
            fronts.hypervolume(np.stack([epsilons, 1 - utility], axis=1), anti_ideal)
            for utility in simulated
        ]
        assert np.mean(found) == pytest.approx(published, rel=0.01)
    best = [
        np.mean([(1 - utility)[epsilons <= limit].min() for utility in simulated])
        for limit in (10, 100, 500)
    ]
    assert best == pytest.approx([0.83, 0.36, 0.0], abs=0.015)


def test_the_winners_curse_is_what_separates_them_from_the_truth(front_grid):
    """The exact front is smaller: a front of noisy means picks the lucky ones."""
    epsilons, exact, simulated = front_grid
    truth = fronts.hypervolume(np.stack([epsilons, 1 - exact], axis=1), (10, 1))
    assert truth == pytest.approx(1.5375, abs=5e-4)
    for utility in simulated:
        points = np.stack([epsilons, 1 - utility], axis=1)
        assert fronts.hypervolume(points, (10, 1)) > truth
        # The same settings, taken for what they are worth, make no more than the truth.
        chosen = fronts.non_dominated(points)
        again = np.stack([epsilons, 1 - exact], axis=1)[chosen]
        assert fronts.hypervolume(again, (10, 1)) <= truth
    # Four simulations of 1000 at 3030 settings: none is off by 6 standard errors of at most 0.5.
    assert np.mean(simulated, axis=0) == pytest.approx(exact, abs=6 * 0.5 / 4000**0.5)


def test_the_oracle_of_a_search_is_a_function_of_settings_and_seeds():
    oracle = EXAMPLE.utility_oracle(20)
    settings = {"noise": np.array([0.5, 2.0, 0.5]), "bound": np.array([5.0, 9.0, 5.0])}
    first = oracle(settings, np.array([3, 4, 5]))
    assert first.shape == (3, 20)
    # A point depends on its own seed and on no other point; another seed gives another sample.
    last = {name: values[2:] for name, values in settings.items()}
    assert np.array_equal(oracle(last, np.array([5])), first[2:])
    assert not np.array_equal(first[0], first[2])
    inside = sparse_vector_example.DOMAIN.from_unit(np.array([[0.0, 0.0], [1.0, 1.0]]))
    assert inside["bound"].tolist() == [1, 30] and inside["noise"] == pytest.approx([0.01, 100])


@pytest.mark.parametrize(
    "settings,match",
    [
        ({"noise": [1.0]}, "lack 'bound'"),
        ({"noise": [1.0, 2.0], "bound": [1]}, "one length"),
        ({"noise": [0.0], "bound": [1]}, "positive"),
        ({"noise": [1.0], "bound": [2.5]}, "whole number"),
        ({"noise": [1.0], "bound": [0]}, "whole number"),
        ({"noise": [np.nan], "bound": [1]}, "positive"),
    ],
)
def test_bad_settings_are_refused(settings, match):
    for ask in (
        EXAMPLE.epsilons,
        EXAMPLE.expected_utilities,
        lambda given: EXAMPLE.utilities(given, 2, source=np.random.default_rng(0)),
    ):
        with pytest.raises(ValueError, match=match):
            ask(settings)


def test_bad_examples_are_refused():
    with pytest.raises(ValueError, match="ones 0"):
        SparseVectorExample(ones=0)
    with pytest.raises(ValueError, match="repetitions 0"):
        EXAMPLE.utilities({"noise": [1.0], "bound": [1]}, 0, source=np.random.default_rng(0))
