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

from collections.abc import Collection, Mapping
from typing import Any

from dpjax.federated.flower import internals as flower
from dpjax.federated.flower.masking import kept_to_itself, own_run, secure_sum_only, vector_reply
from dpjax.federated.flower.node_settings import NodeSettings, refuse_owners_settings
from dpjax.federated.flower.phases import (
    ELECTION_RECORD,
    FINGERPRINT,
    NOISY_VECTOR,
    PHASE,
    ROUND_ACTION,
    TRAIN_ACTION,
    LoadRecords,
    phase_prepared,
    prepared,
    rules_prepared,
    spending_prepared,
)
from dpjax.federated.flower.sum_rules import ProtocolRefusal


def make_client_app(
    load_records: LoadRecords,
    defaults: Mapping[str, Any] | None = None,
    *,
    node_settings: Collection[str] = (),
) -> flower.ClientApp:
    """Makes the clients' Flower app, for SuperNodes, simulated nodes and nodes in this process.

    The election is read from `defaults`, then the run's configuration, then the node's own, which
    wins. `ledger` of the node's own is a file that notes what it answered and spent; it must be
    named. `max-epsilon` and `max-delta` limit the sums over all that is in it: the node refuses a
    run that would pass them, and a vector that would (`ledger`). A setting of the
    node that nothing reads stops it (`node_settings`).

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
        of `records_in_folder`.
    """
    refuse_owners_settings(defaults or {})
    app = flower.ClientApp()

    @app.query(TRAIN_ACTION)
    def train_candidates(message: flower.Message, context: flower.Context) -> flower.Message:
        with kept_to_itself():
            from dpjax.federated.flower import noisy_vectors

            settings = _settings(defaults, context, node_settings)
            own_run(message, context)
            asked = message.content.config_records.get(ELECTION_RECORD, {}).get(FINGERPRINT)
            own = noisy_vectors.prepare_ballot(settings, asked, load_records, context)
        return _constant_reply(message, own)

    @app.query(ROUND_ACTION)
    def train_round(message: flower.Message, context: flower.Context) -> flower.Message:
        with kept_to_itself():
            from dpjax.federated.flower import noisy_vectors

            settings = _settings(defaults, context, node_settings)
            own_run(message, context)
            own = noisy_vectors.prepare_update(settings, message.content, load_records, context)
        return _constant_reply(message, own)

    @app.train(mods=[secure_sum_only(rules_prepared, phase_prepared, spending_prepared)])
    def answer(message: flower.Message, context: flower.Context) -> flower.Message:
        instructions = flower.recorddict_to_fitins(message.content, keep_input=True)
        kept = prepared(context)
        if any(instructions.config.get(name) != kept[name] for name in (FINGERPRINT, PHASE)):
            raise ProtocolRefusal("the request is for another vote than this client trained for")
        (noisy_vector,) = context.state.array_records.pop(NOISY_VECTOR).to_numpy_ndarrays()
        return vector_reply(message, noisy_vector)

    return app


def _settings(
    defaults: Mapping[str, Any] | None, context: flower.Context, further: Collection[str]
) -> dict[str, Any]:
    """Returns the rules as this client holds them."""
    from dpjax.federated.flower.election import Election

    names = {*Election.setting_names(), *further}
    NodeSettings.from_config(context.node_config, names)
    # What the node's owner wrote wins: nobody changes its candidates from afar.
    return {**(defaults or {}), **context.run_config, **context.node_config}


def _constant_reply(message: flower.Message, fingerprint: str) -> flower.Message:
    record = flower.ConfigRecord({FINGERPRINT: fingerprint})
    return flower.Message(flower.RecordDict({ELECTION_RECORD: record}), reply_to=message)
