"""Events of dp_accounting become the guarantees they mean."""

import math

import attr
import numpy as np
import pytest
from dp_accounting import dp_event as dp_events
from dp_accounting import pld as pld_accounting

from dpjax import accounting

GAUSSIAN = dp_events.GaussianDpEvent(1.5)
from_event = accounting.Guarantee.from_dp_event


@pytest.mark.parametrize(
    "event,expected",
    [
        (GAUSSIAN, accounting.gaussian(1.5)),
        (dp_events.SelfComposedDpEvent(GAUSSIAN, 3), accounting.gaussian(1.5, steps=3)),
        (dp_events.ZCDpEvent(0.2), accounting.zcdp(0.2)),
        (dp_events.PoissonSampledDpEvent(0.1, GAUSSIAN), accounting.dp_sgd(0.1, 1.5, 1)),
        (
            dp_events.SelfComposedDpEvent(dp_events.PoissonSampledDpEvent(0.1, GAUSSIAN), 50),
            accounting.dp_sgd(0.1, 1.5, 50),
        ),
        (
            dp_events.PoissonSampledDpEvent(0.1, dp_events.SelfComposedDpEvent(GAUSSIAN, 4)),
            accounting.dp_sgd(0.1, 0.75, 1),
        ),
        (
            dp_events.PoissonSampledDpEvent(
                0.1, dp_events.ComposedDpEvent([dp_events.GaussianDpEvent(3.0)] * 4)
            ),
            accounting.dp_sgd(0.1, 1.5, 1),
        ),
        (
            dp_events.ComposedDpEvent([GAUSSIAN, dp_events.ZCDpEvent(0.1)]),
            accounting.compose(accounting.gaussian(1.5), accounting.zcdp(0.1)),
        ),
        (
            dp_events.RepeatAndSelectDpEvent(GAUSSIAN, 5.0, 0.0),
            accounting.best_of(accounting.gaussian(1.5), accounting.Logarithmic(5.0)),
        ),
        (
            dp_events.RepeatAndSelectDpEvent(GAUSSIAN, 5.0, float("inf")),
            accounting.best_of(accounting.gaussian(1.5), accounting.Poisson(5.0)),
        ),
    ],
)
def test_translation(event, expected):
    assert from_event(event).epsilon(1e-6) == pytest.approx(expected.epsilon(1e-6), abs=1e-4)


def test_nothing_costs_nothing():
    assert from_event(dp_events.NoOpDpEvent()).epsilon(0) == 0.0
    assert from_event(dp_events.ComposedDpEvent([])).epsilon(0) == 0.0


def test_lots_without_replacement():
    """dp_accounting's noise multiplier is noise / C, ours noise / (2C)."""
    event = dp_events.SampledWithoutReplacementDpEvent(1000, 100, dp_events.GaussianDpEvent(4.0))
    ours = from_event(dp_events.SelfComposedDpEvent(event, 50), "replace_one")
    expected = accounting.dp_sgd_fixed_lots(1000, 100, 2.0, 50)
    assert ours.epsilon(1e-5) == expected.epsilon(1e-5)
    with pytest.raises(ValueError, match="relation='replace_one'"):
        from_event(event)


@pytest.mark.parametrize(
    "event,relation",
    [
        (dp_events.LaplaceDpEvent(2.0), "add_or_remove_one"),
        (dp_events.DiscreteLaplaceDpEvent(0.5, 1), "add_or_remove_one"),
        (dp_events.MixtureOfGaussiansDpEvent(100.0, [0.0, 1.0], [0.5, 0.5]), "add_or_remove_one"),
        (dp_events.RandomizedResponseDpEvent(0.5, 4), "replace_one"),
        (dp_events.PoissonSampledDpEvent(0.1, GAUSSIAN), "replace_one"),
        (dp_events.PoissonSampledDpEvent(0.1, dp_events.LaplaceDpEvent(2.0)), "add_or_remove_one"),
        (dp_events.TruncatedSubsampledGaussianDpEvent(20, 0.1, 8, 10.0), "add_or_remove_one"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_single_mechanisms_are_dp_accountings(event, relation):
    from dpjax.accounting.interop import _RELATIONS

    ours = from_event(event, relation)
    accountant = pld_accounting.PLDAccountant(_RELATIONS[relation])
    accountant.compose(event)
    for delta in (1e-3, 1e-6):
        assert ours.epsilon(delta) <= accountant.get_epsilon(delta) + 1e-9
        assert ours.pair.epsilon(delta) == pytest.approx(accountant.get_epsilon(delta), abs=1e-6)
    rebuilt = accounting.from_provenance(ours.provenance)
    assert rebuilt.epsilon(1e-6) == ours.epsilon(1e-6)
    assert ours.relation == relation


def test_replace_one_halves_the_multiplier():
    ours = from_event(dp_events.GaussianDpEvent(3.0), "replace-one")
    expected = accounting.gaussian(1.5, relation="replace_one")
    assert ours.epsilon(1e-6) == expected.epsilon(1e-6)
    assert ours.relation == "replace_one"


NEGATIVE_BINOMIALS = {
    "logarithmic": (1, 1000, 0),
    "geometric": (1, 1000, 1),
    "negative binomial 0.5": (1, 1000, 0.5),
    "negative binomial 2": (1, 100, 2),
    "negative binomial 5": (1, 1000, 5),
}
"""dp_accounting's `test_repeat_select_pure_negative_binomial`: epsilon, mean and shape."""


@pytest.mark.parametrize("name", NEGATIVE_BINOMIALS)
def test_a_selection_of_laplace_runs_is_pure(name):
    """Corollary 3 of Papernot & Steinke; ours may be less, and is no more."""
    epsilon, mean, shape = NEGATIVE_BINOMIALS[name]
    run = dp_events.LaplaceDpEvent(1 / epsilon)
    ours = from_event(dp_events.RepeatAndSelectDpEvent(run, mean, shape))
    assert epsilon <= ours.epsilon(0.0) <= epsilon * (2 + shape) * (1 + 1e-9)
    assert ours.epsilon(1e-10) <= epsilon * (2 + shape) * (1 + 1e-9)


PURE = [
    (dp_events.LaplaceDpEvent(2.0), "add_or_remove_one", 0.5),
    (dp_events.DiscreteLaplaceDpEvent(0.25, 3), "add_or_remove_one", 0.75),
    (dp_events.RandomizedResponseDpEvent(0.5, 4), "replace_one", math.log(0.625 / 0.125)),
    (
        dp_events.PoissonSampledDpEvent(0.1, dp_events.LaplaceDpEvent(2.0)),
        "add_or_remove_one",
        math.log(1 + 0.1 * (math.exp(0.5) - 1)),
    ),
    (dp_events.SelfComposedDpEvent(dp_events.LaplaceDpEvent(1.0), 7), "add_or_remove_one", 7.0),
]


@pytest.mark.parametrize(("event", "relation", "expected"), PURE)
def test_a_pure_mechanism_keeps_its_epsilon(event, relation, expected):
    ours = from_event(event, relation)
    assert ours.epsilon(0.0) == pytest.approx(expected, rel=1e-12)
    # Its loss distribution does not say otherwise: no attack sees more.
    assert ours.pair.delta(np.array([expected + 2e-4]))[0] <= 1e-9
    assert ours.pair.delta(np.array([0.9 * expected]))[0] > 0
    assert accounting.from_provenance(ours.provenance).epsilon(0.0) == ours.epsilon(0.0)


def _newer(name, **fields):
    """An event of a version of dp_accounting that is not installed."""
    kind = attr.make_class(name, list(fields), bases=(dp_events.DpEvent,), frozen=True)
    return kind(**fields)


NEWER = [
    (_newer("EpsilonDeltaDpEvent", epsilon=1.0, delta=1e-6), accounting.approximate(1.0, 1e-6)),
    (_newer("EpsilonDeltaDpEvent", epsilon=1.0, delta=0.0), accounting.pure(1.0)),
    (
        _newer("ExponentialMechanismDpEvent", epsilon=0.5),
        accounting.exponential_mechanism(0.5),
    ),
    (_newer("PermuteAndFlipDpEvent", epsilon=0.5), accounting.pure(0.5)),
    (
        _newer("DiscreteGaussianDpEvent", sigma=3.0, sensitivity=1.0, dimension=1),
        accounting.discrete_gaussian(3.0, 1),
    ),
]


@pytest.mark.parametrize(("event", "ours"), NEWER, ids=lambda one: type(one).__name__)
def test_events_of_newer_versions_are_read_where_there_is_a_mechanism(event, ours):
    assert from_event(event).provenance == ours.provenance
    composed = dp_events.ComposedDpEvent([event, GAUSSIAN])
    assert from_event(composed).epsilon(1e-5) >= ours.epsilon(1e-5)


def test_a_discrete_gaussian_of_several_coordinates_is_refused():
    event = _newer("DiscreteGaussianDpEvent", sigma=3.0, sensitivity=1.0, dimension=None)
    with pytest.raises(ValueError, match="one coordinate: pass dimension=1"):
        from_event(event)
