"""What the server holds at the end of a federation."""

from __future__ import annotations

import dataclasses

import numpy as np

from dpjax.federated.flower.election import Election


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What the server holds at the end; `vote_release` says which parts may be released.

    Example:
      >>> import json
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
      >>> outcome, _ = federated.run_in_process(app, config, nodes)
      >>> outcome.winner in (0, 1), outcome.survivors, outcome.lost
      (True, 3, 0)

    Attributes:
      election: the rules.
      winner: index of the winning candidate.
      noisy_counts: (p,) int64, the sum of all noisy ballots, after scaling; the curator's.
      survivors: number of ballots in it.
      lost: number of clients that were planned for and are not in it.
      nodes: ids of the nodes whose ballots are in it.
      params: (d,) float32, the model after all rounds of averaging; None without rounds.
      round_survivors: number of updates in the sum of each round.
    """

    election: Election
    winner: int
    noisy_counts: np.ndarray
    survivors: int
    lost: int
    nodes: tuple[int, ...] = ()
    params: np.ndarray | None = None
    round_survivors: tuple[int, ...] = ()
