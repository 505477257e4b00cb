"""The server's side of a federation: ask all to train, sum the votes under masks, name one.

All that the server ever holds is who took part and the noisy sums: of the votes, and of each round
of averaging with the winner where one was agreed on (`rounds`). It releases the winner, and the
model if it was trained privately.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

import numpy as np

from dpjax.federated import flower_internals as flower
from dpjax.federated.client import (
    ELECTION_RECORD,
    FINGERPRINT,
    PHASE,
    TRAIN_MESSAGE,
    VOTE_PHASE,
)
from dpjax.federated.election import Config, Election
from dpjax.federated.secure_sum import SecureSum, secure_sum
from dpjax.federated.sum_rules import SumAborted, SumRules
from dpjax.tuning.voting import tally

_POLL_SECONDS = 0.5


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What the server holds at the end; see `vote_release` for what of it may be released.

    Attributes:
      election: the rules.
      winner: index of the winning candidate.
      noisy_counts: (p,) int64, the sum of all noisy ballots, after scaling; the curator's.
      survivors: number of ballots in it.
      lost: number of clients that were planned for and are not in it.
      nodes: ids of the nodes whose ballots are in it.
      params: (d,) float32, the model after all rounds of averaging; None without rounds.
      round_survivors: number of updates in the sum of each round.
    """

    election: Election
    winner: int
    noisy_counts: np.ndarray
    survivors: int
    lost: int
    nodes: tuple[int, ...] = ()
    params: np.ndarray | None = None
    round_survivors: tuple[int, ...] = ()


def make_server_app(
    defaults: Config | None = None, on_outcome: Callable[[Outcome, Config], None] | None = None
) -> flower.ServerApp:
    """Makes the app that a SuperLink, a simulation or a process runs.

    The election is read from `defaults`, then from the run's configuration. Further keys of either:
    `timeout-seconds` to wait for the replies to one request, and for the nodes to appear.

    Args:
      defaults: settings that the run's configuration need not repeat.
      on_outcome: called with the outcome and the configuration, for example to write the release.
    """
    app = flower.ServerApp()

    @app.main()
    def main(grid: flower.Grid, context: flower.Context) -> None:
        from dpjax.federated.rounds import run_rounds

        config = {**(defaults or {}), **context.run_config}
        election = Election.from_config(config)
        timeout = float(config.get("timeout-seconds", 600.0))
        outcome = run_election(grid, context, election, timeout=timeout)
        if election.averaging.rounds:
            outcome = run_rounds(grid, context, outcome, timeout=timeout)
        if on_outcome is not None:
            on_outcome(outcome, config)

    return app


def run_election(
    grid: flower.Grid, context: flower.Context, election: Election, *, timeout: float = 600.0
) -> Outcome:
    """Holds one vote.

    Formal guarantees: those of `VotePlan`, for a server that follows this function. It asks for
    nothing that depends on records but the masked votes, and unmasks their sum only if at least
    `minimum_survivors` are in it.

    Args:
      grid: Flower's connection to the nodes.
      context: the ServerApp's.
      election: the rules, the same at every client.
      timeout: seconds to wait for each stage.

    Raises:
      ValueError: before any vote, if clients are missing, cannot take part or hold other rules.
      SumAborted, VoteAborted: without output, if too few votes arrive.
    """
    # Calibrated, and refused if it cannot be summed, before anyone trains.
    rules = election.rules
    if election.averaging.rounds:
        _ = election.averaging_rules
    nodes = _wait_for_nodes(grid, rules.clients, timeout)
    asked = flower.RecordDict(
        {ELECTION_RECORD: flower.ConfigRecord({FINGERPRINT: election.fingerprint})}
    )
    summed = summed_phase(
        grid, context, nodes, election, rules, VOTE_PHASE, TRAIN_MESSAGE, asked, timeout
    )
    return Outcome(
        election=election,
        winner=tally(summed.total, election.plan, len(summed.survivors)),
        noisy_counts=summed.total,
        survivors=len(summed.survivors),
        lost=len(nodes) - len(summed.survivors),
        nodes=summed.survivors,
    )


def _wait_for_nodes(grid: flower.Grid, clients: int, timeout: float) -> list[int]:
    """The ids of exactly the nodes planned for."""
    deadline = time.monotonic() + timeout
    while True:
        nodes = sorted(grid.get_node_ids())
        if len(nodes) > clients:
            raise ValueError(
                f"{len(nodes)} nodes are connected and the vote is planned for {clients}: plan it "
                f"for clients={len(nodes)}"
            )
        if len(nodes) == clients:
            return nodes
        if time.monotonic() > deadline:
            raise ValueError(
                f"{len(nodes)} of {clients} nodes are connected after {timeout:g} seconds: start "
                "the others, or plan the vote for fewer"
            )
        time.sleep(_POLL_SECONDS)


def summed_phase(
    grid: flower.Grid,
    context: flower.Context,
    nodes: Sequence[int],
    election: Election,
    rules: SumRules,
    phase: int,
    message_type: str,
    content: flower.RecordDict,
    timeout: float,
) -> SecureSum:
    """Lets every node prepare, then sums what those that are ready answer in this phase.

    Args:
      grid, context: see `run_election`.
      nodes: ids of those to ask.
      election: the rules, the same at every client.
      rules: of this phase's sum.
      phase: `VOTE_PHASE`, or the number of a round.
      message_type, content: of the request to prepare, the same for all.
      timeout: seconds to wait for each stage.

    Raises:
      ValueError: if a client holds other rules.
      SumAborted: if too few are ready, or left.
    """
    ready = _prepared_nodes(grid, nodes, election, message_type, content, timeout)
    instructions = {FINGERPRINT: election.fingerprint, PHASE: phase}
    return secure_sum(grid, context, ready, rules, instructions=instructions, timeout=timeout)


def _prepared_nodes(
    grid: flower.Grid,
    nodes: Sequence[int],
    election: Election,
    message_type: str,
    content: flower.RecordDict,
    timeout: float,
) -> list[int]:
    """Lets every node prepare for a phase; returns those that are ready for its secure sum.

    Args:
      grid: Flower's connection to the nodes.
      nodes: their ids.
      election: the rules.
      message_type, content: of the request, the same for all.
      timeout: seconds to wait.

    Raises:
      ValueError: if a client holds other rules.
      SumAborted: if too few are ready.
    """
    requests = [
        flower.Message(content, dst_node_id=node, message_type=message_type, group_id="0")
        for node in nodes
    ]
    replies = grid.send_and_receive(requests, timeout=timeout)
    ready, strangers, unable = [], [], []
    for reply in replies:
        node = reply.metadata.src_node_id
        if reply.has_error():
            unable.append(reply.error.reason or "no reason given")
        elif reply.content.config_records[ELECTION_RECORD][FINGERPRINT] != election.fingerprint:
            strangers.append(node)
        else:
            ready.append(node)
    if strangers:
        raise ValueError(
            f"{len(strangers)} of {len(nodes)} clients hold other candidates or settings than the "
            "server (their fingerprints differ): give all of them the same"
        )
    try:
        election.rules.check_members(len(ready))
    except SumAborted as abort:
        reasons = f" ({'; '.join(sorted(set(unable)))})" if unable else ""
        raise SumAborted(f"{abort}{reasons}") from None
    return ready
