"""jax-privacy: an execution plan as a base run, whose event becomes a `Guarantee`.

A plan of jax-privacy 2.0 (`jax_privacy.experimental.execution_plan`: DP-SGD and banded matrix
factorisation, Choquette-Choo et al., NeurIPS 2023, with truncated lots or without) carries the
dp_accounting event of its whole training. `docs/bridges.md` tunes such a training by
`bridges.tune`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from dp_accounting import dp_event as dp_events

try:
    from jax_privacy import batch_selection

    # 2.2 moved the module, and its configurations have no `plan` and no accountant.
    from jax_privacy.experimental import execution_plan
except ImportError:
    raise ImportError(
        "dpjax.bridges.jax_privacy needs jax-privacy 2.0 (plans of 2.2 differ): pip install -e "
        "'.[bridges]' in dpjax's folder"
    ) from None

from dpjax import accounting, checks
from dpjax.neighbouring import ADD_OR_REMOVE_ONE, RELATIONS, normalise_relation

Plan: TypeAlias = execution_plan.DPExecutionPlan | execution_plan.BandMFExecutionPlanConfig
"""A plan, or the configuration of one."""


def guarantee_of_plan(plan: Plan, relation: object = None) -> accounting.Guarantee:
    """Returns the guarantee of one training by an execution plan.

    Formal guarantees:
      It is that of the plan's event (`accounting.from_dp_event`, noise multiplier = noise / clip
      norm under either relation). It holds if the training was the plan's: its clipped gradients of
      each batch of its batch selection, drawn once, its noise added once to each with the state
      carried on, nothing in between, with seeds of batches and noise that nobody can search.
      (jax-privacy 2.0.0 draws 31 bits for the noise of a plan without `noise_seed`, and keeps 32 of
      one: begin with `(bridges.jax_key(seed), noise.init(params)[1])` as the state.) An
      event that charges less than the plan's batch selection (fewer rounds, a smaller sampling
      probability, other truncation) is refused; that the noise, and under truncation the number of
      records, are the event's is the plan's word. The unit of privacy is what `plan.clipped_grad`
      clips: one record, or one user.

      Under "add_or_remove_one" groups must be drawn independently (PartitionType.INDEPENDENT) and
      lots be whole: equal groups and truncation know the number of records. jax-privacy's default,
      REPLACE_SPECIAL, is neither relation here: pass "replace_one", which such a plan costs more
      under. jax-privacy doubles the noise of a plan whose accountant has REPLACE_ONE, which its
      event does not say: the price of such a plan, theirs and this one, is far above its cost.

    Example: `guarantee_of_plan(config.plan, "replace_one").epsilon(1e-5)`.

    Args:
      plan: an execution plan with CyclicPoissonSampling, or the configuration of one.
      relation: neighbouring relation of the guarantee; None: that of a configuration's accountant.
    """
    if isinstance(plan, execution_plan.BandMFExecutionPlanConfig):
        if relation is None:
            relation = plan.accountant.neighboring_relation
        plan = plan.plan
    checks.instance("plan", plan, execution_plan.DPExecutionPlan, "BandMFExecutionPlanConfig.plan")
    event = plan.dp_event
    if not isinstance(event, dp_events.DpEvent):
        raise ValueError(
            f"plan has no event, but {checks.shown(event)}: pass a plan whose dp_event is "
            "dp_accounting's"
        )
    name = str(getattr(relation, "name", relation)).strip().lower()
    if relation is None or name == "replace_special":
        raise ValueError(
            "neither a plan nor REPLACE_SPECIAL says the relation of the guarantee: pass relation, "
            f"one of {RELATIONS}"
        )
    relation = normalise_relation(relation)
    lots = plan.batch_selection_strategy
    checks.instance(
        "plan.batch_selection_strategy",
        lots,
        batch_selection.CyclicPoissonSampling,
        "CyclicPoissonSampling(sampling_prob=0.1, iterations=100)",
    )
    if relation == ADD_OR_REMOVE_ONE and (
        lots.partition_type != batch_selection.PartitionType.INDEPENDENT
        or lots.truncated_batch_size is not None
    ):
        raise ValueError(
            "equal groups and truncated lots know the number of records: pass "
            "relation='replace_one', or a plan with PartitionType.INDEPENDENT and whole lots"
        )
    _check_event_of_lots(event, lots)
    return accounting.from_dp_event(event, relation)


def _check_event_of_lots(event: Any, lots: batch_selection.CyclicPoissonSampling) -> None:
    """Refuses an event that charges less than the batches that a plan draws."""
    rounds, step = 1, event
    while isinstance(step, dp_events.SelfComposedDpEvent):
        rounds, step = rounds * checks.whole("rounds of the event", step.count), step.event
    if not isinstance(
        step, dp_events.PoissonSampledDpEvent | dp_events.TruncatedSubsampledGaussianDpEvent
    ):
        raise ValueError(
            f"the plan's event is {checks.shown(event)}: pass one of jax-privacy's own plans, "
            "repeated rounds of one sampled Gaussian"
        )
    truncated = getattr(step, "truncated_batch_size", None)
    # A record is in one group, from which one batch is drawn per cycle.
    drawn = -(-lots.iterations // lots.cycle_length)
    agrees = (
        rounds >= drawn
        and step.sampling_probability >= lots.sampling_prob
        and truncated == lots.truncated_batch_size
    )
    if not agrees:
        raise ValueError(
            f"the plan's event charges {rounds} rounds of sampling probability "
            f"{step.sampling_probability:g} and lots of at most {truncated}, its batch selection "
            f"draws {drawn} of {lots.sampling_prob:g}, at most {lots.truncated_batch_size}: pass a "
            "plan whose event is its own"
        )
