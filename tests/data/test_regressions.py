"""A target that is a number, with its public range: from arrays, files and tables."""

import json

import flax.linen as nn
import numpy as np
import pytest

from dpjax import data, tuning
from dpjax.data import tables
from dpjax.data.schema_fit import SchemaFitWarning

SCHEMA = {
    "target": {"column": "rent", "range": [0, 3000]},
    "columns": {"area": {"range": [20, 120]}},
}
TABLE = {"area": [20, 70, None, 200], "rent": [500, "1200.5", 800, 5000]}
INPUTS = np.arange(8.0).reshape(4, 2)


def test_targets_stay_in_their_unit_and_those_outside_are_kept():
    made = data.from_table(TABLE, SCHEMA, public_size=4)
    assert made.train.labels.dtype == np.float32
    assert made.train.labels.tolist() == [500, 1200.5, 800, 5000]
    assert made.target_range == (0.0, 3000.0)
    assert made.classes is None and made.class_names is None and made.train.classes is None
    assert made.train.inputs.tolist() == [[0, 0], [0.5, 0], [0, 1], [1, 0]]


def test_a_record_without_a_target_is_left_out_or_refused_under_replace_one():
    table = {"area": [20, 70, 30], "rent": [500, None, "NA"]}
    made = data.from_table(table, SCHEMA, public_size=4)
    assert made.train.labels.tolist() == [500]
    with pytest.raises(ValueError, match="target 'rent' is missing from some records"):
        data.from_table(table, SCHEMA, public_size=4, identified_by="slot")


def test_parts_and_the_invented_record_are_of_numbers_too():
    made = data.from_arrays(
        np.arange(200.0).reshape(100, 2), np.arange(100), public_size=100, target_range=(0, 99)
    )
    parts = made.parts(0.3, key=b"public")
    assert parts.train.labels.dtype == parts.validation.labels.dtype == np.float32
    assert sorted([*parts.train.labels, *parts.validation.labels]) == list(range(100))
    assert made.without_validation().validation.labels.dtype == np.float32


def test_a_file_of_arrays_takes_a_range(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, inputs=INPUTS, labels=[0.5, 1, 2, 3], test_inputs=INPUTS, test_labels=[9] * 4)
    loaded = data.load(str(path), public_size=4, target_range=(0, 10))
    assert loaded.train.labels.tolist() == [0.5, 1, 2, 3] and loaded.test.labels[0] == 9.0


@pytest.mark.parametrize(
    ("labels", "changed", "words"),
    [
        ([0, 1, 2, 3], {"classes": 4}, "classes=4: pass it for classification alone, and for a"),
        ([0, 1, 2, 3], {"target_range": (3, 3)}, "target_range: pass .low, high., low below high"),
        ([0, 1, 2, 3], {"target_range": "0,3"}, "target_range must be a list of finite numbers"),
        ([0, 1, 2, 3], {"target_range": None}, "pass classes=..., a number that is public"),
        ([0, 1, 2, np.nan], {}, "labels are not all finite float32 numbers"),
        ([0, 1, 2, 1e39], {}, "labels are not all finite float32 numbers"),
        (["a", "b", "c", "d"], {}, "labels are not all finite float32 numbers"),
    ],
)
def test_what_is_no_regression_is_refused_in_one_line(labels, changed, words):
    arguments = {"public_size": 4, "target_range": (0, 3)} | changed
    with pytest.raises(ValueError, match=words) as refused:
        data.from_arrays(INPUTS, np.array(labels), **arguments)
    assert "\n" not in str(refused.value)


def test_labels_and_what_is_said_of_them_fit():
    made = data.from_table(TABLE, SCHEMA, public_size=4)
    for said in ({"classes": 2}, {"classes": 2, "target_range": (0, 1)}):
        with pytest.raises(ValueError, match="float32|for a regression target_range"):
            data.Dataset(**({"name": "a", "description": "b"} | said), train=made.train, test=None)


def test_a_target_in_another_unit_is_warned_of():
    table = {"area": [50.0] * 30, "rent": [9000] * 20 + [100] * 10}
    with pytest.warns(SchemaFitWarning, match="66.7% of 'rent' lies above its range"):
        data.from_table(table, SCHEMA, public_size=30)
    assert tables.check_schema(table, SCHEMA)[1].line.startswith("rent: 0.0% other, 0.0% below")


def test_a_release_keeps_the_schema_in_its_order_bound_by_its_hash(tmp_path):
    known = {
        "target": {"column": "rent", "range": [0, 3000]},
        "columns": {
            "zone": {"values": ["b", "a"]},
            "rooms": {"range": [0, 9]},
            "area": {"range": [20, 120]},
        },
    }
    numbers = {"area": list(range(20, 100)), "rooms": [3] * 80, "rent": list(range(80))}
    table = {"zone": ["a", "b"] * 40} | numbers
    made = data.from_table(table, known, public_size=80)
    parts = made.without_validation()
    task = tuning.regression(
        nn.Dense(1), parts.train, parts.validation, error_scale=750, target_range=made.target_range
    )
    run = tuning.RunOptions(lot_size=20, steps=3, noise_multiplier=1.0)
    space = tuning.Space(learning_rate=0.5, momentum=0.9, clip_norm=1.0)
    release = tuning.tune(task, space, tuning.Untuned(), run=run, seed=1).release
    release.save(tmp_path / "release", schema=known)
    assert tuning.verify_release(tmp_path / "release").epsilon > 0
    kept = data.read_schema(tmp_path / "release" / "schema.json")
    assert kept == data.read_schema(known) and kept.feature_names == made.feature_names
    assert kept.encode({"zone": "a", "area": 70, "rooms": 9}).tolist() == [
        [1, 0, 0.5, 0, 0, 1, 0, 0]  # In the order of the schema that it was trained with.
    ]
    path = tmp_path / "release" / "schema.json"
    path.write_text(json.dumps(known))
    with pytest.raises(tuning.NotVerified, match="schema.json is not the file that was released"):
        tuning.verify_release(tmp_path / "release")
