"""The server's side of a federation: ask all to train, sum the votes under masks, name one.

All that the server ever holds is who took part and the noisy sums: of the votes, and of each round
of averaging with the winner where one was agreed on (`rounds`). It releases the winner, and the
model if it was trained privately.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from dpjax.federated.federation_settings import Config
from dpjax.federated.flower import internals as flower
from dpjax.federated.flower.election import Election
from dpjax.federated.flower.outcome import Outcome
from dpjax.federated.flower.phase_sums import summed_phase
from dpjax.federated.flower.phases import ELECTION_RECORD, FINGERPRINT, TRAIN_MESSAGE, VOTE_PHASE
from dpjax.federated.flower.rounds import run_rounds
from dpjax.federated.voting import tally

_POLL_SECONDS = 0.5


def make_server_app(
    defaults: Config | None = None, on_outcome: Callable[[Outcome, Config], None] | None = None
) -> flower.ServerApp:
    """Makes the server's Flower app, for a SuperLink, a simulation or this process.

    The election is read from `defaults`, then from the run's configuration. Further keys of either:
    `timeout-seconds` to wait for the replies to one request, and for the nodes to appear.

    Args:
      defaults: settings that the run's configuration need not repeat.
      on_outcome: called with the outcome and the configuration, for example to write the release.
    """
    app = flower.ServerApp()

    @app.main()
    def main(grid: flower.Grid, context: flower.Context) -> None:
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
    """Holds one vote among the connected clients.

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
    """Returns the ids of exactly the nodes planned for."""
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
