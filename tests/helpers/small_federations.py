"""A small federation; and a small net and its clients, one without records."""

import json

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
