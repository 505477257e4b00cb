"""Whether a release says what it may say: its statement rebuilt from its own words, and its files.

`guarantee.json` names the rules of a procedure: space, law of K, noise, lots, public numbers. The
statement is a function of these alone, so it is written again by the code that wrote it, and every
field and sentence must be the same; the epsilon is computed anew on the way. The release's other
files are bound to it by their hashes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

import dpjax
from dpjax.accounting import provenance
from dpjax.tuning import described
from dpjax.tuning.evaluations import partitioned_selection, running
from dpjax.tuning.evaluations.procedure import plan_procedure
from dpjax.tuning.evaluations.selection_plan import Selector, plan
from dpjax.tuning.pareto import oracles, released_run, run_shapes
from dpjax.tuning.problem.run_settings import RunOptions
from dpjax.tuning.problem.space import Choice, Law, Space, space_from
from dpjax.tuning.problem.task import Records, Task
from dpjax.tuning.release import (
    HYPERPARAMETERS_FILE,
    SEAL,
    THIS_STATEMENT,
    VERSIONED,
    json_bytes,
    sha256,
)
from dpjax.tuning.tuners.doubling import RULE as DOUBLING
from dpjax.tuning.tuners.doubling import DoublingSelector
from dpjax.tuning.tuners.exponential import RULE as EXPONENTIAL
from dpjax.tuning.tuners.exponential import ExponentialSelector
from dpjax.tuning.tuners.selections import selection_from

LARGEST_STATEMENT = 1 << 24
"""Bytes of the largest file that is read as JSON; real ones hold a few thousand."""

TOLERANCE = 1e-9
"""Relative, of numbers that are computed anew: other versions of NumPy and SciPy round otherwise.

The statement's own hash has none.
"""


class NotVerified(ValueError):
    """The release is not as its statement says, or the statement cannot be rebuilt."""


@dataclasses.dataclass(frozen=True)
class Rebuilt:
    """A statement as it would be written now.

    Attributes:
      statement: without `release.SEAL`.
      may_release: whether the procedure can release these hyperparameters.
    """

    statement: Mapping[str, Any]
    may_release: Callable[[Mapping[str, Any]], bool]


@dataclasses.dataclass(frozen=True)
class Verified:
    """A release whose claim holds.

    Attributes:
      epsilon: as claimed.
      recomputed: the same to `TOLERANCE`.
      delta: of both.
      relation: the neighbouring relation.
      secret: whether no seed was given; else the claim does not hold against who knows it.
    """

    epsilon: float
    recomputed: float
    delta: float
    relation: str
    secret: bool


def verify_release(path: str, rebuild: Callable[[dict], Rebuilt] | None = None) -> Verified:
    """Verifies a release by its `guarantee.json` and the files beside it.

    Formal guarantees: returns only if (a) the folder holds exactly the files that the statement
    names, with the hashes it names, its own among them; (b) every field of the statement, sentences
    included, is what this version's procedures write for the rules that the statement itself names;
    (c) epsilon, computed anew from these rules, is the one claimed; (d) the released
    hyperparameters are among those that the procedure can release. Anything else raises. What it
    cannot show: that the run was as stated. Names of the model, the optimiser and the trained
    parameters, the ranges of hyperparameters that no cost depends on, and the public sizes are
    taken at their word; the hashes are no signature. A law of K of one's own, or a guarantee from
    elsewhere (`Guarantee.from_pld`), cannot be rebuilt and is refused.

    Args:
      path: of the release's `guarantee.json`.
      rebuild: statement -> what it should be; `rebuilt` by default.

    Raises:
      NotVerified: in one line, naming the field or file.
      ValueError: if the file is no statement of a release at all.
    """
    claim = read_json(path)
    if not isinstance(claim, dict) or not isinstance(claim.get("private"), bool):
        raise ValueError(f"{path} is no guarantee.json: it does not say whether it is private")
    if not claim["private"]:
        raise NotVerified("it makes no claim of privacy")
    try:
        hyperparameters = _sealed_files(path, claim)
        words = {name: value for name, value in claim.items() if name != SEAL}
        wanted = (rebuild or rebuilt)(words)
        fits = isinstance(hyperparameters, dict) and wanted.may_release(hyperparameters)
    except NotVerified:
        raise
    except MemoryError:
        raise NotVerified("its numbers are too large to be priced") from None
    except Exception as error:  # Whatever malformed words raise, they are not verified.
        raise NotVerified(
            f"its statement cannot be rebuilt from its own words ({_short(error)})"
            + _written_by_another(claim)
        ) from None
    place = provenance.first_difference(words, wanted.statement, tolerance=TOLERANCE)
    if place == "epsilon" and _is_number(words.get("epsilon")):
        claimed, recomputed = words["epsilon"], wanted.statement["epsilon"]
        verdict = "THE CLAIM IS TOO SMALL" if claimed < recomputed else "the claim is another one"
        raise NotVerified(
            f"claimed epsilon {claimed:.6f}, recomputed {recomputed:.6f} at delta "
            f"{words['delta']:g}: {verdict}"
        )
    if place is not None:
        raise NotVerified(
            f"{_short(place)} is not what its own rules make of it" + _written_by_another(claim)
        )
    if not fits:
        raise NotVerified(
            f"{HYPERPARAMETERS_FILE} holds what the stated procedure cannot have released"
        )
    return Verified(
        epsilon=words["epsilon"],
        recomputed=wanted.statement["epsilon"],
        delta=words["delta"],
        relation=words["neighbouring_relation"],
        secret=words["randomness"]["secret"],
    )


def rebuilt(claim: Mapping[str, Any]) -> Rebuilt:
    """A statement as this version writes it, from the rules that `claim` names.

    Args:
      claim: what a `guarantee.json` of `random_repetitions`, `threshold_stopping`, `exponential`,
        `doubling` or `pareto` holds, without its hashes.

    Raises:
      ValueError, KeyError, TypeError: for rules that are none.
    """
    rule = claim["selection"]["rule"]
    if rule in (EXPONENTIAL, DOUBLING):
        return _partitioned(claim)
    if rule == released_run.RULE:
        return _one_run(claim)
    return _selection_of_runs(claim)


def _selection_of_runs(claim: Mapping[str, Any]) -> Rebuilt:
    score, space = claim["score"], space_from(claim["candidates_drawn_from"])
    public = _flag(score["validation_is_public"])
    asked, options = _options(claim, space)
    procedure = plan_procedure(
        _task(claim),
        space,
        selection=selection_from(claim["selection"]),
        options=options,
        optimizer=_reads_everything,
        epsilon=None,
        delta=claim["delta"],
        validation_is_public=public,
        score_noise=None if public else float(score["noise_standard_deviation_in_records"]),
    )
    statement = running.public_claim(
        procedure,
        asked,
        delta=claim["delta"],
        validation_size=score["public_size"],
        validation_is_public=public,
        training=_training(claim, described.of_settings(procedure.settings, asked.sampling)),
        secret=_flag(claim["randomness"]["secret"]),
        versions=versions_in(claim),
    )
    return Rebuilt(statement, lambda chosen: _drawn_from(space, chosen))


def _partitioned(claim: Mapping[str, Any]) -> Rebuilt:
    selection, score = claim["selection"], claim["score"]
    space = space_from(claim["candidates_drawn_from"])
    asked, options = _options(claim, space)
    listed = selection["candidates"]
    fixed = plan(
        _task(claim),
        space,
        _selector(selection, claim["delta"]),
        options,
        candidates=len(listed),
        partition_number=selection["partitions"],
        partition_training=selection["partition_training"]["mode"],
        epsilon=None,
        delta=claim["delta"],
        optimizer=_reads_everything,
        validation_is_public=_flag(score["validation_is_public"]),
    )
    statement = partitioned_selection.public_claim(
        fixed,
        asked,
        delta=claim["delta"],
        listed=listed,
        training=_training(
            claim,
            described.of_settings(
                partitioned_selection.final_settings(fixed),
                asked.sampling,
                of=partitioned_selection.FINAL_TRAINING,
            ),
        ),
        secret=_flag(claim["randomness"]["secret"]),
        versions=versions_in(claim),
    )
    if not all(_is_public(candidate, space) for candidate in listed):
        raise ValueError("selection.candidates are not of the space")
    return Rebuilt(statement, lambda chosen: chosen in listed)


def _selector(selection: Mapping[str, Any], delta: float) -> Selector:
    if selection["rule"] == EXPONENTIAL:
        return ExponentialSelector(float(selection["epsilon_0"]))
    charged = selection["charged"]
    return DoublingSelector(
        float(selection["epsilon_0"]),
        float(selection["granularity"]),
        float(selection["lower_bound"]),
        selection["variant"],
        charged.get("iterations"),
        charged.get("segments"),
        failure_probability=delta,
    )


def _one_run(claim: Mapping[str, Any]) -> Rebuilt:
    options = claim["run_options"]
    space = space_from(claim["candidates_drawn_from"])
    setting = {}
    for name, law in space.parameters.items():
        (setting[name],) = law.values
    fixed = options["sampling"] == run_shapes.FIXED
    records = claim["training_records"]
    cost = oracles.TrainingCost(
        run_shapes.RunShapes(
            records["number"] if fixed else records["public_size"],
            options["sampling"],
            options["steps_per_epoch"],
            None if fixed else records["size_bound"],
        ),
        claim["delta"],
    )
    (run,) = cost.shapes.accounted({name: np.array([value]) for name, value in setting.items()})
    _task(claim)  # For its checks.
    statement = released_run.public_claim(
        run.guarantee(),
        cost,
        setting,
        public_data=_words(claim["selection"]["public_data"]),
        training=_training(
            claim,
            described.of_settings([run], options["sampling"], of=released_run.THE_RUN),
        ),
        secret=_flag(claim["randomness"]["secret"]),
        versions=versions_in(claim),
    )
    return Rebuilt(statement, lambda chosen: chosen == described.as_used(setting))


def _task(claim: Mapping[str, Any]) -> Task:
    """A task of the stated public numbers: planning reads nothing else of the records."""
    records = claim["training_records"]
    size, bound, number = (records[name] for name in ("public_size", "size_bound", "number"))
    scored = _whole(claim["score"].get("public_size", 1))
    return Task(
        # One parameter, for an optimiser to be looked at.
        initial=lambda key: jnp.zeros(()),
        loss=lambda params, example: params,
        correct=lambda params, example: jnp.array(True),
        train=_records(_whole(size), _whole(bound), 1 if number is None else _whole(number)),
        validation=_records(scored, scored, 1),
    )


def _records(public_size: int, size_bound: int, number: int) -> Records:
    none = np.zeros((), np.int32)
    return Records(
        # Without memory, whatever the number.
        (np.broadcast_to(none, (number,)),),
        public_size,
        size_bound,
        stable_under_replacement=True,
        stable_under_removal=True,
        identifiers=np.broadcast_to(none, (number,)),
    )


def _options(claim: Mapping[str, Any], space: Space) -> tuple[RunOptions, RunOptions]:
    """What was asked of a run; and the same with the noise that was used, if it was calibrated."""
    asked = RunOptions(**claim["run_options"])
    for name, value in claim["run_options"].items():
        if not (value is None or _is_number(value) or name == "sampling"):
            raise TypeError(f"run_options.{name} is no number")
    if asked.noise_multiplier is not None or "noise_multiplier" in space.parameters:
        return asked, asked
    noise = claim["training"][0]["noise_multiplier"]
    return asked, dataclasses.replace(asked, noise_multiplier=noise)


def _reads_everything(hyperparameters: Mapping[str, Any]) -> optax.GradientTransformation:
    """An optimiser in the place of the one that is named, whose code is not here."""
    return optax.scale(math.prod(hyperparameters.values()))


def _training(claim: Mapping[str, Any], settings: list[dict]) -> dict[str, Any]:
    """`described.of_training` from words that are taken as they are, if they are words."""
    optimizer, records = claim["optimizer"], claim["training_records"]
    fixed = claim["run_options"]["sampling"] == run_shapes.FIXED
    return {
        "model": _words(claim["model"]),
        "optimizer": {name: _words(optimizer[name]) for name in optimizer},
        "trained_parameters": [_words(name) for name in claim["trained_parameters"]],
        "settings": settings,
        "training_records": {
            "public_size": records["public_size"],
            "size_bound": records["size_bound"],
            "number": records["number"] if fixed else None,
        },
    }


def versions_in(claim: Mapping[str, Any], names: Sequence[str] = VERSIONED) -> dict[str, str]:
    """The versions that a statement names, of these libraries.

    Raises:
      KeyError, TypeError: for one that is missing or no words.
    """
    return {name: _words(claim["library_versions"][name]) for name in names}


def _words(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("words are a number or a list")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("a word that is true or false is another")
    return value


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError("a public size is no whole number")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _drawn_from(space: Space, chosen: Mapping[str, Any]) -> bool:
    """Whether a search over the space can release these: a candidate of it, or the default."""
    if set(chosen) == set(space.parameters) and all(value is None for value in chosen.values()):
        return True
    return _is_public(chosen, space)


def _is_public(candidate: Mapping[str, Any], space: Space) -> bool:
    """Whether the space draws this candidate, lot size and steps rounded as they are used."""
    return set(candidate) == set(space.parameters) and all(
        _is_number(value) and _in_law(name, value, space.parameters[name])
        for name, value in candidate.items()
    )


def _in_law(name: str, value: float, law: Law) -> bool:
    if isinstance(law, Choice):
        return any(described.as_used({name: one})[name] == value for one in law.values)
    # exp(log(end)) may leave the range by a rounding.
    slack = 1e-12 * (abs(law.low) + abs(law.high))
    return law.low - slack <= value <= law.high + slack


def _sealed_files(path: str, claim: Mapping[str, Any]) -> Any:
    """Checks the hashes; returns what the file of hyperparameters holds."""
    seal = claim.get(SEAL)
    if not isinstance(seal, dict) or THIS_STATEMENT not in seal:
        raise NotVerified(f"it lacks {SEAL}, the hashes that bind a release's files together")
    of_files = {name: digest for name, digest in seal.items() if name != THIS_STATEMENT}
    unsealed = dict(claim) | {SEAL: of_files}
    if sha256(json_bytes(unsealed)) != seal[THIS_STATEMENT]:
        raise NotVerified("it was changed after it was written: its own hash is another one")
    folder, own = os.path.split(os.path.abspath(path))
    if HYPERPARAMETERS_FILE not in of_files:
        raise NotVerified(f"{SEAL} lacks {HYPERPARAMETERS_FILE}")
    for name in sorted(of_files):
        if name != os.path.basename(name) or name in ("", ".", ".."):
            raise NotVerified(f"{SEAL} names {_short(name)}, which is no file of a release")
        try:
            digest = _digest(os.path.join(folder, name))
        except (OSError, ValueError):
            raise NotVerified(f"{_short(name)} is not beside it, or cannot be read") from None
        if digest != of_files[name]:
            raise NotVerified(f"{_short(name)} is not the file that was released: another hash")
    stray = sorted(set(os.listdir(folder)) - {own, *of_files})
    if stray:
        raise NotVerified(
            f"{_short(stray[0])} lies beside it and is no part of the release: move it elsewhere"
        )
    return read_json(os.path.join(folder, HYPERPARAMETERS_FILE))


def _digest(path: str) -> str:
    with _regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: str) -> Any:
    """Reads a file of strict JSON: no name twice, no number that is not finite.

    Raises:
      ValueError: in one line, for anything else, a pipe, a folder or a file above
        `LARGEST_STATEMENT` bytes.
    """
    try:
        with _regular(path) as file:
            content = file.read(LARGEST_STATEMENT + 1)
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read ({error.strerror}): pass a release's guarantee.json"
        ) from None
    if len(content) > LARGEST_STATEMENT:
        raise ValueError(f"{path} is no guarantee.json: it has over {LARGEST_STATEMENT} bytes")
    try:
        return json.loads(
            content.decode(),
            object_pairs_hook=_no_name_twice,
            parse_float=_finite,
            parse_constant=_finite,
        )
    except RecursionError:
        raise ValueError(f"{path} is no guarantee.json: it is nested too deep") from None
    except ValueError as error:
        raise ValueError(f"{path} is no guarantee.json: {_short(error)}") from None


def _regular(path: str) -> Any:
    """Opens a regular file; a pipe would wait for its writer."""
    file = os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb", closefd=True)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ValueError(f"{path} is no file: pass a release's guarantee.json")
    return file


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    named = dict(pairs)
    if len(named) != len(pairs):
        raise ValueError("a name stands in it twice")
    return named


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is no finite number")
    return number


def _short(words: object) -> str:
    """Words of a file for a terminal: one line, no control characters, not too long."""
    text = " ".join(str(words).split())
    return ascii(text)[1:-1][:160]


def _written_by_another(claim: Mapping[str, Any]) -> str:
    """A hint, where the statement is not of this version."""
    versions = claim.get("library_versions")
    wrote = versions.get("dpjax") if isinstance(versions, dict) else None
    if wrote == dpjax.__version__:
        return ""
    return (
        f"; dpjax {_short(wrote)} wrote it, and this is {dpjax.__version__}: verify with that "
        "version"
    )
