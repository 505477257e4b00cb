"""Checks fields of a statement, which may hold anything; a wrong type is a TypeError."""

from __future__ import annotations

from typing import Any


def text(value: Any) -> str:
    """Returns the value if it is text."""
    if not isinstance(value, str):
        raise TypeError("a field of the statement is not text")
    return value


def flag(value: Any) -> bool:
    """Returns the value if it is true or false."""
    if not isinstance(value, bool):
        raise TypeError("a field of the statement is neither true nor false")
    return value


def whole(value: Any) -> int:
    """Returns the value if it is a whole number."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError("a public size is not a whole number")
    return value


def is_number(value: Any) -> bool:
    """Returns whether a value is a number, and not a boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool)
