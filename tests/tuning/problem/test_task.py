"""Tasks: records whose neighbours stay where they are, counts of booleans, words about a model."""

import dataclasses
import functools
import types
import warnings

import flat_call
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

from dpjax import accounting, data, models, pareto, training, tuning
from dpjax.tuning import Records
from dpjax.tuning.problem.task import check_neighbours, check_score, total_units
from experiments.benchmarks import h100

GENERATOR = np.random.default_rng(0)
INPUTS = GENERATOR.normal(size=(1000, 2)).astype(np.float32)
LABELS = GENERATOR.integers(0, 2, 1000)

ONE_RUN = dict(
    lot_size=10, steps=2, noise_multiplier=4.0, delta=1e-6, seed=1, optimizer=training.sgd()
)
SPACE = tuning.Space(learning_rate=0.5, clip_norm=1.0)
PROCEDURES = {
    "random_repetitions": functools.partial(
        flat_call.tune, tuning.RandomRepetitions, repetitions=accounting.Fixed(1), **ONE_RUN
    ),
    "doubling": functools.partial(
        flat_call.tune, tuning.Doubling, partitions=2, candidates=2, **ONE_RUN
    ),
    "exponential": functools.partial(
        flat_call.tune, tuning.Exponential, partitions=2, candidates=2, **ONE_RUN
    ),
    "permute_and_flip": functools.partial(
        flat_call.tune,
        tuning.Exponential,
        partitions=2,
        candidates=2,
        mechanism="permute_and_flip",
        **ONE_RUN,
    ),
    "threshold_stopping": functools.partial(
        flat_call.tune, tuning.ThresholdStopping, threshold=0.5, **ONE_RUN
    ),
}


def _parts(inputs=INPUTS, labels=LABELS, identified_by=None, identifiers=None):
    loaded = data.from_arrays(
        inputs,
        labels,
        public_size=900,
        size_bound=1000,
        classes=2,
        identified_by=identified_by,
        identifiers=identifiers,
    )
    return loaded.parts(0.3, key=1)


def _task(parts=None, **changes):
    parts = parts or _parts()
    return tuning.classification(nn.Dense(2), parts.train, parts.validation, **changes)


def _rows(split):
    return {row.tobytes() for row in split.inputs}


@pytest.mark.parametrize("identified_by", ["slot", "content", "identifiers"])
def test_what_stays_in_its_part_is_said_rightly(identified_by):
    """Removed: the records after it move up; 308 of the other 999 changed parts by slot."""
    names = np.arange(1000) if identified_by == "identifiers" else None

    def moved(change, inputs, others):
        kept = None if names is None else change(names)
        after = _parts(inputs, change(LABELS), identified_by, kept)
        assert after.train.stable_under_removal == before.train.stable_under_removal
        pairs = ((before.train, after.train), (before.validation, after.validation))
        return sum(len((_rows(old) - _rows(new)) & others) for old, new in pairs)

    before = _parts(INPUTS, LABELS, identified_by, names)
    others = {row.tobytes() for row in INPUTS[1:]}
    removed = moved(lambda rows: rows[1:], INPUTS[1:], others)
    assert (removed == 0) == before.train.stable_under_removal
    assert removed > 250 or identified_by != "slot"

    replacements = 0  # of 20 records, each by itself: how many changed parts with their value
    for place in range(20):
        inputs = INPUTS.copy()
        inputs[place] += 1.0
        changed = _parts(inputs, LABELS, identified_by, names)
        was = INPUTS[place].tobytes() in _rows(before.train)
        replacements += was != (inputs[place].tobytes() in _rows(changed.train))
    assert (replacements == 0) == before.train.stable_under_replacement


@pytest.mark.parametrize("name", PROCEDURES)
def test_poisson_lots_refuse_records_that_go_by_their_places(name):
    with pytest.raises(ValueError, match="identified_by='content'") as caught:
        PROCEDURES[name](_task(_parts(identified_by="slot")), SPACE)
    assert "\n" not in str(caught.value)


def test_record_types_that_do_not_say_so_count_as_unstable():
    parts = _parts()
    bare = [
        types.SimpleNamespace(inputs=part.inputs, labels=part.labels, public_size=10,
                              size_bound=1000)
        for part in (parts.train, parts.validation)
    ]  # fmt: skip
    task = tuning.classification(nn.Dense(2), *bare)
    for sampling in ("poisson", "fixed"):
        with pytest.raises(ValueError, match="stable_under_re"):
            check_neighbours(sampling, task.train)
    arrays = np.zeros((4, 1))
    check_neighbours("poisson", Records(arrays, 4, 4))
    for unsaid in (Records(arrays, 4, 4, identifiers=np.arange(4)), Records(arrays, 4, 4)):
        with pytest.raises(ValueError, match="stable_under_replacement=True"):
            check_neighbours("fixed", unsaid)
    with pytest.raises(ValueError, match="stable_under_removal=True"):
        check_neighbours("poisson", Records(arrays, 4, 4, identifiers=np.arange(4)))
    check_neighbours(
        "poisson",
        Records(arrays, 4, 4, identifiers=np.arange(4), stable_under_removal=True),
    )


NOT_BOOLEANS = {
    "a count": lambda params, example: 100 * (example[1] >= 0).astype(jnp.int32),
    "a share": lambda params, example: 0.5 * (example[1] >= 0),
    "a vector": lambda params, example: (example[1] >= 0)[None],
    "a pair": lambda params, example: (example[1] >= 0, example[1] >= 0),
    "nothing": lambda params, example: None,
}


@pytest.mark.parametrize("correct", NOT_BOOLEANS.values(), ids=NOT_BOOLEANS)
def test_what_is_no_boolean_scalar_is_refused_before_training(correct):
    def untouchable(*arguments):
        raise AssertionError("training was traced")

    task = dataclasses.replace(_task(), correct=correct, loss=untouchable)
    for run in PROCEDURES.values():
        with pytest.raises(ValueError, match="one boolean scalar") as caught:
            run(task, SPACE)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="one boolean scalar"):
        pareto.TrainedAccuracy(task, pareto.RunShapes(100), training.sgd(), classes=2)
    # Whoever counts without asking first meets it there.
    with pytest.raises(ValueError, match="one boolean scalar"):
        total_units(task, task.initial(jax.random.key(0)), task.validation.arrays)


def test_booleans_of_any_make_are_counted():
    task = dataclasses.replace(_task(), correct=lambda params, example: True)
    check_score(task)
    assert total_units(task, None, (INPUTS, LABELS)) == 1000


def test_candidates_side_by_side_share_what_scoring_takes_of_an_accelerator():
    """16 of them score 1,024 records at once, 64 a quarter of that; a CPU's take turns anyway."""
    task = _task()

    def pieces(width):
        mapped = training.Placement(width).mapped(
            lambda params: total_units(task, params, (INPUTS, LABELS)), (0,)
        )
        params = jax.vmap(task.initial)(training.candidate_keys(width, seed=0))
        text = str(jax.make_jaxpr(mapped)(params))
        return [rows for rows in (256, 64) if f"f32[{1000 // rows},{rows},2]" in text]

    assert pieces(64) == []
    with h100.traced():
        assert [pieces(width) for width in (16, 64, 256)] == [[], [256], [64]]


class LinenDropout(nn.Module):
    rate: float = 0.5

    @nn.compact
    def __call__(self, inputs, deterministic):
        return nn.Dense(2)(nn.Dropout(self.rate)(inputs, deterministic=deterministic))


class NnxNet(nnx.Module):
    def __init__(self, rngs, rate=0.0):
        self.dropout = nnx.Dropout(rate, rngs=rngs)
        self.last = nnx.Linear(2, 2, rngs=rngs)

    def __call__(self, inputs):
        return self.last(self.dropout(inputs))


@pytest.mark.parametrize(
    ("model", "draws"),
    [
        (LinenDropout(), True),
        (LinenDropout(0.0), False),
        (lambda rngs: NnxNet(rngs, 0.5), True),
        (lambda rngs: NnxNet(rngs), False),
        (nn.Dense(2), False),
        (models.functional(models.MLP((3,), 2), np.zeros(2, np.float32)), False),
    ],
)
def test_dropout_without_a_key_is_warned_of(model, draws):
    parts = _parts()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tuning.classification(model, parts.train, parts.validation)
    assert [("with_rng=True" in str(each.message)) for each in caught] == [True] * draws
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tuning.classification(model, parts.train, parts.validation, with_rng=True)


def _made(rngs):
    return NnxNet(rngs)


def test_a_model_made_by_a_lambda_goes_by_its_own_name():
    parts = _parts()
    for model in (lambda rngs: NnxNet(rngs), functools.partial(NnxNet, rate=0.0)):
        task = tuning.classification(model, parts.train, parts.validation)
        assert task.description == f"{__name__}.NnxNet"
    task = tuning.classification(_made, parts.train, parts.validation)
    assert task.description == f"{__name__}._made"


def test_a_model_that_is_made_already_goes_by_its_class():
    parts, made = _parts(), NnxNet(nnx.Rngs(0))
    task = tuning.classification(made, parts.train, parts.validation, initial=made)
    assert task.description == f"{__name__}.NnxNet"


def test_records_that_are_seen_in_both_parts_are_refused():
    """Parts compose in parallel: a record of both would pay for the selection and the training."""

    def task(train, validation):
        return tuning.Task(
            initial=lambda key: jnp.zeros(()),
            loss=lambda w, row: w * row[0],
            score=lambda w, row: w,
            train=tuning.Records((train, np.ones(len(train))), 400, 450),
            validation=tuning.Records((validation, np.ones(len(validation))), 400, 450),
            description="toy",
        )

    rows = np.arange(400.0)
    task(rows[:300], rows[300:])
    task(rows[::2], rows[1::2])
    for train, validation in ((rows, rows), (rows, rows[:100]), (rows[::2], rows[2::4])):
        with pytest.raises(ValueError, match="records are the same: pass disjoint ones"):
            task(train, validation)
    placed = jnp.asarray(rows)
    with pytest.raises(ValueError, match="records are the same: pass disjoint ones"):
        task(placed, placed)
    tokens = tuning.Records(np.zeros((9, 5), np.int32), 9, 12)
    with pytest.raises(ValueError, match="records are the same: pass disjoint ones"):
        tuning.next_token(None, tokens, tokens)
