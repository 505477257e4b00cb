"""What both sides of a federation call messages and records; what a client keeps between.

A client prepares for a phase (trains, adds its noise) when it is asked to, and keeps the noisy
vector in its own state until the secure sum of that phase asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dpjax.federated.flower import internals as flower
from dpjax.federated.flower.ledger import Spending
from dpjax.federated.flower.sum_rules import ProtocolRefusal, SumRules

TRAIN_ACTION = "train_candidates"
ROUND_ACTION = "train_round"
TRAIN_MESSAGE = f"query.{TRAIN_ACTION}"
ROUND_MESSAGE = f"query.{ROUND_ACTION}"
"""No train messages: Flower would not mask them, and they have nothing to mask."""

ELECTION_RECORD = "dpjax_election"
PARAMETERS_RECORD = "dpjax_parameters"
FINGERPRINT = "fingerprint"
PHASE = "phase"
WINNER = "winner"
VOTE_PHASE = 0
"""Rounds of averaging are the phases 1, 2, ..."""

PREPARED = "dpjax_prepared"
NOISY_VECTOR = "dpjax_noisy_vector"
LOCAL_ACCURACIES = "dpjax_local_accuracies"
"""Records in the client's own state: rules and fingerprint of the phase it is ready for; what is to
be sent under masks; how each candidate did on its test records, which is never sent."""

Records = tuple[np.ndarray, np.ndarray]
LoadRecords = Callable[[flower.Context], Records]


def keep_prepared(
    context: flower.Context,
    rules: SumRules,
    noisy_vector: np.ndarray,
    *,
    phase: int,
    spending: Spending,
) -> None:
    """Keeps in the client's own state what it will send, by which rules and at what cost.

    `spending` is what the client has spent in this run, all in all, once this has been sent.
    """
    context.state.config_records[PREPARED] = flower.ConfigRecord(
        {
            # Flower hands the state of a run on to the next of its series.
            "run": str(context.run_id),
            "clients": rules.clients,
            "minimum_survivors": rules.minimum_survivors,
            "clip": rules.clip,
            "length": rules.length,
            PHASE: phase,
            FINGERPRINT: spending.fingerprint,
            "what": spending.what,
            "epsilon": spending.epsilon,
            "delta": spending.delta,
        }
    )
    context.state.array_records[NOISY_VECTOR] = flower.ArrayRecord([noisy_vector])


def prepared(context: flower.Context) -> Mapping[str, Any]:
    """Returns what this client has prepared in this run, or refuses if it has not."""
    kept = context.state.config_records.get(PREPARED)
    if kept is None or kept["run"] != str(context.run_id):
        raise ProtocolRefusal("this client has trained nothing yet in this run: train first")
    return kept


def rules_prepared(context: flower.Context) -> SumRules:
    """Returns the rules of the sum that was prepared for."""
    kept = prepared(context)
    return SumRules(
        clients=kept["clients"],
        minimum_survivors=kept["minimum_survivors"],
        clip=kept["clip"],
        length=kept["length"],
    )


def phase_prepared(context: flower.Context) -> int:
    """Returns the phase that was prepared for."""
    return prepared(context)[PHASE]


def spending_prepared(context: flower.Context) -> Spending:
    """Returns what the run will have cost once what was prepared is sent."""
    kept = prepared(context)
    return Spending(kept[FINGERPRINT], kept["what"], kept["epsilon"], kept["delta"])
