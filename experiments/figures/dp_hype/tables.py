"""Trains what a figure needs, once: every candidate on every client, and by federated averaging.

A table costs minutes to hours; votes on it cost milliseconds. Tables are kept in a folder of their
own, shared by all figures, and so are the pieces of one that is not finished: a stopped program
goes on with the candidates it was at.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dpjax import files
from dpjax.federated.local_training import ClientScores, Records, adapted, chunks, train_clients
from experiments.federation.many_clients import federated_accuracies
from experiments.figures.dp_hype.studies import Study

Arrays = dict[str, np.ndarray]
"""Name -> array whose last axis counts candidates."""

Report = Callable[[int, int], None]
"""report(done, in all)."""


class Table(NamedTuple):
    """Candidates' scores at the clients, (n, p), and their accuracies by averaging, (p,)."""

    scores: ClientScores
    federated: np.ndarray


@dataclasses.dataclass(frozen=True)
class Tables:
    """A folder of trained tables; what is not there is trained, `chunk_size` candidates at once."""

    folder: str = "runs/figures/dp_hype_tables"
    data_dir: str | None = None
    cache_dir: str | None = None
    chunk_size: int = 50

    def table(self, study: Study) -> Table:
        """All of a study."""
        return Table(self.scores(study), self.federated(study))

    def scores(self, study: Study) -> ClientScores:
        """How every candidate does at every client; the rounds of averaging do not matter."""

        def train(candidates: list, first: int, report: Report) -> Arrays:
            net, parts, common = self._federation(study)
            return train_clients(net, parts, candidates, progress=report, **common)._asdict()

        return ClientScores(**self._kept(f"{study.clients_stem}_clients", study, train))

    def federated(self, study: Study) -> np.ndarray:
        """Accuracy of every candidate trained by federated averaging, (p,)."""

        def train(candidates: list, first: int, report: Report) -> Arrays:
            net, parts, common = self._federation(study)
            found = federated_accuracies(
                net, parts, candidates, rounds=study.rounds, first=first, progress=report, **common
            )
            return {"accuracies": found}

        # "averaged": tables called "federated" had initial parameters that candidates shared.
        return self._kept(f"{study.stem}_averaged", study, train)["accuracies"]

    def _federation(self, study: Study) -> tuple[Any, list[Records], dict[str, int]]:
        """The net, each client's records, and how it trains."""
        net, parts = _loaded(study, self.data_dir, self.cache_dir)
        return net, parts, {"epochs": study.epochs, "seed": study.seed}

    def _kept(
        self, stem: str, study: Study, train: Callable[[list, int, Report], Arrays]
    ) -> Arrays:
        """Reads a file, or trains its candidates piece by piece and writes it."""
        os.makedirs(self.folder, exist_ok=True)
        path = os.path.join(self.folder, f"{stem}.npz")
        if not os.path.exists(path):
            candidates = study.candidates()
            pieces = chunks(len(candidates), self.chunk_size)
            names = [f"{path}.{piece[0]}-{piece[-1]}.npz" for piece in pieces]
            with _bar(stem) as progress:
                for number, (name, piece) in enumerate(zip(names, pieces)):
                    if not os.path.exists(name):
                        chosen = [candidates[i] for i in piece]
                        _write(name, train(chosen, int(piece[0]), progress(number, names)))
            found = [_read(name) for name in names]
            _write(path, {key: np.concatenate([piece[key] for piece in found], axis=-1)
                          for key in found[0]})  # fmt: skip
            for name in names:
                os.remove(name)
        return _read(path)


@functools.lru_cache(maxsize=1)
def _loaded(study: Study, data_dir: str | None, cache_dir: str | None) -> tuple[Any, list[Records]]:
    dataset = study.load(data_dir, cache_dir)
    return adapted(study.module(dataset.classes), dataset.input_shape), study.partitions(dataset)


def _read(path: str) -> Arrays:
    with np.load(path) as file:
        return dict(file)


def _write(path: str, arrays: Arrays) -> None:
    """Writes an .npz file whole or not at all."""
    with files.replacing(path) as partial:
        np.savez_compressed(partial, **arrays)


class _bar:
    """A progress bar on the terminal; as a context it gives a function that makes the report."""

    def __init__(self, what: str):
        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True))

    def __enter__(self) -> Callable[[int, list[str]], Report]:
        self._progress.start()
        task = self._progress.add_task("", total=None)

        def of_piece(number: int, pieces: list[str]) -> Report:
            return lambda done, every: self._progress.update(
                task, completed=number * every + done, total=len(pieces) * every
            )

        return of_piece

    def __exit__(self, *_) -> None:
        self._progress.stop()
