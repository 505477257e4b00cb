"""Runs a fixed selection by averaged utilities, then the private training of its winner.

Partition models are trained and counted, one selection looks at the counts, and the winner alone is
trained by DP-SGD on all training records; only that, and what was public before, is released.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from dpjax import accounting, private_files, training
from dpjax.randomness import keys as key_streams
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.training.sweep import hosts
from dpjax.tuning import cautions, curator, described
from dpjax.tuning.evaluations.candidate_runs import untrained
from dpjax.tuning.evaluations.execution import Executed, execute, facts_of_training
from dpjax.tuning.evaluations.partition_models import partition_counts
from dpjax.tuning.evaluations.partitions import REHEARSAL, SelectionNoiseWarning, partitioned
from dpjax.tuning.evaluations.procedure import Optimizer, Procedure
from dpjax.tuning.evaluations.running import Result
from dpjax.tuning.evaluations.selection_plan import Candidates, Plan, Selector, plan
from dpjax.tuning.job import Arrays, Job, bound, read_bound, settled
from dpjax.tuning.problem.run_settings import RunOptions, RunSetting
from dpjax.tuning.problem.space import Space
from dpjax.tuning.problem.task import Task
from dpjax.tuning.release import Release, statement
from dpjax.tuning.tuners.selections import BestOf

# Numbers of a seeded `HostRandomness`'s streams, apart from those of `execution`.
_STREAM_OF_CANDIDATES, _STREAM_OF_PARTITIONS, _STREAM_OF_SELECTION = 11, 12, 13

CHOICE_FILE = "choice.npz"

FINAL_TRAINING = "the chosen candidate, on all training records"

_ASSUMPTIONS = (
    "the search space, the candidates and every setting were fixed before the data was seen",
    "utilities, the number of iterations, the console and the wall clock stay with the curator",
)


def select_and_train(
    task: Task,
    space: Space,
    selector: Selector,
    *,
    candidates: Candidates = 16,
    partitions: int = 24,
    partition_training: str = REHEARSAL,
    epsilon: float | None = None,
    delta: float = 1e-5,
    noise_multiplier: float | None = None,
    lot_size: int | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    sampling: str = "poisson",
    optimizer: Optimizer | None = None,
    validation_is_public: bool = False,
    seed: int | None = None,
    chunk_size: int = 64,
    progress: Callable[[int, int], None] | None = None,
    job: Job | None = None,
) -> Result | None:
    """Selects by a selector and trains the winner privately; `doubling` explains the arguments.

    Raises:
      ValueError: with one line naming what to pass instead.
    """
    chunk_size, job = settled(chunk_size, progress, job)
    randomness = HostRandomness(seed)
    options = RunOptions(lot_size, steps, epochs, noise_multiplier, sampling)
    fixed = plan(
        task,
        space,
        selector,
        options,
        candidates=candidates,
        partition_number=partitions,
        partition_training=partition_training,
        epsilon=epsilon,
        delta=delta,
        optimizer=training.momentum() if optimizer is None else optimizer,
        validation_is_public=validation_is_public,
    )
    cautions.of_arguments(delta, task.train.public_size, seed, stacklevel=3)
    warning = fixed.utility.noise_warning(fixed.number, selector.epsilon)
    if warning is not None:
        warnings.warn(warning, SelectionNoiseWarning, stacklevel=3)
    with job.held():
        return _selected_and_trained(
            task, fixed, delta, options, randomness, chunk_size, progress, job, warning
        )


def _selected_and_trained(
    task: Task,
    fixed: Plan,
    delta: float,
    options: RunOptions,
    randomness: HostRandomness,
    chunk_size: int,
    progress: Callable[[int, int], None] | None,
    job: Job,
    warning: str | None,
) -> Result | None:
    """`select_and_train`, planned, where no other process works in the job's folder."""
    started = time.time()
    partitions, selector = fixed.utility.partitions, fixed.selector
    drawn, _ = job.agreed(
        lambda: _drawn(fixed, randomness), lambda: _facts(task, fixed, randomness)
    )
    hyperparameters = {
        name: drawn[f"hyperparameter_{name}"] for name in sorted(fixed.space.parameters)
    }
    records = partitioned(task, partitions, drawn["partition_key"].tobytes())
    models = fixed.number * partitions
    counts = partition_counts(
        task,
        records,
        fixed.lots,
        fixed.setting.steps,
        hyperparameters,
        jax.random.wrap_key_data(drawn["keys"], impl=key_streams.IMPLEMENTATION),
        optimizer=fixed.optimizer,
        chunk_size=chunk_size,
        job=job,
        drawn=drawn,
        progress=lambda done: progress and progress(done, models + 1),
    )
    if counts is None:
        return None
    scores = fixed.utility.total(counts)
    winner, events = _chosen_once(
        job,
        drawn,
        lambda: selector.select(
            scores, fixed.utility, randomness.uniform_integers(_STREAM_OF_SELECTION)
        ),
    )
    chosen = {name: float(values[winner]) for name, values in hyperparameters.items()}
    final = execute(
        task,
        _final_procedure(fixed, chosen),
        randomness=randomness,
        chunk_size=1,
        job=_job_of_the_final_training(job),
    )
    if progress is not None:
        progress(models + 1, models + 1)
    utilities = np.asarray(scores, dtype=np.float64) / fixed.utility.units
    return Result(
        release=_release(task, fixed, delta, options, randomness, hyperparameters, chosen, final),
        guarantee=fixed.guarantee,
        run_guarantee=fixed.training_guarantee,
        selection_guarantee=fixed.selection_guarantee,
        curator=curator.CuratorRecord(
            number_of_candidates=fixed.number,
            winner=winner,
            hyperparameters=hyperparameters,
            scores=utilities,
            accuracies=utilities,
            seconds=time.time() - started,
            details={
                "what_scores_are": "average accuracy of the partition models, without noise",
                "selection": events,
                "partition_sizes": records.sizes.tolist(),
                "final_model_validation_accuracy": float(final.correct[0])
                / max(task.validation.number, 1),
                "warning_about_noise": warning,
            },
        ),
    )


def _drawn(fixed: Plan, randomness: HostRandomness) -> dict[str, np.ndarray]:
    """The candidates, the key of the partitions and every model's key."""
    if fixed.listed is None:
        hyperparameters = fixed.space.sample(
            fixed.number, randomness.generator(_STREAM_OF_CANDIDATES)
        )
    else:
        hyperparameters = {
            name: np.asarray([float(candidate[name]) for candidate in fixed.listed])
            for name in fixed.space.parameters
        }
    models = fixed.number * fixed.utility.partitions
    # The first key of a seed is the final training's.
    keys = training.candidate_keys(models + 1, seed=randomness.seed)[1:]
    return {f"hyperparameter_{name}": values for name, values in hyperparameters.items()} | {
        "partition_key": randomness.words(4, _STREAM_OF_PARTITIONS),
        "keys": np.asarray(jax.random.key_data(keys)),
    }


def _chosen_once(
    job: Job, drawn: Arrays, choose: Callable[[], tuple[int, dict]]
) -> tuple[int, dict[str, Any]]:
    """One choice for all processes, and for a job that goes on after a stop: never a second draw.

    It is kept in the job's folder, with what happened; both the curator's until the release.
    """
    payload = None
    if jax.process_index() == 0:
        path = None if job.folder is None else os.path.join(job.folder, CHOICE_FILE)
        if path is not None and os.path.lexists(path):
            kept = read_bound(path, drawn, f"remove {job.folder} and begin anew")
            payload = kept["choice"].tobytes()
        else:
            payload = json.dumps(choose()).encode()
            if path is not None:
                arrays = {"choice": np.frombuffer(payload, np.uint8)}
                private_files.write_once(path, bound(arrays, drawn))
    winner, events = json.loads(hosts.bytes_from_first(payload))
    return winner, events


def _facts(task: Task, fixed: Plan, randomness: HostRandomness) -> dict[str, Any]:
    """What a draw, and what is trained from it, depend on; JSON-able, by name."""
    names = {*fixed.space.parameters, "clip_norm", "noise_multiplier", "lot_size", "steps"}
    return {
        "method": "partitioned selection",
        "settings": dataclasses.astuple(fixed.setting),
        "partitions": [dataclasses.astuple(fixed.lots), dataclasses.astuple(fixed.utility)],
        "candidates": [
            fixed.number,
            fixed.listed and [dict(candidate) for candidate in fixed.listed],
        ],
        "search space": fixed.space.describe(),
        "selection": [type(fixed.selector).__name__, dataclasses.astuple(fixed.selector)],
        "model": task.description,
        "seed": randomness.seed,
        "identifiers": curator.fingerprint(task.train.identifiers),
    } | facts_of_training(task, fixed.optimizer, names)


def _final_procedure(fixed: Plan, chosen: Mapping[str, float]) -> Procedure:
    """One private run of the chosen candidate, on all training records."""
    return Procedure(
        space=Space(dict(chosen)),
        selection=BestOf(accounting.Fixed(1)),
        settings=tuple(final_settings(fixed)),
        optimizer=fixed.optimizer,
        score_noise=0.0,
        run_guarantee=fixed.training_guarantee,
        guarantee=fixed.guarantee,
    )


def _job_of_the_final_training(job: Job) -> Job:
    """Its checkpoints stand in a folder of their own; a merge trains it, so no shards are left."""
    folder = None if job.folder is None else f"{job.folder}/final"
    return dataclasses.replace(job, folder=folder, shard=None, placement="one_by_one")


def _release(
    task: Task,
    fixed: Plan,
    delta: float,
    options: RunOptions,
    randomness: HostRandomness,
    hyperparameters: Mapping[str, np.ndarray],
    chosen: Mapping[str, float],
    final: Executed,
) -> Release:
    """What may leave: the final training's parameters, the choice, and the claim."""
    params = final.best.output(0)
    if not np.isfinite(final.best.score[0]):
        params = untrained(task)
        cautions.of_untrained("the final training is not finite", stacklevel=5)
    listed = [
        described.as_used({name: float(values[index]) for name, values in hyperparameters.items()})
        for index in range(fixed.number)
    ]
    claim = public_claim(
        fixed,
        options,
        delta=delta,
        listed=listed,
        training=described.of_training(
            task, fixed.optimizer, final_settings(fixed), options.sampling, of=FINAL_TRAINING
        ),
        secret=randomness.secret,
    )
    return Release(params=params, hyperparameters=described.as_used(chosen), statement=claim)


def final_settings(fixed: Plan) -> list[RunSetting]:
    """The accounted setting of the one private training of the winner."""
    return [dataclasses.replace(fixed.setting, probability=1.0)]


def public_claim(
    fixed: Plan,
    options: RunOptions,
    *,
    delta: float,
    listed: Sequence[Mapping[str, float]],
    training: Mapping[str, Any],
    secret: bool,
    versions: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """What the release of a plan states; a function of public words and numbers alone.

    Args:
      fixed: the plan.
      options: what was asked of the final training beside the space.
      delta: of the claim.
      listed: the candidates, which are public.
      training: as from `described.of_training`.
      secret: whether no seed was given.
      versions: see `release.statement`.
    """
    utility, setting = fixed.utility, fixed.setting
    claim = statement(
        guarantee=fixed.guarantee,
        delta=delta,
        selection=fixed.selector.describe(utility, delta)
        | {
            "candidates": list(listed),
            "partitions": utility.partitions,
            "partition_training": {
                "mode": fixed.partition_training,
                "lot_size": fixed.lots.lot_size,
                "steps": setting.steps,
                "noise_over_clip_norm": fixed.lots.noise_multiplier,
                "protection": "none of its own: a record influences one partition's models only",
            },
        },
        space=fixed.space.describe(),
        score={
            "what": "correct validation predictions of the partitions' models, summed",
            "units_of_a_utility_of_1": utility.units,
            "sensitivity_in_units": utility.sensitivity,
            "public_size": utility.validation_size,
            "validation_is_public": utility.validation_is_public,
        },
        **training,
        options=described.of_options(options),
        randomness_is_secret=secret,
        assumptions=_ASSUMPTIONS,
        versions=versions,
    )
    return claim | {
        "epsilon_of_parts": {
            "selection_alone": fixed.selection_guarantee.epsilon(delta),
            "final_training_alone": fixed.training_guarantee.epsilon(delta),
            "a_private_validation_record_pays_for": "the selection alone",
        }
    }
