"""Runs a fixed procedure: draws K and the candidates, trains and scores them, keeps the best."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import training
from dpjax.randomness import integer_laws
from dpjax.randomness import keys as key_streams
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.tuning import curator, described, programs
from dpjax.tuning.evaluations.best_of_runs import BestOfRuns
from dpjax.tuning.evaluations.candidate_runs import (
    config_of_setting,
    hyperparameters_of_runs,
    judged,
    run_of,
)
from dpjax.tuning.evaluations.procedure import Optimizer, Procedure
from dpjax.tuning.job import Arrays, Job, put_together, share_arrays
from dpjax.tuning.problem.run_settings import RunSetting
from dpjax.tuning.problem.task import Task

PyTree = Any

# Numbers of a seeded `HostRandomness`'s streams, nothing to do with the named streams of a
# candidate's key; without a seed every draw is the operating system's.
_STREAM_OF_K, _STREAM_OF_SPACE, _STREAM_OF_SCORES = 1, 2, 3

_ONLY_TO_TRAIN = ("keys", "noise")
"""What of a draw nobody needs, and nobody may see, once it has decided a release."""


@dataclasses.dataclass(frozen=True)
class Executed:
    """What `execute` did; the curator's.

    Attributes:
      best: the winner of each execution.
      counts: (executions,) int, the realised K of each.
      hyperparameters: for each name (candidates,) float64, all executions' candidates in order.
      correct: (candidates,) int, exact counts of correct validation predictions.
      scores: (candidates,) float64, the counts with noise; -inf for failed candidates and for those
        that a search in order did not come to.
    """

    best: BestOfRuns
    counts: np.ndarray
    hyperparameters: dict[str, np.ndarray]
    correct: np.ndarray
    scores: np.ndarray


def execute(
    task: Task,
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

    Args:
      task: what to learn.
      procedure: what was fixed beforehand.
      randomness: where K, the candidates, their keys and the scores' noise come from.
      executions: how many independent times.
      chunk_size: candidates trained at once; the last chunk is filled up.
      progress: called with (candidates done, candidates in all this process trains).
      job: where and in which shares the candidates are trained.

    Returns:
      What was executed; None for a shard, which leaves its results in the job's folder. Where the
      job's folder holds a spent draw of this procedure: what was executed then.

    Raises:
      ValueError: for a folder that is another procedure's, another process's or another user's, or
        holds something damaged; one line that says which.
    """
    with job.held():
        return _executed(task, procedure, randomness, executions, chunk_size, progress, job)


def _executed(
    task: Task,
    procedure: Procedure,
    randomness: HostRandomness,
    executions: int,
    chunk_size: int,
    progress: Callable[[int, int], None] | None,
    job: Job,
) -> Executed | None:
    """`execute`, where no other process works in the job's folder."""
    drawn, spent = job.agreed(
        lambda: _drawn(procedure, randomness, executions),
        lambda: _facts(task, procedure, randomness, executions),
    )
    structure = jax.tree.structure(jax.eval_shape(task.initial, jax.random.key(0)))
    if job.share_is_done(drawn) or (spent and job.shard is not None and not job.merges):
        return None
    if spent:
        # Everything was trained and the selection made; only what came out had not left yet.
        return _put_together([drawn], procedure, drawn, structure)
    noise = drawn["noise"]
    counts = drawn["counts"]
    owners = np.repeat(np.arange(executions), counts)
    total = len(owners)
    hyperparameters = _hyperparameters(procedure, drawn)
    keys = jax.random.wrap_key_data(drawn["keys"], impl=key_streams.IMPLEMENTATION)
    correct = np.zeros(total, dtype=np.int64)
    scores = np.full(total, -np.inf)
    trained = np.zeros(total, dtype=bool)
    best = BestOfRuns(executions)
    # Candidates of one setting train in order, so that a search for the first may end early.
    one_setting = len(procedure.settings) == 1
    members = job.share(total)
    for indices, outputs in _trained(
        task, procedure, hyperparameters, keys, members, chunk_size, job
    ):
        correct[indices] = outputs["correct"]
        scores[indices] = np.where(outputs["finite"], outputs["correct"] + noise[indices], -np.inf)
        # Scores are ranked as accuracies over the public size.
        ranks = procedure.selection.rank(scores[indices] / task.validation.public_size)
        best.update(owners[indices], indices, ranks, outputs["params"])
        trained[indices] = True
        if progress is not None:
            progress(int(np.sum(trained)), len(members))
        if procedure.selection.in_order and one_setting and np.isfinite(best.score).all():
            trained[members] = True  # those after the winner were not needed
            break
    # What stands in a share was trained, not merely meant to be: a merge counts it.
    shares = job.collected(share_arrays(np.flatnonzero(trained), correct, scores, best), drawn)
    if shares is None:
        return None
    executed = _put_together(shares, procedure, drawn, structure)
    whole = share_arrays(np.arange(total), executed.correct, executed.scores, executed.best)
    job.spend({name: drawn[name] for name in drawn if name not in _ONLY_TO_TRAIN} | whole)
    return executed


def _put_together(
    shares: list[Arrays], procedure: Procedure, drawn: Arrays, structure: Any
) -> Executed:
    """What was executed, from the results of all shares."""
    total = int(np.sum(drawn["counts"]))
    correct, scores = np.zeros(total, dtype=np.int64), np.full(total, -np.inf)
    best = put_together(shares, correct, scores, structure)
    return Executed(best, drawn["counts"], _hyperparameters(procedure, drawn), correct, scores)


def _hyperparameters(procedure: Procedure, drawn: Arrays) -> dict[str, np.ndarray]:
    return {name: drawn[f"hyperparameter_{name}"] for name in sorted(procedure.space.parameters)}


def _drawn(
    procedure: Procedure, randomness: HostRandomness, executions: int
) -> dict[str, np.ndarray]:
    """K of every execution, and every candidate's hyperparameters, key and score noise."""
    source = None if randomness.secret else randomness.generator(_STREAM_OF_K)
    counts = procedure.selection.draw(executions, source)
    total = int(np.sum(counts))
    noise = np.zeros(total)
    if procedure.score_noise > 0 and total:
        noise = integer_laws.discrete_gaussian(
            procedure.score_noise, total, randomness, _STREAM_OF_SCORES
        )
    hyperparameters = procedure.space.sample(total, randomness.generator(_STREAM_OF_SPACE))
    keys = np.zeros((0, 2), np.uint32)
    if total:
        keys = np.asarray(jax.random.key_data(training.candidate_keys(total, seed=randomness.seed)))
    return {"counts": counts, "noise": noise, "keys": keys} | {
        f"hyperparameter_{name}": values for name, values in hyperparameters.items()
    }


def _facts(
    task: Task, procedure: Procedure, randomness: HostRandomness, executions: int
) -> dict[str, Any]:
    """What a draw, and what is trained from it, depend on; JSON-able, by name."""
    selection = procedure.selection
    names = {*procedure.space.parameters, "clip_norm", "noise_multiplier", "lot_size", "steps"}
    return {
        "number of executions": executions,
        "settings": [dataclasses.astuple(setting) for setting in procedure.settings],
        "search space": procedure.space.describe(),
        "selection": [
            selection.describe(),
            type(selection).__name__,
            selection.expected_runs,
        ],
        "score noise": procedure.score_noise,
        "model": task.description,
        "seed": randomness.seed,
    } | facts_of_training(task, procedure.optimizer, names)


def facts_of_training(
    task: Task, optimizer: Optimizer, hyperparameters: Iterable[str]
) -> dict[str, Any]:
    """What a candidate's training and its score depend on, its own settings apart; for `Job`.

    Args:
      task: what is learned.
      optimizer: hyperparameters -> optax transformation.
      hyperparameters: names that a candidate is given.
    """
    parts = (task.train, task.validation)
    return programs.of_task(task, optimizer, hyperparameters) | {
        "optimizer's name": described.of_optimizer(optimizer),
        "trained parameters": described.trained_parameters(task),
        "records": curator.fingerprint([part.arrays for part in parts]),
        "numbers of records": [[part.public_size, part.size_bound] for part in parts],
    }


def _trained(
    task: Task,
    procedure: Procedure,
    hyperparameters: dict[str, np.ndarray],
    keys: jax.Array,
    members: np.ndarray,
    chunk_size: int,
    job: Job,
) -> Iterator[tuple[np.ndarray, PyTree]]:
    """Trains the members; yields (indices, outputs)."""
    if not len(members):
        return
    placement = _placement(task, procedure, chunk_size, job.placement)
    if job.folder is None and len(procedure.settings) == 1:
        yield from _alike(task, procedure, hyperparameters, keys, members, placement)
    else:
        yield from _unlike(task, procedure, hyperparameters, keys, members, placement, job)


def _placement(task: Task, procedure: Procedure, chunk_size: int, name: str) -> training.Placement:
    """The placement of a name; "auto" is measured on short runs of an invented candidate."""
    if name != "auto":
        return training.named_placement(name, chunk_size)
    setting = procedure.settings[0]
    config = config_of_setting(task, procedure.optimizer, setting)
    typical = procedure.space.sample(1, np.random.default_rng(0))
    told = hyperparameters_of_runs(typical, [setting])
    first = {name: values[0] for name, values in told.items()}
    options = training.placement_options(chunk_size)
    trial = training.Trial(
        lambda steps: run_of(task, dataclasses.replace(config, steps=steps)), setting.steps
    )
    return training.fastest_placement(trial, first, task.train.arrays, options)[0]


def _alike(
    task: Task,
    procedure: Procedure,
    hyperparameters: dict[str, np.ndarray],
    keys: jax.Array,
    members: np.ndarray,
    placement: training.Placement,
) -> Iterator[tuple[np.ndarray, PyTree]]:
    """Trains candidates of the one setting, in order."""
    (setting,) = procedure.settings
    # Whole chunks only: a program's shape, and with it the last bits of what it computes, must
    # not depend on K. Lanes that fill up have keys of their own and are dropped.
    fillers = -len(members) % placement.lanes
    lanes = np.append(members, np.full(fillers, members[-1]))
    values = {name: all_[lanes] for name, all_ in hyperparameters.items()}
    for positions, outputs in training.sweep(
        _candidate_run(task, procedure, setting),
        jnp.concatenate([keys[members], training.candidate_keys(fillers)]),
        hyperparameters_of_runs(values, [setting] * len(lanes)),
        (task.train.arrays, task.validation.arrays),
        chunk_size=placement.width,
        placement=placement,
    ):
        real = int(np.sum(positions < len(members)))
        yield members[positions[:real]], jax.tree.map(lambda leaf: leaf[:real], outputs)  # noqa: B023


def _unlike(
    task: Task,
    procedure: Procedure,
    hyperparameters: dict[str, np.ndarray],
    keys: jax.Array,
    members: np.ndarray,
    placement: training.Placement,
    job: Job,
) -> Iterator[tuple[np.ndarray, PyTree]]:
    """Trains candidates of several settings, or of one with checkpoints; the longest first."""
    settings = [None] * len(keys)
    for setting, having in _by_setting(procedure, hyperparameters, len(keys)):
        for member in having:
            settings[member] = setting
    own = [settings[member] for member in members]
    configs = {
        setting: config_of_setting(task, procedure.optimizer, setting)
        for setting in procedure.settings
    }
    # Programs are planned for what is typical, never for what was drawn: see `_alike`.
    runs = procedure.selection.expected_runs
    population = [
        configs[setting]
        for setting in procedure.settings
        for _ in range(max(1, round(setting.probability * runs)))
    ]
    for positions, outputs in training.mixed_sweep(
        [configs[setting] for setting in own],
        keys[members],
        hyperparameters_of_runs(
            {name: values[members] for name, values in hyperparameters.items()}, own
        ),
        task.train.arrays,
        initial=task.initial,
        finish=lambda params, arrays: judged(task, params, arrays),
        finish_data=task.validation.arrays,
        chunk_size=placement.width,
        placement=placement,
        population=population,
        checkpoints=job.checkpoints(),
    ):
        yield members[positions], outputs


def _by_setting(
    procedure: Procedure, hyperparameters: dict[str, np.ndarray], total: int
) -> Iterator[tuple[RunSetting, np.ndarray]]:
    """Yields (setting, members): which candidates run under which accounted setting."""
    drawn = [values for values, _ in procedure.space.accounted_settings()]
    for values, setting in zip(drawn, procedure.settings):
        belongs = np.ones(total, dtype=bool)
        for name, value in values.items():
            belongs &= hyperparameters[name] == value
        members = np.flatnonzero(belongs)
        if len(members):
            yield setting, members


def _candidate_run(
    task: Task, procedure: Procedure, setting: RunSetting
) -> Callable[[jax.Array, dict[str, jax.Array], PyTree], PyTree]:
    """Returns run(key, hyperparameters, data): train one candidate and count what it gets right."""
    trained = run_of(task, config_of_setting(task, procedure.optimizer, setting))

    def run(key: jax.Array, hyperparameters: dict[str, jax.Array], data: PyTree) -> PyTree:
        train_arrays, validation_arrays = data
        return judged(task, trained(key, hyperparameters, train_arrays), validation_arrays)

    return run
