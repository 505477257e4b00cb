"""Public schemas of tables: numbers scaled by their ranges, categories by vocabularies."""

import numpy as np
import pytest

from dpjax.data import tabular

SCHEMA = tabular.Schema(
    ranges={"age": (18, 100), "income": (1, 12)},
    vocabularies={"owner": ("yes",), "region": ("north", "south", tabular.OTHER), "hour": (0, 1)},
    optional=("income",),
)


def encoded(schema, **columns):
    return schema.encode(schema.stored(columns))


def hand_made(schema, rows):
    """Rows as dictionaries by column -> by row, the value of each feature that is not 0."""
    columns = {name: [row.get(name) for row in rows] for name in schema.columns}
    return [
        {name: float(value) for name, value in zip(schema.feature_names, row) if value}
        for row in encoded(schema, **columns)
    ]


def test_a_row_by_hand():
    row = encoded(SCHEMA, age=[59], income=[12], owner=["yes"], region=["south"], hour=[1])
    assert SCHEMA.feature_names == (
        "age", "income", "income=(missing)", "owner=yes", "region=north", "region=south",
        "region=(other)", "hour=0", "hour=1",
    )  # fmt: skip
    assert row.dtype == np.float32
    np.testing.assert_array_equal(row, np.array([[0.5, 1, 0, 1, 0, 1, 0, 0, 1]], np.float32))


def test_numbers_beyond_the_range_are_clipped():
    table = dict(owner=["no"] * 4, region=["north"] * 4, hour=[0] * 4)
    rows = encoded(SCHEMA, age=[-1e300, 17, 101, np.inf], income=[0, 1, 13, -np.inf], **table)
    np.testing.assert_array_equal(rows[:, 0], [0, 0, 1, 1])
    np.testing.assert_array_equal(rows[:, 1], [0, 0, 1, 0])
    np.testing.assert_array_equal(rows[:, 2], 0)


@pytest.mark.parametrize("nothing", [None, np.nan])
def test_missing_values(nothing):
    row = hand_made(SCHEMA, [dict.fromkeys(SCHEMA.columns, nothing)])
    # No column for a missing age; no other for owner and hour.
    assert row == [{"income=(missing)": 1.0, "region=(other)": 1.0}]


@pytest.mark.parametrize("value", ["west", "North", " north", "", 0, 1.5, ("north",), "(other)"])
def test_a_value_outside_the_vocabulary_is_other_or_all_zeros(value):
    row = hand_made(SCHEMA, [{"age": 18, "income": 1, "owner": "no", "region": value, "hour": 2}])
    assert row == [{"region=(other)": 1.0}]


def test_the_encoding_of_a_row_does_not_depend_on_the_others():
    generator = np.random.default_rng(0)
    table = {
        "age": generator.uniform(0, 120, 50),
        "income": np.where(generator.random(50) < 0.3, np.nan, generator.uniform(0, 14, 50)),
        "owner": generator.choice(["yes", "no"], 50),
        "region": generator.choice(["north", "south", "east"], 50),
        "hour": generator.integers(0, 4, 50),
    }
    together = encoded(SCHEMA, **table)
    assert together.min() >= 0 and together.max() <= 1
    assert np.linalg.norm(together, axis=1).max() <= np.sqrt(len(SCHEMA.columns)) + 1e-6
    for row in range(50):
        alone = encoded(SCHEMA, **{name: values[row : row + 1] for name, values in table.items()})
        np.testing.assert_array_equal(alone[0], together[row])


def test_no_rows():
    assert encoded(SCHEMA, **{name: [] for name in SCHEMA.columns}).shape == (0, 9)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (dict(ranges={"age": (18, 18)}), "ranges: age"),
        (dict(ranges={"age": (18, np.inf)}), "ranges: age"),
        (dict(ranges={"age": (np.nan, 1)}), "ranges: age"),
        (dict(vocabularies={"owner": ()}), "vocabularies: owner"),
        (dict(vocabularies={"owner": "yes"}), "vocabularies: owner"),
        (dict(vocabularies={"owner": ("yes", "yes")}), "'owner=yes' is named twice"),
        (dict(vocabularies={"age": (1,)}, ranges={"age": (0, 1)}), "'age' is named twice"),
        (dict(vocabularies={"owner": ("yes",)}, optional=("owner",)), "optional: 'owner'"),
    ],
)
def test_a_schema_that_cannot_be_is_refused(wrong, words):
    with pytest.raises(ValueError, match=words) as raised:
        tabular.Schema(**wrong)
    assert "\n" not in str(raised.value)
