"""Runs a fixed procedure: draws K and the candidates, trains and scores them, keeps the best."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import training
from dpjax.tuning import host_randomness
from dpjax.tuning.best_of_runs import BestOfRuns
from dpjax.tuning.procedure import Procedure
from dpjax.tuning.run_settings import RunSetting
from dpjax.tuning.task import Task, number_correct

PyTree = Any

# Streams of a seeded source; without a seed every draw is the operating system's.
_STREAM_OF_K, _STREAM_OF_SPACE, _STREAM_OF_SCORES = 1, 2, 3


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
    randomness: host_randomness.HostRandomness,
    executions: int = 1,
    chunk_size: int = 16,
    progress: Callable[[int, int], None] | None = None,
) -> Executed:
    """Runs the procedure, once or many times independently over.

    A release comes from one execution. Many serve audits: they share compilation and device calls,
    nothing else.

    Formal guarantees:
      What is computed for a candidate depends on its own key and hyperparameters, the data and
      `chunk_size`, never on K or on another candidate. K, keys and scores' noise come from
      `randomness`; each candidate has its own key.

    Args:
      task: what to learn.
      procedure: what was fixed beforehand.
      randomness: where K, the candidates, their keys and the scores' noise come from.
      executions: how many independent times.
      chunk_size: candidates trained at once; the last chunk is filled up.
      progress: called with (candidates done, candidates in all).
    """
    if chunk_size < 1:
        raise ValueError(f"chunk_size is {chunk_size}: pass at least 1")
    source = None if randomness.secret else randomness.generator(_STREAM_OF_K)
    counts = procedure.selection.draw(executions, source)
    owners = np.repeat(np.arange(executions), counts)
    total = len(owners)
    hyperparameters = procedure.space.sample(total, randomness.generator(_STREAM_OF_SPACE))
    keys = training.candidate_keys(total, seed=randomness.seed) if total else None
    noise = np.zeros(total)
    if procedure.score_noise > 0 and total:
        noise = host_randomness.discrete_gaussian(
            procedure.score_noise, total, randomness, _STREAM_OF_SCORES
        )
    correct = np.zeros(total, dtype=np.int64)
    scores = np.full(total, -np.inf)
    best = BestOfRuns(executions)
    done = 0
    # Candidates of one setting train in order, so that a search for the first may end early.
    one_setting = len(procedure.settings) == 1
    data = (task.train.arrays, task.validation.arrays)
    for setting, members in _by_setting(procedure, hyperparameters, total):
        # Whole chunks only: a program's shape, and with it the last bits of what it computes, must
        # not depend on K. Lanes that fill up have keys of their own and are dropped.
        fillers = -len(members) % chunk_size
        lanes = np.append(members, np.full(fillers, members[-1]))
        traced = {name: values[lanes] for name, values in hyperparameters.items()}
        for name in ("noise_multiplier", "lot_size", "steps"):
            traced[name] = np.full(len(lanes), float(getattr(setting, name)))
        traced.setdefault("clip_norm", np.ones(len(lanes)))
        for positions, outputs in training.sweep(
            _candidate_run(task, procedure, setting),
            jnp.concatenate([keys[members], training.candidate_keys(fillers)]),
            traced,
            data,
            chunk_size=chunk_size,
        ):
            positions = positions[positions < len(members)]
            indices = members[positions]
            outputs = jax.tree.map(lambda leaf: leaf[: len(indices)], outputs)  # noqa: B023
            correct[indices] = outputs["correct"]
            scores[indices] = np.where(
                outputs["finite"], outputs["correct"] + noise[indices], -np.inf
            )
            # Scores are ranked as accuracies over the public size.
            ranks = procedure.selection.rank(scores[indices] / task.validation.public_size)
            best.update(owners[indices], indices, ranks, outputs["params"])
            done += len(indices)
            if progress is not None:
                progress(done, total)
            if procedure.selection.in_order and one_setting and np.isfinite(best.score).all():
                break
    return Executed(best, counts, hyperparameters, correct, scores)


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
    train = training.make_train(
        training.TrainConfig(
            loss_fn=task.loss,
            lots=setting.lots,
            steps=setting.steps,
            expected_lot_size=setting.lot_size,
            relation=setting.relation,
            optimizer=procedure.optimizer,
            trainable=task.trainable,
            with_rng=task.with_rng,
        )
    )

    def run(key: jax.Array, hyperparameters: dict[str, jax.Array], data: PyTree) -> PyTree:
        train_arrays, validation_arrays = data
        initial = task.initial(training.stream(key, "initial"))
        params = train(key, hyperparameters, initial, train_arrays)
        finite = jnp.all(
            jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(params)])
        )
        return {
            "params": params,
            "correct": number_correct(task, params, validation_arrays),
            "finite": finite,
        }

    return run
