"""The user's own table: a CSV file or a DataFrame, encoded by a small public schema file.

Nothing is computed from the records: the schema states ranges, vocabularies, the target's classes
and how a missing value is spelt, and is written from public knowledge (a codebook, a form).
`write_schema` makes one to fill in from the names of the columns alone. Column names are taken to
be public, here and wherever a message names one; no message shows a value of a record.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import numbers
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from dpjax import checks, files
from dpjax.data import dataset, schema_fit, tabular, text, user_arrays

MISSING = "(missing)"
"""The slot of a missing value in a column of categories."""

MISSING_SPELLINGS = ("", "NA", "N/A", "NaN", "nan", "null", "None", "?")
"""Cells of a CSV file that are missing values, unless the schema lists others."""

LEAVE_OUT = "leave out"
_WHOLE = re.compile(r"^(-?[0-9]+)\.0+$")
_TOP = ("about", "target", "columns", "identifier", "missing")
_ABOUT = (
    "Fill in from public knowledge (a codebook, a form), never from the records. Each column: "
    '{"range": [low, high]} for numbers, {"values": ["a", "b"]} for categories (others go to a '
    'slot of their own), {"text": 1024} for texts (words are hashed into so many slots), or '
    f'"{LEAVE_OUT}". target: the column to predict, with its classes, or {{"column": ..., "above": '
    'number} for whether a number exceeds it, or {"column": ..., "range": [low, high]} for the '
    "number itself. identifier: a column unique to each record, or null."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableSchema:
    """The public facts about a table: its columns, and which of them is to be predicted.

    Attributes:
      target: column to predict.
      classes: its values as text, by class number; empty if `above` or `target_range` is given.
      above: a number; the classes are whether the column's number exceeds it.
      target_range: public (lowest, highest) value of the column's number, which is the target.
      inputs: ranges and vocabularies of the other columns. Columns of categories have two more
        slots, `tabular.OTHER` and `MISSING`; columns of numbers have one, for a missing value.
      texts: column of texts -> number of slots that its words are hashed into (`text`).
      left_out: columns that are not read.
      identifier: a column unique to each record, or None.
      missing: how a missing value is spelt, beside None and NaN.
    """

    target: str
    inputs: tabular.Schema
    classes: tuple[str, ...] = ()
    above: float | None = None
    target_range: tuple[float, float] | None = None
    texts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    identifier: str | None = None
    missing: tuple[str, ...] = MISSING_SPELLINGS

    def __post_init__(self):
        if bool(self.classes) + (self.above is not None) + (self.target_range is not None) != 1:
            raise ValueError(
                f'target {self.target!r}: pass "classes", a list of values, or "above", a number, '
                'or "range", [low, high], to predict a number: one of them'
            )
        if self.classes and len(set(self.classes)) != len(self.classes):
            raise ValueError(f"target {self.target!r}: pass each of the classes once")
        if len(self.classes) == 1:
            raise ValueError(f"target {self.target!r}: pass two classes or more")
        if not self.read:
            raise ValueError("columns: pass a range, values or text for one column or more")
        for values in (self.classes, *self.inputs.vocabularies.values()):
            for value in {*values} & {*self.missing}:
                raise ValueError(
                    f"{value!r} is a value and a spelling of a missing one: pass other spellings "
                    'as "missing"'
                )
        for name in self.columns:
            if self.columns.count(name) > 1:
                raise ValueError(f"column {name!r} is named twice: pass each column once")

    @property
    def columns(self) -> tuple[str, ...]:
        """Returns the names of all columns of the table."""
        own = [self.target] + ([self.identifier] if self.identifier is not None else [])
        return (*self.read, *own, *self.left_out)

    @property
    def read(self) -> tuple[str, ...]:
        """Returns the names of the columns that are encoded."""
        return (*self.inputs.columns, *self.texts)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Returns the names of the classes, by number; none for a regression."""
        if self.above is None:
            return self.classes
        return (f"{self.target} <= {self.above:g}", f"{self.target} > {self.above:g}")

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Returns the names of the encoded columns."""
        of_texts = (f"{name}#{at}" for name, size in self.texts.items() for at in range(size))
        return (*self.inputs.feature_names, *of_texts)

    @property
    def answers(self) -> dict[str, Any]:
        """Returns the public facts about the labels, as arguments of `from_arrays`."""
        if self.target_range is not None:
            return {"target_range": self.target_range}
        return {"classes": len(self.class_names)}

    def encode(self, table: Any) -> np.ndarray:
        """Encodes the inputs of new records for a model that was trained with this schema.

        Example:
          >>> from dpjax import data
          >>> schema = data.read_schema({
          ...     "target": {"column": "insured", "classes": ["no", "yes"]},
          ...     "columns": {"age": {"range": [18, 68]}},
          ... })
          >>> schema.encode({"age": [43, None]}).tolist()
          [[0.5, 0.0], [0.0, 1.0]]
          >>> schema.encode({"age": 43}).tolist()  # One record, as a request brings it.
          [[0.5, 0.0]]

        Args:
          table: as for `from_table`; or one record, a mapping from column names to values, or a
            list of records. Columns that are not in `inputs`, such as the target, are not read and
            may be missing.

        Returns:
          (rows, features) float32, one row per record, named by `feature_names`.

        Raises:
          FileNotFoundError: if there is no such file.
        """
        columns = tabular.columns_of(_of_records(table, self.read), "table")
        missing = [one for one in self.read if one not in columns]
        if missing:
            raise ValueError(f"the table has no column {missing[0]!r}: pass every encoded column")
        _check_lengths(columns, self.read, "table")
        return _inputs(columns, _stored(columns, self, "table"), self)


def _of_records(table: Any, names: Sequence[str]) -> Any:
    """Returns one record, or a list of records, as a table of the columns `names`."""
    if isinstance(table, Mapping) and not any(
        isinstance(value, list | tuple) or hasattr(value, "__array__") and np.ndim(value)
        for value in table.values()
    ):
        return {name: [value] for name, value in table.items()}
    if not isinstance(table, list | tuple):
        return table
    for place, record in enumerate(table):
        lacking = [name for name in names if not isinstance(record, Mapping) or name not in record]
        if lacking:
            raise ValueError(
                f"record {place} has no {lacking[0]!r}: pass a mapping of all columns that are "
                "encoded, None where a value is missing"
            )
    return {name: [record[name] for record in table] for name in names}


def read_schema(schema: TableSchema | str | os.PathLike[str] | Mapping[str, Any]) -> TableSchema:
    """Reads and checks the public schema of a table.

    Example:
      >>> from dpjax import data
      >>> schema = data.read_schema({
      ...     "target": {"column": "insured", "classes": ["no", "yes"]},
      ...     "columns": {"age": {"range": [18, 65]}, "region": {"values": ["north", "south"]}},
      ... })
      >>> schema.feature_names[:3]
      ('age', 'age=(missing)', 'region=north')

    Args:
      schema: path of a JSON file, or its content as a mapping; a `TableSchema` is returned.

    Raises:
      FileNotFoundError: if there is no such file.
    """
    if isinstance(schema, TableSchema):
        return schema
    where = "schema" if isinstance(schema, Mapping) else str(schema)
    source = stated(schema)
    unknown = sorted(set(source) - set(_TOP), key=str)
    if unknown:
        raise ValueError(f"{where}: unknown {unknown[0]!r}: pass only {', '.join(_TOP)}")
    try:
        return _schema(source)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def stated(schema: str | os.PathLike[str] | Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the content of a schema's file, checked only to be a JSON object."""
    where, source = "schema", cast(Any, schema)
    if not isinstance(source, Mapping):
        path = pathlib.Path(checks.path("schema", source)).expanduser()
        if not path.is_file():
            raise FileNotFoundError(
                f"{path} does not exist: pass the path of a schema, or write one to fill in by "
                "`dpjax schema TABLE.csv SCHEMA.json`"
            )
        try:
            source = json.loads(path.read_text(encoding="utf-8-sig"))
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{path} is not JSON: line {error.lineno}, column {error.colno}: {error.msg}"
            ) from None
        except (OSError, ValueError, RecursionError):
            source = None
        where = str(path)
    if not isinstance(source, Mapping):
        raise ValueError(f"{where} holds no JSON object: pass one with target and columns")
    return source


def _schema(source: Mapping[str, Any]) -> TableSchema:
    """Builds a table's schema from its JSON; refuses each field that is missing or malformed."""
    target, columns = source.get("target"), source.get("columns")
    if not isinstance(target, Mapping) or not isinstance(target.get("column"), str):
        raise ValueError('target: pass {"column": "its name", "classes": ["a", "b"]}')
    extra = sorted(set(target) - {"column", "classes", "above", "range"}, key=str)
    if extra:
        raise ValueError(f"target: unknown {extra[0]!r}: pass column, and classes, above or range")
    if not isinstance(columns, Mapping):
        raise ValueError('columns: pass {"name": {"range": [low, high]}, ...}')
    ranges: dict[str, tuple[float, float]] = {}
    vocabularies: dict[str, tuple[str, ...]] = {}
    texts: dict[str, int] = {}
    left_out, unknown = [], []
    own = {target["column"], source.get("identifier")}
    for name, known in columns.items():
        if name in own:
            # `write_schema` lists every column, the target and the identifier too.
            continue
        if isinstance(known, Mapping):  # `write_schema` writes null for what is to be filled in.
            known = {key: value for key, value in known.items() if value is not None}
        if known == LEAVE_OUT:
            left_out.append(name)
        elif isinstance(known, Mapping) and set(known) == {"range", "values"}:
            raise ValueError(f"column {name!r} has a range and values: pass one of them")
        elif isinstance(known, Mapping) and set(known) == {"range"}:
            ranges[name] = dataset.ends(f"column {name!r}: range", known["range"])
        elif isinstance(known, Mapping) and set(known) == {"values"}:
            values = _texts(f"column {name!r}: values", known["values"])
            vocabularies[name] = (*values, tabular.OTHER, MISSING)
        elif isinstance(known, Mapping) and set(known) == {"text"}:
            texts[name] = text.checked_size(f"column {name!r}: text", known["text"])
        else:
            unknown.append(repr(name))
    if unknown:
        are = "column {} is" if len(unknown) == 1 else "columns {} are"
        raise ValueError(
            f"{are.format(', '.join(unknown))} not filled in: pass "
            f'{{"range": [low, high]}}, {{"values": ["a", "b"]}}, {{"text": 1024}} or "{LEAVE_OUT}"'
        )
    identifier = source.get("identifier")
    if identifier is not None:
        checks.text("identifier", identifier)
    above, classes, ends = (target.get(one) for one in ("above", "classes", "range"))
    missing = source.get("missing")
    if missing is not None:
        spellings = checks.listed("missing", missing, "texts")
        missing = tuple(checks.text("each of missing", one) for one in spellings)
    return TableSchema(
        target=target["column"],
        classes=() if classes is None else _texts("target: classes", classes),
        above=None if above is None else checks.number("target: above", above),
        target_range=None if ends is None else dataset.ends("target: range", ends),
        texts=texts,
        inputs=tabular.Schema(ranges=ranges, vocabularies=vocabularies, optional=tuple(ranges)),
        left_out=tuple(left_out),
        identifier=identifier,
        missing=MISSING_SPELLINGS if missing is None else missing,
    )


def _texts(name: str, values: Any) -> tuple[str, ...]:
    """Returns the listed values as texts; refuses an empty list, repetitions and `MISSING`."""
    found = tuple(
        _text(one) for one in checks.listed(name, values, 'values, such as ["yes", "no"]')
    )
    if not found or None in found or len(set(found)) < len(found):
        raise ValueError(f"{name}: pass one value or more, each once")
    if {tabular.OTHER, MISSING} & set(found):
        raise ValueError(f"{name}: {tabular.OTHER} and {MISSING} are there already: leave them out")
    return tuple(str(one) for one in found)


def _text(value: Any) -> str | None:
    """Writes a category as text, the same from CSV files and DataFrames: 1, 1.0 and "1" agree."""
    if value is None:
        return None
    if isinstance(value, str):
        # pandas writes 2 as 2.0 in a column of whole numbers where one is missing.
        return _WHOLE.sub(r"\1", value.strip())
    if isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_):
        real = float(value)
        if math.isnan(real):
            return None
        return str(int(real)) if real.is_integer() and abs(real) < 2**53 else repr(real)
    # pandas' NA and NaT are known by name: they are no numbers, and cannot be compared.
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    return str(value)


def from_table(
    table: Any,
    schema: TableSchema | str | os.PathLike[str] | Mapping[str, Any],
    *,
    public_size: int | None = None,
    size_bound: int | None = None,
    test: Any = None,
    identified_by: str | None = None,
    name: str = "user table",
) -> dataset.Dataset:
    """Returns a data set from a table, each row encoded by the schema alone.

    Numbers become (value - low) / (high - low), clipped to [0, 1], with a second column that is 1
    if the value is missing. Categories become one column per value, one for any other value and one
    for a missing value. Texts become one column per slot that words are hashed into. A record
    without a target is left out; with identified_by="slot" (replace-one), where no record may
    disappear, the table is refused instead. Each row is encoded by itself, so adding or removing
    one row of the table changes at most one row of the result.

    Example:
      >>> from dpjax import data
      >>> schema = data.read_schema({
      ...     "target": {"column": "insured", "classes": ["no", "yes"]},
      ...     "columns": {"age": {"range": [18, 65]}, "region": {"values": ["north", "south"]}},
      ... })
      >>> people = {
      ...     "age": [34, None, 71], "region": ["north", "east", None],
      ...     "insured": ["yes", "no", "yes"],
      ... }
      >>> data.from_table(people, schema, public_size=3).train.inputs[2].tolist()
      [1.0, 0.0, 0.0, 0.0, 0.0, 1.0]

    Args:
      table: a DataFrame, a mapping from column names to lists, or the path of a CSV file whose
        first line names the columns.
      schema: a `TableSchema`, the path of its JSON file, or the file's content as a mapping. It
        names every column of the table, if only to leave it out.
      public_size: a public, nominal number of training records, not read off the table.
      size_bound: a public upper bound on the number of records; `public_size` unless given.
      test: another table of test records, whose number is public.
      identified_by: as in `from_arrays`; the schema's identifier if it has one.
      name: of the data set.

    Raises:
      FileNotFoundError: if there is no such file.

    Warns:
      schema_fit.SchemaFitWarning: if much of a column of 20 records or more is encoded as another
        value, as an end of its range, or as missing; see `check_schema`.
    """
    checks.text("name", name)
    known = read_schema(schema)
    if public_size is None:
        raise checks.Refused(
            f"{name}: pass ",
            ("public_size", ...),
            ", a number that is public knowledge; it is not read off the table, because how many "
            "records it holds is private",
        )
    inputs, labels, identifiers = encoded(
        table, known, name, every=identified_by == user_arrays.SLOT
    )
    held = None if test is None else encoded(test, known, f"{name}: test")[:2]
    made = user_arrays.from_arrays(
        inputs,
        labels,
        public_size=public_size,
        **known.answers,
        test=held,
        size_bound=size_bound,
        identifiers=identifiers,
        identified_by=identified_by,
        name=name,
    )
    # Under replace-one a record must not disappear when its target is replaced by a missing one.
    # Only with places as identifiers is every record required to have a target.
    train = dataclasses.replace(
        made.train, stable_under_replacement=identified_by == user_arrays.SLOT
    )
    return dataclasses.replace(
        made,
        train=train,
        description=f"{name}, scaled and one-hot by a public schema",
        class_names=known.class_names or None,
        feature_names=known.feature_names,
    )


def load_table(
    path: str | os.PathLike[str],
    *,
    schema: str,
    public_size: int | None,
    size_bound: int | None = None,
    test_table: str | None = None,
    identified_by: str | None = None,
) -> dataset.Dataset:
    """Returns a data set from a CSV file and a schema file.

    Args:
      path: of the table; its first line names the columns.
      schema: path of the JSON file that says what is public about the columns (write one to fill in
        by `dpjax schema TABLE.csv SCHEMA.json`).
      public_size: a public, nominal number of training records.
      size_bound: a public upper bound on the number of records; `public_size` unless given.
      test_table: path of a CSV file of test records, whose number is public.
      identified_by: as in `from_arrays`.

    Raises:
      FileNotFoundError: if there is no such file.
    """
    checks.path("path", path)
    if schema is None:
        words = ", what is public about its columns; "
        write = f"`dpjax schema {path} SCHEMA.json` writes one to fill in"
        raise checks.Refused(f"{path}: pass ", ("schema", ...), words, write)
    checks.path("schema", schema)
    if test_table is not None:
        checks.path("test_table", test_table)
    return from_table(
        path,
        schema,
        public_size=public_size,
        size_bound=size_bound,
        test=test_table,
        identified_by=identified_by,
        name=str(path),
    )


def write_schema(table: Any, path: str | os.PathLike[str]) -> None:
    """Writes a schema to fill in, from the names of a table's columns and nothing else.

    No value is read, only the first line of a CSV file or the `columns` of a DataFrame. Column
    names count as public; if they are not (one column per patient), rename the columns first.

    Example:
      >>> import pathlib
      >>> from dpjax import data
      >>> _ = pathlib.Path("people.csv").write_text("age,insured\\n34,yes\\n")
      >>> data.write_schema("people.csv", "people.json")
      >>> "34" in pathlib.Path("people.json").read_text()
      False

    Args:
      table: a DataFrame, a mapping by column, or the path of a CSV file.
      path: of the JSON file to write; an existing file is not replaced.

    Raises:
      FileNotFoundError: if there is no such table.
    """
    path = os.fspath(checks.path("path", path))
    if os.path.exists(path):
        raise ValueError(f"{path} is there already: pass another path, or remove it")
    names = tabular.column_names(table)
    empty = {"range": None, "values": None, "text": None}
    filled_in = json.dumps(
        {
            "about": _ABOUT,
            "target": {"column": None, "classes": None, "range": None},
            "identifier": None,
            "missing": list(MISSING_SPELLINGS),
            "columns": {name: dict(empty) for name in names},
        },
        indent=2,
        ensure_ascii=False,
    )
    with files.replacing(path) as partial, open(partial, "w", encoding="utf-8") as file:
        file.write(filled_in + "\n")


def encoded(
    table: Any, schema: TableSchema, name: str, every: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Encodes the records that have a target: inputs (n, d), labels (n,) and identifiers (n,)."""
    columns = tabular.columns_of(table, name)
    _check_columns(columns, schema, name)
    labels, kept = _labels(columns[schema.target], schema, name)
    if every and not np.all(kept):
        raise checks.Refused(
            f"{name}: target {schema.target!r} is missing from some records, and none may be left "
            "out under replace-one: give every record a target (in the schema a class of its own, "
            'such as "unknown"), or take Poisson lots (',
            *(("sampling", "poisson"), '; in Python also identified_by="content")'),
        )
    stored = _stored(columns, schema, name)
    if len(labels) >= schema_fit.FEWEST:
        schema_fit.warn(_fits(columns, schema, name), name)
    inputs = _inputs(columns, stored, schema)[kept]
    identifiers = None
    if schema.identifier is not None:
        given = [_category(value, schema.missing) for value in columns[schema.identifier]]
        held = [one for one, keep in zip(given, kept) if keep]
        if None in held:
            raise ValueError(f"{name}: column {schema.identifier!r} lacks an identifier: pass all")
        identifiers = np.array(held, dtype=str)
    return inputs, labels[kept], identifiers


def _check_columns(columns: Mapping[str, Any], schema: TableSchema, name: str) -> None:
    """Refuses a table of other columns than the schema's, or of columns of several lengths."""
    if schema.target not in columns:
        raise ValueError(
            f"{name}: the target {schema.target!r} is not a column of the table: pass one of "
            f"{', '.join(map(repr, columns))} as the schema's target"
        )
    if unknown := sorted(set(columns) - set(schema.columns)):
        raise ValueError(
            f"{name}: column {unknown[0]!r} is not in the schema: name it there, if only to "
            f'"{LEAVE_OUT}"{_meant(unknown[0], columns, schema)}'
        )
    missing = sorted(set(schema.columns) - set(columns))
    if missing == [schema.identifier]:
        raise ValueError(
            f"{name}: the identifier {schema.identifier!r} is not a column of the table: pass "
            "one of its columns as the schema's identifier (or as --user_column), or null"
        )
    if missing:
        raise ValueError(
            f"{name}: column {missing[0]!r} of the schema is not in the table: drop that column"
            f"{_meant(missing[0], columns, schema)}"
        )
    _check_lengths(columns, schema.columns, name)


def _meant(wrong: str, columns: Mapping[str, Any], schema: TableSchema) -> str:
    """Returns the end of an error message that names the column probably meant, or ""."""
    alone = {*columns} ^ {*schema.columns}
    others = alone - ({*columns} if wrong in columns else {*schema.columns})
    close = difflib.get_close_matches(wrong, sorted(others), 1)
    where = "schema" if wrong in columns else "table"
    return f" (the {where} has {close[0]!r}: did you mean that?)" if close else ""


def _check_lengths(
    columns: Mapping[str, Sequence | np.ndarray], read: Sequence[str], name: str
) -> None:
    """Refuses columns of different lengths."""
    if len({len(columns[one]) for one in read}) != 1:
        raise ValueError(f"{name}: columns of different lengths: pass one value per record in each")


def check_schema(
    table: Any, schema: TableSchema | str | os.PathLike[str] | Mapping[str, Any]
) -> list[schema_fit.ColumnFit]:
    """Returns how a schema fits a table, column by column; for the curator alone.

    Example:
      >>> from dpjax import data
      >>> schema = {"target": {"column": "insured", "classes": ["no", "yes"]},
      ...           "columns": {"sex": {"values": ["MALE", "FEMALE"]}}}
      >>> data.check_schema({"sex": ["male", "FEMALE"], "insured": ["no", "yes"]}, schema)[0].line
      'sex: 50.0% other, 0.0% below and 0.0% above the range, 0.0% missing'

    Args:
      table, schema: as for `from_table`.
    """
    known = read_schema(schema)
    columns = tabular.columns_of(table, "table")
    _check_columns(columns, known, "table")
    return _fits(columns, known, "table")


def _stored(
    columns: Mapping[str, Sequence | np.ndarray], schema: TableSchema, name: str
) -> dict[str, Sequence | np.ndarray]:
    """Returns the encoded columns as `tabular.Schema.stored` takes them."""
    stored: dict[str, Sequence | np.ndarray] = {}
    for one in schema.inputs.ranges:
        stored[one] = _numbers(columns[one], schema.missing, f"{name}: column {one!r}")
    for one in schema.inputs.vocabularies:
        found = [_category(value, schema.missing) for value in columns[one]]
        # A cell that spells out "(missing)" is another value, not a missing one.
        stored[one] = [
            MISSING if value is None else tabular.OTHER if value == MISSING else value
            for value in found
        ]
    return stored


def _fits(columns: Mapping[str, Any], schema: TableSchema, name: str) -> list[schema_fit.ColumnFit]:
    """Returns how every encoded column, and a target that is a number, fits the schema."""
    stored, inputs = _stored(columns, schema, name), schema.inputs
    if schema.target_range is not None:
        what = f"{name}: target {schema.target!r}"
        stored[schema.target] = _numbers(columns[schema.target], schema.missing, what)
        ranges = {**inputs.ranges, schema.target: schema.target_range}
        inputs = dataclasses.replace(inputs, ranges=ranges)
    fits = schema_fit.of_columns(stored, inputs, MISSING)
    for one in schema.texts:
        wordless = [not text.words(_category(value, schema.missing)) for value in columns[one]]
        fits.append(schema_fit.ColumnFit(one, missing=float(np.mean(wordless))))
    return fits


def _inputs(
    columns: Mapping[str, Any], stored: Mapping[str, Any], schema: TableSchema
) -> np.ndarray:
    """Returns the inputs, (n, features) float32, from the columns and the result of `_stored`."""
    parts = [schema.inputs.encode(schema.inputs.stored(stored))] if stored else []
    for one, size in schema.texts.items():
        texts = [_category(value, schema.missing) for value in columns[one]]
        parts.append(text.hashed_words(texts, size))
    return np.concatenate(parts, axis=1)


def _category(value: Any, missing: Sequence[str]) -> str | None:
    """Returns a category as text, None where it is missing."""
    found = _text(value)
    return None if found is None or found in missing else found


def _labels(values: Any, schema: TableSchema, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns class numbers or targets, and which records have one, both (n,)."""
    if not schema.classes:
        numbers = _numbers(values, schema.missing, f"{name}: target {schema.target!r}")
        kept = ~np.isnan(numbers)
        if schema.above is not None:
            return (numbers > schema.above).astype(np.int32), kept
        with np.errstate(over="ignore"):  # A number beyond float32 is refused as infinite.
            return numbers.astype(np.float32), kept
    places = {value: place for place, value in enumerate(schema.classes)}
    found = [_category(value, schema.missing) for value in values]
    kept = np.array([one is not None for one in found], bool)
    labels = np.array([0 if one is None else places.get(one, -1) for one in found], np.int32)
    if np.any(labels < 0):
        raise ValueError(
            f"{name}: target {schema.target!r} holds values outside its classes "
            f"{checks.shown(schema.classes)}: list all values as classes, list some under "
            '"missing", or pass a number as "above" instead of classes'
        )
    return labels, kept


def _numbers(values: Any, missing: Sequence[str], what: str) -> np.ndarray:
    """Reads numbers, (n,) float64, NaN where missing."""

    def one(value: Any) -> float:
        if isinstance(value, str):
            cell = value.strip()
            return math.nan if cell in missing else float(cell)
        if value is None or type(value).__name__ in ("NAType", "NaTType"):
            return math.nan
        return float(value)

    try:
        return np.array([one(value) for value in values], np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(
            f"{what} holds values that are not numbers: pass values instead of a range in the "
            'schema, or list how a missing value is spelt under "missing"'
        ) from None
