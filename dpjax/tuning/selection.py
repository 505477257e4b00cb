"""How one of many scored runs is selected: how many there are, which one wins, what that costs.

`RunChoice` is the rule, and `BestOfRuns` keeps the winner while runs stream by. Choices among
averaged utilities stand with their tuners (`tuners.exponential`, for one).
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import jax
import numpy as np

from dpjax import accounting, checks
from dpjax.array_files import Arrays

PyTree = Any

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


class BestOfRuns:
    """The best-ranked output of each of several independent executions.

    Ranking: the higher score wins; the earlier candidate wins a tie; a score of -inf (a failed
    candidate) loses against every other and wins only where all failed. NaN scores are refused,
    since a comparison with them is not an order.

    Formal guarantees:
      What is kept of an execution is a function of the (score, output) pairs of its candidates
      under one fixed total order, as Papernot & Steinke (ICLR 2022) require of the selection.
    """

    def __init__(self, executions: int):
        self.score = np.full(executions, -np.inf)
        self.candidate = np.full(executions, -1, dtype=np.int64)
        self._outputs: PyTree = None

    def update(
        self, owners: np.ndarray, candidates: np.ndarray, scores: np.ndarray, outputs: PyTree
    ) -> None:
        """Lets some candidates compete.

        `owners` (n,) are the executions, `candidates` (n,) the candidates' numbers, `scores` (n,)
        -inf for a failed one, `outputs` arrays (n, ...).
        """
        if np.isnan(scores).any():
            raise ValueError("a score is NaN: rank failed candidates worst by passing -inf")
        if self._outputs is None:
            executions = len(self.score)
            self._outputs = jax.tree.map(
                lambda leaf: np.zeros((executions, *leaf.shape[1:]), leaf.dtype), outputs
            )
        order = np.lexsort((candidates, -scores, owners))
        challengers = order[np.unique(owners[order], return_index=True)[1]]
        seats = owners[challengers]
        held = self.candidate[seats]
        better = (scores[challengers] > self.score[seats]) | (
            (scores[challengers] == self.score[seats])
            & ((held < 0) | (candidates[challengers] < held))
        )
        challengers, seats = challengers[better], seats[better]
        self.score[seats] = scores[challengers]
        self.candidate[seats] = candidates[challengers]
        for kept, new in zip(jax.tree.leaves(self._outputs), jax.tree.leaves(outputs)):
            kept[seats] = new[challengers]

    @property
    def outputs(self) -> PyTree:
        """Returns every winner's output (executions, ...), zeros where there is none; or None."""
        return self._outputs

    def output(self, execution: int) -> PyTree:
        """Returns the winner's output, or None if the execution had no candidate."""
        if self.candidate[execution] < 0:
            return None
        return jax.tree.map(lambda leaf: leaf[execution], self._outputs)


def share_arrays(
    members: np.ndarray, units: np.ndarray, scores: np.ndarray, best: BestOfRuns
) -> Arrays:
    """Returns one share's results for `Job.collected`: members (n,), counts, scores, the best."""
    kept = jax.tree.leaves(best.outputs)
    return {f"best_output_{place}": leaf for place, leaf in enumerate(kept)} | {
        "members": members,
        "units": units[members],
        "scores": scores[members],
        "best_score": best.score,
        "best_candidate": best.candidate,
    }


def merged_shares(
    shares: list[Arrays], units: np.ndarray, scores: np.ndarray, structure: Any
) -> BestOfRuns:
    """Fills `units` and `scores` (candidates,) from all shares; returns the best of all.

    The shares must hold every candidate exactly once.
    """
    members = np.concatenate([share["members"] for share in shares])
    if not np.array_equal(np.sort(members), np.arange(len(units))):
        raise ValueError("the shares do not hold every candidate once: merge shards of one draw")
    best = BestOfRuns(len(shares[0]["best_score"]))
    for share in shares:
        units[share["members"]] = share["units"]
        scores[share["members"]] = share["scores"]
        owners = np.flatnonzero(share["best_candidate"] >= 0)
        if len(owners):
            outputs = jax.tree.unflatten(
                structure,
                [share[f"best_output_{place}"][owners] for place in range(structure.num_leaves)],
            )
            best.update(
                owners, share["best_candidate"][owners], share["best_score"][owners], outputs
            )
    return best
