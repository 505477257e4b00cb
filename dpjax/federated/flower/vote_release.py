"""Writes what may leave a federation: the winning hyperparameters, the model, and the claim.

The format is that of `dpjax.releases.release`. A model is released only where it was trained under
noise, and the claim is then that of the vote and the training together. A model averaged without
noise is for the curator only.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import tempfile
from collections.abc import Mapping
from typing import Any

import jax

from dpjax import accounting
from dpjax.federated.federation_settings import MODULUS, Averaging, LocalTraining
from dpjax.federated.flower.election import Candidate, Election
from dpjax.federated.flower.internals import RECORD_KEY_CONFIGS
from dpjax.federated.flower.server import Outcome
from dpjax.federated.voting import VoteSettings
from dpjax.releases import claims
from dpjax.releases.release import Release, json_bytes
from dpjax.releases.rules import Rebuilt

VOTE_FILE = "vote.json"
SAME_VARIANCE = 1e-3
"""Relative difference of two variances that a search for the least noise may end with."""
_WARNING = "For the curator only, never publish: this is not part of the release."
_NOT_PRIVATE = (
    "model.msgpack was averaged WITHOUT noise and is not private: it shows what the clients' "
    "records are like, and no guarantee covers it"
)
_VERSIONED = ("dpjax", "flwr", "jax", "flax", "numpy", "scipy", "dp-accounting", "cryptography")


def statement(election: Election, versions: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Writes the contents of a federation's `guarantee.json`, from the public rules alone.

    The apps take noise from the clients' operating systems and from nowhere else.

    Args:
      election: the public rules.
      versions: of the libraries; None: of those that run now.
    """
    # All of it was public before a vector was sent, and `rebuilt` writes it again from the words.
    rules = election.rules
    described = {
        "candidates": [_in_words(candidate, election.judge) for candidate in election.candidates],
        **(
            {"judge": election.judge}
            if election.judge
            else {"local_training": dataclasses.asdict(election.training)}
        ),
        "averaging": _averaging(election.averaging),
        "fingerprint": election.fingerprint,
        "secure_aggregation": {
            "protocol": f"Flower's SecAgg+ ({RECORD_KEY_CONFIGS})",
            "exact": (
                f"integers of at most {rules.clip} in absolute value, summed modulo {MODULUS}; "
                "nothing is rounded"
            ),
            "server_sees": (
                "a server that follows the protocol sees who takes part and who drops out, how "
                "long each reply took, masked vectors, and the noisy sum of at least "
                f"{rules.minimum_survivors} ballots, and of as many updates in each round of "
                "training; the guarantee covers these sums"
            ),
            "dropouts": (
                "a client lost before vectors are sent is left out and the key exchange begins "
                "again; one lost later is tolerated; with fewer than "
                f"{rules.minimum_survivors} vectors nothing is unmasked and nothing is released"
            ),
            "not_covered": [
                "a server that departs from the protocol: it can, for example, invent clients",
                (
                    f"{rules.threshold(rules.clients)} colluding clients among the "
                    f"{rules.shares(rules.clients)} that share one client's keys, whom the server "
                    "draws at random: with the server they could unmask its ballot"
                ),
                "how long a client trains, which depends on how many records it has",
                "that a client is lost: it must not be for what its records are; one without "
                "usable records takes part like the others",
            ],
            "mask_strength": (
                "the masks are Flower's: each is drawn by NumPy's MT19937 from a 256-bit secret "
                "folded to 32 bits, and never takes the value 2^32 - 1, so no cryptographic "
                "strength is claimed for them. Once all is unmasked a ballot is covered by one "
                "such mask for each of its peers: two where there are three clients, which a "
                "search of some 2^32 steps could remove, ten where there are eleven or more"
            ),
            "epsilon_if_one_ballot_were_unmasked": _ballot_alone(election),
        },
        "library_versions": claims.versions_now(_VERSIONED) if versions is None else dict(versions),
    }
    return election.plan.statement(secret=True) | _released(election) | described


def rebuilt(claim: Mapping[str, Any]) -> Rebuilt:
    """Rebuilds a federation's statement, as this version writes it, from the rules in `claim`.

    `claim` is the content of a release's `guarantee.json`; malformed rules raise a ValueError,
    KeyError or TypeError.
    """
    names = [field.name for field in dataclasses.fields(VoteSettings)]
    averaging = dict(claim["averaging"])
    if averaging["rounds"]:
        total = averaging["total_epsilon"]
        averaging["total_epsilon"] = math.inf if total is None else total
        averaging["input_shape"] = tuple(averaging["input_shape"])
    judge = claim.get("judge", "")
    candidates = tuple(_candidate(words, judge) for words in claim["candidates"])
    training = LocalTraining()
    if not judge:
        training = LocalTraining(
            **claim["local_training"] | {"widths": tuple(claim["local_training"]["widths"])}
        )
    election = Election(
        VoteSettings(**{name: claim["settings"][name] for name in names}),
        candidates,
        training,
        Averaging(**averaging),
        judge,
    )
    if _with_model(election):
        plan, said = election.averaging_plan, claim["federated_training"]["local_variance"]
        # The noise that a search finds depends on the version, so the stated noise is priced.
        if abs(said - plan.local_variance) <= SAME_VARIANCE * plan.local_variance:
            vars(election)["averaging_plan"] = dataclasses.replace(plan, local_variance=float(said))
    return Rebuilt(
        # Through JSON: tuples are lists there.
        json.loads(json_bytes(statement(election, claims.versions(claim, _VERSIONED)))),
        lambda hyperparameters: hyperparameters in candidates,
    )


def _in_words(candidate: Candidate, judge: str) -> str:
    """Writes a candidate for the statement; as JSON if the clients have a judge of their own."""
    if judge:
        return json.dumps(candidate, sort_keys=True)
    return " ".join(f"{name}={value!r}" for name, value in candidate.items())


def _candidate(words: str, judge: str) -> dict[str, Any]:
    """Reads a candidate as `_in_words` writes it."""
    if judge:
        return json.loads(words)
    pairs = (pair.split("=") for pair in words.split(" "))
    return {name: float(value) for name, value in pairs}


def _averaging(averaging: Averaging) -> dict[str, Any]:
    """Writes the rules of the rounds, if there are any; JSON has no infinity."""
    if not averaging.rounds:
        return {"rounds": 0}
    total = averaging.total_epsilon
    return dataclasses.asdict(averaging) | {
        "total_epsilon": total if math.isfinite(total) else None
    }


def _released(election: Election) -> dict[str, Any]:
    """Returns the fields of the statement that depend on whether a model is released."""
    total = election.averaging_plan.total if _with_model(election) else None
    if total is None:
        return {"released": "the winning candidate's hyperparameters and nothing else"}
    plan = election.averaging_plan
    return {
        "released": (
            "the winning candidate's hyperparameters and the parameters of the model that all "
            "clients trained with them; epsilon is that of the vote and the training together"
        ),
        "epsilon": total.stated_epsilon(election.settings.delta),
        "mechanism": total.provenance,
        "epsilon_if_one_clients_updates_were_unmasked": _updates_alone(election),
        "epsilon_of_the_vote_alone": election.plan.guarantee.epsilon(election.settings.delta),
        "federated_training": plan.statement()
        | {
            "model": election.training.model,
            "input_shape": list(election.averaging.input_shape),
            "unit_of_privacy": "one client with all of its records, in every round",
            "sensitivity": (
                "a client's update is one of whole numbers whose Euclidean norm after rounding is "
                f"at most {plan.bound}; replacing the client moves the sum by at most twice that"
            ),
        },
        "assumptions": [
            "the candidates and every setting were fixed before the data was seen",
            "the server sees no ballot and no update, only their sums",
            "which clients drop out does not depend on their records",
            "a client answers once in the vote and once in a round; another run on the same "
            "records is composed with this one",
        ],
    }


def _updates_alone(election: Election) -> float:
    """Returns the epsilon of one client's unmasked updates, by its own noise alone."""
    plan = election.averaging_plan
    guarantee = accounting.federated_averaging(
        plan.local_variance, plan.bound, plan.settings.dimension, 1, plan.settings.rounds
    )
    return guarantee.epsilon(election.settings.delta, method="rdp")


def _with_model(election: Election) -> bool:
    return election.averaging.rounds > 0 and election.averaging_plan.settings.private


def _ballot_alone(election: Election) -> float:
    """Returns the epsilon of one client's unmasked ballot, by its own noise alone."""
    settings, variance = election.settings, election.plan.local_variance
    common = {"votes": settings.votes, "candidates": settings.candidates, "scale": settings.scale}
    if settings.noise == "skellam":
        guarantee = accounting.skellam_vote(variance, **common)
    else:
        guarantee = accounting.discrete_gaussian_vote(variance, 1, **common)
    return guarantee.epsilon(settings.delta)


def save_outcome(
    outcome: Outcome, folder: str | os.PathLike, findings: Mapping[str, Any] | None = None
) -> None:
    """Writes `<folder>/release/` and `<folder>/curator/`, whole or not at all.

    `release/` holds `hyperparameters.json` and `guarantee.json`; after a vote alone also
    `certificate.json`, from which `python -m dpjax.certificate` proves the stated epsilon; after
    private training also `model.msgpack` (plain Flax reads it). They depend on the winner, the
    model and the public rules alone; all time stamps are 0. `curator/vote.json`, readable by its
    owner only, holds what else the server knows; a model averaged without noise lies beside it.

    Args:
      outcome: of the vote, and of the training.
      folder: must not exist yet.
      findings: for JSON, whatever else the curator is to keep.

    Raises:
      ValueError: if the folder exists, or was made by others while this was written. The message
        then names the folder that holds everything: what the clients paid for is never removed.
    """
    folder = os.path.abspath(os.fspath(folder))
    if os.path.lexists(folder):
        raise ValueError(f"{folder} exists already: pass a folder that does not exist yet")
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    # A temporary name of its own: other processes may write here, or earlier runs have left one.
    partial = tempfile.mkdtemp(prefix=f"{os.path.basename(folder)}.", dir=os.path.dirname(folder))
    election, private = outcome.election, _with_model(outcome.election)
    model = None
    if outcome.params is not None:
        model = election.model.tree(jax.numpy.asarray(outcome.params))
    kept = {
        VOTE_FILE: json_bytes(
            {
                "warning": _WARNING,
                "noisy_counts": outcome.noisy_counts.tolist(),
                "survivors": outcome.survivors,
                "lost": outcome.lost,
                "survivors_of_each_round": list(outcome.round_survivors),
            }
            | dict(findings or {})
        )
    }
    if model is not None and not private:
        kept |= Release(model, {}, {}).model_files()
        kept["NOT_PRIVATE.txt"] = f"{_NOT_PRIVATE}.\n".encode()
    curator = os.path.join(partial, "curator")
    os.mkdir(curator, 0o700)
    for name, content in kept.items():
        path = os.path.join(curator, name)
        with open(path, "wb") as file:
            file.write(content)
        os.chmod(path, 0o600)
    chosen = dict(election.candidates[outcome.winner])
    release = Release(model if private else None, chosen, statement(election))
    release.save(os.path.join(partial, "release"))
    os.chmod(partial, 0o755)
    try:
        os.rename(partial, folder)
    except OSError as error:
        raise ValueError(
            f"{folder} was taken meanwhile ({error.strerror}): everything is in {partial}; rename "
            "that folder"
        ) from None
