"""jax-privacy: an execution plan as a base run, and its training as the candidate of a tuning.

A plan of jax-privacy 2.0 (`jax_privacy.experimental.execution_plan`: DP-SGD and banded matrix
factorisation, Choquette-Choo et al., NeurIPS 2023, with truncated lots or without) carries the
dp_accounting event of its whole training. That event becomes a `Guarantee`, which `tune` charges
for each candidate.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import jax
import numpy as np
import optax
from dp_accounting import dp_event as dp_events

try:
    from jax_privacy import batch_selection

    # 2.2 moved the module, and its configurations have no `plan` and no accountant.
    from jax_privacy.experimental import execution_plan
except ImportError:
    raise ImportError(
        "dpjax.bridges.jax_privacy needs jax-privacy 2.0 (plans of 2.2 are others): pip install -e "
        "'.[bridges]' in dpjax's folder"
    ) from None

from dpjax import accounting, checks
from dpjax.bridges import any_run
from dpjax.bridges.runs import Candidates, ContradictionError, Label, expanded
from dpjax.neighbouring import ADD_OR_REMOVE_ONE, RELATIONS, normalise_relation
from dpjax.randomness import keys
from dpjax.tuning.problem.space import Space
from dpjax.tuning.tuner import Result

Plan: TypeAlias = execution_plan.DPExecutionPlan | execution_plan.BandMFExecutionPlanConfig
"""A plan, or the configuration of one."""

Train: TypeAlias = Callable[[execution_plan.DPExecutionPlan, dict[str, Label]], tuple[Any, Any]]
"""(plan, hyperparameters) -> (parameters, number of correct predictions)."""


def guarantee_of_plan(plan: Plan, relation: object = None) -> accounting.Guarantee:
    """Returns the guarantee of one training by an execution plan.

    Formal guarantees:
      It is that of the plan's event (`accounting.from_dp_event`, noise multiplier = noise / clip
      norm under either relation). It holds if the training was the plan's: its clipped gradients of
      each batch of its batch selection, its noise added once to each, nothing in between, with
      seeds of batches and noise that nobody knows. (jax-privacy 2.0.0 draws 31 bits for the noise
      of a plan without `noise_seed`, which anyone can search; `tune` gives it a key of 64.) An
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
      plan: with CyclicPoissonSampling; or the configuration of one.
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


def tune(
    train: Train, space: Space | Candidates, *, plan: Plan, relation: object = None, **more: Any
) -> Result:
    """Trains a secret random number of candidates by an execution plan and releases the best one.

    Formal guarantees:
      `result.release` is (`result.guarantee.epsilon(delta)`, delta)-differentially private under
      `relation`, by `bridges.tune` with `guarantee_of_plan(plan, relation)` as the guarantee of one
      run, if each training follows the plan. Each candidate is given its own plan, whose noise has
      a key of 64 bits, and whose batches have a generator, both made of the candidate's secret seed
      (`CandidatePlan`), whatever noise_seed or generator is passed. A run that draws no batches of
      it, or draws them twice, that does not begin its noise, or under truncation has another number
      of records than was priced ends the tuning with a RuntimeError, and nothing is released. The
      guarantee also rests on what cannot be seen from here: the gradients of each batch are clipped
      by `plan.clipped_grad` and get the noise once, before anything else is done with them; the
      state of the noise is carried on; nothing else is computed from the records. Under
      "add_or_remove_one" nothing but the batches may depend on their number. The rest is as
      `bridges.tune` says.

    Example: `docs/bridges.md`, "Tuning a jax-privacy training".

    Args:
      train: (plan, hyperparameters) -> (parameters, number of correct predictions). For users:
        `UserSelectionStrategy(plan.batch_selection_strategy, ...)`. A clip norm is tuned by
        `plan.clipped_grad(..., pre_clipping_transform=)`, which divides gradients by it.
      plan: as `guarantee_of_plan` takes it, the same for all candidates. For a pool of processes it
        must be a configuration.
      relation: as `guarantee_of_plan` takes it.
      more: as in `bridges.tune`: score, which is needed, repetitions, delta, model, default,
        executor, on_outcome, job, ledger, seed.

    Returns:
      A `tuning` `Result`: `release.save(folder)`, `curator.save(folder)`.

    Raises:
      RuntimeError: if a run is seen not to be the plan's (`bridges.ContradictionError`), or a
        process of the pool died; nothing is released.
    """
    checks.function("train", train, "(plan, hyperparameters) -> (parameters, count)")
    any_run.check_takes("train", train, "plan", "hyperparameters")
    base = guarantee_of_plan(plan, relation)
    return any_run.tune(_Run(train, plan, _made(plan).dp_event), space, base=base, **more)


@dataclasses.dataclass(frozen=True)
class _Run:
    """Trains one candidate by `plan`, for `bridges.tune`; `event` is what was priced."""

    train: Train
    plan: Plan
    event: Any

    def __call__(self, seed: int, hyperparameters: dict[str, Label]) -> Any:
        plan = _made(self.plan)
        if plan.dp_event != self.event:
            raise ContradictionError("a process made another plan than was priced: pass a plan")
        candidate = CandidatePlan(plan, seed)
        try:
            returned = self.train(candidate.plan, hyperparameters)
        except Exception:
            candidate.check_refused()
            raise
        candidate.check()
        return returned

    def facts(self) -> list[Any]:
        """Returns what a job's folder is bound to: the training, and the settings of the plan."""
        plan = self.plan
        settings = [plan, _made(plan).batch_selection_strategy]
        words = [
            (field.name, repr(value))
            for one in settings
            for field in dataclasses.fields(one)
            if isinstance(value := getattr(one, field.name), int | float | str | None)
        ]
        return [*any_run.code(self.train), repr(self.event), words]

    def __reduce__(self) -> Any:
        plan = self.plan
        if isinstance(plan, execution_plan.BandMFExecutionPlanConfig):
            # A copy has no cached plan, whose local functions cannot be pickled.
            plan = dataclasses.replace(plan)
        return type(self), (self.train, plan, self.event)


def _made(plan: Plan) -> execution_plan.DPExecutionPlan:
    """Returns a plan as it is, or the one that a configuration makes."""
    if isinstance(plan, execution_plan.BandMFExecutionPlanConfig):
        return plan.plan
    return plan


class CandidatePlan:
    """One candidate's execution plan, which watches that the training follows it.

    Formal guarantees:
      `plan` is the given one but for its randomness: the key of the noise, and the generator of the
      batches whatever generator is passed to them, are two of their own, made of all bits of the
      seed (`expanded`). Noise begun a second time has another key. Seen, and refused with a
      `ContradictionError` even if the training catches it: batches that are never drawn, or begun
      twice; noise that is never begun; under truncation, another number of records than the plan's
      event is for. Not seen: whether each batch's clipped gradients meet the noise once, with the
      state of the noise carried on.
    """

    def __init__(self, plan: execution_plan.DPExecutionPlan, seed: int):
        self._seed, self._contradiction = seed, ""
        self._begun_noise = self._begun_batches = 0
        noise, event = plan.noise_addition_transform, plan.dp_event
        while isinstance(event, dp_events.SelfComposedDpEvent):
            event = event.event
        self._group_size = getattr(event, "dataset_size", None)

        def init(model: Any) -> Any:
            # The state of jax-privacy's privatizer is (key, state of its matrix); updates read the
            # key from there.
            state = noise.init(model)
            if not _has_key(state):
                self._refuse(
                    "the state of the plan's noise does not begin with a key: pass a plan of "
                    "BandMFExecutionPlanConfig"
                )
            words = expanded(seed, f"noise of a plan, {self._begun_noise}", 8)
            self._begun_noise += 1
            data = np.frombuffer(words, dtype=">u4").astype(np.uint32)
            return jax.random.wrap_key_data(data, impl=keys.IMPLEMENTATION), state[1]

        lots = plan.batch_selection_strategy
        fields = dataclasses.fields(batch_selection.CyclicPoissonSampling)
        self.plan = dataclasses.replace(
            plan,
            batch_selection_strategy=_CandidateBatches(
                **{field.name: getattr(lots, field.name) for field in fields}, candidate=self
            ),
            noise_addition_transform=optax.GradientTransformation(init, noise.update),
        )

    def begin_batches(self, number: int, groups: int) -> np.random.Generator:
        """Returns the generator of the one sequence of batches; refuses a second one."""
        if self._begun_batches:
            self._refuse("a run began batch_iterator twice: draw the plan's batches once")
        if self._group_size is not None and number // groups != self._group_size:
            self._refuse(
                f"a plan priced for groups of {self._group_size} draws from {number} // {groups}: "
                f"pass num_examples={number} to its configuration"
            )
        self._begun_batches += 1
        words = expanded(self._seed, "batches of a plan", 32)
        return np.random.default_rng(int.from_bytes(words, "big"))

    def check(self) -> None:
        """Raises a `ContradictionError` if the training, now over, was not the plan's."""
        if not self._contradiction and not (self._begun_noise and self._begun_batches):
            self._refuse(
                "a run did not use its own plan: train on the batches of "
                "plan.batch_selection_strategy, with the noise of plan.noise_addition_transform"
            )
        self.check_refused()

    def check_refused(self) -> None:
        """Raises the first contradiction, even if the training caught it or hid it."""
        if self._contradiction:
            raise ContradictionError(self._contradiction) from None

    def _refuse(self, why: str) -> None:
        """Raises a `ContradictionError`, and remembers the first."""
        self._contradiction = self._contradiction or f"{why}; nothing is released"
        raise ContradictionError(self._contradiction)


@dataclasses.dataclass(frozen=True)
class _CandidateBatches(batch_selection.CyclicPoissonSampling):
    """Draws jax-privacy's batches by a candidate's generator, whatever generator is passed."""

    candidate: CandidatePlan | None = dataclasses.field(default=None, repr=False, compare=False)

    def batch_iterator(self, num_examples: int, rng: Any = None) -> Iterator[np.ndarray]:
        """Draws as `CyclicPoissonSampling`; never reads `rng`, whose seed may be known."""
        assert self.candidate is not None
        own = self.candidate.begin_batches(num_examples, self.cycle_length)
        return super().batch_iterator(num_examples, own)


def _has_key(state: Any) -> bool:
    """Returns whether the state of a privatizer is a pair that begins with its key."""
    if not (isinstance(state, tuple) and len(state) == 2):
        return False
    dtype = getattr(state[0], "dtype", None)
    return dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


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
