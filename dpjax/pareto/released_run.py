"""One private run whose hyperparameters were chosen on public data: the run alone is charged."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from dpjax import accounting, training
from dpjax.pareto.oracles import RunShapes, TrainingCost
from dpjax.releases import claims
from dpjax.releases.release import Release
from dpjax.releases.rules import Rebuilt, register_rule
from dpjax.training.optimizers import Optimizer
from dpjax.tuning import cautions, statements
from dpjax.tuning.problem.problem import FIXED, Material, Sizes, stated_words
from dpjax.tuning.problem.run_settings import RunSetting
from dpjax.tuning.problem.space import Space, space_from
from dpjax.tuning.problem.task import Task, all_finite, check_neighbours
from dpjax.tuning.runner import (
    config_of_setting,
    hyperparameters_of_runs,
    placed_records,
    run_of,
    untrained,
)

RULE = "one run; its hyperparameters were chosen on public data"
THE_RUN = "the one run, on all training records"


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """The one run, before the data is touched.

    Attributes:
      material: the checked task and optimiser.
      run: the setting as it is accounted for.
      hyperparameters: what the training reads; an argument of the program, never a constant of it.
      trained: (key, hyperparameters, training records) -> (parameters, whether all are finite).
    """

    material: Material
    run: RunSetting
    hyperparameters: Mapping[str, np.ndarray]
    trained: Callable[[jax.Array, Any, Any], tuple[Any, jax.Array]]

    @classmethod
    def of(
        cls, task: Task, cost: TrainingCost, setting: Mapping[str, float], optimizer: Optimizer
    ) -> PlannedRun:
        """Checks and plans the run; arguments and errors are those of `released_run`."""
        records = task.train
        fixed = cost.shapes.sampling == FIXED
        if cost.shapes.dataset_size != (records.number if fixed else records.public_size):
            raise ValueError(
                f"the cost is for {cost.shapes.dataset_size} records, not for this run's: pass "
                "the cost of this run"
            )
        if not fixed and cost.shapes.largest_size != records.size_bound:
            # With more records than its lots allow the run would fail, which others could see.
            raise ValueError(
                f"the cost is for {cost.shapes.largest_size} records at most, the data may hold "
                f"{records.size_bound}: pass RunShapes(..., size_bound={records.size_bound})"
            )
        check_neighbours(cost.shapes.sampling, records)
        material = Material(task, optimizer, tuple(setting))
        material.check()
        given = {name: np.array([value]) for name, value in setting.items()}
        (run,) = cost.shapes.accounted(given)
        one_run = run_of(task, config_of_setting(material, run))
        values = hyperparameters_of_runs(given, [run])
        first = {name: array[0] for name, array in values.items()}

        def trained(key: jax.Array, hyperparameters: Any, records: Any) -> tuple[Any, jax.Array]:
            params = one_run(key, hyperparameters, records)
            return params, all_finite(params)

        return cls(material, run, first, trained)


def released_run(
    task: Task,
    cost: TrainingCost,
    setting: Mapping[str, float],
    optimizer: Optimizer,
    *,
    public_data: str,
    seed: int | None = None,
) -> tuple[Release, accounting.Guarantee]:
    """Trains one model privately and makes it a release.

    Formal guarantees: the released parameters cost `cost.guarantee(setting)` on the training
    records of `task`, with everything that `training.make_train` requires, PROVIDED that `setting`
    was chosen without looking at these records: on public data, or from an earlier release, whose
    cost is then composed. Nothing else of the records is in the release. Parameters that are not
    finite are replaced by initial ones, which is post-processing.

    Args:
      task: what to learn; its validation records are not looked at.
      cost: its shapes must be of the public size and the size bound of the training records.
      setting: name -> number, as from `suggest`.
      optimizer: hyperparameters -> optax transformation.
      public_data: what the setting was chosen on, in public words.
      seed: for reproduction only; the release then says that its randomness is known.

    Raises:
      ValueError: if the cost is for other numbers of records, if a change of one record could move
        others out of the training part, or if nothing reads a name of the setting.
    """
    planned = PlannedRun.of(task, cost, setting, optimizer)
    cautions.of_arguments(cost.delta, task.train.public_size, seed)
    (key,) = training.candidate_keys(1, seed=seed)
    whole_run, first = training.jit(planned.trained), planned.hyperparameters
    params, finite = whole_run(key, first, placed_records(task.train))
    if not finite:
        params = untrained(task)
        cautions.of_untrained("the run is not finite")
    guarantee = planned.run.guarantee()
    claim = public_claim(
        guarantee,
        cost,
        setting,
        public_data=public_data,
        run=planned.run,
        training=planned.material.words(cost.shapes.sampling),
        secret=seed is None,
    )
    return Release(jax.device_get(params), statements.rounded(setting), claim), guarantee


def public_claim(
    guarantee: accounting.Guarantee,
    cost: TrainingCost,
    setting: Mapping[str, float],
    *,
    public_data: str,
    run: RunSetting,
    training: Mapping[str, Any],
    secret: bool,
    versions: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Returns the statement of one run's release, made from public text and numbers alone.

    Args:
      guarantee: of the run.
      cost: the oracle that priced the run.
      setting: name -> number.
      public_data: what the setting was chosen on, in public words.
      run: the setting as it is accounted for.
      training: as from `Material.words`.
      secret: whether no seed was given.
      versions: see `statements.written`.
    """
    return statements.written(
        guarantee=guarantee,
        delta=cost.delta,
        selection={
            "rule": RULE,
            "public_data": public_data,
        },
        space=Space(setting).describe(),
        score={"what": "none: nothing was measured on the records, nothing was selected"},
        settings=[statements.of_setting(run, THE_RUN)],
        **training,
        options={
            "sampling": cost.shapes.sampling,
            "steps_per_epoch": cost.shapes.steps_per_epoch,
        },
        randomness_is_secret=secret,
        versions=versions,
    )


def _rebuilt(claim: Mapping[str, Any]) -> Rebuilt:
    """Rebuilds the statement of a release from the rules that it names."""
    options = claim["run_options"]
    space = space_from(claim["candidates_drawn_from"])
    setting = {}
    for name, law in space.parameters.items():
        (setting[name],) = law.values or ()
    fixed = options["sampling"] == FIXED
    records = claim["training_records"]
    cost = TrainingCost(
        RunShapes(
            records["number"] if fixed else records["public_size"],
            options["sampling"],
            options["steps_per_epoch"],
            None if fixed else records["size_bound"],
        ),
        claim["delta"],
    )
    (run,) = cost.shapes.accounted({name: np.array([value]) for name, value in setting.items()})
    Sizes.from_statement(records)  # For its checks.
    statement = public_claim(
        run.guarantee(),
        cost,
        setting,
        public_data=claims.text(claim["selection"]["public_data"]),
        run=run,
        training=stated_words(claim),
        **claims.common(claim),
    )
    return Rebuilt(statement, lambda chosen: chosen == statements.rounded(setting))


register_rule(RULE, _rebuilt)
