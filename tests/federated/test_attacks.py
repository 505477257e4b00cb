"""What a server, a stranger or chance may try to make clients answer twice, or unpaid.

Messages are Flower's own, made by the server's side and answered by the whole app; what differs
from a run as planned is when they are sent, how often, and from which state they are answered.
"""

import copy
import json
import re
import threading

import numpy as np
import pytest
from flower_messages import context as context_of
from flower_messages import stage as _stage

from dpjax import federated
from dpjax.federated.flower import client, messages, storage
from dpjax.federated.flower import internals as flower
from dpjax.federated.flower.in_process import InProcessGrid
from dpjax.federated.flower.messages import ProtocolRefusal, SumAborted
from dpjax.federated.flower.server import (
    Outcome,
    make_server_app,
    run_election,
    run_rounds,
    secure_sum,
)
from dpjax.federated.flower.storage import NodeSettings

_COLLECT, _UNMASK = flower.Stage.COLLECT_MASKED_VECTORS, flower.Stage.UNMASK


class _Watched(InProcessGrid):
    """Calls `before(message, context)` for every request, with the state it will be answered from;
    what is sent there is stamped like any other message."""

    def __init__(self, app, nodes, before):
        super().__init__(app, nodes)
        self.app, self._before = app, before

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        for message in messages:
            message.metadata.__dict__["_run_id"] = self.run_id
            self._before(message, self._contexts[message.metadata.dst_node_id])
        return super().send_and_receive(messages, timeout=timeout)


def _with_ledgers(federation, tmp_path, **more):
    nodes = federation.nodes(**more)
    return [node | {"ledger": str(tmp_path / f"{node['partition-id']}")} for node in nodes]


def _spent(tmp_path, number=0):
    lines = storage.entries(tmp_path / str(number))
    return [line["epsilon"] for line in lines if line["what"] != "unmask"]


_LIMITS = {"max-epsilon": 60.0, "max-delta": 1e-5}


# ---- a run after another, a node after another


def test_a_later_run_of_a_series_trains_no_round_free(federation, tmp_path):
    """Flower hands a node's state on to the next run of its series."""
    nodes = _with_ledgers(federation, tmp_path, **_LIMITS)
    app = federated.make_client_app(federation.load, federation.config)
    first = InProcessGrid(app, nodes)
    make_server_app(federation.config)(first, context_of(first.run_id))
    assert _spent(tmp_path) == [20.0, 40.0, 0.0]

    later = InProcessGrid(app, nodes)
    for node_id, context in first._contexts.items():
        later._contexts[node_id].state = context.state
    # The server goes on with rounds, as if the vote of the first run were the second's.
    election = federated.Election.from_config(federation.config)
    outcome = Outcome(election, 1, np.zeros(3, np.int64), 5, 0, nodes=tuple(later.get_node_ids()))
    with pytest.raises(SumAborted, match="it is 60 and 60 were spent before"):
        run_rounds(later, context_of(later.run_id), outcome)
    assert _spent(tmp_path) == [20.0, 40.0, 0.0]
    # Nor does a vector that the first run prepared and did not send leave in the second.
    with pytest.raises(ProtocolRefusal, match="trained nothing yet in this run"):
        app(_unmask(later, [1000], []), later._contexts[1000])


def test_without_limits_a_later_run_of_a_series_is_charged_in_full(federation, tmp_path):
    nodes = _with_ledgers(federation, tmp_path)
    app = federated.make_client_app(federation.load, federation.config)
    states = None
    for _ in range(2):
        grid = InProcessGrid(app, nodes)
        for context, state in zip(grid._contexts.values(), states or []):
            context.state = state
        make_server_app(federation.config)(grid, context_of(grid.run_id))
        states = grid.states
    assert _spent(tmp_path) == [20.0, 40.0, 0.0] * 2


@pytest.mark.parametrize("phase", [0, 1])
def test_a_node_that_was_started_anew_does_not_answer_twice(federation, tmp_path, phase):
    nodes = _with_ledgers(federation, tmp_path)
    config = federation.config | {"rounds": 1}
    app = federated.make_client_app(federation.load, config)
    grid = InProcessGrid(app, nodes)
    make_server_app(config)(grid, context_of(grid.run_id))
    # All that Flower kept in memory is gone; the run goes on.
    again = InProcessGrid(app, nodes)
    again.run_id = grid.run_id
    for context in again._contexts.values():
        context.run_id = grid.run_id
    election = federated.Election.from_config(config)
    with pytest.raises(SumAborted, match="answered in this run"):
        if phase == 0:
            run_election(again, context_of(again.run_id), election)
        else:
            nodes = tuple(again.get_node_ids())
            outcome = Outcome(election, 1, np.zeros(3, np.int64), 5, 0, nodes=nodes)
            run_rounds(again, context_of(again.run_id), outcome)
    assert _spent(tmp_path) == [20.0, 40.0]


def test_a_message_that_meets_another_runs_state_is_refused(federation, tmp_path):
    app = federated.make_client_app(federation.load, federation.config)
    grid = InProcessGrid(app, _with_ledgers(federation, tmp_path))
    for context in grid._contexts.values():
        context.run_id += 1
    with pytest.raises(SumAborted, match="two runs of one series at a time"):
        make_server_app(federation.config)(grid, context_of(grid.run_id))
    assert _spent(tmp_path) == []


# ---- messages at the same time: Flower answers each in a process of its own, from a copy


def _at_once(app, messages, context):
    """Replies or errors of an app to messages that are answered at the same time, from copies."""
    ready, found = threading.Barrier(len(messages)), []

    def answer(message, own):
        ready.wait()
        try:
            found.append(app(message, own))
        except Exception as error:
            found.append(error)

    threads = [
        threading.Thread(target=answer, args=(copy.deepcopy(message), copy.deepcopy(context)))
        for message in messages
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def _unmask(grid, active, dead):
    configs = {
        flower.Key.STAGE: _UNMASK,
        flower.Key.ACTIVE_NODE_ID_LIST: list(active),
        flower.Key.DEAD_NODE_ID_LIST: list(dead),
    }
    content = flower.RecordDict({flower.RECORD_KEY_CONFIGS: flower.ConfigRecord(configs)})
    message = flower.Message(content, dst_node_id=1000, message_type="train", group_id="1")
    message.metadata.__dict__["_run_id"] = grid.run_id
    return message


@pytest.mark.parametrize("phase", [0, 1])
def test_one_sum_is_answered_once_however_many_ask_at_once(federation, tmp_path, phase):
    """Three requests for one masked vector, of the vote or of a round."""
    config = federation.config | {"rounds": 1}
    nodes = _with_ledgers(federation, tmp_path, **_LIMITS)
    app = federated.make_client_app(federation.load, config)
    replies = []

    def ask_three_times(message, context):
        kept = context.state.config_records.get(messages.PREPARED, {})
        if (_stage(message), context.node_id, kept.get("phase")) == (_COLLECT, 1000, phase):
            replies.extend(_at_once(app, [message] * 3, context))

    grid = _Watched(app, nodes, ask_three_times)
    make_server_app(config)(grid, context_of(grid.run_id))
    answers = [reply for reply in replies if not isinstance(reply, Exception)]
    refusals = [str(reply) for reply in replies if isinstance(reply, Exception)]
    assert len(answers) == 1 and len(refusals) == 2
    assert all("answered in this run" in text for text in refusals)
    # The server's own request came too late, in the vote for the rounds as well.
    assert _spent(tmp_path) == [20.0, 40.0][: phase + 1]
    assert _spent(tmp_path, 1) == [20.0, 40.0]


def test_two_lists_of_survivors_at_once_get_shares_for_one(federation, tmp_path):
    """For a peer that is alive its mask's share, for one that is lost its key's; never both."""
    app = federated.make_client_app(federation.load, federation.config | {"rounds": 0})
    found = []

    def ask_for_both(message, context):
        if _stage(message) == _UNMASK and context.node_id == 1000:
            everyone = grid.get_node_ids()
            both = [_unmask(grid, everyone, []), _unmask(grid, everyone[:-1], everyone[-1:])]
            found.extend(_at_once(app, both * 3, context))

    grid = _Watched(app, _with_ledgers(federation, tmp_path), ask_for_both)
    make_server_app(federation.config | {"rounds": 0})(grid, context_of(grid.run_id))
    assert len(found) == 6
    shares = [reply for reply in found if not isinstance(reply, Exception)]
    assert len(shares) == 1
    assert all(
        "handed out its shares" in str(reply) for reply in found if isinstance(reply, Exception)
    )


def test_processes_that_charge_at_once_are_served_one_after_another(tmp_path):
    node = NodeSettings(str(tmp_path / "ledger"), max_epsilon=5.0, max_delta=1e-5)
    ready, refused = threading.Barrier(12), []

    def charge(number):
        ready.wait()
        try:
            # Every call opens the file anew, as processes do: locks are of the open file.
            storage.charge(node, number, 0, messages.Spending("rules", "vote", 1.0, 1e-6))
        except ProtocolRefusal as refusal:
            refused.append(str(refusal))

    threads = [threading.Thread(target=charge, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [line["epsilon"] for line in storage.entries(node.ledger)] == [1.0] * 5
    assert (
        refused == ["epsilon 1 is above this client's limit: it is 5 and 5 were spent before"] * 7
    )


def test_runs_prepared_before_any_was_paid_do_not_pass_the_limit(federation, tmp_path):
    """Three runs prepare while nothing is spent, then all ask for their votes."""
    config = federation.config | {"rounds": 0}
    nodes = _with_ledgers(federation, tmp_path, **{"max-epsilon": 20.0, "max-delta": 1e-5})
    app = federated.make_client_app(federation.load, config)
    election = federated.Election.from_config(config)
    others = []

    def let_two_more_runs_vote_first(message, context):
        if _stage(message) == _COLLECT and context.node_id == 1000 and not others:
            others.append(_Watched(app, nodes, lambda *_: None))
            run_election(others[0], context_of(others[0].run_id), election)

    grid = _Watched(app, nodes, let_two_more_runs_vote_first)
    with pytest.raises(SumAborted, match="nothing is released"):
        run_election(grid, context_of(grid.run_id), election)
    assert others and [_spent(tmp_path, number) for number in range(5)] == [[20.0]] * 5


# ---- limits and settings


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        # Noise of .06 votes: nothing is hidden, whatever epsilon is called.
        ({"epsilon": 0.01, "delta": 0.9999999}, "delta 1 is above this client's limit"),
        ({"epsilon": 19.0, "delta": 2e-5}, "delta 2e-05 is above this client's limit"),
        ({"epsilon": 21.0, "delta": 1e-5}, "epsilon 21 is above this client's limit"),
    ],
)
def test_a_limit_is_of_epsilon_and_delta(federation, change, refusal):
    nodes = federation.nodes(**{"max-epsilon": 20.0, "max-delta": 1e-5})
    with pytest.raises(SumAborted, match=refusal):
        federation.run(config=federation.config | {"rounds": 0} | change, nodes=nodes)


def test_deltas_of_several_runs_add_up(federation, tmp_path):
    config = federation.config | {"rounds": 0, "epsilon": 1.0, "delta": 1e-6}
    nodes = _with_ledgers(federation, tmp_path, **{"max-epsilon": 60.0, "max-delta": 1.5e-6})
    federation.run(config=config, nodes=nodes)
    with pytest.raises(SumAborted, match="delta 1e-06 is above .* 1e-06 were spent before"):
        federation.run(config=config, nodes=nodes)


_NAN = float("nan")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_epsilon": 1.0}, "max_epsilon: nothing reads this setting .* pass max-epsilon"),
        ({"Max-Delta": 1.0}, "Max-Delta: nothing reads"),
        ({"max-epsilom": 1.0}, "max-epsilom: nothing reads"),
        ({"max-epsilon": 100.0}, "max-epsilon without max-delta"),
        ({"max-delta": 1e-5}, "max-delta without max-epsilon"),
        ({"max-epsilon": _NAN, "max-delta": 1e-5}, "max-epsilon=nan: pass a number"),
        ({"max-epsilon": 100.0, "max-delta": _NAN}, "max-delta=nan: pass a number"),
        ({"max-epsilon": float("inf"), "max-delta": 1e-5}, "max-epsilon=inf: pass a number"),
        ({"max-epsilon": -1.0, "max-delta": 1e-5}, "max-epsilon=-1.0: pass a number"),
        ({"max-epsilon": "100", "max-delta": 1e-5}, "max-epsilon='100': pass a number"),
        ({"max-epsilon": True, "max-delta": 1e-5}, "max-epsilon=True: pass a number"),
        ({"max-epsilon": 100.0, "max-delta": 1.0}, "max-delta=1.0: pass a number"),
        ({"ledger": ""}, "ledger='': start the node with"),
        ({"ledger": 7}, "ledger=7: start the node with"),
        ({"ledger": "/dev/null"}, "/dev/null is not a plain file"),
        ({"allow-training-without-noise": "false"}, "='false': pass true or false"),
        ({"allow-training-without-noise": 1}, "=1: pass true or false"),
    ],
)
def test_settings_that_are_not_understood_stop_the_node(federation, caplog, settings, said):
    """Each of these was once the same as no limit, or as consent."""
    config = federation.config | {"rounds": 0}
    loaded = []
    nodes = [node | settings for node in federation.nodes()]
    with pytest.raises(SumAborted, match="0 clients are ready .*its own log says why"):
        federation.run(loaded.append, config=config, nodes=nodes)
    assert not loaded  # Before anyone looks at records.
    (record, *_) = caplog.records
    assert re.search(said, record.getMessage())
    assert "\n" not in record.getMessage()


def test_names_that_records_are_loaded_by_are_declared(federation):
    nodes = federation.nodes(ward="north")
    with pytest.raises(SumAborted, match="cannot take part"):
        federation.run(nodes=nodes)
    app = federated.make_client_app(federation.load, federation.config, node_settings=["ward"])
    assert federated.run_in_process(app, federation.config, nodes)[0].survivors == 5


@pytest.mark.parametrize("name", ["max-epsilon", "Max_Delta", "ledger"])
def test_an_apps_defaults_hold_no_limit_that_nothing_would_read(name):
    with pytest.raises(ValueError, match="start the node with --node-config"):
        federated.make_client_app(federated.records_in_folder, {name: 1.0})


@pytest.mark.parametrize(
    "line",
    [
        {"epsilon": _NAN},
        {"delta": _NAN},
        {"epsilon": -5.0},
        {"delta": -1e-5},
        {"epsilon": "0"},
        {"epsilon": None},
        {"epsilon": True},
        {"fingerprint": 3},
        {"phase": "0"},
    ],
)
def test_a_line_that_is_no_cost_stops_the_node(federation, tmp_path, caplog, line):
    good = {"epsilon": 1.0, "delta": 1e-6, "fingerprint": "f", "what": "vote"}
    for number in range(5):
        lines = "".join(json.dumps(each) + "\n" for each in (good, good | line))
        (tmp_path / str(number)).write_text(lines)
    nodes = _with_ledgers(federation, tmp_path, **_LIMITS)
    with pytest.raises(SumAborted, match="0 clients are ready .*its own log says why"):
        federation.run(config=federation.config | {"rounds": 0}, nodes=nodes)
    assert f"{tmp_path / '0'} is not a ledger (line 2): mend it or name another" in caplog.text


def test_lines_of_earlier_versions_count_and_a_last_line_may_be_left_open(tmp_path):
    path = tmp_path / "ledger"
    path.write_text('{"epsilon": 4, "delta": 1e-6, "fingerprint": "f", "what": "vote"}')
    node = NodeSettings(str(path), max_epsilon=5.0, max_delta=1e-4)
    storage.charge(node, 1, 0, messages.Spending("f", "vote", 1.0, 1e-6))
    with pytest.raises(ProtocolRefusal, match="it is 5 and 5 were spent before"):
        storage.charge(node, 2, 0, messages.Spending("f", "vote", 0.1, 1e-6))
    assert [line["epsilon"] for line in storage.entries(path)] == [4, 1.0]


def test_a_ledger_that_cannot_be_written_lets_nothing_out(federation, tmp_path):
    (tmp_path / "folder").mkdir()
    nodes = federation.nodes(ledger=str(tmp_path / "folder"))
    with pytest.raises(SumAborted, match="0 clients are ready"):
        federation.run(nodes=nodes)


def test_a_sum_whose_cost_nobody_states_is_not_private(tmp_path):
    """A handler of one's own, under a node with limits."""
    rules = federated.SumRules(3, 2, clip=64, length=4)
    app = flower.ClientApp()

    @app.train(mods=[federated.secure_sum_only(lambda context: rules)])
    def send(message, context):
        return client.vector_reply(message, np.ones(4))

    limits = {"max-epsilon": 1e9, "max-delta": 0.9, "ledger": str(tmp_path / "ledger")}
    grid = InProcessGrid(app, [limits, {}, {}])
    total = secure_sum(grid, context_of(grid.run_id), grid.get_node_ids(), rules)
    assert len(total.survivors) == 2 and storage.entries(tmp_path / "ledger") == []
