"""jax-privacy's execution plans as base runs."""

import dataclasses

import dp_accounting
import numpy as np
import pytest
from dp_accounting import dp_event as dp_events
from jax_privacy import batch_selection
from jax_privacy.experimental.execution_plan import BandMFExecutionPlanConfig

from dpjax import accounting
from dpjax.bridges.dp_accounting import SelectionAccountant
from dpjax.bridges.jax_privacy import guarantee_of_plan

DELTA = 1e-5
ADD, REPLACE, SPECIAL = dp_accounting.NeighboringRelation
INDEPENDENT = batch_selection.PartitionType.INDEPENDENT


def _config(relation=SPECIAL, **changes):
    words = dict(
        iterations=99,
        strategy=np.array([1.0, 0.5]),
        epsilon=None,
        delta=None,
        noise_multiplier=2.0,
        sampling_prob=0.1,
        accountant=dp_accounting.pld.PLDAccountant(relation),
    )
    return BandMFExecutionPlanConfig(**words | changes)


def _gaussians(q, noise, rounds):
    step = dp_events.PoissonSampledDpEvent(q, dp_events.GaussianDpEvent(noise))
    return dp_events.SelfComposedDpEvent(step, rounds)


def test_a_plan_of_independent_groups_costs_dp_sgd_of_its_rounds():
    config = _config(ADD, partition_type=INDEPENDENT)
    expected = accounting.dp_sgd(0.1, 2.0, 50)
    for found in (guarantee_of_plan(config), guarantee_of_plan(config.plan, ADD)):
        assert found.epsilon(DELTA) == expected.epsilon(DELTA)
        assert found.relation == "add_or_remove_one"
    theirs = dp_accounting.pld.PLDAccountant(ADD).compose(config.plan.dp_event)
    assert found.epsilon(DELTA) == pytest.approx(theirs.get_epsilon(DELTA), rel=1e-2)


@pytest.mark.parametrize("changes", [{}, dict(truncated_batch_size=12, num_examples=100)])
def test_equal_groups_and_truncated_lots_cost_what_replacing_one_does(changes):
    plan = _config(**changes).plan
    found = guarantee_of_plan(plan, "replace_one")
    theirs = dp_accounting.pld.PLDAccountant(REPLACE).compose(plan.dp_event).get_epsilon(DELTA)
    assert found.relation == "replace_one"
    assert found.epsilon(DELTA) == pytest.approx(theirs, rel=1e-2)
    of_special = dp_accounting.pld.PLDAccountant(SPECIAL).compose(plan.dp_event)
    assert found.epsilon(DELTA) > of_special.get_epsilon(DELTA)


def test_a_plan_can_be_selected_from():
    base = guarantee_of_plan(_config(ADD, partition_type=INDEPENDENT, strategy=np.ones(1)))
    expected = accounting.best_of(accounting.dp_sgd(0.1, 2.0, 99), accounting.Geometric(10))
    found = accounting.best_of(base, accounting.Geometric(10))
    assert found.epsilon(DELTA) == expected.epsilon(DELTA)


def test_our_accountant_calibrates_their_plan():
    config = _config(
        partition_type=INDEPENDENT,
        accountant=SelectionAccountant(ADD),
        epsilon=1.0,
        delta=DELTA,
        noise_multiplier=None,
    )
    found = guarantee_of_plan(config).epsilon(DELTA)
    assert found <= 1.0 and found == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(
    "changes,relation,words",
    [
        ({}, None, "pass relation, one of"),
        ({}, SPECIAL, "pass relation, one of"),
        ({}, "zero_out", "unknown neighbouring relation"),
        ({}, ADD, "know the number of records: pass relation='replace_one'"),
        (
            dict(truncated_batch_size=12, num_examples=100),
            "add_or_remove_one",
            "know the number of records",
        ),
        (dict(noise_multiplier=0.0), REPLACE, "noise"),
    ],
)
def test_plans_without_a_guarantee_are_refused_in_one_line(changes, relation, words):
    with pytest.raises(ValueError, match=words) as refused:
        guarantee_of_plan(_config(**changes), relation)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "changes,words",
    [
        (dict(dp_event=None), "plan has no event, but None"),
        (dict(dp_event=2.0), "plan has no event, but 2.0"),
        (dict(dp_event=dp_events.NonPrivateDpEvent()), "pass one of jax-privacy's own plans"),
        (dict(dp_event=dp_events.GaussianDpEvent(2.0)), "pass one of jax-privacy's own plans"),
        (dict(dp_event=_gaussians(0.1, 2.0, 49)), "charges 49 rounds"),
        (dict(dp_event=_gaussians(0.09, 2.0, 50)), "probability 0.09"),
        (
            dict(
                dp_event=dp_events.SelfComposedDpEvent(
                    dp_events.TruncatedSubsampledGaussianDpEvent(50, 0.1, 12, 2.0), 50
                )
            ),
            "lots of at most 12",
        ),
        (
            dict(batch_selection_strategy=batch_selection.BallsInBinsSampling(99, 2)),
            "plan.batch_selection_strategy must be a CyclicPoissonSampling",
        ),
        (dict(batch_selection_strategy=None), "plan.batch_selection_strategy must be"),
    ],
)
def test_an_event_that_is_not_the_plans_is_refused_in_one_line(changes, words):
    plan = dataclasses.replace(_config().plan, **changes)
    with pytest.raises(ValueError, match=words) as refused:
        guarantee_of_plan(plan, "replace_one")
    assert "\n" not in str(refused.value)


def test_what_is_no_plan_is_refused():
    with pytest.raises(ValueError, match="plan must be a DPExecutionPlan, such as"):
        guarantee_of_plan(_gaussians(0.1, 2.0, 50), "replace_one")
