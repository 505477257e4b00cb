"""What the public default was developed on: models and rates, table by table.

Tables of people and flights cut to a number of training records, the rest test; nothing is claimed
of them (`registration.DEVELOPMENT`). A row is one untuned run at a total epsilon of 2: a model, on
the table's inputs or on these and bins of its numbers, its last iterate or an average, at the rate
of version 0.2's rule (noise of 5 in an output) times a factor.

  python -m experiments.figures.leaderboard.development --data_dir=<where Adult's files are> \\
      --only=bins --out=docs/figures/leaderboard/development_bins.csv

Without --only it makes all of them, an hour of one core. The committed `development.csv` is older:
rows of the same settings without bins, on splits that were not kept. Rows that the file holds are
not made again.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import experiments.data_sets  # noqa: F401 - registers the tables.
from dpjax import data, models, tuning
from dpjax.tuning.problem import public_defaults as rules
from dpjax.tuning.problem.task import accuracy_of
from experiments.figures import row_program

EPSILON, DELTA, SPLITS, BINS = 2.0, 1e-5, 2, 16
COLUMNS = ("table", "train", "epsilon", "widths", "bins", "average", "rate_factor", "split",
           "accuracy")  # fmt: skip

NUMBERS = {
    "nass_cds": ("ageOFocc", "yearacc", "yearVeh"),
    "tv16": ("age", "famincr", "ideo"),
    "adult": ("age", "education-num", "capital-gain", "capital-loss", "hours-per-week"),
    "flights": ("distance",),
    "fertility": (),
}
"""The tables, and which of their columns are put into bins."""

RECORDS = {
    20_000: tuple(NUMBERS),
    5_000: ("nass_cds", "tv16", "adult", "flights"),
    2_000: ("nass_cds", "tv16"),
}
"""Training records, and of which tables; of the fewest linear models alone."""

MODELS = (
    ("", 0, 0.0, 1.0), ("", 0, 0.5, 1.0), ("", 0, 0.5, 3.0), ("64", 0, 0.5, 0.5),
    ("128-64", 0, 0.5, 0.25), ("128-64", 0, 0.5, 0.5), ("128-64", 0, 0.5, 1.0),
    ("64", BINS, 0.5, 0.5), ("64", BINS, 0.5, 1.0),
)  # fmt: skip
"""Hidden layers, bins, the share of the iterates that is averaged (0: the last one), the factor."""

DEFAULT = ("128-64", 0.5)
"""Hidden layers and factor of the default for this many records."""


ONLY = {"only": "'bins': bins and the default's net alone, 20,000 records, tables with numbers"}


def settings(only: str | None = None, **_: Any) -> Iterator[dict[str, Any]]:
    """What is tried, as the first columns of its row."""
    for setting in _all():
        of_bins = setting["bins"] or (setting["widths"], setting["rate_factor"]) == DEFAULT
        asked = setting["train"] == 20_000 and NUMBERS[setting["table"]] and of_bins
        if only is None or asked:
            yield setting


def _all() -> Iterator[dict[str, Any]]:
    for train, tables in RECORDS.items():
        for table in tables:
            for split in range(SPLITS):
                for widths, bins, average, factor in MODELS:
                    if (train > 2_000 or not widths) and (not bins or NUMBERS[table]):
                        yield {
                            "table": table, "train": train, "epsilon": EPSILON, "widths": widths,
                            "bins": bins, "average": average, "rate_factor": factor, "split": split,
                        }  # fmt: skip


@functools.lru_cache(maxsize=1)
def loaded(table: str, data_dir: str | None) -> tuple[np.ndarray, np.ndarray, tuple[int, ...]]:
    """Returns all inputs (n, d), labels (n,) and the places of `NUMBERS`."""
    found = data.load(table, data_dir)
    test, names = found.test, found.feature_names
    assert test is not None and names is not None
    inputs = np.concatenate([found.train.inputs, test.inputs])
    labels = np.concatenate([found.train.labels, test.labels])
    return inputs, labels, tuple(names.index(name) for name in NUMBERS[table])


def with_bins(inputs: np.ndarray, columns: Sequence[int], number: int) -> np.ndarray:
    """Returns inputs (n, d), and beside them in which of so many bins of [0, 1] columns are."""
    places = np.clip(np.floor(inputs[:, columns] * number), 0, number - 1).astype(int)
    return np.concatenate(
        [inputs, np.eye(number, dtype=inputs.dtype)[places].reshape(len(inputs), -1)], 1
    )


def row_of(setting: Mapping[str, Any], data_dir: str | None, **_: Any) -> dict[str, Any]:
    """Returns the row of a setting."""
    inputs, labels, numbers = loaded(setting["table"], data_dir)
    if setting["bins"]:
        inputs = with_bins(inputs, numbers, setting["bins"])
    order = np.random.default_rng([18, setting["split"]]).permutation(len(labels))
    train, test = order[: setting["train"]], order[setting["train"] :]
    mine = tuning.Records((inputs[train], labels[train]), len(train), len(train))
    # Nothing of it is used: nothing is scored.
    unused = tuning.Records((inputs[test[:1]], labels[test[:1]]), 1, 1)
    widths = tuple(int(width) for width in setting["widths"].split("-") if width)
    model = models.build_module("mlp" if widths else "logistic_regression", 2, widths=widths)
    task = tuning.classification(model, mine, unused)
    default = rules.public_defaults(
        len(train), rules.numbers_of(task)[0], EPSILON, DELTA, outputs=None
    )
    of_0_2 = rules.OUTPUT_NOISE_WITHOUT_AVERAGE / rules.OUTPUT_NOISE_OF_NETS
    rate = setting["rate_factor"] * of_0_2 * default.learning_rate
    default = dataclasses.replace(default, learning_rate=rate)
    result = tuning.tune(
        default.averaged(task) if setting["average"] else task,
        default.space(),
        tuning.Untuned(),
        epsilon=EPSILON,
        delta=DELTA,
        run=default.run,
        seed=setting["split"],
    )
    assert result is not None
    accuracy = accuracy_of(task, result.release.params, (inputs[test], labels[test]))
    return dict(setting) | {"accuracy": round(accuracy, 5)}


if __name__ == "__main__":
    row_program.run(COLUMNS, settings, row_of, **row_program.DATA_DIR, **ONLY)
