"""Raw rows of a figure: a plain CSV file, written whole or not at all, read back as it was."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from scipy import stats

from dpjax import files, private_files

Value = str | int | float | None
"""What a cell holds; None is an empty cell: the row has no such number."""

Rows = Sequence[Mapping[str, Value]]

SIZE = "size"
"""First column of every file of a `RowFolder`."""


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def write_rows(path: str | os.PathLike, columns: Sequence[str], rows: Iterable[Mapping]) -> None:
    """Writes rows as CSV, atomically; floats are written so that reading gives the same float.

    A file with other columns is never overwritten, and every row must have exactly these.
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
    with (
        files.replacing(path) as partial,
        open(partial, "w", encoding="utf-8", newline="") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            if set(row) != set(columns):
                raise ValueError(f"a row has columns {sorted(row)}, not {sorted(columns)}")
            writer.writerow([_cell(row[column]) for column in columns])


def read_rows(path: str | os.PathLike) -> list[dict[str, Value]]:
    """Returns the rows of `write_rows`: whole numbers as int, other numbers as float."""
    with open(path, encoding="utf-8", newline="") as file:
        return [
            {column: _value(cell) for column, cell in row.items()} for row in csv.DictReader(file)
        ]


def size_of(path: str | os.PathLike) -> str:
    """Returns the one size that all rows of a file of a `RowFolder` name."""
    sizes = {row.get(SIZE) for row in read_rows(path)}
    if len(sizes) != 1 or None in sizes:
        found = ", ".join(sorted(str(size) for size in sizes)) or "no rows"
        raise ValueError(f"{path} is not of one size (found: {found}): pass another --out_dir")
    return sizes.pop()


@dataclasses.dataclass(frozen=True)
class RowFolder:
    """Files of rows of one size; rows of another are neither read nor overwritten.

    The size stands in the first column, which `read` leaves out. `report` is called with a line for
    every finished piece of what is computed into the folder.
    """

    path: str
    size: str
    report: Callable[[str], None] = lambda line: None

    def file(self, name: str) -> str:
        """The path of a file of rows."""
        return os.path.join(self.path, f"{name}.csv")

    def read(self, name: str) -> list[dict[str, Value]]:
        """Returns a file's rows, none if there is no such file."""
        path = self.file(name)
        rows = read_rows(path) if os.path.exists(path) else []
        for row in rows:
            size = row.pop(SIZE, None)
            if size is None:
                raise ValueError(f"{path} holds rows that name no size: pass another --out_dir")
            if size != self.size:
                raise ValueError(
                    f"{path} holds rows of size {size}, not {self.size}: pass --size={size} or "
                    "another --out_dir"
                )
        return rows

    def write(self, name: str, columns: Iterable[str], rows: Iterable[Mapping]) -> None:
        """Writes rows with their size, atomically."""
        self.read(name)
        sized = ({SIZE: self.size, **row} for row in rows)
        write_rows(self.file(name), (SIZE, *columns), sized)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Waits until no other process reads and writes here within this, then keeps them out."""
        with contextlib.ExitStack() as held:
            while True:
                try:
                    lock = os.path.join(self.path, "rows.lock")
                    held.enter_context(private_files.locked(lock, self.path))
                    break
                except private_files.InUseError:
                    time.sleep(0.02)
            yield


def select(rows: Iterable[Mapping], **values: Value) -> list[Mapping]:
    """Returns the rows whose named columns have these values, in order."""
    return [row for row in rows if all(row[column] == value for column, value in values.items())]


def distinct(rows: Iterable[Mapping], column: str) -> list[Value]:
    """Returns the different values of a column, in order of appearance."""
    return list(dict.fromkeys(row[column] for row in rows))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns the mean, and half the width of its 95% interval by Student's t; 0 of one value."""
    found = np.asarray(values, np.float64)
    if len(found) < 2:
        return float(found.mean()), 0.0
    spread = float(found.std(ddof=1)) / np.sqrt(len(found))
    return float(found.mean()), float(stats.t.ppf(0.975, len(found) - 1) * spread)


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
