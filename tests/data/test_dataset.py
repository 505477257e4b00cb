"""Splits, their public numbers, and the parts a data set is divided into."""

import dataclasses

import numpy as np
import pytest

from dpjax.data import dataset, splitting


def make_split(count=1000, public_size=None, size_bound=None):
    return dataset.Split(
        inputs=np.arange(count * 2, dtype=np.float32).reshape(count, 2),
        labels=(np.arange(count) % 3).astype(np.int32),
        public_size=count if public_size is None else public_size,
        size_bound=count if size_bound is None else size_bound,
        identifiers=splitting.slot_identifiers(count),
    )


def make_dataset(**changes):
    arguments = {
        "name": "toy",
        "description": "a toy",
        "classes": 3,
        "train": make_split(),
        "test": make_split(50),
    }
    return dataset.Dataset(**{**arguments, **changes})


def test_parts_are_disjoint_and_complete():
    split = make_split()
    train, validation = dataset.split_train_validation(split, 0.2, b"key")
    assert not set(train.identifiers) & set(validation.identifiers)
    assert sorted([*train.identifiers, *validation.identifiers]) == list(range(1000))
    for part in (train, validation):
        np.testing.assert_array_equal(part.inputs, split.inputs[part.identifiers])
        np.testing.assert_array_equal(part.labels, split.labels[part.identifiers])


def test_public_sizes_are_nominal_and_do_not_depend_on_the_records():
    few = make_split(990, public_size=1000, size_bound=1100)
    many = make_split(1100, public_size=1000, size_bound=1100)
    for split in (few, many):
        train, validation = dataset.split_train_validation(split, 0.25, b"key")
        assert (train.public_size, validation.public_size) == (750, 250)
        assert validation.size_bound == splitting.part_size_bound(1100, 0.25)
        assert train.size_bound == splitting.part_size_bound(1100, 0.75)


def test_a_part_beyond_its_bound_is_refused():
    of_one_part = dataclasses.replace(make_split(10_000), identifiers=np.zeros(10_000, np.int64))
    with pytest.raises(ValueError, match="more records than size_bound") as raised:
        dataset.split_train_validation(of_one_part, 0.1, b"key")
    assert "10000" not in str(raised.value)  # The actual count is private.


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan"), 0.0001])
def test_a_fraction_that_leaves_nothing_is_refused(fraction):
    with pytest.raises(ValueError, match="fraction"):
        dataset.split_train_validation(make_split(), fraction, b"key")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": np.zeros((4, 2))}, "float32"),
        ({"labels": np.zeros(4, np.int64)}, "int32"),
        ({"labels": np.zeros(3, np.int32)}, "one label"),
        ({"identifiers": np.arange(5)}, "one identifier"),
        ({"public_size": 0}, "public_size"),
        ({"size_bound": 3}, "size_bound"),
        ({"public_size": 2, "size_bound": 3}, "more records"),
    ],
)
def test_a_split_refuses_what_does_not_fit(change, message):
    arguments = {
        "inputs": np.zeros((4, 2), np.float32),
        "labels": np.zeros(4, np.int32),
        "public_size": 4,
        "size_bound": 4,
        "identifiers": np.arange(4),
    }
    with pytest.raises(ValueError, match=message):
        dataset.Split(**{**arguments, **change})


def test_a_brought_validation_part_is_used_as_it_is():
    brought = make_split(20)
    parts = make_dataset(validation=brought).parts(0.5, b"ignored")
    assert parts.validation.inputs is brought.inputs
    assert parts.train.number_of_records == 1000
    assert parts.non_private is None


def test_parts_divide_the_training_records_only():
    data = make_dataset()
    parts = data.parts(0.3, 5)
    assert parts.train.number_of_records + parts.validation.number_of_records == 1000
    assert parts.test is data.test
    assert parts.non_private is None


def test_the_paper_protocol_is_labelled_non_private():
    data = make_dataset()
    parts = data.validation_is_test()
    assert parts.train is data.train
    assert parts.validation is data.test
    assert "test" in parts.non_private
    with pytest.raises(ValueError, match="no test data"):
        make_dataset(test=None).validation_is_test()


def test_shapes_of_the_parts_must_agree():
    other = dataset.Split(
        np.zeros((2, 5), np.float32), np.zeros(2, np.int32), 2, 2, splitting.slot_identifiers(2)
    )
    with pytest.raises(ValueError, match="pass equal shapes"):
        make_dataset(test=other)
    with pytest.raises(ValueError, match="classes"):
        make_dataset(class_names=("a", "b"))
    with pytest.raises(ValueError, match="feature names"):
        make_dataset(feature_names=("a",))


def test_a_split_prints_public_facts_only():
    text = repr(make_split(990, public_size=1000, size_bound=1100))
    assert text == "Split(input_shape=(2,), public_size=1000, size_bound=1100)"
