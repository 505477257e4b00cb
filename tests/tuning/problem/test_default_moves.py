"""Public defaults: each number they are made of counts, alone and by its own name."""

import dataclasses

import small_tasks

from dpjax import training, tuning
from dpjax.tuning.problem.public_defaults import defaults_of

GIVEN = dict(epsilon=2.0, delta=1e-5, lot_size=13, steps=17)


def _default(task=None, **changed):
    given = GIVEN | changed
    return defaults_of(
        task or small_tasks.linear(), given.pop("epsilon"), given.pop("delta"), **given
    )


def test_a_default_is_for_the_lots_and_the_steps_that_are_given():
    own = _default()
    assert (own.run.lot_size, own.run.steps) == (13, 17)
    for field, value in GIVEN.items():
        other = value + 4 if isinstance(value, int) else 1.5 * value
        assert _default(**{field: other}) != own, field
    usual = _default(lot_size=None, steps=None)
    assert usual.run.lot_size != 13 and usual.run.steps != 17
    for field in ("lot_size", "steps"):
        one = _default(**{field: None})
        assert (one.run.lot_size == 13) == (field == "steps")
        assert (one.run.steps == 17) == (field == "lot_size")


def test_a_default_is_for_the_public_size_and_the_inputs_of_a_task():
    own = _default()
    task = small_tasks.linear()
    train = dataclasses.replace(task.train, public_size=task.train.public_size // 2)
    assert _default(dataclasses.replace(task, train=train)) != own
    assert _default(small_tasks.linear(small_tasks.parts(features=5))) != own


def test_what_a_caller_says_beside_it_stays():
    optimizer = training.momentum()
    task, space, run = tuning.Untuned.default(
        small_tasks.linear(), tuning.RunOptions(lot_size=13, steps=17), 2.0, 1e-5, optimizer
    )
    assert (run.lot_size, run.steps) == (13, 17)
    assert dataclasses.replace(_default().run, lot_size=13, steps=17) == run
    assert space.describe() == _default().space().describe()
