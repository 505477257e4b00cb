"""Prepares what a client will send: a noisy ballot, or a noisy update.

A client that cannot judge or train - without records, with one class only, with malformed files -
answers like everyone, with a random ballot or with noise alone: staying away because of its records
would reveal something about them. Its own log says what is wrong.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dpjax import checks
from dpjax.federated.averaging import noisy_update
from dpjax.federated.flower import internals as flower
from dpjax.federated.flower import storage
from dpjax.federated.flower.election import Election
from dpjax.federated.flower.messages import (
    ELECTION_RECORD,
    FINGERPRINT,
    LOCAL_SCORES,
    PARAMETERS_RECORD,
    PHASE,
    ROUND_ACTION,
    TRAIN_ACTION,
    VOTE_PHASE,
    WINNER,
    Judge,
    LoadRecords,
    ProtocolRefusal,
    Records,
    Spending,
    keep_prepared,
)
from dpjax.federated.flower.storage import ALLOW_WITHOUT_NOISE, NodeSettings, SetupError
from dpjax.federated.local_training import local_update, train_clients
from dpjax.federated.voting import noisy_ballot, random_ballot, whole_ballot
from dpjax.randomness.host_randomness import HostRandomness

_LOG = logging.getLogger("dpjax.federated")


def prepare_ballot(
    settings: Mapping[str, Any],
    request: flower.RecordDict,
    load_records: LoadRecords,
    context: flower.Context,
    judge: Judge | None = None,
) -> str:
    """Judges the candidates and keeps the noisy ballot in the client's own state.

    Formal guarantees: once the rules agree and the set-up is in order, a ballot is kept whatever
    the records are, if any, and whatever a judge of the client's own makes of them; whether this
    function returns or raises does not depend on them.

    Returns the fingerprint of the election that this client holds; if it is not the server's,
    nothing else is done. Its own `chunk-size` is the number of candidates trained at once (0: all).
    Raises a `ProtocolRefusal` if the vote would take the client above its own limit, it has voted,
    or the rules name a judge and its app has none, or the other way round; a ValueError, to be kept
    from the server, for settings or a set-up that are not valid.
    """
    election = Election.from_config(settings)
    wanted = request.config_records.get(ELECTION_RECORD, {})
    if wanted.get(FINGERPRINT) != election.fingerprint:
        return election.fingerprint
    if bool(election.judge) != (judge is not None):
        raise ProtocolRefusal(
            f"the rules have judge={election.judge!r} and this client's app has "
            f"{'none' if judge is None else 'one'}: pass it to make_client_app and name it in the "
            "run's configuration"
        )
    delta = election.settings.delta
    # The cost of all that was agreed on, not of the vote alone: no client should begin a run whose
    # training its own limit would stop.
    whole = Spending(election.fingerprint, "vote", election.total_epsilon, delta)
    storage.check(NodeSettings.from_config(context.node_config), context.run_id, VOTE_PHASE, whole)
    ballot, scores = _judged(election, settings, load_records, context, judge)
    # Noise is added at once, from the operating system: no ballot without noise is ever stored.
    sent = noisy_ballot(ballot, election.plan, HostRandomness())
    keep_prepared(
        context,
        election.rules,
        sent,
        phase=VOTE_PHASE,
        spending=dataclasses.replace(whole, epsilon=election.settings.epsilon),
    )
    context.state.array_records[LOCAL_SCORES] = flower.ArrayRecord([scores])
    return election.fingerprint


def _judged(
    election: Election,
    settings: Mapping[str, Any],
    load_records: LoadRecords,
    context: flower.Context,
    judge: Judge | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the client's ballot, random if it cannot judge, and the scores behind it; (p,) each.

    Scores are accuracies, or the losses of the client's own judge; NaN if it cannot judge.
    """
    try:
        records = load_records(context)
    except (SetupError, KeyboardInterrupt):
        raise
    except BaseException as error:
        return _by_lot(election, error)
    try:
        if judge is None:
            losses, scores = _trained(election, settings, records, context)
        else:
            losses = scores = _own_losses(judge, records, list(election.candidates))
        if np.isnan(losses).all():
            raise ValueError("no candidate has a finite loss")
        ranked = scores if judge is None else -scores
        votes = election.settings.votes
        return whole_ballot(losses, ranked, votes, HostRandomness()), scores
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # Whatever is raised may be due to the records: too many for the memory, another shape, a
        # panic of compiled code, SystemExit; and once there are records, a `SetupError` too.
        return _by_lot(election, error)


def _by_lot(election: Election, error: BaseException) -> tuple[np.ndarray, np.ndarray]:
    """Returns a random ballot and NaN, (p,) each, and tells the client's own log why."""
    _LOG.warning("this client's ballot is drawn by lot, its records judge nothing: %s", error)
    candidates = election.settings.candidates
    ballot = random_ballot(candidates, election.settings.votes, HostRandomness())
    return ballot, np.full(candidates, np.nan)


def _own_losses(judge: Judge, records: Any, candidates: list[Any]) -> np.ndarray:
    """Returns the losses of a client's own judge, (p,) float64, NaN where they are not finite."""
    wanted = len(candidates)  # Counted now: the judge may change the list.
    losses = checks.array("losses", judge(records, candidates), nan=True)
    if losses.shape != (wanted,):
        raise ValueError(f"losses of shape {losses.shape}: a judge returns ({wanted},)")
    return np.where(np.isfinite(losses), losses, np.nan)


def _trained(
    election: Election, settings: Mapping[str, Any], records: Records, context: flower.Context
) -> tuple[np.ndarray, np.ndarray]:
    """Judges by training the named model: losses and accuracies on held-out records, (p,) each."""
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
    return scores.losses[0], scores.accuracies[0]


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


def prepare_update(
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
    client's own limit, or training without noise that its owner has not allowed; a ValueError, to
    be kept from the server, for settings or a set-up that are not valid.
    """
    election = Election.from_config(settings)
    wanted = request.config_records.get(ELECTION_RECORD, {})
    if wanted.get(FINGERPRINT) != election.fingerprint:
        return election.fingerprint
    number, winner = wanted.get(PHASE), wanted.get(WINNER)
    if type(number) is not int or not 1 <= number <= election.averaging.rounds:
        raise ProtocolRefusal(f"the rules have {election.averaging.rounds} rounds of training")
    if type(winner) is not int or not 0 <= winner < len(election.candidates):
        raise ProtocolRefusal("the winner is not one of the candidates")
    node = NodeSettings.from_config(context.node_config)
    if math.isinf(election.total_epsilon) and not node.allow_training_without_noise:
        raise ProtocolRefusal(
            f"training without noise: this client's own configuration has no {ALLOW_WITHOUT_NOISE}"
        )
    spending = Spending(
        election.fingerprint, "training", election.total_epsilon, election.settings.delta
    )
    # The ledger counts what the run has paid; the rest of its cost must be within the limits too.
    storage.check(node, context.run_id, number, spending)
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
    """Reads the global model, (d,) float32, from the server's request; refuses a malformed one."""
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
    """Trains on the client's records, and returns the update, (d,) float64; zeros if it fails."""
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


PREPARE = {TRAIN_ACTION: prepare_ballot, ROUND_ACTION: prepare_update}
"""Action that a client is asked to prepare for -> the function that does."""
