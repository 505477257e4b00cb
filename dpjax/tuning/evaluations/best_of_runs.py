"""Keeps the best run of each execution while candidates stream by; everything else is dropped."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

PyTree = Any


class BestOfRuns:
    """The best-ranked output of each of several independent executions.

    Ranking: the higher score wins; the earlier candidate wins a tie; a score of -inf (a failed
    candidate) loses against every other and wins only where all failed. NaN scores are refused,
    since a comparison with them is not an order.

    Formal guarantees:
      What is kept of an execution is a function of the (score, output) pairs of its candidates
      under one fixed total order, as Papernot & Steinke (ICLR 2022) require of the selection.
    """

    def __init__(self, executions: int):
        self.score = np.full(executions, -np.inf)
        self.candidate = np.full(executions, -1, dtype=np.int64)
        self._outputs: PyTree = None

    def update(
        self, owners: np.ndarray, candidates: np.ndarray, scores: np.ndarray, outputs: PyTree
    ) -> None:
        """Lets some candidates compete.

        `owners` (n,) are the executions, `candidates` (n,) the candidates' numbers, `scores` (n,)
        -inf for a failed one, `outputs` arrays (n, ...).
        """
        if np.isnan(scores).any():
            raise ValueError("a score is NaN: rank failed candidates worst by passing -inf")
        if self._outputs is None:
            executions = len(self.score)
            self._outputs = jax.tree.map(
                lambda leaf: np.zeros((executions, *leaf.shape[1:]), leaf.dtype), outputs
            )
        challengers, seats = self.better(owners, candidates, scores)
        self.score[seats] = scores[challengers]
        self.candidate[seats] = candidates[challengers]
        for kept, new in zip(jax.tree.leaves(self._outputs), jax.tree.leaves(outputs)):
            kept[seats] = new[challengers]

    def better(
        self, owners: np.ndarray, candidates: np.ndarray, scores: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the places of those that would win, and the executions that they would win."""
        order = np.lexsort((candidates, -scores, owners))
        challengers = order[np.unique(owners[order], return_index=True)[1]]
        seats = owners[challengers]
        held = self.candidate[seats]
        better = (scores[challengers] > self.score[seats]) | (
            (scores[challengers] == self.score[seats])
            & ((held < 0) | (candidates[challengers] < held))
        )
        return challengers[better], seats[better]

    @property
    def outputs(self) -> PyTree:
        """Returns every winner's output (executions, ...), zeros where there is none; or None."""
        return self._outputs

    def output(self, execution: int) -> PyTree:
        """Returns the winner's output, or None if the execution had no candidate."""
        if self.candidate[execution] < 0:
            return None
        return jax.tree.map(lambda leaf: leaf[execution], self._outputs)
