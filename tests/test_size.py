"""No package grows without a line that says why: `lines.csv` holds the most lines of each.

A change that needs more raises its package's number in the same commit and gives the reason there.
One that cuts lowers the number, so that what was cut stays cut.
"""

import csv
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
TABLE = ROOT / "tests" / "lines.csv"
SLACK = 40
"""Lines below its number at which a package's number has to follow."""


def packages():
    """Returns package -> lines of its own modules; folders of tests and experiments count whole."""
    found = {}
    for path in sorted(ROOT.joinpath("dpjax").rglob("*.py")):
        name = path.parent.relative_to(ROOT).as_posix()
        found[name] = found.get(name, 0) + len(path.read_bytes().splitlines())
    for name in ("experiments", "tests"):
        texts = (path.read_bytes() for path in ROOT.joinpath(name).rglob("*.py"))
        found[name] = sum(len(text.splitlines()) for text in texts)
    return found


def rows():
    with open(TABLE, encoding="utf-8", newline="") as file:
        return {row["package"]: row for row in csv.DictReader(file)}


def test_every_package_has_its_line():
    assert rows().keys() == packages().keys()
    assert all(row["reason"] for row in rows().values())


@pytest.mark.parametrize("name", packages())
def test_it_has_no_more_lines_than_its_row_says(name):
    most, lines = int(rows()[name]["lines"]), packages()[name]
    assert lines <= most, f"{name} has {lines} lines: cut, or say why in {TABLE.name}"
    slack = SLACK if name.startswith("dpjax") else 5 * SLACK
    assert lines > most - slack, f"{name} has {lines} lines: lower its row of {TABLE.name}"
