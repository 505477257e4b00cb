"""Selections as dp_accounting's events, and their accountant's interface over our prices."""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import dp_event as dp_events
from dp_accounting import privacy_accountant_test
from dp_accounting.pld import privacy_loss_distribution
from scipy import stats

from dpjax import accounting
from dpjax.bridges.dp_accounting import RepeatAndSelectEvent, SelectionAccountant

DELTA = 1e-5
ADD, REPLACE, SPECIAL = dp_accounting.NeighboringRelation
GAUSSIAN = dp_events.GaussianDpEvent(2.0)
LAW = accounting.Geometric(10)


def _training(noise=1.0, probability=0.01, steps=200):
    step = dp_events.PoissonSampledDpEvent(probability, dp_events.GaussianDpEvent(noise))
    return dp_events.SelfComposedDpEvent(step, steps)


def _epsilon(*events, relation=ADD):
    accountant = SelectionAccountant(relation)
    for event in events:
        accountant.compose(event)
    return accountant.get_epsilon(DELTA)


@pytest.mark.parametrize(
    "law", [LAW, accounting.Fixed(4), accounting.AtMost(accounting.Poisson(8), 20)], ids=repr
)
def test_a_selection_costs_what_best_of_says(law):
    selected = accounting.best_of(accounting.dp_sgd(0.01, 1.0, 200), law)
    assert _epsilon(RepeatAndSelectEvent(_training(), law)) == selected.epsilon(DELTA)
    accountant = SelectionAccountant().compose(RepeatAndSelectEvent(_training(), law))
    assert accountant.get_delta(1.0) == selected.delta(1.0)
    assert accountant.guarantee.provenance == selected.provenance
    assert _epsilon(_training()) < selected.epsilon(DELTA)


def test_their_selection_event_is_priced_too_and_below_their_price():
    theirs = dp_events.RepeatAndSelectDpEvent(_training(), 10.0, 1.0)
    ours = _epsilon(theirs)
    assert ours == _epsilon(RepeatAndSelectEvent(_training(), LAW))
    assert ours < dp_accounting.rdp.RdpAccountant().compose(theirs).get_epsilon(DELTA)
    poisson = dp_events.RepeatAndSelectDpEvent(GAUSSIAN, 10.0, math.inf)
    assert _epsilon(poisson) == _epsilon(RepeatAndSelectEvent(GAUSSIAN, accounting.Poisson(10)))


@pytest.mark.parametrize("law", [LAW, accounting.Fixed(4), accounting.Poisson(6)], ids=repr)
def test_the_price_of_a_selection_is_not_below_what_an_attack_sees(law):
    """Runs release N(0, 2^2) or N(1, 2^2), the largest wins: its tails are known exactly."""
    thresholds = np.linspace(-10, 30, 4001)
    tails = [law.success_probability(stats.norm.sf(thresholds, mean, 2.0)) for mean in (1.0, 0.0)]
    accountant = SelectionAccountant().compose(RepeatAndSelectEvent(GAUSSIAN, law))
    for epsilon in (0.5, 1.5, 2.5):
        seen = np.max(tails[0] - math.exp(epsilon) * tails[1])
        assert 0.0 < seen <= accountant.get_delta(epsilon)
        # An epsilon of one run alone would be refuted.
        assert seen > SelectionAccountant().compose(GAUSSIAN).get_delta(epsilon)


@pytest.mark.parametrize("noise,probability,steps", [(1.0, 0.01, 200), (3.0, 0.2, 50)])
def test_a_plain_training_costs_what_their_accountant_says(noise, probability, steps):
    def bound(pessimistic):
        one = privacy_loss_distribution.from_gaussian_mechanism(
            noise, sampling_prob=probability, pessimistic_estimate=pessimistic
        )
        return one.self_compose(steps).get_epsilon_for_delta(DELTA)

    event = _training(noise, probability, steps)
    theirs = dp_accounting.pld.PLDAccountant().compose(event).get_epsilon(DELTA)
    assert bound(False) - 1e-9 <= _epsilon(event) <= theirs * 1.01
    assert theirs == pytest.approx(bound(True))


def test_a_gaussian_is_not_below_the_exact_one():
    exact = dp_accounting.get_epsilon_gaussian(2.0, DELTA)
    assert exact <= _epsilon(GAUSSIAN) <= exact * 1.01
    # Replacing one record moves a clipped sum twice as far.
    assert _epsilon(GAUSSIAN, relation=REPLACE) == pytest.approx(
        dp_accounting.get_epsilon_gaussian(1.0, DELTA), rel=1e-2
    )
    selected = RepeatAndSelectEvent(GAUSSIAN, LAW)
    halved = accounting.gaussian(1.0, relation="replace_one")
    assert _epsilon(selected, relation=REPLACE) == accounting.best_of(halved, LAW).epsilon(DELTA)


def test_events_compose_in_any_order_and_nesting():
    selected = RepeatAndSelectEvent(_training(), LAW)
    price = accounting.best_of(accounting.dp_sgd(0.01, 1.0, 200), LAW)
    expected = accounting.compose(accounting.repeat(price, 2), accounting.gaussian(2.0))
    together = dp_events.ComposedDpEvent([dp_events.SelfComposedDpEvent(selected, 2), GAUSSIAN])
    for events in (
        [together],
        [selected, GAUSSIAN, selected],
        [GAUSSIAN, dp_events.NoOpDpEvent(), selected, selected],
    ):
        assert _epsilon(*events) == pytest.approx(expected.epsilon(DELTA), rel=1e-12)
    counted = SelectionAccountant().compose(selected, 2).compose(GAUSSIAN)
    assert counted.get_epsilon(DELTA) == pytest.approx(expected.epsilon(DELTA), rel=1e-12)
    assert counted.ledger == together
    read = accounting.from_dp_event(together)
    assert read.epsilon(DELTA) == pytest.approx(expected.epsilon(DELTA), rel=1e-12)


def test_a_selection_of_selections_nests():
    outer = RepeatAndSelectEvent(RepeatAndSelectEvent(GAUSSIAN, accounting.Fixed(2)), LAW)
    inner = accounting.best_of(accounting.gaussian(2.0), accounting.Fixed(2))
    assert _epsilon(outer) == accounting.best_of(inner, LAW).epsilon(DELTA)


def test_nothing_composed_costs_nothing_and_steps_may_come_one_by_one():
    assert SelectionAccountant().get_epsilon(0.0) == 0.0
    assert SelectionAccountant(REPLACE).guarantee.relation == "replace_one"
    step = _training().event
    assert _epsilon(*[step] * 20) == _epsilon(_training(steps=20))
    alternating = itertools.chain.from_iterable([[step, GAUSSIAN]] * 3)
    assert _epsilon(*alternating) == _epsilon(_training(steps=3), *[GAUSSIAN] * 3)


@pytest.mark.parametrize(
    "event",
    [
        dp_events.NonPrivateDpEvent(),
        dp_events.GaussianDpEvent(0.0),
        _training(noise=0.0),
        RepeatAndSelectEvent(dp_events.ComposedDpEvent([GAUSSIAN, _training(np.float32(0))]), LAW),
    ],
)
def test_without_noise_there_is_no_epsilon(event):
    accountant = SelectionAccountant().compose(GAUSSIAN).compose(event)
    assert accountant.get_epsilon(DELTA) == math.inf and accountant.get_delta(3.0) == 1.0
    with pytest.raises(ValueError, match="compose private events only"):
        accountant.guarantee  # noqa: B018


def test_their_calibration_finds_the_noise_of_a_selection():
    noise = dp_accounting.calibrate_dp_mechanism(
        SelectionAccountant,
        lambda noise: RepeatAndSelectEvent(dp_events.GaussianDpEvent(noise), LAW),
        2.0,
        DELTA,
        tol=1e-2,
    )
    found = accounting.best_of(accounting.gaussian(noise), LAW).epsilon(DELTA)
    assert found <= 2.0 and found == pytest.approx(2.0, abs=0.05)


@pytest.mark.parametrize(
    "event,words",
    [
        (dp_events.UnsupportedDpEvent(), "UnsupportedDpEvent is not supported"),
        (dp_events.SampledWithReplacementDpEvent(10, 2, GAUSSIAN), "is not supported"),
        (dp_events.SampledWithoutReplacementDpEvent(10, 2, GAUSSIAN), "relation='replace_one'"),
        (dp_events.RandomizedResponseDpEvent(0.5, 4), "refuses the event"),
        (dp_events.SelfComposedDpEvent(GAUSSIAN, 0), "count must be a whole number >= 1"),
        (dp_events.SelfComposedDpEvent(dp_events.SelfComposedDpEvent(GAUSSIAN, -2), -2), "count"),
        (dp_events.PoissonSampledDpEvent(0.1, RepeatAndSelectEvent(GAUSSIAN, LAW)), "refuses"),
        (dp_events.PoissonSampledDpEvent(0.1, dp_events.SelfComposedDpEvent(GAUSSIAN, 0.25)), ""),
        (dp_events.PoissonSampledDpEvent(0.1, dp_events.ComposedDpEvent([_training(-1.0)])), ""),
        (dp_events.RepeatAndSelectDpEvent(GAUSSIAN, 5.0, -1.5), "shape must be"),
        (RepeatAndSelectEvent(dp_events.UnsupportedDpEvent(), LAW), "is not supported"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_supported_changes_nothing(event, words):
    accountant = SelectionAccountant().compose(GAUSSIAN)
    before = accountant.get_epsilon(DELTA), accountant.ledger
    for whole in (event, dp_events.ComposedDpEvent([_training(), event])):
        assert accountant.supports(whole) is False
        with pytest.raises(dp_accounting.UnsupportedEventError) as refused:
            accountant.compose(whole)
        assert words in str(refused.value) and "\n" not in str(refused.value)
    assert (accountant.get_epsilon(DELTA), accountant.ledger) == before
    assert accountant.supports(RepeatAndSelectEvent(GAUSSIAN, LAW)) is True
    # Asking composes nothing.
    assert (accountant.get_epsilon(DELTA), accountant.ledger) == before


def test_what_is_no_event_law_relation_or_delta_is_refused_in_one_line():
    for call, words in (
        (lambda: RepeatAndSelectEvent(accounting.gaussian(2.0), LAW), "event must be a DpEvent"),
        (lambda: RepeatAndSelectEvent(GAUSSIAN, 10), "law must be a RepetitionLaw"),
        (lambda: SelectionAccountant(SPECIAL), "neighboring_relation must be"),
        (lambda: SelectionAccountant("add_or_remove_one"), "neighboring_relation must be"),
        (lambda: SelectionAccountant().get_epsilon(1.5), "target_delta must be in"),
        (lambda: SelectionAccountant().compose(GAUSSIAN).get_delta(-1.0), "epsilon must be >= 0"),
    ):
        with pytest.raises(ValueError, match=words) as refused:
            call()
        assert "\n" not in str(refused.value)
    with pytest.raises(AttributeError):
        RepeatAndSelectEvent(GAUSSIAN, LAW).law = accounting.Fixed(1)
    assert SelectionAccountant().compose(GAUSSIAN).get_epsilon(0.0) == math.inf


def test_an_event_goes_through_a_named_tuple_and_compares_by_value():
    event = RepeatAndSelectEvent(_training(), LAW)
    assert dp_events.DpEvent.from_named_tuple(event.to_named_tuple()) == event
    assert event != RepeatAndSelectEvent(_training(), accounting.Geometric(11))


class ConformanceTest(privacy_accountant_test.PrivacyAccountantTest):
    """dp_accounting's own suite for whatever has its interface."""

    def _make_test_accountants(self):
        return [SelectionAccountant(ADD), SelectionAccountant(REPLACE)]
