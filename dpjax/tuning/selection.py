"""How one of many scored runs is selected: how many there are, which one wins, what that costs.

`RunChoice` is the rule, `draw` is all that is drawn before the first run, and `Selection` takes
what the runs gave. Native tuners and `dpjax.bridges` share this: a fix of the draw, of the ranking
or of what a folder keeps of them is made once. Choices among averaged utilities stand with their
tuners (`tuners.exponential`, for one).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

import jax
import numpy as np

from dpjax import accounting, checks
from dpjax.array_files import Arrays
from dpjax.randomness import integer_laws
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.tuning.problem.space import Space

PyTree = Any

# Numbers of a seeded `HostRandomness`'s streams, nothing to do with the named streams of a
# candidate's key; without a seed every draw is the operating system's.
_STREAM_OF_K, _STREAM_OF_SPACE, _STREAM_OF_SCORES = 1, 2, 3

BEST_OF = "best of K runs"
FIRST_ABOVE = "first run whose score reaches the threshold"


class RunChoice(Protocol):
    """A rule that selects the one of many scored runs that is released.

    `in_order` says that the first run that ranks above -inf wins, so that the later ones need not
    be trained. Programs are planned for `expected_runs`, the public mean number of runs.
    """

    in_order: bool

    @property
    def expected_runs(self) -> float:
        """Returns the public mean number of runs."""

    def guarantee(self, run: accounting.Guarantee) -> accounting.Guarantee:
        """Returns the cost of the release, given the cost of one run with its score."""

    def draw(self, executions: int, source: np.random.Generator | None) -> np.ndarray:
        """Draws the secret number of runs of each execution, (executions,) int, each >= 0."""

    def rank(self, scores: np.ndarray) -> np.ndarray:
        """Ranks runs by their scores (n,); the largest wins, -inf is never released."""

    def describe(self) -> dict[str, Any]:
        """Returns the public rule as data for JSON; the tuner's `from_statement` reads it."""


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
        return self.repetitions.mean

    def guarantee(self, run: accounting.Guarantee) -> accounting.Guarantee:
        return accounting.best_of(run, self.repetitions)

    def draw(self, executions: int, source: np.random.Generator | None) -> np.ndarray:
        return np.asarray(self.repetitions.sample(executions, source=source)).reshape(executions)

    def rank(self, scores: np.ndarray) -> np.ndarray:
        return scores

    def describe(self) -> dict[str, Any]:
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
        return 1.0 / self.halting_probability - 1.0

    def guarantee(self, run: accounting.Guarantee) -> accounting.Guarantee:
        return accounting.stop_at_threshold(run, self.halting_probability)

    def draw(self, executions: int, source: np.random.Generator | None) -> np.ndarray:
        if self.halting_probability == 1.0:
            return np.zeros(executions, dtype=np.int64)
        rounds = accounting.Geometric(mean=1.0 / self.halting_probability)
        # In the last round the coin says stop before a run.
        return np.asarray(rounds.sample(executions, source=source)).reshape(executions) - 1

    def rank(self, scores: np.ndarray) -> np.ndarray:
        """See `RunChoice`. All that pass rank alike; the earliest of equals wins."""
        return np.where(scores >= self.threshold, 0.0, -np.inf)

    def describe(self) -> dict[str, Any]:
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
        """Compares some candidates with the best so far, and keeps those that are better.

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
        challengers, seats = self.better(owners, candidates, scores)
        self.score[seats] = scores[challengers]
        self.candidate[seats] = candidates[challengers]
        for kept, new in zip(jax.tree.leaves(self._outputs), jax.tree.leaves(outputs)):
            kept[seats] = new[challengers]

    def better(
        self, owners: np.ndarray, candidates: np.ndarray, scores: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the places of those that would lead, and the executions that they would lead."""
        # The best challenger of each execution: by score, then the earlier candidate.
        order = np.lexsort((candidates, -scores, owners))
        challengers = order[np.unique(owners[order], return_index=True)[1]]
        seats = owners[challengers]
        held = self.candidate[seats]
        better = (scores[challengers] > self.score[seats]) | (
            (scores[challengers] == self.score[seats])
            & ((held < 0) | (candidates[challengers] < held))
        )
        return challengers[better], seats[better]

    @property
    def outputs(self) -> PyTree:
        """Returns every winner's output (executions, ...), zeros where there is none; or None."""
        return self._outputs

    def output(self, execution: int) -> PyTree:
        """Returns the winner's output, or None if the execution had no candidate."""
        if self.candidate[execution] < 0:
            return None
        return jax.tree.map(lambda leaf: leaf[execution], self._outputs)


OWN_BEST, OUTPUT = "best_candidate", "best_output_"
"""Arrays of a share: its winners, and what their outputs' names begin with, which may be large."""


def share_arrays(
    members: np.ndarray, units: np.ndarray, scores: np.ndarray, best: BestOfRuns
) -> Arrays:
    """Returns one share's results as arrays by name: members (n,), units, scores and the best."""
    kept = jax.tree.leaves(best.outputs)
    return {f"{OUTPUT}{place}": leaf for place, leaf in enumerate(kept)} | {
        "members": members,
        "units": units[members],
        "scores": scores[members],
        "best_score": best.score,
        OWN_BEST: best.candidate,
    }


def leading(shares: list[Arrays]) -> list[int]:
    """Drops from every share the winners that another share beats; returns the places of the rest.

    Only their outputs are needed to merge all. Shares that `share_arrays` did not make have none.
    """
    if OWN_BEST not in shares[0]:
        return []
    best = BestOfRuns(len(shares[0][OWN_BEST]))
    for share in shares:
        owners = np.flatnonzero(share[OWN_BEST] >= 0)
        best.update(owners, share[OWN_BEST][owners], share["best_score"][owners], ())
    for share in shares:
        share[OWN_BEST] = np.where(share[OWN_BEST] == best.candidate, best.candidate, -1)
    return [place for place, share in enumerate(shares) if (share[OWN_BEST] >= 0).any()]


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
    counts = counts_of(choice, executions, source)
    total = int(np.sum(counts))
    noise = np.zeros(total)
    if score_noise > 0 and total:
        noise = integer_laws.discrete_gaussian(score_noise, total, randomness, _STREAM_OF_SCORES)
    hyperparameters = space.sample(total, randomness.generator(_STREAM_OF_SPACE))
    return {"counts": counts, "noise": noise} | written_hyperparameters(hyperparameters)


def counts_of(choice: RunChoice, executions: int, source: np.random.Generator | None) -> np.ndarray:
    """Draws the number of runs of each execution, and refuses what is none."""
    counts = np.asarray(choice.draw(executions, source))
    if counts.shape != (executions,) or counts.dtype.kind not in "iu" or (counts < 0).any():
        raise ValueError(
            f"{type(choice).__name__}.draw(executions, source) must return whole numbers >= 0, one "
            "for each execution, as in np.ones(executions, np.int64)"
        )
    return counts


def ranks_of(choice: RunChoice, scores: np.ndarray) -> np.ndarray:
    """Ranks runs by their scores (n,), and refuses what is no rank of each.

    Formal guarantees:
      A run's rank is a function of its own score, whatever runs it is ranked beside: the rule sees
      one score at a time. With `in_order` all that rank above -inf rank alike, so the first wins.
    """
    ranks = np.array([_rank_of(choice, one) for one in scores[:, None]]).reshape(scores.shape)
    return np.where(ranks > -np.inf, 0.0, -np.inf) if choice.in_order else ranks


def _rank_of(choice: RunChoice, score: np.ndarray) -> float:
    return float(_ranks_together(choice, score)[0])


def _ranks_together(choice: RunChoice, scores: np.ndarray) -> np.ndarray:
    """Returns what a rule makes of scores (n,) at once."""
    ranks = np.asarray(choice.rank(scores))
    if ranks.shape != scores.shape or ranks.dtype.kind not in "iuf" or np.isnan(ranks).any():
        raise ValueError(
            f"{type(choice).__name__}.rank(scores) must return a number for each score, -inf for "
            "what may not be released"
        )
    return ranks


def check_ranks(choice: RunChoice) -> None:
    """Refuses a rule that ranks a run by the scores of others."""
    scores = np.array([0.5, 0.0, 1.0, 0.25, 0.5])
    ranks = [_rank_of(choice, one) for one in scores[:, None]]
    if not np.array_equal(_ranks_together(choice, scores), ranks):
        raise ValueError(
            f"{type(choice).__name__}.rank(scores) ranks a run by the scores of others, or "
            "otherwise each time: let a rank be a function of its own score alone"
        )


@dataclasses.dataclass(frozen=True)
class Executed:
    """Holds what came of one draw, for the curator only.

    `best` has the winner and `counts` (executions,) the realised K of each execution; all
    executions' candidates follow each other in the other arrays, (candidates,). `units` are exact
    sums of validation scores in whole units (`Task.units`), `scores` these with noise, in records:
    -inf for failed candidates and for those that a search in order did not reach.
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
        """Takes the `public_size` of the scored records, and the `units` of one record's score."""
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
        """Takes some candidates' results; of their `outputs` (n, ...) only the best are kept."""
        self._check_left(indices)
        scores, ranks = self._ranked(indices, units, finite)
        self.units[indices], self.scores[indices] = units, scores
        self.best.update(self.owners[indices], np.asarray(indices), ranks, outputs)
        self.reported[indices] = True

    def leads(self, index: int, units: int, finite: bool) -> bool:
        """Returns whether a candidate, not reported yet, would be the best so far."""
        self._check_left([index])
        _, ranks = self._ranked([index], [units], [finite])
        places, _ = self.best.better(self.owners[[index]], np.array([index]), ranks)
        return len(places) > 0

    def _check_left(self, indices: Any) -> None:
        """Refuses candidates that were reported already or are not of this selection."""
        if not np.isin(indices, self.left).all():
            raise ValueError(
                "a candidate was reported already, or is not of this selection: report each of "
                "its own once"
            )

    def _ranked(self, indices: Any, units: Any, finite: Any) -> tuple[np.ndarray, np.ndarray]:
        """Returns noisy scores in records, and ranks, by the accuracy over the public size."""
        noisy = (np.asarray(units) + self._noise[indices]) / self._units
        scores = np.where(finite, noisy, -np.inf)
        return scores, ranks_of(self._choice, scores / self._public_size)

    def share(self) -> Arrays:
        """Returns the results of this share of the candidates, as `Job.collected` takes them.

        It lists the candidates that were reported, not those that were meant to be, so that a merge
        notices a missing one.
        """
        return share_arrays(np.flatnonzero(self.reported), self.units, self.scores, self.best)


def merged(shares: list[Arrays], drawn: Arrays, structure: Any) -> Executed:
    """Merges all shares of a draw; a stored outcome is the draw and its only share in one.

    Together they must hold each candidate once. `structure` is the pytree of a winner's output.
    """
    total = int(np.sum(drawn["counts"]))
    members = np.concatenate([share["members"] for share in shares])
    if not np.array_equal(np.sort(members), np.arange(total)):
        raise ValueError("the shares do not hold every candidate once: merge shards of one draw")
    units, scores = np.zeros(total, dtype=np.int64), np.full(total, -np.inf)
    best = BestOfRuns(len(shares[0]["best_score"]))
    for share in shares:
        units[share["members"]] = share["units"]
        scores[share["members"]] = share["scores"]
        owners = np.flatnonzero(share[OWN_BEST] >= 0)
        if len(owners):
            outputs = jax.tree.unflatten(
                structure,
                [share[f"{OUTPUT}{place}"][owners] for place in range(structure.num_leaves)],
            )
            best.update(owners, share[OWN_BEST][owners], share["best_score"][owners], outputs)
    return Executed(best, drawn["counts"], read_hyperparameters(drawn), units, scores)


def written_executed(executed: Executed) -> Arrays:
    """Returns an `Executed` as arrays by name, without the draw's keys and noise."""
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
