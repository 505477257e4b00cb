"""Private runs: a secret number of candidates, each trained by DP-SGD and scored with noise.

`plan_runs` fixes everything with its cost, and `execute` draws, trains and selects.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from dpjax import accounting, checks, training
from dpjax.randomness import keys as key_streams
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.tuning.job import Arrays, Job
from dpjax.tuning.problem.inspection import clipping_facts
from dpjax.tuning.problem.problem import Material, Problem
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
from dpjax.tuning.problem.task import Task
from dpjax.tuning.runner import trained_runs
from dpjax.tuning.selection import (
    BestOf,
    Executed,
    RunChoice,
    Selection,
    draw,
    merged,
    written_executed,
    written_hyperparameters,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that is fixed, and public, before the data is touched; a tuner adds its own.

    `run_guarantee` is the cost of one private run with its score, `selection_guarantee` that of the
    selection alone where a training follows it, `guarantee` that of the release. The first and the
    last are None if the run is not private.
    """

    problem: Problem
    run_guarantee: accounting.Guarantee | None
    guarantee: accounting.Guarantee | None
    selection_guarantee: accounting.Guarantee | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunsPlan(Plan):
    """A plan of private runs, of which one is selected.

    `settings` are those that a candidate may have. `score_noise` is the std of the discrete
    Gaussian on the sum of validation scores (the count of correct predictions), in records; 0 for
    public validation data or a run that is not private. `chosen`, name -> (executions,) float64,
    are each execution's hyperparameters where they were chosen before: one run is trained.
    """

    selection: RunChoice
    settings: tuple[RunSetting, ...]
    score_noise: float
    score_on_training: bool = False
    chosen: Mapping[str, np.ndarray] | None = None


def plan_runs(
    problem: Problem,
    selection: RunChoice,
    *,
    score_noise: float | None = None,
    not_private: bool = False,
    score_on_training: bool = False,
) -> RunsPlan:
    """Plans private runs with their cost, from public numbers only; the noise meets the target.

    `score_noise` None stands for the smallest one that adds nothing to the total. With
    `not_private` noise multiplier 0 is allowed, and nothing is guaranteed. `score_on_training`
    scores candidates on the records they are trained on: it costs more than scoring on other
    records, and the task's validation records are not used.
    """
    epsilon, delta = problem.epsilon, problem.delta
    check_score_noise(score_noise, problem.units)
    checks.flag("not_private", not_private)
    checks.flag("score_on_training", score_on_training)
    if score_on_training:
        problem = problem.scored_on_training()
    charged = functools.partial(
        _cost_with_score,
        units=problem.units,
        validation_is_public=problem.validation_is_public,
        score_noise=score_noise,
        composed_at=delta if score_on_training else None,
    )
    settings = run_settings(problem)
    # A noise multiplier that is still to be calibrated is nan.
    given = not any(math.isnan(setting.noise_multiplier) for setting in settings)
    if given == (epsilon is not None):
        raise checks.Refused(
            *("pass either ", ("epsilon",), " or noise multipliers (in the space, or "),
            ("noise_multiplier", ..., "run=RunOptions({})"),
            "), not both" if given else "): neither is given",
        )
    fixed = functools.partial(
        RunsPlan, problem=problem, selection=selection, score_on_training=score_on_training
    )
    # Neither may be taken for the other: noise without a guarantee, or a guarantee without noise.
    if not_private and max(setting.noise_multiplier for setting in settings) > 0:
        words = " trains without noise: drop it, or the "
        raise checks.Refused(("not_private",), words, ("noise_multiplier",))
    if not_private:
        return fixed(settings=tuple(settings), score_noise=0.0, run_guarantee=None, guarantee=None)
    if epsilon is None and min(setting.noise_multiplier for setting in settings) <= 0:
        words = " gives no privacy: pass a positive one, or "
        raise checks.Refused(("noise_multiplier", 0), words, ("not_private", True))

    def price(
        settings: list[RunSetting],
    ) -> tuple[accounting.Guarantee, tuple[accounting.Guarantee, float]]:
        run, noise = charged(settings)
        return _priced(selection, run), (run, noise)

    selected = functools.partial(_priced, selection)
    settings, (guarantee, (run, noise)) = meet_target(
        settings, problem, selected, selected, price, score_noise
    )
    return fixed(
        settings=tuple(settings), score_noise=noise, run_guarantee=run, guarantee=guarantee
    )


def _priced(selection: RunChoice, run: accounting.Guarantee) -> accounting.Guarantee:
    """Returns the cost of a selection among runs; refuses what is none."""
    found = selection.guarantee(run)
    if not isinstance(found, accounting.Guarantee):
        raise ValueError(
            f"{type(selection).__name__}.guarantee(run) must return an accounting.Guarantee, made "
            "of `run`, as in accounting.repeat(run, 2)"
        )
    return found


def _cost_with_score(
    settings: list[RunSetting],
    *,
    units: int,
    validation_is_public: bool,
    score_noise: float | None,
    composed_at: float | None,
) -> tuple[accounting.Guarantee, float]:
    """Returns the cost of training and scoring one candidate, and the score's noise, in records.

    If training and scoring share records, their costs compose, and the score's noise is chosen at
    delta `composed_at`; otherwise `composed_at` is None.
    """
    train = training_guarantee(settings)
    if validation_is_public:
        return train, 0.0
    std = score_noise
    if composed_at is not None:
        relation = settings[0].relation
        if std is None:
            std = noise_on_training_scores(train, relation, composed_at, units)
        return accounting.compose(train, count_guarantee(std, relation, units)), std
    if std is None:
        std = validation_noise(train, settings[0].relation, units)
    count = count_guarantee(std, settings[0].relation, units)
    return accounting.parallel(train, count), std


def final_run(plan: Plan, setting: RunSetting, chosen: Mapping[str, np.ndarray]) -> RunsPlan:
    """Plans the final private training of a plan: one run, without a score.

    `chosen`, name -> (executions,) float64, are each execution's hyperparameters.
    """
    return RunsPlan(
        problem=plan.problem,
        selection=BestOf(accounting.Fixed(1)),
        settings=(setting,),
        score_noise=0.0,
        run_guarantee=plan.run_guarantee,
        guarantee=plan.guarantee,
        chosen=chosen,
    )


def execute(
    plan: RunsPlan,
    material: Material,
    *,
    randomness: HostRandomness,
    executions: int = 1,
    chunk_size: int = 16,
    progress: Callable[[int, int], None] | None = None,
    job: Job = Job(),  # noqa: B008 (immutable)
) -> Executed | None:
    """Runs the procedure `executions` times, each independent of the others.

    A release comes from one execution. Audits use many, which share compiled programs and device
    calls, nothing else.

    Formal guarantees:
      What is computed for a candidate depends on its own key and hyperparameters, the data,
      `chunk_size` and the placement, never on K or on another candidate. K, keys and scores' noise
      come from `randomness`; each candidate has its own key. Jobs that share a folder, and
      processes, share ONE draw of K and candidates; each candidate is trained from its own key, by
      one of them or, after an interruption, again to the same result; and one selection looks at
      all, once each is known to have been trained: the cost is that of one execution. The draw in a
      folder serves one procedure (records, traced programs and settings are compared by hash), one
      process or one set of shards at a time, and one selection, after which it is deleted: two
      releases never share K, keys or noise, as long as the folder is not copied.

    A shard leaves its results in the job's folder and returns None. If the folder's draw was
    consumed already, the outcome that was stored with it is returned.
    """
    outcome = job.once(
        lambda: facts_of(plan, material, randomness, executions),
        lambda: draw_of(plan, randomness, executions),
        lambda drawn: _train_and_select(plan, material, drawn, chunk_size, progress, job),
    )
    return None if outcome is None else read_executed(outcome, material.task)


def _train_and_select(
    plan: RunsPlan,
    material: Material,
    drawn: Arrays,
    chunk_size: int,
    progress: Callable[[int, int], None] | None,
    job: Job,
) -> Arrays | None:
    """Trains a draw's candidates and selects one; returns the outcome, or None for a shard."""
    task = material.task
    keys = jax.random.wrap_key_data(drawn["keys"], impl=key_streams.IMPLEMENTATION)
    selection = Selection(plan.selection, drawn, task.validation.public_size, task.units)
    # Candidates of one setting train in order, so that a search for the first may end early.
    one_setting = len(plan.settings) == 1
    members = job.share(len(selection.reported))
    for indices, outputs in trained_runs(
        plan, material, selection.hyperparameters, keys, members, chunk_size, job
    ):
        selection.report(indices, outputs["units"], outputs["finite"], outputs["params"])
        if progress is not None:
            progress(int(np.sum(selection.reported)), len(members))
        if plan.selection.in_order and one_setting and np.isfinite(selection.best.score).all():
            selection.reported[members] = True  # Those after the winner are not needed.
            break
    shares = job.collected(selection.share(), drawn)
    return None if shares is None else written_executed(merged(shares, drawn, _structure(task)))


def read_executed(arrays: Arrays, task: Task) -> Executed:
    """Reads the outcome of runs on a task from the arrays of `written_executed`."""
    return merged([arrays], arrays, _structure(task))


def train_finally(
    plan: RunsPlan,
    material: Material,
    *,
    randomness: HostRandomness,
    executions: int,
    chunk_size: int,
    job: Job,
) -> Executed:
    """Runs the final training of each execution: without shards, and one alone without lanes."""
    alone = executions == 1
    ran = execute(
        plan,
        material,
        randomness=randomness,
        executions=executions,
        chunk_size=1 if alone else chunk_size,
        job=dataclasses.replace(job.of_one_run if alone else job, shard=None),
    )
    assert ran is not None  # Only a shard returns None.
    return ran


def _structure(task: Task) -> Any:
    """Returns the pytree structure of a task's parameters."""
    return jax.tree.structure(jax.eval_shape(task.initial, jax.random.key(0)))


def draw_of(plan: RunsPlan, randomness: HostRandomness, executions: int) -> dict[str, np.ndarray]:
    """Draws K of every execution, and every candidate's hyperparameters, key and score noise."""
    if plan.chosen is not None:
        # One run of each execution, whose score has no noise and decides nothing.
        assert plan.score_noise == 0.0
        assert all(len(values) == executions for values in plan.chosen.values())
        drawn = {"counts": np.ones(executions, np.int64), "noise": np.zeros(executions)}
        drawn |= written_hyperparameters(plan.chosen)
    else:
        noise = plan.score_noise * plan.problem.units
        space = plan.problem.space
        drawn = draw(plan.selection, space, randomness, score_noise=noise, executions=executions)
    total = len(drawn["noise"])
    keys = np.zeros((0, 2), np.uint32)
    if total:
        keys = np.asarray(jax.random.key_data(training.candidate_keys(total, seed=randomness.seed)))
    return drawn | {"keys": keys}


def facts_of(
    plan: RunsPlan, material: Material, randomness: HostRandomness, executions: int
) -> dict[str, Any]:
    """Returns all that a draw and the training from it depend on, by name, for JSON."""
    selection = plan.selection
    return {
        "number of executions": executions,
        "settings": [dataclasses.astuple(setting) for setting in plan.settings],
        "clipping": clipping_facts(plan.problem.clipping, material.task),
        "search space": plan.problem.space.describe(),
        "chosen hyperparameters": {
            name: values.tolist() for name, values in (plan.chosen or {}).items()
        },
        "selection": [selection.describe(), type(selection).__name__, selection.expected_runs],
        "score noise": plan.score_noise,
        "seed": randomness.seed,
    } | material.facts
