"""The last of a fixed number of runs, whatever they score; then it is trained anew."""

import dataclasses

import numpy as np

from dpjax import accounting
from dpjax.tuning.plans import plan_runs
from dpjax.tuning.steps import Chosen, Select, Train
from dpjax.tuning.tuner import register_tuner
from dpjax.tuning.tuners.random_repetitions import PrivateRuns, record_of

RULE = "the last of a fixed number of runs, then private training with its hyperparameters"


@dataclasses.dataclass(frozen=True)
class LastOf:
    """Takes the last run: K is public, and the others leave no trace."""

    runs: int
    in_order = False

    @property
    def expected_runs(self):
        return float(self.runs)

    def guarantee(self, run):
        return accounting.compose(run, run)  # The one that is taken, and the final training.

    def draw(self, executions, source):
        return np.full(executions, self.runs)

    def rank(self, scores):
        return np.arange(len(scores)) % self.runs  # All runs of an execution are in one chunk.

    def describe(self):
        return {"rule": RULE, "runs": self.runs}


@register_tuner("last_run", rule=RULE)
@dataclasses.dataclass(frozen=True)
class LastRun(PrivateRuns):
    """The last of a fixed number of runs, trained anew.

    Attributes:
      runs: how many there are; public.
    """

    runs: int = 3

    @property
    def choice(self):
        return LastOf(self.runs)

    @classmethod
    def from_statement(cls, claim):
        return cls(int(claim["selection"]["runs"]))

    def plan(self, problem):
        # No score decides, so none needs noise.
        return plan_runs(dataclasses.replace(problem, validation_is_public=True), self.choice)

    def steps(self, plan):
        searched = yield Select("search", lambda: plan)
        final = yield Train("final", lambda: plan, plan.settings[0], searched.hyperparameters)
        return Chosen(final.params, searched.hyperparameters, record_of(plan, searched.executed))
