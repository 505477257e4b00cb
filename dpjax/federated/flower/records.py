"""Where a node's records come from: its own folder.

A deployed client reads the folder that its owner named and nothing else. Whether a folder is named
and exists is the owner's set-up, public like any setting: without it the client says so and stays
away (`SetupError`). What is in the folder is data, and every other error about records is one about
data: the client takes part all the same, so that nobody can tell (`local_training`).
"""

from __future__ import annotations

import os

import numpy as np

from dpjax.federated.flower import internals as flower

Records = tuple[np.ndarray, np.ndarray]


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
