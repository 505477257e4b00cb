"""Contestants beside the default, test record by test record; and one that was added later.

The board's rows hold accuracies alone. Here the methods are trained once more on its tables and
splits, at its total epsilon, and of each the test records are counted that it alone gets right, and
that the default alone does (McNemar 1947). A private rate from the loss's curvature
(`private_curvature`, Liu and Bu 2025) is a contestant that was not registered: it was added when
all other rows were known. Its settings were chosen on development tables, when two judgement rows
of earlier forms of it had been seen (.642 on wages, .521 on smoking); its rows say `later`.

  python -m experiments.figures.leaderboard.by_record \\
      --out=docs/figures/leaderboard/by_record.csv \\
      --ebm_python=<venv with interpret-core>/bin/python

Rows that the file holds are not made again.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from dpjax import models, tuning
from dpjax.tuning.problem.public_defaults import WIDTHS
from experiments.figures import row_program
from experiments.figures.leaderboard import board, private_curvature
from experiments.figures.leaderboard.board import Attempt, Split
from experiments.figures.leaderboard.registration import DELTA, EPSILON, TABLES
from experiments.figures.rows import select

SPLITS = 1
"""Of each table; the board has more."""

CURVATURE = "Liu and Bu (2025)"
METHODS = {CURVATURE: "later", "DP-EBM": "registered", "default of 0.2": "registered",
           "tuned": "registered"}  # fmt: skip
"""In the order in which they are made, with whether the registration has them."""

COLUMNS = (
    "table", "split", "epsilon", "method", "entry", "delta", "train", "test", "accuracy",
    "default_accuracy", "only_method", "only_default", "one_run", "registration",
)  # fmt: skip


def by_curvature(split: Split, epsilon: float, seed: int) -> Attempt:
    """Returns what `private_curvature` makes of a split; its row's `one_run` is the whole cost."""
    held = split.arrays
    inputs, labels, test = held["inputs"], held["labels"].astype(np.int32), held["test_inputs"]
    widths = WIDTHS if board.is_net(len(labels)) else ()
    module = models.build_module("mlp" if widths else "logistic_regression", 2, widths=widths)
    entering = 1 + max(inputs.shape[1], *widths, 0)
    default = tuning.public_defaults(
        len(labels), entering, epsilon, DELTA, outputs=None if widths else 1
    )
    # A linear model's rule is for an average, and no average is taken here.
    rate = default.learning_rate * (1 if widths else board.FACTOR_OF_0_2)
    run = default.lot_size / len(labels), default.steps
    noise = private_curvature.calibrated(*run, epsilon, DELTA)
    model, params, _ = private_curvature.trained(
        module, inputs, labels, noise=noise, rate=rate, seed=seed,
        lot_size=default.lot_size, steps=default.steps,
    )  # fmt: skip
    right = np.argmax(np.asarray(model.apply(params, test)), axis=1) == held["test_labels"]
    whole = private_curvature.of_a_run(*run, *noise).epsilon(DELTA)
    return Attempt({"accuracy": float(right.mean()), "one_run": whole}, right)


@functools.lru_cache(maxsize=1)
def of_default(table: str, number: int) -> tuple[Split, Attempt]:
    """Returns a split, and what the default makes of it."""
    split = Split(table, number)
    net = board.is_net(len(split.arrays["labels"]))
    found = board.attempt(split, EPSILON, "net" if net else "linear", board.Options())
    assert found is not None
    return split, found


def settings(**_: Any) -> Iterator[dict[str, Any]]:
    """What is tried, as columns of its row."""
    # The one that trains many models comes last.
    groups = [[name for name in METHODS if (name == "tuned") == last] for last in (False, True)]
    for group in groups:
        for number in range(SPLITS):
            for table in TABLES:
                for name in group:
                    yield {"table": table, "split": number, "epsilon": EPSILON, "method": name}


def row_of(setting: Mapping[str, Any], ebm_python: str | None) -> dict[str, Any] | None:
    """Returns a method's row beside the default; None for a library that is not there."""
    split, default = of_default(setting["table"], setting["split"])
    method, options = setting["method"], board.Options(ebm_python=ebm_python)
    found = (
        by_curvature(split, EPSILON, split.number)
        if method == CURVATURE
        else board.attempt(split, EPSILON, method, options)
    )
    if found is None:
        return None
    return dict(setting) | {
        "entry": METHODS[method],
        "delta": DELTA,
        "train": len(split.arrays["labels"]),
        "test": len(found.right),
        "accuracy": found.numbers["accuracy"],
        "default_accuracy": default.numbers["accuracy"],
        "only_method": int(np.sum(found.right & ~default.right)),
        "only_default": int(np.sum(default.right & ~found.right)),
        "one_run": found.numbers["one_run"],
        "registration": board.fingerprint(),
    }


def difference(rows: Sequence[Mapping], table: str, method: str) -> tuple[float, float]:
    """Returns a method less the default in points, and half its interval over test records.

    Of the models as they were trained: the mean over splits, with the mean of their standard
    errors, since splits share most test records.
    """
    own = select(rows, table=table, method=method)
    net = np.array([row["only_method"] - row["only_default"] for row in own])
    apart = np.array([row["only_method"] + row["only_default"] for row in own])
    number = np.array([row["test"] for row in own])
    errors = np.sqrt(apart - net**2 / number) / number
    return 100 * float(np.mean(net / number)), 100 * float(stats.norm.ppf(0.975) * np.mean(errors))


if __name__ == "__main__":
    row_program.run(COLUMNS, settings, row_of, **row_program.EBM_PYTHON)
