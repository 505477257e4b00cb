"""A selection by averaged utilities and the private training after it, fixed with their cost.

What Ding & Wu's loop (`doubling`) and the exponential mechanism (`exponential`) share before the
data is touched; `partitioned_selection` runs what is fixed here.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dpjax import accounting, checks
from dpjax.neighbouring import ADD_OR_REMOVE_ONE
from dpjax.randomness.exact_samplers import UniformBelow
from dpjax.tuning.evaluations import partitions
from dpjax.tuning.evaluations.procedure import Optimizer, check_target
from dpjax.tuning.problem.run_settings import (
    RunOptions,
    RunSetting,
    calibrated,
    run_settings,
    training_guarantee,
)
from dpjax.tuning.problem.space import ACCOUNTED, Space
from dpjax.tuning.problem.task import Task
from dpjax.tuning.problem.unread import refuse_unread

Candidates = int | Sequence[Mapping[str, float]]


class Selector(Protocol):
    """A private choice among candidates by integer utilities of one record's bounded influence.

    Attributes:
      epsilon: epsilon_0, of the choice or of one of its iterations.
    """

    epsilon: float

    def guarantee(self, relation: str) -> accounting.Guarantee:
        """The cost of the choice."""

    def select(
        self, scores: list[int], utility: partitions.AveragedUtility, below: UniformBelow
    ) -> tuple[int, dict[str, Any]]:
        """Returns the chosen index, and what happened: the curator's, JSON-able."""

    def describe(self, utility: partitions.AveragedUtility, delta: float) -> dict[str, Any]:
        """The public rule as JSON-able data."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything that is fixed, and public, before the data is touched.

    Attributes:
      space: the law that candidates are drawn from.
      number: of candidates.
      listed: the candidates, where the caller gave them.
      selector: the private choice.
      utility: units and sensitivity of the scores.
      lots: how the models of partitions are trained.
      partition_training: one of `partitions.PARTITION_TRAININGS`.
      setting: of the final training.
      optimizer: hyperparameters -> optax transformation.
      selection_guarantee, training_guarantee, guarantee: the cost of the selection, of the final
        training, of both together.
    """

    space: Space
    number: int
    listed: Sequence[Mapping[str, float]] | None
    selector: Selector
    utility: partitions.AveragedUtility
    lots: partitions.PartitionLots
    partition_training: str
    setting: RunSetting
    optimizer: Optimizer
    selection_guarantee: accounting.Guarantee
    training_guarantee: accounting.Guarantee
    guarantee: accounting.Guarantee


def plan(
    task: Task,
    space: Space,
    selector: Selector,
    options: RunOptions,
    *,
    candidates: Candidates,
    partition_number: int,
    partition_training: str,
    epsilon: float | None,
    delta: float,
    optimizer: Optimizer,
    validation_is_public: bool,
) -> Plan:
    """Fixes the procedure and its cost, from public numbers only.

    Raises:
      ValueError: with one line naming what to pass instead.
    """
    check_target(task, space, epsilon, delta, validation_is_public)
    if "clip_norm" in space.parameters and not space.parameters["clip_norm"].lowest > 0:
        raise ValueError("clip_norm must be above 0: pass a law of positive numbers")
    refuse_unread(task, optimizer, space.parameters)
    number, listed = _candidates(candidates, space)
    partition_number = partitions.check_partitions(task, partition_number)
    for name in ACCOUNTED:
        if name in space.parameters and len(set(space.parameters[name].values)) > 1:
            raise ValueError(
                f"the final training's cost must not depend on the candidate, and {name} changes "
                f"it: fix {name}, outside the space"
            )
    (setting,) = run_settings(task, space, options)
    given = not math.isnan(setting.noise_multiplier)
    if given == (epsilon is not None):
        raise ValueError(
            "pass either a target epsilon or a noise multiplier, not "
            + ("both" if given else "neither")
        )
    if given and not setting.noise_multiplier > 0:
        raise ValueError("noise_multiplier 0 gives no privacy: pass a positive one")
    selection = selector.guarantee(setting.relation)
    if not given:
        alone = selection.epsilon(delta)
        if alone >= epsilon:
            raise ValueError(
                f"the selection alone costs epsilon {alone:.4g} of {epsilon:g}: pass a smaller "
                "selection_epsilon, a cap on iterations or hits, or a larger epsilon"
            )
        (setting,) = calibrated(
            [setting], lambda run: accounting.compose(selection, run), epsilon, delta
        )
    final = training_guarantee([setting])
    # Under replace one, run_settings has refused records that a replacement could move.
    stay = setting.relation == ADD_OR_REMOVE_ONE or task.train.stable_under_replacement
    utility = partitions.AveragedUtility(
        partition_number, task.validation.public_size, validation_is_public, stay
    )
    return Plan(
        space=space,
        number=number,
        listed=listed,
        selector=selector,
        utility=utility,
        lots=partitions.partition_lots(
            setting, task.train.public_size, partition_number, partition_training
        ),
        partition_training=partition_training,
        setting=setting,
        optimizer=optimizer,
        selection_guarantee=selection,
        training_guarantee=final,
        guarantee=accounting.compose(selection, final),
    )


def _candidates(
    candidates: Candidates, space: Space
) -> tuple[int, Sequence[Mapping[str, float]] | None]:
    if isinstance(candidates, numbers.Real):
        return checks.whole("candidates", candidates), None
    listed = checks.listed("candidates", candidates, "mappings, or their number")
    if not listed:
        raise ValueError("the list of candidates is empty: pass at least one")
    for candidate in listed:
        checks.mapping("each of the candidates", candidate, "from the space's names to numbers")
        if set(candidate) != set(space.parameters):
            raise ValueError(
                f"a listed candidate has {', '.join(sorted(candidate))}: give each the names of "
                f"the space, {', '.join(sorted(space.parameters))}"
            )
        for name, value in candidate.items():
            checks.number(f"{name} of a listed candidate", value)
        for name in ACCOUNTED:
            if name in candidate and candidate[name] not in space.parameters[name].values:
                raise ValueError(f"{name} of a listed candidate is not the space's: pass the same")
    return len(listed), listed
