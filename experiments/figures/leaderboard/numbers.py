"""Whether the public default should read bins or logarithms of a table's numbers beside them.

Skewed numbers of which a range alone is known (votes, incomes) are nearly all near 0 in [0, 1]. On
development tables bins of the numbers gained 1.03 points on Adult and 0.37 in the mean of four
(`development_bins.csv`). Here they are judged on the tables of `worth_registration`, which no rule
was looked at on.

Registered before a row was made. Contestants: the default on the encoded table; the same with
`BINS` equal bins of each number's public range beside it; the same with log(1 + 999 x) / log(1000)
beside each number x in [0, 1]. Total epsilon 2, five splits, points as in the study. **A contestant
enters the default if its mean difference over tables is at least 0.5 points, the 95% interval over
tables excludes 0, and no table's mean falls by more than 1 point.** Of two, the better one enters.

  python -m experiments.figures.leaderboard.numbers --out=docs/figures/leaderboard/numbers.csv

Rows that the file holds are not made again.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.figures import row_program
from experiments.figures.leaderboard import worth, worth_tasks
from experiments.figures.leaderboard.development import with_bins
from experiments.figures.leaderboard.worth_registration import PRIMARY, SPLITS, TASKS
from experiments.figures.leaderboard.worth_tasks import Arrays, Split
from experiments.figures.rows import interval, select

BINS = 16
PLAIN, BINNED, LOGARITHM = "default", "with bins", "with logarithms"
READ = (PLAIN, BINNED, LOGARITHM)
COLUMNS = ("task", "read", "split", "value")
TABLES = tuple(name for name, task in TASKS.items() if task.kind == "table")


def settings(**_: Any) -> Iterator[dict[str, Any]]:
    """What is tried, as the first columns of its row."""
    for task, read, split in itertools.product(TABLES, READ, range(SPLITS)):
        yield {"task": task, "read": read, "split": split}


def read_as(read: str, task: str, inputs: np.ndarray) -> np.ndarray:
    """Returns encoded inputs (n, features), and what a contestant reads beside them."""
    # Numbers come first, each with a column that says whether it is missing.
    numbers = range(0, 2 * len(worth_tasks.ranges_of(TASKS[task])), 2)
    if read == BINNED:
        return with_bins(inputs, numbers, BINS)
    if read == LOGARITHM:
        beside = np.log1p(999 * inputs[:, numbers]) / np.log(1000)
        return np.concatenate([inputs, beside.astype(inputs.dtype)], axis=1)
    return inputs


@functools.lru_cache(maxsize=1)
def _trainer(task: str, read: str) -> worth.Trainer:
    def made(arrays: Arrays) -> Arrays:
        return read_as(read, task, arrays[0]), arrays[1]

    splits = [worth_tasks.split_of(task, number) for number in range(SPLITS)]
    return worth.Trainer(
        worth_tasks.learner_of(task), [Split(made(one.train), made(one.test)) for one in splits]
    )


def row_of(setting: Mapping[str, Any], **_: Any) -> dict[str, Any]:
    """Returns the row of a setting."""
    trainer = _trainer(setting["task"], setting["read"])
    value = trainer.of_default(setting["split"], trainer.default(PRIMARY), PRIMARY)
    return {**setting, "value": round(value, 4)}


def gains(rows: Sequence[Mapping[str, Any]], read: str) -> dict[str, float]:
    """Returns by table what a contestant gains over the default, in points."""

    def mean(task: str, one: str) -> float:
        return float(np.mean([row["value"] for row in select(rows, task=task, read=one)]))

    return {task: mean(task, read) - mean(task, PLAIN) for task in TABLES}


def enters(rows: Sequence[Mapping[str, Any]], read: str) -> bool:
    """Returns whether a contestant enters the default, by the rule above."""
    found = [*gains(rows, read).values()]
    middle, half = interval(found)
    return middle >= 0.5 and middle > half and min(found) >= -1


def main() -> None:
    """Makes the rows, and prints what they decide."""
    _, rows = row_program.run(COLUMNS, settings, row_of)
    for read in READ[1:]:
        found = gains(rows, read)
        middle, half = interval([*found.values()])
        print(f"{read}: {middle:+.2f} +- {half:.2f} points, enters: {enters(rows, read)};", found)


if __name__ == "__main__":
    main()
