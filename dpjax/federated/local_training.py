"""What a client does with its records: judge every candidate, vote, add its noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dpjax.federated import flower_internals as flower
from dpjax.federated import ledger
from dpjax.federated.client import LOCAL_ACCURACIES, LoadRecords, Records, keep_prepared
from dpjax.federated.election import Election
from dpjax.tuning.host_randomness import HostRandomness
from dpjax.tuning.vote_clients import train_clients
from dpjax.tuning.voting import ballots, noisy_ballot


def prepare(
    settings: Mapping[str, Any],
    asked: object,
    load_records: LoadRecords,
    context: flower.Context,
) -> str:
    """Trains and keeps the noisy ballot in the client's own state, unless asked for another vote.

    Args:
      settings: of the election, as this client holds them; and `chunk-size`, how many candidates
        it trains at once, its own memory knob (0: all).
      asked: fingerprint of the election that the server holds.
      load_records: gives the records.
      context: the client's.

    Returns:
      The fingerprint of the election that this client holds.

    Raises:
      ProtocolRefusal: if the vote would take the client above its own limit.
      ValueError: for settings or records that do not do; not to be told to the server.
    """
    election = Election.from_config(settings)
    if asked != election.fingerprint:
        return election.fingerprint
    ledger.check(context.node_config, election.settings.epsilon)
    records = load_records(context)
    training = election.training
    check_records(records, training.classes)
    scores = train_clients(
        training.module(),
        [records],
        election.candidates,
        epochs=training.epochs,
        batch_size=training.batch_size,
        test_fraction=training.test_fraction,
        seed=training.seed,
        client_ids=[int(context.node_config.get("partition-id", 0))],
        loss=training.loss(),
        chunk_size=int(settings.get("chunk-size", 0)) or None,
    )
    (ballot,) = ballots(scores.losses, scores.accuracies, election.settings.votes)
    # Noise at once, from the operating system: no ballot in clear is ever stored.
    sent = noisy_ballot(ballot, election.plan, HostRandomness())
    keep_prepared(
        context,
        election.rules,
        sent,
        fingerprint=election.fingerprint,
        epsilon=election.settings.epsilon,
        delta=election.settings.delta,
    )
    context.state.array_records[LOCAL_ACCURACIES] = flower.ArrayRecord([scores.accuracies[0]])
    return election.fingerprint


def check_records(records: Records, classes: int) -> None:
    """Refuses records that no candidate can be judged by.

    Raises:
      ValueError: without records, with labels out of range, or all of one class.
    """
    inputs, labels = records
    if len(labels) < 2 or len(inputs) != len(labels):
        raise ValueError(
            f"{len(inputs)} inputs and {len(labels)} labels: a client needs as many of each, and "
            "at least 2"
        )
    present = np.unique(labels)
    if len(present) < 2:
        raise ValueError(
            f"all labels are {present[0]}: a client whose records are of one class cannot tell "
            "candidates apart; leave it out"
        )
    if present[0] < 0 or present[-1] >= classes:
        raise ValueError(f"labels {present[0]} to {present[-1]}: pass 0 to {classes - 1}")
