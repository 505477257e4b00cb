"""Clients that cannot judge candidates: they vote by lot, and nobody can tell."""

import numpy as np
import pytest
from flower_messages import Wire

from dpjax import federated
from dpjax.federated.flower import noisy_vectors

_UNUSABLE = [
    ((np.zeros((0, 3), np.float32), np.zeros(0, int)), "at least 2"),
    ((np.zeros((9, 3), np.float32), np.ones(9, int)), "of one class"),
    ((np.zeros((9, 3), np.float32), np.arange(9)), "labels 0 to 8"),
    ((np.zeros((9, 3), np.float32), np.arange(8) % 2), "9 inputs and 8 labels"),
]


def _with_records(records, usual):
    """Loads these records at the first two clients; an exception is raised."""

    def load(context):
        if context.node_config["partition-id"] >= 2:
            return usual(context)
        if isinstance(records, Exception):
            raise records
        return records

    return load


@pytest.mark.parametrize(("records", "message"), _UNUSABLE)
def test_clients_that_cannot_judge_vote_by_lot_and_the_reason_stays_with_them(
    federation, records, message, caplog
):
    with pytest.raises(ValueError, match=message) as caught:
        noisy_vectors.check_records(records, 2)
    assert "\n" not in str(caught.value)
    sent = []
    outcome, accuracies = federation.vote(
        _with_records(records, federation.load), observe=sent.append
    )
    assert (outcome.survivors, outcome.lost) == (5, 0)
    assert np.isnan(accuracies[:2]).all() and not np.isnan(accuracies[2:]).any()
    assert str(caught.value) in caplog.text
    assert all(str(caught.value).encode() not in traffic.content for traffic in sent)


def test_the_server_sees_nothing_different_whatever_the_records(federation):
    """Every message of the two odd clients has the form and the size of an ordinary client's."""

    def forms(load):
        wire = Wire()
        outcome, _ = federation.vote(load, observe=wire.sent.append)
        assert outcome.survivors == 5
        return wire.forms()

    usual = forms(federation.load)
    # 25 requests and as many replies, none of them an error.
    assert len(usual) == 50 and not any(error for *_, error, _ in usual)
    odd = [records for records, _ in _UNUSABLE[:2]]
    for records in [*odd, ValueError("no .npz file"), MemoryError("too many records")]:
        assert forms(_with_records(records, federation.load)) == usual


def test_a_vote_by_lot_is_within_what_the_guarantee_covers(federation):
    """Whatever a client holds, it sends k votes: replacing it moves at most 2 k counts."""
    wire = Wire()
    # With noise of a deviation of 3e-6 a whole number stays as it is, but with odds of 1e-30.
    federation.config = federation.config | {"epsilon": 50.0, "scale": 1}
    load = wire.watching(_with_records(_UNUSABLE[0][0], federation.load))
    outcome, _ = federation.vote(load, observe=wire.observe)
    assert outcome.election.plan.local_variance < 1e-11 and len(wire.vectors) == 5
    assert all(ballot.sum() == 1 and set(ballot) <= {0, 1} for ballot in wire.vectors)


def test_a_set_up_that_is_wrong_keeps_a_client_away_and_its_log_says_so(
    federation, tmp_path, caplog
):
    nodes = [{"data": str(tmp_path / f"hospital_{number}")} for number in range(5)]
    for number in range(1, 5):
        inputs, labels = federation.records(number)
        (tmp_path / f"hospital_{number}").mkdir()
        np.savez(tmp_path / f"hospital_{number}" / "a.npz", inputs=inputs, labels=labels)
    outcome, _ = federation.vote(federated.records_in_folder, nodes=nodes)
    assert outcome.survivors == 4
    assert "hospital_0 is not a folder" in caplog.text
    # A folder that is there and empty is data: nobody sees that this hospital has no patients.
    (tmp_path / "hospital_0").mkdir()
    outcome, _ = federation.vote(federated.records_in_folder, nodes=nodes)
    assert outcome.survivors == 5
    assert "holds no .npz file" in caplog.text
