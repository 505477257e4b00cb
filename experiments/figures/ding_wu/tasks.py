"""The learning problem of the trained figures: logistic regression on a data set of `data.load`."""

from __future__ import annotations

import numpy as np

import experiments.data_sets  # noqa: F401 - registers what `data.load` may name.
from dpjax import data, models, tuning
from experiments.figures.figure import DEFAULT_FOLDERS, DataFolders

SPLIT_KEY = b"dpjax"
"""Public key of the hash that keeps a fifth of the training records for validation."""


def logistic_regression(
    dataset: str, options: DataFolders = DEFAULT_FOLDERS
) -> tuple[tuning.Task, tuple[np.ndarray, np.ndarray]]:
    """Returns the task, and the inputs (n, ...) and labels (n,) of the test records."""
    loaded = data.load(dataset, **options.folders)
    parts = loaded.parts(0.2, SPLIT_KEY)
    name = "logistic_regression"
    task = tuning.classification(
        models.build_module(name, loaded.classes),
        parts.train,
        parts.validation,
        loss=models.default_loss(name),
    )
    return task, (parts.test.inputs, parts.test.labels)
