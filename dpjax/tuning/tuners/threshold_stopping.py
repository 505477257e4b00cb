"""Threshold stopping: run until one run is good enough, or a coin says stop.

Jingcheng Liu and Kunal Talwar, "Private Selection from Private Candidates", STOC 2019; Papernot &
Steinke (ICLR 2022), Appendix C. Without the coin the procedure would have no guarantee at all: how
long it searches depends on the data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dpjax import checks, training
from dpjax.tuning.choices import FIRST_ABOVE, FirstAbove
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


@register_tuner("threshold_stopping", rule=FIRST_ABOVE)
@dataclasses.dataclass(frozen=True)
class ThresholdStopping:
    """The first private run that is good enough, if a coin lets it come; see `threshold_stopping`.

    Example:
      >>> from dpjax import tuning
      >>> tuning.ThresholdStopping(threshold=0.9, halting_probability=0.1).threshold
      0.9

    Attributes:
      threshold: the accuracy that is good enough, on the noisy score, in [0, 1].
      halting_probability: chance to stop before each run, in (0, 1].
      score_noise: standard deviation of the noise on the count of correct predictions, in records;
        the least one that adds nothing to the total if unset.
      not_private: train without noise, for comparison; the release then says so.
    """

    threshold: float
    halting_probability: float = 0.05
    score_noise: float | None = None
    not_private: bool = False

    finish = KeepTheWinner()

    def __post_init__(self) -> None:
        threshold = checks.probability("threshold", self.threshold, zero=True, one=True)
        halting = checks.probability("halting_probability", self.halting_probability, one=True)
        object.__setattr__(self, "threshold", threshold)
        object.__setattr__(self, "halting_probability", halting)

    @property
    def evaluation(self) -> PrivateRuns:
        return PrivateRuns(self.score_noise, self.not_private)

    @property
    def choice(self) -> FirstAbove:
        return FirstAbove(self.threshold, self.halting_probability)

    @classmethod
    def from_statement(cls, claim: Mapping[str, Any]) -> ThresholdStopping:
        words = claim["selection"]
        return cls(float(words["threshold"]), float(words["halting_probability"]))


def threshold_stopping(
    task: Task,
    space: Space,
    *,
    threshold: float,
    halting_probability: float = 0.05,
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
    seed: int | None = None,
    chunk_size: int = 16,
    progress: Progress | None = None,
    job: Job | None = None,
) -> Result | None:
    """Trains candidates until one scores at least `threshold`, and releases that one.

    Before each run a coin says stop with probability `halting_probability`; then the release holds
    parameters that do not depend on data. So at most 1 / halting_probability - 1 runs are made on
    average, and fewer where good candidates are common.

    Formal guarantees:
      `result.release` is (`result.guarantee.epsilon(delta)`, delta)-differentially private under
      the conditions of `random_repetitions`, with the number of runs in place of K: it is secret,
      the coin comes from the operating system's randomness, and the threshold was fixed before the
      data was seen. The cost is `accounting.stop_at_threshold`'s.

    Example:
      >>> from dpjax import data, models, tuning
      >>> parts = data.load("digits").parts(0.2, key=b"public")
      >>> task = tuning.classification(models.LogisticRegression(10), parts.train, parts.validation)
      >>> space = tuning.Space(learning_rate=tuning.LogUniform(0.1, 10), momentum=0.9, clip_norm=1)
      >>> result = tuning.threshold_stopping(
      ...     task,
      ...     space,
      ...     threshold=0.2,
      ...     halting_probability=0.05,
      ...     noise_multiplier=2.0,
      ...     lot_size=64,
      ...     steps=5,
      ... )
      >>> result.guarantee.epsilon(1e-5) > result.run_guarantee.epsilon(1e-5)
      True

    Args:
      task: what to learn, with its training and validation records.
      space: public law of the hyperparameters.
      threshold: on the score, the noisy validation accuracy over the public size, in [0, 1].
      halting_probability: of the coin, in (0, 1].
      epsilon, delta, noise_multiplier, lot_size, steps, epochs, sampling, optimizer,
        clipping: as in `random_repetitions`.
      validation_is_public, score_noise, not_private, seed, chunk_size, progress, job: as there.

    Returns:
      A `Result`; its curator's record shows how many runs there would have been and which won. None
      for a shard, as in `random_repetitions`.

    Raises:
      ValueError: for a threshold outside [0, 1] or a halting probability outside (0, 1], and as
        `random_repetitions`.

    Warns:
      cautions.LargeDeltaWarning, cautions.KnownRandomnessWarning: before anything is drawn.
      cautions.UntrainedReleaseWarning: if no trained model is released.
    """
    return tune(
        task,
        space,
        ThresholdStopping(threshold, halting_probability, score_noise, not_private),
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
