"""Reads the words of a statement, so that the code that wrote it can write it again.

`guarantee.json` names the rules of a procedure: space, law of K, noise, lots, public numbers. Every
evaluation rebuilds its statement from these alone; what all of them read is here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpjax.tuning import described
from dpjax.tuning.problem.space import Law, Space
from dpjax.tuning.problem.stated_fields import flag, is_number, text
from dpjax.tuning.release import VERSIONED


def common(claim: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what every statement says of the program that wrote it."""
    return {"secret": flag(claim["randomness"]["secret"]), "versions": versions(claim)}


def versions(claim: Mapping[str, Any], names: Sequence[str] = VERSIONED) -> dict[str, str]:
    """Returns the versions that a statement names, of these libraries."""
    return {name: text(claim["library_versions"][name]) for name in names}


def drawn_from(space: Space, chosen: Mapping[str, Any]) -> bool:
    """Returns whether a search over the space can release this candidate, or the default."""
    if set(chosen) == set(space.parameters) and all(value is None for value in chosen.values()):
        return True
    return is_public(chosen, space)


def is_public(candidate: Mapping[str, Any], space: Space) -> bool:
    """Returns whether the space draws this candidate, lot size and steps rounded as used."""
    return set(candidate) == set(space.parameters) and all(
        is_number(value) and _in_law(name, value, space.parameters[name])
        for name, value in candidate.items()
    )


def _in_law(name: str, value: float, law: Law) -> bool:
    if law.values is not None:
        return any(described.rounded({name: float(one)})[name] == value for one in law.values)
    # exp(log(end)) may leave the range by a rounding.
    slack = 1e-12 * (abs(law.lowest) + abs(law.highest))
    return law.lowest - slack <= value <= law.highest + slack
