"""Reads the words of a statement, so that the code that wrote it can write it again.

`guarantee.json` names the rules of a procedure: space, law of K, noise, lots, public numbers. Every
evaluation rebuilds its statement from these alone; what all of them read is here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

from dpjax.training.clipping.clip_rules import rule_from_dict
from dpjax.training.users import UserRecords
from dpjax.tuning import described
from dpjax.tuning.problem import privacy_unit
from dpjax.tuning.problem.privacy_unit import Users
from dpjax.tuning.problem.run_settings import RunOptions
from dpjax.tuning.problem.space import Law, Space
from dpjax.tuning.problem.task import Records, Task
from dpjax.tuning.release import VERSIONED


def task(claim: Mapping[str, Any]) -> Task:
    """Returns a task of the stated public numbers: planning reads nothing else of the records."""
    records = claim["training_records"]
    size, bound, number = (records[name] for name in ("public_size", "size_bound", "number"))
    scored, users = whole(claim["score"].get("public_size", 1)), _users(claim)
    judge: dict[str, Any] = {"correct": lambda params, example: jnp.array(True)}
    if claim["score"].get("units_of_a_score_of_1", 1) != 1:
        judge = {"score": lambda params, example: jnp.array(1.0)}
    return Task(
        # One parameter, for an optimiser to be looked at.
        initial=lambda key: jnp.zeros(()),
        loss=lambda params, example: params,
        **judge,
        train=_records(whole(size), whole(bound), 1 if number is None else whole(number), users),
        # Users that are in one part alone have other identifiers there.
        validation=dataclasses.replace(_records(scored, scored, 1, users), identifiers=None),
    )


def _records(public_size: int, size_bound: int, number: int, users: Users | None) -> Records:
    none = np.zeros((), np.int32)
    # Without memory, whatever the numbers.
    arrays: Any = (np.broadcast_to(none, (number,)),)
    if users is not None:
        places = (number, users.most_records)
        arrays = UserRecords((np.broadcast_to(none, places),), np.broadcast_to(none > 0, places))
    return Records(
        arrays,
        public_size,
        size_bound,
        stable_under_replacement=True,
        stable_under_removal=True,
        identifiers=np.broadcast_to(none, (number,)),
    )


def _users(claim: Mapping[str, Any]) -> Users | None:
    found = privacy_unit.users_of(claim["training_records"])
    return found and Users(whole(found.most_records))


def options(claim: Mapping[str, Any], space: Space) -> tuple[RunOptions, RunOptions]:
    """Returns what was asked of a run; and the same with the noise that was calibrated, if any."""
    stated = dict(claim["run_options"])
    rule = rule_from_dict(stated.pop("clipping", {"rule": "global"}))
    asked = RunOptions(**stated, clipping=rule)
    for name, value in stated.items():
        if not (value is None or is_number(value) or name == "sampling"):
            raise TypeError(f"run_options.{name} is no number")
    if asked.noise_multiplier is not None or "noise_multiplier" in space.parameters:
        return asked, asked
    noise = claim["training"][0]["noise_multiplier"]
    return asked, dataclasses.replace(asked, noise_multiplier=noise)


def reads_everything(hyperparameters: Mapping[str, Any]) -> optax.GradientTransformation:
    """Returns an optimiser in the place of the one that is named, whose code is not here."""
    return optax.scale(math.prod(hyperparameters.values()))


def training(claim: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `Inspection.words` from what a statement says, taken as it is if it is text."""
    optimizer, records = claim["optimizer"], claim["training_records"]
    fixed = claim["run_options"]["sampling"] == "fixed"
    return {
        "model": words(claim["model"]),
        "optimizer": {name: words(optimizer[name]) for name in optimizer},
        "trained_parameters": [words(name) for name in claim["trained_parameters"]],
        "training_records": {
            "public_size": records["public_size"],
            "size_bound": records["size_bound"],
            "number": records["number"] if fixed else None,
            **(users.numbers if (users := _users(claim)) else {}),
        },
    }


def versions(claim: Mapping[str, Any], names: Sequence[str] = VERSIONED) -> dict[str, str]:
    """Returns the versions that a statement names, of these libraries."""
    return {name: words(claim["library_versions"][name]) for name in names}


def words(value: Any) -> str:
    """Returns the value, if it is text; else raises a TypeError."""
    if not isinstance(value, str):
        raise TypeError("words are a number or a list")
    return value


def flag(value: Any) -> bool:
    """Returns the value, if it is true or false; else raises a TypeError."""
    if not isinstance(value, bool):
        raise TypeError("a word that is true or false is another")
    return value


def whole(value: Any) -> int:
    """Returns the value, if it is a whole number; else raises a TypeError."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError("a public size is no whole number")
    return value


def is_number(value: Any) -> bool:
    """Returns whether it is a number, and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)


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
