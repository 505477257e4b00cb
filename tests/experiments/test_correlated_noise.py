"""Rows of accuracy with correlated noise: their noise is recomputed, and the guide shows them."""

import csv
import pathlib
import re

import numpy as np
import pytest

from dpjax import training
from experiments.benchmarks import correlated_noise as program

ROOT = pathlib.Path(__file__).parents[2]
ROWS = list(csv.DictReader((ROOT / program.ROWS).read_text(encoding="utf-8").splitlines()))
RECORDS = {"digits": 1438, "mnist": 20_000}


def test_rows_are_of_all_tasks_epsilons_and_bands():
    found = [(row["task"], float(row["epsilon"]), int(row["bands"])) for row in ROWS]
    wanted = [(t, e, b) for t in program.TASKS for e in program.EPSILONS for b in program.BANDS]
    assert found == wanted and {row["seeds"] for row in ROWS} == {"5"}


@pytest.mark.parametrize("row", ROWS[::5], ids=lambda row: f"{row['task']} {row['bands']}")
def test_the_noise_of_a_row_costs_its_epsilon(row):
    _, lot, steps = program.TASKS[row["task"]]
    bands, records = int(row["bands"]), RECORDS[row["task"]]
    noise = program.noise_needed(records, lot, steps, bands, float(row["epsilon"]))
    assert float(row["noise_multiplier"]) == pytest.approx(noise, abs=1e-4)
    of_sums = noise * training.BandedNoise(bands).error(steps)
    assert float(row["noise_of_sums"]) == pytest.approx(of_sums, abs=1e-3)


def test_the_guide_shows_the_rows():
    page = (ROOT / "docs" / "howto" / "correlated_noise.md").read_text(encoding="utf-8")
    shown = re.findall(
        r"\| (digits|mnist), epsilon (\d) \| (.+) \|", page.replace("MNIST", "mnist")
    )
    for task, epsilon, cells in shown:
        own = [r for r in ROWS if r["task"] == task and float(r["epsilon"]) == float(epsilon)]
        wanted = [f"{100 * float(r['accuracy']):.1f} ({100 * float(r['std']):.1f})" for r in own]
        assert cells.split(" | ") == wanted
    assert len(shown) == len(program.TASKS) * len(program.EPSILONS)


def test_a_tiny_run_learns():
    labels = np.arange(60, dtype=np.int32) % 3
    inputs = np.eye(10, dtype=np.float32)[labels]
    for bands in (1, 3):
        found = program.accuracies(
            (inputs, labels), (inputs, labels), 12, 20, bands, 0.3, [0.5, 1.0], [0, 1]
        )
        assert found.shape == (2,) and found.min() > 0.9
