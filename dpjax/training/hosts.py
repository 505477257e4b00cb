"""Several processes, usually one on each host: who trains which candidates, and what they share.

Processes train different candidates and never exchange anything while they do. They agree on the
candidates beforehand and put their results together afterwards; both go over the network between
them, in the clear, so the network must be the curator's too.
"""

from __future__ import annotations

import os
from typing import Any

import jax
import numpy as np

Tree = Any


def join(
    coordinator: str | None = None,
    process_count: int | None = None,
    process_id: int | None = None,
) -> None:
    """Makes this process one of several; call it before anything else touches a device.

    Without arguments, JAX finds the others by itself on Cloud TPU slices, Slurm, Open MPI and
    Kubernetes.

    Args:
      coordinator: "host:port" of process 0, the same for all.
      process_count: how many processes there are.
      process_id: of this process, from 0.

    Raises:
      ValueError: if only some of the three are given, or the number does not fit the count.
    """
    given = [value is not None for value in (coordinator, process_count, process_id)]
    if any(given) and not all(given):
        raise ValueError(
            "coordinator, process_count and process_id go together: pass all three, or none where "
            "JAX detects them (TPU slices, Slurm, Open MPI, Kubernetes)"
        )
    if all(given) and not 0 <= process_id < process_count:
        raise ValueError(
            f"process_id is {process_id} of {process_count}: pass 0 to {process_count - 1}"
        )
    jax.distributed.initialize(coordinator, process_count, process_id)


def own_share(number: int, index: int | None = None, count: int | None = None) -> np.ndarray:
    """Which of `number` candidates are for process `index` of `count`: every count-th one.

    Candidates are independent draws, so that any fixed deal is as good as another.

    Args:
      number: of candidates, >= 0.
      index: this process's number by default.
      count: the number of processes by default.

    Returns:
      int64 indices, increasing; empty where there are too few candidates.
    """
    index = jax.process_index() if index is None else index
    count = jax.process_count() if count is None else count
    if not 0 <= index < count:
        raise ValueError(f"share {index} of {count}: pass 0 to {count - 1}")
    return np.arange(index, number, count)


def secret_bytes(number: int) -> bytes:
    """`number` bytes of the operating system's randomness, the same in every process.

    Process 0 draws them. Alone, this is `os.urandom`.
    """
    drawn = np.frombuffer(os.urandom(number), np.uint8)
    return np.asarray(from_first(drawn)).tobytes()


def from_first(tree: Tree) -> Tree:
    """Process 0's values of a pytree of arrays of known shapes; alone, the tree itself."""
    if jax.process_count() == 1:
        return tree
    from jax.experimental import multihost_utils

    return multihost_utils.broadcast_one_to_all(tree)


def from_all(tree: Tree) -> Tree:
    """Every process's values, stacked: arrays (...) become NumPy arrays (processes, ...)."""
    if jax.process_count() == 1:
        return jax.tree.map(lambda leaf: np.asarray(leaf)[None], tree)
    from jax.experimental import multihost_utils

    return multihost_utils.process_allgather(tree)
