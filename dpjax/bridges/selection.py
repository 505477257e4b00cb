"""One execution: everything random is drawn before the first run, and one winner comes out."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np

from dpjax.bridges import claims
from dpjax.bridges.candidates import Label
from dpjax.bridges.model_files import DeclaredRelease, ModelFile
from dpjax.bridges.outcomes import Outcome
from dpjax.bridges.procedure import Procedure
from dpjax.bridges.seeds import SEED_BITS
from dpjax.randomness import integer_laws
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.tuning import cautions
from dpjax.tuning.curator import CuratorRecord
from dpjax.tuning.evaluations.best_of_runs import BestOfRuns
from dpjax.tuning.tuner import Result

# Of a seeded `HostRandomness`; without a seed every draw is the operating system's.
_STREAM_OF_K, _STREAM_OF_SPACE, _STREAM_OF_SCORES, _STREAM_OF_SEEDS = 1, 2, 3, 4


class RunsWarning(UserWarning):
    """Some runs raised, or returned what is no count; the curator's to look into."""


class Selection:
    """K candidates with their seeds and their noise, and the best of those reported so far.

    Formal guarantees:
      K, candidates, seeds and noise are drawn when the object is made, so that no result of a run
      can move them; what a candidate gets depends on nothing of another. Each candidate is reported
      once; there is no result before all K are; a candidate that failed counts and ranks worst. The
      winner is the best noisy score, the earlier of equals, in whatever order they are reported;
      its model alone is kept.

    Attributes:
      procedure: what was fixed beforehand.
      secret: whether no seed was given.
      number: the realised K; the curator's.
    """

    def __init__(self, procedure: Procedure, seed: int | None):
        cautions.of_arguments(procedure.delta, procedure.score.public_size, seed)
        randomness = HostRandomness(seed)
        self.procedure, self.secret = procedure, randomness.secret
        source = None if randomness.secret else randomness.generator(_STREAM_OF_K)
        self.number = number = int(procedure.choice.draw(1, source)[0])
        self._noise = np.zeros(number, dtype=np.int64)
        if procedure.deviation > 0 and number:
            self._noise = integer_laws.discrete_gaussian(
                procedure.deviation, number, randomness, _STREAM_OF_SCORES
            )
        space = randomness.generator(_STREAM_OF_SPACE)
        self._drawn = procedure.candidates.sample(number, space)
        words = randomness.words(number, _STREAM_OF_SEEDS)
        self._seeds = [int(word) >> (64 - SEED_BITS) for word in words]
        self._outcomes: dict[int, Outcome] = {}
        self._best, self._model = BestOfRuns(1), None
        self._started = time.time()

    def __repr__(self) -> str:
        """Shows no K."""
        return "Selection(not private: for the curator only)"

    def candidate(self, index: int) -> tuple[int, dict[str, Label]]:
        """The seed and the hyperparameters of one candidate, the latter a copy."""
        drawn = {name: values[index] for name, values in self._drawn.items()}
        return self._seeds[index], self.procedure.candidates.values(drawn)

    def report(self, index: int, model: Any, count: Any) -> Outcome:
        """Takes what a run returned; the count as it is.

        Raises:
          ValueError: for a candidate that was reported before.
        """
        counted, remark = self.procedure.score.counted(count)
        return self._ranked(index, model, counted, remark)

    def failed(self, index: int, why: str) -> Outcome:
        """Takes that a run ended in nothing.

        Raises:
          ValueError: for a candidate that was reported before.
        """
        return self._ranked(index, None, None, f"ranked worst: {why}")

    def _ranked(self, index: int, model: Any, count: int | None, remark: str | None) -> Outcome:
        if not 0 <= index < self.number:
            raise ValueError(f"{index} is no candidate of this selection: report its own")
        if index in self._outcomes:
            raise ValueError(f"candidate {index} was reported already: report each once")
        score = -np.inf
        if count is not None:
            score = float(count + self._noise[index]) / self.procedure.score.public_size
        rank = self.procedure.choice.rank(np.array([score]))
        self._best.update(np.zeros(1, np.int64), np.array([index]), rank, ())
        if self._best.candidate[0] == index:
            self._model = model  # The one before is dropped.
        values = self.candidate(index)[1]
        self._outcomes[index] = Outcome(index, values, count, score, remark)
        return self._outcomes[index]

    def result(self, default: Any, model_file: ModelFile) -> Result:
        """The winner, or what no record had an influence on.

        Args:
          default: the model that is released where there is no winner.
          model_file: how a model is written.

        Raises:
          ValueError: before every candidate was reported.
        """
        if len(self._outcomes) < self.number:
            raise ValueError(
                "candidates are left: run and report every one, failed ones too, before the result "
                "(stopping early would look at scores)"
            )
        procedure, outcomes = self.procedure, [self._outcomes[i] for i in range(self.number)]
        winner = int(self._best.candidate[0])
        if winner < 0 or not np.isfinite(self._best.score[0]):
            model, hyperparameters = default, dict.fromkeys(procedure.candidates.space.parameters)
            cautions.of_untrained("no run could be released (all failed, or none was drawn)")
        else:
            model, hyperparameters = self._model, dict(outcomes[winner].hyperparameters)
        remarks = {str(one.candidate): one.remark for one in outcomes if one.remark}
        if remarks:
            warnings.warn(
                "some runs raised, or returned counts that are none: for the curator, "
                "result.curator.details['remarks'] says which",
                RunsWarning,
                stacklevel=cautions.users_level(),
            )
        counts = [np.nan if one.count is None else one.count for one in outcomes]
        return Result(
            release=DeclaredRelease(
                params=model,
                hyperparameters=hyperparameters,
                statement=claims.statement(procedure, secret=self.secret),
                model_file=model_file,
            ),
            guarantee=procedure.guarantee,
            run_guarantee=procedure.run_guarantee,
            curator=CuratorRecord(
                number_of_candidates=self.number,
                winner=winner,
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
