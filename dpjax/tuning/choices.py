"""Choices among scored private runs: how many runs there are, which one wins, what that costs.

Choices among averaged utilities stand with their tuners (`tuners.exponential`, for one); their
protocol is `evaluations.partition_models.UtilityChoice`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import numpy as np

from dpjax import accounting, checks

BEST_OF = "best of K runs"
FIRST_ABOVE = "first run whose score reaches the threshold"


class RunChoice(Protocol):
    """A rule that looks at many scored runs and lets one out.

    `in_order` says that the first run that ranks above -inf wins, so that the later ones need not
    be trained. Programs are planned for `expected_runs`, the public mean number of runs.
    """

    in_order: bool

    @property
    def expected_runs(self) -> float:
        """See above."""

    def guarantee(self, run: accounting.Guarantee) -> accounting.Guarantee:
        """Returns the cost of the release, given the cost of one run with its score."""

    def draw(self, executions: int, source: np.random.Generator | None) -> np.ndarray:
        """Draws the secret number of runs of each execution, (executions,) int, each >= 0."""

    def rank(self, scores: np.ndarray) -> np.ndarray:
        """Ranks runs by their scores (n,); the largest wins, -inf is never released."""

    def describe(self) -> dict[str, Any]:
        """Returns the public rule as JSON-able data; the tuner's `from_statement` reads it."""


@dataclasses.dataclass(frozen=True)
class BestOf:
    """Releases the best of K runs, K from a public distribution (Papernot & Steinke 2022)."""

    repetitions: accounting.RepetitionLaw
    in_order = False

    def __post_init__(self) -> None:
        law, example = accounting.RepetitionLaw, "accounting.Geometric(10)"
        checks.instance("repetitions", self.repetitions, law, example)

    @property
    def expected_runs(self) -> float:
        """See `RunChoice`."""
        return self.repetitions.mean

    def guarantee(self, run: accounting.Guarantee) -> accounting.Guarantee:
        """See `RunChoice`."""
        return accounting.best_of(run, self.repetitions)

    def draw(self, executions: int, source: np.random.Generator | None) -> np.ndarray:
        """See `RunChoice`."""
        return np.asarray(self.repetitions.sample(executions, source=source)).reshape(executions)

    def rank(self, scores: np.ndarray) -> np.ndarray:
        """See `RunChoice`."""
        return scores

    def describe(self) -> dict[str, Any]:
        """See `RunChoice`."""
        return {"rule": BEST_OF, "law_of_K": self.repetitions.to_dict()}


@dataclasses.dataclass(frozen=True)
class FirstAbove:
    """Releases the first run whose score reaches a threshold; a coin may end the search before.

    Liu & Talwar (STOC 2019); Papernot & Steinke (2022), Appendix C. Before every run a coin says
    stop with the halting probability, and then nothing is released. The rounds until the coin says
    stop are geometric whatever the scores, so they are drawn beforehand. The threshold is on the
    noisy validation accuracy, and fixed before the data is seen.
    """

    threshold: float
    halting_probability: float
    in_order = True

    @property
    def expected_runs(self) -> float:
        """See `RunChoice`."""
        return 1.0 / self.halting_probability - 1.0

    def guarantee(self, run: accounting.Guarantee) -> accounting.Guarantee:
        """See `RunChoice`."""
        return accounting.stop_at_threshold(run, self.halting_probability)

    def draw(self, executions: int, source: np.random.Generator | None) -> np.ndarray:
        """See `RunChoice`."""
        if self.halting_probability == 1.0:
            return np.zeros(executions, dtype=np.int64)
        rounds = accounting.Geometric(mean=1.0 / self.halting_probability)
        # The last of the rounds is the one in which the coin says stop: no run.
        return np.asarray(rounds.sample(executions, source=source)).reshape(executions) - 1

    def rank(self, scores: np.ndarray) -> np.ndarray:
        """See `RunChoice`. All that pass rank alike; the earliest of equals wins."""
        return np.where(scores >= self.threshold, 0.0, -np.inf)

    def describe(self) -> dict[str, Any]:
        """See `RunChoice`."""
        return {
            "rule": FIRST_ABOVE,
            "threshold": self.threshold,
            "halting_probability": self.halting_probability,
        }
