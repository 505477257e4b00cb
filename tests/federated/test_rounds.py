"""Federated averaging after the vote: what is released, on the wire, refused and charged."""

import json
import math
import os

import flax.serialization
import flower_messages
import numpy as np
import pytest
from flower_messages import Wire

from dpjax import accounting, federated
from dpjax.federated import averaging, local_training
from dpjax.federated.flower import internals as flower
from dpjax.federated.flower.messages import SumAborted
from dpjax.federated.flower.server import make_server_app


def test_the_model_is_trained_released_and_its_claim_is_that_of_everything(federation, tmp_path):
    outcome = federation.run()
    assert outcome.winner == 1 and outcome.round_survivors == (5, 5)
    inputs, labels = federation.records(99, 200)
    election = outcome.election
    assert local_training.accuracy(election.model, outcome.params, inputs, labels) > 0.95
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
    assert again.stated_epsilon(claim["delta"]) == claim["epsilon"]
    # Independently: the vote's guarantee and the training's, composed here.
    plan = election.averaging_plan
    by_hand = accounting.compose(
        election.plan.guarantee,
        accounting.federated_averaging(
            plan.local_variance, plan.bound, 4, 5, 2, missing_fraction=0.2
        ),
    )
    assert by_hand.epsilon(1e-5) == pytest.approx(claim["epsilon"], rel=1.1e-5)


def _leaves(tree):
    if isinstance(tree, dict):
        return [leaf for child in tree.values() for leaf in _leaves(child)]
    return [np.asarray(tree)]


def test_no_update_is_on_the_wire_in_clear(federation):
    wire = Wire()
    outcome = federation.run(wire.watching(federation.load), observe=wire.observe)
    # Five ballots, then five updates in each of two rounds.
    assert [len(vector) for vector in wire.vectors] == [3] * 5 + [4] * 10
    clips = [outcome.election.rules.clip] * 5 + [outcome.election.averaging_rules.clip] * 10
    for vector, clip in zip(wire.vectors, clips):
        assert np.abs(vector).max() <= clip
        assert not wire.holds(vector, clip)
    for _, message in wire.parsed():
        content = flower.message_from_proto(message).content
        assert all(not record for record in content.array_records.values())
    # What the server makes of it: public parameters plus the sums over the public number.
    plan, params = outcome.election.averaging_plan, outcome.election.model.initial(0)
    for first in (5, 10):
        total = np.sum(wire.vectors[first : first + 5], axis=0).astype(np.int64)
        params = (params + averaging.averaged(total, plan, 5)).astype(np.float32)
    np.testing.assert_array_equal(params, outcome.params)


def test_the_server_sees_nothing_different_whatever_the_records(federation, caplog):
    def forms(load):
        wire = Wire()
        outcome = federation.run(wire.watching(load), observe=wire.observe)
        assert outcome.round_survivors == (5, 5)
        updates.append(wire.vectors[5:])
        return wire.forms()

    def without_records(context):
        if context.node_config["partition-id"] == 0:
            return np.zeros((0, 3), np.float32), np.zeros(0, int)
        if context.node_config["partition-id"] == 1:
            raise OSError("patient 4711: the disk is full")
        return federation.load(context)

    updates = []
    usual = forms(federation.load)
    assert len(usual) == 150 and not any(error for *_, error, _ in usual)
    assert forms(without_records) == usual
    assert "noise alone" in caplog.text and "4711" in caplog.text
    # Noise alone of two clients in two rounds: none is that of another.
    assert len({tuple(updates[1][place]) for place in (0, 1, 5, 6)}) == 4


@pytest.mark.parametrize(
    "records",
    [
        (np.zeros((0, 3), np.float32), np.zeros(0, int)),
        (np.zeros((5, 3), np.float32), np.arange(5)),
        (np.zeros((5, 4), np.float32), np.zeros(5, int)),
        (np.full((5, 3), 1e30, np.float32), np.arange(5) % 2),
    ],
)
def test_a_client_whose_records_train_nothing_sends_zeros_and_noise(federation, records):
    """Seen where the rules have no noise."""
    wire = Wire()

    def load(context):
        return records if context.node_config["partition-id"] == 0 else federation.load(context)

    outcome = federation.run(
        wire.watching(load),
        config=federation.config | {"rounds": 1, "total-epsilon": math.inf},
        nodes=federation.nodes(**{"allow-training-without-noise": True}),
        observe=wire.observe,
    )
    updates = wire.vectors[5:]
    assert len(updates) == 5
    bound = outcome.election.averaging_plan.bound
    assert all(int(update @ update) <= bound**2 for update in updates)
    if np.abs(records[0]).max(initial=0.0) < 1e30:
        assert not updates[0].any()
    assert all(update.any() for update in updates[1:])


# ---- dropouts


@pytest.mark.parametrize("stage", ["setup", "collect_masked_vectors", None])
def test_a_client_lost_in_a_round_is_tolerated_and_not_asked_again(federation, stage):
    asked = []

    def is_lost(index, message):
        found, phase = flower_messages.stage(message), flower_messages.phase(message)
        asked.append((index, phase))
        if stage is None:
            return index == 2 and phase == 1
        # Set-up and the rest come after the request that names the round; the vote has none.
        return index == 2 and found == stage and (2, 1) in asked

    outcome = federation.run(is_lost=is_lost)
    assert outcome.survivors == 5 and outcome.round_survivors == (4, 4)
    assert (2, 2) not in asked


def test_too_few_updates_end_everything_without_output(federation):
    with pytest.raises(SumAborted, match="nothing is released"):
        federation.run(
            is_lost=lambda index, message: index < 2 and flower_messages.phase(message) == 2
        )


# ---- rules


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input-shape": ""}, "input_shape=.*28, 28, 1"),
        ({"input-shape": "three"}, "pass numbers"),
        ({"rounds": -1}, "rounds=-1"),
        ({"total-epsilon": 19.0}, "costs .* alone: pass a larger epsilon"),
        ({"clip-norm": 0.0}, "clip_norm must be"),
        ({"total-epsilon": math.nan}, "epsilon must be"),
    ],
)
def test_bad_rules_are_refused_before_anyone_trains(federation, change, message):
    config = federation.config | change
    with pytest.raises(ValueError, match=message) as caught:
        make_server_app(config)(None, flower_messages.context())
    assert "\n" not in str(caught.value)


def test_fingerprint_and_configuration_cover_the_training(federation):
    election = federated.Election.from_config(federation.config)
    assert federated.Election.from_config(election.config()) == election
    for change in ({"rounds": 3}, {"total-epsilon": 61.0}, {"clip-norm": 2.0}, {"rounds": 0}):
        other = federated.Election.from_config(federation.config | change)
        assert other.fingerprint != election.fingerprint
