"""How well a public schema fits a table: shares of its columns' values, for the curator alone.

A schema is written without looking at the records, so it may not fit them: a category may be spelt
otherwise, a range be in another unit. Such a column is still encoded, but as one constant. The
shares computed here are not private: never publish them.
"""

from __future__ import annotations

import dataclasses
import unicodedata
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpjax.after_the_draw import users_level
from dpjax.data import tabular

MOST_OTHER, MOST_CLIPPED, MOST_MISSING = 0.2, 0.2, 0.5
"""Shares of a column's values above which a warning names it."""

FEWEST = 20
"""A table of fewer records gets no warning: their shares say little."""


class SchemaFitWarning(UserWarning):
    """Much of a column is encoded as another value, as an end of its range, or as missing."""


@dataclasses.dataclass(frozen=True, repr=False)
class ColumnFit:
    """How the values of one column are encoded, as shares of all records; not private.

    Attributes:
      name: of the column.
      other: share of categories that the schema does not list.
      spelling: share not listed only because of case, accents, spaces or a number's notation.
      low, high: shares clipped to the low and the high end of the range (of numbers).
      missing: share without a value.
    """

    name: str
    other: float = 0.0
    spelling: float = 0.0
    low: float = 0.0
    high: float = 0.0
    missing: float = 0.0

    def __repr__(self) -> str:
        """Shows no share: what is printed is easily published."""
        return f"ColumnFit({self.name!r}, ...)"

    @property
    def line(self) -> str:
        """Returns the shares in one line."""
        return (
            f"{self.name}: {self.other:.1%} other, {self.low:.1%} below and {self.high:.1%} above "
            f"the range, {self.missing:.1%} missing"
        )

    @property
    def doubt(self) -> str | None:
        """Returns one line on what seems wrong and what to do; None if the schema seems to fit."""
        if self.other > MOST_OTHER and self.spelling > self.other / 2:
            return (
                f"{self.other:.1%} of {self.name!r} is none of its values, mostly because of "
                "another case or spelling: spell the schema's values as the table does"
            )
        if self.other > MOST_OTHER:
            return f"{self.other:.1%} of {self.name!r} is none of its values: list what it may hold"
        if max(self.low, self.high) > MOST_CLIPPED:
            end = "below" if self.low > self.high else "above"
            return (
                f"{max(self.low, self.high):.1%} of {self.name!r} lies {end} its range and is "
                "clipped to it: state the range in the table's unit"
            )
        if self.missing > MOST_MISSING:
            return f"{self.missing:.1%} of {self.name!r} is missing: leave the column out"
        return None


def of_columns(
    stored: Mapping[str, Sequence[Any] | np.ndarray], inputs: tabular.Schema, missing_word: str
) -> list[ColumnFit]:
    """Returns the fit of every encoded column; `stored` has texts, or numbers with NaN."""
    found = []
    for name, (low, high) in inputs.ranges.items():
        values = np.asarray(stored[name])
        below, above = (float(np.mean(one)) for one in (values < low, values > high))
        missing = float(np.mean(np.isnan(values)))
        found.append(ColumnFit(name, low=below, high=above, missing=missing))
    for name, vocabulary in inputs.vocabularies.items():
        known, alike = set(vocabulary), {_folded(str(one)) for one in vocabulary}
        texts = list(stored[name])
        others = [one for one in texts if one not in known]
        spelt = sum(_folded(one) in alike for one in others)
        shares = (count / len(texts) for count in (len(others), spelt, texts.count(missing_word)))
        other, spelling, missing = shares
        found.append(ColumnFit(name, other=other, spelling=spelling, missing=missing))
    return found


def warn(fits: Sequence[ColumnFit], what: str) -> None:
    """Warns of the columns of a table that a schema does not seem to fit, in one line."""
    doubts = [one.doubt for one in fits if one.doubt is not None]
    if doubts:
        others = len(doubts) - 3
        more = f"; and {others} more column{'s' * (others > 1)}" if others > 0 else ""
        warnings.warn(
            f"for the curator alone: {what}: {'; '.join(doubts[:3])}{more} (`dpjax schema --check` "
            "shows all)",
            SchemaFitWarning,
            stacklevel=users_level(),
        )


def _folded(text: str) -> str:
    """Returns the form that a text's spellings share: no case, accents, spaces; numbers as repr."""
    plain = unicodedata.normalize("NFKD", text)
    kept = [one for one in plain if unicodedata.category(one) not in ("Mn", "Cf", "Zs")]
    folded = "".join(kept).casefold().strip()
    try:
        return repr(float(folded))
    except ValueError:
        return folded
