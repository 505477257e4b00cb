"""Several processes, usually one on each host: who trains which candidates, and what they share.

Processes train different candidates and never exchange anything while they do. They agree on the
candidates beforehand and merge their results afterwards, over the network between them and
unencrypted, so the network must be the curator's too. JAX's coordinator does not
authenticate: anyone who reaches its port can register as a process, which ends the run of all.
Here it listens on the address it is given and no other, and that port must be closed to everyone
else.
"""

from __future__ import annotations

import os

import jax
import numpy as np


def join(
    coordinator: str | None = None,
    process_count: int | None = None,
    process_id: int | None = None,
    *,
    coordinator_bind_address: str | None = None,
) -> None:
    """Makes this process one of several; call it before anything else touches a device.

    Without arguments, JAX finds the others by itself on Cloud TPU slices, Slurm, Open MPI and
    Kubernetes.

    Args:
      coordinator: "host:port" of process 0, the same for all.
      process_count: how many processes there are.
      process_id: of this process, from 0.
      coordinator_bind_address: "host:port" that process 0 listens on. By default what the
        environment's JAX_COORDINATOR_BIND_ADDRESS names, else `coordinator`. Pass it where others
        reach process 0 by an address that is not its own (a container, a name that is its loopback
        there), and where JAX finds the processes by itself: it listens on every interface then.
    """
    given = [value is not None for value in (coordinator, process_count, process_id)]
    if any(given) and not all(given):
        raise ValueError(
            "coordinator, process_count and process_id go together: pass all three, or none where "
            "JAX detects them (TPU slices, Slurm, Open MPI, Kubernetes)"
        )
    if process_id is not None and process_count is not None and not 0 <= process_id < process_count:
        raise ValueError(
            f"process_id is {process_id} of {process_count}: pass 0 to {process_count - 1}"
        )
    bind = coordinator_bind_address
    if bind is None and "JAX_COORDINATOR_BIND_ADDRESS" not in os.environ:
        bind = coordinator
    for name, address in (
        ("coordinator", coordinator),
        ("coordinator_bind_address", coordinator_bind_address),
    ):
        host, _, port = (address or "host:1").rpartition(":")
        if not (host and port.isascii() and port.isdigit()):
            raise ValueError(f"{name}={address!r}: pass host:port, as in 10.0.0.1:4321")
    jax.distributed.initialize(
        coordinator, process_count, process_id, coordinator_bind_address=bind
    )


def own_share(number: int, index: int | None = None, count: int | None = None) -> np.ndarray:
    """Returns which of `number` candidates process `index` of `count` trains: every count-th one.

    By default this process, of all. Candidates are independent draws, so any fixed division will
    do. Returns int64 indices, increasing; none where there are too few candidates.
    """
    index = jax.process_index() if index is None else index
    count = jax.process_count() if count is None else count
    if not 0 <= index < count:
        raise ValueError(f"share {index} of {count}: pass 0 to {count - 1}")
    return np.arange(index, number, count)


def bytes_from_first(payload: bytes | None) -> bytes:
    """Returns process 0's bytes in every process; what the others pass is ignored."""
    sent = payload if payload is not None and jax.process_index() == 0 else b""
    if jax.process_count() == 1:
        return sent
    from jax.experimental import multihost_utils

    own = np.frombuffer(sent, np.uint8)
    length = int(multihost_utils.broadcast_one_to_all(np.int32(len(own))))
    padded = own if jax.process_index() == 0 else np.zeros(length, np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(padded)).astype(np.uint8).tobytes()


def bytes_from_all(payload: bytes) -> list[bytes]:
    """Returns every process's bytes, by process number, in every process."""
    if jax.process_count() == 1:
        return [payload]
    from jax.experimental import multihost_utils

    own = np.frombuffer(payload, np.uint8)
    lengths = np.asarray(multihost_utils.process_allgather(np.int32(len(own)))).reshape(-1)
    padded = np.zeros(lengths.max(), np.uint8)
    padded[: len(own)] = own
    rows = np.asarray(multihost_utils.process_allgather(padded)).astype(np.uint8)
    return [row[:length].tobytes() for row, length in zip(rows, lengths)]
