"""The last of a fixed number of runs, whatever they score; then it is trained anew."""

import dataclasses

import numpy as np

from dpjax import accounting
from dpjax.tuning import Job
from dpjax.tuning.private_runs import (
    execute,
    facts_of,
    final_run,
    named,
    plan_runs,
    read_executed,
    train_finally,
    winners,
    within,
    written_executed,
)
from dpjax.tuning.tuner import Outcome, register_tuner
from dpjax.tuning.tuners.random_repetitions import PrivateRuns, record_of

JOB = Job()
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

    def run(self, plan, *, randomness, executions=1, chunk_size=16, progress=None, job=JOB):
        # One draw, and one outcome that it decides: the search and the final training.
        with job.once(facts_of(plan, randomness, executions) if job.is_bound else None) as once:
            if once.wants_a_draw:
                once.begin({})
            if once.drawn() is not None:
                many = dict(executions=executions, chunk_size=chunk_size)
                searched = execute(
                    plan, randomness=randomness, progress=progress, job=job.inner("search"), **many
                )
                final = train_finally(
                    final_run(plan, plan.settings[0], winners(searched)[1]),
                    randomness=randomness.fold_in(31, 0),
                    job=job.inner("final"),
                    **many,
                )
                parts = {"search": searched, "final": final}
                arrays = [named(part, written_executed(ran)) for part, ran in parts.items()]
                once.end(arrays[0] | arrays[1])
        searched, final = (
            read_executed(within(once.outcome, part), plan.task) for part in ("search", "final")
        )
        _, chosen = winners(searched)
        found, _ = winners(final)
        return Outcome(plan, final.best.outputs, found, chosen, record_of(plan, searched))
