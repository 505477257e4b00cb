"""A schema that does not fit its table is said, per column, before anything is drawn."""

import json
import subprocess
import sys
import unicodedata
import warnings

import numpy as np
import pytest

from dpjax import data
from dpjax.data.schema_fit import SchemaFitWarning

NUMBER = 40
SCHEMA = {
    "target": {"column": "insured", "classes": ["no", "yes"]},
    "columns": {
        "mass": {"range": [2, 7]},
        "sex": {"values": ["MALE", "FEMALE"]},
        "island": {"values": ["Réunion", "Torgersen"]},
        "grade": {"values": [1, 2.5]},
        "zip": {"values": ["01234", "90210"]},
    },
}
FITS = {
    "mass": np.linspace(2.5, 6.5, NUMBER).tolist(),
    "sex": ["MALE", "FEMALE"] * 20,
    "island": ["Réunion", "Torgersen"] * 20,
    "grade": ["1", "2.5"] * 20,
    "zip": ["01234", "90210"] * 20,
    "insured": ["no", "yes"] * 20,
}
SPELLING = "another case or spelling"
WRONG = {
    "another case": ("sex", ["male", "female"] * 20, SPELLING),
    "an accent of two characters": (
        "island", [unicodedata.normalize("NFD", one) for one in ["Réunion", "Torgersen"] * 20],
        SPELLING,
    ),
    "trailing zeros": ("grade", ["1", "2.50"] * 20, SPELLING),
    "leading zeros": ("grade", ["01", "2.5"] * 20, SPELLING),
    "zip codes as numbers": ("zip", [1234, 90210] * 20, SPELLING),
    "spaces that nobody sees": ("sex", ["MALE\u200b", "FEMALE\u200b"] * 20, SPELLING),
    "a space inside": ("island", ["Réunion", "Torger\u00a0sen"] * 20, SPELLING),
    "other values": ("sex", ["M", "F"] * 20, "list what it may hold"),
    "grams for kilograms": ("mass", np.linspace(2500, 6500, NUMBER).tolist(), "100.0% of"),
    "tonnes": ("mass", np.linspace(0.0025, 0.0065, NUMBER).tolist(), "100.0% of"),
    "no value": ("mass", [None] * 30 + [3.0] * 10, "75.0% of"),
}  # fmt: skip


def _made(table, **more):
    return data.from_table(table, SCHEMA, public_size=NUMBER, **more)


def test_a_schema_that_fits_is_not_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _made(FITS)
    assert all(one.doubt is None for one in data.check_schema(FITS, SCHEMA))


@pytest.mark.parametrize("name", WRONG)
def test_a_column_that_does_not_fit_is_named_with_its_share(name):
    column, values, words = WRONG[name]
    with pytest.warns(SchemaFitWarning, match=f"curator alone.*{column!r}") as caught:
        _made(FITS | {column: values})
    assert words in str(caught[0].message)
    assert len(caught) == 1 and "\n" not in str(caught[0].message)
    doubted = [one for one in data.check_schema(FITS | {column: values}, SCHEMA) if one.doubt]
    assert [one.name for one in doubted] == [column]


def test_shares_are_those_of_the_column():
    table = FITS | {"mass": [1.0] * 4 + [9.0] * 8 + [None] * 2 + [3.0] * 26}
    (mass,) = (one for one in data.check_schema(table, SCHEMA) if one.name == "mass")
    assert (mass.low, mass.high, mass.missing) == (0.1, 0.2, 0.05)
    assert "0.1" not in repr(mass)


def test_a_test_table_is_looked_at_too():
    with pytest.warns(SchemaFitWarning, match="test.*'sex'"):
        _made(FITS, test=FITS | {"sex": ["male", "female"] * 20})


def test_the_command_shows_every_column_and_says_whether_it_fits(tmp_path):
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    table = FITS | {"sex": ["male", "FEMALE"] * 20}
    rows = [",".join(table), *(",".join(map(str, row)) for row in zip(*table.values()))]
    (tmp_path / "table.csv").write_text("\n".join(rows) + "\n")
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "dpjax",
            "schema",
            "--check",
            tmp_path / "table.csv",
            tmp_path / "schema.json",
        ],
        capture_output=True,
        text=True,
    )
    lines = ran.stdout.splitlines()
    assert ran.returncode == 1 and "never publish" in lines[0] and ran.stderr == ""
    assert lines[2] == "sex: 50.0% other, 0.0% below and 0.0% above the range, 0.0% missing"
    assert "another case or spelling" in lines[3] and len(lines) == 7
