"""Releases that an earlier version made and that today's has to verify: `tests/frozen/`.

  python tests/helpers/frozen.py          # writes those that are not there yet

A release is never made anew: what it states is what somebody holds. One a tuner and option: every
choice and flag of its fields, and what `tuning.tune` takes beside; what a tuner refuses has none.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import small_tasks
import tiny_tuners

from dpjax import accounting, bridges, federated, tuning

FOLDER = pathlib.Path(__file__).parents[1] / "frozen"
RUN = tuning.RunOptions(lot_size=8, steps=2, noise_multiplier=2.0)
USUAL = dict(run=RUN, delta=1e-6, seed=3)


def _users() -> tuning.Task:
    """The small task with three records a user."""
    task = tiny_tuners.task()

    def of(records: tuning.Records, size: int, first: int) -> tuning.Records:
        owners = first + np.arange(len(records.arrays[0])) // 3
        return tuning.Records.of_users(
            records.arrays, owners, most_records=3, public_size=size, size_bound=size
        )

    return dataclasses.replace(
        task, train=of(task.train, 10, 0), validation=of(task.validation, 5, 10)
    )


def _slots() -> tuning.Task:
    """Records that keep their places, as lots of fixed size need."""
    return small_tasks.linear(small_tasks.parts(40, apart=0.5, identified_by="slot"))


def _of_fields(cls: type) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each choice and flag of a tuner's fields that is not the default."""
    for field in dataclasses.fields(cls):
        for value in field.metadata.get("choices", ()):
            if value != field.default:
                yield f"{field.name}={value}", {field.name: value}
        if isinstance(field.default, bool) and field.name != "not_private":
            yield field.name, {field.name: not field.default}


def _shards(name: str) -> tuning.Release:
    """Trained by two shards and merged."""
    with tempfile.TemporaryDirectory() as folder:
        for shard in ((0, 2), (1, 2), (None, 2)):
            job = tuning.Job(folder=f"{folder}/job", shard=shard)
            result = tiny_tuners.run(name, **USUAL, job=job)
    return result.release


def _resumed(name: str) -> tuning.Release:
    """Stopped once its first candidates were trained, and taken up again."""

    class Stopped(BaseException):
        pass

    def stop(done: int, everything: int) -> None:
        if 0 < done < everything:
            raise Stopped

    with tempfile.TemporaryDirectory() as folder:
        try:
            given = dict(job=tuning.Job(folder=f"{folder}/job"), chunk_size=1)
            tiny_tuners.run(name, **USUAL, **given, progress=stop)
        except Stopped:
            pass
        return tiny_tuners.run(name, **USUAL, **given).release


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "calibrated": dict(run=dataclasses.replace(RUN, noise_multiplier=None), epsilon=12.0),
    "public validation": dict(validation_is_public=True),
    "automatic clipping": dict(run=dataclasses.replace(RUN, clipping="automatic")),
}


def _any_run(**changed: Any) -> tuning.Release:
    """Runs of any function, with scores of records apart."""
    given = dict(
        base=accounting.dp_sgd(0.1, 2.0, 10),
        score=bridges.CountedScore("disjoint", 50, noise=3.0),
        repetitions=accounting.AtMost(accounting.Geometric(mean=2), cap=3),
        delta=1e-6,
        seed=5,
    )
    space = bridges.Candidates(tiny_tuners.DRAWN, {"optimizer": ["sgd", "adam"]})
    run = lambda seed, hyperparameters: ({"w": np.ones(2)}, 9)  # noqa: E731
    return bridges.tune(run, space, **(given | changed)).release


def vote(rounds: int) -> federated.Outcome:
    """Three voters' choice, and what was trained after it."""
    rates = (0.1, 0.01, 1e-5)
    candidates = [{"learning_rate": rate, "decay": 1.0, "momentum": 0.0} for rate in rates]
    election = federated.Election.from_config(
        {"clients": 3, "votes": 1, "epsilon": 5.0, "missing-fraction": 0.34, "classes": 2}
        | {"candidates": json.dumps(candidates), "model": "logistic_regression"}
        | {"rounds": rounds, "input-shape": "3", "total-epsilon": 20.0}
    )
    params = np.zeros(election.model.dimension, np.float32) if rounds else None
    return federated.Outcome(election, 0, np.array([3, 1, 0]), 3, 0, params=params)


def cases() -> dict[str, Any]:
    """Name -> a function that makes the release; ValueError where it is refused."""
    found: dict[str, Any] = {}
    for name in tiny_tuners.NAMES:
        for option, given in OPTIONS.items():
            found[f"{name}, {option}"] = lambda name=name, given=given: (
                tiny_tuners.run(name, **(USUAL | given)).release
            )
        for option, fields in _of_fields(tuning.registered_tuners()[name]):
            found[f"{name}, {option}"] = lambda name=name, fields=fields: (
                tiny_tuners.run(name, **USUAL, tuner=tiny_tuners.tuner(name, **fields)).release
            )
        found[f"{name}, users"] = lambda name=name: (
            tiny_tuners.run(name, **USUAL, task=_users()).release
        )
        fixed = dataclasses.replace(RUN, sampling="fixed")
        found[f"{name}, fixed lots"] = lambda name=name, fixed=fixed: (
            tiny_tuners.run(name, **(USUAL | dict(run=fixed)), task=_slots()).release
        )
        found[f"{name}, shards"] = lambda name=name: _shards(name)
        found[f"{name}, resumed"] = lambda name=name: _resumed(name)
    found["any run, plain"] = _any_run
    found["any run, scored on training records"] = lambda: _any_run(
        score=bridges.CountedScore("training", 50, noise=3.0)
    )
    return found


def folder_of(name: str) -> pathlib.Path:
    """Where a case's release lies."""
    return FOLDER / name.replace(" ", "_").replace(",", "")


VOTES = {"a vote": 0, "a vote, then training": 2}
"""Rounds of training; these have no seed, and their server writes them."""


def main() -> None:
    """Writes the releases that are missing."""
    FOLDER.mkdir(exist_ok=True)
    for name, make in cases().items():
        if folder_of(name).exists():
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                make().save(folder_of(name), certificate=name.endswith("plain"))
        except (ValueError, TypeError) as error:
            print(f"{name}: refused: {str(error)[:160]}")
        else:
            print(name, flush=True)
    for name, rounds in VOTES.items():
        if not folder_of(name).exists():
            with tempfile.TemporaryDirectory() as run:
                federated.save_outcome(vote(rounds), pathlib.Path(run) / "run")
                shutil.copytree(pathlib.Path(run) / "run" / "release", folder_of(name))


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    main()
