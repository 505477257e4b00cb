"""Named arrays as the bytes of one .npz file, in which a hash detects damage."""

from __future__ import annotations

import hashlib
import io
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import private_files

Arrays = dict[str, np.ndarray]

_HASH, _AS = "hash", " held as "


def packed(arrays: Arrays) -> bytes:
    """Packs named arrays into the bytes of an .npz file, with a hash of them all."""
    buffer = io.BytesIO()
    content: dict[str, Any] = {_HASH: _hash_of(arrays)}
    for name, array in arrays.items():
        array = np.asarray(array)
        if array.dtype.kind == "V":  # bfloat16 and the like, whose type NumPy does not write.
            name, array = f"{name}{_AS}{array.dtype}", array.view(f"u{array.dtype.itemsize}")
        content[name] = array
    np.savez(buffer, **content)
    return buffer.getvalue()


def unpacked(payload: bytes) -> Arrays:
    """Returns the arrays in bytes that `packed` made; refuses damaged ones."""
    arrays = {}
    with np.load(io.BytesIO(payload), allow_pickle=False) as file:
        for name, array in file.items():
            name, _, kind = name.partition(_AS)
            arrays[name] = array.view(jnp.dtype(kind)) if kind else array
    if not np.array_equal(arrays.pop(_HASH, np.zeros(0)), _hash_of(arrays)):
        raise ValueError("the hash does not match the arrays")
    return arrays


def fingerprint(arrays: Any) -> str:
    """Returns a hash that identifies a pytree of arrays; it may reveal whose data they are."""
    digest = hashlib.blake2b(digest_size=16)
    for leaf in jax.tree.leaves(arrays):
        array = np.ascontiguousarray(leaf)
        digest.update(f"{array.shape}{array.dtype}".encode())
        # Read in place: a mapped file, say, may be larger than the memory.
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _hash_of(arrays: Arrays) -> np.ndarray:
    """Returns a hash of names, shapes, types and contents, as bytes in an array."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.shape} {array.dtype}\n".encode() + array.tobytes())
    return np.frombuffer(digest.digest(), np.uint8)


def read_arrays(path: str, mend: str) -> Arrays:
    """Returns the arrays of a file that `packed` wrote.

    Args:
      path: a file that only this user may write.
      mend: the remedy that the error names if the file is damaged.
    """
    payload = private_files.read_private(path)
    try:
        return unpacked(payload)
    except MemoryError:
        raise
    except Exception:
        # NumPy and zipfile raise various errors, according to how a file is broken.
        raise ValueError(f"{path} is damaged or cut short: {mend}") from None
