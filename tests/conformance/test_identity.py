"""What a folder is bound to: whatever differs, of every tuner and bridge, it is refused.

Cases are made from what is bound: each key of an identity, each field of what a caller passes. A
new key is tested as it is; a new field fails here until it differs in a case, or is free by name.
"""

import dataclasses
import inspect
import json

import jax
import numpy as np
import optax
import pytest
import tiny_tuners
from runs_elsewhere import model_and_count

from dpjax import accounting, bridges, training, tuning
from dpjax.tuning import Job
from dpjax.tuning.job import DRAWN_FILE, IDENTITY, read_arrays

BRIDGE = "bridges.tune"
NAMES = [*tiny_tuners.NAMES, BRIDGE]

SPACE = tuning.Space(rate=tuning.Uniform(0.0, 1.0))
BRIDGED = dict(
    run=model_and_count,
    space=SPACE,
    base=accounting.gaussian(2.0),
    score=bridges.CountedScore("disjoint", 100, noise=3.0),
    repetitions=accounting.Fixed(3),
)


def _facts_of_bridge(**changed):
    given = BRIDGED | changed
    try:
        bridges.tune(given.pop("run"), given.pop("space"), job=_Asks(folder="nowhere"), **given)
    except tiny_tuners.Planned as planned:
        return planned.args[0]


class _Asks(Job):
    """A job that draws nothing, of the kind that bridges take."""

    once = tiny_tuners.Asks.once

    def __eq__(self, other):
        return True


def facts(name, **changed):
    """What its folder would be bound to."""
    return _facts_of_bridge(**changed) if name == BRIDGE else tiny_tuners.facts(name, **changed)


@pytest.fixture(scope="module", params=NAMES)
def bound(request):
    """A name, and what its folder is bound to as usual."""
    return request.param, facts(request.param)


# ---- every key of an identity, in that key alone


class Killed(Exception):
    """Stands for the end of the process."""


def _killed(_):
    raise Killed


def _begun(folder, known, *, finished):
    job = Job(folder=str(folder))
    if finished:
        assert job.once(lambda: known, dict, lambda _: {"found": np.arange(3)})
        return
    with pytest.raises(Killed):
        job.once(lambda: known, dict, _killed)


@pytest.mark.parametrize("finished", [False, True])
def test_a_folder_of_which_one_key_differs_is_refused(bound, finished, tmp_path):
    _, known = bound
    _begun(tmp_path / "work", known, finished=finished)

    def refused(facts, key, label=""):
        job = Job(folder=str(tmp_path / "work"), label=label)
        with pytest.raises(ValueError, match="was begun with other data or settings") as caught:
            job.once(lambda: facts, dict, _killed)
        assert f"({key}): pass" in str(caught.value) and "\n" not in str(caught.value)

    for key, value in known.items():
        refused(known | {key: [value, "another"]}, key)
        refused({one: known[one] for one in known if one != key}, key)
    refused(known | {"a new key": 1}, "a new key")
    refused(known, "flags", label="another")
    # Of several that differ all are named, whichever come first.
    first, *_, last = known
    for pair in ((first, last), (last, first)):
        refused(known | dict.fromkeys(pair, "another"), f"{first}, {last}")
    # As it was begun it goes on.
    if finished:
        again = Job(folder=str(tmp_path / "work")).once(lambda: known, dict, _killed)
        np.testing.assert_array_equal(again["found"], np.arange(3))
    else:
        with pytest.raises(Killed):
            Job(folder=str(tmp_path / "work")).once(lambda: known, dict, _killed)


def test_the_identity_in_the_file_is_what_was_bound(bound, tmp_path):
    _, known = bound
    _begun(tmp_path / "work", known, finished=False)
    kept = read_arrays(str(tmp_path / "work" / DRAWN_FILE), "")
    assert json.loads(kept[IDENTITY].tobytes()).keys() == known.keys() | {"flags"}


# ---- every field of what a caller passes

TASK, RUN = tiny_tuners.task(), tiny_tuners.USUAL["run"]


def _task(**changed):
    return dict(task=dataclasses.replace(TASK, **changed))


def _records(part, **changed):
    return _task(**{part: dataclasses.replace(getattr(TASK, part), **changed)})


def _run(**changed):
    return dict(run=dataclasses.replace(RUN, **changed))


def _halved_rate(hyperparameters):
    return optax.sgd(0.5 * hyperparameters["learning_rate"])


def _fixed_lots():
    parts = {
        part: dataclasses.replace(getattr(TASK, part), stable_under_replacement=True)
        for part in ("train", "validation")
    }
    return _task(**parts) | _run(sampling="fixed")


OF_A_RUN = dict(
    lot_size=_run(lot_size=9),
    steps=_run(steps=3),
    epochs=_run(steps=None, epochs=2.0),
    noise_multiplier=_run(noise_multiplier=2.5),
    sampling=_fixed_lots(),
    clipping=_run(clipping=training.AutomaticClipping()),
    bands=_run(bands=2),
    stages=_run(stages=training.Stages((0.5, 0.5))),
    compute_dtype=_run(compute_dtype="bfloat16"),
)
OF_A_TASK = dict(
    initial=_task(initial=lambda key: jax.tree.map(lambda leaf: leaf + 1, TASK.initial(key))),
    loss=_task(loss=lambda params, example: 2.0 * TASK.loss(params, example)),
    correct=_task(correct=lambda params, example: ~TASK.correct(params, example)),
    score=_task(correct=None, score=lambda params, example: 0.5 * TASK.correct(params, example)),
    train=_records("train", arrays=(TASK.train.arrays[0] + 1, TASK.train.arrays[1])),
    validation=_records(
        "validation", arrays=(TASK.validation.arrays[0], 1 - TASK.validation.arrays[1])
    ),
    trainable=_task(trainable={"kernel": True, "bias": False}),
    with_rng=_task(
        with_rng=True,
        loss=lambda params, example, key: (
            TASK.loss(params, example) + 0.0 * jax.random.uniform(key)
        ),
    ),
    average=_task(average=training.ExponentialAverage(0.5)),
    loss_reads=_task(
        loss_reads=("learning_rate",),
        loss=lambda params, example, read: read["learning_rate"] * TASK.loss(params, example),
    ),
    description=_task(description="another model"),
)
OF_RECORDS = dict(
    arrays=lambda part: OF_A_TASK[part],
    public_size=lambda part: _records(part, public_size=getattr(TASK, part).public_size - 1),
    size_bound=lambda part: _records(part, size_bound=getattr(TASK, part).size_bound + 1),
    identifiers=lambda part: _records(
        part, identifiers=getattr(TASK, part).identifiers[::-1].copy()
    ),
)
OF_TUNE = dict(
    space=dict(space=tuning.Space(learning_rate=tuning.LogUniform(0.1, 2.0), clip_norm=1.0)),
    optimizer=dict(optimizer=_halved_rate),
    validation_is_public=dict(validation_is_public=True, tuner=dict(score_noise=None)),
    seed=dict(seed=3),
)
CASES = (
    {f"run.{name}": case for name, case in OF_A_RUN.items()}
    | {f"task.{name}": case for name, case in OF_A_TASK.items()}
    | {
        f"{part}.{name}": case(part)
        for part in ("train", "validation")
        for name, case in OF_RECORDS.items()
    }
    | OF_TUNE
)
"""Field -> what of the usual arguments of `tune` is replaced, so that this field differs."""

FREE = {
    "epsilon": "decides the noise multiplier, which is in the settings",
    "delta": "as epsilon",
    "chunk_size": "results differ by rounding",
    "progress": "looks on",
    "job": "its label is bound, above; the rest is where and when",
    "tuner": "its fields are below",
    "run": "its fields are here",
    "task": "its fields are here",
    "task.classifier": "what it weighs is in the loss and in the score",
    "task.targets": "its map is in the loss and in the score",
    "task.constant_score": "for the curator's warnings alone",
    "task.fits": "refuses labels",
    "train.stable_under_replacement": "refuses, or is in the settings",
    "validation.stable_under_replacement": "refuses, or is in the settings",
    "train.stable_under_removal": "refuses",
    "validation.stable_under_removal": "refuses",
}
"""What decides neither a draw nor what is trained from it, and why."""


def test_every_field_is_a_case_or_free():
    fields = list(inspect.signature(tuning.tune).parameters)
    for name, cls in (("run", tuning.RunOptions), ("task", tuning.Task)):
        fields += [f"{name}.{field.name}" for field in dataclasses.fields(cls)]
    for part in ("train", "validation"):
        fields += [f"{part}.{field.name}" for field in dataclasses.fields(tuning.Records)]
    assert sorted(fields) == sorted(CASES.keys() | FREE.keys())


def _of(name, **fields):
    """A tuner whose K is 1: what is bound holds prices, and those of one run are quick."""
    has = {field.name for field in dataclasses.fields(tuning.registered_tuners()[name])}
    fields = {"repetitions": accounting.Fixed(1)} | fields
    return tiny_tuners.tuner(name, **{key: fields[key] for key in fields.keys() & has})


def _changed(name, case):
    given = dict(task=TASK) | case
    return facts(name, **(given | {"tuner": _of(name, **case.get("tuner", {}))}))


ONLY = {
    "validation.identifiers": lambda name, known: False,
    "validation_is_public": lambda name, known: name != "untuned",
}
"""Which tuners read a field, where not all do."""


@pytest.fixture(scope="module")
def usual():
    """What each tuner's folder is bound to, of the task of the cases."""
    return {name: _changed(name, {}) for name in tiny_tuners.NAMES}


@pytest.mark.parametrize("field", CASES)
def test_a_folder_is_bound_to_every_field(field, usual):
    taken, apart = [], []
    for name, known in usual.items():
        try:
            changed = _changed(name, CASES[field])
        except ValueError:
            continue  # It takes no such value: nothing is drawn.
        taken.append(name)
        if changed != known:
            apart.append(name)
    if field in ONLY:
        taken = [name for name in taken if ONLY[field](name, usual[name])]
    assert apart == taken and (taken or field == "validation.identifiers")


@dataclasses.dataclass(frozen=True)
class _ClipsBy(training.ClipRule):
    """A rule of somebody's own, whose code is edited and whose words are not."""

    name = "edited"
    factor = 1.0
    leaves = False

    def groups(self, names):
        if not self.leaves:
            return super().groups(names)
        return training.PerLeafClipping().groups(names)

    def divisor(self, norm):
        return self.factor * norm + 0.1


@dataclasses.dataclass(frozen=True)
class _AveragesBy:
    words = "an average of somebody's own"
    share = 0.5

    def share_of_newest(self, number, total):
        return jax.numpy.float32(self.share)


def _edited_code(kind, changed):
    return dataclasses.dataclass(frozen=True)(type(kind.__name__, (kind,), changed))()


EDITED = {
    "a divisor": [_run(clipping=_edited_code(_ClipsBy, {"factor": one})) for one in (1.0, 2.0)],
    "groups": [_run(clipping=_edited_code(_ClipsBy, {"leaves": one})) for one in (False, True)],
    "an average": [_task(average=_edited_code(_AveragesBy, {"share": one})) for one in (0.5, 0.9)],
    "an average that words round": [
        _task(average=training.ExponentialAverage(one)) for one in (0.9999, 0.99990001)
    ],
}


@pytest.mark.parametrize("edited", EDITED)
def test_a_folder_is_bound_to_the_code_of_a_rule_with_the_same_words(edited):
    """Candidates of one selection are trained alike, before a stop and after it."""
    name = "random_repetitions"
    one, again, other = (_changed(name, EDITED[edited][which]) for which in (0, 0, 1))
    assert one == again and one != other
    (key,) = [key for key in one if one[key] != other[key]]
    assert key in ("clipping", "average")


def _others(value):
    """Values of the same kind."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, accounting.RepetitionLaw):
        return [accounting.Fixed(5)]
    if isinstance(value, str):
        return ["segments", "non_private", "free", "all", "quality", "permute_and_flip"]
    if isinstance(value, tuple):
        return [tuple(0.9 * one for one in value), (0.3,)]
    return [3, 0.35, 2.5, 0.05]


CANNOT = {"not_private": "noise 0 alone", "hits": "with segments alone", "adapted": "one name here"}
CANNOT |= {"extrapolated": "one name here", "stage_shares": "not beside stage_noise"}
FIELDS = [
    (name, field.name)
    for name in tiny_tuners.NAMES
    for field in dataclasses.fields(tuning.registered_tuners()[name])
    if field.name not in CANNOT
]


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_a_folder_is_bound_to_every_field_of_its_tuner(name, field, usual):
    value = getattr(_of(name), field)
    accepted = 0
    for other in _others(value):
        if other == value:
            continue
        try:
            changed = _changed(name, dict(tuner={field: other}))
        except (ValueError, TypeError):
            continue
        accepted += 1
        assert changed != usual[name], (field, other)
    assert accepted


# ---- of runs of other libraries


def _edited(seed, hyperparameters):
    return model_and_count(seed, hyperparameters)[0], 50


def _write(model, path):
    with open(path, "w") as file:
        file.write(str(model))


def _counted(**changed):
    return dict(score=dataclasses.replace(BRIDGED["score"], **changed))


OF_BRIDGE = {
    "run": dict(run=_edited),
    "space": dict(space=tuning.Space(rate=tuning.Uniform(0.0, 2.0))),
    "base": dict(base=accounting.gaussian(3.0)),
    "score.records": _counted(records="training"),
    "score.public_size": _counted(public_size=101),
    "score.noise": _counted(noise=4.0),
    "repetitions": dict(repetitions=accounting.Fixed(4)),
    "delta": dict(delta=1e-6),
    "model": dict(model="another"),
    "default": dict(default={"w": np.zeros(2)}),
    "save_model": dict(save_model=_write),
    "model_file": dict(save_model=_write, model_file="other"),
    "seed": dict(seed=2),
    "ledger": dict(ledger=bridges.Ledger("nowhere/mine", "mine", np.ones(3))),
}
FREE_OF_BRIDGE = {"score", "executor", "on_outcome", "job"}


def test_a_bridges_folder_is_bound_to_every_argument():
    fields = [*inspect.signature(bridges.tune).parameters]
    fields += [f"score.{field.name}" for field in dataclasses.fields(bridges.CountedScore)]
    assert sorted(fields) == sorted(OF_BRIDGE.keys() | FREE_OF_BRIDGE)
    known = facts(BRIDGE)
    found = {name: facts(BRIDGE, **case) for name, case in OF_BRIDGE.items()}
    assert [name for name, one in found.items() if one == known] == []
    assert found["save_model"] != found["model_file"]
    # Every key of the identity is moved by one of them.
    moved = {key for one in found.values() for key in one if one[key] != known[key]}
    assert moved == known.keys()


def test_a_bridges_folder_is_bound_to_the_records_of_its_ledger():
    """To which they are, not only to whether they are noted."""
    known = [
        facts(BRIDGE, ledger=bridges.Ledger("nowhere/mine", "mine", records))
        for records in (np.ones(3), np.array([1.0, 1.0, 2.0]))
    ]
    assert known[0] != known[1]


OF_A_JOB = dict(placement="vmap", shard=(0, 2), checkpoint_seconds=1.0, micro_batch_size=4,
    stream_bytes=9, check_contributions=2)  # fmt: skip
"""What places trainings, and is no business of runs that are not ours."""


def test_a_bridges_job_is_refused_for_every_field_that_places_trainings(tmp_path):
    fields = {field.name for field in dataclasses.fields(Job)}
    assert fields == OF_A_JOB.keys() | {"folder", "label"}
    for field, value in OF_A_JOB.items():
        job = Job(folder=str(tmp_path / "work"), **{field: value})
        with pytest.raises(ValueError, match="with folder and label alone") as caught:
            bridges.tune(**BRIDGED, job=job)
        assert "\n" not in str(caught.value) and not (tmp_path / "work").exists()
