"""Where a node's records come from: its own folder, or its part of a data set that is split up.

A deployed client reads the folder that its owner named and nothing else. Whether a folder is named
and exists is the owner's set-up, public like any setting: without it the client says so and stays
away (`SetupError`). What is in the folder is data, and every other error about records is one about
data: the client takes part all the same, so that nobody can tell (`local_training`).

The split of one data set over many nodes is for simulations; every node makes the same split from
the same public seed and keeps its own part.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dpjax.federated.federation_settings import DataSplit, filled
from dpjax.federated.flower import internals as flower

Records = tuple[np.ndarray, np.ndarray]

SPLIT_SETTINGS = tuple(field.name.replace("_", "-") for field in dataclasses.fields(DataSplit))
"""What `parts_of_data_set` reads, beside a node's `partition-id`."""


class SetupError(ValueError):
    """A client cannot begin, for a reason that holds whatever its records are."""


def records_in_folder(context: flower.Context) -> Records:
    """This node's records: every .npz file in the folder that its node configuration names.

    Start the SuperNode with `--node-config 'data="/path/to/folder"'`; the path never leaves the
    node. Each file holds `inputs` (m, ...) and `labels` (m,).

    Example:
      >>> import pathlib
      >>> import types
      >>> import numpy as np
      >>> from dpjax import federated
      >>> pathlib.Path("ward").mkdir()
      >>> np.savez("ward/a.npz", inputs=np.zeros((20, 3)), labels=np.zeros(20, int))
      >>> context = types.SimpleNamespace(node_config={"data": "ward"})
      >>> inputs, labels = federated.records_in_folder(context)  # As the app calls it.
      >>> inputs.shape, labels.shape
      ((20, 3), (20,))

    Raises:
      SetupError: if no folder is named, or it does not exist.
      ValueError: for what is in it: no files, not the two arrays, shapes that disagree.
    """
    folder = context.node_config.get("data")
    if not isinstance(folder, str) or not folder:
        raise SetupError("no folder of records: start the node with --node-config 'data=\"...\"'")
    return read_folder(folder)


def read_folder(folder: str) -> Records:
    """Reads and joins every .npz file of a folder, in the order of their names.

    Links that lead out of the folder are refused.
    """
    if not os.path.isdir(folder):
        raise SetupError(f"{folder} is not a folder: name one that holds .npz files")
    names = sorted(name for name in os.listdir(folder) if name.endswith(".npz"))
    if not names:
        raise ValueError(f"{folder} holds no .npz file: put one there, with inputs and labels")
    inputs: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    for name in names:
        path = os.path.join(folder, name)
        if os.path.dirname(os.path.realpath(path)) != os.path.realpath(folder):
            raise ValueError(f"{path} leads out of its folder: a node reads its own records only")
        with np.load(path, allow_pickle=False) as file:
            missing = {"inputs", "labels"} - set(file)
            if missing:
                raise ValueError(f"{path} has no {' and no '.join(sorted(missing))}")
            found = np.asarray(file["inputs"], np.float32), np.asarray(file["labels"])
        if found[1].ndim != 1 or found[1].dtype.kind not in "iu" or len(found[0]) != len(found[1]):
            raise ValueError(
                f"{path}: inputs {found[0].shape}, labels {found[1].shape} of {found[1].dtype}: "
                "pass as many whole-numbered labels as inputs"
            )
        if inputs and found[0].shape[1:] != inputs[0].shape[1:]:
            raise ValueError(
                f"{path}: inputs of shape {found[0].shape[1:]}, other files have "
                f"{inputs[0].shape[1:]}"
            )
        if not np.isfinite(found[0]).all():
            raise ValueError(f"{path}: inputs hold NaN or infinity: clean them first")
        inputs.append(found[0])
        labels.append(found[1].astype(np.int64))
    return np.concatenate(inputs), np.concatenate(labels)


def parts_of_data_set(defaults: Mapping[str, Any]) -> Callable[[flower.Context], Records]:
    """Makes a function that gives each simulated node its part of a data set.

    Settings are read from `defaults`, then the run's configuration, then the node's: those of a
    `DataSplit`, and the node's own `partition-id`.

    Example:
      >>> import types
      >>> from dpjax import federated
      >>> load = federated.parts_of_data_set({"clients": 50, "dataset": "digits"})
      >>> app = federated.make_client_app(load)
      >>> context = types.SimpleNamespace(run_config={}, node_config={"partition-id": 7})
      >>> inputs, labels = load(context)  # As the app calls it.
      >>> len(inputs) == len(labels) >= 10
      True

    Args:
      defaults: settings that the run's configuration need not repeat.

    Returns:
      Function from a node's context to its records; raises SetupError for settings that leave some
      client too few records, or an unknown data set.
    """

    def load(context: flower.Context) -> Records:
        settings = {**defaults, **context.run_config, **context.node_config}
        try:
            return divided_as(settings)[int(settings["partition-id"])]
        except ValueError as error:
            # The split is the simulation's own: what is wrong with it is wrong for everyone.
            raise SetupError(str(error)) from None

    return load


def divided_as(settings: Mapping[str, Any]) -> list[Records]:
    """Divides a data set by the settings named at `parts_of_data_set`, for every client."""
    return divided(filled(DataSplit, settings))


@functools.lru_cache(maxsize=4)
def divided(split: DataSplit) -> list[Records]:
    """Divides the data set: the same records in every process that asks for the same split."""
    from dpjax.data import partitioners

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
