"""Trains what a figure needs, once: every candidate on every client, and by federated averaging.

A table costs minutes to hours; votes on it cost milliseconds. Tables are kept in a folder of their
own, shared by all figures, and a stopped program goes on with the first one that is missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dpjax import models
from dpjax.tuning.federation_simulation import federated_accuracies
from dpjax.tuning.vote_clients import ClientScores, adapted, train_clients
from experiments.figures.dp_hype.studies import Study


class Table(NamedTuple):
    """Attributes:
    scores: of the candidates at the clients, (n, p).
    federated: (p,) accuracy of each candidate trained by federated averaging.
    """

    scores: ClientScores
    federated: np.ndarray


def table(
    study: Study,
    folder: str,
    *,
    data_dir: str | None = None,
    cache_dir: str | None = None,
    chunk_size: int | None = None,
) -> Table:
    """Reads the table of a study, or trains and keeps it.

    Args:
      study: which federation.
      folder: of all tables, made if absent.
      data_dir, cache_dir: see `data.load`.
      chunk_size: candidates trained at once, the memory knob.
    """
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, study.stem)
    names = (f"{path}_clients.npz", f"{path}_federated.npz")
    if not all(os.path.exists(name) for name in names):
        dataset = study.load(data_dir, cache_dir)
        parts = study.partitions(dataset)
        net: models.FunctionalModel = adapted(study.module(dataset.classes), dataset.input_shape)
        common = {"epochs": study.epochs, "seed": study.seed, "chunk_size": chunk_size}
        arguments = (net, parts, study.candidates())
        if not os.path.exists(names[0]):
            with _bar(f"{study.stem} clients") as report:
                scores = train_clients(*arguments, progress=report, **common)
            _write(names[0], losses=scores.losses, accuracies=scores.accuracies)
        if not os.path.exists(names[1]):
            with _bar(f"{study.stem} federated") as report:
                found = federated_accuracies(
                    *arguments, rounds=study.rounds, progress=report, **common
                )
            _write(names[1], accuracies=found)
    with np.load(names[0]) as local, np.load(names[1]) as federated:
        return Table(
            ClientScores(local["losses"], local["accuracies"]), federated["accuracies"]
        )


def _write(path: str, **arrays: np.ndarray) -> None:
    """Writes an .npz file whole or not at all."""
    partial = f"{path}.partial.npz"
    np.savez_compressed(partial, **arrays)
    os.replace(partial, path)


class _bar:
    """A progress bar on the terminal; as a context it gives the function to call."""

    def __init__(self, what: str):
        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True))

    def __enter__(self) -> Callable[[int, int], None]:
        self._progress.start()
        task = self._progress.add_task("", total=None)
        return lambda done, every: self._progress.update(task, completed=done, total=every)

    def __exit__(self, *_) -> None:
        self._progress.stop()
