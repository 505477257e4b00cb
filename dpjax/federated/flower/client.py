"""The client's side of a federation: train locally, then answer once a phase, under masks.

The vote is the first phase; each round of averaging that was agreed on is another. In every
phase a query (`query.train_candidates`, `query.train_round`) trains, adds the noise and keeps the
noisy vector in the client's own state; its reply is the fingerprint of the public rules and nothing
else. `train` hands that vector over, and runs under `secure_sum_only`, which refuses every other
way to reach it, and everything but one masked, exact answer (`messages` lists what Flower does not
check).

A SuperNode starts a process for every message. Only training imports JAX, so that the four messages
of a secure sum are answered in a second.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np

from dpjax import checks
from dpjax.federated.flower import internals as flower
from dpjax.federated.flower import storage
from dpjax.federated.flower.messages import (
    ELECTION_RECORD,
    FINGERPRINT,
    NOISY_VECTOR,
    PHASE,
    ROUND_ACTION,
    TRAIN_ACTION,
    Judge,
    LoadRecords,
    ProtocolRefusal,
    Spending,
    SumRules,
    Vector,
    prepared,
)
from dpjax.federated.flower.storage import LEDGER, NodeSettings, refuse_owners_settings

_MEMORY = "dpjax_secure_sum"
_TRAIN = "train"
_LOG = logging.getLogger("dpjax.federated")

Handler = Callable[[Any, Any], Any]


def make_client_app(
    load_records: LoadRecords,
    defaults: Mapping[str, Any] | None = None,
    *,
    judge: Judge | None = None,
    node_settings: Collection[str] = (),
    ledger: Callable[[Any], str] | None = None,
) -> flower.ClientApp:
    """Makes the clients' Flower app, for SuperNodes, simulated nodes and nodes in this process.

    The public rules (`Election`) are read from `defaults`, then the run's configuration, then the
    node's own, which wins. The node's own setting `ledger` is required: it names a file in which
    the node notes what it answered and spent. `max-epsilon` and `max-delta` limit the sums over
    that file: the node refuses a run, or a vector, that would exceed them. A setting of the node
    that nothing reads stops it (`storage`).

    Formal guarantees:
      Nothing computed from the records leaves the client but the noisy ballot, and the noisy update
      of each round agreed on, with noise of the client's operating system, masked, once a phase of
      a run and its rules, and only after it is in the ledger on the client's own disk.
      The reply to training is constant, also in size, and comes whatever the records are: a client
      that cannot judge votes by lot, one that cannot train sends noise alone. Errors are told to
      the client's own log. How long training takes is visible to the server and is not protected.

    Args:
      load_records: returns this node's records, (inputs (m, ...), labels (m,)), from its context. A
        `SetupError` keeps the node away; any other error counts as a fault of the records, and the
        node takes part all the same.
      defaults: settings that the run's configuration need not repeat.
      judge: (records, p candidates as dicts) -> losses (p,), lower is better, in place of training
        the named model; the run's settings give it a public name, `judge`. Records are then
        whatever `load_records` gives. A loss that is not finite ranks last. If none is finite, the
        number of losses is wrong or the judge raises, the client votes by lot.
      node_settings: names in the node's own configuration that `load_records` reads, beyond those
        of `records_in_folder`.
      ledger: returns a ledger's path from the context of a node whose configuration names none; for
        Flower's own simulation. The owner of a real node names the file.
    """
    refuse_owners_settings(defaults or {})
    if judge is not None:
        checks.function("judge", judge, "of a client's records and the candidates")
    if ledger is not None:
        checks.function("ledger", ledger, "of a node's context")
    app = flower.ClientApp()

    def prepare(
        action: str, message: flower.Message, context: flower.Context, *further: Any
    ) -> flower.Message:
        """Trains, keeps a noisy vector and gives the same reply whatever the records are."""
        with kept_to_itself():
            from dpjax.federated.flower import noisy_vectors  # which imports JAX
            from dpjax.federated.flower.election import Election

            if ledger is not None and not context.node_config.get(LEDGER):
                context.node_config[LEDGER] = ledger(context)
            names = {*Election.setting_names(), *node_settings}
            NodeSettings.from_config(context.node_config, names)
            # The node's own settings win: nobody can change its candidates remotely.
            settings = {**(defaults or {}), **context.run_config, **context.node_config}
            own_run(message, context)
            make = noisy_vectors.PREPARE[action]
            own = make(settings, message.content, load_records, context, *further)
        record = flower.ConfigRecord({FINGERPRINT: own})
        return flower.Message(flower.RecordDict({ELECTION_RECORD: record}), reply_to=message)

    @app.query(TRAIN_ACTION)
    def train_candidates(message: flower.Message, context: flower.Context) -> flower.Message:
        return prepare(TRAIN_ACTION, message, context, judge)

    @app.query(ROUND_ACTION)
    def train_round(message: flower.Message, context: flower.Context) -> flower.Message:
        return prepare(ROUND_ACTION, message, context)

    @app.train(
        mods=[
            secure_sum_only(
                lambda context: prepared(context).rules,
                lambda context: prepared(context).phase,
                lambda context: prepared(context).spending,
            )
        ]
    )
    def answer(message: flower.Message, context: flower.Context) -> flower.Message:
        instructions = flower.recorddict_to_fitins(message.content, keep_input=True)
        kept = prepared(context)
        agreed = {FINGERPRINT: kept.spending.fingerprint, PHASE: kept.phase}
        if any(instructions.config.get(name) != value for name, value in agreed.items()):
            raise ProtocolRefusal("the request is for another vote than this client trained for")
        (noisy_vector,) = context.state.array_records.pop(NOISY_VECTOR).to_numpy_ndarrays()
        return vector_reply(message, noisy_vector)

    return app


@contextlib.contextmanager
def kept_to_itself() -> Iterator[None]:
    """Keeps error texts on the client: Flower sends what an app raises to the server, unencrypted.

    A `ProtocolRefusal` passes, as it is about the request alone. Everything else goes to the
    client's own log, and a RuntimeError with constant text is raised in its place.
    """
    try:
        yield
    except ProtocolRefusal:
        raise
    except Exception as error:
        _LOG.error("this client cannot take part: %s", error)
        raise RuntimeError("this client cannot take part; its own log says why") from None


def vector_reply(message: flower.Message, vector: Vector) -> flower.Message:
    """Returns a handler's reply that holds one integer vector, for `secure_sum_only` to mask."""
    return flower.Message(result_content(vector), reply_to=message)


def result_content(vector: Vector) -> flower.RecordDict:
    """Writes a vector as Flower's result of a train request, everything else constant."""
    result = flower.FitRes(
        status=flower.Status(flower.StatusCode.OK, ""),
        parameters=flower.ndarrays_to_parameters([np.asarray(vector, dtype=np.float64)]),
        num_examples=1,
        metrics={},
    )
    return flower.fitres_to_recorddict(result, False)


def secure_sum_only(
    rules_for: Callable[[flower.Context], SumRules],
    phase_for: Callable[[flower.Context], int] = lambda context: 0,
    spending_for: Callable[[flower.Context], Spending] = lambda context: Spending(),
) -> Callable[..., Any]:
    """Makes a client mod through which a train handler's answer leaves masked, once, and exact.

    Formal guarantees:
      What the handler returns leaves the client at most once in each phase, and phases only ascend:
      at most once in a run unless `phase_for` tells phases apart; and so do the shares that unmask
      its sum. Both are noted in the node's ledger, on its disk, before they leave
      (`storage.charge`, `note_unmasking`), so that this holds for messages at the same time,
      a node that is started anew and state that came from another run. The handler is called only
      for a request of type `train` that carries the masking stage of SecAgg+, agreed on with the
      settings of `rules`. What it returns leaves the client masked; every other part of the reply
      is constant. Against a server that follows the protocol nothing but the sum over at least
      `minimum_survivors` clients can be computed from the replies, up to the strength of Flower's
      masks (docs/federated_protocol.md).

    Example:
      >>> import numpy as np
      >>> from flwr.app import Context, RecordDict
      >>> from flwr.clientapp import ClientApp
      >>> from dpjax import federated
      >>> from dpjax.federated.flower.client import vector_reply
      >>> from dpjax.federated.flower.server import secure_sum
      >>> rules = federated.SumRules(clients=3, minimum_survivors=3, clip=1024, length=2)
      >>> app = ClientApp()
      >>> @app.train(mods=[federated.secure_sum_only(lambda own: rules)])
      ... def send(message, own):
      ...     noisy = np.array([1, -2])  # Counts with noise of this client's own.
      ...     return vector_reply(message, noisy)
      >>> grid = federated.InProcessGrid(app, [{}, {}, {}])
      >>> server = Context(grid.run_id, 1, {}, RecordDict(), {})
      >>> secure_sum(grid, server, grid.get_node_ids(), rules).total.tolist()
      [3, -6]

    Args:
      rules_for: gives the rules that this client agreed to, from its own context.
      phase_for: gives the number of the sum that it is ready for, from its own context: the vote,
        or a round of training. Keys, masks and the right to answer are new in each.
      spending_for: gives the run's cost once this vector is sent. By default the cost is unknown
        and counts as infinite: a node with limits of its own refuses it.

    Returns:
      A Flower mod, for `ClientApp.train(mods=[...])`.
    """

    def mod(message: flower.Message, context: flower.Context, call_next: Handler) -> flower.Message:
        run = own_run(message, context)
        rules = rules_for(context)
        configs = _protocol_record(message)
        phase = phase_for(context)
        with kept_to_itself():
            node = NodeSettings.from_config(context.node_config)
            spending = spending_for(context)
            if configs.get(flower.Key.STAGE) != flower.Stage.UNMASK:
                storage.check_open(node, run, phase, spending)
        _begin_phase(context, run, phase)
        _check_stage(context, configs, message.metadata.dst_node_id, rules)
        if configs[flower.Key.STAGE] == flower.Stage.UNMASK:
            with kept_to_itself():
                storage.note_unmasking(node, run, phase, spending)

        def checked(request: flower.Message, own: flower.Context) -> flower.Message:
            with kept_to_itself():
                reply = call_next(request, own)
                check_result(reply.content, rules)
                # The last thing before the vector is masked and sent.
                storage.charge(node, run, phase, spending)
            return reply

        return flower.secaggplus_mod(message, context, checked)

    return mod


def own_run(message: flower.Message, context: flower.Context) -> int:
    """Returns Flower's number of the run that a message belongs to.

    Flower keeps one state for all runs of a series; while two are going on, a message may find the
    state of the other, and is then refused.
    """
    if message.metadata.run_id != context.run_id:
        raise ProtocolRefusal("two runs of one series at a time: begin again when one has ended")
    return context.run_id


def _protocol_record(message: flower.Message) -> Mapping[str, Any]:
    """Returns the secure-aggregation record; refuses requests that Flower would not mask."""
    if message.metadata.message_type != _TRAIN:
        raise ProtocolRefusal(
            f"message type {message.metadata.message_type!r}: Flower masks only {_TRAIN!r}, "
            "everything else would leave in clear"
        )
    if flower.RECORD_KEY_CONFIGS not in message.content.config_records:
        raise ProtocolRefusal("no secure-aggregation record: a vote is cast under masks only")
    return message.content.config_records[flower.RECORD_KEY_CONFIGS]


def _begin_phase(context: flower.Context, run: int, phase: int) -> None:
    """Begins a phase with an empty memory; refuses a phase earlier than the one that has begun."""
    memory = context.state.config_records.get(_MEMORY)
    if memory is None or memory["run"] != str(run) or phase > memory["phase"]:
        context.state.config_records[_MEMORY] = flower.ConfigRecord(
            {"run": str(run), "phase": phase}
        )
    elif phase < memory["phase"]:
        raise ProtocolRefusal("this client has begun a later phase of this run")


def _check_stage(
    context: flower.Context, configs: Mapping[str, Any], own_id: int, rules: SumRules
) -> None:
    """Refuses a request that a server following the protocol and the rules would not make."""
    stage = configs.get(flower.Key.STAGE)
    memory = context.state.config_records[_MEMORY]
    # A stage out of order would use the set-up of another sum, or none.
    needed = {
        flower.Stage.SHARE_KEYS: "members",
        flower.Stage.COLLECT_MASKED_VECTORS: "peers",
        flower.Stage.UNMASK: "peers",
    }
    if stage in needed and needed[stage] not in memory:
        raise ProtocolRefusal(f"stage {stage!r} before this sum was set up")
    if stage == flower.Stage.SETUP:
        members = configs.get(flower.Key.SAMPLE_NUMBER)
        if not isinstance(members, int):
            raise ProtocolRefusal("the number of members is missing from the setup")
        rules.check_members(members)
        given = {key: value for key, value in configs.items() if key != flower.Key.STAGE}
        if given != rules.settings(members):
            raise ProtocolRefusal(
                f"secure-aggregation settings {given} are not those agreed on, "
                f"{rules.settings(members)}: the sum would be wrong"
            )
        memory["members"] = members
    elif stage == flower.Stage.SHARE_KEYS:
        peers = sorted(int(key) for key in configs if key != flower.Key.STAGE)
        if len(peers) != rules.shares(memory["members"]) or own_id not in peers:
            raise ProtocolRefusal("a peer is missing from the key exchange: begin again without it")
        memory["peers"] = peers
    elif stage == flower.Stage.COLLECT_MASKED_VECTORS:
        sources = sorted([*configs[flower.Key.SOURCE_LIST], own_id])
        if sources != list(memory["peers"]):
            raise ProtocolRefusal("a peer's key shares are missing: begin again without it")
    elif stage == flower.Stage.UNMASK:
        active = list(configs[flower.Key.ACTIVE_NODE_ID_LIST])
        dead = list(configs[flower.Key.DEAD_NODE_ID_LIST])
        # With shares of a client both as survivor and as lost, the server could unmask its vector.
        if sorted(active + dead) != list(memory["peers"]) or own_id not in active:
            raise ProtocolRefusal("the lists of survivors and lost do not name every peer once")
        if len(dead) > memory["members"] - rules.minimum_survivors:
            raise ProtocolRefusal(
                f"{len(dead)} peers are lost: fewer than {rules.minimum_survivors} clients' noise "
                "would be in the sum"
            )
    else:
        raise ProtocolRefusal(f"unknown stage {stage!r} of the secure aggregation")


def check_result(content: flower.RecordDict, rules: SumRules) -> None:
    """Refuses a handler's reply that Flower would weigh, leak or round.

    Flower masks the vector alone; everything else in the reply is sent unmasked: a weight other
    than 1, metrics, text, further records.
    """
    result = flower.recorddict_to_fitres(content, keep_input=True)
    if result.num_examples != 1:
        raise ValueError(
            f"num_examples {result.num_examples}: it travels in clear and weighs the sum; pass 1"
        )
    if result.metrics or result.status.message:
        raise ValueError("metrics and status messages travel in clear: leave them empty")
    vectors = flower.parameters_to_ndarrays(result.parameters)
    if len(vectors) != 1:
        raise ValueError(f"{len(vectors)} arrays: pass one vector")
    rules.check_vector(vectors[0])
    further = set(content) - set(result_content(vectors[0]))
    if further:
        raise ValueError(f"records {sorted(further)} travel in clear: leave them out")
