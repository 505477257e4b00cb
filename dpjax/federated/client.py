"""The client's side of a federation: train in private, then answer once a phase, under masks.

The vote is the first phase; each round of averaging, where one was agreed on, is another. In every
phase a query (`query.train_candidates`, `query.train_round`) trains, adds the noise and keeps the
noisy vector in the client's own state; its reply is the fingerprint of the public rules and nothing
else. `train` hands that vector over, and runs under `secure_sum_only`, which refuses every other
way to reach it.

A SuperNode starts a process for every message. Only training imports JAX, so that the four messages
of a secure sum are answered in a second.
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
CHARGED = "dpjax_charged"
LOCAL_ACCURACIES = "dpjax_local_accuracies"
"""Records in the client's own state: rules and fingerprint of the phase it is ready for; what is to
be sent under masks; what the ledger was charged in this run; how each candidate did on its test
records, which is never sent."""

Records = tuple[np.ndarray, np.ndarray]
LoadRecords = Callable[[flower.Context], Records]


def make_client_app(
    load_records: LoadRecords, defaults: Mapping[str, Any] | None = None
) -> flower.ClientApp:
    """Makes the app that a SuperNode, a simulated node or an in-process node runs.

    The election is read from `defaults`, then the run's configuration, then the node's own, which
    wins. A node's `max-epsilon` is a limit of its own, over all votes that the file `ledger` of its
    configuration holds: it refuses a run that would pass it (`dpjax.federated.ledger`).

    Formal guarantees:
      Nothing computed from the records leaves the client but the noisy ballot, and the noisy update
      of each round agreed on, with noise of the client's operating system, masked, once a phase.
      The reply to training is constant, also in size, and comes whatever the records are: a client
      that cannot judge votes by lot, one that cannot train sends noise alone. Errors are told to
      the client's own log. How long training takes is visible to the server and is not protected.

    Args:
      load_records: gives this node's records, (inputs (m, ...), labels (m,)), from its context; a
        `SetupError` of its own keeps the node away, any other error is one of its records.
      defaults: settings that the run's configuration need not repeat.
    """
    app = flower.ClientApp()

    @app.query(TRAIN_ACTION)
    def train_candidates(message: flower.Message, context: flower.Context) -> flower.Message:
        with kept_to_itself():
            from dpjax.federated import local_training

            settings = _settings(defaults, context)
            asked = message.content.config_records.get(ELECTION_RECORD, {}).get(FINGERPRINT)
            own = local_training.prepare(settings, asked, load_records, context)
        return _constant_reply(message, own)

    @app.query(ROUND_ACTION)
    def train_round(message: flower.Message, context: flower.Context) -> flower.Message:
        with kept_to_itself():
            from dpjax.federated import local_rounds

            settings = _settings(defaults, context)
            own = local_rounds.prepare(settings, message.content, load_records, context)
        return _constant_reply(message, own)

    @app.train(mods=[secure_sum_only(_rules_prepared, lambda context: _prepared(context)[PHASE])])
    def answer(message: flower.Message, context: flower.Context) -> flower.Message:
        instructions = flower.recorddict_to_fitins(message.content, keep_input=True)
        kept = _prepared(context)
        if any(instructions.config.get(name) != kept[name] for name in (FINGERPRINT, PHASE)):
            raise ProtocolRefusal("the request is for another vote than this client trained for")
        (noisy_vector,) = context.state.array_records.pop(NOISY_VECTOR).to_numpy_ndarrays()
        _charge(context, kept)
        return vector_reply(message, noisy_vector)

    return app


def _settings(defaults: Mapping[str, Any] | None, context: flower.Context) -> dict[str, Any]:
    """The rules as this client holds them."""
    # What the node's owner wrote wins: nobody changes its candidates from afar.
    return {**(defaults or {}), **context.run_config, **context.node_config}


def _constant_reply(message: flower.Message, fingerprint: str) -> flower.Message:
    record = flower.ConfigRecord({FINGERPRINT: fingerprint})
    return flower.Message(flower.RecordDict({ELECTION_RECORD: record}), reply_to=message)


def keep_prepared(
    context: flower.Context,
    rules: SumRules,
    noisy_vector: np.ndarray,
    *,
    fingerprint: str,
    phase: int,
    epsilon: float,
    delta: float,
) -> None:
    """Keeps in the client's own state what it will send, by which rules and at what cost.

    Args:
      context: the client's.
      rules: of the sum.
      noisy_vector: integers.
      fingerprint: of the election.
      phase: `VOTE_PHASE`, or the number of the round.
      epsilon, delta: what the client has spent in this run, all in all, once this has been sent.
    """
    context.state.config_records[PREPARED] = flower.ConfigRecord(
        {
            "clients": rules.clients,
            "minimum_survivors": rules.minimum_survivors,
            "clip": rules.clip,
            "length": rules.length,
            FINGERPRINT: fingerprint,
            PHASE: phase,
            "epsilon": epsilon,
            "delta": delta,
        }
    )
    context.state.array_records[NOISY_VECTOR] = flower.ArrayRecord([noisy_vector])


def charged(context: flower.Context) -> tuple[float, float]:
    """What the ledger was charged in this run, (epsilon, delta)."""
    record = context.state.config_records.get(CHARGED, {"epsilon": 0.0, "delta": 0.0})
    return record["epsilon"], record["delta"]


def _charge(context: flower.Context, kept: Mapping[str, Any]) -> None:
    """Charges what this answer adds to what the run has cost before."""
    epsilon, delta = charged(context)
    if kept["epsilon"] > epsilon:
        ledger.charge(
            context.node_config.get(ledger.LEDGER),
            kept["epsilon"] - epsilon,
            max(0.0, kept["delta"] - delta),
            kept[FINGERPRINT],
            "vote" if kept[PHASE] == VOTE_PHASE else "training",
        )
        context.state.config_records[CHARGED] = flower.ConfigRecord(
            {"epsilon": kept["epsilon"], "delta": max(kept["delta"], delta)}
        )


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
