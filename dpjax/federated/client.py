"""The client's side of a federated vote: train in private, then vote once, under masks.

Two handlers. `query.train_candidates` trains, adds the noise and keeps the noisy ballot in the
client's own state; its reply is the fingerprint of the public rules and nothing else. `train` hands
that ballot over, and runs under `secure_sum_only`, which refuses every other way to reach it.

A SuperNode starts a process for every message. Only training imports JAX, so that the four messages
of the secure sum are answered in a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dpjax.federated import flower_internals as flower
from dpjax.federated import ledger
from dpjax.federated.masking import kept_to_itself, secure_sum_only, vector_reply
from dpjax.federated.sum_rules import ProtocolRefusal, SumRules

TRAIN_ACTION = "train_candidates"
TRAIN_MESSAGE = f"query.{TRAIN_ACTION}"
"""Not a train message: Flower would not mask it, and it has nothing to mask."""

ELECTION_RECORD = "dpjax_election"
FINGERPRINT = "fingerprint"

PREPARED = "dpjax_prepared"
NOISY_BALLOT = "dpjax_noisy_ballot"
LOCAL_ACCURACIES = "dpjax_local_accuracies"
"""Records in the client's own state: rules and fingerprint of the vote; what is to be sent under
masks; how each candidate did on its test records, which is never sent."""

Records = tuple[np.ndarray, np.ndarray]
LoadRecords = Callable[[flower.Context], Records]


def make_client_app(
    load_records: LoadRecords, defaults: Mapping[str, Any] | None = None
) -> flower.ClientApp:
    """Makes the app that a SuperNode, a simulated node or an in-process node runs.

    The election is read from `defaults`, then the run's configuration, then the node's own, which
    wins. A node's `max-epsilon` is a limit of its own, over all votes that the file `ledger` of its
    configuration holds: it refuses a vote that would pass it (`dpjax.federated.ledger`).

    Formal guarantees:
      Nothing computed from the records leaves the client but the noisy ballot, with noise of the
      client's operating system, masked, once in a run. The reply to training is constant, also in
      size; errors are told to the client's own log, and the server learns only that it cannot take
      part. How long training takes is visible to the server and is not protected.

    Args:
      load_records: gives this node's records, (inputs (m, ...), labels (m,)), from its context.
      defaults: settings that the run's configuration need not repeat.
    """
    app = flower.ClientApp()

    @app.query(TRAIN_ACTION)
    def train_candidates(message: flower.Message, context: flower.Context) -> flower.Message:
        with kept_to_itself():
            from dpjax.federated import local_training

            # What the node's owner wrote wins: nobody changes its candidates from afar.
            settings = {**(defaults or {}), **context.run_config, **context.node_config}
            asked = message.content.config_records.get(ELECTION_RECORD, {}).get(FINGERPRINT)
            own = local_training.prepare(settings, asked, load_records, context)
        record = flower.ConfigRecord({FINGERPRINT: own})
        return flower.Message(flower.RecordDict({ELECTION_RECORD: record}), reply_to=message)

    @app.train(mods=[secure_sum_only(_rules_prepared)])
    def vote(message: flower.Message, context: flower.Context) -> flower.Message:
        instructions = flower.recorddict_to_fitins(message.content, keep_input=True)
        if instructions.config.get(FINGERPRINT) != _prepared(context)[FINGERPRINT]:
            raise ProtocolRefusal("the request is for another vote than this client trained for")
        (noisy_ballot,) = context.state.array_records.pop(NOISY_BALLOT).to_numpy_ndarrays()
        kept = _prepared(context)
        ledger.charge(
            context.node_config.get(ledger.LEDGER),
            kept["epsilon"],
            kept["delta"],
            kept[FINGERPRINT],
        )
        return vector_reply(message, noisy_ballot)

    return app


def keep_prepared(
    context: flower.Context,
    rules: SumRules,
    noisy_ballot: np.ndarray,
    *,
    fingerprint: str,
    epsilon: float,
    delta: float,
) -> None:
    """Keeps in the client's own state what it will send, by which rules and at what cost."""
    context.state.config_records[PREPARED] = flower.ConfigRecord(
        {
            "clients": rules.clients,
            "minimum_survivors": rules.minimum_survivors,
            "clip": rules.clip,
            "length": rules.length,
            FINGERPRINT: fingerprint,
            "epsilon": epsilon,
            "delta": delta,
        }
    )
    context.state.array_records[NOISY_BALLOT] = flower.ArrayRecord([noisy_ballot])


def _prepared(context: flower.Context) -> Mapping[str, Any]:
    if PREPARED not in context.state.config_records:
        raise ProtocolRefusal("this client has trained nothing yet: train first")
    return context.state.config_records[PREPARED]


def _rules_prepared(context: flower.Context) -> SumRules:
    kept = _prepared(context)
    return SumRules(
        clients=kept["clients"],
        minimum_survivors=kept["minimum_survivors"],
        clip=kept["clip"],
        length=kept["length"],
    )
