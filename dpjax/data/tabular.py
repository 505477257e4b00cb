"""Reads the columns of a table, and encodes them as inputs by a public schema.

Numbers are scaled to [0, 1] by public ranges, categories become one column for each value of a
public vocabulary. Nothing is computed from the rows, so a row is encoded the same whatever the
others hold.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import os
import pathlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

OTHER = "(other)"
"""A value of a vocabulary that stands for all values outside it, a missing one included."""

_OUTSIDE = -1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schema:
    """Columns with their ranges and vocabularies, from documentation, never from the rows.

    ```python
    from dpjax.data import tabular

    schema = tabular.Schema(
        ranges={"age": (18, 100), "income": (1, 12)},
        vocabularies={"owner": ("yes",), "region": ("north", "south", tabular.OTHER)},
        optional=("income",),
    )
    schema.feature_names  # age, income, income=(missing), owner=yes, region=north, ...
    stored = schema.stored({"age": [35], "income": [None], "owner": ["yes"], "region": ["west"]})
    schema.encode(stored)  # [[0.207, 0, 1, 1, 0, 0, 1]]
    ```

    Attributes:
      ranges: column of numbers -> (low, high). A value becomes (value - low) / (high - low),
        clipped to [0, 1]; a missing one becomes 0.
      vocabularies: column of categories -> the values that get an encoded column of their own, 1
        for that value and 0 for others. Any other value goes to the column of `OTHER`, or is all
        zeros if the vocabulary does not list `OTHER`. Of two values it is enough to list one.
      optional: the columns of numbers that get a second one, 1 if the value is missing.

    An encoded row's norm is at most the square root of the number of `columns`.
    """

    ranges: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    vocabularies: Mapping[str, Sequence[Hashable]] = dataclasses.field(default_factory=dict)
    optional: Sequence[str] = ()

    def __post_init__(self):
        for name, (low, high) in self.ranges.items():
            if not -np.inf < low < high < np.inf:
                raise ValueError(f"ranges: {name} has ({low}, {high}): pass finite (low, high)")
        for name, vocabulary in self.vocabularies.items():
            if isinstance(vocabulary, str) or not len(vocabulary):
                raise ValueError(
                    f"vocabularies: {name} has {vocabulary!r}: pass a tuple of one value or more"
                )
        for name in self.optional:
            if name not in self.ranges:
                raise ValueError(f"optional: {name!r} is not a column of ranges: leave it out")
        for what, names in (("column", self.columns), ("feature", self.feature_names)):
            repeated = {name for name in names if names.count(name) > 1}
            if repeated:
                raise ValueError(
                    f"{what} {min(repeated)!r} is named twice: pass it in ranges or in "
                    "vocabularies, each value once"
                )

    @property
    def columns(self) -> tuple[str, ...]:
        """Returns the names of the table's columns, in the order of `stored`."""
        return (*self.ranges, *self.vocabularies)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Returns the names of the encoded columns."""
        names = []
        for name in self.ranges:
            names += [name, f"{name}=(missing)"] if name in self.optional else [name]
        for name, vocabulary in self.vocabularies.items():
            names += [f"{name}={value}" for value in vocabulary]
        return tuple(names)

    def stored(self, table: Mapping[str, Sequence | np.ndarray]) -> np.ndarray:
        """Returns (n, columns) float32: numbers unchanged, categories as places in the vocabulary.

        A missing number is NaN. A category outside its vocabulary is the place of `OTHER`, or -1 if
        the vocabulary lacks it.

        Args:
          table: by name, at least `columns`, each (n,): numbers with NaN or None where missing;
            categories as the vocabulary spells them.
        """
        with np.errstate(over="ignore"):  # A number beyond float32 is clipped to its range later.
            parts = [np.asarray(table[name], np.float64).astype(np.float32) for name in self.ranges]
        for name, vocabulary in self.vocabularies.items():
            places = {value: float(place) for place, value in enumerate(vocabulary)}
            outside = places.get(OTHER, _OUTSIDE)
            column = table[name]
            values = column.tolist() if isinstance(column, np.ndarray) else column
            parts.append(np.array([places.get(value, outside) for value in values], np.float32))
        return np.stack(parts, axis=1)

    def encode(self, stored: np.ndarray) -> np.ndarray:
        """Returns (n, features) float32 in [0, 1], columns `feature_names`.

        Args:
          stored: (n, columns), as from the method of that name.
        """
        encoded = np.zeros((len(stored), len(self.feature_names)), np.float32)
        at = 0
        for name, values in zip(self.columns, stored.T):
            if name in self.ranges:
                low, high = self.ranges[name]
                missing = np.isnan(values)
                scaled = (np.clip(values.astype(np.float64), low, high) - low) / (high - low)
                encoded[:, at] = np.where(missing, 0.0, scaled)
                at += 1
                if name in self.optional:
                    encoded[:, at] = missing
                    at += 1
            else:
                within = np.flatnonzero(values != _OUTSIDE)
                encoded[within, at + values[within].astype(np.intp)] = 1.0
                at += len(self.vocabularies[name])
        return encoded


def column_names(table: Any) -> list[str]:
    """Reads the names of a table's columns, and nothing else from it."""
    if isinstance(table, str | os.PathLike):
        with _opened(table) as rows:
            return _header(rows, str(table))
    return _names(table)


def _names(table: Any, what: str = "table") -> list[str]:
    """Returns the column names of a DataFrame or mapping."""
    columns = table.keys() if isinstance(table, Mapping) else getattr(table, "columns", None)
    if columns is None:
        # Not the value itself, which may be records.
        raise ValueError(
            f"{what} must be a DataFrame, a mapping by column or the path of a CSV file, not a "
            f"{type(table).__name__}"
        )
    return _checked(list(columns), what)


def _checked(names: list, what: str) -> list[str]:
    """Returns column names; refuses missing and repeated ones."""
    numbers = [one for one in names if not isinstance(one, str)]
    if numbers:
        raise ValueError(
            f"{what} has columns that are named by no text, such as {numbers[0]!r}: name each, as "
            "by frame.columns = [...]"
        )
    if not names or not all(names):
        raise ValueError(f"{what} has columns without a name: give each one")
    if len(set(names)) < len(names):
        raise ValueError(f"{what} names a column twice: rename one")
    return names


def columns_of(table: Any, name: str) -> dict[str, Sequence | np.ndarray]:
    """Reads a CSV file, a DataFrame or a mapping into its columns; errors begin with `name`."""
    if isinstance(table, str | os.PathLike):
        with _opened(table) as rows:
            names = _header(rows, name)
            held: list[list[str]] = [[] for _ in names]
            try:
                for row in rows:
                    if not row:
                        continue
                    if len(row) != len(names):
                        raise ValueError
                    for column, cell in zip(held, row):
                        column.append(cell)
            except UnicodeDecodeError:
                raise _not_utf8(name) from None
            except (ValueError, csv.Error):
                raise ValueError(
                    f"{name} has lines of other lengths than its first, or is not text: pass a CSV "
                    "file, UTF-8, separated by commas"
                ) from None
        return dict(zip(names, held))
    names = _names(table, f"{name}: the table")
    columns = {}
    for one in names:
        values = table[one]
        # A DataFrame's column as plain Python values; NumPy's scalars are numbers too.
        columns[one] = values.tolist() if hasattr(values, "tolist") else list(values)
    return columns


_FRAME = "read it with pandas, and pass the frame"
_OTHER_FILES = (
    (b"\x1f\x8b", "compressed", "unpack it first, by gunzip"),
    (b"PAR1", "a parquet file", _FRAME),
    (b"PK\x03\x04", "an archive or a spreadsheet", f"save it as CSV, or {_FRAME}"),
    (b"\xff\xfe", "in UTF-16", "save it in UTF-8"),
    (b"\xfe\xff", "in UTF-16", "save it in UTF-8"),
)
"""First bytes of a file that is no CSV table, what the file is, and what to do."""


def _not_utf8(name: str) -> ValueError:
    return ValueError(
        f"{name} is not in UTF-8, perhaps in Latin-1: save it in UTF-8, such as by "
        "iconv -f latin1 -t utf-8"
    )


@contextlib.contextmanager
def _opened(table: str | os.PathLike[str]) -> Iterator[Iterator[list[str]]]:
    """Opens a CSV file and yields its rows."""
    path = pathlib.Path(table).expanduser()
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise FileNotFoundError(f"{path} {what}: pass the path of a CSV file")
    with open(path, "rb") as raw:
        begins = raw.read(4)
    for mark, what, instead in _OTHER_FILES:
        if begins.startswith(mark):
            raise ValueError(f"{path} is {what}, and no CSV file in UTF-8: {instead}")
    # utf-8-sig: spreadsheets begin their files with a byte order mark.
    with open(path, encoding="utf-8-sig", newline="") as file:
        yield csv.reader(file, strict=True)


def _header(rows: Iterator[list[str]], name: str) -> list[str]:
    """Reads the line of column names; refuses one that may be a record."""
    try:
        names = [one.strip() for one in next(rows, [])]
    except UnicodeDecodeError:
        raise _not_utf8(name) from None
    except (ValueError, csv.Error):
        names = []
    if not names:
        raise ValueError(f"{name} has no first line of column names: pass a CSV file, UTF-8")
    if any(map(_is_number, names)):
        # Column names count as public, so a private record must not be read as names.
        raise ValueError(
            f"{name} has a number among its column names, so its first line may be a record: pass "
            "a file whose first line names the columns"
        )
    if len(names) == 1 and any(mark in names[0] for mark in ";\t|"):
        raise ValueError(f"{name} is not separated by commas: pass a CSV file that is")
    return _checked(names, name)


def _is_number(text: str) -> bool:
    """Returns whether a text reads as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
