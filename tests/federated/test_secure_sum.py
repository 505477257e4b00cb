"""The secure sum equals the plain sum of integers, or there is none; every trap raises."""

import dataclasses

import numpy as np
import pytest
from flower_messages import context as context_of
from flower_messages import stage as _stage

from dpjax.federated.flower import client, server
from dpjax.federated.flower import internals as flower
from dpjax.federated.flower.client import vector_reply
from dpjax.federated.flower.in_process import InProcessGrid
from dpjax.federated.flower.messages import ProtocolRefusal, SumAborted, SumRules

_STAGES = flower.Stage.all()


def _lost_at(stage, indices):
    return lambda index, message: _stage(message) == stage and index in indices


def _client_app(rules, vectors):
    app = flower.ClientApp()

    @app.train(mods=[client.secure_sum_only(lambda context: rules)])
    def send(message, context):
        return vector_reply(message, vectors[context.node_config["index"]])

    return app


def _grid(app, clients, **options):
    return InProcessGrid(app, [{"index": index} for index in range(clients)], **options)


def _summed(rules, vectors, **options):
    grid = _grid(_client_app(rules, vectors), len(vectors), **options)
    result = server.secure_sum(grid, context_of(), grid.get_node_ids(), rules)
    order = grid.get_node_ids()
    return result, [order.index(node) for node in result.survivors]


def _vectors(clients, rules, seed=0):
    """Integers over the whole range that the clip allows, both ends included."""
    generator = np.random.default_rng(seed)
    vectors = generator.integers(-rules.clip, rules.clip + 1, size=(clients, rules.length))
    vectors[:, 0], vectors[:, 1] = rules.clip, -rules.clip
    return vectors


@pytest.mark.parametrize("clients", [3, 20, 50])
def test_sum_equals_the_plain_integer_sum(clients):
    rules = SumRules(clients, clients - clients // 10, clip=2**20, length=40)
    vectors = _vectors(clients, rules)
    result, survivors = _summed(rules, vectors)
    assert survivors == list(range(clients))
    assert result.lost == ()
    assert result.total.dtype == np.int64
    np.testing.assert_array_equal(result.total, vectors.sum(axis=0))


@pytest.mark.parametrize("stage", _STAGES)
@pytest.mark.parametrize(("clients", "lost"), [(4, {1}), (20, {3, 17})])
def test_sum_stays_exact_with_as_many_lost_as_allowed(stage, clients, lost):
    rules = SumRules(clients, clients - len(lost), clip=512, length=30)
    vectors = _vectors(clients, rules)
    result, survivors = _summed(rules, vectors, is_lost=_lost_at(stage, lost))
    # Whoever is lost after sending its vector is in the sum all the same.
    expected = set(range(clients)) - (set() if stage == flower.Stage.UNMASK else lost)
    assert set(survivors) == expected
    np.testing.assert_array_equal(result.total, vectors[sorted(expected)].sum(axis=0))


def test_sum_stays_exact_with_dropouts_among_fifty():
    rules = SumRules(50, 45, clip=2**12, length=100)
    vectors = _vectors(50, rules)
    lost = {0, 11, 22, 33, 44}
    result, survivors = _summed(
        rules, vectors, is_lost=_lost_at(flower.Stage.COLLECT_MASKED_VECTORS, lost)
    )
    assert set(survivors) == set(range(50)) - lost
    np.testing.assert_array_equal(result.total, vectors[survivors].sum(axis=0))


@pytest.mark.parametrize("stage", _STAGES[:3])
def test_too_few_survivors_abort_before_anything_is_unmasked(stage):
    rules = SumRules(6, 5, clip=64, length=8)
    stages = []

    def is_lost(index, message):
        stages.append(_stage(message))
        return _lost_at(stage, {0, 1})(index, message)

    with pytest.raises(SumAborted, match="nothing is released"):
        _summed(rules, _vectors(6, rules), is_lost=is_lost)
    assert flower.Stage.UNMASK not in stages


def test_a_neighbourhood_that_is_gone_aborts():
    rules = SumRules(5, 1, clip=64, length=8)
    with pytest.raises(SumAborted, match="nothing is released"):
        _summed(rules, _vectors(5, rules), is_lost=_lost_at(flower.Stage.UNMASK, {0, 1, 2}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clients": 1, "minimum_survivors": 1}, "1 client: a secure sum needs at least 3"),
        ({"clients": 2, "minimum_survivors": 2}, "could subtract"),
        ({"minimum_survivors": 0}, "minimum_survivors 0"),
        ({"minimum_survivors": 11}, "minimum_survivors 11"),
        ({"clip": 100}, "power of two"),
        ({"clip": 2**28}, "would wrap at 2\\^32"),
        ({"length": 0}, "length"),
    ],
)
def test_rules_that_cannot_give_an_exact_hidden_sum_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SumRules(10, 9, clip=64, length=5), **change)


def test_the_largest_clip_named_in_the_refusal_is_accepted_and_exact():
    with pytest.raises(ValueError, match="pass at most 134217728"):
        SumRules(10, 9, clip=2**28, length=5)
    rules = SumRules(10, 9, clip=2**27, length=5)
    vectors = np.full((10, 5), rules.clip)
    vectors[:, 1] = -rules.clip
    np.testing.assert_array_equal(_summed(rules, vectors)[0].total, vectors.sum(axis=0))


# Flower alone: what the guards are for. If one of these fails, Flower has changed.


def _flowers_own_sum(vectors, weights=None, **settings):
    """The mean times the number of clients from Flower's parts without this project's guards."""
    app = flower.ClientApp()

    @app.train(mods=[flower.secaggplus_mod])
    def send(message, context):
        index = context.node_config["index"]
        result = flower.FitRes(
            flower.Status(flower.StatusCode.OK, ""),
            flower.ndarrays_to_parameters([vectors[index].astype(np.float64)]),
            1 if weights is None else weights[index],
            {},
        )
        return flower.Message(flower.fitres_to_recorddict(result, False), reply_to=message)

    grid = _grid(app, len(vectors))
    round_ = server._Round(grid.get_node_ids(), {})
    legacy = flower.LegacyContext(context_of(), strategy=round_, client_manager=round_)
    legacy.state.config_records[flower.MAIN_CONFIGS_RECORD] = flower.ConfigRecord(
        {flower.WorkflowKey.CURRENT_ROUND: 1}
    )
    legacy.state.array_records[flower.MAIN_PARAMS_RECORD] = flower.ArrayRecord()
    flower.SecAggPlusWorkflow(3, 2, **settings)(grid, legacy)
    (mean,) = flower.parameters_to_ndarrays(round_.results[0].parameters)
    return np.rint(mean * len(vectors)).astype(np.int64)


def test_flowers_default_clip_corrupts_silently():
    vectors = np.array([[20, 1], [20, 2], [20, 3]])
    assert _flowers_own_sum(vectors, max_weight=1.0)[0] == 24
    exact = dict(max_weight=1.0, clipping_range=32.0, quantization_range=64, modulus_range=2**32)
    np.testing.assert_array_equal(_flowers_own_sum(vectors, **exact), [60, 6])


def test_flowers_modulus_overflow_corrupts_silently():
    vectors = np.array([[200, 1]] * 3)
    wraps = dict(max_weight=1.0, clipping_range=256.0, quantization_range=512)
    assert _flowers_own_sum(vectors, **wraps, modulus_range=1024)[0] != 600
    assert _flowers_own_sum(vectors, **wraps, modulus_range=2**32)[0] == 600


def test_flowers_weights_make_it_no_sum():
    vectors = np.array([[8, 0], [0, 0], [0, 0]])
    settings = dict(clipping_range=16.0, quantization_range=2**20, max_weight=100.0)
    assert _flowers_own_sum(vectors, weights=[90, 5, 5], **settings)[0] != 8


# The guards on the client.


def _request(stage=None, message_type="train", **configs):
    content = flower.RecordDict()
    if stage is not None:
        content.config_records[flower.RECORD_KEY_CONFIGS] = flower.ConfigRecord(
            {flower.Key.STAGE: stage, **configs}
        )
    return flower.Message(content, dst_node_id=1000, message_type=message_type, group_id="1")


@pytest.fixture
def node(tmp_path):
    """An app with one node's context, and the vector it holds."""
    rules = SumRules(3, 2, clip=64, length=4)
    app = _client_app(rules, [np.array([1, 2, 3, 4])] * 3)
    configured = {"index": 0, "ledger": str(tmp_path / "ledger")}
    context = context_of(_grid(app, 3).run_id, 1000, configured)  # The grid's run stamps messages.
    return rules, app, context


def test_a_request_without_the_secure_aggregation_record_is_refused(node):
    _, app, context = node
    with pytest.raises(ProtocolRefusal, match="under masks only"):
        app(_request(), context)


def test_a_handler_with_an_action_name_does_not_bypass_the_masks(node):
    rules, _, context = node
    vector = np.array([11, 22, 33, 44])
    for mod in (flower.secaggplus_mod, client.secure_sum_only(lambda _: rules)):
        app = flower.ClientApp()

        @app.train("vote", mods=[mod])
        def send(message, context):
            return vector_reply(message, vector)

        request = _request("setup", "train.vote", **rules.settings(3))
        if mod is flower.secaggplus_mod:
            # The trap: Flower's own mod hands the vector out in clear.
            result = flower.recorddict_to_fitres(app(request, context).content, keep_input=True)
            np.testing.assert_array_equal(
                flower.parameters_to_ndarrays(result.parameters)[0], vector
            )
        else:
            with pytest.raises(ProtocolRefusal, match="would leave in clear"):
                app(request, context)


@pytest.mark.parametrize("key", list(SumRules(3, 2, 64, 4).settings(3)))
def test_other_settings_than_agreed_are_refused(node, key):
    rules, app, context = node
    settings = rules.settings(3)
    settings[key] = settings[key] * 2
    with pytest.raises(ValueError, match="settings|ready"):
        app(_request("setup", **settings), context)


def test_flowers_own_defaults_are_refused(node):
    _, app, context = node
    defaults = {
        "sample_num": 3,
        "share_num": 3,
        "threshold": 2,
        "clipping_range": 8.0,
        "target_range": 2**22,
        "mod_range": 2**32,
        "max_weight": 1000.0,
    }
    with pytest.raises(ProtocolRefusal, match="not those agreed on"):
        app(_request("setup", **defaults), context)


def test_each_client_answers_once(node):
    rules, app, _ = node
    grid = _grid(app, 3)
    server.secure_sum(grid, context_of(), grid.get_node_ids(), rules)
    # Every client refuses to begin again, so nobody is left.
    with pytest.raises(SumAborted, match="0 clients are ready"):
        server.secure_sum(grid, context_of(), grid.get_node_ids(), rules)


def test_a_client_refuses_to_unmask_for_too_few_or_twice(node):
    rules, app, _ = node
    requests = []

    class Recording(InProcessGrid):
        def send_and_receive(self, messages, *, timeout=None):
            messages = list(messages)
            requests.extend(messages)
            if _stage(messages[0]) == flower.Stage.UNMASK:
                return []
            return super().send_and_receive(messages, timeout=timeout)

    grid = Recording(app, [{"index": index} for index in range(3)])
    with pytest.raises(SumAborted):
        server.secure_sum(grid, context_of(), grid.get_node_ids(), rules)
    context = grid._contexts[1000]

    def unmask(active, dead):
        lists = {flower.Key.ACTIVE_NODE_ID_LIST: active, flower.Key.DEAD_NODE_ID_LIST: dead}
        return app(_request("unmask", **lists), context)

    with pytest.raises(ProtocolRefusal, match="2 peers are lost"):
        unmask([1000], [1001, 1002])
    with pytest.raises(ProtocolRefusal, match="name every peer once"):
        unmask([1000, 1001, 1002], [1001])
    unmask([1000, 1001, 1002], [])
    with pytest.raises(ProtocolRefusal, match="handed out its shares"):
        unmask([1000, 1001, 1002], [])


@pytest.mark.parametrize(
    ("vector", "message"),
    [
        ([65, 0, 0, 0], "beyond the clip 64"),
        ([0.5, 0, 0, 0], "fractions"),
        ([1, 2, 3], "shape"),
        ([np.nan, 0, 0, 0], "fractions"),
    ],
)
def test_vectors_that_would_be_cut_or_rounded_are_refused(vector, message):
    with pytest.raises(ValueError, match=message):
        SumRules(3, 2, clip=64, length=4).check_vector(np.array(vector))


def _result(vectors=1, examples=1, metrics=None, words=""):
    result = flower.FitRes(
        flower.Status(flower.StatusCode.OK, words),
        flower.ndarrays_to_parameters([np.zeros(4)] * vectors),
        examples,
        metrics or {},
    )
    return flower.fitres_to_recorddict(result, False)


def test_whatever_would_travel_in_clear_beside_the_vector_is_refused():
    rules = SumRules(3, 2, clip=64, length=4)
    client.check_result(_result(), rules)
    with pytest.raises(ValueError, match="weighs the sum"):
        client.check_result(_result(examples=57), rules)
    with pytest.raises(ValueError, match="metrics and status messages travel in clear"):
        client.check_result(_result(metrics={"accuracy": 0.9}), rules)
    with pytest.raises(ValueError, match="metrics and status messages travel in clear"):
        client.check_result(_result(words="57 patients"), rules)
    with pytest.raises(ValueError, match="2 arrays"):
        client.check_result(_result(vectors=2), rules)
    content = _result()
    content.config_records["notes"] = flower.ConfigRecord({"patients": 57})
    with pytest.raises(ValueError, match="records \\['notes'\\] travel in clear"):
        client.check_result(content, rules)


def test_error_texts_of_a_client_stay_with_it(node, caplog):
    rules, _, _ = node
    sent = []
    app = flower.ClientApp()

    @app.train(mods=[client.secure_sum_only(lambda context: rules)])
    def fail(message, context):
        raise ValueError("patient 4711 has no diagnosis")

    grid = _grid(app, 3, observe=sent.append)
    with pytest.raises(SumAborted):
        server.secure_sum(grid, context_of(), grid.get_node_ids(), rules)
    assert "patient 4711" in caplog.text
    assert all(b"patient 4711" not in traffic.content for traffic in sent)
    assert any(b"cannot take part" in traffic.content for traffic in sent)
