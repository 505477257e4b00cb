"""A whole vote in one process: what is released, what is on the wire, what is refused."""

import collections
import json
import os

import flower_messages
import numpy as np
import pytest
from flower_messages import Wire
from flower_messages import stage as _stage
from small_federations import Federation

from dpjax import federated
from dpjax.federated.flower import client, messages, storage
from dpjax.federated.flower import internals as flower
from dpjax.federated.flower.in_process import InProcessGrid
from dpjax.federated.flower.messages import ProtocolRefusal, SumAborted
from dpjax.federated.flower.server import make_server_app

_FEDERATION = Federation()
_RATES = (1e-8, 0.3, 1e-7, 1e-6)
_CANDIDATES = json.dumps(
    [{"learning_rate": rate, "decay": 1.0, "momentum": 0.9} for rate in _RATES]
)
_RULES = {"candidates": _CANDIDATES, "model": "mlp", "widths": "8", "rounds": 0}
_CONFIG = Federation.config | _RULES
_BEST = 1
_load, _nodes = _FEDERATION.load, _FEDERATION.nodes


def _run(load=_load, config=_CONFIG, nodes=None, **options):
    app = federated.make_client_app(load, config)
    return federated.run_in_process(app, config, nodes or _nodes(), **options)


def test_the_vote_finds_the_best_candidate():
    outcome, accuracies = _run()
    assert outcome.winner == _BEST
    assert outcome.survivors == 5 and outcome.lost == 0
    assert accuracies.shape == (5, 4)
    assert (accuracies[:, _BEST] == 1.0).all()
    # Noise is small at this epsilon: five votes are five votes.
    assert abs(outcome.noisy_counts[_BEST] - 5) <= 4


def test_no_vector_is_on_the_wire_in_clear():
    wire = Wire()
    outcome, _ = _run(wire.watching(_load), observe=wire.observe)
    clip = outcome.election.rules.clip
    assert len(wire.vectors) == 5
    np.testing.assert_array_equal(np.sum(wire.vectors, axis=0), outcome.noisy_counts)
    assert not any(wire.holds(vector, clip) for vector in wire.vectors)
    masked = []
    for _, message in wire.parsed():
        content = flower.message_from_proto(message).content
        # No array at all travels as one; what is masked travels among the protocol's settings.
        assert all(not record for record in content.array_records.values())
        record = content.config_records.get(flower.RECORD_KEY_CONFIGS, {})
        if flower.Key.MASKED_PARAMETERS in record:
            _, values = (
                flower.parameters_to_ndarrays(flower.Parameters([value], "numpy.ndarray"))[0]
                for value in record[flower.Key.MASKED_PARAMETERS]
            )
            masked.append(values)
    # Uniform modulo 2^32: a value within the range of the vectors has odds of 2 clip / 2^32.
    assert np.shape(masked) == (5, 4)
    assert (np.array(masked) > 2 * clip).all()


def test_the_wire_test_would_find_a_vector_in_clear():
    wire = Wire()
    vector = np.array([7, -3, 12, 5])
    app = flower.ClientApp()

    @app.train("vote", mods=[flower.secaggplus_mod])
    def bypassing(message, context):
        return client.vector_reply(message, vector)

    grid = InProcessGrid(app, _nodes()[:1], observe=wire.sent.append)
    request = flower.Message(
        flower.RecordDict(), dst_node_id=1000, message_type="train.vote", group_id="1"
    )
    grid.send_and_receive([request])
    assert wire.holds(vector, 64)


def test_the_reply_to_training_is_the_same_whatever_the_records():
    wire = Wire()
    _run(observe=wire.sent.append)
    _run(
        lambda context: _FEDERATION.records(7 + context.node_config["partition-id"]),
        observe=wire.sent.append,
    )
    replies = {
        message.content.SerializeToString()
        for _, message in wire.parsed()
        if message.metadata.message_type == messages.TRAIN_MESSAGE
    }
    assert len(replies) == 1
    (reply,) = replies
    assert len(reply) < 200


def test_clients_lost_in_training_or_later_are_tolerated_down_to_the_minimum():
    def lost_in_training(index, message):
        return index == 2 and message.metadata.message_type == messages.TRAIN_MESSAGE

    outcome, _ = _run(is_lost=lost_in_training)
    assert (outcome.survivors, outcome.lost) == (4, 1)
    with pytest.raises(SumAborted, match="nothing is released"):
        _run(
            is_lost=lambda index, message: (
                lost_in_training(index, message)
                or (index == 3 and _stage(message) == flower.Stage.COLLECT_MASKED_VECTORS)
            )
        )


def test_unequal_candidates_are_refused_by_fingerprint_before_training():
    trained = []

    def load(context):
        trained.append(context.node_config["partition-id"])
        return _load(context)

    nodes = _nodes()
    nodes[3]["candidates"] = _CANDIDATES.replace("0.3", "0.31")
    with pytest.raises(ValueError, match="1 of 5 clients hold other candidates"):
        _run(load, nodes=nodes)
    assert sorted(trained) == [0, 1, 2, 4]


def test_a_client_has_a_limit_of_its_own():
    nodes = _nodes()
    nodes[0] |= {"max-epsilon": 10.0, "max-delta": 1e-5}
    outcome, _ = _run(nodes=nodes)
    assert outcome.survivors == 4
    nodes[1] |= {"max-epsilon": 10, "max-delta": 1e-5}
    with pytest.raises(SumAborted, match="epsilon 20 is above this client's limit: it is 10"):
        _run(nodes=nodes)


def test_a_ledger_adds_up_the_votes_that_were_sent(tmp_path):
    path = str(tmp_path / "votes.jsonl")
    nodes = [
        node | {"max-epsilon": 45.0, "max-delta": 1e-3, "ledger": f"{path}.{node['partition-id']}"}
        for node in _nodes()
    ]
    fingerprint = _run(nodes=nodes)[0].election.fingerprint
    # One that is lost while it votes has paid all the same; one lost before has not.
    _run(nodes=nodes, is_lost=lambda i, m: i == 0 and _stage(m) == "collect_masked_vectors")
    votes = [
        sum(line["what"] == "vote" for line in storage.entries(f"{path}.{number}"))
        for number in range(5)
    ]
    assert votes == [2] * 5
    first, unmasking, _ = storage.entries(f"{path}.0")
    assert unmasking == first | {"what": "unmask", "epsilon": 0.0, "delta": 0.0}
    assert int(first.pop("run")) and first == {
        "phase": 0,
        "epsilon": 20.0,
        "delta": 1e-5,
        "fingerprint": fingerprint,
        "what": "vote",
    }
    assert os.stat(f"{path}.0").st_mode & 0o077 == 0
    with pytest.raises(SumAborted, match="it is 45 and 40 were spent before"):
        _run(nodes=nodes)
    (tmp_path / "votes.jsonl.1").write_text("gone\n")
    with pytest.raises(ValueError, match="is not a ledger"):
        storage.entries(f"{path}.1")


def test_diverging_candidates_rank_last():
    config = _CONFIG | {"candidates": _CANDIDATES.replace("1e-08", "1e30")}
    outcome, _ = _run(config=config)
    assert outcome.winner == _BEST


@pytest.mark.parametrize(("number", "message"), [(4, "4 of 5 nodes"), (6, "6 nodes are connected")])
def test_another_number_of_nodes_than_planned_is_refused(number, message):
    with pytest.raises(ValueError, match=message):
        _run(
            config=_CONFIG | {"timeout-seconds": 0.0},
            nodes=[{"partition-id": index} for index in range(number)],
        )


def test_a_vote_request_before_training_or_for_another_vote_is_refused():
    app = federated.make_client_app(_load, _CONFIG)
    grid = InProcessGrid(app, _nodes())
    context = flower_messages.context(grid.run_id, 1000, _nodes()[0])
    request = flower.Message(
        flower.RecordDict(
            {flower.RECORD_KEY_CONFIGS: flower.ConfigRecord({flower.Key.STAGE: "setup"})}
        ),
        dst_node_id=1000,
        message_type="train",
        group_id="1",
    )
    with pytest.raises(ProtocolRefusal, match="train first"):
        app(request, context)
    election = federated.Election.from_config(_CONFIG)
    server = make_server_app(_CONFIG | {"epochs": 9})
    with pytest.raises(ValueError, match="5 of 5 clients hold other"):
        server(grid, flower_messages.context())
    assert election.fingerprint  # The clients' own is untouched by the request.


def test_no_ballot_without_noise_is_kept():
    wire, config = Wire(), _CONFIG | {"epsilon": 0.5}
    app = federated.make_client_app(wire.watching(_load), config)
    grid = InProcessGrid(app, _nodes(), observe=wire.observe)
    make_server_app(config)(grid, flower_messages.context())
    assert np.shape(wire.vectors) == (5, 4)
    # Noise of a standard deviation of 4.9; of ballots alone, a one and three zeros, it is 0.43.
    assert np.std(wire.vectors) > 1
    for state in grid.states:
        assert messages.NOISY_VECTOR not in state.array_records


def test_release_holds_the_winner_and_a_claim_and_nothing_else(tmp_path):
    outcome, _ = _run()
    folder = tmp_path / "vote"
    federated.save_outcome(outcome, folder)
    assert sorted(os.listdir(folder)) == ["curator", "release"]
    assert sorted(os.listdir(folder / "release")) == ["guarantee.json", "hyperparameters.json"]
    assert json.loads((folder / "release/hyperparameters.json").read_text()) == {
        "learning_rate": 0.3,
        "decay": 1.0,
        "momentum": 0.9,
    }
    claim = json.loads((folder / "release/guarantee.json").read_text())
    assert claim["epsilon"] <= 20.0
    assert claim["unit_of_privacy"] == "one client with all of its records"
    assert "32 bits" in claim["secure_aggregation"]["mask_strength"]
    assert "3 colluding clients among the 5" in str(claim["secure_aggregation"]["not_covered"])
    assert claim["secure_aggregation"]["epsilon_if_one_ballot_were_unmasked"] > claim["epsilon"]
    kept = json.loads((folder / "curator/vote.json").read_text())
    assert kept["noisy_counts"] == outcome.noisy_counts.tolist()
    assert os.stat(folder / "curator/vote.json").st_mode & 0o077 == 0
    with pytest.raises(ValueError, match="exists already"):
        federated.save_outcome(outcome, folder)


def test_release_does_not_depend_on_who_was_lost_or_on_the_counts(tmp_path):
    contents = []
    for number, lost in enumerate((set(), {4})):
        outcome, _ = _run(
            is_lost=lambda index, message, lost=lost: index in lost and _stage(message) == "setup"
        )
        federated.save_outcome(outcome, tmp_path / str(number))
        folder = tmp_path / str(number) / "release"
        contents.append({name: (folder / name).read_bytes() for name in os.listdir(folder)})
        assert {os.stat(folder / name).st_mtime for name in os.listdir(folder)} == {0.0}
    assert contents[0] == contents[1]


def test_a_final_name_that_is_taken_meanwhile_loses_nothing(tmp_path):
    outcome, _ = _run()
    folder = tmp_path / "vote"

    class Findings(collections.UserDict):
        def __iter__(self):
            folder.mkdir(exist_ok=True)
            (folder / "of another").touch()
            return super().__iter__()

    with pytest.raises(ValueError, match="was taken meanwhile .*: everything is in (.*); rename"):
        federated.save_outcome(outcome, folder, Findings(found=1))
    (kept,) = (path for path in tmp_path.iterdir() if path != folder)
    assert sorted(os.listdir(kept)) == ["curator", "release"]
    assert os.listdir(folder) == ["of another"]
    # Nor does a second run remove what the first left under its own name.
    federated.save_outcome(outcome, tmp_path / "second")
    assert (kept / "curator" / "vote.json").exists()


def test_what_another_run_is_writing_is_left_alone(tmp_path):
    (tmp_path / "vote.partial").mkdir()
    (tmp_path / "vote.partial" / "of another").touch()
    outcome, _ = _run()
    federated.save_outcome(outcome, tmp_path / "vote")
    assert (tmp_path / "vote.partial" / "of another").exists()
