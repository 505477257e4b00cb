"""The client's side of a federated vote: train in private, then vote once, under masks.

Two handlers. `query.train_candidates` trains and keeps the ballot in the client's own state; its
reply is the fingerprint of the public rules and nothing else. `train` hands over the noisy ballot,
and runs under `secure_sum_only`, which refuses every other way to reach it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dpjax import models
from dpjax.federated import flower_internals as flower
from dpjax.federated.election import Config, Election
from dpjax.federated.secure_sum import (
    ProtocolRefusal,
    SumRules,
    kept_to_itself,
    secure_sum_only,
    vector_reply,
)
from dpjax.tuning.host_randomness import HostRandomness
from dpjax.tuning.vote_clients import train_clients
from dpjax.tuning.voting import ballots, noisy_ballot

TRAIN_ACTION = "train_candidates"
TRAIN_MESSAGE = f"query.{TRAIN_ACTION}"
"""Not a train message: Flower would not mask it, and it has nothing to mask."""

ELECTION_RECORD = "dpjax_election"
FINGERPRINT = "fingerprint"
BALLOT = "dpjax_ballot"
LOCAL_ACCURACIES = "dpjax_local_accuracies"
"""In the client's own state: how each candidate did on its test records. Never sent."""

Records = tuple[np.ndarray, np.ndarray]
LoadRecords = Callable[[flower.Context], Records]


def make_client_app(load_records: LoadRecords, defaults: Config | None = None) -> flower.ClientApp:
    """Makes the app that a SuperNode, a simulated node or an in-process node runs.

    The election is read from `defaults`, then the run's configuration, then the node's own, which
    wins. A node's `max-epsilon` is a limit of its own: it refuses a vote that costs more.

    Formal guarantees:
      Nothing computed from the records leaves the client but the noisy ballot, with noise of the
      client's operating system, masked, once in a run. The reply to training is constant, also in
      size; errors are told to the client's own log, and the server learns only that it cannot take
      part. How long training takes is visible to the server and is not protected.

    Args:
      load_records: gives this node's records, (inputs (m, ...), labels (m,)), from its context.
      defaults: settings that the run's configuration need not repeat.
    """
    app = flower.ClientApp()

    def election_of(context: flower.Context) -> Election:
        # What the node's owner wrote wins: nobody changes its candidates from afar.
        return Election.from_config(
            {**(defaults or {}), **context.run_config, **context.node_config}
        )

    def rules_of(context: flower.Context) -> SumRules:
        return election_of(context).rules

    @app.query(TRAIN_ACTION)
    def train_candidates(message: flower.Message, context: flower.Context) -> flower.Message:
        with kept_to_itself():
            election = election_of(context)
            own = election.fingerprint
            if _fingerprint_in(message) == own:
                _check_limit(election, context.node_config)
                _train(election, load_records(context), context)
        record = flower.ConfigRecord({FINGERPRINT: own})
        return flower.Message(flower.RecordDict({ELECTION_RECORD: record}), reply_to=message)

    @app.train(mods=[secure_sum_only(rules_of)])
    def vote(message: flower.Message, context: flower.Context) -> flower.Message:
        kept = context.state.array_records.pop(BALLOT, None)
        election = election_of(context)
        if kept is None:
            raise ProtocolRefusal("this client has trained nothing yet: train first")
        instructions = flower.recorddict_to_fitins(message.content, keep_input=True)
        if instructions.config.get(FINGERPRINT) != election.fingerprint:
            raise ProtocolRefusal("the request is for another election than this client trained")
        (ballot,) = kept.to_numpy_ndarrays()
        return vector_reply(message, noisy_ballot(ballot, election.plan, HostRandomness()))

    return app


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


def _fingerprint_in(message: flower.Message) -> object:
    return message.content.config_records.get(ELECTION_RECORD, {}).get(FINGERPRINT)


def _check_limit(election: Election, node_config: Config) -> None:
    limit = node_config.get("max-epsilon")
    if limit is not None and election.settings.epsilon > float(limit):
        raise ProtocolRefusal(
            f"epsilon {election.settings.epsilon} is above this client's limit of {limit}"
        )


def _train(election: Election, records: Records, context: flower.Context) -> None:
    """Trains every candidate and keeps the ballot in the client's own state."""
    training = election.training
    check_records(records, training.classes)
    scores = train_clients(
        models.build_module(training.model, training.classes, widths=training.widths),
        [records],
        election.candidates,
        epochs=training.epochs,
        batch_size=training.batch_size,
        test_fraction=training.test_fraction,
        seed=training.seed,
        client_ids=[int(context.node_config.get("partition-id", 0))],
        loss=models.default_loss(training.model),
    )
    (ballot,) = ballots(scores.losses, scores.accuracies, election.settings.votes)
    state = context.state.array_records
    state[BALLOT] = flower.ArrayRecord([ballot])
    state[LOCAL_ACCURACIES] = flower.ArrayRecord([scores.accuracies[0]])
