"""What a client does with its records before the vote: judge every candidate, add its noise.

A client that cannot judge - without records, with one class only, with files that make no sense -
sends a ballot like everyone, drawn by lot: a client that stayed away for what its records are would
tell what they are. Its own log says what is wrong.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from dpjax.federated.flower import internals as flower
from dpjax.federated.flower import ledger
from dpjax.federated.flower.election import Election
from dpjax.federated.flower.node_settings import NodeSettings
from dpjax.federated.flower.phases import LOCAL_ACCURACIES, VOTE_PHASE, LoadRecords, keep_prepared
from dpjax.federated.flower.records import Records, SetupError
from dpjax.federated.vote_clients import train_clients
from dpjax.federated.voting import ballots, noisy_ballot, random_ballot
from dpjax.randomness.host_randomness import HostRandomness

_LOG = logging.getLogger("dpjax.federated")


def prepare(
    settings: Mapping[str, Any],
    asked: object,
    load_records: LoadRecords,
    context: flower.Context,
) -> str:
    """Trains and keeps the noisy ballot in the client's own state, unless asked for another vote.

    Formal guarantees: once the rules agree and the set-up is in order, a ballot is kept whatever
    the records are, if any; whether this function returns or raises does not depend on them.

    Returns the fingerprint of the election that this client holds, which may differ from the
    server's (`asked`). Its own `chunk-size` says how many candidates it trains at once (0: all).
    Raises a `ProtocolRefusal` if the vote would take the client above its own limit, or it has
    voted; a ValueError, not to be told to the server, for settings or a set-up that do not do.
    """
    election = Election.from_config(settings)
    if asked != election.fingerprint:
        return election.fingerprint
    delta = election.settings.delta
    # The whole of what was agreed on, not the vote alone: nobody begins what it cannot finish.
    whole = ledger.Spending(election.fingerprint, "vote", election.total_epsilon, delta)
    ledger.check(NodeSettings.from_config(context.node_config), context.run_id, VOTE_PHASE, whole)
    ballot, accuracies = _judged(election, settings, load_records, context)
    # Noise at once, from the operating system: no ballot in clear is ever stored.
    sent = noisy_ballot(ballot, election.plan, HostRandomness())
    keep_prepared(
        context,
        election.rules,
        sent,
        phase=VOTE_PHASE,
        spending=dataclasses.replace(whole, epsilon=election.settings.epsilon),
    )
    context.state.array_records[LOCAL_ACCURACIES] = flower.ArrayRecord([accuracies])
    return election.fingerprint


def _judged(
    election: Election,
    settings: Mapping[str, Any],
    load_records: LoadRecords,
    context: flower.Context,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the client's ballot, by lot if it cannot judge, and its accuracies or NaN; (p,)."""
    training = election.training
    try:
        records = load_records(context)
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
        return ballot, scores.accuracies[0]
    except SetupError:
        raise
    except Exception as error:
        # Whatever it is, it may be due to the records: too many for the memory, of another shape.
        _LOG.warning("this client's ballot is drawn by lot, its records judge nothing: %s", error)
        candidates = election.settings.candidates
        ballot = random_ballot(candidates, election.settings.votes, HostRandomness())
        return ballot, np.full(candidates, np.nan)


def check_records(records: Records, classes: int) -> None:
    """Refuses records that no candidate can be judged by; for the client's own log."""
    inputs, labels = records
    if len(labels) < 2 or len(inputs) != len(labels):
        raise ValueError(
            f"{len(inputs)} inputs and {len(labels)} labels: a client needs as many of each, and "
            "at least 2"
        )
    present = np.unique(labels)
    if len(present) < 2:
        raise ValueError(
            f"all labels are {present[0]}: records of one class cannot tell candidates apart"
        )
    if present[0] < 0 or present[-1] >= classes:
        raise ValueError(f"labels {present[0]} to {present[-1]}: pass 0 to {classes - 1}")
