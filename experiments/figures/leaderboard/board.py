"""The board on judgement tables: what a private model is worth there, ours and other libraries'.

Contests, methods, comparisons and aims are fixed in `registration.py`, whose SHA-256 every row
names. A row is one method on one split of one table at one total epsilon (delta 1e-5): its test
accuracy, and what one run of it costs. The default has no rows of its own: it is the linear or the
net one, by the number of training records.

  python -m experiments.figures.leaderboard.board --out_dir=docs/figures/leaderboard \\
      --ebm_python=<venv with interpret-core>/bin/python --diffprivlib_python=<one with diffprivlib>

Attempts that the folder's rows hold are not made again. The picture has intervals and one epsilon;
the registered one, of one split at three, showed noise as crossing lines.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import pathlib
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from dpjax import accounting, data, models, plotting, tuning
from dpjax.tuning.problem.public_defaults import WIDTHS, defaults_of
from dpjax.tuning.problem.task import accuracy_of
from experiments.data_sets import r_tables
from experiments.figures.figure import FULL, QUICK, FigureSpec, option
from experiments.figures.leaderboard import others, registration
from experiments.figures.leaderboard.registration import DELTA, EPSILON, LARGER, RULE, TABLES
from experiments.figures.panels import WIDTH, legend_below
from experiments.figures.rows import RowFolder, interval, select

FACTOR_OF_0_2 = 1 / 3
"""The rate of 0.2 over that of the linear default: noise of 5 in an output in the place of 15."""
PRIOR_FACTOR = 2.5

COLUMNS = {
    "table": "name", "split": "1", "epsilon": "nats", "method": "name", "delta": "probability",
    "train": "records", "test": "records", "accuracy": "1", "one_run": "nats", "composed": "nats",
    "registration": "sha256",
}  # fmt: skip
PRIMARY = (("default", "default of 0.2"), ("default", "DP-EBM"), ("tuned", "default"))
_QUICK_RECORDS, _QUICK_TABLE = 400, "voters"


@dataclasses.dataclass(frozen=True)
class Options:
    """Where other libraries are; without their Python, their rows are not made."""

    ebm_python: str | None = option(None, "Python of an environment with interpret-core.")
    diffprivlib_python: str | None = option(None, "Python of an environment with diffprivlib.")


def fingerprint() -> str:
    """Returns the SHA-256 of the registration."""
    return hashlib.sha256(pathlib.Path(registration.__file__).read_bytes()).hexdigest()


class Attempt(NamedTuple):
    """A row's numbers, and which test records (n,) are right."""

    numbers: dict[str, float | None]
    right: np.ndarray


# One split of a table ----------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def encoded(name: str) -> dict[str, np.ndarray]:
    """Returns a table's inputs (n, features), labels (n,), and columns (n, columns) with bounds."""
    table, schema = TABLES[name], data.read_schema(TABLES[name].schema)
    inputs = schema.inputs
    rows = r_tables.columns(table.package, table.item, (*inputs.columns, schema.target))
    made = data.from_table(rows, schema, public_size=len(rows[schema.target])).train
    ranges = [inputs.ranges.get(one, (np.nan, np.nan)) for one in inputs.columns]
    return {
        "inputs": made.inputs,
        "labels": made.labels,
        "columns": columns_of(inputs, made.inputs),
        "bounds": np.array(ranges, np.float64),
    }


def columns_of(schema, inputs: np.ndarray) -> np.ndarray:
    """Returns (n, columns) of encoded inputs: numbers, NaN where missing; categories by place."""
    found, at = [], 0
    for name in schema.columns:
        if name in schema.ranges:
            low, high = schema.ranges[name]
            number = low + (high - low) * inputs[:, at].astype(np.float64)
            found.append(np.where(inputs[:, at + 1] == 1, np.nan, number))
            at += 2
        else:
            width = len(schema.vocabularies[name])
            found.append(np.argmax(inputs[:, at : at + width], axis=1).astype(np.float64))
            at += width
    return np.stack(found, axis=1)


@dataclasses.dataclass(frozen=True)
class Split:
    """A division of a table's records, by the number of the split alone."""

    table: str
    number: int
    records: int = registration.TRAINING_RECORDS

    @functools.cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """Returns what `others` reads."""
        whole = dict(encoded(self.table))
        bounds = whole.pop("bounds")
        count = len(whole["labels"])
        order = np.random.default_rng([18, self.number]).permutation(count)
        train = min(self.records, count * 4 // 5)
        parts = {name: array[order[:train]] for name, array in whole.items()}
        tests = {f"test_{name}": array[order[train:]] for name, array in whole.items()}
        return parts | tests | {"bounds": bounds, "classes": np.array(2)}

    def ours(self, epsilon: float, widths: Sequence[int], factor: float = 1.0, **how) -> Attempt:
        """Returns what a private run makes; `how` as of `_tuned`."""
        held = self.arrays
        train, test = ((held[f"{of}inputs"], held[f"{of}labels"]) for of in ("", "test_"))
        records = data.from_arrays(
            *train, test=test, public_size=len(train[1]), classes=2,
            identifiers=np.arange(len(train[1])),
        )  # fmt: skip
        kind = "mlp" if widths else "logistic_regression"
        parts = records.without_validation()
        module = models.build_module(kind, 2, widths=widths)
        task = tuning.classification(module, parts.train, parts.validation)
        result = _tuned(task, epsilon, self.number, factor, **how)
        one, runs = result.run_guarantee, registration.RUNS
        assert task.classifier is not None
        predicted = task.classifier.predict(result.release.params, test[0])
        numbers = {
            "accuracy": accuracy_of(task, result.release.params, test),
            "one_run": one.epsilon(DELTA),
            "composed": accounting.compose(*[one] * runs).epsilon(DELTA),
        }
        return Attempt(numbers, np.asarray(predicted) == test[1])


def theirs(
    arrays: Mapping[str, np.ndarray], method: str, epsilon: float, seed: int, python: str
) -> Attempt:
    """Returns what another library makes of arrays, which are as of `Split.arrays`."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "split.npz")
        np.savez(path, **arrays)
        words = (python, others.__file__, method, path, epsilon, DELTA, seed)
        ran = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False)
        if ran.returncode:
            raise ValueError(f"{method} failed: {ran.stderr.strip()[-300:]}")
        right = np.load(os.path.join(folder, others.RIGHT))
    return Attempt({"accuracy": float(right.mean()), "one_run": None, "composed": None}, right)


def _tuned(
    task: tuning.Task,
    epsilon: float,
    seed: int,
    factor: float,
    averaged: bool = True,
    runs: int | None = None,
) -> tuning.Result:
    """One run at the default's rate times `factor`; or the best of K, geometric of mean `runs`."""
    default = defaults_of(task, epsilon, DELTA)
    default = dataclasses.replace(default, learning_rate=factor * default.learning_rate)
    tuner: tuning.tuner.Tuner = tuning.Untuned()
    if runs is not None:
        law = accounting.Geometric(mean=runs)
        tuner = tuning.RandomRepetitions(law, score_on_training=True)
    result = tuning.tune(
        default.averaged(task) if averaged else task,
        default.space(None if runs is None else PRIOR_FACTOR),
        tuner,
        epsilon=epsilon,
        delta=DELTA,
        run=default.run,
        seed=seed,
    )
    assert result is not None
    return result


# What is tried -----------------------------------------------------------------------------------


def is_net(train: int) -> bool:
    """Returns whether the default is a net, by the public number of training records."""
    return train >= RULE["net from records"]


def attempt(split: Split, epsilon: float, method: str, options: Options) -> Attempt | None:
    """Returns what a method makes of a split, None for a library that is not there."""
    train = len(split.arrays["labels"])
    if method == "default of 0.2":
        return split.ours(epsilon, (), FACTOR_OF_0_2, averaged=False)
    if method in ("linear", "net"):
        return split.ours(epsilon, WIDTHS if method == "net" else ())
    if method == "tuned":
        widths = WIDTHS if is_net(train) else ()
        return split.ours(epsilon, widths, runs=registration.RUNS)
    python = options.ebm_python if method == "DP-EBM" else options.diffprivlib_python
    if python is None:
        return None
    return theirs(split.arrays, method, epsilon, split.number, python)


def attempts(size: str) -> Iterator[tuple[str, int, float, str]]:
    """What is tried, as (table, split, epsilon, method): all that is compared, then the picture."""
    own = [name for name in registration.METHODS if name != "default"]
    if size == QUICK:
        yield from ((_QUICK_TABLE, 0, EPSILON, name) for name in own)
        return
    for split in range(registration.SPLITS):
        yield from ((table, split, EPSILON, name) for table in TABLES for name in own)
    for epsilon in registration.PICTURE_EPSILONS:
        if epsilon != EPSILON:
            yield from ((table, 0, epsilon, name) for table in LARGER for name in ("net", "tuned"))


def train(folder: RowFolder, options: Options) -> None:
    """Makes the rows that the folder does not hold yet."""
    rows = folder.read(FIGURE.name)
    columns = ("table", "split", "epsilon", "method")
    done = {tuple(row[column] for column in columns) for row in rows}
    for one in attempts(folder.size):
        if one in done:
            continue
        table, number, epsilon, method = one
        records = _QUICK_RECORDS if folder.size == QUICK else registration.TRAINING_RECORDS
        split = Split(table, number, records)
        started = time.monotonic()
        found = attempt(split, epsilon, method, options)
        if found is None:
            continue
        sizes = {f: len(split.arrays[k]) for f, k in (("train", "labels"), ("test", "test_labels"))}
        rows.append(
            dict(zip(columns, one)) | sizes | found.numbers
            | {"delta": DELTA, "registration": fingerprint()}
        )  # fmt: skip
        folder.write(FIGURE.name, COLUMNS, rows)
        folder.report(f"{one}: {found.numbers['accuracy']:.4f}, {time.monotonic() - started:.0f} s")


# What the rows say -------------------------------------------------------------------------------


def accuracies(rows: Sequence[Mapping], table: str, method: str, epsilon: float = EPSILON) -> dict:
    """Returns a method's test accuracy by split; the default's are the linear or the net one's."""
    own = select(rows, table=table, epsilon=epsilon)
    if method == "default" and own:
        method = "net" if is_net(own[0]["train"]) else "linear"
    return {row["split"]: row["accuracy"] for row in own if row["method"] == method}


def mean(rows: Sequence[Mapping], table: str, method: str) -> float:
    """Returns a method's mean test accuracy over the splits of a table, in percent."""
    return 100 * float(np.mean([*accuracies(rows, table, method).values()]))


def difference(rows: Sequence[Mapping], table: str, one: str, other: str) -> tuple[float, float]:
    """Returns a table's difference of two methods, in points, and half its interval."""
    first, second = (accuracies(rows, table, method) for method in (one, other))
    paired = [100 * (first[split] - second[split]) for split in sorted({*first} & {*second})]
    return over_splits(paired, select(rows, table=table)[0])


def over_splits(paired: Sequence[float], row: Mapping) -> tuple[float, float]:
    """Returns the mean of splits' paired differences, and half its interval; 0 of one split.

    Splits share records, so their differences vary together; see `registration`. `row` has the
    numbers of training and of test records.
    """
    number = len(paired)
    if number < 2:
        return float(np.mean(paired)), 0.0
    variance = np.var(paired, ddof=1) * (1 / number + row["test"] / row["train"])
    return float(np.mean(paired)), float(stats.t.ppf(0.975, number - 1) * np.sqrt(variance))


def met(found: Sequence[tuple[str, bool]]) -> list[str]:
    """Returns a line for each aim, and whether it is met."""
    return [f"{'met' if reached else 'MISSED'}: {words}" for words, reached in found]


def of_group(
    rows: Sequence[Mapping], tables: Iterable[str], one: str, other: str
) -> tuple[float, float]:
    """Returns the mean difference over tables, in points, and half its interval over tables."""
    return interval([difference(rows, table, one, other)[0] for table in tables])


def aims(rows: Sequence[Mapping]) -> list[tuple[str, bool]]:
    """Returns the registration's aims with what became of them, and whether they are met."""
    others_ = [name for name in registration.METHODS if name != "default"]

    def behind(table: str) -> float:
        best = max(mean(rows, table, name) for name in others_)
        return best - mean(rows, table, "default")

    ahead = sum(behind(table) <= 0 for table in LARGER)
    worst = max(behind(table) for table in registration.SMALLER)
    old, ebm = (of_group(rows, LARGER, "default", name)[0] for name in ("default of 0.2", "DP-EBM"))
    return [
        (f"at or above every other contestant on {ahead} of {len(LARGER)} larger tables "
         f"(aim: {len(LARGER) - 1})", ahead >= len(LARGER) - 1),
        (f"{old:+.2f} points over the default of 0.2 on larger tables (aim: +0.5)", old >= 0.5),
        (f"{ebm:+.2f} points over DP-EBM on larger tables (aim: +1)", ebm >= 1.0),
        (f"at worst {worst:.2f} points behind the best contestant on smaller tables (aim: 0.3)",
         worst <= 0.3),
    ]  # fmt: skip


def draw(rows: Sequence[Mapping]) -> Figure:
    """Differences from the default by table, with their intervals, at the registered epsilon."""
    tables = [name for name in TABLES if select(rows, table=name)]
    figure, axes = plotting.new_figure(WIDTH, 0.34 * len(tables) + 1.3)
    blue, red, *_, dark = plotting.PALETTE
    shown = (("tuned", "o", blue, "tuned minus the default"),
             ("DP-EBM", "s", red, "DP-EBM minus the default"))  # fmt: skip
    for place, name in enumerate(reversed(tables)):
        for (method, mark, colour, words), shift in zip(shown, (0.14, -0.14), strict=True):
            if accuracies(rows, name, method):
                middle, half = difference(rows, name, method, "default")
                axes.errorbar(
                    middle, place + shift, xerr=half, fmt=mark, color=colour,
                    linewidth=2, label=words if place == 0 else None,
                )  # fmt: skip
    axes.axvline(0, color=dark, linewidth=1)
    axes.set_yticks(range(len(tables)), reversed(tables))
    axes.set_xlabel("accuracy points, with 95% intervals over splits")
    legend_below(figure, axes, columns=2)
    return figure


def summary(rows: Sequence[Mapping]) -> list[str]:
    """The primary comparisons and the aims, of whole rows."""
    if {row["table"] for row in rows} != set(TABLES):
        return []
    lines = []
    for one, other in PRIMARY:
        middle, half = of_group(rows, LARGER, one, other)
        lines.append(f"{one} less {other}: {middle:+.2f} +- {half:.2f} points")
    return lines + met(aims(rows))


FIGURE = FigureSpec(
    paper="leaderboard",
    name="board",
    columns=COLUMNS,
    takes={QUICK: "half a minute", FULL: "half an hour"},
    draw=draw,
    train=train,
    options=Options(),
    summary=summary,
)

if __name__ == "__main__":
    FIGURE.run()
