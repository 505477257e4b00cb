"""What a client does with its records in a round: train the global model, cut, round, add noise."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dpjax.federated.averaging import noisy_update
from dpjax.federated.flower import internals as flower
from dpjax.federated.flower import ledger
from dpjax.federated.flower.election import Election
from dpjax.federated.flower.node_settings import ALLOW_WITHOUT_NOISE, NodeSettings
from dpjax.federated.flower.phases import (
    ELECTION_RECORD,
    FINGERPRINT,
    PARAMETERS_RECORD,
    PHASE,
    WINNER,
    LoadRecords,
    keep_prepared,
)
from dpjax.federated.flower.records import SetupError
from dpjax.federated.flower.sum_rules import ProtocolRefusal
from dpjax.federated.local_updates import local_update
from dpjax.randomness.host_randomness import HostRandomness

_LOG = logging.getLogger("dpjax.federated")


def prepare(
    settings: Mapping[str, Any],
    request: flower.RecordDict,
    load_records: LoadRecords,
    context: flower.Context,
) -> str:
    """Trains one round and keeps the noisy update in the client's own state.

    Formal guarantees: once the rules agree and the set-up is in order, an update is kept whatever
    the records are, if any; whether this function returns or raises does not depend on them. What
    is kept is `averaging.noisy_update`; nothing without noise is stored.

    Returns the fingerprint of the election that this client holds. Raises a `ProtocolRefusal` for a
    round that was not agreed on or is over, parameters that are not the model's, a cost above the
    client's own limit, or training without noise that its owner has not allowed; a ValueError, not
    to be told to the server, for settings or a set-up that do not do.
    """
    election = Election.from_config(settings)
    asked = request.config_records.get(ELECTION_RECORD, {})
    if asked.get(FINGERPRINT) != election.fingerprint:
        return election.fingerprint
    number, winner = asked.get(PHASE), asked.get(WINNER)
    if type(number) is not int or not 1 <= number <= election.averaging.rounds:
        raise ProtocolRefusal(f"the rules have {election.averaging.rounds} rounds of training")
    if type(winner) is not int or not 0 <= winner < len(election.candidates):
        raise ProtocolRefusal("the winner is none of the candidates")
    node = NodeSettings.from_config(context.node_config)
    if math.isinf(election.total_epsilon) and not node.allow_training_without_noise:
        raise ProtocolRefusal(
            f"training without noise: this client's own configuration has no {ALLOW_WITHOUT_NOISE}"
        )
    spending = ledger.Spending(
        election.fingerprint, "training", election.total_epsilon, election.settings.delta
    )
    # What the run has charged already is in the ledger; the rest must fit as well.
    ledger.check(node, context.run_id, number, spending)
    plan = election.averaging_plan
    update = _update(
        election, winner, number, _parameters(request, election), load_records, context
    )
    keep_prepared(
        context,
        election.averaging_rules,
        noisy_update(update, plan, HostRandomness()),
        phase=number,
        spending=spending,
    )
    return election.fingerprint


def _parameters(request: flower.RecordDict, election: Election) -> np.ndarray:
    """Reads the global model, (d,) float32, as the server sends it."""
    record = request.array_records.get(PARAMETERS_RECORD)
    arrays = [] if record is None else record.to_numpy_ndarrays()
    shape = (election.model.dimension,)
    if len(arrays) != 1 or arrays[0].shape != shape or arrays[0].dtype != np.float32:
        raise ProtocolRefusal(f"no parameters of shape {shape} in float32")
    if not np.isfinite(arrays[0]).all():
        raise ProtocolRefusal("the parameters are not finite")
    return arrays[0]


def _update(
    election: Election,
    winner: int,
    number: int,
    params: np.ndarray,
    load_records: LoadRecords,
    context: flower.Context,
) -> np.ndarray:
    """Computes the update, (d,) float64; zeros where the records do not train the model."""
    training = election.training
    try:
        inputs, labels = load_records(context)
        if len(labels) < 1 or len(inputs) != len(labels):
            raise ValueError(f"{len(inputs)} inputs and {len(labels)} labels")
        if np.min(labels) < 0 or np.max(labels) >= training.classes:
            raise ValueError(f"labels {np.min(labels)} to {np.max(labels)}")
        if np.shape(inputs)[1:] != election.averaging.input_shape:
            raise ValueError(f"inputs of shape {np.shape(inputs)[1:]}")
        return local_update(
            election.model,
            training.loss(),
            params,
            election.candidates[winner],
            (inputs, labels),
            epochs=training.epochs,
            batch_size=training.batch_size,
            stream=(training.seed, int(context.node_config.get("partition-id", 0)), number - 1),
        )
    except SetupError:
        raise
    except Exception as error:
        _LOG.warning("this client sends noise alone, its records train no model: %s", error)
        return np.zeros(election.model.dimension)
