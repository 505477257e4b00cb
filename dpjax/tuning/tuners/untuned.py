"""No tuning: one private run with a public default, which every tuner has to beat.

The whole epsilon goes into one training, and every record may train. Where the default is good,
that is hard to beat: choosing costs epsilon, and records to score by. `public_defaults` is the rule
that the default comes from.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from dpjax import accounting
from dpjax.releases.rules import NO_CHOICE
from dpjax.tuning import statements
from dpjax.tuning.private_runs import RunsPlan, plan_runs
from dpjax.tuning.problem.problem import Material, Problem
from dpjax.tuning.problem.public_defaults import default_space_and_run
from dpjax.tuning.problem.space import Space
from dpjax.tuning.selection import BestOf
from dpjax.tuning.steps import Steps
from dpjax.tuning.tuner import register_tuner
from dpjax.tuning.tuners.random_repetitions import PrivateRuns

THE_RUN = "the one run, on all training records"

_ASSUMPTIONS = (
    "the hyperparameters and every setting were fixed before the data was seen",
    "the console and the wall clock stay with the curator",
)


@register_tuner("untuned", rule=NO_CHOICE)
@dataclasses.dataclass(frozen=True)
class Untuned(PrivateRuns):
    """Trains one model privately with public hyperparameters; nothing is tuned.

    Formal guarantees:
      `result.release` is (`result.guarantee.epsilon(delta)`, delta)-differentially private under
      `result.guarantee.relation` for one record of the training data, if every argument was fixed
      without looking at the data and the randomness stays secret; it does not depend on the
      validation records at all. Enforced here: one run, whose cost is the whole cost; every
      hyperparameter is a number that was there before; a run that is not finite releases parameters
      that do not depend on data. Source: `accounting.dp_sgd` for the cost.

    Example:
      >>> from dpjax import tuning
      >>> tuning.Untuned()
      Untuned()
    """

    chunk_size: ClassVar[int] = 1
    without_a_model = "the run is not finite"
    default = staticmethod(default_space_and_run)

    @classmethod
    def from_statement(cls, claim: Mapping[str, Any]) -> Untuned:
        return cls()

    def choice_in(self, space: Space) -> BestOf:
        del space
        return BestOf(accounting.Fixed(1))

    def plan(self, problem: Problem) -> RunsPlan:
        for name, law in problem.space.parameters.items():
            if len(set(law.values or ())) != 1:
                raise ValueError(
                    f"one run has hyperparameters that are fixed beforehand, and {name} is drawn "
                    f"from {law}: pass a number for it"
                )
        # No score is released, and none decides: there is nothing to add noise to.
        unscored = dataclasses.replace(problem, validation_is_public=True)
        planned = plan_runs(unscored, self.choice_in(problem.space))
        # The best of one is that one, and a statement names no selection.
        return dataclasses.replace(planned, guarantee=planned.run_guarantee)

    def steps(self, plan: RunsPlan, material: Material) -> Steps:
        chosen = yield from super().steps(plan, material)
        record = chosen.record
        # Scores mean nothing here: the validation records may be placeholders, and none decides.
        unmeasured = np.where(np.isfinite(record.scores), np.nan, record.scores)
        record = dataclasses.replace(
            record, scores=unmeasured, accuracies=np.full(len(unmeasured), np.nan)
        )
        return dataclasses.replace(chosen, record=record)

    def may_release(self, plan: RunsPlan, released: Mapping[str, Any]) -> bool:
        laws = sorted(plan.problem.space.parameters.items())
        numbers = {name: float(law.lowest) for name, law in laws}
        setting = statements.released(plan.problem.space, numbers)
        return released in (setting, dict.fromkeys(setting))

    def statement(
        self, plan: RunsPlan, *, secret: bool, versions: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        return statements.written(
            **statements.of_problem(plan.problem),
            guarantee=plan.guarantee,
            selection={"rule": NO_CHOICE},
            score={"what": "none: nothing was measured on the records, nothing was selected"},
            settings=[statements.of_setting(setting, THE_RUN) for setting in plan.settings],
            randomness_is_secret=secret,
            assumptions=_ASSUMPTIONS,
            versions=versions,
        )
