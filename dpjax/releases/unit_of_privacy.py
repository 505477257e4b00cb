"""What a guarantee protects: one record, or one user with all of its records; and its words."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dpjax import checks

MOST_RECORDS = "most_records_of_a_user"
"""Name of a public number of a release's training records, if the unit is a user."""


@dataclasses.dataclass(frozen=True)
class Users:
    """Says that the unit is a user: lots, sizes, bounds and scores then count users.

    At most `most_records` of a user's records count, a public number.
    """

    most_records: int

    def __post_init__(self) -> None:
        checks.whole(MOST_RECORDS, self.most_records)

    @property
    def numbers(self) -> dict[str, int]:
        """Returns `most_records` by its name among a release's public numbers."""
        return {MOST_RECORDS: self.most_records}


def users_of(numbers: Mapping[str, Any]) -> Users | None:
    """Reads the unit from public numbers of training records; None if it is one record."""
    return Users(numbers[MOST_RECORDS]) if MOST_RECORDS in numbers else None


def in_words(users: Users | None, validation_is_public: bool) -> str:
    """Returns the unit of privacy, as a release words it."""
    one = "one labelled record of"
    if users is not None:
        one = f"one user with all of its records, of which {users.most_records} count at most, in"
    if validation_is_public:
        return (
            f"{one} the training data; the validation {counted(users)} were declared public and "
            "are NOT protected"
        )
    return f"{one} the training or validation data"


def counted(users: Users | None) -> str:
    """Returns the word for what sizes and bounds count."""
    return "records" if users is None else "users"


def unit_of(relation: str, protected: str = "") -> str:
    """Names the unit that a guarantee protects; only guarantees of the same unit add up.

    `protected` is the statement's `unit_of_privacy`; by default, that of private records.
    """
    return f"{protected or in_words(None, False)} ({relation.replace('_', ' ')})"
