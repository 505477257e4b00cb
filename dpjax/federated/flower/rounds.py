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
    """Trains the winner with all clients that are left, round by round.

    Formal guarantees: those of `AveragingPlan`, for a server that follows this function. It asks
    for nothing that depends on records but the masked updates, and unmasks a sum only if at least
    `minimum_survivors` are in it; else everything ends without output.

    A client that is lost in one round is not asked in the next. The server divides by the public
    number of clients, whoever is lost.

    Args:
      grid: Flower's connection to the nodes.
      context: the ServerApp's.
      outcome: of the vote.
      timeout: seconds to wait for each stage.

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
