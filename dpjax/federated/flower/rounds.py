"""The server's side of federated averaging: parameters out, one noisy sum of updates in, R times.

Parameters travel in clear: they are public, being made of public initial ones and noisy sums alone.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from dpjax.federated.averaging import averaged
from dpjax.federated.flower import internals as flower
from dpjax.federated.flower.outcome import Outcome
from dpjax.federated.flower.phase_sums import summed_phase
from dpjax.federated.flower.phases import (
    ELECTION_RECORD,
    FINGERPRINT,
    PARAMETERS_RECORD,
    PHASE,
    ROUND_MESSAGE,
    WINNER,
)


def run_rounds(
    grid: flower.Grid, context: flower.Context, outcome: Outcome, *, timeout: float = 600.0
) -> Outcome:
    """Trains a model with the winner, round by round, on all clients that are left.

    Formal guarantees: those of `AveragingPlan`, for a server that follows this function. It asks
    for nothing that depends on records but the masked updates, and unmasks a sum only if at least
    `minimum_survivors` are in it; else everything ends without output.

    A client that is lost in one round is not asked in the next. The server divides by the public
    number of clients, whoever is lost.

    Example:
      >>> from flwr.app import Context, RecordDict
      >>> from flwr.serverapp import ServerApp
      >>> import json
      >>> import numpy as np
      >>> from dpjax import federated
      >>> rng = np.random.default_rng(0)  # Made up, to try it out; a useful vote needs many more.
      >>> hospitals = [(rng.normal(size=(40, 3)), rng.integers(0, 2, 40)) for _ in range(3)]
      >>> rates = [{"learning_rate": rate, "decay": 1.0, "momentum": 0.9} for rate in (0.1, 0.3)]
      >>> config = {
      ...     "clients": 3, "candidates": json.dumps(rates), "votes": 1, "epsilon": 20.0,
      ...     "missing-fraction": 0.34, "classes": 2, "model": "logistic_regression", "epochs": 1,
      ...     "rounds": 2, "total-epsilon": 60.0, "input-shape": "3",
      ... }
      >>> def load(own):
      ...     return hospitals[own.node_config["partition-id"]]
      >>> app = federated.make_client_app(load, config)
      >>> nodes = [{"partition-id": number} for number in range(3)]
      >>> election = federated.Election.from_config(config)
      >>> server = ServerApp()
      >>> @server.main()
      ... def main(grid, context):
      ...     outcome = federated.run_election(grid, context, election)
      ...     trained = federated.run_rounds(grid, context, outcome)
      ...     print(trained.params.shape, trained.round_survivors)
      >>> grid = federated.InProcessGrid(app, nodes)
      >>> server(grid, Context(grid.run_id, 1, {}, RecordDict(), {}))
      (4,) (3, 3)

    Args:
      grid, context, timeout: as in `run_election`.
      outcome: of the vote.

    Returns:
      The outcome with the trained parameters.

    Raises:
      SumAborted, AveragingAborted: without output, if too few updates arrive in some round.
    """
    election = outcome.election
    plan, rules = election.averaging_plan, election.averaging_rules
    params = election.model.initial(election.training.seed)
    nodes, survivors = outcome.nodes, []
    for number in range(1, plan.settings.rounds + 1):
        facts = {FINGERPRINT: election.fingerprint, PHASE: number, WINNER: outcome.winner}
        content = flower.RecordDict(
            {
                ELECTION_RECORD: flower.ConfigRecord(facts),
                PARAMETERS_RECORD: flower.ArrayRecord([params]),
            }
        )
        summed = summed_phase(
            grid, context, nodes, election, rules, number, ROUND_MESSAGE, content, timeout
        )
        step = averaged(summed.total, plan, len(summed.survivors))
        params = (params + step).astype(np.float32)
        nodes = summed.survivors
        survivors.append(len(nodes))
    return dataclasses.replace(outcome, params=params, round_survivors=tuple(survivors))
