"""One published data set divided over simulated nodes.

Every node makes the same split from the same public seed and keeps its own part.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import experiments.data_sets  # noqa: F401 - registers what `dataset` may name.
from dpjax import data
from dpjax.federated.federation_settings import filled
from experiments.federation import partitioners

Records = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class DataSplit:
    """How one published data set is divided over simulated clients.

    Attributes:
      clients: how many parts.
      dataset: name for `data.load`.
      concentration: Dirichlet alpha of label and size skew between clients; 0 for even parts.
      minimum_size: fewest records of a client.
      partition_seed: public seed of the split.
      data_dir: folder where the files of data sets are looked for.
      cache_dir: where downloads go, if elsewhere.
    """

    clients: int
    dataset: str = "digits"
    concentration: float = 0.0
    minimum_size: int = 10
    partition_seed: int = 0
    data_dir: str = ""
    cache_dir: str = ""

    def load(self) -> data.Dataset:
        """The whole data set."""
        return data.load(self.dataset, self.data_dir or None, cache_dir=self.cache_dir or None)


def parts_of_data_set(defaults: Mapping[str, Any]) -> Callable[[Any], Records]:
    """Makes a function from a simulated node's context to its part of a data set.

    Settings are those of a `DataSplit`, and the node's own `partition-id`; they are read from
    `defaults`, then the run's configuration, then the node's. An unknown data set, or settings that
    leave some client too few records, are a SetupError.
    """
    from dpjax.federated.flower.storage import SetupError

    def load(context: Any) -> Records:
        settings = {**defaults, **context.run_config, **context.node_config}
        try:
            return divided_as(settings)[int(settings["partition-id"])]
        except ValueError as error:
            # The split is the simulation's own: what is wrong with it is wrong for everyone.
            raise SetupError(str(error)) from None

    return load


def divided_as(settings: Mapping[str, Any]) -> list[Records]:
    """Every simulated client's records, by the settings named at `parts_of_data_set`."""
    return divided(filled(DataSplit, settings))


@functools.lru_cache(maxsize=4)
def divided(split: DataSplit) -> list[Records]:
    """Every simulated client's records; the same in every process that asks with the same words."""
    train = split.load().train
    inputs, labels = np.asarray(train.inputs), np.asarray(train.labels)
    clients, seed, least = split.clients, split.partition_seed, split.minimum_size
    if split.concentration:
        parts = partitioners.dirichlet(
            labels, clients, split.concentration, seed, minimum_size=least
        )
    else:
        parts = partitioners.iid(len(labels), clients, seed, minimum_size=least)
    return [(inputs[part], labels[part]) for part in parts]
