"""Private runs in rounds: the candidates of a round are proposed by the scores of earlier ones.

`ProposedRuns` is the evaluation of `adaptive_proposals`. As in `private_runs`, K, keys and the
noise of scores are drawn once, before anything is trained, and so is what every proposal is drawn
with: a uniform number for each candidate, which a public rule (the choice) turns into a value once
the earlier rounds are scored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import numpy as np

from dpjax.randomness import keys as key_streams
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.tuning.choices import RunChoice
from dpjax.tuning.evaluations.best_of_runs import BestOfRuns
from dpjax.tuning.evaluations.candidate_runs import CandidateRun, run_of_candidate, trained_runs
from dpjax.tuning.evaluations.private_runs import (
    Executed,
    PrivateRuns,
    Procedure,
    draw_of,
    facts_of,
    rank_trained,
    read_executed,
    written_executed,
)
from dpjax.tuning.job import DRAW, Arrays, Job, put_together, share_arrays
from dpjax.tuning.problem.space import Space, space_from
from dpjax.tuning.problem.task import Task
from dpjax.tuning.tuner import Finish, Progress, Request, Restated, Result

# Of a seeded `HostRandomness`, apart from the streams of `private_runs`.
_STREAM_OF_PROPOSALS = 22


class ProposalChoice(RunChoice, Protocol):
    """A rule that proposes candidates, and chooses among those that were trained.

    Attributes:
      adapted: name of the hyperparameter that is proposed; all others are drawn from the space.
      round_size: candidates of a round, public.
    """

    adapted: str
    round_size: int

    def check(self, space: Space) -> None:
        """Refuses a space in which there is nothing to propose.

        Raises:
          ValueError: naming what to pass instead.
        """

    def proposed(self, points: np.ndarray, scores: np.ndarray, fresh: np.ndarray) -> np.ndarray:
        """Points of the unit interval, where the public law of `adapted` is uniform.

        The density of each, whatever the first two arguments, is within the bounds that were paid
        for.

        Args:
          points: (n,) of the candidates of earlier rounds.
          scores: (n,) their private scores, -inf for failed ones.
          fresh: (m,) independent uniform numbers in [0, 1).

        Returns:
          (m,) in [0, 1].
        """


@dataclasses.dataclass(frozen=True)
class ProposedRuns(PrivateRuns):
    """The evaluation: private runs, round after round, of candidates that the choice proposes."""

    def carry_out(
        self,
        task: Task,
        request: Request,
        choice: RunChoice,
        finish: Finish,
        *,
        randomness: HostRandomness,
        chunk_size: int,
        progress: Progress | None,
        job: Job,
    ) -> Result | None:
        """See `tuner.Evaluation`; `choice` is a `ProposalChoice`.

        Raises:
          ValueError: for shards, or several processes: a round begins when the last one has ended.
        """
        if job.shard is not None or jax.process_count() > 1:
            raise ValueError(
                "rounds are trained one after another: drop the shard, or the other processes, and "
                "pass one job"
            )
        _checked(choice, request.space)
        return super().carry_out(
            task,
            request,
            choice,
            finish,
            randomness=randomness,
            chunk_size=chunk_size,
            progress=progress,
            job=job,
        )

    def executed(self, procedure: Procedure, **how: Any) -> Executed:
        """Runs what was planned once; see `executed_in_rounds`."""
        return executed_in_rounds(procedure, **how)

    def restate(self, claim: Mapping[str, Any], choice: RunChoice, finish: Finish) -> Restated:
        """See `tuner.Evaluation`; the noise of scores is read from the statement."""
        _checked(choice, space_from(claim["candidates_drawn_from"]))
        return super().restate(claim, choice, finish)


def _checked(choice: Any, space: Space) -> ProposalChoice:
    choice.check(space)
    return choice


def executed_in_rounds(
    procedure: Procedure,
    *,
    randomness: HostRandomness,
    executions: int = 1,
    chunk_size: int = 16,
    progress: Callable[[int, int], None] | None = None,
    job: Job = Job(),  # noqa: B008 (immutable)
) -> Executed:
    """Runs the procedure, once or many times independently over.

    A release comes from one execution. Many serve audits.

    Formal guarantees:
      K, every candidate's key, the noise of its score and the uniform number it is proposed with
      come from `randomness`, in one draw, before the first run; each candidate has its own key.
      What is proposed depends on the points and private scores of earlier rounds of the same
      execution and on public numbers, not on K: rounds have a public size, the last one is cut. In
      a job's folder each round has a folder of its own, which draws once: a round that was begun
      goes on with the candidates that it was begun with, and its scores are not drawn again. One
      selection looks at all candidates.

    Args:
      procedure: what was fixed beforehand; its selection is a `ProposalChoice`.
      randomness: where everything random comes from.
      executions: how many independent times.
      chunk_size: candidates trained at once; the last chunk of a round is filled up.
      progress: called with (candidates done, candidates in all).
      job: where the candidates are trained.

    Raises:
      ValueError: for a folder that is another procedure's, another process's or another user's, or
        holds something damaged; one line that says which.
    """

    def work(drawn: Arrays) -> Arrays:
        return _worked_out(procedure, drawn, executions, chunk_size, progress, job)

    outcome = job.once(
        lambda: _drawn(procedure, randomness, executions),
        lambda: facts_of(procedure, randomness, executions) | {"method": "proposals in rounds"},
        work,
    )
    assert outcome is not None  # There are no shards.
    return read_executed(outcome, procedure.task)


def _worked_out(
    procedure: Procedure,
    drawn: Arrays,
    executions: int,
    chunk_size: int,
    progress: Callable[[int, int], None] | None,
    job: Job,
) -> Arrays:
    """What `executed_in_rounds` keeps of a draw."""
    choice = _checked(procedure.selection, procedure.space)
    structure = jax.tree.structure(jax.eval_shape(procedure.task.initial, jax.random.key(0)))
    counts = drawn["counts"]
    total = int(np.sum(counts))
    hyperparameters = {
        name: drawn[f"hyperparameter_{name}"].copy() for name in sorted(procedure.space.parameters)
    }
    units, scores = np.zeros(total, dtype=np.int64), np.full(total, -np.inf)
    owners = np.repeat(np.arange(executions), counts)
    order = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    rounds = order // choice.round_size
    points, done = np.full(total, np.nan), 0
    run = run_of_candidate(procedure, procedure.settings[0], job)
    shares = [share_arrays(np.arange(0), units, scores, BestOfRuns(executions))]
    for number in range(int(rounds.max(initial=-1)) + 1):
        members = np.flatnonzero(rounds == number)
        for owner, chosen in _by_owner(owners, members):
            # An execution's candidates stand together.
            before = np.arange(chosen[0] - number * choice.round_size, chosen[0])
            assert np.all(owners[before] == owner)
            fresh = drawn["fresh"][chosen]
            points[chosen] = choice.proposed(points[before], scores[before], fresh)
        law = procedure.space.parameters[choice.adapted]
        hyperparameters[choice.adapted][members] = law.from_unit(points[members])
        share = _round(
            procedure,
            hyperparameters,
            points,
            drawn,
            members,
            owners,
            executions,
            chunk_size,
            job.inner(f"round_{number + 1}"),
            run,
        )
        units[members], scores[members] = share["units"], share["scores"]
        shares.append(share)
        done += len(members)
        if progress is not None:
            progress(done, total)
    best = put_together(shares, units, scores, structure)
    return written_executed(Executed(best, counts, hyperparameters, units, scores))


def _by_owner(owners: np.ndarray, members: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """(execution, its members) of ascending members."""
    starts = np.flatnonzero(np.diff(owners[members], prepend=-1))
    return [(int(owners[part[0]]), part) for part in np.split(members, starts[1:]) if len(part)]


def _drawn(procedure: Procedure, randomness: HostRandomness, executions: int) -> Arrays:
    """As `private_runs.draw_of`, and each candidate's uniform number."""
    drawn = draw_of(procedure, randomness, executions)
    total = int(np.sum(drawn["counts"]))
    return drawn | {"fresh": randomness.generator(_STREAM_OF_PROPOSALS).random(total)}


def _round(
    procedure: Procedure,
    hyperparameters: dict[str, np.ndarray],
    points: np.ndarray,
    drawn: Arrays,
    members: np.ndarray,
    owners: np.ndarray,
    executions: int,
    chunk_size: int,
    job: Job,
    run: CandidateRun,
) -> Arrays:
    """Trains and scores the candidates of one round; as from `share_arrays`."""

    def work(_: Arrays) -> Arrays:
        keys = jax.random.wrap_key_data(drawn["keys"], impl=key_streams.IMPLEMENTATION)
        units = np.zeros(len(owners), dtype=np.int64)
        scores = np.full(len(owners), -np.inf)
        best = BestOfRuns(executions)
        for indices, outputs in trained_runs(
            procedure, hyperparameters, keys, members, chunk_size, job, run
        ):
            rank_trained(procedure, indices, outputs, drawn["noise"], owners, units, scores, best)
        return share_arrays(members, units, scores, best)

    share = job.once(
        dict,
        lambda: {
            "the draw": drawn[DRAW].tolist() if DRAW in drawn else None,
            "the candidates": members.tolist(),
            "what is proposed": points[members].tolist(),
        },
        work,
    )
    assert share is not None  # There are no shards.
    return share
