"""Tests of this folder need the extra `federated`; without it most are skipped."""

import importlib.util
import json
import logging
import pathlib

import numpy as np
import pytest

from dpjax.tuning import certificates  # noqa: F401 (loaded, so that the first test finds no proofs)

WITHOUT_FLOWER = ("test_averaging.py", "test_local_training.py", "test_voting.py")
"""Tests of what federates in one process."""

collect_ignore = [
    path.name
    for path in pathlib.Path(__file__).parent.glob("test_*.py")
    if path.name not in WITHOUT_FLOWER and not importlib.util.find_spec("flwr")
]


@pytest.fixture(autouse=True)
def _quiet_flower():
    """Flower logs every stage of every test."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


class Federation:
    """Five clients whose two classes lie far apart, and the rules of a vote and two rounds."""

    config = {
        "clients": 5,
        "candidates": json.dumps(
            [{"learning_rate": rate, "decay": 1.0, "momentum": 0.9} for rate in (1e-8, 0.3, 1e-7)]
        ),
        "votes": 1,
        "epsilon": 20.0,
        "missing-fraction": 0.2,
        "classes": 2,
        "model": "logistic_regression",
        "epochs": 3,
        "batch-size": 8,
        "rounds": 2,
        "total-epsilon": 60.0,
        "input-shape": "3",
    }

    def records(self, number, count=None):
        """A client's records, of a size that differs between clients."""
        generator = np.random.default_rng(number)
        count = count or 30 + 10 * number
        labels = generator.integers(0, 2, count)
        inputs = generator.normal(size=(count, 3)) * 0.3 + np.where(labels, 2.0, -2.0)[:, None]
        return inputs.astype(np.float32), labels

    def load(self, context):
        """As an app loads them."""
        return self.records(context.node_config["partition-id"])

    def nodes(self, **more):
        """Configurations of the five nodes."""
        return [{"partition-id": index} | more for index in range(5)]

    def run(self, load=None, config=None, nodes=None, **options):
        """The outcome of a run in this process."""
        return self._run(load, config or self.config, nodes, options)[0]

    def vote(self, load=None, nodes=None, **options):
        """The outcome of the vote alone, and every client's accuracies."""
        return self._run(load, self.config | {"rounds": 0}, nodes, options)

    def _run(self, load, config, nodes, options):
        from dpjax import federated

        app = federated.make_client_app(load or self.load, config)
        return federated.run_in_process(app, config, nodes or self.nodes(), **options)


@pytest.fixture
def federation():
    """See `Federation`."""
    return Federation()
