"""Users instead of records: the unit of privacy is a person with all of their records.

Records that carry a user id are grouped, one row for each user with room for a public number
of records; the loss of one user is the mean over that user's records. A lot is then a lot of users,
a clipped gradient is one user's, and everything that is proven of a record holds of a user
(user-level privacy; McMahan et al. 2018, https://arxiv.org/abs/1710.06963).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import checks
from dpjax.training.clipping.implicit_convolution import as_for

Tree = Any


class UserRecords(NamedTuple):
    """Records grouped by user, a pytree; those of a single user have no leading axis.

    Example:
      >>> import numpy as np
      >>> from dpjax.training.users import group
      >>> owners = np.array([7, 7, 7, 8, 9])
      >>> users, ids = group(np.arange(5.0), owners, most_records=2)
      >>> users.present.tolist(), ids.tolist()
      ([[True, True], [True, False], [True, False]], [7, 8, 9])

    Attributes:
      records: pytree of arrays (users, most_records, ...); an empty place repeats a record of the
        same user, so that its loss is as finite as the others.
      present: bool (users, most_records), which places hold a record.
    """

    records: Tree
    present: jax.Array | np.ndarray

    def __repr__(self) -> str:
        """Shows no record, nor how many users there are."""
        return "UserRecords(not private: for the curator only)"


def group(
    records: Tree, user_ids: Any, most_records: int, *, key: bytes | None = None
) -> tuple[UserRecords, np.ndarray]:
    """Groups the records of each user; NumPy, on the host.

    Formal guarantees:
      A user's row is a function of that user's records in their order, of its id, `most_records`
      and `key`: no other user has an influence on it. So of data sets that differ by one user with
      all of its records, however many, one has a row more (or another row) and all others are the
      same; where they stand shifts, on which lots do not depend in law.

    Takes records (n, ...) and their users' ids, (n,) integers or fixed-length bytes (NumPy void).
    A hash under `key` (1 to 64 bytes, chosen without looking at the records) picks which
    `most_records` of a user's count; None: the first ones. Returns the users' records and their
    ids (users,), each once and sorted: the identifiers of the rows.
    """
    most_records = checks.whole("most_records", most_records)
    lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(records)}
    if len(lengths) != 1 or lengths <= {(), (0,)}:
        raise ValueError("records must be arrays of one length, of at least one record")
    for leaf in jax.tree.leaves(records):
        checks.record_array("records", leaf)
    ids = checked_ids("user_ids", user_ids, *lengths.pop())
    users, owner, counts = np.unique(ids, return_inverse=True, return_counts=True)
    # Records by user, each user's in their order.
    order = np.argsort(owner, kind="stable")
    first = np.cumsum(counts) - counts
    if key is not None:
        place = np.arange(len(ids)) - np.repeat(first, counts)
        order = order[np.lexsort((_words(ids[order], place, key), owner[order]))]
    places = np.arange(most_records)
    present = places < counts[:, None]
    rows = order[first[:, None] + np.where(present, places, 0)]
    return UserRecords(jax.tree.map(lambda leaf: np.asarray(leaf)[rows], records), present), users


def checked_ids(name: str, ids: Any, number: int) -> np.ndarray:
    """Returns the ids (number,) of users as an array; refuses other types and lengths."""
    found = checks.plain_array(name, ids)
    if found.shape != (number,):
        raise ValueError(f"{name} has shape {found.shape}: pass one id for each record")
    if found.dtype.kind not in "iuV":
        raise ValueError(
            f"{name} is {found.dtype}: pass integers or fixed-length bytes (NumPy void), such as "
            "a hash of each name"
        )
    return found


def _words(ids: np.ndarray, places: np.ndarray, key: bytes) -> np.ndarray:
    """Returns (n,) uint64: a keyed hash of (the record's user, its number among theirs)."""
    if not (isinstance(key, bytes) and 1 <= len(key) <= 64):
        raise ValueError("key must be 1 to 64 bytes, such as secrets.token_bytes(16), or None")
    begun = hashlib.blake2b(key=key, digest_size=8, person=b"dpjax users")
    words = []
    for one, place in zip(ids, places.tolist()):
        digest = begun.copy()
        digest.update(one.tobytes() + place.to_bytes(8, "little"))
        words.append(digest.digest())
    return np.frombuffer(b"".join(words), "<u8")


def per_user(loss_fn: Callable[..., jax.Array], *, with_rng: bool = False) -> Callable[..., Any]:
    """Returns the loss of one user: the mean over the records that the user holds.

    Its gradient is clipped once, so that a user with many records counts as much as one with a
    single record.

    Args:
      loss_fn: loss of one record, `(params, record, *rest) -> scalar`; that of a user is
        `(params, user, *rest) -> scalar`, where `user` is one row of a `UserRecords`. If it is an
        `ImplicitConvolutions`, so is the user's.
      with_rng: whether the first of the rest is a key: each record gets its own.
    """
    checks.function("loss_fn", loss_fn, "of parameters and one record")
    checks.flag("with_rng", with_rng)

    def loss(params: Tree, user: UserRecords, *rest: Any) -> jax.Array:
        check_grouped("the loss of a user", user)
        shared = rest[1:] if with_rng else rest
        keys = (jax.random.split(rest[0], len(user.present)),) if with_rng else ()
        losses = jax.vmap(lambda record, *own: loss_fn(params, record, *own, *shared))(
            user.records, *keys
        )
        return mean_of_present(losses, user.present)

    return as_for(loss_fn, loss)


def mean_of_present(values: jax.Array, present: jax.Array) -> jax.Array:
    """Averages values (most_records,) where there is a record; 0 where there is none."""
    weights = present.astype(values.dtype)
    return jnp.sum(jnp.where(present, values, 0)) / jnp.maximum(jnp.sum(weights), 1)


def check_grouped(what: str, user: Any) -> None:
    """Refuses records that are not grouped by user."""
    if not isinstance(user, UserRecords):
        raise ValueError(f"{what} got single records: pass what training.users.group makes of them")
