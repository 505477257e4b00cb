"""docs/comparison.md: what a cell names is there, in each library that is installed."""

import importlib.util
import pathlib
import pkgutil
import re
from importlib import metadata

import pytest

PAGE = (pathlib.Path(__file__).parents[1] / "docs" / "comparison.md").read_text()
LIBRARIES = {
    "dpjax": ("dpjax", "dpjax"),
    "Opacus": ("opacus", "opacus"),
    "jax-privacy": ("jax_privacy", "jax-privacy"),
    "TF Privacy": ("tensorflow_privacy", "tensorflow-privacy"),
    "dp-accounting": ("dp_accounting", "dp-accounting"),
    "OpenDP": ("opendp", "opendp"),
    "Optuna": ("optuna", "optuna"),
}
NO_NAMES = {"guarantee.json", "statement.md", "secure_mode=True"}


def _tables():
    for table in re.findall(r"((?:^\|.*\n)+)", PAGE, re.MULTILINE):
        head, _, *rows = (
            [cell.strip() for cell in line.strip().strip("|").split("|")]
            for line in table.splitlines()
        )
        yield head, rows


def _named(library):
    """Returns the names in a library's cells, of all tables: of its column, or after its name."""
    cells = []
    for head, rows in _tables():
        if head[0] != "library":
            assert head == ["", "dpjax", "other libraries"]
            assert {len(row) for row in rows} == {3}
            others = [one for row in rows for one in row[2].split("<br>") if one != "-"]
            assert all(re.match(r"\*\*(.*?)\*\* ", one)[1] in LIBRARIES for one in others)
            cells += [one for one in others if one.startswith(f"**{library}** ")]
            cells += [row[1] for row in rows if library == "dpjax"]
    return sorted({name for cell in cells for name in re.findall(r"`([^`]+)`", cell)} - NO_NAMES)


def _is_there(path):
    try:
        pkgutil.resolve_name(path)
    except AttributeError:  # A module may need a library that is not installed.
        return importlib.util.find_spec(path) is not None
    return True


@pytest.mark.parametrize("library", LIBRARIES)
def test_what_a_cell_names_is_there(library):
    package, distribution = LIBRARIES[library]
    pytest.importorskip(package, reason="one of several libraries that are compared")
    (row,) = [row for head, rows in _tables() if head[0] == "library" for row in rows
              if row[0] == library]  # fmt: skip
    assert metadata.version(distribution) == row[1]
    names = _named(library)
    assert names
    for name in names:
        assert _is_there(f"{package}.{name}"), name
