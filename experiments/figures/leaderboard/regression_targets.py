"""What a regression's targets are learned as under the public default: development and judgement.

`tuning.regression(target_range=)` maps the public range of targets to -R..R. R was chosen, as 5, by
a rule that was fixed before a row was made. Of 1, 2.5, 5, 10, 20 and 40 it is the one with the
largest mean of R2 (no less than 0) over `DEVELOPMENT`, a linear model and a net, one run each; of
those within .005 of it the smallest, since a larger one asks for more steps. Development: how
severe an injury (nassCDS, 0 to 4), and drawn targets: linear, Friedman's function, the exponential
of a linear one. After those rows, and before any other, were added: a linear model kept to the
noise of nets (its rate is 6 times smaller), because at the noise of linear ones it swings on 20,000
records, and the line on 300 records. The rule is applied to nets and to linear models so kept.

`JUDGED` are diamonds' prices and wages, three runs each: in [0, 1], in their units, and as chosen.
Expected: diamonds' R2 from at most .4 in [0, 1] to .95 or more with a net.

R2 is 1 less the squared error over the variance of test targets. A total epsilon of 2.

  python -m experiments.figures.leaderboard.regression_targets --part=development \\
      --out=docs/figures/leaderboard/regression_targets.csv

Rows that the file holds are not made again.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping

import numpy as np
from absl import app, flags
from flax import linen as nn

from dpjax import data, models, tuning
from dpjax.tuning.problem.public_defaults import WIDTHS, numbers_of, public_defaults
from dpjax.tuning.problem.targets import LEARNED
from experiments.data_sets import nass_cds, r_tables
from experiments.figures.rows import read_rows, select, write_rows

EPSILON, TEST_RECORDS = 2.0, 10_000
CANDIDATES = (1.0, 2.5, 5.0, 10.0, 20.0, 40.0)
UNITS, UNIT_RANGE = "their units", "0..1"
COLUMNS = ("part", "problem", "records", "model", "targets", "seed", "r2")

Arrays = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Problem:
    """Inputs (n, features) of size 1 and targets (n,), their public range, and how many train."""

    load: Callable[[], Arrays]
    range: tuple[float, float]
    records: int


def _severity() -> Arrays:
    names = (*nass_cds.SCHEMA.columns, "injSeverity")
    table = r_tables.columns("DAAG", "nassCDS", names)
    known = np.isin(table["injSeverity"], (0, 1, 2, 3, 4))
    return nass_cds.SCHEMA.encode(nass_cds.SCHEMA.stored(table))[known], table["injSeverity"][known]


def _drawn(of: Callable[[np.ndarray], np.ndarray]) -> Callable[[], Arrays]:
    """Returns 10 uniform inputs and a function of them, with noise of a tenth of its deviation."""

    def load() -> Arrays:
        generator = np.random.default_rng(52)
        inputs = generator.random((20_000 + TEST_RECORDS, 10))
        targets = of(inputs)
        return inputs, targets + 0.1 * targets.std() * generator.normal(size=len(targets))

    return load


_SLOPES = np.array([1.0, -0.5, 2.0, 0.5, -1.0, 0.0, 0.0, 1.5, 0.0, -2.0])


def _line(x: np.ndarray) -> np.ndarray:
    return x @ _SLOPES


def _skewed(x: np.ndarray) -> np.ndarray:
    return np.exp(_line(x))


def _friedman(x: np.ndarray) -> np.ndarray:
    bent = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2
    return bent + 10 * x[:, 3] + 5 * x[:, 4]


_ORDERS = {
    "cut": ("Fair", "Good", "Very Good", "Premium", "Ideal"),
    "color": tuple("DEFGHIJ"),
    "clarity": ("I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF"),
}
_SIZES = {"carat": (0, 5), "depth": (40, 80), "table": (40, 100), "x": (0, 12), "y": (0, 12)}


def _diamonds() -> Arrays:
    table = r_tables.columns("ggplot2", "diamonds", (*_SIZES, "z", *_ORDERS, "price"))
    numbers = [
        np.clip((table[name] - low) / (high - low), 0, 1)
        for name, (low, high) in (_SIZES | {"z": (0, 8)}).items()
    ]
    categories = [
        (np.asarray(table[name])[:, None] == np.array(values)) for name, values in _ORDERS.items()
    ]
    return np.column_stack([*numbers, *categories]), table["price"]


def _wages() -> Arrays:
    schema = data.read_schema("docs/tables/wages.json")
    table = r_tables.columns("stevedata", "gss_wages", (*schema.columns, "realrinc"))
    known = np.isfinite(table["realrinc"])
    rows = {name: column[known] for name, column in table.items()}
    return schema.encode(rows), rows["realrinc"]


DEVELOPMENT = {
    "injuries": Problem(_severity, (0, 4), 10_000),
    "a line": Problem(_drawn(_line), (-4, 7), 20_000),
    "a line, few": Problem(_drawn(_line), (-4, 7), 3_000),
    "Friedman": Problem(_drawn(_friedman), (0, 30), 20_000),
    "Friedman, few": Problem(_drawn(_friedman), (0, 30), 3_000),
    "skewed": Problem(_drawn(_skewed), (0, 60), 20_000),
    "a line, very few": Problem(_drawn(_line), (-4, 7), 300),
}
JUDGED = {
    "diamonds": Problem(_diamonds, (0, 20_000), 40_000),
    "wages": Problem(_wages, (0, 200_000), 30_000),
}
PARTS = {"development": DEVELOPMENT, "judged": JUDGED}
LINEAR, KEPT, NET = "linear", "linear, noise of nets", "net"
MODELS: Mapping[str, nn.Module] = {
    LINEAR: nn.Dense(1),
    KEPT: nn.Dense(1),
    NET: models.MLP(WIDTHS, 1),
}


def learned_as(half: float) -> str:
    """Returns the word of a row for targets that were mapped to -half..half."""
    return f"-{half:g}..{half:g}"


def r2_of(problem: Problem, arrays: Arrays, model: str, targets: str, seed: int) -> float:
    """Returns R2 on test records of one run with the public default."""
    inputs, values = (np.asarray(one, np.float32) for one in arrays)
    order = np.random.default_rng([52, seed]).permutation(len(values))
    train, test = order[: problem.records], order[problem.records :][:TEST_RECORDS]
    low, high = problem.range
    if targets == UNIT_RANGE:
        values = (values - low) / (high - low)
    public_range = None
    if targets not in (UNITS, UNIT_RANGE):
        # A range that is wider, or narrower, is learned as that much less, or more.
        middle = (low + high) / 2.0
        half = (high - low) / 2.0 * LEARNED[1] / float(targets.split("..")[1])
        public_range = (middle - half, middle + half)
    made = tuning.regression(
        MODELS[model],
        tuning.Records((inputs[train], values[train]), problem.records, problem.records),
        # Nothing of it is used: one run is not scored.
        tuning.Records((inputs[test[:1]], values[test[:1]]), 1, 1),
        error_scale=(high - low) / 2.0,
        target_range=public_range,
    )
    entering, columns = numbers_of(made)
    if model == KEPT:
        columns = None
    default = public_defaults(problem.records, entering, EPSILON, outputs=columns)
    result = tuning.tune(
        default.averaged(made),
        default.space(),
        tuning.Untuned(),
        run=default.run,
        epsilon=EPSILON,
        seed=seed,
    )
    assert result is not None and made.targets is not None
    params = result.release.params
    outputs = MODELS[model].apply({"params": params}, inputs[test])
    error = values[test] - np.asarray(made.targets.predicted(outputs)).ravel()
    return float(1.0 - np.mean(error**2) / np.var(values[test]))


def chosen(rows: list[Mapping]) -> float:
    """Returns R by the rule, from rows of development."""
    means = {
        one: np.mean(
            [
                max(0.0, row["r2"])
                for row in rows
                if row["targets"] == learned_as(one) and row["model"] != LINEAR
            ]
        )
        for one in CANDIDATES
    }
    return min(one for one in means if means[one] >= max(means.values()) - 0.005)


def main(_: list[str]) -> None:
    """Makes the rows that the file does not hold yet."""
    rows: list[Mapping] = [*read_rows(_OUT.value)] if os.path.exists(_OUT.value) else []
    part = _PART.value
    for name, problem in PARTS[part].items():
        arrays = None
        for model in MODELS:
            ways = UNIT_RANGE, UNITS, learned_as(LEARNED[1])
            if part == "development":
                tried = [(learned_as(one), 0) for one in CANDIDATES]
            else:
                tried = [(one, seed) for seed in range(3) for one in ways]
            for targets, seed in tried:
                named = dict(part=part, problem=name, model=model, targets=targets, seed=seed)
                if select(rows, **named):
                    continue
                arrays = problem.load() if arrays is None else arrays
                r2 = r2_of(problem, arrays, model, targets, seed)
                rows.append(named | {"records": problem.records, "r2": r2})
                print(rows[-1], flush=True)
                write_rows(_OUT.value, COLUMNS, rows)
    if part == "development":
        print("chosen:", chosen([row for row in rows if row["part"] == part]))


if __name__ == "__main__":
    _OUT = flags.DEFINE_string("out", None, "The .csv file of rows.", required=True)
    _PART = flags.DEFINE_enum("part", "development", list(PARTS), "Which problems.")
    app.run(main)
