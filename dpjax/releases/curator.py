"""What stays with the curator: K, every candidate's score, timings, plots; and the `ledger`.

None of it is private output. The folder is readable by its owner only and every file says so in
its first line.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

PyTree = Any

WARNING = (
    "NOT PRIVATE: computed from the data without protection; for the curator only, never publish"
)
CANDIDATES_FILE = "candidates.csv"
RECORD_FILE = "run.json"


@dataclasses.dataclass(frozen=True)
class CuratorRecord:
    """Holds everything a procedure saw and does not release.

    `winner` is -1 where there was none. `scores` (K,) are noisy validation accuracies over the
    public size, -inf where a candidate failed; `accuracies` (K,) are exact; `hyperparameters` has
    (K,) float64 for each name; `details` must fit into JSON. `beside`, (folder, rows) -> None, adds
    files to a folder that `save` wrote: the plot and the page.
    """

    number_of_candidates: int
    winner: int
    hyperparameters: Mapping[str, np.ndarray]
    scores: np.ndarray
    accuracies: np.ndarray
    seconds: float
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    beside: Callable[..., None] | None = dataclasses.field(default=None, compare=False)

    def __repr__(self) -> str:
        """Shows no score, no candidate and no K: what is printed is easily published."""
        return "CuratorRecord(not private: for the curator only)"

    def rows(self) -> list[dict[str, float | int]]:
        """Returns one row for each candidate."""
        return [
            {
                "candidate": index,
                "winner": int(index == self.winner),
                "score": float(self.scores[index]),
                "validation_accuracy": float(self.accuracies[index]),
                **{name: float(values[index]) for name, values in self.hyperparameters.items()},
            }
            for index in range(self.number_of_candidates)
        ]

    def save(self, folder: str | os.PathLike, **more: Any) -> None:
        """Writes the record, and `more` facts for `run.json`, into a folder of mode 0700.

        `candidates.csv` has a row per candidate, for `pandas.read_csv`; the name of its last
        column, without values, is the warning. `candidates.png` has their scores against the
        learning rate, if anything was scored, and `report.html` is all of it on one page; where one
        of these two fails, that is a warning.
        """
        folder = os.fspath(folder)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        os.chmod(folder, 0o700)
        names = ["candidate", "winner", "score", "validation_accuracy", *self.hyperparameters]
        with open(os.path.join(folder, CANDIDATES_FILE), "w", encoding="utf-8", newline="") as file:
            # The warning is the name of a last column without values, which any CSV reader accepts.
            writer = csv.DictWriter(file, [*names, WARNING])
            writer.writeheader()
            writer.writerows(self.rows())
        facts = {
            "warning": WARNING,
            "number_of_candidates": self.number_of_candidates,
            "winner": self.winner,
            "seconds": self.seconds,
            **self.details,
            **more,
        }
        with open(os.path.join(folder, RECORD_FILE), "w", encoding="utf-8") as file:
            json.dump(facts, file, indent=2)
            file.write("\n")
        if self.beside is not None:
            self.beside(folder, self.rows())
