"""What every `guarantee.json` says: its claim, its randomness, its versions; and how it is read.

A statement may come from anybody, so a field of a wrong type raises a TypeError.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from typing import Any

import dpjax
from dpjax import accounting
from dpjax.accounting import stated_epsilon

VERSIONED = ("dpjax", "jax", "flax", "optax", "numpy", "scipy", "dp-accounting")
"""Libraries whose versions a statement names: its numbers depend on them."""

_SEEDED = (
    "NOT SECRET: an integer seed was given, for reproduction; whoever knows the seed can subtract "
    "the noise, so the guarantee does not hold against them"
)


def of_guarantee(guarantee: accounting.Guarantee, delta: float) -> dict[str, Any]:
    """Returns the claim: epsilon, rounded up, at delta; under which relation; and why it holds."""
    return {
        "epsilon": guarantee.stated_epsilon(delta),
        stated_epsilon.FIELD: stated_epsilon.EPSILON_IS,
        "delta": delta,
        "neighbouring_relation": guarantee.relation,
        "mechanism": guarantee.provenance,
    }


def of_randomness(secret: bool, source: str) -> dict[str, Any]:
    """Returns whether the randomness is secret, and a sentence on its `source`."""
    return {"secret": secret, "statement": source if secret else _SEEDED}


def versions_now(names: Sequence[str] = VERSIONED) -> dict[str, str]:
    """Returns the installed versions of these libraries."""
    return {
        name: dpjax.__version__ if name == "dpjax" else importlib.metadata.version(name)
        for name in names
    }


# Read again --------------------------------------------------------------------------------------


def common(claim: Mapping[str, Any], names: Sequence[str] = VERSIONED) -> dict[str, Any]:
    """Returns the arguments that every statement is rebuilt with: secrecy and versions."""
    return {"secret": flag(claim["randomness"]["secret"]), "versions": versions(claim, names)}


def versions(claim: Mapping[str, Any], names: Sequence[str]) -> dict[str, str]:
    """Returns the versions that a statement names, of these libraries."""
    return {name: text(claim["library_versions"][name]) for name in names}


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
