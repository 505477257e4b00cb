"""The same two apps in this process; a deployment needs no function, it is Flower's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpjax.federated.federation_settings import Config
from dpjax.federated.flower import internals as flower
from dpjax.federated.flower.in_process import InProcessGrid
from dpjax.federated.flower.outcome import Outcome
from dpjax.federated.flower.phases import LOCAL_ACCURACIES
from dpjax.federated.flower.server import make_server_app


def run_in_process(
    client_app: flower.ClientApp,
    config: Config,
    node_configs: Sequence[Mapping[str, Any]],
    **grid_options: Any,
) -> tuple[Outcome, np.ndarray]:
    """Holds a vote among simulated nodes, one after another in this process.

    Example:
      >>> import json
      >>> import pathlib
      >>> import numpy as np
      >>> from dpjax import federated
      >>> rng = np.random.default_rng(0)  # Made up, to try it out; a useful vote needs many more.
      >>> hospitals = [(rng.normal(size=(40, 3)), rng.integers(0, 2, 40)) for _ in range(3)]
      >>> rates = [{"learning_rate": rate, "decay": 1.0, "momentum": 0.9} for rate in (0.1, 0.3)]
      >>> config = {
      ...     "clients": 3, "candidates": json.dumps(rates), "votes": 1, "epsilon": 20.0,
      ...     "missing-fraction": 0.34, "classes": 2, "model": "logistic_regression", "epochs": 1,
      ... }
      >>> def load(own):
      ...     return hospitals[own.node_config["partition-id"]]
      >>> app = federated.make_client_app(load, config)
      >>> nodes = [{"partition-id": number} for number in range(3)]
      >>> outcome, accuracies = federated.run_in_process(app, config, nodes)
      >>> outcome.winner in (0, 1), outcome.survivors, outcome.lost, accuracies.shape
      (True, 3, 0, (3, 2))
      >>> federated.save_outcome(outcome, "vote")
      >>> sorted(path.name for path in pathlib.Path("vote/release").iterdir())
      ['guarantee.json', 'hyperparameters.json']

    Args:
      client_app: what every node runs.
      config: of the election and the run, flat.
      node_configs: one a node.
      **grid_options: of `InProcessGrid`.

    Returns:
      The outcome, and every client's accuracies (n, p), which only a simulation can see: NaN where
      a client did not train.

    Raises:
      SumAborted, VoteAborted: see `run_election`.
    """
    outcomes: list[Outcome] = []
    server_app = make_server_app(config, lambda outcome, _: outcomes.append(outcome))
    grid = InProcessGrid(client_app, node_configs, **grid_options)
    context = flower.Context(
        run_id=grid.run_id, node_id=1, node_config={}, state=flower.RecordDict(), run_config={}
    )
    server_app(grid, context)
    (outcome,) = outcomes
    unknown = np.full(len(outcome.election.candidates), np.nan)
    seen = [state.array_records.get(LOCAL_ACCURACIES) for state in grid.states]
    accuracies = [unknown if kept is None else kept.to_numpy_ndarrays()[0] for kept in seen]
    return outcome, np.stack(accuracies)
