"""What may leave a federated vote: the winning hyperparameters, and the claim about them.

The format is that of `dpjax.tuning.release`, without a model: a model trained with the winner on
the clients' records is another computation on them, and belongs to the curator unless its own cost
is composed with this one.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import shutil
from collections.abc import Mapping
from typing import Any

import dpjax
from dpjax import accounting
from dpjax.federated.election import Election
from dpjax.federated.flower_internals import RECORD_KEY_CONFIGS
from dpjax.federated.server import Outcome
from dpjax.federated.sum_rules import MODULUS
from dpjax.tuning.release import GUARANTEE_FILE, HYPERPARAMETERS_FILE, json_bytes

VOTE_FILE = "vote.json"
_WARNING = "For the curator only, never publish: this is not part of the release."
_LIBRARIES = ("flwr", "jax", "flax", "numpy", "scipy", "dp-accounting", "cryptography")


def statement(election: Election) -> dict[str, Any]:
    """What `guarantee.json` says of a federated vote; a function of the public rules alone.

    The apps take noise from the clients' operating systems and from nowhere else.
    """
    rules = election.rules
    return election.plan.statement(secret=True) | {
        "released": "the winning candidate's hyperparameters and nothing else",
        "candidates": [
            " ".join(f"{name}={value!r}" for name, value in candidate.items())
            for candidate in election.candidates
        ],
        "local_training": dataclasses.asdict(election.training),
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
                f"{rules.minimum_survivors} ballots; the guarantee covers that sum"
            ),
            "dropouts": (
                "a client lost before votes are sent is left out and the key exchange begins "
                "again; one lost later is tolerated; with fewer than "
                f"{rules.minimum_survivors} votes nothing is unmasked"
            ),
            "not_covered": [
                "a server that departs from the protocol: it can, for example, invent clients",
                (
                    f"{rules.threshold(rules.clients)} colluding clients among the "
                    f"{rules.shares(rules.clients)} that share one client's keys, whom the server "
                    "draws at random: with the server they could unmask its ballot"
                ),
                "how long a client trains, which depends on how many records it has",
                "that a client refuses to take part, for example for want of records",
            ],
            "mask_strength": (
                "the masks are Flower's: each is drawn by NumPy's MT19937 from a 256-bit secret "
                "folded to 32 bits, and never takes the value 2^32 - 1, so no cryptographic "
                "strength is claimed for them. Once all is unmasked a ballot is covered by one "
                "such mask for each of its peers: two where there are three clients, which a "
                "search of some 2^32 steps could remove, ten where there are eleven or more"
            ),
            "epsilon_if_one_ballot_were_unmasked": _alone(election),
        },
        "library_versions": {
            "dpjax": dpjax.__version__,
            **{name: importlib.metadata.version(name) for name in _LIBRARIES},
        },
    }


def _alone(election: Election) -> float:
    """Epsilon of one client's noisy ballot in clear, by its own share of the noise alone."""
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

    `release/` holds `hyperparameters.json` and `guarantee.json`, functions of the winner and the
    public rules alone, with all time stamps 0. `curator/vote.json`, readable by its owner only,
    holds what else the server knows.

    Args:
      outcome: of the vote.
      folder: must not exist yet.
      findings: JSON-able, what else the curator is to keep.

    Raises:
      ValueError: if the folder exists.
    """
    folder = os.path.abspath(os.fspath(folder))
    if os.path.lexists(folder):
        raise ValueError(f"{folder} exists already: pass a folder that does not exist yet")
    partial = f"{folder}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    os.makedirs(partial)
    election = outcome.election
    released = {
        HYPERPARAMETERS_FILE: json_bytes(dict(election.candidates[outcome.winner])),
        GUARANTEE_FILE: json_bytes(statement(election)),
    }
    kept = {
        VOTE_FILE: json_bytes(
            {
                "warning": _WARNING,
                "noisy_counts": outcome.noisy_counts.tolist(),
                "survivors": outcome.survivors,
                "lost": outcome.lost,
            }
            | dict(findings or {})
        )
    }
    for name, contents, mode in (("release", released, 0o755), ("curator", kept, 0o700)):
        half = os.path.join(partial, name)
        os.mkdir(half, mode)
        for file_name, content in contents.items():
            path = os.path.join(half, file_name)
            with open(path, "wb") as file:
                file.write(content)
            os.chmod(path, mode & 0o644)
            if name == "release":
                os.utime(path, (0, 0))
        os.chmod(half, mode)
        if name == "release":
            os.utime(half, (0, 0))
    os.rename(partial, folder)
