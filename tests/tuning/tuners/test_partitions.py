"""Partitions move nobody else, utilities move by the stated units, noise scales come from them."""

import dataclasses
import itertools
import math
import warnings
from fractions import Fraction

import flax.linen as nn
import jax
import numpy as np
import pytest

from dpjax import accounting, data, training, tuning
from dpjax.data import splitting
from dpjax.tuning import Job, Records, RunOptions
from dpjax.tuning.problem.run_settings import run_settings
from dpjax.tuning.steps import Material, Problem
from dpjax.tuning.tuners import partitions
from dpjax.tuning.tuners.partition_counts import (
    EmptyPartitionWarning,
    check_partitions,
    partition_counts,
    partitioned,
)
from dpjax.tuning.tuners.partitions import AveragedUtility

GENERATOR = np.random.default_rng(0)
INPUTS = GENERATOR.normal(size=(90, 3)).astype(np.float32)
LABELS = (INPUTS[:, 0] > 0).astype(np.int32)
PARTITIONS = 4


def _parts(inputs=INPUTS, labels=LABELS, **options):
    loaded = data.from_arrays(inputs, labels, public_size=90, classes=2, size_bound=100, **options)
    return loaded.parts(0.3, key=1)


def _task(parts):
    return tuning.classification(nn.Dense(2), parts.train, parts.validation)


def _members(split, key=b"k"):
    """The set of records (as bytes) of every partition, in order."""
    order, sizes = splitting.partition_order(split.identifiers, PARTITIONS, key)
    cuts = np.split(order, np.cumsum(sizes)[:-1])
    return [[split.inputs[index].tobytes() for index in cut] for cut in cuts]


def test_partitions_are_disjoint_complete_and_keyed():
    split = _parts().train
    members = _members(split)
    assert sum(map(len, members)) == len(split.inputs)
    assert len(set(itertools.chain(*members))) == len(split.inputs)
    assert _members(split, b"k") == members != _members(split, b"other")


@pytest.mark.parametrize("identified_by", ["content", "slot"])
def test_a_record_removed_leaves_every_other_partition_as_it_was(identified_by):
    split = _parts(identified_by=identified_by).train
    whole = _members(split)
    for gone in (0, 17, len(split.inputs) - 1):
        keep = np.arange(len(split.inputs)) != gone
        less = _members(split.subset(keep, public_size=60, size_bound=100))
        differing = [j for j in range(PARTITIONS) if whole[j] != less[j]]
        assert len(differing) == 1
        lost = [row for row in whole[differing[0]] if row != split.inputs[gone].tobytes()]
        assert lost == less[differing[0]]  # the others stay, in their order


def test_a_removed_copy_of_a_record_moves_one_partition_too():
    """Equal records are told apart by counting; removing the first copy renumbers the others."""
    inputs = np.concatenate([np.tile(INPUTS[:1], (6, 1)), INPUTS])
    labels = np.concatenate([np.tile(LABELS[:1], 6), LABELS])
    split = data.from_arrays(inputs, labels, public_size=96, classes=2).train
    less = data.from_arrays(inputs[1:], labels[1:], public_size=96, classes=2).train
    differing = [a != b for a, b in zip(_members(split), _members(less), strict=True)]
    assert sum(differing) == 1


def test_a_replaced_value_keeps_its_partition_by_slot_and_moves_by_content():
    changed = INPUTS.copy()
    changed[5] += 1.0
    for identified_by, most in (("slot", 1), ("content", 2)):
        before, after = (
            data.from_arrays(
                inputs, LABELS, public_size=90, classes=2, identified_by=identified_by
            ).train
            for inputs in (INPUTS, changed)
        )
        moved = sum(
            a != b for a, b in zip(_members(before, b"8"), _members(after, b"8"), strict=True)
        )
        assert moved == most


@pytest.mark.parametrize(
    ("utility", "units", "sensitivity"),
    [
        # k, n, public?, stays?           k n  units of one record
        (AveragedUtility(5, 20, True), 100, 20),  # 1/k
        (AveragedUtility(5, 20, False), 100, 20),  # max(1/k, 1/n) = 1/k
        (AveragedUtility(50, 20, True), 1000, 20),  # 1/k
        (AveragedUtility(50, 20, False), 1000, 50),  # max(1/k, 1/n) = 1/n
        (AveragedUtility(50, 20, False, False), 1000, 70),  # 1/k + 1/n
        (AveragedUtility(5, 20, False, False), 100, 40),  # 2/k, the partition may change too
    ],
)
def test_sensitivity_in_units_and_every_noise_scale_asks_it(utility, units, sensitivity):
    assert utility.units == units and utility.sensitivity == sensitivity
    k, n = utility.partitions, utility.validation_size
    assert Fraction(sensitivity, units) >= Fraction(1, k)
    if not utility.validation_is_public:
        assert Fraction(sensitivity, units) >= Fraction(1, n)
    epsilon = 0.1
    assert utility.threshold_scale(epsilon) == 2 * sensitivity / Fraction(epsilon)
    assert utility.query_scale(epsilon) == 4 * sensitivity / Fraction(epsilon)
    assert utility.exponential_rate(epsilon) == Fraction(epsilon) / (2 * sensitivity)


def test_sensitivity_bounds_every_neighbour_of_small_count_tables():
    """Exhaustive: k = 3 models, n = 2 validation records, every table and every neighbour."""
    utility = AveragedUtility(3, 2)
    largest = 0
    for right in itertools.product([0, 1], repeat=6):
        table = np.array(right).reshape(3, 2)  # model j right on record i?
        whole = utility.total(table.sum(axis=1)[None])[0]
        for record in range(2):  # a validation record is removed: all models lose its column
            less = utility.total(np.delete(table, record, axis=1).sum(axis=1)[None])[0]
            largest = max(largest, abs(whole - less))
        for model in range(3):  # a training record is removed: one model answers anew
            for row in itertools.product([0, 1], repeat=2):
                other = table.copy()
                other[model] = row
                largest = max(largest, abs(whole - utility.total(other.sum(axis=1)[None])[0]))
    assert largest == utility.sensitivity == 3


def test_counts_beyond_the_public_size_do_not_enter():
    utility = AveragedUtility(2, 10, validation_is_public=True)
    assert utility.total(np.array([[12, 3], [10, 10]])) == [13, 20]


def test_thresholds_are_exact_decimals():
    utility = AveragedUtility(10, 10)
    assert [utility.threshold(level, 0.1) for level in (1, 3, 7, 10)] == [10, 30, 70, 100]
    assert utility.threshold(1, 0.015) == 2  # 1.5 units: the least whole number that reaches it
    assert utility.threshold(2, 0.01, 0.5) == 52


def test_noise_warning_names_what_would_not():
    assert AveragedUtility(24, 288).noise_warning(16, 1.0) is None
    line = AveragedUtility(10, 288).noise_warning(100, 0.1)
    assert "18" in line and "partitions >= 185" in line and "epsilon_0 >= 1.85" in line
    assert accounting.selection_noise_ratio(100, 185, 0.1) <= 1
    assert accounting.selection_noise_ratio(100, 184, 0.1) > 1
    few = AveragedUtility(1000, 20).noise_warning(16, 0.1)
    assert "validation records" in few  # more partitions alone would not help


@pytest.mark.parametrize(
    ("change", "message"),
    [(dict(partitions=0), "partitions=0"), (dict(validation_size=0), "validation_size=0")],
)
def test_bad_utilities_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        AveragedUtility(**(dict(partitions=2, validation_size=3) | change))


def test_partitions_need_records_and_identifiers():
    task = _task(_parts())
    for wrong in (0, 64):
        with pytest.raises(ValueError, match="public number of training records, 63"):
            partitioned(task.train, wrong, b"k")
    bare = Records((INPUTS,), public_size=90, size_bound=90)
    with pytest.raises(ValueError, match="identifiers"):
        check_partitions(bare, 3)
    with pytest.raises(ValueError, match="one for each record"):
        Records((INPUTS,), public_size=90, size_bound=90, identifiers=np.arange(3))


def _counts(parts, partition_number=PARTITIONS, lots=None, rate=0.5):
    """Counts of two candidates on every partition, keys as always the same."""
    task = _task(parts)
    (setting,) = run_settings(
        Problem.of(task, tuning.Space(clip_norm=1.0), RunOptions(20, 6, None, 1.0))
    )
    lots = lots or partitions.partition_lots(
        setting, task.train.public_size, partition_number, partitions.REHEARSAL
    )
    return partition_counts(
        Material(task, training.sgd(), ("learning_rate",)),
        partitioned(task.train, partition_number, b"k"),
        lots,
        6,
        {"learning_rate": np.array([rate, 2 * rate])},
        training.candidate_keys(2 * partition_number, seed=1),
        chunk_size=5,
        job=Job(),
    )


def _replaced(parts, **change):
    return data.Parts(
        **({"train": parts.train, "validation": parts.validation} | change), test=None
    )


def _without(split, gone):
    keep = np.arange(len(split.inputs)) != gone
    return split.subset(keep, public_size=split.public_size, size_bound=split.size_bound)


def test_on_real_trainings_a_record_moves_its_own_partition_only():
    parts = _parts()
    train = parts.train
    whole = _counts(parts)
    assert whole.shape == (2, PARTITIONS) and whole.max() > 0.6 * len(parts.validation.inputs)
    order, sizes = splitting.partition_order(train.identifiers, PARTITIONS, b"k")
    home = np.repeat(np.arange(PARTITIONS), sizes)
    changed = 0
    for position in (0, len(order) // 2, len(order) - 1):
        record = order[position]
        inputs = train.inputs.copy()
        inputs[record] = 1e4  # huge: its own partition learns something else
        for neighbour in (dataclasses.replace(train, inputs=inputs), _without(train, record)):
            moved = _counts(_replaced(parts, train=neighbour))
            others = np.arange(PARTITIONS) != home[position]
            np.testing.assert_array_equal(moved[:, others], whole[:, others])
            changed += np.any(moved[:, ~others] != whole[:, ~others])
    assert changed > 0


def test_on_real_trainings_a_validation_record_moves_every_count_by_one_at_most():
    parts = _parts()
    whole = _counts(parts)
    less = _counts(_replaced(parts, validation=_without(parts.validation, 3)))
    assert np.all((whole - less >= 0) & (whole - less <= 1)) and np.any(whole != less)


def test_empty_partitions_score_zero_and_warn_the_curator():
    parts = _parts()
    with pytest.warns(EmptyPartitionWarning, match="curator"):
        counts = _counts(parts, partition_number=60)
    _, sizes = splitting.partition_order(parts.train.identifiers, 60, b"k")
    assert np.all(counts[:, sizes == 0] == 0) and np.any(counts[:, sizes > 0] > 0)


def test_models_that_are_not_finite_score_zero():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert np.all(_counts(_parts(), rate=math.inf) == 0)


def _setting(**options):
    task = _task(_parts())
    (setting,) = run_settings(
        Problem.of(task, tuning.Space(clip_norm=1.0), RunOptions(20, 6, None, 3.0))
    )
    return setting, task.train.public_size


def test_a_rehearsal_meets_the_noise_of_the_final_averaged_gradient():
    setting, size = _setting()
    lots = partitions.partition_lots(setting, size, PARTITIONS, partitions.REHEARSAL)
    final = setting.noise_multiplier / setting.lot_size
    assert math.isclose(lots.noise_multiplier / lots.lot_size, final)
    assert lots.lot_size == 16 and lots.clips
    assert lots.lots.sampling_probability == 1.0  # 16 of 15.75 records
    plain = partitions.partition_lots(setting, size, PARTITIONS, partitions.NON_PRIVATE)
    assert plain.noise_multiplier == 0 and not plain.clips
    for word in ("private", "secret"):
        with pytest.raises(ValueError, match="pass one of rehearsal, non_private$"):
            partitions.partition_lots(setting, size, PARTITIONS, word)


def test_a_range_of_rows_trains_as_those_rows_alone():
    """`first_record`: NaN rows outside the range have no influence; an empty range stays put."""
    rows = 12
    inputs = GENERATOR.normal(size=(rows, 2)).astype(np.float32)
    config = training.TrainConfig(
        loss_fn=lambda params, example: ((example[0] @ params["w"]) - example[1]) ** 2,
        lots=training.PoissonLots(6, 0.5, 6),
        steps=5,
        expected_lot_size=3,
        optimizer=training.sgd(),
    )
    train = jax.jit(training.make_train(config))
    start = {"w": np.ones(2, np.float32)}
    given = {"clip_norm": 1.0, "noise_multiplier": 0.5, "learning_rate": 0.1}
    key = jax.random.key(3)
    own = training.padded((inputs[4:9], inputs[4:9, 0]), 6)
    alone = train(key, given, start, own, 5)
    hidden = np.full_like(inputs, np.nan)
    hidden[4:9] = inputs[4:9]
    ranged = train(key, given, start, (hidden, hidden[:, 0]), 5, 4)
    np.testing.assert_allclose(ranged["w"], alone["w"], rtol=1e-6)
    nothing = {"noise_multiplier": 0.0}
    empty = train(key, given | nothing, start, (hidden, hidden[:, 0]), 0, rows)
    np.testing.assert_array_equal(empty["w"], start["w"])
    beyond = train(key, given | nothing, start, (inputs, inputs[:, 0]), 5, rows)
    np.testing.assert_array_equal(beyond["w"], start["w"])
    with pytest.raises(ValueError, match="first_record"):
        training.make_train(config)(key, given, start, (inputs, inputs[:, 0]), 2, rows + 1)
    with pytest.raises(ValueError, match="has 2 rows"):
        training.make_train(config)(key, given, start, (inputs, inputs[:, 0]), 3, rows - 2)


@pytest.mark.parametrize("public", [False, True])
@pytest.mark.parametrize("size", [5, 5000])
def test_advice_against_noise_names_validation_records_where_they_count(public, size):
    """Not where they are public, and not where there are enough of them."""
    utility = AveragedUtility(4, size, validation_is_public=public)
    words = utility.noise_warning(32, 0.1)
    assert ("validation records" in words) == (not public and size == 5)
    assert "partitions" in words and AveragedUtility(4000, 5000).noise_warning(4, 1.0) is None


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize(
    "bad",
    [3, {"learning_rate": 0.5}, {"learning_rate": 9.0, "clip_norm": 1.0},
     {"learning_rate": 0.5, "clip_norm": 0.0}, {"learning_rate": "fast", "clip_norm": 1.0}],
)  # fmt: skip
def test_each_listed_candidate_is_one_that_the_space_draws(place, bad):
    good = {"learning_rate": 0.5, "clip_norm": 1.0}
    space = tuning.Space(learning_rate=tuning.Uniform(0.1, 1.0), clip_norm=1.0)
    parts, options = _parts(), RunOptions(lot_size=8, steps=2, noise_multiplier=2.0)
    problem = Problem.of(_task(parts), space, options, training.sgd(), None, 1e-5, False)
    listed = [good, good, good]
    assert tuning.Exponential(candidates=listed).plan(problem).number == 3
    listed[place] = bad
    with pytest.raises(ValueError, match="candidate") as caught:
        tuning.Exponential(candidates=listed).plan(problem)
    assert "\n" not in str(caught.value)
