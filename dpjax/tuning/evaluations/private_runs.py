"""Private runs: a secret number of candidates, each trained by DP-SGD and scored with noise.

`PrivateRuns` is the evaluation of `random_repetitions` and `threshold_stopping`: `plan_procedure`
fixes everything with its cost, `execute` draws, trains and chooses, and what may leave is stated.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import numpy as np

from dpjax import accounting, checks, training
from dpjax.randomness import keys as key_streams
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.tuning import cautions, curator, statements
from dpjax.tuning.choices import BestOf, RunChoice
from dpjax.tuning.evaluations.candidate_runs import trained_runs, untrained
from dpjax.tuning.job import Arrays, Job
from dpjax.tuning.problem.problem import Problem
from dpjax.tuning.problem.run_settings import (
    RunSetting,
    check_score_noise,
    count_guarantee,
    meet_target,
    noise_on_training_scores,
    run_settings,
    training_guarantee,
    validation_noise,
)
from dpjax.tuning.problem.space import Space
from dpjax.tuning.problem.task import Task
from dpjax.tuning.release import Release
from dpjax.tuning.scored_runs import Executed, Selection, draw, merged, written_executed
from dpjax.tuning.tuner import Optimizer, Progress, Rebuilt, Result


@dataclasses.dataclass(frozen=True)
class PrivateRuns:
    """The evaluation: runs of candidates drawn from the space, each with a private score.

    `score_noise` is the std of the discrete Gaussian on the sum of validation scores (the count of
    correct predictions), in records; None: the least one that adds nothing to the total. With
    `not_private` noise multiplier 0 is allowed, and nothing is guaranteed. `score_on_training`
    scores candidates on the records they are trained on: it costs more than records of their own,
    and the task's validation records are not used.
    """

    score_noise: float | None = None
    not_private: bool = False
    score_on_training: bool = False
    chunk_size: ClassVar[int] = 16

    def run(
        self,
        problem: Problem,
        choice: RunChoice,
        *,
        randomness: HostRandomness,
        chunk_size: int,
        progress: Progress | None,
        job: Job,
    ) -> Result | None:
        """See `tuner.Evaluation`; `choice` is a `choices.RunChoice`."""
        procedure = self.planned(problem, choice)
        started = time.time()
        executed = execute(
            procedure,
            randomness=randomness,
            chunk_size=chunk_size,
            progress=progress,
            job=job,
        )
        if executed is None:
            return None
        task = procedure.task
        return Result(
            release=_release(procedure, executed, randomness.secret),
            guarantee=procedure.guarantee,
            run_guarantee=procedure.run_guarantee,
            curator=curator.CuratorRecord(
                number_of_candidates=int(executed.counts[0]),
                winner=int(executed.best.candidate[0]),
                hyperparameters=executed.hyperparameters,
                scores=executed.scores / task.validation.public_size,
                accuracies=executed.units / (task.units * max(task.validation.number, 1)),
                seconds=time.time() - started,
            ),
        )

    def planned(self, problem: Problem, choice: RunChoice) -> Procedure:
        """Returns what is run; see `plan_procedure`."""
        return plan_procedure(
            problem,
            choice,
            score_noise=self.score_noise,
            not_private=self.not_private,
            score_on_training=self.score_on_training,
        )

    def rebuild(self, claim: Mapping[str, Any], problem: Problem, choice: RunChoice) -> Rebuilt:
        """See `tuner.Evaluation`; the noise of scores is read from the statement."""
        score, public = claim["score"], problem.validation_is_public
        procedure = plan_procedure(
            problem,
            choice,
            score_noise=None if public else float(score["noise_standard_deviation_in_records"]),
            score_on_training=score.get("records") == statements.THE_TRAINING_RECORDS,
        )
        return Rebuilt(
            public_claim(procedure, **statements.common(claim)),
            lambda chosen: statements.drawn_from(problem.space, chosen),
        )


@dataclasses.dataclass(frozen=True)
class Procedure:
    """Everything that is fixed, and public, before the data is touched.

    `score_noise` is as of `PrivateRuns`; 0 for public validation data or a run that is not private.
    `run_guarantee` is one candidate's with its score, `guarantee` the release's; both are None if
    not private.
    """

    problem: Problem
    selection: RunChoice
    settings: tuple[RunSetting, ...]
    score_noise: float
    run_guarantee: accounting.Guarantee | None
    guarantee: accounting.Guarantee | None
    score_on_training: bool = False

    @property
    def task(self) -> Task:
        """Returns what is learned."""
        assert self.problem.task is not None  # It is no statement's.
        return self.problem.task

    @property
    def space(self) -> Space:
        """Returns the distribution candidates are drawn from."""
        return self.problem.space

    @property
    def optimizer(self) -> Optimizer:
        """Returns hyperparameters -> optax transformation."""
        assert self.problem.optimizer is not None
        return self.problem.optimizer

    @property
    def clipping(self) -> training.ClipRule:
        """Returns how gradients are clipped."""
        return self.problem.run.clipping


def plan_procedure(
    problem: Problem,
    selection: RunChoice,
    *,
    score_noise: float | None = None,
    not_private: bool = False,
    score_on_training: bool = False,
) -> Procedure:
    """Fixes the procedure and its cost, from public numbers only; the noise meets the target.

    The other arguments are as of `PrivateRuns`.
    """
    epsilon, delta = problem.epsilon, problem.delta
    check_score_noise(score_noise, problem.units)
    checks.flag("not_private", not_private)
    checks.flag("score_on_training", score_on_training)
    if score_on_training:
        problem = problem.scored_on_training()
    charged = functools.partial(
        _scored,
        units=problem.units,
        validation_is_public=problem.validation_is_public,
        score_noise=score_noise,
        composed_at=delta if score_on_training else None,
    )
    settings = run_settings(problem)
    given = not any(math.isnan(setting.noise_multiplier) for setting in settings)
    if given == (epsilon is not None):
        raise ValueError(
            "pass either a target epsilon or noise multipliers (in the space, or "
            "run=RunOptions(noise_multiplier=...)), not " + ("both" if given else "neither")
        )
    problem.check()
    fixed = functools.partial(
        Procedure,
        problem,
        selection,
        score_on_training=score_on_training,
    )
    if not_private and max(setting.noise_multiplier for setting in settings) > 0:
        raise ValueError("not_private trains without noise: drop it, or the noise_multiplier")
    if not_private:
        return fixed(settings=tuple(settings), score_noise=0.0, run_guarantee=None, guarantee=None)
    if epsilon is None and min(setting.noise_multiplier for setting in settings) <= 0:
        raise ValueError(
            "noise_multiplier 0 gives no privacy: pass a positive one, or say not_private"
        )

    def price(
        settings: list[RunSetting],
    ) -> tuple[accounting.Guarantee, tuple[accounting.Guarantee, float]]:
        run, noise = charged(settings)
        return selection.guarantee(run), (run, noise)

    settings, (guarantee, (run, noise)) = meet_target(
        settings, problem, selection.guarantee, selection.guarantee, price, score_noise
    )
    return fixed(
        settings=tuple(settings), score_noise=noise, run_guarantee=run, guarantee=guarantee
    )


def _scored(
    settings: list[RunSetting],
    *,
    units: int,
    validation_is_public: bool,
    score_noise: float | None,
    composed_at: float | None,
) -> tuple[accounting.Guarantee, float]:
    """Returns the cost of one candidate with its score, and the score's noise, in records.

    Where a record may be trained on and scored, the two compose; `composed_at` is then the delta
    at which the noise is chosen.
    """
    train = training_guarantee(settings)
    if validation_is_public:
        return train, 0.0
    deviation = score_noise
    if composed_at is not None:
        relation = settings[0].relation
        if deviation is None:
            deviation = noise_on_training_scores(train, relation, composed_at, units)
        return accounting.compose(train, count_guarantee(deviation, relation, units)), deviation
    if deviation is None:
        deviation = validation_noise(train, settings[0].relation, units)
    count = count_guarantee(deviation, settings[0].relation, units)
    return accounting.parallel(train, count), deviation


def final_run(
    problem: Problem,
    setting: RunSetting,
    run: accounting.Guarantee | None,
    total: accounting.Guarantee | None,
) -> Procedure:
    """Returns one run of what the space draws, or names, without a score."""
    return Procedure(
        problem=problem,
        selection=BestOf(accounting.Fixed(1)),
        settings=(setting,),
        score_noise=0.0,
        run_guarantee=run,
        guarantee=total,
    )


def execute(
    procedure: Procedure,
    *,
    randomness: HostRandomness,
    executions: int = 1,
    chunk_size: int = 16,
    progress: Callable[[int, int], None] | None = None,
    job: Job = Job(),  # noqa: B008 (immutable)
) -> Executed | None:
    """Runs the procedure, once or many times independently over.

    A release comes from one execution. Many serve audits: they share compilation and device calls,
    nothing else.

    Formal guarantees:
      What is computed for a candidate depends on its own key and hyperparameters, the data,
      `chunk_size` and the placement, never on K or on another candidate. K, keys and scores' noise
      come from `randomness`; each candidate has its own key. Jobs that share a folder, and
      processes, share ONE draw of K and candidates; each candidate is trained from its own key, by
      one of them or, after an interruption, again to the same result; and one selection looks at
      all, once each is known to have been trained: the cost is that of one execution. The draw in a
      folder serves one procedure (records, traced programs and settings are compared by hash), one
      process or one set of shards at a time, and one selection, after which it is no more: two
      releases never share K, keys or noise, as long as the folder is not copied.

    A shard leaves its results in the job's folder and returns None. Where the folder holds a
    consumed draw of this procedure, what was executed then is returned.
    """

    def work(drawn: Arrays) -> Arrays | None:
        return _worked_out(procedure, drawn, executions, chunk_size, progress, job)

    outcome = job.once(
        lambda: draw_of(procedure, randomness, executions),
        lambda: facts_of(procedure, randomness, executions),
        work,
    )
    return None if outcome is None else read_executed(outcome, procedure.task)


def _worked_out(
    procedure: Procedure,
    drawn: Arrays,
    executions: int,
    chunk_size: int,
    progress: Callable[[int, int], None] | None,
    job: Job,
) -> Arrays | None:
    """Returns what `execute` keeps of a draw; None for a shard."""
    task = procedure.task
    keys = jax.random.wrap_key_data(drawn["keys"], impl=key_streams.IMPLEMENTATION)
    selection = Selection(procedure.selection, drawn, task.validation.public_size, task.units)
    # Candidates of one setting train in order, so that a search for the first may end early.
    one_setting = len(procedure.settings) == 1
    members = job.share(len(selection.reported))
    for indices, outputs in trained_runs(
        procedure, selection.hyperparameters, keys, members, chunk_size, job
    ):
        selection.report(indices, outputs["units"], outputs["finite"], outputs["params"])
        if progress is not None:
            progress(int(np.sum(selection.reported)), len(members))
        if procedure.selection.in_order and one_setting and np.isfinite(selection.best.score).all():
            selection.reported[members] = True  # those after the winner were not needed
            break
    shares = job.collected(selection.share(), drawn)
    return None if shares is None else written_executed(merged(shares, drawn, _structure(task)))


def read_executed(arrays: Arrays, task: Task) -> Executed:
    """Reads what `written_executed` wrote of runs on a task."""
    return merged([arrays], arrays, _structure(task))


def named(part: str, arrays: Mapping[str, np.ndarray]) -> Arrays:
    """Returns arrays under names of their part of an outcome; `within` reads them."""
    return {f"{part}/{name}": array for name, array in arrays.items()}


def within(outcome: Arrays, part: str) -> Arrays:
    """Returns the arrays of one part of an outcome."""
    found = (name for name in outcome if name.startswith(f"{part}/"))
    return {name.removeprefix(f"{part}/"): outcome[name] for name in found}


def _structure(task: Task) -> Any:
    return jax.tree.structure(jax.eval_shape(task.initial, jax.random.key(0)))


def draw_of(
    procedure: Procedure, randomness: HostRandomness, executions: int
) -> dict[str, np.ndarray]:
    """Draws K of every execution, and every candidate's hyperparameters, key and score noise."""
    drawn = draw(
        procedure.selection,
        procedure.space,
        randomness,
        score_noise=procedure.score_noise * procedure.task.units,
        executions=executions,
    )
    total = len(drawn["noise"])
    keys = np.zeros((0, 2), np.uint32)
    if total:
        keys = np.asarray(jax.random.key_data(training.candidate_keys(total, seed=randomness.seed)))
    return drawn | {"keys": keys}


def facts_of(procedure: Procedure, randomness: HostRandomness, executions: int) -> dict[str, Any]:
    """Returns what a draw, and what is trained from it, depend on; JSON-able, by name."""
    selection = procedure.selection
    return {
        "number of executions": executions,
        "settings": [dataclasses.astuple(setting) for setting in procedure.settings],
        "clipping": procedure.clipping.describe(),
        "search space": procedure.space.describe(),
        "selection": [
            selection.describe(),
            type(selection).__name__,
            selection.expected_runs,
        ],
        "score noise": procedure.score_noise,
        "seed": randomness.seed,
    } | procedure.problem.inspected.facts()


def _release(procedure: Procedure, executed: Executed, secret: bool) -> Release:
    """Returns what may leave: the winner, or what no record influenced, and the claim."""
    task = procedure.task
    winner = executed.released
    names = sorted(executed.hyperparameters)
    if winner is None:
        # No candidate, or none that is finite: what comes out must not depend on data.
        params = untrained(task)
        hyperparameters = dict.fromkeys(names)
        cautions.of_untrained("no run could be released (none was good enough, or none was drawn)")
    else:
        params = executed.best.output(0)
        hyperparameters = statements.rounded(
            {name: float(executed.hyperparameters[name][winner]) for name in names}
        )
    claim = public_claim(procedure, secret)
    return Release(params=params, hyperparameters=hyperparameters, statement=claim)


def public_claim(
    procedure: Procedure, secret: bool, versions: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Returns what the release of a procedure states, from public text and numbers alone."""
    score = statements.of_noisy_scores(procedure.problem, on_training=procedure.score_on_training)
    return statements.written(
        **statements.of_problem(procedure.problem),
        guarantee=procedure.guarantee,
        selection=procedure.selection.describe(),
        score=score | {"noise_standard_deviation_in_records": procedure.score_noise},
        settings=[statements.of_setting(setting) for setting in procedure.settings],
        randomness_is_secret=secret,
        versions=versions,
    )
