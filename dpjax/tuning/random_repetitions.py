"""Random repetitions: release the best of a random number of private runs.

Nicolas Papernot and Thomas Steinke, "Hyperparameter Tuning with Renyi Differential Privacy", ICLR
2022, https://arxiv.org/abs/2110.03620. One run = draw hyperparameters from a public law, train by
DP-SGD, score on validation data (privately). K runs, K from a public law and secret; only the best
run is released. The cost hardly grows with the mean of K, because nobody learns K.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import accounting, training
from dpjax.tuning import host_randomness
from dpjax.tuning.best_of_runs import BestOfRuns
from dpjax.tuning.candidates import Space
from dpjax.tuning.curator import CuratorRecord
from dpjax.tuning.release import Release, statement
from dpjax.tuning.run_settings import (
    RunOptions,
    RunSetting,
    calibrated,
    run_settings,
    training_guarantee,
    validation_noise,
)
from dpjax.tuning.task import Task, number_correct

PyTree = Any
Optimizer = Callable[[dict], Any]

DEFAULT_REPETITIONS = accounting.AtMost(accounting.Geometric(mean=10), cap=64)

# Streams of a seeded source; without a seed every draw is the operating system's.
_STREAM_OF_K, _STREAM_OF_SPACE, _STREAM_OF_SCORES = 1, 2, 3


@dataclasses.dataclass(frozen=True)
class Result:
    """What a procedure ends in.

    Attributes:
      release: the only part that may leave the curator's hands.
      guarantee: the cost of the release; None if the run is not private.
      run_guarantee: the cost of one candidate alone; None if the run is not private.
      curator: everything else; not private, never to be published.
    """

    release: Release
    guarantee: accounting.Guarantee | None
    run_guarantee: accounting.Guarantee | None
    curator: CuratorRecord


@dataclasses.dataclass(frozen=True)
class Procedure:
    """Everything that is fixed, and public, before the data is touched.

    Attributes:
      space: the law candidates are drawn from.
      repetitions: the law of K.
      settings: the accounted settings a candidate may have.
      optimizer: hyperparameters -> optax transformation.
      score_noise: standard deviation of the discrete Gaussian on the number of correct validation
        predictions, in records; 0 for public validation data or a run that is not private.
      run_guarantee: the cost of one candidate, its score included; None if not private.
      guarantee: the cost of releasing the best candidate; None if not private.
    """

    space: Space
    repetitions: accounting.Law
    settings: tuple[RunSetting, ...]
    optimizer: Optimizer
    score_noise: float
    run_guarantee: accounting.Guarantee | None
    guarantee: accounting.Guarantee | None


def plan_procedure(
    task: Task,
    space: Space,
    *,
    repetitions: accounting.Law,
    options: RunOptions,
    optimizer: Optimizer,
    epsilon: float | None,
    delta: float,
    validation_is_public: bool = False,
    score_noise: float | None = None,
    not_private: bool = False,
) -> Procedure:
    """Fixes the procedure and its cost, from public numbers only.

    Args:
      task: only its public numbers are read (and, for fixed-size lots, the public number of
        training records).
      space: the law of the candidates.
      repetitions: the law of K.
      options: lot size, steps and noise where the space does not draw them.
      optimizer: hyperparameters -> optax transformation.
      epsilon: target for the whole procedure; the noise multiplier is calibrated to it. None if
        noise multipliers are given.
      delta: of the whole procedure.
      validation_is_public: the validation records are public, their score costs nothing.
      score_noise: standard deviation for the validation count, in records; None: the least one
        that adds nothing to the total.
      not_private: allow noise_multiplier 0; nothing is then guaranteed.

    Raises:
      ValueError: if target and noise are both given or both missing, if the noise is 0 in a
        private run, or if the target cannot be met.
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta {delta}: pass a number between 0 and 1, for example 1e-5")
    settings = run_settings(task, space, options)
    given = not any(math.isnan(setting.noise_multiplier) for setting in settings)
    if given == (epsilon is not None):
        raise ValueError(
            "pass either a target epsilon or noise multipliers (in the space or beside it), not "
            + ("both" if given else "neither")
        )
    fixed = functools.partial(
        Procedure, space=space, repetitions=repetitions, optimizer=optimizer
    )
    if not_private:
        return fixed(
            settings=tuple(settings), score_noise=0.0, run_guarantee=None, guarantee=None
        )
    select = functools.partial(accounting.best_of, law=repetitions)
    if given:
        if min(setting.noise_multiplier for setting in settings) <= 0:
            raise ValueError(
                "noise_multiplier 0 gives no privacy: pass a positive one, or say not_private"
            )
    else:
        if not (0 < epsilon < math.inf):
            raise ValueError(f"epsilon {epsilon}: pass a finite number > 0")
        settings = calibrated(settings, select, epsilon, delta)
    train = training_guarantee(settings)
    run = train
    deviation = 0.0
    if not validation_is_public:
        relation = settings[0].relation
        deviation = validation_noise(train, relation) if score_noise is None else score_noise

        def with_score(deviation: float) -> accounting.Guarantee:
            count = accounting.discrete_gaussian(noise_std=deviation, relation=relation)
            return accounting.parallel(train, count)

        run = with_score(deviation)
        if epsilon is not None:
            # The count's profile was compared on a grid; the total is what must meet the target.
            while score_noise is None and select(run).epsilon(delta) > epsilon and deviation < 1e5:
                deviation *= 1.1
                run = with_score(deviation)
    guarantee = select(run)
    if epsilon is not None and guarantee.epsilon(delta) > epsilon:
        raise ValueError(
            f"score_noise {score_noise} alone takes the total to epsilon "
            f"{guarantee.epsilon(delta):.4g}, above the target {epsilon}: pass a larger score_noise"
        )
    return fixed(
        settings=tuple(settings), score_noise=deviation, run_guarantee=run, guarantee=guarantee
    )


def random_repetitions(
    task: Task,
    space: Space,
    *,
    repetitions: accounting.Law = DEFAULT_REPETITIONS,
    epsilon: float | None = None,
    delta: float = 1e-5,
    noise_multiplier: float | None = None,
    lot_size: int | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    sampling: str = "poisson",
    optimizer: Optimizer | None = None,
    validation_is_public: bool = False,
    score_noise: float | None = None,
    not_private: bool = False,
    seed: int | None = None,
    chunk_size: int = 16,
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Trains a secret random number of candidates and releases the best one.

    Formal guarantees:
      `result.release` is (`result.guarantee.epsilon(delta)`, delta)-differentially private under
      `result.guarantee.relation`, for one record of the training or validation data, if the space
      and every argument were fixed without looking at the data, and K, the other candidates, the
      console and the wall clock stay with the curator. Enforced here: K is drawn from the operating
      system's randomness and appears in nothing that is released; candidates are independent draws
      from the space with independent keys; a candidate that is not finite ranks worst, is not
      retried and still counts; no candidate, or none that is finite, releases parameters that do
      not depend on data; a validation record costs what is stated by noise on the count of correct
      predictions. Source: Papernot & Steinke (ICLR 2022), Theorems 2 and 6, as corrected and
      tightened in `accounting.best_of`.

    Args:
      task: what to learn, with its training and validation records.
      space: public law of the hyperparameters.
      repetitions: public law of the number K of candidates.
      epsilon: target of the whole procedure; the noise is calibrated to it.
      delta: of the whole procedure, in (0, 1).
      noise_multiplier: instead of `epsilon`: noise standard deviation over sensitivity.
      lot_size: records a step (expected, under Poisson sampling).
      steps: gradient steps; or
      epochs: passes over the public number of records; 20 if neither is given.
      sampling: "poisson" (add-or-remove one) or "fixed" (lots of fixed size, replace one).
      optimizer: hyperparameters -> optax transformation; `training.momentum()` by default. Beside
        what the space draws, the hyperparameters hold `noise_multiplier`, `lot_size` and `steps`,
        for schedules.
      validation_is_public: scores cost nothing.
      score_noise: standard deviation of the noise on the count of correct predictions, in records.
      not_private: with noise_multiplier 0, for comparison; the release then says so.
      seed: for reproduction; the randomness is then not secret and the release says so.
      chunk_size: candidates trained at once; the memory knob.
      progress: called with (candidates done, candidates in all); the curator's to see.

    Returns:
      A `Result`.

    Raises:
      ValueError: with one line naming what to pass instead.
    """
    procedure = plan_procedure(
        task,
        space,
        repetitions=repetitions,
        options=RunOptions(lot_size, steps, epochs, noise_multiplier, sampling),
        optimizer=optimizer or training.momentum(),
        epsilon=epsilon,
        delta=delta,
        validation_is_public=validation_is_public,
        score_noise=score_noise,
        not_private=not_private,
    )
    randomness = host_randomness.HostRandomness(seed)
    started = time.time()
    executed = execute(
        task, procedure, randomness=randomness, chunk_size=chunk_size, progress=progress
    )
    winner = int(executed.best.candidate[0])
    output = executed.best.output(0)
    names = sorted(executed.hyperparameters)
    if winner < 0 or not np.isfinite(executed.best.score[0]):
        # No candidate, or none that is finite: what comes out must not depend on data.
        params = jax.device_get(task.initial(jax.random.key(0)))
        hyperparameters = dict.fromkeys(names)
    else:
        params = output
        hyperparameters = {n: float(executed.hyperparameters[n][winner]) for n in names}
    claim = statement(
        guarantee=procedure.guarantee,
        delta=delta,
        space=space.describe(),
        model=task.description,
        score={
            "what": "number of correct validation predictions plus noise, over the public size",
            "noise": "discrete Gaussian",
            "noise_standard_deviation_in_records": procedure.score_noise,
            "public_size": task.validation.public_size,
            "validation_is_public": validation_is_public,
        },
        settings=[
            {
                "lot_size": setting.lot_size,
                "steps": setting.steps,
                "noise_multiplier": setting.noise_multiplier,
                "probability": setting.probability,
                "sampling": sampling,
                "capacity": setting.lots.capacity,
            }
            for setting in procedure.settings
        ],
        training_bound=task.train.size_bound,
        randomness_is_secret=randomness.secret,
    )
    return Result(
        release=Release(params=params, hyperparameters=hyperparameters, statement=claim),
        guarantee=procedure.guarantee,
        run_guarantee=procedure.run_guarantee,
        curator=CuratorRecord(
            number_of_candidates=int(executed.counts[0]),
            winner=winner,
            hyperparameters=executed.hyperparameters,
            scores=executed.scores / task.validation.public_size,
            accuracies=executed.correct / max(task.validation.number, 1),
            seconds=time.time() - started,
        ),
    )


@dataclasses.dataclass(frozen=True)
class Executed:
    """What `execute` did; the curator's.

    Attributes:
      best: the winner of each execution.
      counts: (executions,) int, the realised K of each.
      hyperparameters: for each name (candidates,) float64, all executions' candidates in order.
      correct: (candidates,) int, exact counts of correct validation predictions.
      scores: (candidates,) float64, the counts with noise; -inf for failed candidates.
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

    Args:
      task: what to learn.
      procedure: what was fixed beforehand.
      randomness: where K, the candidates, their keys and the scores' noise come from.
      executions: how many independent times.
      chunk_size: candidates trained at once.
      progress: called with (candidates done, candidates in all).
    """
    source = None if randomness.secret else randomness.generator(_STREAM_OF_K)
    counts = np.asarray(procedure.repetitions.sample(executions, source=source)).reshape(executions)
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
    data = (task.train.arrays, task.validation.arrays)
    for setting, members in _by_setting(procedure, hyperparameters, total):
        traced = {name: values[members] for name, values in hyperparameters.items()}
        for name in ("noise_multiplier", "lot_size", "steps"):
            traced[name] = np.full(len(members), float(getattr(setting, name)))
        traced.setdefault("clip_norm", np.ones(len(members)))
        for positions, outputs in training.sweep(
            _candidate_run(task, procedure, setting),
            keys[members],
            traced,
            data,
            chunk_size=chunk_size,
        ):
            indices = members[positions]
            correct[indices] = outputs["correct"]
            scores[indices] = np.where(
                outputs["finite"], outputs["correct"] + noise[indices], -np.inf
            )
            best.update(owners[indices], indices, scores[indices], outputs["params"])
            done += len(indices)
            if progress is not None:
                progress(done, total)
    return Executed(best, counts, hyperparameters, correct, scores)


def _by_setting(procedure: Procedure, hyperparameters: dict[str, np.ndarray], total: int):
    """Yields (setting, members): which candidates run under which accounted setting."""
    drawn = [values for values, _ in procedure.space.accounted_settings()]
    for values, setting in zip(drawn, procedure.settings):
        belongs = np.ones(total, dtype=bool)
        for name, value in values.items():
            belongs &= hyperparameters[name] == value
        members = np.flatnonzero(belongs)
        if len(members):
            yield setting, members


def _candidate_run(task: Task, procedure: Procedure, setting: RunSetting):
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
