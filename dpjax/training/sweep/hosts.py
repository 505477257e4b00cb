"""Several processes, usually one on each host: who trains which candidates, and what they share.

Processes train different candidates and never exchange anything while they do, unless their devices
train each candidate together (`LotMesh`). They agree on the candidates beforehand and merge their
results afterwards, over the network between them and unencrypted, so the network must be the
curator's too. JAX's coordinator does not authenticate: anyone who reaches its port can register as
a process, which ends the run of all. Here it listens on the address it is given and no other, and
that port must be closed to everyone else.
"""

from __future__ import annotations

import os
from typing import Any

import jax
import numpy as np

from dpjax import checks


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
        raise checks.Refused(
            *(("coordinator",), ", ", ("process_count",), " and ", ("process_id",), " go together"),
            ": pass all three, or none where JAX detects them (TPU slices, Slurm, Open MPI, ",
            "Kubernetes)",
        )
    if process_id is not None and process_count is not None and not 0 <= process_id < process_count:
        words = f" of {process_count}: pass 0 to {process_count - 1}"
        raise checks.Refused(("process_id", process_id), words)
    bind = coordinator_bind_address
    if bind is None and "JAX_COORDINATOR_BIND_ADDRESS" not in os.environ:
        bind = coordinator
    for name, address in (
        ("coordinator", coordinator),
        ("coordinator_bind_address", coordinator_bind_address),
    ):
        host, _, port = (address or "host:1").rpartition(":")
        if not (host and port.isascii() and port.isdigit()):
            raise checks.Refused((name, address), ": pass host:port, as in 10.0.0.1:4321")
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


MOST_AT_ONCE = 2**28
"""Bytes of one message, all processes' together: it passes through the memory of a device."""


def bytes_from_one(payload: bytes | None, source: int = 0) -> bytes:
    """Returns process `source`'s bytes in every process; what the others pass is ignored."""
    sends = jax.process_index() == source
    own = payload if payload is not None and sends else b""
    if jax.process_count() == 1:
        return own
    from jax.experimental import multihost_utils

    def sent(piece: bytes) -> bytes:
        # A sum over all processes, to which all but one add zeros.
        array = np.frombuffer(piece, np.uint8)
        found = multihost_utils.broadcast_one_to_all(array, sends)
        return np.asarray(found).astype(np.uint8).tobytes()

    length = int.from_bytes(sent(len(own).to_bytes(8)))
    starts = range(0, length, MOST_AT_ONCE)
    return b"".join(sent(_piece(own, start, MOST_AT_ONCE, length)) for start in starts)


def bytes_from_all(payload: bytes) -> list[bytes]:
    """Returns every process's bytes, by process number, in every process.

    For what is small: each process holds the longest payload as often as there are processes.
    """
    count = jax.process_count()
    if count == 1:
        return [payload]
    from jax.experimental import multihost_utils

    def gathered(piece: bytes) -> np.ndarray:
        found = multihost_utils.process_allgather(np.frombuffer(piece, np.uint8))
        return np.asarray(found).astype(np.uint8)

    lengths = [int.from_bytes(row.tobytes()) for row in gathered(len(payload).to_bytes(8))]
    longest, most = max(lengths), max(1, MOST_AT_ONCE // count)
    starts = range(0, longest, most)
    pieces = [gathered(_piece(payload, start, most, longest)) for start in starts]
    rows = np.concatenate([np.zeros((count, 0), np.uint8), *pieces], axis=1)
    return [row[:length].tobytes() for row, length in zip(rows, lengths)]


def fetched(tree: Any) -> Any:
    """Copies arrays to the host, those too of which other processes hold a part: in all of them."""

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
            return leaf
        from jax.experimental import multihost_utils

        return multihost_utils.process_allgather(leaf, tiled=True)

    return jax.device_get(jax.tree.map(one, tree))


def _piece(payload: bytes, start: int, most: int, length: int) -> bytes:
    """Cuts at most `most` bytes out of a payload that is padded with zeros to `length`."""
    return payload[start : start + most].ljust(min(most, length - start), b"\0")
