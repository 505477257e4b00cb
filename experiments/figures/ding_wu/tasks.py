"""The learning problem of the trained figures: logistic regression on a data set of `data.load`."""

from __future__ import annotations

import numpy as np

from dpjax import data, models, tuning

SPLIT_KEY = b"dpjax"
"""Public key of the hash that keeps a fifth of the training records for validation."""


def logistic_regression(
    dataset: str, data_dir: str | None = None, cache_dir: str | None = None
) -> tuple[tuning.Task, tuple[np.ndarray, np.ndarray]]:
    """Returns the task, and the inputs (n, ...) and labels (n,) of the test records.

    Args:
      dataset, data_dir, cache_dir: see `data.load`.
    """
    loaded = data.load(dataset, data_dir=data_dir, cache_dir=cache_dir)
    parts = loaded.parts(0.2, SPLIT_KEY)
    name = "logistic_regression"
    task = tuning.classification(
        models.build_module(name, loaded.classes),
        parts.train,
        parts.validation,
        loss=models.default_loss(name),
    )
    return task, (parts.test.inputs, parts.test.labels)
