"""One run, and its best iterate or average chosen after training: one selection is all it costs.

Every iterate of a private run is paid for by the run, and so is every average of them (De et al.
2022, https://arxiv.org/abs/2204.13650, average a run's iterates by one decay that is chosen
beforehand). Which of them is best shows on validation records only; here one of a public list is
chosen by permute-and-flip (McKenna & Sheldon, NeurIPS 2020, https://arxiv.org/abs/2010.12603) on
their exact counts. A record that is trained on has no say in the choice but through the iterates,
and one that is scored has none in the iterates: run and choice cost as much as the dearer of them.
What is paid instead is data: the records that score do not train.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from dpjax import accounting, checks, training
from dpjax.randomness.exact_samplers import UniformBelow, permute_and_flip_choice
from dpjax.tuning.evaluations.iterates_of_one_run import IterateScores, IteratesOfOneRun
from dpjax.tuning.job import Job
from dpjax.tuning.problem.public_defaults import default_space_and_run
from dpjax.tuning.problem.run_settings import RunOptions
from dpjax.tuning.problem.space import Space
from dpjax.tuning.problem.task import Task
from dpjax.tuning.tuner import KeepTheWinner, Optimizer, Progress, Result, register_tuner, tune

RULE = "one private run, then permute-and-flip among its iterates and averages"

DEFAULT_DECAYS = (0.9, 0.97, 0.99)
DEFAULT_TAILS = (0.1, 0.25, 0.5)
DEFAULT_MOMENTS = (0.25, 0.5, 0.75)
"""With the last iterate ten choices, between which permute-and-flip loses 3 / epsilon_0 records."""


@dataclasses.dataclass(frozen=True)
class PermuteAndFlipOfIterates:
    """Permute-and-flip as an `iterates_of_one_run.IterateChoice`.

    It is charged as pure: beside a training that it composes with in parallel, nothing is gained by
    a smaller cost in composition, which is where the exponential mechanism would be the cheaper.

    Attributes:
      epsilon: epsilon_0, of the one choice; None: the largest that adds nothing.
    """

    epsilon: float | None = None

    def guarantee(self, epsilon: float, relation: str) -> accounting.Guarantee:
        """See `IterateChoice`."""
        return accounting.pure(epsilon, relation=relation)

    def select(
        self, units: Sequence[int], epsilon: float, scores: IterateScores, below: UniformBelow
    ) -> int:
        """See `IterateChoice`."""
        return permute_and_flip_choice(units, scores.rate(epsilon), below)

    def describe(self, epsilon: float | None, scores: IterateScores) -> dict[str, Any]:
        """See `IterateChoice`."""
        if epsilon is None:
            return {"rule": RULE, "epsilon_0": None, "noise": "none: the best on public records"}
        return {
            "rule": RULE,
            "epsilon_0": epsilon,
            "noise": "exact coins of heads exp(-rate * units below the best) in a random order, "
            "the law of exponential noise",
            "rate_for_a_unit": float(scores.rate(epsilon)),
        }


@register_tuner("chosen_iterate", rule=RULE)
@dataclasses.dataclass(frozen=True)
class ChosenIterate:
    """One run, of which an iterate or average is chosen after training; see `chosen_iterate`.

    Example:
      >>> from dpjax import tuning
      >>> type(tuning.ChosenIterate()).__name__
      'ChosenIterate'

    Attributes:
      decays: public, of exponential averages of all iterates, each a choice.
      tails: public shares of the steps, of plain averages of the last iterates, each a choice.
      moments: public shares of the steps, after which an iterate is kept as a choice; the last one
        always is.
      selection_epsilon: epsilon_0, of the one choice; if unset the total, to which it adds nothing.
    """

    decays: Sequence[float] = DEFAULT_DECAYS
    tails: Sequence[float] = DEFAULT_TAILS
    moments: Sequence[float] = DEFAULT_MOMENTS
    selection_epsilon: float | None = None

    finish = KeepTheWinner()

    @property
    def evaluation(self) -> IteratesOfOneRun:
        return IteratesOfOneRun(self.decays, self.tails, self.moments)

    @property
    def choice(self) -> PermuteAndFlipOfIterates:
        epsilon = self.selection_epsilon
        if epsilon is not None:
            epsilon = checks.positive("selection_epsilon", epsilon)
        return PermuteAndFlipOfIterates(epsilon)

    @classmethod
    def from_statement(cls, claim: Mapping[str, Any]) -> ChosenIterate:
        selection = claim["selection"]
        listed = {name: selection[name] for name in ("decays", "tails", "moments")}
        return cls(**listed, selection_epsilon=selection["epsilon_0"])


def chosen_iterate(
    task: Task,
    space: Space | None = None,
    *,
    decays: Sequence[float] = DEFAULT_DECAYS,
    tails: Sequence[float] = DEFAULT_TAILS,
    moments: Sequence[float] = DEFAULT_MOMENTS,
    selection_epsilon: float | None = None,
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
    seed: int | None = None,
    progress: Progress | None = None,
    job: Job | None = None,
) -> Result | None:
    """Trains one model privately and releases the best of its iterates and averages.

    Formal guarantees:
      `result.release` is (`result.guarantee.epsilon(delta)`, delta)-differentially private under
      `result.guarantee.relation` for one record of the training or validation data, if every
      argument was fixed without looking at the data, no record stands in both parts, and the
      scores, the console and the wall clock stay with the curator. Enforced here: one run, of which
      all iterates and averages are post-processing of the noisy sums that it is charged for; one
      choice among those that are finite, by permute-and-flip on exact integer scores at a rate of
      epsilon_0 over what one record moves the difference of two scores by (once a record's units
      where records come and go, since all scores then move the same way; twice where one is
      replaced), from the operating system's randomness; the choice is charged as pure epsilon_0. A
      training record reaches the choice through the iterates alone and pays for the run; a
      validation record reaches no iterate and pays for the choice; parts compose in parallel. No
      finite iterate releases parameters that do not depend on data. Source: McKenna & Sheldon
      (2020), Theorem 1; McSherry (2009), Theorem 4; `accounting.dp_sgd`, `accounting.pure` and
      `accounting.parallel` for the cost.

    Example:
      >>> from dpjax import data, models, tuning
      >>> parts = data.load("digits").parts(0.2, key=b"public")
      >>> task = tuning.classification(models.LogisticRegression(10), parts.train, parts.validation)
      >>> space = tuning.Space(learning_rate=tuning.LogUniform(0.1, 10), momentum=0.9, clip_norm=1)
      >>> space = tuning.Space(learning_rate=1.0, momentum=0.9, clip_norm=1.0)
      >>> result = tuning.chosen_iterate(
      ...     task, space, selection_epsilon=0.5, noise_multiplier=2.0, lot_size=64, steps=10
      ... )
      >>> result.guarantee.epsilon(1e-5) > result.run_guarantee.epsilon(1e-5)
      True

    Args:
      task: what to learn, with its training and validation records; without averages of its own.
      space: the hyperparameters, each a number; None: `public_defaults` of the task.
      decays: of exponential averages of all iterates, each a choice.
      tails: shares of the steps, of plain averages of the last iterates, each a choice.
      moments: shares of the steps, after which an iterate is kept as a choice; the last one always
        is.
      selection_epsilon: epsilon_0, of the one choice; None: the target, or what the run costs where
        there is none. Up to that it adds nothing to the total.
      epsilon: target of the whole; the noise is calibrated to it. Needed for the default.
      delta: of the whole, in (0, 1).
      lot_size, steps: of the run; the default's where neither they nor a space are given.
      validation_is_public: the choice is the exact best, and costs nothing.
      noise_multiplier, epochs, sampling, optimizer, clipping, seed, progress: as in `untuned`.
      job: placement over devices, checkpoints; no shards.

    Returns:
      A `Result`; `iterate` among the released hyperparameters is the place of what was chosen in
      the statement's `selection.choices`, from 0, the last iterate.

    Raises:
      ValueError: with one line naming what to pass instead.

    Warns:
      cautions.LargeDeltaWarning, cautions.KnownRandomnessWarning: before anything is drawn.
      cautions.UntrainedReleaseWarning: if no trained model is released.
    """
    asked = RunOptions(lot_size, steps, epochs, noise_multiplier, sampling, clipping)
    space, run = (
        (space, asked)
        if space is not None
        else default_space_and_run(task, asked, epsilon, delta, optimizer)
    )
    return tune(
        task,
        space,
        ChosenIterate(decays, tails, moments, selection_epsilon),
        epsilon=epsilon,
        delta=delta,
        run=run,
        optimizer=optimizer,
        validation_is_public=validation_is_public,
        seed=seed,
        progress=progress,
        job=job,
    )
