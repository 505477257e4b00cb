"""A federation's wiring: whose noise, how much of it, how many survivors, and what is released."""

import json
import os
import pathlib

import numpy as np
import pytest
from flower_messages import phase as _round
from flower_messages import stage as _stage

from dpjax import federated
from dpjax.federated import averaging, voting
from dpjax.federated.flower import internals as flower
from dpjax.federated.flower.messages import SumAborted
from dpjax.randomness.host_randomness import HostRandomness


def test_ballots_have_noise_of_the_clients_own(federation):
    """Records, rules and every public seed are the same: what is summed differs all the same."""
    rates = (1e-8, 0.3, 1e-7, 1e-6, 1e-5, 1e-4, 2e-8, 2e-7, 2e-6, 2e-5)
    candidates = [{"learning_rate": rate, "decay": 1.0, "momentum": 0.9} for rate in rates]
    loud = {"candidates": json.dumps(candidates), "epsilon": 0.6, "rounds": 0}
    first, second = (federation.run(config=federation.config | loud) for _ in range(2))
    assert first.election.fingerprint == second.election.fingerprint
    # Ten counts alike, each with odds below 1 in 8: once in 10^9 pairs of runs.
    assert first.election.plan.standard_deviation > 3.0
    assert not np.array_equal(first.noisy_counts, second.noisy_counts)
    # What is named is the largest noisy count, and of equals the first.
    for outcome in (first, second):
        assert outcome.winner == np.argmax(outcome.noisy_counts)


def test_updates_have_noise_of_the_clients_own(federation):
    first, second = (federation.run(config=federation.config | {"rounds": 1}) for _ in range(2))
    assert first.winner == second.winner
    # Both train the same update: only noise tells them apart, but for one pair in 4 million.
    assert not np.array_equal(first.params, second.params)
    moved = np.abs(first.params - second.params)
    assert np.all(moved < 30 * first.election.averaging_plan.standard_deviation)


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
        claim = json.loads((release / RELEASED[0]).read_text())
        # The hashes are those of the models, which differ by their noise and by who was lost.
        assert set(claim.pop("sha256")) == {*RELEASED[1:], "this_statement_without_this_line"}
        contents.append([claim, (release / RELEASED[1]).read_bytes()])
        assert not any(b"0.123456" in (release / name).read_bytes() for name in RELEASED)
    assert contents[0] == contents[1]
    assert set(contents[0][0]) | {"sha256"} == set(KEYS["a federation with training"])
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
    """Ten ballots of one client, without a seed: another noise each time.

    Of 8 counts two ballots would agree once in 600,000 runs, of 16 once in 10^13.
    """
    vote = voting.VoteSettings(10, 16, 1, 0.7).plan()
    training = averaging.AveragingSettings(10, 8, 2, 2.0).plan()
    ballot = np.eye(16, dtype=np.int64)[3]
    sent = {tuple(voting.noisy_ballot(ballot, vote, HostRandomness())) for _ in range(10)}
    moved = {
        tuple(averaging.noisy_update(np.zeros(8), training, HostRandomness())) for _ in range(10)
    }
    assert len(sent) == len(moved) == 10
