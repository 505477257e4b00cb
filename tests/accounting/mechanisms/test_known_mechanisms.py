"""One (epsilon, delta), against closed forms; and what an older version priced."""

import math

import numpy as np
import pytest

from dpjax import accounting
from dpjax.accounting import provenance

EPSILONS = np.linspace(0.0, 3.0, 61)


def _divergence(p, q, epsilon):
    return float(np.maximum(np.asarray(p) - math.exp(epsilon) * np.asarray(q), 0.0).sum())


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-3), (0.2, 0.1), (0.0, 1e-2)])
def test_the_profile_of_one_epsilon_and_delta(epsilon, delta):
    guarantee = accounting.approximate(epsilon, delta)
    high = math.exp(epsilon) / (1 + math.exp(epsilon))
    p = (1 - delta) * np.array([high, 1 - high])
    for wanted in EPSILONS:
        exact = delta + _divergence(p, p[::-1], wanted)
        assert guarantee.delta(wanted) == pytest.approx(exact, rel=1e-12)
    assert guarantee.epsilon(delta * (1 + 1e-9)) <= epsilon + 1e-12
    assert guarantee.epsilon(delta * 0.999) == math.inf


def test_its_composition_is_that_of_kairouz_oh_and_viswanath():
    """Theorem 3.3 of their paper (2015): delta of k times (epsilon, delta) at (k - 2 i) epsilon."""
    epsilon, delta, times = 0.4, 1e-4, 5
    composed = accounting.repeat(accounting.approximate(epsilon, delta), times)
    for i in range(times // 2 + 1):
        inner = (
            sum(
                math.comb(times, j)
                * (math.exp((times - j) * epsilon) - math.exp((times - 2 * i + j) * epsilon))
                for j in range(i)
            )
            / (1 + math.exp(epsilon)) ** times
        )
        exact = 1 - (1 - delta) ** times * (1 - inner)
        assert composed.delta((times - 2 * i) * epsilon) == pytest.approx(exact, rel=1e-9)


def test_what_may_be_revealed_is_revealed_by_some_run_of_a_selection():
    delta, law = 1e-6, accounting.Geometric(10.0)
    best = accounting.best_of(accounting.approximate(1.0, delta), law)
    # A mechanism that reveals with a score above all others: by any of K runs.
    pmf = np.exp(law.log_pmf(np.arange(0, 400)))
    revealed = 1 - float(np.sum(pmf * (1 - delta) ** np.arange(0, 400)))
    assert best.epsilon(0.99 * revealed) == math.inf
    assert math.isfinite(best.epsilon(3 * revealed))


@pytest.mark.parametrize("name", provenance.REMOVED)
def test_what_an_older_version_priced_is_refused_wherever_it_stands_in_a_tree(name):
    assert name not in provenance.registered() and not hasattr(accounting, name)
    tree = accounting.repeat(accounting.pure(0.1), 3).provenance
    tree["parts"] = [{"mechanism": name, "parameters": {}, "parts": []}]
    with pytest.raises(ValueError, match=f"{name!r} was last priced by version 0.2.0"):
        accounting.from_provenance(tree)
