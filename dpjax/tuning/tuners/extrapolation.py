"""Extrapolation: the best rate at small epsilons, a line in epsilon, one training at the large one.

Ashwinee Panda, Xinyu Tang, Saeed Mahloujifar, Vikash Sehwag and Prateek Mittal, "A New Linear
Scaling Rule for Private Adaptive Hyperparameter Optimization", ICML 2024,
https://arxiv.org/abs/2212.04486. Runs at small epsilons are cheap, and what is best there, as
learning rate x steps, is taken to grow linearly in epsilon: a line through two or more such winners
is read at the epsilon of the final training. Read far outside of them, a free line multiplies their
noise, and often ends at an end of the law; one through the origin is the default here. What was
measured, and that random repetitions did better, is in `third_party_notes/papers.md`.

Here everything is charged: each stage is the best of a secret number K of runs with private scores
(`RandomRepetitions`, Papernot & Steinke 2022), which costs less than three composed runs at K of
mean 10; stages and final training compose. Steps are the same in all runs, so that rate x steps is
extrapolated by the rate alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpjax import accounting, checks
from dpjax.tuning.evaluations.staged_runs import StagedRuns, middle
from dpjax.tuning.problem.space import Space
from dpjax.tuning.tuner import register_tuner
from dpjax.tuning.tuners.random_repetitions import DEFAULT_REPETITIONS

RULE = "a line through the best of K runs at several small epsilons, then private training"

ORIGIN, FREE = "through_origin", "free"
FITS = (ORIGIN, FREE)
"""Lines: proportional to epsilon, or of any height at 0, as the paper's through two points."""

_LEAST_SQUARES = (
    "least squares of it times the steps, which are the same in all runs, in the epsilon of a run"
)
_READ = "read at the final run's and clamped to its law"
_LINES = {
    ORIGIN: f"{_LEAST_SQUARES}, through the origin; {_READ}",
    FREE: f"{_LEAST_SQUARES}; {_READ}",
}

DEFAULT_SHARES = (0.1, 0.25)
"""Of the target, for the stages: the final training keeps nine tenths of it or so."""


@dataclasses.dataclass(frozen=True)
class FittedLine:
    """Least squares of a hyperparameter x steps in the epsilon of a run: a `LineChoice`.

    Attributes:
      extrapolated: the hyperparameter's name.
      fit: one of `FITS`.
    """

    extrapolated: str
    fit: str = ORIGIN

    def check(self, space: Space) -> None:
        """See `LineChoice`."""
        checks.text("extrapolated", self.extrapolated)
        checks.one_of("fit", self.fit, FITS)
        law = space.parameters.get(self.extrapolated)
        if law is None or not law.lowest < law.highest:
            raise ValueError(
                f"extrapolated={self.extrapolated!r} must be drawn from a range: pass "
                f"Space({self.extrapolated}=LogUniform(0.01, 10)), or the name of another "
                "hyperparameter"
            )

    def values(
        self,
        space: Space,
        winners: Sequence[Mapping[str, np.ndarray]],
        epsilons: Sequence[float],
        final_epsilon: float,
        steps: int,
    ) -> dict[str, np.ndarray]:
        """See `LineChoice`.

        What else the space draws is the last stage's winner's, of the largest epsilon. Where a
        stage found nothing, everything is the middle of its law.
        """
        law = space.parameters[self.extrapolated]
        heights = steps * np.stack([stage[self.extrapolated] for stage in winners], axis=1)
        places = np.asarray(epsilons, np.float64)
        centre, level = 0.0, np.zeros(len(heights))
        if self.fit == FREE:
            centre, level = places.mean(), heights.mean(axis=1)
        away = places - centre
        slopes = (heights - level[:, None]) @ away / (away @ away)
        reached = level + slopes * (final_epsilon - centre)
        values = np.clip(reached / steps, law.lowest, law.highest)
        if law.values is not None:
            listed = np.asarray(law.values, np.float64)
            values = listed[np.argmin(np.abs(listed[None, :] - values[:, None]), axis=1)]
        found = np.all(np.isfinite(heights), axis=1)
        chosen = dict(winners[-1]) | {self.extrapolated: values}
        return {
            name: np.where(found, chosen[name], middle(one))
            for name, one in sorted(space.parameters.items())
        }

    def describe(self) -> dict[str, Any]:
        """See `LineChoice`."""
        return {
            "rule": RULE,
            "extrapolated": self.extrapolated,
            "fit": self.fit,
            "line": _LINES[self.fit],
            "other_hyperparameters": "of the last stage's best run",
            "where_a_stage_finds_nothing": "the middle of every law",
            "not_stated": "what the stages found; they have paid for it",
        }


@register_tuner("extrapolation", rule=RULE)
@dataclasses.dataclass(frozen=True)
class Extrapolation:
    """Finds good rates at small epsilons and extrapolates them to one private training.

    Formal guarantees:
      `result.release` is (`result.guarantee.epsilon(delta)`, delta)-differentially private under
      `result.guarantee.relation`, for one record of the training or validation data, under the
      conditions of `RandomRepetitions`, of every stage. Enforced here: each stage is an execution
      of random repetitions with its own secret K, keys and noise, and is charged as such; the final
      training reads the stages' winners only, through a public line, within the public law (the
      middle of every law, where a stage found nothing: that is an outcome that the stage has paid
      for); the stages and the final DP-SGD are composed, at noise that does not depend on what the
      stages found. Which winners they were is paid for and not stated: the release names the final
      hyperparameters alone. A private validation record is touched by the stages only, and pays no
      more than the composition. Source: Papernot & Steinke (ICLR 2022) for a stage,
      `accounting.best_of` and `accounting.compose` for the cost; Panda et al. (ICML 2024) for the
      line, which is a heuristic: no privacy rests on it.

    Example:
      >>> from dpjax import tuning
      >>> type(tuning.Extrapolation()).__name__
      'Extrapolation'

    Attributes:
      repetitions: public law of the number K of candidates of each stage.
      stage_shares: each stage's epsilon over the target of the whole, ascending; public.
      stage_noise: noise multipliers of the stages' runs, descending; in place of stage_shares.
      extrapolated: the hyperparameter that the line is of.
      fit: through_origin, or a free line, which multiplies the noise of the stages' winners.
    """

    repetitions: accounting.RepetitionLaw = DEFAULT_REPETITIONS
    stage_shares: Sequence[float] = DEFAULT_SHARES
    stage_noise: Sequence[float] | None = None
    extrapolated: str = "learning_rate"
    fit: str = dataclasses.field(default=ORIGIN, metadata={"choices": FITS})

    @property
    def evaluation(self) -> StagedRuns:
        return StagedRuns(self.repetitions, self.stage_shares, self.stage_noise)

    @property
    def choice(self) -> FittedLine:
        return FittedLine(self.extrapolated, self.fit)

    @classmethod
    def from_statement(cls, claim: Mapping[str, Any]) -> Extrapolation:
        selection = claim["selection"]
        law = accounting.law_from_dict(selection["law_of_K"])
        return cls(law, extrapolated=selection["extrapolated"], fit=selection["fit"])
