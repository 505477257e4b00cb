"""A federation without messages and masks: the mechanisms alone, vectorised over the clients.

For many clients, and for trying settings out. The noise is the real one, but whoever runs this
holds all records, and no secure sum is made: nothing of it is a release.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.progress import Progress

from dpjax.commands import config as saved_config
from dpjax.commands import run_folder
from dpjax.federated import local_training, voting
from dpjax.federated.flower import noisy_vectors
from dpjax.federated.flower.election import Election
from dpjax.federated.flower.server import Outcome
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.releases.release import json_bytes
from experiments.federation import data_split, many_clients


def simulate(config: Mapping[str, Any], bar: Progress) -> tuple[Outcome, np.ndarray]:
    """Holds the vote and trains, nobody dropping out.

    Returns the outcome, and every client's accuracies (n, p): NaN where it voted by lot.
    """
    election = Election.from_config(config)
    parts = data_split.divided_as(config)
    counts, accuracies = _votes(election, parts, int(config.get("chunk-size", 0)) or None, bar)
    winner = voting.tally(counts, election.plan, len(parts))
    params = None
    if election.averaging.rounds:
        params = _trained(election, parts, winner, bar)
    outcome = Outcome(election, winner, counts, len(parts), 0, params=params)
    return outcome, accuracies


def _votes(
    election: Election, parts: list[data_split.Records], chunk_size: int | None, bar: Progress
) -> tuple[np.ndarray, np.ndarray]:
    """The noisy counts, and all accuracies."""
    settings, training = election.settings, election.training
    judging = [number for number, held in enumerate(parts) if _judges(held, training.classes)]
    line = bar.add_task("clients that voted", total=len(judging))
    scores = local_training.train_clients(
        training.module(),
        [parts[number] for number in judging],
        election.candidates,
        epochs=training.epochs,
        batch_size=training.batch_size,
        test_fraction=training.test_fraction,
        seed=training.seed,
        client_ids=judging,
        loss=training.loss(),
        chunk_size=chunk_size,
        progress=lambda done, _: bar.update(line, completed=done),
    )
    source = HostRandomness()
    cast = {
        number: voting.whole_ballot(losses, accuracies, settings.votes, source)
        for number, losses, accuracies in zip(judging, scores.losses, scores.accuracies)
    }
    counts = np.zeros(settings.candidates, dtype=np.int64)
    for number in range(len(parts)):
        ballot = cast.get(number)
        if ballot is None:
            ballot = voting.random_ballot(settings.candidates, settings.votes, source)
        counts += voting.noisy_ballot(ballot, election.plan, source)
    accuracies = np.full((len(parts), settings.candidates), np.nan)
    accuracies[judging] = scores.accuracies
    return counts, accuracies


def _judges(held: data_split.Records, classes: int) -> bool:
    try:
        noisy_vectors.check_records(held, classes)
    except ValueError:
        return False
    return True


def _trained(
    election: Election, parts: list[data_split.Records], winner: int, bar: Progress
) -> np.ndarray:
    """The parameters after all rounds."""
    training, plan = election.training, election.averaging_plan
    updates = many_clients.FederationUpdates(
        election.model,
        training.loss(),
        parts,
        epochs=training.epochs,
        batch_size=training.batch_size,
        seed=training.seed,
    )
    line = bar.add_task("rounds of training", total=plan.settings.rounds)
    return many_clients.train_privately(
        updates,
        plan,
        election.model.initial(training.seed),
        election.candidates[winner],
        on_round=lambda number, _: bar.update(line, completed=number),
    )


def save(folder: str, findings: Mapping[str, Any]) -> None:
    """Writes `<folder>/curator/simulation.json`, readable by its owner only."""
    with run_folder.written_whole(folder) as partial:
        half = os.path.join(partial, "curator")
        os.mkdir(half, 0o700)
        path = os.path.join(half, "simulation.json")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(json_bytes(dict(findings)))
        saved_config.save(half)
