"""Adaptive proposals: random repetitions whose candidates lean towards what has scored well.

Hua Wang, Sheng Gao, Huanyu Zhang, Weijie J. Su and Milan Shen, "DP-HyPO: An Adaptive Private
Hyperparameter Optimization Framework", NeurIPS 2023, https://arxiv.org/abs/2306.05734. Candidates
are trained in rounds; those of a round are proposed by the private scores of earlier rounds, with a
density that stays between c and C times the public law's, whatever came before. Only the best of K
runs is released, K secret; `accounting.best_of_adaptive` is the price, and log(C / c) is what
proposals may add to it about twice or more: no noise lowers that part. What was measured, and that
random repetitions were never beaten at equal total epsilon, is in `third_party_notes/papers.md`.

Here proposals are of one hyperparameter, by a density that is constant on parts of equal mass of
its public law: higher where the scores of nearby candidates are, and clipped to the bounds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpjax import accounting, checks, training
from dpjax.accounting.selection.adaptive import checked_ratio
from dpjax.tuning.choices import BestOf
from dpjax.tuning.evaluations.proposed_runs import ProposedRuns
from dpjax.tuning.job import Job
from dpjax.tuning.problem.run_settings import RunOptions
from dpjax.tuning.problem.space import ACCOUNTED, Space
from dpjax.tuning.problem.task import Task
from dpjax.tuning.tuner import KeepTheWinner, Optimizer, Progress, Result, register_tuner, tune
from dpjax.tuning.tuners.random_repetitions import DEFAULT_REPETITIONS

RULE = "best of K runs, their candidates proposed by earlier ones"

DEFAULT_RATIO = (0.8, 1.25)
"""c and C: at most a quarter more than the public law has anywhere."""

PARTS = 16
"""Parts of equal mass of the public law, on which a proposal's density is constant."""

NEARBY = 0.1
"""Width of what counts as nearby, as a share of the public law's mass."""

EAGERNESS = 4.0
"""Log density, before it is clipped, of a part that scores one standard deviation above another."""

INSIDE = 1e-9
"""Relative, by which densities keep inside the bounds: rounding must not lead outside."""


def proposal_density(
    points: np.ndarray, scores: np.ndarray, ratio: tuple[float, float]
) -> np.ndarray:
    """Density over the public law of what is proposed next, on each of the parts.

    Args:
      points: (n,) of the candidates so far, in the unit interval.
      scores: (n,) theirs; -inf counts as the lowest finite one.
      ratio: c and C.

    Returns:
      (PARTS,) within the ratio, of mean 1; 1 everywhere where the scores tell nothing.
    """
    finite = np.isfinite(scores)
    if not finite.any():
        return np.ones(PARTS)
    heights = np.where(finite, scores, scores[finite].min())
    spread = float(np.std(heights))
    if not spread > 0.0:
        return np.ones(PARTS)
    heights = (heights - heights.mean()) / spread
    middles = (np.arange(PARTS) + 0.5) / PARTS
    near = np.exp(-0.5 * ((middles[:, None] - points[None, :]) / NEARBY) ** 2)
    # One more observation, of the mean, keeps parts that nothing is near of at the mean.
    return within_ratio(EAGERNESS * (near @ heights) / (near.sum(axis=1) + 1.0), ratio)


def within_ratio(logs: np.ndarray, ratio: tuple[float, float]) -> np.ndarray:
    """min(C, max(c, s e^log)) with the s that makes its mean 1; of the shape of `logs` (n,)."""
    low, high = ratio[0] * (1.0 + INSIDE), ratio[1] * (1.0 - INSIDE)
    if not low < 1.0 < high:
        return np.ones(logs.size)
    ends = np.log([low, high])
    # At the first shift every density is the lowest, at the last the highest.
    least, most = ends[0] - logs.max(), ends[1] - logs.min()
    for _ in range(80):
        shift = 0.5 * (least + most)
        mean = float(np.mean(np.exp(np.clip(logs + shift, *ends))))
        least, most = (shift, most) if mean < 1.0 else (least, shift)
    density = np.exp(np.clip(logs + most, *ends))
    return density / density.mean()


@dataclasses.dataclass(frozen=True)
class BestOfProposals(BestOf):
    """Release the best of K runs, candidates proposed: a `ProposalChoice`.

    Attributes:
      repetitions: the law of K.
      ratio: c and C, the smallest and the largest density of a proposal over the public law.
      adapted: name of the hyperparameter that is proposed.
      round_size: candidates of a round.
    """

    ratio: tuple[float, float]
    adapted: str
    round_size: int

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "ratio", checked_ratio(self.ratio))
        object.__setattr__(self, "adapted", checks.text("adapted", self.adapted))
        object.__setattr__(self, "round_size", checks.whole("round_size", self.round_size))

    def check(self, space: Space) -> None:
        """See `ProposalChoice`."""
        law = space.parameters.get(self.adapted)
        if law is None or not law.lowest < law.highest:
            raise ValueError(
                f"adapted={self.adapted!r} must be drawn from a range: pass "
                f"Space({self.adapted}=LogUniform(0.01, 10)), or the name of another hyperparameter"
            )
        if self.adapted in ACCOUNTED:
            raise ValueError(
                f"adapted={self.adapted!r} changes what a run costs: pass the name of another "
                "hyperparameter, such as learning_rate"
            )

    def guarantee(self, run: accounting.Guarantee) -> accounting.Guarantee:
        """See `RunChoice`."""
        return accounting.best_of_adaptive(run, self.repetitions, self.ratio)

    def proposed(self, points: np.ndarray, scores: np.ndarray, fresh: np.ndarray) -> np.ndarray:
        """See `ProposalChoice`."""
        reached = np.cumsum(proposal_density(points, scores, self.ratio))
        ends = np.append(0.0, reached / reached[-1])
        return np.interp(fresh, ends, np.linspace(0.0, 1.0, PARTS + 1))

    def describe(self) -> dict[str, Any]:
        """See `RunChoice`."""
        return {
            "rule": RULE,
            "law_of_K": self.repetitions.to_dict(),
            "density_ratio": list(self.ratio),
            "adapted": self.adapted,
            "round_size": self.round_size,
            "not_stated": "what earlier runs scored, and so what was proposed",
        }


@register_tuner("adaptive_proposals", rule=RULE)
@dataclasses.dataclass(frozen=True)
class AdaptiveProposals:
    """The best of K runs, candidates proposed by earlier scores; see `adaptive_proposals`.

    Example:
      >>> from dpjax import tuning
      >>> tuning.AdaptiveProposals(density_ratio=(0.8, 1.25)).density_ratio
      (0.8, 1.25)

    Attributes:
      repetitions: public law of the number K of candidates.
      density_ratio: smallest and largest density of a proposal over the public law's; public.
      adapted: the hyperparameter that is proposed.
      round_size: candidates that are proposed together; public.
      score_noise: standard deviation of the noise on the count of correct predictions, in records;
        the least one that adds nothing to the total if unset.
    """

    repetitions: accounting.RepetitionLaw = DEFAULT_REPETITIONS
    density_ratio: Sequence[float] = DEFAULT_RATIO
    adapted: str = "learning_rate"
    round_size: int = 4
    score_noise: float | None = None

    finish = KeepTheWinner()

    @property
    def evaluation(self) -> ProposedRuns:
        return ProposedRuns(self.score_noise)

    @property
    def choice(self) -> BestOfProposals:
        ratio = checked_ratio(self.density_ratio, "density_ratio")
        return BestOfProposals(self.repetitions, ratio, self.adapted, self.round_size)

    @classmethod
    def from_statement(cls, claim: Mapping[str, Any]) -> AdaptiveProposals:
        selection = claim["selection"]
        return cls(
            accounting.law_from_dict(selection["law_of_K"]),
            selection["density_ratio"],
            selection["adapted"],
            selection["round_size"],
        )


def adaptive_proposals(
    task: Task,
    space: Space,
    *,
    repetitions: accounting.RepetitionLaw = DEFAULT_REPETITIONS,
    density_ratio: Sequence[float] = DEFAULT_RATIO,
    adapted: str = "learning_rate",
    round_size: int = 4,
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
    seed: int | None = None,
    chunk_size: int = 16,
    progress: Progress | None = None,
    job: Job | None = None,
) -> Result | None:
    """Trains a secret number of candidates in rounds, each proposed by earlier scores.

    Formal guarantees:
      `result.release` is (`result.guarantee.epsilon(delta)`, delta)-differentially private under
      `result.guarantee.relation`, for one record of the training or validation data, under the
      conditions of `RandomRepetitions`, but that candidates are not independent. Enforced here:
      the density of every proposal, over the public law, lies within `density_ratio` whatever was
      scored before, by construction; proposals read the points and private scores of earlier rounds
      and public numbers alone, never K; uniform numbers behind proposals, K, keys and noise are the
      operating system's and drawn once, before the first run; a candidate that is not finite ranks
      worst, is not retried and still counts; ties go to the earlier candidate; only the winner
      leaves. Source: the procedure is that of Wang et al. (NeurIPS 2023), the price
      `accounting.best_of_adaptive`, derived there.

    Example:
      >>> from dpjax import accounting, data, models, tuning
      >>> parts = data.load("digits").parts(0.2, key=b"public")
      >>> task = tuning.classification(models.LogisticRegression(10), parts.train, parts.validation)
      >>> space = tuning.Space(learning_rate=tuning.LogUniform(0.1, 10), momentum=0.9, clip_norm=1)
      >>> law = accounting.AtMost(accounting.Geometric(3), 8)
      >>> result = tuning.adaptive_proposals(
      ...     task, space, repetitions=law, round_size=2, noise_multiplier=2.0, lot_size=64, steps=5
      ... )
      >>> result.guarantee.epsilon(1e-5) > result.run_guarantee.epsilon(1e-5)
      True

    Args:
      task, space: as in `random_repetitions`.
      repetitions: public law of the number K of candidates.
      density_ratio: c and C, the smallest and the largest density of a proposal over the public
        law; (1, 1) for independent candidates.
      adapted: the hyperparameter that is proposed; the others are drawn from the space.
      round_size: candidates that are proposed together.
      epsilon, delta, noise_multiplier, lot_size, steps, epochs, sampling, optimizer, clipping,
        validation_is_public, score_noise, seed, chunk_size, progress: as in `random_repetitions`.
      job: placement over devices, checkpoints; no shards.

    Returns:
      A `Result`.

    Raises:
      ValueError: with one line naming what to pass instead.

    Warns:
      cautions.LargeDeltaWarning, cautions.KnownRandomnessWarning: before anything is drawn.
      cautions.UntrainedReleaseWarning: if no trained model is released.
    """
    return tune(
        task,
        space,
        AdaptiveProposals(repetitions, density_ratio, adapted, round_size, score_noise),
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
