"""Cost of the doubling loop: oracles, the mechanism integrated, and what is no guarantee."""

import json
import pathlib

import numpy as np
import pytest
from scipy import stats

from dpjax.accounting.combine import compose
from dpjax.accounting.mechanisms.doubling import (
    advanced_composition,
    doubling_loop,
    sparse_vector,
)
from dpjax.accounting.mechanisms.elementary import gaussian, pure
from dpjax.accounting.numerics.composition import composition
from dpjax.accounting.provenance import from_provenance

ORACLES = pathlib.Path(__file__).parents[1] / "oracles"


@pytest.mark.parametrize("row", json.loads((ORACLES / "svt_composition.json").read_text()))
def test_composition_oracle(row):
    epsilon, count, delta = row["eps0"], row["T"], row["delta"]
    guarantee = doubling_loop(epsilon_per_iteration=epsilon, iterations=count)
    assert guarantee.epsilon(delta) == pytest.approx(row["optimal_KOV"], abs=1e-6)
    assert guarantee.epsilon(delta) == pytest.approx(row["dpa_pld"], abs=1e-6)
    assert guarantee.epsilon(delta, method="rdp") == pytest.approx(row["rdp_rr"], abs=1e-5)
    assert epsilon * count == pytest.approx(row["basic"], abs=1e-6)
    assert advanced_composition(epsilon, count, delta) == pytest.approx(
        row["advanced_DRV10"], abs=1e-6
    )
    assert guarantee.epsilon(0) == pytest.approx(count * epsilon)
    assert guarantee.epsilon(delta) <= min(row["basic"], row["advanced_DRV10"])


def test_caps_and_variants():
    full = doubling_loop(0.1, granularity=0.01)
    assert full.epsilon(1e-5) == doubling_loop(0.1, 199).epsilon(1e-5)
    assert full.epsilon(1e-5) == pytest.approx(6.480, abs=1e-3)
    segments = doubling_loop(0.1, granularity=0.01, variant="segments")
    assert segments.epsilon(1e-5) == pytest.approx(4.307, abs=1e-3)
    ten = doubling_loop(0.1, granularity=0.01, variant="segments", hits=10)
    assert ten.epsilon(1e-5) == pytest.approx(0.994, abs=1e-3)
    assert doubling_loop(0.1, 20, granularity=0.01).epsilon(0) == pytest.approx(2.0)
    assert doubling_loop(0.1, 500, granularity=0.01).epsilon(0) == pytest.approx(19.9)


def test_matches_composition_of_pure_mechanisms():
    one_by_one = compose(*[pure(0.3)] * 6)
    assert doubling_loop(0.3, 6).epsilon(1e-6) == pytest.approx(one_by_one.epsilon(1e-6), abs=1e-9)
    assert doubling_loop(0.3, 1).delta(0.2) == pytest.approx(pure(0.3).delta(0.2), rel=1e-12)


def test_composes_with_other_guarantees_and_rebuilds():
    for guarantee in (
        doubling_loop(0.1, 20, relation="replace-one"),
        doubling_loop(0.1, granularity=0.1, variant="segments"),
        sparse_vector(noise=0.1, bound=5),
        sparse_vector(noise=1, bound=np.int64(3), allocation="optimal"),
    ):
        tree = json.loads(json.dumps(guarantee.provenance))
        rebuilt = from_provenance(tree)
        assert rebuilt.epsilon(1e-5) == guarantee.epsilon(1e-5)
        assert rebuilt.relation == guarantee.relation
        both = compose(guarantee, guarantee)
        assert both.epsilon(1e-5) <= 2 * guarantee.epsilon(0) + 1e-12


def _segment_probabilities(utilities, thresholds, query_scale, threshold_scale):
    """P[first hit at (query, candidate)] of AboveThreshold, and of no hit, by quadrature in rho.

    utilities (candidates,), thresholds (queries,), one threshold noise for all of them.
    """
    rho = np.linspace(-60, 60, 24_001) * threshold_scale
    weight = stats.laplace.pdf(rho, scale=threshold_scale) * (rho[1] - rho[0])
    outcomes = []
    alive = np.ones_like(rho)
    for threshold in thresholds:
        below = stats.laplace.cdf(threshold + rho[None, :] - utilities[:, None], scale=query_scale)
        for candidate in range(len(utilities)):
            outcomes.append(np.sum(weight * alive * (1 - below[candidate])))
            alive = alive * below[candidate]
    return np.array(outcomes), np.sum(weight * alive)


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_one_iteration_is_epsilon_private_and_a_miss_costs_half(epsilon):
    generator = np.random.default_rng(5)
    sensitivity = 0.1
    scales = (4 * sensitivity / epsilon, 2 * sensitivity / epsilon)
    worst_hit, worst_miss = 0.0, 0.0
    for trial in range(12):
        utilities = generator.uniform(0, 1, 4)
        signs = np.where(np.arange(4) < 3, 1.0, -1.0) if trial == 0 else generator.uniform(-1, 1, 4)
        neighbour = utilities + sensitivity * signs
        thresholds = generator.uniform(0, 1, 3)
        ours = _segment_probabilities(utilities, thresholds, *scales)
        theirs = _segment_probabilities(neighbour, thresholds, *scales)
        worst_hit = max(worst_hit, np.max(np.abs(np.log(ours[0] / theirs[0]))))
        worst_miss = max(worst_miss, abs(np.log(ours[1] / theirs[1])))
    # The segment variant's two claims: epsilon for a hit, half for a run of misses.
    assert worst_hit <= epsilon * (1 + 1e-6)
    assert worst_miss <= epsilon / 2 * (1 + 1e-6)
    assert worst_hit > 0.2 * epsilon  # the test can see losses of this size


def test_paper_stopping_rule_is_no_guarantee():
    """Ding & Wu charge the iterations that happened; an adversary who stops at a bad moment wins.

    Composition of 0.01-DP randomised responses, stopped when the realised loss exceeds advanced
    composition evaluated at that very moment with delta 0.05: it happens with probability 0.097.
    The capped guarantee is not violated.
    """
    epsilon, delta, longest = 0.01, 0.05, 2000
    high = 1 / (1 + np.exp(-epsilon))
    law, exceeded = np.array([1.0]), 0.0
    for count in range(1, longest + 1):
        law = np.convolve(law, [1 - high, high])
        loss = epsilon * (2 * np.arange(count + 1) - count)
        claimed = min(advanced_composition(epsilon, count, delta), count * epsilon)
        outside = loss > claimed * (1 + 1e-12)
        exceeded += law[outside].sum()
        law[outside] = 0.0
    assert exceeded > 1.9 * delta
    assert doubling_loop(epsilon, longest).delta(
        doubling_loop(epsilon, longest).epsilon(delta)
    ) <= delta * (1 + 1e-9)


def test_advanced_composition_is_worse_than_basic_for_few_iterations():
    assert advanced_composition(0.1, 7, 1e-5) > 7 * 0.1
    assert advanced_composition(0.1, 199, 1e-5) < 199 * 0.1


def test_dpareto_sparse_vector_oracle():
    for row in json.loads((ORACLES / "dpareto_svt.json").read_text()):
        ours = sparse_vector(noise=row["b"], bound=row["C"])
        assert ours.epsilon(0) == pytest.approx(row["P0"], rel=1e-9)
        best = sparse_vector(noise=row["b"], bound=row["C"], allocation="optimal")
        assert best.epsilon(0) == pytest.approx(row["min_eps_same_b"], rel=1e-9)
    assert sparse_vector(noise=0.1, bound=5).epsilon(0) == pytest.approx(177.9602, abs=1e-4)


def test_very_many_iterations_are_composed_in_stages():
    """1e8 of them took a minute and 9 GB; the binomial law itself up to 131,072."""
    binomial = doubling_loop(0.01, 120_000)
    staged = composition([(pure(0.01).pair, 120_000)])
    for delta in (1e-3, 1e-9):
        assert staged.epsilon(delta) == pytest.approx(binomial.pair.epsilon(delta), rel=1e-9)
    many = doubling_loop(1e-4, 10**8)
    # Losses of +-1e-4, 1e8 of them: a Gaussian of noise multiplier 1.
    limit = gaussian(1.0).epsilon(1e-5)
    assert limit * (1 - 1e-4) <= many.epsilon(1e-5) <= limit * (1 + 2e-3)
    assert many.pair.size < 1_000_000
