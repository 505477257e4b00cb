"""What `guarantee.json` says: written of a procedure, and read so that it can be written again.

A statement names the rules of a procedure: space, law of K, noise, lots, public numbers. It is a
function of these alone, so the code that wrote it writes it again from what it says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from dpjax import accounting
from dpjax.models.functional import COMPUTE_DTYPES
from dpjax.randomness import noise
from dpjax.releases import claims
from dpjax.releases.unit_of_privacy import counted, in_words, users_of
from dpjax.training.clipping.clip_rules import GlobalClipping
from dpjax.training.stages import Stages
from dpjax.tuning.problem.problem import Problem, RunOptions
from dpjax.tuning.problem.run_settings import RunSetting
from dpjax.tuning.problem.space import Law, Space

_OF_REPETITIONS = (
    "the search space, the law of K and every setting were fixed before the data was seen",
    "K, the losing candidates, the console and the wall clock stay with the curator",
)

_SECRET = (
    "what decides the selection (K, noise) comes from the operating system's randomness; training "
    "noise from JAX's threefry generator with a key of 64 bits of it for each candidate"
)


def written(
    *,
    guarantee: accounting.Guarantee | None,
    delta: float,
    selection: Mapping[str, Any],
    space: Mapping[str, Any],
    score: Mapping[str, Any],
    model: str,
    optimizer: Mapping[str, str],
    trained_parameters: Sequence[str],
    settings: Sequence[Mapping[str, Any]],
    training_records: Mapping[str, int | None],
    options: Mapping[str, Any],
    randomness_is_secret: bool,
    assumptions: Sequence[str] = _OF_REPETITIONS,
    versions: Mapping[str, str] | None = None,
    targets: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the content of `guarantee.json`.

    `guarantee` is None for a run that is not private. `training_records` are the public numbers
    `public_size`, `size_bound` and, under replace-one alone, `number`; of users also
    `unit_of_privacy.MOST_RECORDS`. `trained_parameters` names those that training changes;
    `versions` are of the libraries that the numbers depend on, None for the installed ones.
    `targets` say how the model's outputs become predictions; empty where they are predictions.
    """
    common = {
        "private": guarantee is not None,
        "model": model,
        "optimizer": dict(optimizer),
        "trained_parameters": list(trained_parameters),
        "selection": dict(selection),
        "candidates_drawn_from": dict(space),
        "score": dict(score),
        "training": list(settings),
        "training_records": dict(training_records),
        "run_options": dict(options),
        **({"targets": dict(targets)} if targets else {}),
        "randomness": claims.of_randomness(randomness_is_secret, _SECRET),
        "library_versions": claims.versions_now() if versions is None else dict(versions),
    }
    if guarantee is None:
        return common | {
            "warning": "NOT PRIVATE: trained without noise; this release carries no guarantee"
        }
    users = users_of(training_records)
    bound = f"{training_records['size_bound']} {counted(users)}"
    unit = in_words(users, score.get("validation_is_public", False))
    return common | {
        **claims.of_guarantee(guarantee, delta),
        "unit_of_privacy": unit,
        "assumptions": [
            *assumptions,
            f"the training part never holds more than {bound}",
            "no other computation on the same records is released, or it is composed with this",
            noise.IN_FLOATING_POINT,
            "threefry with a secret key is indistinguishable from true randomness",
        ],
    }


def of_parts(
    selection: accounting.Guarantee | None,
    training: accounting.Guarantee | None,
    delta: float,
    pays: str = "the selection",
) -> dict[str, Any]:
    """Returns the epsilons of a selection, and of the private training after it, by themselves.

    `pays` names the part that touches validation records.
    """
    assert selection is not None and training is not None  # They were planned as private.
    return {
        "selection_alone": selection.epsilon(delta),
        "final_training_alone": training.epsilon(delta),
        "a_private_validation_record_pays_for": f"{pays} alone",
    }


_COUNTS = ("lot_size", "steps")
"""Hyperparameters that are rounded to whole numbers where they are used."""

CANDIDATES = "a candidate, on all training records"
"""The runs that have the settings of a search, as a statement words it."""


def of_setting(setting: RunSetting, of: str = CANDIDATES) -> dict[str, Any]:
    """Returns the accounted setting of a run; `of` says which runs have it."""
    return {
        "lot_size": setting.expected_lot_size,
        "steps": setting.steps,
        "noise_multiplier": setting.noise_multiplier,
        "probability": setting.probability,
        "sampling": setting.sampling,
        "capacity": setting.lots.capacity,
        **({"bands": setting.bands} if setting.bands > 1 else {}),
        **({"stages": _of_stages(setting, setting.stages)} if setting.stages else {}),
        "of": of,
    }


def _of_stages(setting: RunSetting, stages: Stages) -> list[dict[str, float]]:
    """Returns what the stages of a run are priced by, in their order."""
    return [
        {
            "steps": stage.steps,
            "noise_multiplier": setting.noise_multiplier * stage.noise,
            "lot_size": setting.expected_lot_size * factor,
        }
        for stage, factor in zip(setting.of_stages, stages.lot_size)
    ]


def of_score(problem: Problem, counted: str, summed: str) -> dict[str, Any]:
    """Returns the score by which candidates are ranked, and its units.

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
"""The records that candidates are scored on where scores have none of their own, as worded."""


def of_noisy_scores(problem: Problem, *, on_training: bool = False) -> dict[str, Any]:
    """Returns `of_score` for private runs, each of which is scored with its own noise."""
    records = "training" if on_training else "validation"
    said = of_score(
        problem,
        counted=f"number of correct {records} predictions plus noise, over the public size",
        summed=f"sum of {records} records' scores in [0, 1] plus noise, over the public size",
    )
    said["noise"] = "discrete Gaussian"
    return said | ({"records": THE_TRAINING_RECORDS} if on_training else {})


def of_problem(problem: Problem) -> dict[str, Any]:
    """Returns the arguments of `written` that say what was tuned, and under which options."""
    return dict(problem.words) | {
        "delta": problem.delta,
        "space": problem.space.describe(),
        "options": of_options(problem.stated_run),
    }


def of_options(options: RunOptions) -> dict[str, Any]:
    """Returns the options of a run beside the space, as numbers and text; None: not given.

    The clip rule is named where it is not global clipping, the type of activations where it is not
    float32, bands and stages where they are given.
    """
    values = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    rule, stages = values.pop("clipping"), values.pop("stages")
    named = {} if rule in (None, GlobalClipping()) else {"clipping": rule.describe()}
    named |= {} if stages is None else {"stages": stages.describe()}
    if values["bands"] is None:  # Statements from before there were any do not say so.
        del values["bands"]
    if values["compute_dtype"] == COMPUTE_DTYPES[0]:
        del values["compute_dtype"]
    return named | {
        name: value if value is None or isinstance(value, str) else _plain(value)
        for name, value in values.items()
    }


def _plain(number: float) -> int | float:
    """Returns a number without its NumPy type."""
    number = float(number)
    return int(number) if number.is_integer() else number


def released(
    space: Space, hyperparameters: Mapping[str, float | None]
) -> dict[str, float | str | None]:
    """Returns a candidate's hyperparameters as a release names them: `rounded`, and by labels."""
    found: dict[str, float | str | None] = {**rounded(hyperparameters)}
    for name, value in hyperparameters.items():
        labels = space.parameters[name].labels
        if labels is not None and value is not None:
            found[name] = labels[int(value)]
    return found


def rounded(hyperparameters: Mapping[str, float | None]) -> dict[str, float | None]:
    """Returns a candidate's hyperparameters as its run read them: lot size and steps whole."""
    return {
        name: int(round(value)) if name in _COUNTS and value is not None else value
        for name, value in hyperparameters.items()
    }


# Read again --------------------------------------------------------------------------------------


def drawn_from(space: Space, chosen: Mapping[str, Any]) -> bool:
    """Returns whether a search over the space can release this candidate, or the default."""
    if set(chosen) == set(space.parameters) and all(value is None for value in chosen.values()):
        return True
    return can_be_drawn(chosen, space)


def can_be_drawn(candidate: Mapping[str, Any], space: Space) -> bool:
    """Returns whether the space could have drawn this candidate, lot size and steps rounded."""
    return set(candidate) == set(space.parameters) and all(
        value in law.labels
        if (law := space.parameters[name]).labels is not None
        else claims.is_number(value) and in_law(name, value, law)
        for name, value in candidate.items()
    )


def in_law(name: str, value: float, law: Law) -> bool:
    """Returns whether a law gives this value, lot size and steps rounded as used."""
    if law.values is not None:
        return any(rounded({name: float(one)})[name] == value for one in law.values)
    # exp(log(end)) may leave the range by a rounding error.
    slack = 1e-12 * (abs(law.lowest) + abs(law.highest))
    return law.lowest - slack <= value <= law.highest + slack
