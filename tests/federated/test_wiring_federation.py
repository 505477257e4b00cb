"""A federation's wiring: whose noise, how much of it, how many survivors, and what is released."""

import json
import os
import pathlib

import numpy as np
import pytest

from dpjax import federated
from dpjax.federated import client
from dpjax.federated import flower_internals as flower
from dpjax.federated.sum_rules import SumAborted
from dpjax.tuning import averaging, voting
from dpjax.tuning.host_randomness import HostRandomness

LOUD = {"epsilon": 0.6, "total-epsilon": 2.0, "rounds": 1}
"""Noise of several votes on every count: exact counts would name another winner."""


def test_noise_is_the_clients_own_and_never_that_of_a_public_seed(federation):
    """Records, rules and every seed are the same: what is summed differs all the same."""
    first, second = (federation.run(config=federation.config | LOUD) for _ in range(2))
    assert first.election.fingerprint == second.election.fingerprint
    deviation = first.election.plan.standard_deviation
    assert deviation > 3.0
    # Three counts alike: under 1 in 1,000 if these were all; the parameters, 1 in 10^9 and less.
    assert not np.array_equal(first.params, second.params)
    assert np.all(np.abs(first.params - second.params) > 0)
    counts = [outcome.noisy_counts for outcome in (first, second)]
    # What is named is the largest noisy count, and of equals the first.
    assert [outcome.winner for outcome in (first, second)] == [np.argmax(c) for c in counts]


@pytest.mark.parametrize("phase", [0, 1, 2], ids=["the vote", "first round", "last round"])
def test_with_too_few_vectors_nothing_is_unmasked(federation, phase):
    """Two of five are lost after their keys were shared: three are left, the noise needs four."""
    seen = {"phase": 0, "unmasked": []}

    def is_lost(index, message):
        if message.metadata.message_type.startswith("query"):
            seen["phase"] = _round(message) or 0
        if _stage(message) == flower.Stage.UNMASK:
            seen["unmasked"].append(seen["phase"])
        late = _stage(message) == flower.Stage.COLLECT_MASKED_VECTORS
        return index < 2 and late and seen["phase"] == phase

    with pytest.raises(SumAborted, match="nothing was unmasked"):
        federation.run(is_lost=is_lost)
    assert set(seen["unmasked"]) == set(range(phase))


def _stage(message):
    configs = message.content.config_records.get(flower.RECORD_KEY_CONFIGS, {})
    return configs.get(flower.Key.STAGE)


def _round(message):
    return message.content.config_records.get(client.ELECTION_RECORD, {}).get(client.PHASE)


def test_every_rule_of_a_sum_asks_for_as_many_as_the_noise_needs(federation):
    election = federated.Election.from_config(federation.config)
    # Of five clients a fifth may be missing.
    for needed in (
        election.rules.minimum_survivors,
        election.averaging_rules.minimum_survivors,
        election.plan.minimum_survivors,
        election.averaging_plan.minimum_survivors,
    ):
        assert needed == 4
    for few in (0, 1, 3):
        with pytest.raises(voting.VoteAborted):
            voting.tally(np.zeros(3, np.int64), election.plan, few)
        with pytest.raises(averaging.AveragingAborted):
            averaging.averaged(np.zeros(4, np.int64), election.averaging_plan, few)


RELEASED = ["guarantee.json", "hyperparameters.json", "model.msgpack"]
KEYS = json.loads((pathlib.Path(__file__).parents[1] / "release_keys.json").read_text())
"""What `guarantee.json` may say; whoever adds a key answers for where its value comes from."""


def test_a_release_is_a_function_of_the_winner_the_model_and_the_rules(federation, tmp_path):
    """Neither who was lost nor what was counted shows in it."""
    whole = federation.run()
    few = federation.run(is_lost=lambda index, message: index == 2 and _round(message) == 1)
    assert whole.winner == few.winner and few.round_survivors == (4, 4)
    contents = []
    for number, outcome in enumerate((whole, few)):
        federated.save_outcome(outcome, tmp_path / str(number), {"accuracy": 0.123456})
        release = tmp_path / str(number) / "release"
        assert sorted(os.listdir(release)) == RELEASED
        contents.append([(release / name).read_bytes() for name in RELEASED[:2]])
        assert not any(b"0.123456" in (release / name).read_bytes() for name in RELEASED)
    assert contents[0] == contents[1]
    claim = json.loads(contents[0][0])
    assert set(claim) == set(KEYS["a federation with training"])
    assert json.loads(contents[0][1]) == {"learning_rate": 0.3, "decay": 1.0, "momentum": 0.9}


def test_every_count_and_every_entry_has_a_noise_of_its_own():
    """Of one client's share: no two counts, entries, clients or rounds have one in common."""
    source = HostRandomness(5)
    ballot = np.eye(8, dtype=np.int64)[3]
    vote = voting.VoteSettings(10, 8, 1, 0.7).plan()
    training = averaging.AveragingSettings(10, 8, 2, 2.0).plan()
    update = np.linspace(-0.1, 0.1, 8)
    number = 500
    shares = {
        "votes": [voting.noisy_ballot(ballot, vote, source, s) - ballot for s in range(number)],
        "updates": [
            averaging.noisy_update(update, training, source, s)
            - averaging.quantised(update, training)
            for s in range(number)
        ],
    }
    variances = {"votes": vote.local_variance, "updates": training.local_variance}
    for what, drawn in shares.items():
        drawn = np.array(drawn, float)
        # Each variance within five standard errors, no correlation beyond five.
        assert np.abs(drawn.var(axis=0) / variances[what] - 1).max() < 5 * np.sqrt(2.2 / number)
        correlations = np.corrcoef(drawn.T)[~np.eye(8, dtype=bool)]
        assert np.abs(correlations).max() < 5 / np.sqrt(number), what
        assert abs(np.corrcoef(drawn[:-1].ravel(), drawn[1:].ravel())[0, 1]) < 5 / np.sqrt(
            8 * number
        )


def test_a_secret_share_is_never_drawn_twice():
    """Ten ballots of one client, without a seed: another noise each time."""
    vote = voting.VoteSettings(10, 8, 1, 0.7).plan()
    training = averaging.AveragingSettings(10, 8, 2, 2.0).plan()
    ballot = np.eye(8, dtype=np.int64)[3]
    sent = {tuple(voting.noisy_ballot(ballot, vote, HostRandomness())) for _ in range(10)}
    moved = {
        tuple(averaging.noisy_update(np.zeros(8), training, HostRandomness())) for _ in range(10)
    }
    assert len(sent) == len(moved) == 10
