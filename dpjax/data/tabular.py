"""A table's public schema: what is known of its columns before a row is seen, and the inputs of it.

Numbers are scaled to [0, 1] by public ranges, categories become one column for each value of a
public vocabulary. Nothing is computed from the rows, so a row is encoded the same whatever the
others hold.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

OTHER = "(other)"
"""In a vocabulary: the value that stands for every value outside it, a missing one included."""

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
      ranges: of columns of numbers, (low, high). A value becomes (value - low) / (high - low),
        clipped to [0, 1]; a missing one becomes 0.
      vocabularies: of columns of categories: the values that have a column of their own, which is 1
        there and 0 elsewhere. Any other value goes to the column of `OTHER` where the vocabulary
        lists it, and is all zeros where it does not. Of two levels it is enough to list one.
      optional: the columns of numbers with one more column, 1 where the value is missing.

    A row's norm is at most the square root of the number of its columns here.

    Raises:
      ValueError: for an empty range or vocabulary, or a name that is used twice.
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
                raise ValueError(f"optional: {name!r} is no column of ranges: leave it out")
        for what, names in (("column", self.columns), ("feature", self.feature_names)):
            repeated = {name for name in names if names.count(name) > 1}
            if repeated:
                raise ValueError(
                    f"{what} {min(repeated)!r} is named twice: pass it in ranges or in "
                    "vocabularies, each value once"
                )

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the table's columns, in the order of `stored`."""
        return (*self.ranges, *self.vocabularies)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the encoded columns."""
        names = []
        for name in self.ranges:
            names += [name, f"{name}=(missing)"] if name in self.optional else [name]
        for name, vocabulary in self.vocabularies.items():
            names += [f"{name}={value}" for value in vocabulary]
        return tuple(names)

    def stored(self, table: Mapping[str, Sequence | np.ndarray]) -> np.ndarray:
        """Returns (n, columns) float32: numbers as they are, categories by place.

        Missing numbers are NaN; a category is its place in its vocabulary, or that of `OTHER`, or
        -1.

        Args:
          table: by name, at least `columns`, each (n,): numbers with NaN or None where missing;
            categories as the vocabulary spells them.
        """
        with np.errstate(over="ignore"):  # What is beyond float32 is beyond its range too.
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
