"""Raw rows of a figure: a plain CSV file, written whole or not at all, read back as it was."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Mapping, Sequence

Value = str | int | float | None
"""What a cell holds; None is an empty cell: the row has no such number."""


def write_rows(path: str | os.PathLike, columns: Sequence[str], rows: Iterable[Mapping]) -> None:
    """Writes rows as CSV, atomically; floats are written so that reading gives the same float.

    Args:
      path: of the file; one with other columns is never overwritten.
      columns: names, in order; every row has exactly these.
      rows: one mapping of column to value each.

    Raises:
      ValueError: if a row has other columns, or if the file there is another figure's.
    """
    path = os.fspath(path)
    if os.path.exists(path):
        with open(path, encoding="utf-8", newline="") as file:
            present = next(csv.reader(file), [])
        if present != list(columns):
            raise ValueError(
                f"{path} holds another figure's rows (columns {', '.join(present)}): "
                "pass another --out_dir, or move that file away"
            )
    partial = f"{path}.partial"
    with open(partial, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            if set(row) != set(columns):
                raise ValueError(f"a row has columns {sorted(row)}, not {sorted(columns)}")
            writer.writerow([_cell(row[column]) for column in columns])
    os.replace(partial, path)


def read_rows(path: str | os.PathLike) -> list[dict[str, Value]]:
    """Returns the rows of `write_rows`: whole numbers as int, other numbers as float."""
    with open(path, encoding="utf-8", newline="") as file:
        return [
            {column: _value(cell) for column, cell in row.items()} for row in csv.DictReader(file)
        ]


def select(rows: Iterable[Mapping], **values: Value) -> list[Mapping]:
    """Returns the rows whose named columns have these values, in order."""
    return [row for row in rows if all(row[column] == value for column, value in values.items())]


def distinct(rows: Iterable[Mapping], column: str) -> list[Value]:
    """Returns the different values of a column, in order of appearance."""
    return list(dict.fromkeys(row[column] for row in rows))


def _cell(value: Value) -> str:
    """Returns a value's text; NumPy's scalars are written as Python's."""
    if value is None:
        return ""
    if hasattr(value, "item"):
        value = value.item()
    return value if isinstance(value, str) else repr(value)


def _value(cell: str) -> Value:
    """Returns the value that a cell's text stands for."""
    if cell == "":
        return None
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell
