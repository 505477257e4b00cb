"""How was trained, in words and numbers for a release: the settings fixed before the data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from dpjax.tuning.problem.problem import Problem
from dpjax.tuning.problem.run_settings import RunSetting
from dpjax.tuning.problem.run_shape import RunOptions

_COUNTS = ("lot_size", "steps")
"""Hyperparameters that are rounded to whole numbers where they are used."""

CANDIDATES = "a candidate, on all training records"
"""Which runs have the settings of a search, in words."""


def of_settings(settings: Sequence[RunSetting], *, of: str = CANDIDATES) -> list[dict[str, Any]]:
    """Returns the accounted settings of runs, as `release.statement` takes them."""
    return [
        {
            "lot_size": setting.expected_lot_size,
            "steps": setting.steps,
            "noise_multiplier": setting.noise_multiplier,
            "probability": setting.probability,
            "sampling": setting.sampling,
            "capacity": setting.lots.capacity,
            "of": of,
        }
        for setting in settings
    ]


def of_score(problem: Problem, counted: str, summed: str) -> dict[str, Any]:
    """Returns what candidates are ranked by, and in which units.

    `counted` is the text where a record is right or wrong, `summed` where it has a score.
    """
    said: dict[str, Any] = {
        "public_size": problem.validation.public_size,
        "validation_is_public": problem.validation_is_public,
    }
    if problem.units == 1:
        return said | {"what": counted}
    said |= {"what": summed, "units_of_a_score_of_1": problem.units}
    if problem.users is None:
        return said
    return said | {"a_record_is": "one user, whose score is the mean over its records that count"}


THE_TRAINING_RECORDS = "those trained on; training and score are composed"
"""Which records candidates are scored on where they have none of their own, in words."""


def of_noisy_scores(problem: Problem, *, on_training: bool = False) -> dict[str, Any]:
    """Returns `of_score` of private runs, each of which is scored with noise of its own."""
    records = "training" if on_training else "validation"
    said = of_score(
        problem,
        counted=f"number of correct {records} predictions plus noise, over the public size",
        summed=f"sum of {records} records' scores in [0, 1] plus noise, over the public size",
    )
    said["noise"] = "discrete Gaussian"
    return said | ({"records": THE_TRAINING_RECORDS} if on_training else {})


def of_problem(problem: Problem) -> dict[str, Any]:
    """Returns the arguments of `release.statement` that say what was tuned, and what was asked."""
    return problem.description() | {
        "delta": problem.delta,
        "space": problem.space.describe(),
        "options": of_options(problem.stated_run),
    }


def of_options(options: RunOptions) -> dict[str, Any]:
    """Returns what was asked of a run beside the space, as numbers and text; None: not asked.

    The clip rule is named where it is not the usual one.
    """
    values = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    rule = values.pop("clipping")
    named = {} if rule == RunOptions().clipping else {"clipping": rule.describe()}
    return named | {
        name: value if value is None or isinstance(value, str) else _plain(value)
        for name, value in values.items()
    }


def _plain(number: float) -> int | float:
    """Returns a number without its NumPy type."""
    number = float(number)
    return int(number) if number.is_integer() else number


def rounded(hyperparameters: Mapping[str, float | None]) -> dict[str, float | None]:
    """Returns a candidate's hyperparameters as its run read them: lot size and steps whole."""
    return {
        name: int(round(value)) if name in _COUNTS and value is not None else value
        for name, value in hyperparameters.items()
    }
