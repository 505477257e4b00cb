"""Assigns each record to a part by a keyed hash of its identifier, and nothing else.

Shuffling and cutting at a position would let one added record move others between the parts. Here
each record is assigned by BLAKE2b under a key that is chosen without looking at the data, so no
record moves another.

Where identifiers come from:

* Built-in data sets: the record's index in the published file.
* The user's own: any unique integers or strings kept with the records.
* Otherwise the record's content (`content_identifiers`). Equal records are told apart by counting
  them, so copies are spread over the parts like any other records, and removing one copy is the
  same as removing the last one: as multisets, one part loses that record and nothing else changes.
  (If all copies moved together, the size of a part would depend on one value of the data, and no
  public bound on it could hold for every data set.)
* Under replace-one a content identifier is wrong: a changed value would change the identifier and
  may move the record to the other part. Use its slot, its place in the array (`slot_identifiers`).
* Under add-or-remove one the slot is wrong: if a record is removed, all later ones move up a slot
  and may change parts. (The index in a published file is no slot: it never changes.)
"""

from __future__ import annotations

import hashlib
import math

import numpy as np

from dpjax import checks

_LOG_FAILURE = 32.0
"""A part exceeds its bound with probability at most exp(-32) = 1.3e-14 over the key."""


def slot_identifiers(count: int) -> np.ndarray:
    """Returns 0..count-1, (count,) int64, the places of records; for replace-one only."""
    return np.arange(count, dtype=np.int64)


def content_identifiers(inputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns 16 bytes per record, (n,) void, from its content and its place among equal records.

    Args:
      inputs: (n, ...) array.
      labels: (n,) array.
    """
    seen: dict[bytes, int] = {}
    digests = []
    for row, label in zip(np.ascontiguousarray(inputs), np.ascontiguousarray(labels)):
        content = hashlib.blake2b(row.tobytes() + label.tobytes(), digest_size=16).digest()
        copy = seen.get(content, 0)
        seen[content] = copy + 1
        digests.append(
            hashlib.blake2b(content + copy.to_bytes(8, "little"), digest_size=16).digest()
        )
    return np.frombuffer(b"".join(digests), dtype="V16")


def validation_members(identifiers: np.ndarray, fraction: float, key: bytes | int) -> np.ndarray:
    """Returns (n,) bool: which records the keyed hash puts into the validation part.

    Args:
      identifiers: (n,) integers, or fixed-length bytes as NumPy void.
      fraction: expected share, in (0, 1).
      key: 1 to 64 bytes, or an integer (its decimal digits are the key).
    """
    fraction = checks.probability("fraction", fraction, hint=", the share of the validation part")
    threshold = np.uint64(math.floor(fraction * 2.0**64))
    return keyed_words(identifiers, key, b"dpjax split") < threshold


def partition_order(
    identifiers: np.ndarray, partitions: int, key: bytes | int
) -> tuple[np.ndarray, np.ndarray]:
    """Assigns records to partitions by a keyed hash of their identifiers.

    Formal guarantees: for every fixed key, the partition of a record is a function of its
    identifier alone, and so is the place among the records of a partition relative to any other. So
    of two data sets that differ by one added or removed record, or by the value of one record whose
    identifier is kept, all partitions but one are the same, record for record and in the same
    order. (Cutting at positions would not do: one more record would move others.)

    Args:
      identifiers: (n,) integers, or fixed-length bytes as NumPy void.
      partitions: how many, at least 1.
      key: 1 to 64 bytes, or an integer, chosen without looking at the data.

    Returns:
      order (n,) int64, the records' indices by partition, and sizes (partitions,) int64; the sizes
      are private.
    """
    partitions = checks.whole("partitions", partitions)
    words = keyed_words(identifiers, key, b"dpjax partition")
    labels = (words % np.uint64(partitions)).astype(np.int64)
    # Within a partition by the hash, not by position: positions shift with other records.
    return np.lexsort((words, labels)), np.bincount(labels, minlength=partitions)


def keyed_words(identifiers: np.ndarray, key: bytes | int, purpose: bytes) -> np.ndarray:
    """Returns (n,) uint64: a keyed hash of each identifier, independent between purposes.

    Args:
      identifiers: (n,) integers, or fixed-length bytes as NumPy void.
      key: 1 to 64 bytes, or an integer (its decimal digits are the key).
      purpose: at most 16 bytes.
    """
    if isinstance(key, (int, np.integer)) and not isinstance(key, bool):
        key = str(int(key)).encode()
    if not isinstance(key, bytes) or not 1 <= len(key) <= hashlib.blake2b.MAX_KEY_SIZE:
        raise checks.Refused(("key", key), ": pass an integer or 1 to 64 bytes")
    if identifiers.dtype.kind in "iu":
        identifiers = identifiers.astype("<i8")
    keyed = hashlib.blake2b(key=key, digest_size=8, person=purpose)
    digests = []
    for identifier in identifiers:
        record = keyed.copy()
        record.update(identifier.tobytes())
        digests.append(record.digest())
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


def part_size_bound(size_bound: int, share: float) -> int:
    """Returns a public bound on the size of a part that holds each record with probability `share`.

    With m = `size_bound` records at most and std s = sqrt(m share (1 - share)), Bernstein's
    inequality gives P[count >= m share + sqrt(2 L) s + (2/3) L] <= exp(-L); L = 32 makes that eight
    deviations and 22 records above the mean. The result is at most `size_bound`.
    """
    std = math.sqrt(size_bound * share * (1.0 - share))
    margin = math.sqrt(2.0 * _LOG_FAILURE) * std + 2.0 / 3.0 * _LOG_FAILURE
    return min(size_bound, math.ceil(size_bound * share + margin))
