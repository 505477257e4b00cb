"""One private run whose hyperparameters were public beforehand: nothing is scored or chosen.

`OneRun` is the evaluation of `untuned`, what every tuner has to beat.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from dpjax import accounting
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.tuning import cautions, curator, statements
from dpjax.tuning.evaluations.candidate_runs import untrained
from dpjax.tuning.evaluations.private_runs import (
    Procedure,
    execute,
    plan_procedure,
)
from dpjax.tuning.job import Job
from dpjax.tuning.problem.problem import Problem
from dpjax.tuning.problem.space import Space
from dpjax.tuning.release import Release
from dpjax.tuning.scored_runs import Executed
from dpjax.tuning.tuner import Progress, Rebuilt, Result

RULE = "none: one private run with hyperparameters that were public beforehand"

THE_RUN = "the one run, on all training records"

_ASSUMPTIONS = (
    "the hyperparameters and every setting were fixed before the data was seen",
    "the console and the wall clock stay with the curator",
)


@dataclasses.dataclass(frozen=True)
class NothingToChoose:
    """One run, which is released whatever it scores; a `choices.RunChoice`."""

    in_order = False

    @property
    def expected_runs(self) -> float:
        """See `RunChoice`."""
        return 1.0

    def guarantee(self, run: accounting.Guarantee) -> accounting.Guarantee:
        """See `RunChoice`: what the run costs."""
        return run

    def draw(self, executions: int, source: np.random.Generator | None) -> np.ndarray:
        """See `RunChoice`."""
        return np.ones(executions, dtype=np.int64)

    def rank(self, scores: np.ndarray) -> np.ndarray:
        """See `RunChoice`: no score decides anything, but a run that is not finite is not kept."""
        return np.where(scores > -np.inf, 0.0, -np.inf)

    def describe(self) -> dict[str, Any]:
        """See `RunChoice`."""
        return {"rule": RULE}


@dataclasses.dataclass(frozen=True)
class OneRun:
    """The evaluation: none. One run of public hyperparameters; validation records are not used."""

    chunk_size: ClassVar[int] = 1

    def run(
        self,
        problem: Problem,
        choice: NothingToChoose,
        *,
        randomness: HostRandomness,
        chunk_size: int,
        progress: Progress | None,
        job: Job,
    ) -> Result | None:
        """See `tuner.Evaluation`."""
        fixed = planned(problem)
        started = time.time()
        executed = execute(
            fixed, randomness=randomness, chunk_size=chunk_size, progress=progress, job=job
        )
        if executed is None:
            return None
        return Result(
            release=_release(fixed, executed, randomness.secret),
            guarantee=fixed.guarantee,
            run_guarantee=fixed.run_guarantee,
            curator=curator.CuratorRecord(
                number_of_candidates=int(executed.counts[0]),
                winner=int(executed.best.candidate[0]),
                hyperparameters=executed.hyperparameters,
                # Nothing was to be measured, and a stand-in may be all there is to measure on.
                scores=np.where(np.isfinite(executed.scores), np.nan, executed.scores),
                accuracies=np.full(len(executed.scores), np.nan),
                seconds=time.time() - started,
            ),
        )

    def rebuild(
        self, claim: Mapping[str, Any], problem: Problem, choice: NothingToChoose
    ) -> Rebuilt:
        """See `tuner.Evaluation`."""
        setting = hyperparameters(problem.space)
        return Rebuilt(
            public_claim(planned(problem), **statements.common(claim)),
            lambda chosen: chosen in (setting, dict.fromkeys(sorted(setting))),
        )


def planned(problem: Problem) -> Procedure:
    """Fixes one run and its cost, from public numbers only; refuses a space that draws anything."""
    for name, law in problem.space.parameters.items():
        if len(set(law.values or ())) != 1:
            raise ValueError(
                f"one run has hyperparameters that are fixed beforehand, and {name} is drawn from "
                f"{law}: pass a number for it"
            )
    # No score is released, and none decides: there is nothing to add noise to.
    unscored = dataclasses.replace(problem, validation_is_public=True)
    return plan_procedure(unscored, NothingToChoose())


def hyperparameters(space: Space) -> dict[str, float | None]:
    """Returns what stands in the release, of a space of numbers."""
    return statements.rounded(
        {name: float(law.lowest) for name, law in sorted(space.parameters.items())}
    )


def _release(fixed: Procedure, executed: Executed, secret: bool) -> Release:
    """Returns what may leave: the run's parameters, and the claim."""
    params = executed.best.output(0)
    released = hyperparameters(fixed.space)
    if not np.isfinite(executed.best.score[0]):
        # Not finite: what comes out must not depend on data.
        params = untrained(fixed.task)
        released = dict.fromkeys(released)
        cautions.of_untrained("the run is not finite")
    return Release(params=params, hyperparameters=released, statement=public_claim(fixed, secret))


def public_claim(
    fixed: Procedure, secret: bool, versions: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Returns what the release of one run states, from public text and numbers alone."""
    return statements.written(
        **statements.of_problem(fixed.problem),
        guarantee=fixed.guarantee,
        selection=fixed.selection.describe(),
        score={"what": "none: nothing was measured on the records, nothing was selected"},
        settings=[statements.of_setting(setting, THE_RUN) for setting in fixed.settings],
        randomness_is_secret=secret,
        assumptions=_ASSUMPTIONS,
        versions=versions,
    )
