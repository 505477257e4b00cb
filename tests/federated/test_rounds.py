"""Federated averaging after the vote: what is released, on the wire, refused and charged."""

import json
import math
import os

import flax.serialization
import numpy as np
import pytest

from dpjax import accounting, federated
from dpjax.federated import client, ledger, local_rounds, masking
from dpjax.federated import flower_internals as flower
from dpjax.federated.in_process import InProcessGrid
from dpjax.federated.server import make_server_app
from dpjax.federated.sum_rules import ProtocolRefusal, SumAborted
from dpjax.tuning import averaging, local_updates

_CONFIG = {
    "clients": 5,
    "candidates": json.dumps(
        [{"learning_rate": rate, "decay": 1.0, "momentum": 0.9} for rate in (1e-8, 0.3, 1e-7)]
    ),
    "votes": 1,
    "epsilon": 20.0,
    "missing-fraction": 0.2,
    "classes": 2,
    "model": "logistic_regression",
    "epochs": 3,
    "batch-size": 8,
    "rounds": 2,
    "total-epsilon": 60.0,
    "input-shape": "3",
}


def _records(number, count=None):
    generator = np.random.default_rng(number)
    count = count or 30 + 10 * number
    labels = generator.integers(0, 2, count)
    inputs = generator.normal(size=(count, 3)) * 0.3 + np.where(labels, 2.0, -2.0)[:, None]
    return inputs.astype(np.float32), labels


def _load(context):
    return _records(context.node_config["partition-id"])


def _nodes(**more):
    return [{"partition-id": index} | more for index in range(5)]


def _run(load=_load, config=_CONFIG, nodes=None, **options):
    app = federated.make_client_app(load, config)
    return federated.run_in_process(app, config, nodes or _nodes(), **options)[0]


def _facts(message):
    records = message.content.config_records
    stage = records.get(flower.RECORD_KEY_CONFIGS, {}).get(flower.Key.STAGE)
    return stage, records.get(client.ELECTION_RECORD, {}).get(client.PHASE)


def test_the_model_is_trained_released_and_its_claim_is_that_of_everything(tmp_path):
    outcome = _run()
    assert outcome.winner == 1 and outcome.round_survivors == (5, 5)
    inputs, labels = _records(99, 200)
    election = outcome.election
    assert local_updates.accuracy(election.model, outcome.params, inputs, labels) > 0.95
    federated.save_outcome(outcome, tmp_path / "run")
    release = tmp_path / "run" / "release"
    assert sorted(os.listdir(release)) == [
        "guarantee.json",
        "hyperparameters.json",
        "model.msgpack",
    ]
    assert {os.stat(release / name).st_mtime for name in os.listdir(release)} == {0.0}
    kernel = flax.serialization.msgpack_restore((release / "model.msgpack").read_bytes())
    assert np.concatenate([leaf.ravel() for leaf in _leaves(kernel)]).size == 4
    claim = json.loads((release / "guarantee.json").read_text())
    assert 59.0 < claim["epsilon"] <= 60.0
    assert claim["epsilon_of_the_vote_alone"] <= 20.0
    assert claim["epsilon_if_one_clients_updates_were_unmasked"] > claim["epsilon"]
    assert claim["federated_training"]["rounds"] == 2
    assert "after rounding" in claim["federated_training"]["sensitivity"]
    again = accounting.from_provenance(claim["mechanism"])
    assert again.epsilon(claim["delta"]) == claim["epsilon"]
    # Independently: the vote's guarantee and the training's, composed here.
    plan = election.averaging_plan
    by_hand = accounting.compose(
        election.plan.guarantee,
        accounting.federated_averaging(
            plan.local_variance, plan.bound, 4, 5, 2, missing_fraction=0.2
        ),
    )
    assert by_hand.epsilon(1e-5) == pytest.approx(claim["epsilon"], rel=1e-9)


def _leaves(tree):
    if isinstance(tree, dict):
        return [leaf for child in tree.values() for leaf in _leaves(child)]
    return [np.asarray(tree)]


class _Wire:
    """Everything sent, and the vectors that the clients handed to the masks."""

    def __init__(self, monkeypatch):
        self.sent, self.vectors = [], []
        reply = client.vector_reply

        def recording(message, vector):
            self.vectors.append(np.asarray(vector))
            return reply(message, vector)

        monkeypatch.setattr(client, "vector_reply", recording)

    def forms(self):
        """Of each message: whose, which way, its type, whether an error, its size."""
        found = []
        for traffic in self.sent:
            message = flower.MessageProto()
            message.ParseFromString(traffic.content)
            kind = (message.metadata.message_type, message.HasField("error"))
            found.append((traffic.node_id, traffic.from_client, *kind, len(traffic.content)))
        return found


def test_no_update_is_on_the_wire_in_clear(monkeypatch):
    wire = _Wire(monkeypatch)
    outcome = _run(observe=wire.sent.append)
    # Five ballots, then five updates in each of two rounds.
    assert [len(vector) for vector in wire.vectors] == [3] * 5 + [4] * 10
    clips = [outcome.election.rules.clip] * 5 + [outcome.election.averaging_rules.clip] * 10
    for vector, clip in zip(wire.vectors, clips):
        assert np.abs(vector).max() <= clip
        forms = [
            form.astype(kind).tobytes()
            for form in (vector, vector.astype(np.int64) + clip)
            for kind in (np.int32, np.int64, np.float32, np.float64)
        ]
        assert not any(form in traffic.content for traffic in wire.sent for form in forms)
    for traffic in wire.sent:
        if traffic.from_client:
            message = flower.MessageProto()
            message.ParseFromString(traffic.content)
            content = flower.message_from_proto(message).content
            assert all(not record for record in content.array_records.values())
    # What the server makes of it: public parameters plus the sums over the public number.
    plan, params = outcome.election.averaging_plan, outcome.election.model.initial(0)
    for first in (5, 10):
        total = np.sum(wire.vectors[first : first + 5], axis=0).astype(np.int64)
        params = (params + averaging.averaged(total, plan, 5)).astype(np.float32)
    np.testing.assert_array_equal(params, outcome.params)


def test_the_server_sees_nothing_different_whatever_the_records(monkeypatch, caplog):
    def forms(load):
        wire = _Wire(monkeypatch)
        outcome = _run(load, observe=wire.sent.append)
        assert outcome.round_survivors == (5, 5)
        return wire.forms()

    def without_records(context):
        if context.node_config["partition-id"] == 0:
            return np.zeros((0, 3), np.float32), np.zeros(0, int)
        if context.node_config["partition-id"] == 1:
            raise OSError("patient 4711: the disk is full")
        return _load(context)

    usual = forms(_load)
    assert len(usual) == 150 and not any(error for *_, error, _ in usual)
    assert forms(without_records) == usual
    assert "noise alone" in caplog.text and "4711" in caplog.text


@pytest.mark.parametrize(
    "records",
    [
        (np.zeros((0, 3), np.float32), np.zeros(0, int)),
        (np.zeros((5, 3), np.float32), np.arange(5)),
        (np.zeros((5, 4), np.float32), np.zeros(5, int)),
        (np.full((5, 3), 1e30, np.float32), np.arange(5) % 2),
    ],
)
def test_a_client_whose_records_train_nothing_sends_zeros_and_noise(records, monkeypatch):
    updates = []
    make = local_rounds.noisy_update

    def recording(update, plan, source):
        updates.append(averaging.quantised(update, plan))
        assert source.secret
        return make(update, plan, source)

    monkeypatch.setattr(local_rounds, "noisy_update", recording)
    outcome = _run(
        lambda context: records if context.node_config["partition-id"] == 0 else _load(context),
        config=_CONFIG | {"rounds": 1},
    )
    assert len(updates) == 5
    bound = outcome.election.averaging_plan.bound
    assert all(int(update @ update) <= bound**2 for update in updates)
    if np.abs(records[0]).max(initial=0.0) < 1e30:
        assert not updates[0].any()
    assert all(update.any() for update in updates[1:])


# ---- dropouts


@pytest.mark.parametrize("stage", ["setup", "collect_masked_vectors", None])
def test_a_client_lost_in_a_round_is_tolerated_and_not_asked_again(stage):
    asked = []

    def is_lost(index, message):
        found, phase = _facts(message)
        asked.append((index, phase))
        if stage is None:
            return index == 2 and phase == 1
        # Set-up and the rest come after the request that names the round; the vote has none.
        return index == 2 and found == stage and (2, 1) in asked

    outcome = _run(is_lost=is_lost)
    assert outcome.survivors == 5 and outcome.round_survivors == (4, 4)
    assert (2, 2) not in asked


def test_too_few_updates_end_everything_without_output():
    with pytest.raises(SumAborted, match="nothing is released"):
        _run(is_lost=lambda index, message: index < 2 and _facts(message)[1] == 2)


# ---- what a client refuses


@pytest.fixture
def asked():
    """A function that sends one client a round's request, after the vote if wanted."""
    config = _CONFIG | {"rounds": 2}
    app = federated.make_client_app(_load, config)
    grid = InProcessGrid(app, _nodes())
    election = federated.Election.from_config(config)
    context = flower.Context(
        run_id=1, node_id=1000, node_config=_nodes()[0], state=flower.RecordDict(), run_config={}
    )

    def ask(phase=1, winner=1, params=None, fingerprint=None):
        facts = {
            client.FINGERPRINT: fingerprint or election.fingerprint,
            client.PHASE: phase,
            client.WINNER: winner,
        }
        params = np.zeros(4, np.float32) if params is None else params
        request = flower.Message(
            flower.RecordDict(
                {
                    client.ELECTION_RECORD: flower.ConfigRecord(facts),
                    client.PARAMETERS_RECORD: flower.ArrayRecord([params]),
                }
            ),
            dst_node_id=1000,
            message_type=client.ROUND_MESSAGE,
            group_id="0",
        )
        return app(request, context)

    ask.context, ask.election, ask.grid = context, election, grid
    return ask


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"phase": 3}, "the rules have 2 rounds"),
        ({"phase": 0}, "the rules have 2 rounds"),
        ({"winner": 3}, "none of the candidates"),
        ({"winner": -1}, "none of the candidates"),
        ({"params": np.zeros(5, np.float32)}, "no parameters of shape"),
        ({"params": np.zeros(4)}, "no parameters of shape"),
        ({"params": np.full(4, np.nan, np.float32)}, "not finite"),
    ],
)
def test_requests_that_were_not_agreed_on_are_refused(asked, request_, message):
    with pytest.raises(ProtocolRefusal, match=message):
        asked(**request_)
    assert client.NOISY_VECTOR not in asked.context.state.array_records


def test_other_rules_are_answered_with_ones_own_fingerprint_and_nothing_else(asked):
    reply = asked(fingerprint="another")
    record = reply.content.config_records[client.ELECTION_RECORD]
    assert dict(record) == {client.FINGERPRINT: asked.election.fingerprint}
    assert client.NOISY_VECTOR not in asked.context.state.array_records


def test_a_phase_that_was_answered_or_left_behind_is_over(asked):
    asked(phase=1)
    asked(phase=1)  # Prepared anew with fresh noise: nothing has left the client.
    asked(phase=2)
    masking._begin_phase(asked.context, 2)
    with pytest.raises(ProtocolRefusal, match="answered in this run"):
        asked(phase=1)
    asked.context.state.config_records["dpjax_secure_sum"]["answered"] = True
    with pytest.raises(ProtocolRefusal, match="answered in this run"):
        asked(phase=2)


def test_stages_of_an_earlier_sum_do_not_reach_a_later_one(asked):
    """A request to unmask round 1 that comes when round 2 is prepared opens nothing."""
    asked(phase=1)
    masking._begin_phase(asked.context, 1)
    memory = asked.context.state.config_records["dpjax_secure_sum"]
    memory["members"], memory["peers"], memory["answered"] = 5, list(range(1000, 1005)), True
    asked(phase=2)
    lists = {
        flower.Key.ACTIVE_NODE_ID_LIST: list(range(1000, 1005)),
        flower.Key.DEAD_NODE_ID_LIST: [],
    }
    request = flower.Message(
        flower.RecordDict(
            {
                flower.RECORD_KEY_CONFIGS: flower.ConfigRecord(
                    {flower.Key.STAGE: flower.Stage.UNMASK, **lists}
                )
            }
        ),
        dst_node_id=1000,
        message_type="train",
        group_id="1",
    )
    with pytest.raises(ProtocolRefusal, match="before this sum was set up"):
        federated.make_client_app(_load, _CONFIG)(request, asked.context)


def test_no_update_without_noise_is_kept(asked):
    asked(phase=1)
    (first,) = asked.context.state.array_records[client.NOISY_VECTOR].to_numpy_ndarrays()
    asked(phase=1)
    (again,) = asked.context.state.array_records[client.NOISY_VECTOR].to_numpy_ndarrays()
    # The same update, and noise of its own: four entries that all agree would be no accident.
    assert not np.array_equal(first, again)


# ---- without noise


def test_training_without_noise_needs_every_owners_word_and_is_the_curators(tmp_path):
    config = _CONFIG | {"total-epsilon": math.inf}
    with pytest.raises(SumAborted, match="no allow-training-without-noise"):
        _run(config=config)
    # Said by the run instead of by the node, it counts for nothing.
    with pytest.raises(SumAborted, match="no allow-training-without-noise"):
        _run(config=config | {local_rounds.ALLOW_WITHOUT_NOISE: 1})
    allowed = {local_rounds.ALLOW_WITHOUT_NOISE: 1}
    with pytest.raises(SumAborted, match="above this client's limit"):
        _run(config=config, nodes=_nodes(**allowed, **{"max-epsilon": 1e6}))
    outcome = _run(config=config, nodes=_nodes(**allowed))
    federated.save_outcome(outcome, tmp_path / "run")
    assert sorted(os.listdir(tmp_path / "run" / "release")) == [
        "guarantee.json",
        "hyperparameters.json",
    ]
    claim = json.loads((tmp_path / "run" / "release" / "guarantee.json").read_text())
    assert claim["epsilon"] <= 20.0 and "nothing else" in claim["released"]
    curator = tmp_path / "run" / "curator"
    assert sorted(os.listdir(curator)) == ["NOT_PRIVATE.txt", "model.msgpack", "vote.json"]
    assert "WITHOUT noise" in (curator / "NOT_PRIVATE.txt").read_text()
    assert os.stat(curator / "model.msgpack").st_mode & 0o077 == 0


# ---- the ledger


def test_a_ledger_is_charged_the_total_in_two_parts(tmp_path):
    path = str(tmp_path / "ledger")
    nodes = [
        node | {"ledger": f"{path}.{node['partition-id']}", "max-epsilon": 60.0}
        for node in _nodes()
    ]
    outcome = _run(nodes=nodes)
    for number in range(5):
        lines = ledger.entries(f"{path}.{number}")
        assert [line["what"] for line in lines] == ["vote", "training"]
        assert [line["epsilon"] for line in lines] == [20.0, 40.0]
        assert sum(line["delta"] for line in lines) == 1e-5
        assert {line["fingerprint"] for line in lines} == {outcome.election.fingerprint}
    # All of the limit is spent: not even a vote of another run is sent.
    with pytest.raises(SumAborted, match="it is 60 and 60 were spent before"):
        _run(nodes=nodes)


def test_whoever_cannot_pay_for_all_of_it_does_not_begin():
    with pytest.raises(SumAborted, match="epsilon 60 is above this client's limit: it is 59"):
        _run(nodes=_nodes(**{"max-epsilon": 59.0}))


def test_a_client_that_missed_the_vote_pays_the_total_with_its_first_update(asked, tmp_path):
    context = asked.context
    context.node_config["ledger"] = str(tmp_path / "ledger")
    asked(phase=2)
    client._charge(context, context.state.config_records[client.PREPARED])
    client._charge(context, context.state.config_records[client.PREPARED])
    (line,) = ledger.entries(tmp_path / "ledger")
    assert (line["epsilon"], line["delta"], line["what"]) == (60.0, 1e-5, "training")


# ---- rules


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input-shape": ""}, "input-shape=28,28,1"),
        ({"input-shape": "three"}, "pass numbers"),
        ({"rounds": -1}, "rounds=-1"),
        ({"total-epsilon": 19.0}, "costs .* alone: pass more in all"),
        ({"clip-norm": 0.0}, "clip_norm=0.0"),
        ({"total-epsilon": math.nan}, "epsilon=nan"),
    ],
)
def test_bad_rules_are_refused_before_anyone_trains(change, message):
    config = _CONFIG | change
    with pytest.raises(ValueError, match=message) as caught:
        make_server_app(config)(
            None,
            flower.Context(
                run_id=1, node_id=1, node_config={}, state=flower.RecordDict(), run_config={}
            ),
        )
    assert "\n" not in str(caught.value)


def test_fingerprint_and_configuration_cover_the_training():
    election = federated.Election.from_config(_CONFIG)
    assert federated.Election.from_config(election.config()) == election
    for change in ({"rounds": 3}, {"total-epsilon": 61.0}, {"clip-norm": 2.0}, {"rounds": 0}):
        other = federated.Election.from_config(_CONFIG | change)
        assert other.fingerprint != election.fingerprint
