"""The doubling loop alone: thresholds, caps, segments, a default, events."""

import json

import numpy as np
import pytest

from dpjax import accounting
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.tuning.tuners.doubling import DEFAULT_CANDIDATE, DoublingChoice
from dpjax.tuning.tuners.partitions import AveragedUtility

UTILITY = AveragedUtility(partitions=1000, validation_size=200)


def _selector(epsilon=0.1, **change):
    parameters = dict(
        granularity=0.01,
        lower_bound=0.0,
        variant="iterations",
        iterations=None,
        hits=None,
    )
    return DoublingChoice(epsilon, **(parameters | change))


def _select(selector, utilities, utility=UTILITY, stream=0):
    scores = [round(value * utility.units) for value in utilities]
    below = HostRandomness(seed=7).uniform_integers(stream)
    return selector.select(scores, utility, below)


@pytest.mark.parametrize(
    ("selector", "charged", "epsilon"),
    [
        # Optimal composition at epsilon_0 = .1 and delta 1e-5.
        (_selector(), 199, 6.480),
        (_selector(iterations=20), 20, 1.598),
        (_selector(variant="segments"), 100, 4.307),
        (_selector(variant="segments", hits=10), 10, 0.994),
        (_selector(lower_bound=0.5), 99, None),
        (_selector(iterations=1000), 199, 6.480),
    ],
)
def test_what_is_charged_is_the_cap_and_never_what_happened(selector, charged, epsilon):
    assert selector.cap == charged
    guarantee = selector.guarantee("add_or_remove_one")
    if epsilon is not None:
        assert guarantee.epsilon(1e-5) == pytest.approx(epsilon, abs=6e-4)
    described = selector.describe(UTILITY, 1e-5)
    paper = accounting.advanced_composition(0.1, charged, 1e-5)
    assert described["not_claimed"]["epsilon"] == paper > guarantee.epsilon(1e-5)
    assert described["charged"] == {selector.variant: charged}
    _, events = _select(selector, np.linspace(0, 0.99, 20))
    assert events["iterations"] <= (199 if selector.variant == "segments" else charged)
    if selector.hits:
        assert events["hits"] <= selector.hits


def test_many_partitions_find_good_candidates_and_few_do_not():
    """k = 1000 selects a mean true utility of .959 of .990, k = 10 .525: nothing but noise."""
    generator = np.random.default_rng(0)
    means = {}
    for partitions in (10, 1000):
        utility = AveragedUtility(partitions, 1000, validation_is_public=True)
        chosen = []
        for run in range(60):
            utilities = generator.uniform(size=100)
            winner, _ = _select(_selector(), utilities, utility, stream=run)
            chosen.append(utilities[winner])
        means[partitions] = np.mean(chosen)
    # Standard errors: .04 and below .005.
    assert 0.36 < means[10] < 0.69
    assert 0.93 < means[1000] < 0.985


def test_no_hit_at_all_trains_the_default_whatever_the_data():
    # Everything far below the lower bound, and little noise.
    winner, events = _select(_selector(5.0, lower_bound=0.9), [0.1, 0.3, 0.2])
    assert winner == DEFAULT_CANDIDATE == 0
    assert events["no_hit_so_the_default_candidate"] and events["hits"] == 0


def test_the_curator_sees_every_threshold_and_answer():
    _, events = _select(_selector(), [0.5, 0.9])
    json.dumps(events)
    assert len(events["thresholds"]) == len(events["answers"]) == events["iterations"]
