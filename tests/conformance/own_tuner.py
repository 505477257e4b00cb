"""A grid: for each value of a public list one candidate is trained, and the best is released."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from dpjax import accounting, tuning
from dpjax.tuning import steps

RULE = "the best of one run for each value of a public list"


@dataclasses.dataclass(frozen=True)
class OneEach:
    """One run at a time, and all of them are paid for: which values there are is public."""

    values: tuple[float, ...]
    in_order = False
    expected_runs = 1.0

    def guarantee(self, run):
        return accounting.repeat(run, len(self.values))

    def draw(self, executions, source):
        return np.ones(executions, np.int64)

    def rank(self, scores):
        return scores

    def describe(self):
        return {"rule": RULE, "values": list(self.values)}


@tuning.register_tuner("grid", rule=RULE)
@dataclasses.dataclass(frozen=True)
class Grid(tuning.PrivateRuns):
    """Trains one candidate for each value of the learning rate, and releases the best one.

    Attributes:
      values: learning rates; public.
    """

    values: Sequence[float] = (0.1, 1.0)

    def __post_init__(self):
        if not self.values or min(self.values) < 0:
            raise steps.Refused(("values", self.values), ": pass learning rates, 0 or more")

    def choice_in(self, space):
        return OneEach(tuple(map(float, self.values)))

    @classmethod
    def from_statement(cls, claim):
        return cls(claim["selection"]["values"])

    def plan(self, problem):
        return super().plan(_with_rate(problem, tuning.Choice(list(self.values))))

    def steps(self, plan, material):
        ran = []
        for place, value in enumerate(plan.selection.values):
            one = dataclasses.replace(plan, problem=_with_rate(plan.problem, value))
            ran.append((yield steps.Select(f"value_{place}", one, lambda: material)))
        scores = [one.executed.best.score[0] for one in ran]
        best = int(np.argmax(scores))
        record = steps.record(material, ran, best)
        return steps.Chosen(ran[best].params, ran[best].hyperparameters, record)


def _with_rate(problem, law):
    space = tuning.Space(dict(problem.space.parameters) | {"learning_rate": law})
    return dataclasses.replace(problem, space=space)
