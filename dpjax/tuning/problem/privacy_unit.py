"""Whose presence a guarantee hides: one record's, or one user's with all of its records."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dpjax import checks

MOST_RECORDS = "most_records_of_a_user"
"""Among the public numbers of a release's training records, where these are users."""


@dataclasses.dataclass(frozen=True)
class Users:
    """The unit is a user; lots, sizes, bounds and scores then count users.

    The public `most_records` of a user count at most.
    """

    most_records: int

    def __post_init__(self) -> None:
        checks.whole(MOST_RECORDS, self.most_records)

    @property
    def numbers(self) -> dict[str, int]:
        """Returns what a release's public numbers say of it."""
        return {MOST_RECORDS: self.most_records}


def users_of(numbers: Mapping[str, Any]) -> Users | None:
    """Returns the unit that public numbers of training records name; None: one record."""
    return Users(numbers[MOST_RECORDS]) if MOST_RECORDS in numbers else None


def in_words(users: Users | None, validation_is_public: bool) -> str:
    """Returns the unit of privacy, in a sentence of a release."""
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
    """Returns what sizes and bounds count, in a word."""
    return "records" if users is None else "users"
