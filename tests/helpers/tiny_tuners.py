"""Every tuner of the library on a small task, in seconds: what tests of all of them run.

A tuner that is registered is here without an edit: fields that stand in `SMALL` are small, all
others as they are by default. Where a tuner refuses a space that draws, the numbers are fixed.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from typing import Any

import small_tasks

from dpjax import accounting, training, tuning
from experiments.figures.leaderboard.subset_tuning import SubsetTuning

SMALL = dict(
    repetitions=accounting.Fixed(2),
    candidates=2,
    partitions=2,
    selection_epsilon=1.0,
    granularity=0.25,
    score_noise=3.0,
    stage_noise=(9.0, 6.0),
    threshold=0.0,
    halting_probability=0.3,
    decays=(0.5,),
    tails=(),
    moments=(0.5,),
)
"""Values of fields, of whichever tuner has them."""

DRAWN = tuning.Space(learning_rate=tuning.LogUniform(0.1, 1.0), clip_norm=1.0)
FIXED = tuning.Space(learning_rate=0.5, clip_norm=1.0)
USUAL = dict(
    run=tuning.RunOptions(lot_size=8, steps=2, noise_multiplier=2.0),
    optimizer=training.sgd(),
    delta=1e-3,
)
"""Arguments of `tuning.tune`."""

NAMES = sorted(
    name
    for name, cls in tuning.registered_tuners().items()
    if cls.__module__.startswith("dpjax.") or cls is SubsetTuning
)
"""Of the library's tuners and one that stands outside, not of those that other tests register."""


def tuner(name: str, **changed: Any) -> Any:
    """A small tuner, with other values of some of its fields."""
    cls = tuning.registered_tuners()[name]
    has = {field.name for field in dataclasses.fields(cls)}
    return cls(**{field: value for field, value in SMALL.items() if field in has} | changed)


@functools.cache
def space_of(name: str) -> tuning.Space:
    """What it searches: a space that draws, where it takes one."""
    try:
        facts(name, space=DRAWN)
    except ValueError:
        return FIXED
    return DRAWN


class Planned(Exception):
    """The procedure would begin."""


@dataclasses.dataclass(frozen=True)
class Asks(tuning.Job):
    """A job that draws nothing: it asks what the draw would be bound to."""

    def once(self, facts: Any, draw: Any, decide: Any) -> Any:
        raise Planned(facts())


def facts(name: str, **changed: Any) -> dict[str, Any]:
    """What the folder of a tuner would be bound to; arguments of `run`. Nothing is drawn."""
    try:
        run(name, **changed, job=Asks())
    except Planned as planned:
        return planned.args[0]
    raise AssertionError(f"{name} draws elsewhere than in Job.once")


def task() -> tuning.Task:
    """40 records, 27 of them for training, half a deviation apart: no score is perfect."""
    return small_tasks.linear(small_tasks.parts(40, apart=0.5))


def run(name: str, **changed: Any) -> Any:
    """`tuning.tune` of a small tuner; arguments of it, and `task`, `space` or `tuner`."""
    given = {"task": None, "space": None, "tuner": None} | USUAL | changed
    of = given.pop("task") or task()
    which = given.pop("tuner") or tuner(name)
    space = given.pop("space") or space_of(name)
    with warnings.catch_warnings():
        # Seeds, empty partitions, loud noise and untrained releases are what is small here.
        warnings.simplefilter("ignore", UserWarning)
        return tuning.tune(of, space, which, **given)
