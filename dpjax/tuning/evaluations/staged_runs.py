"""Private runs at several small epsilons, one stage after another, then one training on the rest.

`StagedRuns` is the evaluation of `extrapolation`: in each stage a secret number of candidates is
trained, scored and the best one kept, as in `private_runs`; a fitted line (the choice) turns what
the stages found into hyperparameters of one final private training. Stages and final training
compose; nothing is used that none of them has paid for.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from dpjax import accounting, checks
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.tuning import cautions, curator, statements
from dpjax.tuning.choices import BestOf
from dpjax.tuning.evaluations import private_runs
from dpjax.tuning.evaluations.candidate_runs import untrained
from dpjax.tuning.evaluations.private_runs import (
    Procedure,
    execute,
    named,
    read_executed,
    within,
)
from dpjax.tuning.job import Arrays, Job
from dpjax.tuning.problem.problem import Problem
from dpjax.tuning.problem.run_settings import (
    RunSetting,
    calibrated,
    the_one_setting,
    training_guarantee,
)
from dpjax.tuning.problem.space import ACCOUNTED, Law, Space
from dpjax.tuning.problem.task import Task
from dpjax.tuning.release import Release
from dpjax.tuning.scored_runs import Executed, written_executed
from dpjax.tuning.tuner import Progress, Rebuilt, Result

_STREAM_OF_PARTS = 21
"""Of a seeded `HostRandomness`, from which every stage and the final training have their own."""

STAGE, FINAL_TRAINING = "a candidate of stage {}", "the extrapolated candidate"
"""Which runs have the settings that a release states, in words."""

_ASSUMPTIONS = (
    "the search space, the law of K, the split between stages and every setting were fixed before "
    "the data was seen",
    "K of every stage, its candidates and scores, the console and the wall clock stay with the "
    "curator",
)


class LineChoice(Protocol):
    """Turns the winners of the stages into the hyperparameters of the final training."""

    def check(self, space: Space) -> None:
        """Refuses a space that it has nothing to extrapolate in."""

    def values(
        self,
        space: Space,
        winners: Sequence[Mapping[str, np.ndarray]],
        epsilons: Sequence[float],
        final_epsilon: float,
        steps: int,
    ) -> dict[str, np.ndarray]:
        """Returns the final training's hyperparameters, name -> (executions,), within the space.

        They are a function of public numbers and of `winners`, of each stage name -> (executions,),
        nan where a stage found nothing. `epsilons`, of one run of each stage, ascend.
        """

    def describe(self) -> dict[str, Any]:
        """Returns the public rule as JSON-able data."""


@dataclasses.dataclass(frozen=True)
class StagedRuns:
    """The evaluation: the best of K runs, K secret, at each of several small epsilons.

    `stage_shares` are the stages' epsilons over the target of the whole, ascending, in (0, 1), and
    `stage_noise` noise multipliers, descending, in their place. `score_noise` are stds on the sums
    of validation scores, in records; None: the least ones that add nothing to a run's cost.
    """

    repetitions: accounting.RepetitionLaw
    stage_shares: Sequence[float]
    stage_noise: Sequence[float] | None = None
    score_noise: Sequence[float] | None = None
    chunk_size: ClassVar[int] = 16

    def run(
        self,
        problem: Problem,
        choice: LineChoice,
        *,
        randomness: HostRandomness,
        chunk_size: int,
        progress: Progress | None,
        job: Job,
    ) -> Result | None:
        """See `tuner.Evaluation`."""
        if job.shard is not None:
            raise ValueError(
                "stages are trained one after another: drop the shard, and pass one job"
            )
        fixed = plan(problem, self, choice)
        started = time.time()
        ran = executed(
            fixed, randomness=randomness, chunk_size=chunk_size, progress=progress, job=job
        )
        return Result(
            release=_release(fixed, ran, randomness.secret),
            guarantee=fixed.guarantee,
            run_guarantee=fixed.training_guarantee,
            selection_guarantee=fixed.selection_guarantee,
            curator=_record(fixed, ran, time.time() - started),
        )

    def rebuild(self, claim: Mapping[str, Any], problem: Problem, choice: LineChoice) -> Rebuilt:
        """See `tuner.Evaluation`; all noise is read from the statement."""
        noise = tuple(float(one["noise_multiplier"]) for one in claim["training"][:-1])
        of_scores = claim["score"]["noise_standard_deviations_in_records"]
        runs = dataclasses.replace(
            self,
            stage_noise=noise,
            score_noise=None if problem.validation_is_public else tuple(map(float, of_scores)),
        )
        return Rebuilt(
            public_claim(plan(problem, runs, choice), **statements.common(claim)),
            lambda chosen: statements.is_public(chosen, problem.space),
        )


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything that is fixed, and public, before the data is touched.

    `repetitions` is the distribution of K of every stage, `setting` is of the final training;
    `selection_guarantee` is the cost of all stages together, `guarantee` that of everything.
    """

    problem: Problem
    choice: LineChoice
    repetitions: accounting.RepetitionLaw
    stages: tuple[Procedure, ...]
    setting: RunSetting
    selection_guarantee: accounting.Guarantee
    training_guarantee: accounting.Guarantee
    guarantee: accounting.Guarantee

    @property
    def task(self) -> Task:
        """Returns what is learned."""
        assert self.problem.task is not None  # It is no statement's.
        return self.problem.task

    @property
    def epsilons(self) -> list[float]:
        """Returns what training one run of each stage costs by itself: the line's public places."""
        delta = self.problem.delta
        return [training_guarantee(list(one.settings)).epsilon(delta) for one in self.stages]

    @property
    def final_epsilon(self) -> float:
        """Returns what the final training costs, by itself: where the line is read."""
        return self.training_guarantee.epsilon(self.problem.delta)


def plan(problem: Problem, runs: StagedRuns, choice: LineChoice) -> Plan:
    """Fixes the procedure and its cost, from public numbers only."""
    space, epsilon, delta = problem.space, problem.epsilon, problem.delta
    accounted = [name for name in ACCOUNTED if name in space.parameters]
    if accounted:
        raise ValueError(
            f"{accounted[0]} is the same for all runs of an extrapolation: pass it beside the "
            "space, not in it"
        )
    choice.check(space)
    problem.check()
    setting = the_one_setting(problem)
    targets, noises = _targets(runs, epsilon)
    deviations = _each(runs.score_noise, len(targets))
    selection = BestOf(runs.repetitions)
    stages = tuple(
        private_runs.plan_procedure(
            dataclasses.replace(
                problem,
                epsilon=target,
                run=dataclasses.replace(problem.run, noise_multiplier=noise),
            ),
            selection,
            score_noise=deviation,
        )
        for target, noise, deviation in zip(targets, noises, deviations, strict=True)
    )
    chosen = accounting.compose(*(_paid(stage) for stage in stages))
    if epsilon is not None:
        alone = chosen.epsilon(delta)
        if alone >= epsilon:
            raise ValueError(
                f"the stages alone cost epsilon {alone:.4g} of {epsilon:g}: pass smaller "
                "stage_shares, more stage_noise, or a larger epsilon"
            )
        (setting,) = calibrated(
            [setting], lambda run: accounting.compose(chosen, run), epsilon, delta
        )
    final = training_guarantee([setting])
    fixed = Plan(
        problem=problem,
        choice=choice,
        repetitions=runs.repetitions,
        stages=stages,
        setting=setting,
        selection_guarantee=chosen,
        training_guarantee=final,
        guarantee=accounting.compose(chosen, final),
    )
    places = fixed.epsilons
    if not all(one < other for one, other in zip(places, places[1:])):
        raise ValueError(
            "the stages' runs must cost ascending epsilons, for a line through them: pass "
            "ascending stage_shares, or descending stage_noise"
        )
    return fixed


def _targets(
    runs: StagedRuns, epsilon: float | None
) -> tuple[Sequence[float | None], Sequence[float | None]]:
    """Returns each stage's target epsilon and noise multiplier, of which one is None."""
    shares = checks.vector("stage_shares", runs.stage_shares).tolist()
    if len(shares) < 2 or not 0 < min(shares) <= max(shares) < 1:
        raise ValueError("stage_shares must be two or more numbers between 0 and 1, as in 0.1,0.25")
    if runs.stage_noise is not None:
        noises = checks.vector("stage_noise", runs.stage_noise).tolist()
        if len(noises) < 2 or not min(noises) > 0:
            raise ValueError("stage_noise must be two or more numbers above 0, as in 20,10")
        return [None] * len(noises), noises
    if epsilon is None:
        raise ValueError("stage_shares are of a target epsilon: pass one, or stage_noise instead")
    return [share * epsilon for share in shares], [None] * len(shares)


def _each(values: Sequence[float] | None, number: int) -> Sequence[float | None]:
    return [None] * number if values is None else values


def _paid(stage: Procedure) -> accounting.Guarantee:
    """Returns what a stage costs: training, scores and selection."""
    assert stage.guarantee is not None  # It was planned as private.
    return stage.guarantee


@dataclasses.dataclass(frozen=True)
class Ran:
    """What `executed` did, for the curator only.

    `chosen` are the final trainings' hyperparameters, name -> (executions,) float64.
    """

    stages: tuple[Executed, ...]
    chosen: Mapping[str, np.ndarray]
    final: Executed


class GivenSpace(Space):
    """A space whose candidates are already there, in order: those that an extrapolation names."""

    def __init__(self, space: Space, chosen: Mapping[str, np.ndarray]):
        super().__init__(dict(space.parameters))
        object.__setattr__(self, "chosen", dict(chosen))

    def sample(self, number: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Returns all of them; there is nothing to draw."""
        given: dict[str, np.ndarray] = vars(self)["chosen"]
        assert all(len(values) == number for values in given.values())
        return given

    def describe(self) -> dict:
        """Returns the candidates: a folder's final training is of these and no others."""
        given: dict[str, np.ndarray] = vars(self)["chosen"]
        return {name: given[name].tolist() for name in sorted(given)}


def executed(
    fixed: Plan,
    *,
    randomness: HostRandomness,
    executions: int = 1,
    chunk_size: int = 16,
    progress: Progress | None = None,
    job: Job = Job(),  # noqa: B008 (immutable)
) -> Ran:
    """Runs all stages and the final training, once or many times independently over.

    A release comes from one execution. Many serve audits.

    Formal guarantees:
      Every stage is one execution of `private_runs.execute`, which enforces what its price needs;
      the final training is one private run whose hyperparameters are a function of the stages'
      winners and of public numbers. Stages and final training share no key, no K and no noise: all
      are the operating system's or, under a seed, of seeds apart. In a job's folder each has a
      folder of its own, in which it draws once: what has been drawn is not drawn again, and a final
      training that was begun goes on only with the hyperparameters that it was begun with.

    `progress` is called with (runs done, runs in all) of each stage in turn.
    """

    def work(drawn: Arrays) -> Arrays:
        return _worked_out(fixed, randomness, executions, chunk_size, progress, job)

    outcome = job.once(dict, lambda: _facts(fixed, randomness, executions), work)
    assert outcome is not None  # It is no shard's.
    *stages, final = (read_executed(within(outcome, part), fixed.task) for part in _parts(fixed))
    return Ran(tuple(stages), within(outcome, _CHOSEN), final)


def _worked_out(
    fixed: Plan,
    randomness: HostRandomness,
    executions: int,
    chunk_size: int,
    progress: Progress | None,
    job: Job,
) -> Arrays:
    """Runs all stages and the final training; returns arrays."""
    common: dict[str, Any] = dict(executions=executions, chunk_size=chunk_size, progress=progress)
    ran: list[Executed] = []
    chosen: dict[str, np.ndarray] = {}
    for number, part in enumerate(_parts(fixed)):
        if part == _FINAL:
            chosen = fixed.choice.values(
                fixed.problem.space,
                [winners(stage) for stage in ran],
                fixed.epsilons,
                fixed.final_epsilon,
                fixed.setting.steps,
            )
        one = execute(
            _final_procedure(fixed, chosen) if part == _FINAL else fixed.stages[number],
            randomness=randomness.apart(_STREAM_OF_PARTS, number),
            job=job.inner(part),
            **common,
        )
        assert one is not None  # It is no shard's.
        ran.append(one)
    kept = named(_CHOSEN, chosen)
    for part, one in zip(_parts(fixed), ran, strict=True):
        kept |= named(part, written_executed(one))
    return kept


_FINAL, _CHOSEN = "final", "chosen"


def _parts(fixed: Plan) -> list[str]:
    """Returns the names of the stages and of the final training, for folders and arrays."""
    return [f"stage_{number + 1}" for number in range(len(fixed.stages))] + [_FINAL]


def _facts(fixed: Plan, randomness: HostRandomness, executions: int) -> dict[str, Any]:
    """Returns what the whole depends on; JSON-able, by name."""
    return private_runs.facts_of(_final_procedure(fixed, {}), randomness, executions) | {
        "method": "stages, then one training",
        "stages": [
            [[dataclasses.astuple(setting) for setting in stage.settings], stage.score_noise]
            for stage in fixed.stages
        ],
        "law of K": fixed.repetitions.to_dict(),
        "line": fixed.choice.describe(),
        "search space": fixed.problem.space.describe(),
    }


def winners(ran: Executed) -> dict[str, np.ndarray]:
    """Returns the hyperparameters of each execution's winner, (executions,); nan for none."""
    best = ran.best
    found = (np.asarray(best.candidate) >= 0) & np.isfinite(best.score)
    where = np.where(found, best.candidate, 0)
    return {
        name: np.where(found, np.append(values, np.nan)[where], np.nan)
        for name, values in ran.hyperparameters.items()
    }


def _final_procedure(fixed: Plan, chosen: Mapping[str, np.ndarray]) -> Procedure:
    """Returns one private run of what was extrapolated, on all records, without a score."""
    return private_runs.final_run(
        dataclasses.replace(fixed.problem, space=GivenSpace(fixed.problem.space, chosen)),
        fixed.setting,
        fixed.training_guarantee,
        fixed.guarantee,
    )


def middle(law: Law) -> float:
    """Returns the public default of a hyperparameter: the middle of its distribution."""
    return float(law.grid(1)[0])


def _release(fixed: Plan, ran: Ran, secret: bool) -> Release:
    """Returns what may leave: the final training's parameters, its hyperparameters, the claim."""
    params = ran.final.best.output(0)
    if not np.isfinite(ran.final.best.score[0]):
        params = untrained(fixed.task)
        cautions.of_untrained("the final training is not finite")
    claim = public_claim(fixed, secret)
    chosen = {name: float(ran.chosen[name][0]) for name in sorted(ran.chosen)}
    return Release(params=params, hyperparameters=chosen, statement=claim)


def _record(fixed: Plan, ran: Ran, seconds: float) -> curator.CuratorRecord:
    """Returns what stays with the curator: the candidates of all stages, in the stages' order."""
    task = fixed.task
    counts = [int(stage.counts[0]) for stage in ran.stages]
    last = int(ran.stages[-1].best.candidate[0])
    return curator.CuratorRecord(
        number_of_candidates=sum(counts),
        winner=last if last < 0 else sum(counts[:-1]) + last,
        hyperparameters={
            name: np.concatenate([stage.hyperparameters[name] for stage in ran.stages])
            for name in sorted(fixed.problem.space.parameters)
        },
        scores=np.concatenate([stage.scores for stage in ran.stages]) / task.validation.public_size,
        accuracies=np.concatenate([stage.units for stage in ran.stages])
        / (task.units * max(task.validation.number, 1)),
        seconds=seconds,
        details={
            "candidates_of_stages": counts,
            "winners_of_stages": [int(stage.best.candidate[0]) for stage in ran.stages],
            "extrapolated": {name: float(ran.chosen[name][0]) for name in sorted(ran.chosen)},
            "final_model_validation_accuracy": float(ran.final.units[0])
            / (task.units * max(task.validation.number, 1)),
        },
    )


def public_claim(
    fixed: Plan, secret: bool, versions: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Returns what the release of a plan states, from public text and numbers alone."""
    delta = fixed.problem.delta
    settings = [(one.settings[0], STAGE.format(n + 1)) for n, one in enumerate(fixed.stages)]
    settings.append((fixed.setting, FINAL_TRAINING))
    stds = [stage.score_noise for stage in fixed.stages]
    claim = statements.written(
        **statements.of_problem(fixed.problem),
        guarantee=fixed.guarantee,
        selection=fixed.choice.describe()
        | {
            "law_of_K": fixed.repetitions.to_dict(),
            "stages": len(fixed.stages),
            "epsilon_of_a_run_of_each_stage": fixed.epsilons,
            "epsilon_of_the_final_run": fixed.final_epsilon,
        },
        score=statements.of_noisy_scores(fixed.problem)
        | {"noise_standard_deviations_in_records": stds},
        settings=[statements.of_setting(setting, of) for setting, of in settings],
        randomness_is_secret=secret,
        assumptions=_ASSUMPTIONS,
        versions=versions,
    )
    return claim | {
        "epsilon_of_parts": {
            "each_stage_alone": [_paid(stage).epsilon(delta) for stage in fixed.stages],
            "selection_alone": fixed.selection_guarantee.epsilon(delta),
            "final_training_alone": fixed.final_epsilon,
            "a_private_validation_record_pays_for": "the stages alone",
        }
    }
