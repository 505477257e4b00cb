"""The published profile bound: its numbers, limits, and that the envelope is below."""

import math

import numpy as np
import pytest
from hypothesis import given, settings

from dpjax import accounting
from experiments.figures.papernot_steinke.profile_bound import (
    log_ratio,
    profile_bound,
    smallest_log_ratio,
)
from tests.accounting.selection.test_selection_soundness import (
    GRID,
    guarantee_of,
    pair_of,
    pairs,
    worst_divergence,
)

COVERED = [
    accounting.TruncatedNegativeBinomial(-0.5, 6.0),
    accounting.Logarithmic(4.0),
    accounting.Geometric(3.0),
    accounting.Geometric(40.0),
    accounting.TruncatedNegativeBinomial(2.5, 7.0),
    accounting.Poisson(0.5),
    accounting.Poisson(6.0),
]


@pytest.fixture(scope="module")
def mnist_run():
    """Papernot & Steinke's MNIST run."""
    return accounting.dp_sgd(256 / 60000, 1.1, 14062)


@pytest.mark.parametrize(
    "law,expected",
    [
        (accounting.TruncatedNegativeBinomial(-0.5, 10.0), 3.523),
        (accounting.Logarithmic(10.0), 3.891),
        (accounting.Geometric(10.0), 4.403),
        (accounting.Logarithmic(100.0), 4.729),
        (accounting.Geometric(100.0), 5.785),
    ],
    ids=repr,
)
def test_numbers_derived_independently(mnist_run, law, expected):
    """Those on a grid of losses that makes one run 0.4% dearer."""
    found = profile_bound(mnist_run.pair, law).epsilon(1e-5)
    assert expected - 0.025 < found <= expected
    assert accounting.best_of(mnist_run, law, method="envelope").epsilon(1e-5) < found


def test_poisson_is_best_at_e1_of_0(mnist_run):
    """5.085 at the independent derivation's first e1, 0.02: the profile never falls as fast."""
    law = accounting.Poisson(10.0)
    found = profile_bound(mnist_run.pair, law).epsilon(1e-5)
    ratio = 10.0 * mnist_run.delta(0.0)
    assert smallest_log_ratio(mnist_run.pair, law) == pytest.approx(ratio, rel=1e-9)
    assert found == pytest.approx(ratio + mnist_run.epsilon(1e-6), rel=1e-4)
    assert found == pytest.approx(4.942, abs=2e-3)
    at_two_hundredths = 10.0 * (math.expm1(0.02) + mnist_run.delta(0.02)) + mnist_run.epsilon(1e-6)
    assert at_two_hundredths == pytest.approx(5.085, abs=0.025)
    assert accounting.best_of(mnist_run, law, method="envelope").epsilon(1e-5) < found


@pytest.mark.parametrize("law", COVERED, ids=repr)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(pair=pairs())
def test_never_below_the_exact_divergence_nor_the_envelope(law, pair):
    p, q = pair
    base = guarantee_of(p, q)
    found = profile_bound(pair_of(p, q), law)
    assert np.all(found.delta(GRID) >= worst_divergence(law, p, q, GRID) * (1 - 1e-9) - 1e-12)
    envelope = accounting.best_of(base, law, method="envelope")
    for delta in (0.3, 0.03, 1e-3, 1e-6):
        # The envelope's numerics add a thousandth or so of epsilon.
        assert envelope.epsilon(delta) <= 1.01 * found.epsilon(delta) + 2e-3, delta


@pytest.mark.parametrize("law", COVERED, ids=repr)
def test_any_e1_bounds_the_ratio_of_slopes(law):
    y = np.linspace(0.0, 1.0, 4001)
    for epsilon, delta in [(0.0, 0.0), (0.0, 0.3), (0.4, 0.05), (2.0, 1e-4), (0.1, 1.0)]:
        reached = np.minimum(math.exp(epsilon) * y + delta, 1.0)
        ratio = np.max(np.log(law.derivative(y)) - np.log(law.derivative(reached)))
        (bound,) = log_ratio(law, np.array([epsilon]), np.array([delta]))
        assert bound >= ratio - 1e-12


def test_limits():
    base = accounting.gaussian(5.0)
    for almost_one in (accounting.Geometric(1.0 + 1e-9), accounting.Logarithmic(1.0 + 1e-9)):
        found = profile_bound(base.pair, almost_one).epsilon(1e-6)
        assert found == pytest.approx(base.epsilon(1e-6), rel=1e-3)
    found = [
        profile_bound(base.pair, accounting.Geometric(mean)).epsilon(1e-6)
        for mean in (1.0, 2.0, 10.0, 100.0)
    ]
    assert np.all(np.diff(found) > 0.0)
    # A base that reveals nothing, and one that reveals all.
    nothing = profile_bound(accounting.pure(0.0).pair, accounting.Poisson(5.0))
    assert nothing.delta(1e-3) <= 1e-9
    revealed = accounting.dp_sgd(1.0, 50.0, 1, failure_probability=0.3)
    geometric = profile_bound(revealed.pair, accounting.Geometric(5.0))
    assert geometric.delta(3.0) == 1.0


def test_a_pure_base_costs_corollary_3():
    for shape in (-0.5, 0.0, 1.0, 3.0):
        law = accounting.TruncatedNegativeBinomial(shape, 8.0)
        found = profile_bound(accounting.pure(0.1).pair, law)
        assert found.epsilon(1e-12) == pytest.approx((2.0 + shape) * 0.1, rel=1e-2)


@pytest.mark.parametrize(
    "law",
    [
        accounting.Fixed(3),
        accounting.Binomial(8, 0.4),
        accounting.AtMost(accounting.Geometric(5.0), 6),
        accounting.Tabulated([1, 4], [0.5, 0.5]),
    ],
    ids=repr,
)
def test_laws_without_a_closed_form_are_refused(law):
    with pytest.raises(ValueError, match="no published profile bound covers"):
        profile_bound(accounting.gaussian(2.0).pair, law)
