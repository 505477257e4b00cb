"""An execution plan of jax-privacy whose noise and batches are one candidate's.

A plan of jax-privacy 2.0.0 draws 31 bits for its noise's key, and 32 bits of a seed that it is
given count; everyone who has its final model may search those. Here both come from all bits of the
secret seed of a candidate.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import optax
from dp_accounting import dp_event as dp_events
from jax_privacy import batch_selection
from jax_privacy.experimental import execution_plan

from dpjax.bridges import seeds
from dpjax.bridges.contradiction import ContradictionError
from dpjax.randomness import keys


class CandidatePlan:
    """One candidate's execution plan, and what is seen of its use.

    Formal guarantees:
      `plan` is the given one but for its randomness: the key of the noise, and the generator of the
      batches whatever generator is passed to them, are two of their own, made of all bits of the
      seed (`seeds.expanded`). Noise begun a second time has another key. Seen, and refused with a
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
            # The state of their privatizer is (key, what its matrix keeps); updates read the key
            # from there.
            state = noise.init(model)
            if not _has_key(state):
                self._refuse(
                    "the state of the plan's noise does not begin with a key: pass a plan of "
                    "BandMFExecutionPlanConfig"
                )
            words = seeds.expanded(seed, f"noise of a plan, {self._begun_noise}", 8)
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
        words = seeds.expanded(self._seed, "batches of a plan", 32)
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
        """Raises again what the training caught, or raised as something else."""
        if self._contradiction:
            raise ContradictionError(self._contradiction) from None

    def _refuse(self, why: str) -> None:
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
    """Returns whether this is the state of a privatizer that keeps its key in it."""
    if not (isinstance(state, tuple) and len(state) == 2):
        return False
    dtype = getattr(state[0], "dtype", None)
    return dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)
