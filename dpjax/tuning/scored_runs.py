"""The scored runs of one draw: what is drawn before the first, what each gave, which one wins.

Native tuners and `dpjax.bridges` share this: a fix of the draw, of the ranking or of what a folder
keeps of them is made once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from dpjax.array_files import Arrays
from dpjax.randomness import integer_laws
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.tuning.choices import RunChoice
from dpjax.tuning.evaluations.best_of_runs import BestOfRuns
from dpjax.tuning.job import merged_shares, share_arrays
from dpjax.tuning.problem.space import Space

# Numbers of a seeded `HostRandomness`'s streams, nothing to do with the named streams of a
# candidate's key; without a seed every draw is the operating system's.
_STREAM_OF_K, _STREAM_OF_SPACE, _STREAM_OF_SCORES = 1, 2, 3


def draw(
    choice: RunChoice,
    space: Space,
    randomness: HostRandomness,
    *,
    score_noise: float,
    executions: int = 1,
) -> Arrays:
    """Draws K of every execution, and every candidate's hyperparameters and score noise.

    `score_noise` is the std of the discrete Gaussian in whole units, 0 for none.
    """
    source = None if randomness.secret else randomness.generator(_STREAM_OF_K)
    counts = choice.draw(executions, source)
    total = int(np.sum(counts))
    noise = np.zeros(total)
    if score_noise > 0 and total:
        noise = integer_laws.discrete_gaussian(score_noise, total, randomness, _STREAM_OF_SCORES)
    hyperparameters = space.sample(total, randomness.generator(_STREAM_OF_SPACE))
    return {"counts": counts, "noise": noise} | written_hyperparameters(hyperparameters)


@dataclasses.dataclass(frozen=True)
class Executed:
    """What came of one draw, for the curator only.

    `best` has the winner and `counts` (executions,) the realised K of each execution; all
    executions' candidates follow each other in the other arrays, (candidates,). `units` are exact
    sums of validation scores in whole units (`Task.units`), `scores` these with noise, in records:
    -inf for failed candidates and for those that a search in order did not come to.
    """

    best: BestOfRuns
    counts: np.ndarray
    hyperparameters: dict[str, np.ndarray]
    units: np.ndarray
    scores: np.ndarray

    @property
    def released(self) -> int | None:
        """Returns the candidate that the first execution releases; None where all failed."""
        return int(self.best.candidate[0]) if np.isfinite(self.best.score[0]) else None


class Selection:
    """The candidates of one draw, and the best of those that were reported so far.

    Formal guarantees:
      A candidate's rank is a function of its own units, whether it failed and its own noise, which
      was drawn before any run; one that failed ranks worst. Each is reported once. Winners are the
      best of each execution, the earlier of equals, in whatever order and groups they are reported.
    """

    def __init__(self, choice: RunChoice, drawn: Arrays, public_size: int, units: int = 1):
        """`public_size` of the records that are scored, `units` of one record's score."""
        self.counts, self._noise = drawn["counts"], drawn["noise"]
        self.owners = np.repeat(np.arange(len(self.counts)), self.counts)
        self.hyperparameters = read_hyperparameters(drawn)
        self._choice, self._public_size, self._units = choice, public_size, units
        total = len(self.owners)
        self.units, self.scores = np.zeros(total, np.int64), np.full(total, -np.inf)
        self.reported = np.zeros(total, bool)
        self.best = BestOfRuns(len(self.counts))

    @property
    def left(self) -> np.ndarray:
        """Returns the candidates that are not reported yet, in order."""
        return np.flatnonzero(~self.reported)

    def report(self, indices: Any, units: Any, finite: Any, outputs: Any) -> None:
        """Takes some candidates' results; `outputs` (n, ...) are kept of the best alone."""
        self._check_left(indices)
        scores, ranks = self._ranked(indices, units, finite)
        self.units[indices], self.scores[indices] = units, scores
        self.best.update(self.owners[indices], np.asarray(indices), ranks, outputs)
        self.reported[indices] = True

    def leads(self, index: int, units: int, finite: bool) -> bool:
        """Returns whether a candidate that is not reported yet would be the best so far."""
        self._check_left([index])
        _, ranks = self._ranked([index], [units], [finite])
        places, _ = self.best.better(self.owners[[index]], np.array([index]), ranks)
        return len(places) > 0

    def _check_left(self, indices: Any) -> None:
        if not np.isin(indices, self.left).all():
            raise ValueError(
                "a candidate was reported already, or is none of this selection: report each of "
                "its own once"
            )

    def _ranked(self, indices: Any, units: Any, finite: Any) -> tuple[np.ndarray, np.ndarray]:
        """Returns noisy scores in records, and ranks, by the accuracy over the public size."""
        noisy = (np.asarray(units) + self._noise[indices]) / self._units
        scores = np.where(finite, noisy, -np.inf)
        return scores, self._choice.rank(scores / self._public_size)

    def share(self) -> Arrays:
        """Returns what a share of the candidates gave, as `Job.collected` takes it.

        What stands in it was reported, not merely meant to be: a merge counts it.
        """
        return share_arrays(np.flatnonzero(self.reported), self.units, self.scores, self.best)


def merged(shares: list[Arrays], drawn: Arrays, structure: Any) -> Executed:
    """Merges all shares of a draw; of a kept outcome, it is the draw and its only share."""
    total = int(np.sum(drawn["counts"]))
    units, scores = np.zeros(total, dtype=np.int64), np.full(total, -np.inf)
    best = merged_shares(shares, units, scores, structure)
    return Executed(best, drawn["counts"], read_hyperparameters(drawn), units, scores)


def written_executed(executed: Executed) -> Arrays:
    """Returns what was executed, as arrays by name; of the draw no key and no noise."""
    units, scores, best = executed.units, executed.scores, executed.best
    return (
        share_arrays(np.arange(len(units)), units, scores, best)
        | {"counts": executed.counts}
        | written_hyperparameters(executed.hyperparameters)
    )


_HYPERPARAMETER = "hyperparameter_"


def written_hyperparameters(values: Mapping[str, np.ndarray]) -> Arrays:
    """Returns candidates' hyperparameters under names that tell them from other arrays."""
    return {f"{_HYPERPARAMETER}{name}": kept for name, kept in values.items()}


def read_hyperparameters(arrays: Arrays) -> dict[str, np.ndarray]:
    """Reads what `written_hyperparameters` wrote, sorted by name."""
    names = sorted(name for name in arrays if name.startswith(_HYPERPARAMETER))
    return {name.removeprefix(_HYPERPARAMETER): arrays[name] for name in names}
