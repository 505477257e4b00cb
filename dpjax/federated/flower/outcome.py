"""What the server holds at the end of a federation."""

from __future__ import annotations

import dataclasses

import numpy as np

from dpjax.federated.flower.election import Election


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Holds what the server knows at the end; `vote_release` says which parts may be released.

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
