"""The federations behind figures 3 to 13: data set, division, net, and three sizes of each.

Full size is the paper's, for a GPU: MNIST, CIFAR-10 and Adult, 50, 100 or 250 clients, an iid
division or Dirichlet concentrations 30, 5 and 0.5 (2 for Adult among 250 clients, where 0.5 leaves
clients without records), the paper's nets, five local epochs (ten for CIFAR-10), five rounds of
federated averaging, the 100 candidates of the authors' code. Mid size replaces the convolutional
nets by small MLPs, which their compute puts out of reach of four CPU cores, and takes fewer
records, clients and rounds (two). Quick is 8 x 8 digits with few clients, in seconds.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from dpjax import data, models
from dpjax.tuning.vote_clients import Records
from dpjax.tuning.voting import candidate_grid

FULL, MID, QUICK = SIZES = ("full", "mid_size", "quick")
CONCENTRATIONS = (30.0, 5.0, 0.5)
TITLES = {
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
    "cifar10_subset": "CIFAR-10 subset",
    "adult": "Adult",
    "digits": "digits",
}


@dataclasses.dataclass(frozen=True)
class Study:
    """One simulated federation.

    Attributes:
      dataset: name for `data.load`; its training records are divided, the test records not used.
      clients: n.
      concentration: of the Dirichlet division; 0 stands for iid.
      net: "paper", or the widths of an MLP joined by "-".
      epochs: local ones.
      rounds: of federated averaging, for the accuracy of a candidate.
      records: of the training data that are used, the first ones; 0 for all.
      rates: name of the list of learning rates.
      seed: of division, training and noise.
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
        values = (str(value) for value in dataclasses.astuple(self))
        return "_".join(values)

    @property
    def division(self) -> str:
        """In words."""
        return f"$\\alpha={self.concentration:g}$" if self.concentration else "iid"

    @property
    def title(self) -> str:
        """Of a panel; what is not the paper's is named."""
        return f"{TITLES[self.dataset]}, n = {self.clients}, {self.division}"

    @property
    def footnote(self) -> str:
        """What is not the paper's."""
        parts = [] if self.net == "paper" else [f"MLP {self.net}"]
        parts += [f"{self.records} records"] if self.records else []
        parts += [f"{self.rounds}-round averaging"] if self.rounds != 5 else []
        return f"{TITLES[self.dataset]}: {', '.join(parts)}" if parts else ""

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
            return data.partitioners.dirichlet(
                labels, self.clients, self.concentration, self.seed
            )
        return data.partitioners.iid(len(labels), self.clients, self.seed)

    def partitions(self, dataset: data.Dataset) -> list[Records]:
        """Each client's inputs and labels."""
        split = dataset.train
        labels = split.labels[: self.records or None]
        return [(split.inputs[part], labels[part]) for part in self.divide(labels)]


STUDY_COLUMNS = tuple(field.name for field in dataclasses.fields(Study))


def study_of(row: dict) -> Study:
    """The study that a saved row belongs to."""
    return Study(**{name: _as_saved(name, row[name]) for name in STUDY_COLUMNS})


def _as_saved(name: str, value: Any) -> Any:
    """A cell of digits alone is read as a number; a net of one width is a name all the same."""
    return {"net": str, "concentration": float}.get(name, lambda same: same)(value)


def study(size: str, dataset: str, clients: int, concentration: float = 0.0) -> Study:
    """The study of a data set at a size, everything else as that size has it.

    Args:
      size: one of `SIZES`.
      dataset: "mnist", "cifar10" or "adult"; CIFAR-10 at mid size is its subset, everything at
        quick size digits.
      clients: n; quick size has a tenth of them.
      concentration: 0 for iid.
    """
    if size == QUICK:
        fewer = max(5, clients // 10)
        return Study("digits", fewer, concentration, epochs=2, rounds=1, records=600)
    if size == FULL:
        return Study(dataset, clients, concentration, epochs=10 if dataset == "cifar10" else 5)
    found = Study(dataset, clients, concentration, rounds=2)
    if dataset == "mnist":
        return dataclasses.replace(found, net="64", records=12_000 if concentration else 0)
    if dataset == "cifar10":
        return dataclasses.replace(
            found, dataset="cifar10_subset", net="32", epochs=10, records=5000
        )
    return found


def skewed(dataset: str, clients: int) -> tuple[float, ...]:
    """The three concentrations; Adult among 250 clients has 2 for 0.5."""
    if dataset == "adult" and clients == 250:
        return (*CONCENTRATIONS[:2], 2.0)
    return CONCENTRATIONS
