"""What every registered feature map passes.

A new map needs no line here: the table is the registry, held against third_party_notes/data.md.
"""

import pathlib
import re

import numpy as np
import pytest

from dpjax import data

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOTES = (ROOT / "third_party_notes" / "data.md").read_text(encoding="utf-8")

every_map = pytest.mark.parametrize("name", data.FEATURES)


@pytest.fixture(scope="module")
def digits():
    whole = data.load("digits")
    some = np.arange(whole.train.number_of_records) < 40
    return whole.train.subset(some, public_size=40, size_bound=50)


@every_map
def test_the_notes_have_a_row(name):
    assert re.search(rf"^\| `{name}` \| .+ \| .+ \|$", NOTES, flags=re.MULTILINE)


@every_map
def test_features_of_a_record_do_not_depend_on_the_others(name, digits):
    whole = data.FEATURES[name].of_split(digits)
    assert whole.inputs.dtype == np.float32 and np.isfinite(whole.inputs).all()
    assert whole.input_shape == data.FEATURES[name].shape(digits.input_shape)
    member = np.arange(40) % 3 == 0
    own = data.FEATURES[name].of_split(digits.subset(member, public_size=14, size_bound=50))
    np.testing.assert_array_equal(own.inputs, whole.inputs[member])


@every_map
def test_who_a_record_is_and_what_is_public_of_them_stays(name, digits):
    mapped = data.FEATURES[name].of_split(digits)
    for field in ("labels", "identifiers"):
        np.testing.assert_array_equal(getattr(mapped, field), getattr(digits, field))
    for field in (
        *("public_size", "size_bound"),
        *("stable_under_replacement", "stable_under_removal"),
    ):
        assert getattr(mapped, field) == getattr(digits, field)


@every_map
def test_no_record_at_all(name, digits):
    none = digits.subset(np.zeros(40, bool), public_size=40, size_bound=50)
    mapped = data.FEATURES[name].of_split(none)
    assert mapped.inputs.shape == (0, *data.FEATURES[name].shape(digits.input_shape))
