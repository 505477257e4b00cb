"""A small net and its clients, one without records, for tests of updates."""

import numpy as np

from dpjax import models

MODEL = models.MLP((5,), 3)
CANDIDATE = {"learning_rate": 0.2, "decay": 0.5, "momentum": 0.9}


def client(number, seed):
    """Inputs (number, 4) float32 and labels of three classes."""
    generator = np.random.default_rng(seed)
    inputs = generator.normal(size=(number, 4)).astype(np.float32)
    return inputs, (inputs[:, 0] > 0).astype(np.int64) + (inputs[:, 1] > 0.5)


PARTITIONS = [client(30, 1), client(7, 2), (np.zeros((0, 4), np.float32), np.zeros(0, int))]
