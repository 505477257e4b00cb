"""Regression, and an imbalanced class by its log-likelihood: development rows, beside the board.

One table that rules were looked at on (DAAG's nassCDS, people in US car crashes), so nothing
is claimed. Regression: how severe an injury, 0 to 4, from the columns of the data set `nass_cds`; a
record scores 1 less its absolute error over 2. Imbalanced: who died, one in twenty, with public
priors of .95 and .05; candidates are ranked by the log-likelihood so weighted. A row is one method
on one split at a total epsilon of 2: the mean score of test records (`score`), and beside it the
mean accuracy of the classes, or the score that naming the median gives (`beside`).

  python -m experiments.figures.leaderboard.other_scores \\
      --out=docs/figures/leaderboard/other_scores.csv

Rows that the file holds are not made again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np
from absl import app, flags
from flax import linen as nn

from dpjax import accounting, models, tuning
from dpjax.tuning.cautions import accuracies
from dpjax.tuning.problem.log_normal import LogNormal
from dpjax.tuning.problem.public_defaults import defaults_of
from dpjax.tuning.problem.task import accuracy_of
from experiments.data_sets import nass_cds, r_tables
from experiments.figures.rows import read_rows, select, write_rows

_OUT = flags.DEFINE_string("out", None, "The .csv file of rows.", required=True)
_RECORDS = flags.DEFINE_integer("records", 10_000, "Training records.")
_SPLITS = flags.DEFINE_integer("splits", 2, "Divisions of the table.")

EPSILON, DELTA, RUNS, PRIOR_FACTOR = 2.0, 1e-5, 10, 2.5
COLUMNS = ("task", "train", "split", "epsilon", "method", "score", "beside")
REGRESSION, IMBALANCED = "regression", "imbalanced"
PRIORS = (0.95, 0.05)


def arrays_of(task: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs (n, features), and the targets (n,) of a task."""
    names = (*nass_cds.SCHEMA.columns, "injSeverity", "dead")
    table = r_tables.columns("DAAG", "nassCDS", names)
    inputs = nass_cds.SCHEMA.encode(nass_cds.SCHEMA.stored(table))
    if task == IMBALANCED:
        return inputs, (table["dead"] == "dead").astype(np.int32)
    known = np.isin(table["injSeverity"], (0, 1, 2, 3, 4))
    return inputs[known], table["injSeverity"][known].astype(np.float32)


def rows_of(task: str, records: int, split: int) -> list[dict]:
    """Returns the rows of all methods on a split."""
    inputs, targets = arrays_of(task)
    order = np.random.default_rng([35, split]).permutation(len(targets))
    train, test = order[:records], order[records:]
    # Nothing of it is used: candidates are scored on the training records.
    held = tuning.Records((inputs[test[:1]], targets[test[:1]]), 1, 1)
    mine = tuning.Records((inputs[train], targets[train]), records, records)
    if task == REGRESSION:
        net = nn.Sequential([nn.Dense(64), nn.relu, nn.Dense(1)])
        made = tuning.regression(net, mine, held, error_scale=2.0, target_range=(0, 4))
    else:
        model = models.MLP((64,), 2)
        made = tuning.classification(model, mine, held, class_priors=PRIORS, score="log_likelihood")
    default = defaults_of(made, EPSILON, DELTA)
    law = accounting.Geometric(mean=RUNS)
    tuner = tuning.RandomRepetitions(law, score_on_training=True)
    space = tuning.Space(
        dict(default.space().parameters)
        | {"learning_rate": LogNormal(default.learning_rate, PRIOR_FACTOR)}
    )
    common = {"task": task, "train": records, "split": split, "epsilon": EPSILON}
    asked = {"epsilon": EPSILON, "delta": DELTA, "seed": split}
    rows = []
    for method in ("default", "tuned"):
        result = (
            tuning.tune(made, None, tuning.Untuned(), **asked)
            if method == "default"
            else tuning.tune(default.averaged(made), space, tuner, run=default.run, **asked)
        )
        assert result is not None
        params = result.release.params
        score = accuracy_of(made, params, (inputs[test], targets[test]))
        if made.classifier is None:
            # The best single number, chosen on the test records themselves.
            beside = float(
                np.mean(1 - np.minimum(np.abs(targets[test] - np.median(targets)) / 2, 1))
            )
        else:
            predicted = made.classifier.predict(params, inputs[test])
            beside = accuracies(predicted, targets[test], 2)[1]
        rows.append(common | {"method": method, "score": score, "beside": beside})
        print(rows[-1], flush=True)
    return rows


def main(_: list[str]) -> None:
    """Makes the rows that the file does not hold yet."""
    rows: list[Mapping] = read_rows(_OUT.value) if os.path.exists(_OUT.value) else []
    for split in range(_SPLITS.value):
        for task in (IMBALANCED, REGRESSION):
            if not select(rows, task=task, split=split, train=_RECORDS.value):
                rows += rows_of(task, _RECORDS.value, split)
                write_rows(_OUT.value, COLUMNS, rows)


if __name__ == "__main__":
    app.run(main)
