"""A table with several rows per person: the unit of privacy is the person, named by a column.

All public numbers then count users. A keyed hash of a user decides whether its records train or
score candidates, so adding or removing a user changes one part, by that user alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from dpjax import checks, data, tuning
from dpjax.data import splitting, tables, user_arrays


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class UserPart:
    """Records (n, ...) of some users: `records` for a task, the arrays for the curator alone."""

    records: tuning.Records
    inputs: np.ndarray
    labels: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class UserParts:
    """Training, validation and test parts, as `data.Parts`, split by user."""

    train: UserPart
    validation: UserPart
    test: data.Split | None
    non_private: str | None = None


def load(
    path: str,
    own: Mapping[str, Any],
    *,
    user_column: str,
    most_records: int | None,
    fraction: float | None,
    key: bytes,
) -> tuple[data.Dataset, UserParts]:
    """Returns a data set with an invented record, and the table's records in parts by user.

    `own` are further arguments of `data.load_table`; a `fraction` of the users (None: no user),
    picked by a hash of their names under `key`, is kept for validation.
    """
    if most_records is None:
        raise ValueError(
            "--user_column needs --most_records, a public number: pass how many records of a "
            "user count at most"
        )
    schema = tables.read_schema(own["schema"])
    named = dataclasses.replace(
        schema,
        identifier=user_column,
        left_out=tuple(name for name in schema.left_out if name != user_column),
    )
    inputs, labels, users = tables.encoded(path, named, path)
    assert users is not None  # The schema has an identifier.
    ids = user_arrays.hashed(users)
    size = checks.whole("public_size", own["public_size"])
    bound = checks.whole("size_bound", own.get("size_bound") or size)

    def part(which: np.ndarray, share: float) -> UserPart:
        public, most = size, bound
        if share < 1.0:
            public, most = round(size * share), splitting.part_size_bound(bound, share)
        records = tuning.Records.of_users(
            (inputs[which], labels[which]),
            ids[which],
            most_records=most_records,
            public_size=public,
            size_bound=most,
            key=key,
        )
        return UserPart(records, inputs[which], labels[which])

    nobody = np.zeros((1, inputs.shape[1]), np.float32), np.zeros(1, labels.dtype)
    # An invented record: the data set only says how many classes and columns there are.
    loaded = data.from_arrays(*nobody, public_size=size, name=path, **named.answers)
    test = None
    if own.get("test_table") is not None:
        held = tables.encoded(own["test_table"], named, f"{path}: test")[:2]
        test = data.from_arrays(*nobody, public_size=1, test=held, **named.answers).test
    if fraction is None:
        none = tuning.Records.of_users(
            nobody, np.zeros(1, ids.dtype), most_records=most_records, public_size=1, size_bound=1
        )
        whole = part(np.ones(len(ids), bool), 1.0)
        return loaded, UserParts(whole, UserPart(none, *nobody), test)
    scored = splitting.validation_members(ids, fraction, key)
    return loaded, UserParts(part(~scored, 1.0 - fraction), part(scored, fraction), test)
