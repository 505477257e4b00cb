"""The federations behind figures 3 to 13: data set, division, net, and three sizes of each.

Full size is the paper's, for a GPU: MNIST, CIFAR-10 and Adult, 50, 100 or 250 clients, an iid
division or Dirichlet concentrations 30, 5 and 0.5 (2 for Adult among 250 clients, where 0.5 leaves
clients without records), the paper's nets, five local epochs (ten for CIFAR-10), five rounds of
federated averaging, the 100 candidates of the authors' code. Mid size replaces the convolutional
nets, whose compute is out of reach of four CPU cores, by small MLPs, and has fewer records and
rounds in places. Quick is 8 x 8 digits with few clients, in seconds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import experiments.data_sets  # noqa: F401 - registers cifar10_subset.
from dpjax import data, models
from dpjax.federated.local_training import Records
from dpjax.federated.voting import candidate_grid
from experiments.federation import partitioners
from experiments.figures.figure import FULL, MID, QUICK
from experiments.figures.panels import DATA_SETS

SIZES = (FULL, MID, QUICK)
EPSILONS = (0.1, 0.25, 0.5, 1.0, 3.0, math.inf)
DATASETS = ("adult", "mnist", "cifar10")
CONCENTRATIONS = (30.0, 5.0, 0.5)
RATES_IN_WORDS = {
    "artifact": "learning rates of the authors' code",
    "table_iii": "learning rates of Table III",
    "log_spaced": "learning rates evenly spaced in their logarithm",
}
"""Of the lists of `dpjax.federated.voting.RATES`, for headings."""

_NOT_THE_PAPERS = {
    "cifar10_subset": "10,000 of its 50,000 images",
    "digits": "quick size, not the paper's data",
}


@dataclasses.dataclass(frozen=True)
class Study:
    """One simulated federation; of the data set the training records are divided, no others used.

    Concentration 0 stands for an iid division. The net is "paper", or the widths of an MLP joined
    by "-"; epochs are local, rounds those of federated averaging for the accuracy of a candidate.
    So many first records are used, 0 for all. The seed is of division, training and noise.
    """

    dataset: str
    clients: int
    concentration: float = 0.0
    net: str = "paper"
    epochs: int = 5
    rounds: int = 5
    records: int = 0
    rates: str = "artifact"
    seed: int = 0

    @property
    def stem(self) -> str:
        """A file name without ending."""
        return "_".join(str(value) for value in dataclasses.astuple(self))

    @property
    def clients_stem(self) -> str:
        """The same for what the clients train alone, which no round of averaging changes."""
        values = dataclasses.asdict(self)
        del values["rounds"]
        return "_".join(str(value) for value in values.values())

    @property
    def division(self) -> str:
        """In words."""
        return f"$\\alpha={self.concentration:g}$" if self.concentration else "iid"

    @property
    def title(self) -> str:
        """Of a panel; what is not the paper's is named."""
        return f"{DATA_SETS[self.dataset]}, n = {self.clients}, {self.division}"

    @property
    def footnote(self) -> str:
        """What is not the paper's; empty at full size."""
        of_data = _NOT_THE_PAPERS.get(self.dataset)
        parts = [of_data] if of_data else []
        parts += [] if self.net == "paper" else [f"MLP {self.net}"]
        parts += [f"{self.records} records"] if self.records else []
        epochs = paper_epochs(self.dataset)
        parts += [f"{self.epochs} epochs (paper: {epochs})"] if self.epochs != epochs else []
        parts += [f"{self.rounds} rounds (paper: 5)"] if self.rounds != 5 else []
        return ", ".join(parts)

    def candidates(self) -> list[dict[str, float]]:
        return candidate_grid(self.rates)

    def module(self, classes: int) -> Any:
        """The Linen net."""
        if self.net != "paper":
            return models.MLP(tuple(int(width) for width in self.net.split("-")), classes)
        match self.dataset:
            case "mnist":
                return models.ConvPoolNet(classes)
            case "cifar10" | "cifar10_subset":
                return models.ConvBlocksNet(classes)
            case "adult":
                return models.MLP((64, 64), classes)
        return models.MLP((64,), classes)

    def load(self, data_dir: str | None, cache_dir: str | None) -> data.Dataset:
        return data.load(self.dataset, data_dir, cache_dir=cache_dir)

    def divide(self, labels: np.ndarray) -> list[np.ndarray]:
        """Positions of each client's records."""
        if self.concentration:
            return partitioners.dirichlet(labels, self.clients, self.concentration, self.seed)
        return partitioners.iid(len(labels), self.clients, self.seed)

    def partitions(self, dataset: data.Dataset) -> list[Records]:
        """Each client's inputs and labels."""
        split = dataset.train
        labels = split.labels[: self.records or None]
        return [(split.inputs[part], labels[part]) for part in self.divide(labels)]


STUDY_COLUMNS = {
    "dataset": "name", "clients": "clients", "concentration": "1", "net": "name",
    "epochs": "epochs", "rounds": "rounds", "records": "records", "rates": "name", "seed": "number",
}  # fmt: skip
"""The fields of a study, and their units."""


def study_of(row: dict) -> Study:
    """The study that a saved row belongs to."""
    return Study(**{name: _as_saved(name, row[name]) for name in STUDY_COLUMNS})


def _as_saved(name: str, value: Any) -> Any:
    """A cell of digits alone is read as a number; a net of one width is a name all the same."""
    return {"net": str, "concentration": float}.get(name, lambda same: same)(value)


def _mid_size(full: Study) -> Study:
    """What four CPU cores train in minutes: all of Adult, smaller nets for the images."""
    match full.dataset:
        case "mnist":
            return dataclasses.replace(full, net="64", rounds=2)
        case "cifar10":
            return dataclasses.replace(full, dataset="cifar10_subset", net="32")
    return full


def paper_epochs(dataset: str) -> int:
    """Local epochs in the paper."""
    return 10 if dataset in ("cifar10", "cifar10_subset") else 5


def study(size: str, dataset: str, clients: int, concentration: float = 0.0) -> Study:
    """The study of a data set at a size, everything else as that size has it.

    CIFAR-10 at mid size is its subset, everything at quick size digits, with a tenth of the
    clients.
    """
    if size == QUICK:
        fewer = max(5, clients // 10)
        # A hundred clients need all 1437 records, for ten at each.
        records = 600 if fewer <= 50 else 0
        return Study("digits", fewer, concentration, epochs=2, rounds=1, records=records)
    found = Study(dataset, clients, concentration, epochs=paper_epochs(dataset))
    return _mid_size(found) if size == MID else found


def skewed(dataset: str, clients: int) -> tuple[float, ...]:
    """The three concentrations; Adult among 250 clients has 2 for 0.5."""
    if dataset == "adult" and clients == 250:
        return (*CONCENTRATIONS[:2], 2.0)
    return CONCENTRATIONS


def listed(federations: Mapping[str, Sequence]) -> Callable[[str], Iterator[Study]]:
    """Returns size -> studies, given size -> (data set, clients, concentration unless iid)."""

    def studies(size: str) -> Iterator[Study]:
        for federation in federations[size]:
            yield study(size, *federation)

    return studies
