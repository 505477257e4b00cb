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

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from dpjax.federated import flower_internals as flower
from dpjax.federated.ledger import Spending
from dpjax.federated.masking import kept_to_itself, own_run, secure_sum_only, vector_reply
from dpjax.federated.node_settings import NodeSettings
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
LOCAL_ACCURACIES = "dpjax_local_accuracies"
"""Records in the client's own state: rules and fingerprint of the phase it is ready for; what is to
be sent under masks; how each candidate did on its test records, which is never sent."""

Records = tuple[np.ndarray, np.ndarray]
LoadRecords = Callable[[flower.Context], Records]


def make_client_app(
    load_records: LoadRecords,
    defaults: Mapping[str, Any] | None = None,
    *,
    node_settings: Collection[str] = (),
) -> flower.ClientApp:
    """Makes the app that a SuperNode, a simulated node or an in-process node runs.

    The election is read from `defaults`, then the run's configuration, then the node's own, which
    wins. `ledger` of the node's own is a file that notes what it answered and spent; it must be
    named. `max-epsilon` and `max-delta` limit the sums over all that is in it: the node refuses a
    run that would pass them, and a vector that would (`dpjax.federated.ledger`). A setting of the
    node that nothing reads stops it (`dpjax.federated.node_settings`).

    Formal guarantees:
      Nothing computed from the records leaves the client but the noisy ballot, and the noisy update
      of each round agreed on, with noise of the client's operating system, masked, once a phase of
      a run and its rules, and only after it is in the ledger on the client's own disk.
      The reply to training is constant, also in size, and comes whatever the records are: a client
      that cannot judge votes by lot, one that cannot train sends noise alone. Errors are told to
      the client's own log. How long training takes is visible to the server and is not protected.

    Args:
      load_records: gives this node's records, (inputs (m, ...), labels (m,)), from its context; a
        `SetupError` of its own keeps the node away, any other error is one of its records.
      defaults: settings that the run's configuration need not repeat.
      node_settings: names in the node's own configuration that `load_records` reads, beyond those
        of `records_in_folder` and `parts_of_data_set`.
    """
    app = flower.ClientApp()

    @app.query(TRAIN_ACTION)
    def train_candidates(message: flower.Message, context: flower.Context) -> flower.Message:
        with kept_to_itself():
            from dpjax.federated import local_training

            settings = _settings(defaults, context, node_settings)
            own_run(message, context)
            asked = message.content.config_records.get(ELECTION_RECORD, {}).get(FINGERPRINT)
            own = local_training.prepare(settings, asked, load_records, context)
        return _constant_reply(message, own)

    @app.query(ROUND_ACTION)
    def train_round(message: flower.Message, context: flower.Context) -> flower.Message:
        with kept_to_itself():
            from dpjax.federated import local_rounds

            settings = _settings(defaults, context, node_settings)
            own_run(message, context)
            own = local_rounds.prepare(settings, message.content, load_records, context)
        return _constant_reply(message, own)

    @app.train(mods=[secure_sum_only(_rules_prepared, _phase_prepared, _spending_prepared)])
    def answer(message: flower.Message, context: flower.Context) -> flower.Message:
        instructions = flower.recorddict_to_fitins(message.content, keep_input=True)
        kept = _prepared(context)
        if any(instructions.config.get(name) != kept[name] for name in (FINGERPRINT, PHASE)):
            raise ProtocolRefusal("the request is for another vote than this client trained for")
        (noisy_vector,) = context.state.array_records.pop(NOISY_VECTOR).to_numpy_ndarrays()
        return vector_reply(message, noisy_vector)

    return app


def _settings(
    defaults: Mapping[str, Any] | None, context: flower.Context, further: Collection[str]
) -> dict[str, Any]:
    """The rules as this client holds them."""
    from dpjax.federated.election import Election
    from dpjax.federated.records import SPLIT_SETTINGS

    names = {*Election.setting_names(), *SPLIT_SETTINGS, *further}
    NodeSettings.from_config(context.node_config, names)
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
    phase: int,
    spending: Spending,
) -> None:
    """Keeps in the client's own state what it will send, by which rules and at what cost.

    Args:
      context: the client's.
      rules: of the sum.
      noisy_vector: integers.
      phase: `VOTE_PHASE`, or the number of the round.
      spending: what the client has spent in this run, all in all, once this has been sent.
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


def _prepared(context: flower.Context) -> Mapping[str, Any]:
    kept = context.state.config_records.get(PREPARED)
    if kept is None or kept["run"] != str(context.run_id):
        raise ProtocolRefusal("this client has trained nothing yet in this run: train first")
    return kept


def _rules_prepared(context: flower.Context) -> SumRules:
    kept = _prepared(context)
    return SumRules(
        clients=kept["clients"],
        minimum_survivors=kept["minimum_survivors"],
        clip=kept["clip"],
        length=kept["length"],
    )


def _phase_prepared(context: flower.Context) -> int:
    return _prepared(context)[PHASE]


def _spending_prepared(context: flower.Context) -> Spending:
    kept = _prepared(context)
    return Spending(kept[FINGERPRINT], kept["what"], kept["epsilon"], kept["delta"])
