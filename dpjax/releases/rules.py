"""The rules that releases name, each registered with the function that rebuilds its statements."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any

NO_CHOICE = "none: one private run with hyperparameters that were public beforehand"
"""The rule of a release for which nothing was scored or compared."""

MODULES = ("dpjax.bridges.runs",)
"""Modules that are imported when a rule is not known yet.

They register rules, and import `dpjax.tuning`, which registers all others of dpjax.
"""


@dataclasses.dataclass(frozen=True)
class Rebuilt:
    """A statement as this version would write it, from the rules that a release's statement names.

    It has no `release.SEAL`; `may_release` says whether the procedure can release hyperparameters.
    """

    statement: Mapping[str, Any]
    may_release: Callable[[Mapping[str, Any]], bool]


_REBUILDERS: dict[str, Callable[[Mapping[str, Any]], Rebuilt]] = {}


def register_rule(rule: str, rebuild: Callable[[Mapping[str, Any]], Rebuilt]) -> None:
    """Makes releases of a rule verifiable; `rebuild` writes the statement from a claim."""
    if rule in _REBUILDERS:
        raise ValueError(f"the rule {rule!r} is registered already: choose other words")
    _REBUILDERS[rule] = rebuild


def rebuilt(claim: Mapping[str, Any]) -> Rebuilt:
    """Rebuilds a statement, as this version writes it, from the rules that `claim` names.

    `claim` has no hashes. Raises a ValueError for a rule that is not registered, such as that of a
    user's own tuner whose module is not imported; a KeyError or TypeError for malformed rules.
    """
    rule = claim["selection"]["rule"]
    if rule not in _REBUILDERS:
        for module in MODULES:
            importlib.import_module(module)
    if rule not in _REBUILDERS:
        raise ValueError(
            f"no tuner is registered for the rule {rule!r}: import the module that defines it (in "
            "a checkout perhaps one of experiments/figures/leaderboard), then call "
            "tuning.verify_release"
        )
    return _REBUILDERS[rule](claim)
