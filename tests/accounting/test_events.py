"""Events of dp_accounting become the guarantees they mean."""

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
