"""Random repetitions: release the best of a random number of private runs.

Nicolas Papernot and Thomas Steinke, "Hyperparameter Tuning with Renyi Differential Privacy", ICLR
2022, https://arxiv.org/abs/2110.03620. One run = draw hyperparameters from a public law, train by
DP-SGD, score on validation data (privately). K runs, K from a public law and secret; only the best
run is released. The cost hardly grows with the mean of K, because nobody learns K.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dpjax import accounting, training
from dpjax.tuning.choices import BEST_OF, BestOf
from dpjax.tuning.evaluations.private_runs import PrivateRuns
from dpjax.tuning.job import Job
from dpjax.tuning.problem.run_settings import RunOptions
from dpjax.tuning.problem.space import Space
from dpjax.tuning.problem.task import Task
from dpjax.tuning.tuner import (
    KeepTheWinner,
    Optimizer,
    Progress,
    Result,
    register_tuner,
    tune,
)

DEFAULT_REPETITIONS = accounting.AtMost(accounting.Geometric(mean=10), cap=64)


@register_tuner("random_repetitions", rule=BEST_OF)
@dataclasses.dataclass(frozen=True)
class RandomRepetitions:
    """The best of a secret random number of private runs; see `random_repetitions`.

    Example:
      >>> from dpjax import accounting, tuning
      >>> tuning.RandomRepetitions(accounting.Geometric(10)).repetitions.mean
      10.0

    Attributes:
      repetitions: public law of the number K of candidates.
      score_noise: standard deviation of the noise on the count of correct predictions, in records;
        the least one that adds nothing to the total if unset.
      not_private: train without noise, for comparison; the release then says so.
      score_on_training: score candidates on the records they are trained on, for a little more
        epsilon, so that no record is kept from training; validation records are not used.
    """

    repetitions: accounting.RepetitionLaw = DEFAULT_REPETITIONS
    score_noise: float | None = None
    not_private: bool = False
    score_on_training: bool = False

    finish = KeepTheWinner()

    @property
    def evaluation(self) -> PrivateRuns:
        return PrivateRuns(self.score_noise, self.not_private, self.score_on_training)

    @property
    def choice(self) -> BestOf:
        return BestOf(self.repetitions)

    @classmethod
    def from_statement(cls, claim: Mapping[str, Any]) -> RandomRepetitions:
        return cls(accounting.law_from_dict(claim["selection"]["law_of_K"]))


def random_repetitions(
    task: Task,
    space: Space,
    *,
    repetitions: accounting.RepetitionLaw = DEFAULT_REPETITIONS,
    epsilon: float | None = None,
    delta: float = 1e-5,
    noise_multiplier: float | None = None,
    lot_size: int | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    sampling: str = "poisson",
    optimizer: Optimizer | None = None,
    clipping: training.ClipRule = training.GlobalClipping(),  # noqa: B008 (immutable)
    validation_is_public: bool = False,
    score_noise: float | None = None,
    not_private: bool = False,
    score_on_training: bool = False,
    seed: int | None = None,
    chunk_size: int = 16,
    progress: Progress | None = None,
    job: Job | None = None,
) -> Result | None:
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
      predictions; with `score_on_training` the run and the noisy count compose. Source: Papernot &
      Steinke (ICLR 2022), Theorems 2 and 6, as corrected and tightened in `accounting.best_of`.

    Example:
      >>> from dpjax import accounting, data, models, tuning
      >>> parts = data.load("digits").parts(0.2, key=b"public")
      >>> task = tuning.classification(models.LogisticRegression(10), parts.train, parts.validation)
      >>> space = tuning.Space(learning_rate=tuning.LogUniform(0.1, 10), momentum=0.9, clip_norm=1)
      >>> law = accounting.AtMost(accounting.Geometric(3), 8)
      >>> result = tuning.random_repetitions(
      ...     task, space, repetitions=law, noise_multiplier=2.0, lot_size=64, steps=5
      ... )
      >>> result.guarantee.epsilon(1e-5) > result.run_guarantee.epsilon(1e-5)
      True

    Args:
      task: what to learn, with its training and validation records.
      space: public law of the hyperparameters; each must be read by the optimiser, or be
        `clip_norm`, `lot_size`, `steps`, `epochs` or `noise_multiplier`.
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
      clipping: how gradients are clipped: a rule of `training.CLIP_RULES`, or its name.
      validation_is_public: scores cost nothing.
      score_noise: standard deviation of the noise on the count of correct predictions, in records.
      not_private: with noise_multiplier 0, for comparison; the release then says so.
      score_on_training: score candidates on the records they are trained on: a run then costs the
        composition of training and noisy score (1% more epsilon, if `score_noise` is not given),
        and no record is kept from training. The task's validation records are not used; one made
        of `Dataset.without_validation()` serves.
      seed: for reproduction; the randomness is then not secret and the release says so.
      chunk_size: candidates trained at once; the memory knob.
      progress: called with (candidates done, candidates in all); the curator's to see.
      job: placement over devices, checkpoints, shards; None for one plain job.

    Returns:
      A `Result`; None for a shard, whose results only a merge turns into one.

    Raises:
      ValueError: with one line naming what to pass instead.

    Warns:
      cautions.LargeDeltaWarning, cautions.KnownRandomnessWarning: before anything is drawn.
      cautions.UntrainedReleaseWarning: if no trained model is released.
    """
    return tune(
        task,
        space,
        RandomRepetitions(repetitions, score_noise, not_private, score_on_training),
        epsilon=epsilon,
        delta=delta,
        run=RunOptions(lot_size, steps, epochs, noise_multiplier, sampling, clipping),
        optimizer=optimizer,
        validation_is_public=validation_is_public,
        seed=seed,
        chunk_size=chunk_size,
        progress=progress,
        job=job,
    )
