"""One execution: everything random is drawn before the first run, and one winner comes out."""

from __future__ import annotations

import copy
import time
import warnings
from typing import Any

import numpy as np

from dpjax.bridges import claims
from dpjax.bridges.candidates import Label
from dpjax.bridges.kept import NOISE, NUMBER, SEEDS, Ended, Kept, named
from dpjax.bridges.model_files import DeclaredRelease, ModelFile
from dpjax.bridges.outcomes import FAILED, Outcome
from dpjax.bridges.procedure import Procedure
from dpjax.bridges.seeds import SEED_BITS
from dpjax.randomness import integer_laws
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.tuning import cautions
from dpjax.tuning.curator import CuratorRecord
from dpjax.tuning.job import Arrays, Job
from dpjax.tuning.selection import BestOfRuns
from dpjax.tuning.tuner import Result

# Of a seeded `HostRandomness`; without a seed every draw is the operating system's.
_STREAM_OF_K, _STREAM_OF_SPACE, _STREAM_OF_SCORES, _STREAM_OF_SEEDS = 1, 2, 3, 4


class RunsWarning(UserWarning):
    """Some runs raised, or returned what is no count; the curator's to look into."""


class Selection:
    """K candidates with their seeds and their noise, and the best of those reported so far.

    Formal guarantees:
      K, candidates, seeds and noise are drawn when the object is made or before, so that no result
      of a run can move them; what a candidate gets depends on
      nothing of another. Each candidate is reported once, to this process or an earlier one; there
      is no result before all K are; a candidate that failed counts and ranks worst. The winner is
      the best noisy score, the earlier of equals, in whatever order they are reported; its model
      alone is kept.
    """

    def __init__(
        self,
        procedure: Procedure,
        seed: int | None,
        model_file: ModelFile = ModelFile(),  # noqa: B008 (immutable)
        kept: Kept | None = None,
    ):
        """Draws everything, unless `kept` holds the draw of a job's folder."""
        self.procedure, self.secret = procedure, seed is None
        if kept is None:
            cautions.of_arguments(procedure.delta, procedure.score.public_size, seed)
            kept = Kept(Job(), drawn(procedure, seed))
        self._kept = kept
        self.number, self._drawn = int(self._kept.drawn[NUMBER]), self._kept.hyperparameters
        self._outcomes: dict[int, Outcome] = {}
        self._best, self._model = BestOfRuns(1), None
        self._model_file, self._files = model_file, dict[str, bytes]()
        self._started = time.time()
        for index, ended in self._kept.ended():
            model = model_file.read(ended.files or {})
            self._note(index, ended, self._best_with(index, ended.score), model)

    def __repr__(self) -> str:
        """Shows no K."""
        return "Selection(not private: for the curator only)"

    @property
    def left(self) -> list[int]:
        """Returns the candidates that are not reported yet, in order."""
        return [index for index in range(self.number) if index not in self._outcomes]

    def candidate(self, index: int) -> tuple[int, dict[str, Label]]:
        """Returns the seed and a copy of the hyperparameters of one candidate."""
        return int(self._kept.drawn[SEEDS][index]), self._values(index)

    def _values(self, index: int) -> dict[str, Label]:
        drawn = {name: values[index] for name, values in self._drawn.items()}
        return self.procedure.candidates.values(drawn)

    def report(self, index: int, model: Any, count: Any) -> Outcome:
        """Takes the model and the count, not clipped yet, that a run returned."""
        counted, remark = self.procedure.score.counted(count)
        return self._ranked(index, model, counted, remark)

    def failed(self, index: int, why: str) -> Outcome:
        """Takes that a run ended in nothing; it ranks worst."""
        return self._ranked(index, None, None, f"{FAILED}{why}")

    def _ranked(self, index: int, model: Any, count: int | None, remark: str | None) -> Outcome:
        if not 0 <= index < self.number:
            raise ValueError(f"{index} is no candidate of this selection: report its own")
        if index in self._outcomes:
            raise ValueError(f"candidate {index} was reported already: report each once")
        score = -np.inf
        if count is not None:
            noisy = count + self._kept.drawn[NOISE][index]
            score = float(noisy) / self.procedure.score.public_size
        best = self._best_with(index, score)
        # Written before anything is noted: a model that cannot be is no report.
        files = self._model_file.files(model) if best.candidate[0] == index else None
        ended = Ended(count, score, remark, files)
        self._kept.keep(index, ended)
        return self._note(index, ended, best, model)

    def _best_with(self, index: int, score: float) -> BestOfRuns:
        """Returns the best so far, once this candidate has competed."""
        best = copy.deepcopy(self._best)
        rank = self.procedure.choice.rank(np.array([score]))
        best.update(np.zeros(1, np.int64), np.array([index]), rank, ())
        return best

    def _note(self, index: int, ended: Ended, best: BestOfRuns, model: Any) -> Outcome:
        self._best = best
        if best.candidate[0] == index:
            self._files, self._model = ended.files or {}, model  # Those before are dropped.
        outcome = Outcome(index, self._values(index), ended.count, ended.score, ended.remark)
        self._outcomes[index] = outcome
        return outcome

    def consumed(self) -> Arrays:
        """Returns what replaces the draw in a job's folder, once every candidate was reported."""
        winner = self._winner
        return self._kept.consumed(
            [
                Ended(
                    one.count,
                    one.score,
                    one.remark,
                    self._files if one.candidate == winner else None,
                )
                for one in self._all_outcomes()
            ]
        )

    @property
    def _winner(self) -> int | None:
        found = np.isfinite(self._best.score[0])
        return int(self._best.candidate[0]) if found else None

    def _all_outcomes(self) -> list[Outcome]:
        if len(self._outcomes) < self.number:
            raise ValueError(
                "candidates are left: run and report every one, failed ones too, before the result "
                "(stopping early would look at scores)"
            )
        return [self._outcomes[index] for index in range(self.number)]

    def result(self, default: Any) -> Result:
        """Returns the winner, or `default`, which no record has influenced, where there is none."""
        procedure, outcomes = self.procedure, self._all_outcomes()
        winner = self._winner
        if winner is None:
            model, files = default, self._model_file.files(default)
            hyperparameters = dict.fromkeys(procedure.candidates.space.parameters)
            cautions.of_untrained("no run could be released (all failed, or none was drawn)")
        else:
            model, files = self._model, self._files
            hyperparameters = dict(outcomes[winner].hyperparameters)
        remarks = {str(one.candidate): one.remark for one in outcomes if one.remark}
        if remarks:
            some = (
                "some runs raised, or returned no whole number of correct predictions (an accuracy "
                "is a fraction, and none): for the curator, "
            )
            warnings.warn(
                _all_failed(outcomes[0])
                if all(one.failed for one in outcomes)
                else some + "result.curator.details['remarks'] says which",
                RunsWarning,
                stacklevel=cautions.users_level(),
            )
        counts = [np.nan if one.count is None else one.count for one in outcomes]
        return Result(
            release=DeclaredRelease(
                params=model,
                hyperparameters=hyperparameters,
                statement=claims.statement(procedure, secret=self.secret),
                files=files,
            ),
            guarantee=procedure.guarantee,
            run_guarantee=procedure.run_guarantee,
            curator=CuratorRecord(
                number_of_candidates=self.number,
                winner=int(self._best.candidate[0]),
                hyperparameters=self._drawn,
                scores=np.array([one.score for one in outcomes]),
                accuracies=np.array(counts) / procedure.score.public_size,
                seconds=time.time() - self._started,
                details={
                    "remarks": remarks,
                    "labels": {n: list(v) for n, v in procedure.candidates.labels.items()},
                },
            ),
        )


def _all_failed(first: Outcome) -> str:
    """Returns the warning where every run failed, and the cost is spent.

    The kind of the first error alone: its text may quote records, and warnings end up in logs and
    reports more easily than the curator's record does.
    """
    kind = (first.remark or "").removeprefix(FAILED).partition(": ")[0]
    return (
        f"all runs failed and the whole epsilon is spent; of the first: {kind}; for the curator, "
        "result.curator.details['remarks'] has its words; before the next tuning call "
        "run(seed, hyperparameters) on made-up data"
    )


def drawn(procedure: Procedure, seed: int | None) -> Arrays:
    """Draws K, and every candidate's noise, hyperparameters and seed; arrays by name."""
    if procedure.ledger is not None:  # Before anything is drawn, so that no draw goes unnoted.
        procedure.ledger.note(procedure.guarantee.epsilon(procedure.delta), procedure.delta)
    randomness = HostRandomness(seed)
    source = None if randomness.secret else randomness.generator(_STREAM_OF_K)
    number = int(procedure.choice.draw(1, source)[0])
    noise = np.zeros(number, dtype=np.int64)
    if procedure.deviation > 0 and number:
        noise = integer_laws.discrete_gaussian(
            procedure.deviation, number, randomness, _STREAM_OF_SCORES
        )
    space = randomness.generator(_STREAM_OF_SPACE)
    candidates = procedure.candidates.sample(number, space)
    seeds = randomness.words(number, _STREAM_OF_SEEDS) >> np.uint64(64 - SEED_BITS)
    return {NUMBER: np.array(number), NOISE: noise, SEEDS: seeds} | named(candidates)
