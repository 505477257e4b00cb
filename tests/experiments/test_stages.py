"""Rows of accuracy in stages: their noise is recomputed, and the guide shows them."""

import csv
import pathlib
import re

import numpy as np
import pytest

from experiments.benchmarks import stages as program

ROOT = pathlib.Path(__file__).parents[2]
ROWS = list(csv.DictReader((ROOT / program.ROWS).read_text(encoding="utf-8").splitlines()))
RECORDS = {"digits": 1438, "mnist": 20_000}
TASKS = ("digits", "mnist")


def test_rows_are_of_all_tasks_epsilons_and_schedules():
    found = [(row["task"], float(row["epsilon"]), row["schedule"]) for row in ROWS]
    wanted = [(t, e, s) for t in TASKS for e in program.EPSILONS for s in program.SCHEDULES]
    assert found == wanted and {row["seeds"] for row in ROWS} == {"5"}
    for stages in filter(None, program.SCHEDULES.values()):
        assert np.mean(stages.lot_size) == pytest.approx(1.0)  # As many gradients.


@pytest.mark.parametrize("row", ROWS[5::11], ids=lambda row: f"{row['task']} {row['schedule']}")
def test_the_noise_of_a_row_costs_its_epsilon(row):
    _, lot, steps = program.TASKS[row["task"]]
    stages, records = program.SCHEDULES[row["schedule"]], RECORDS[row["task"]]
    noise = program.noise_needed(records, lot, steps, stages, float(row["epsilon"]))
    assert float(row["noise_multiplier"]) == pytest.approx(noise, abs=1e-4)


def _percent(row, name):
    return f"{100 * float(row[name]):+.2f}"


def test_the_guide_shows_the_rows():
    page = (ROOT / "docs" / "howto" / "stages.md").read_text(encoding="utf-8")
    table = [line.split(" | ") for line in page.splitlines() if re.search(r"\d \([+-]", line)]
    by_schedule = [
        [row for row in ROWS if row["schedule"] == name]
        for name in program.SCHEDULES
        if name != "none"
    ]
    assert [cells[1:] for cells in table] == [
        [
            f"{_percent(row, 'gain')} ({_percent(row, 'gain_from')} to {_percent(row, 'gain_to')})"
            + " |" * (number == 3)
            for number, row in enumerate(own)
        ]
        for own in by_schedule
    ]
    staged = [row for row in ROWS if row["schedule"] not in ("none", "falling rate")]
    assert len(staged) == 24
    above = [row["schedule"] for row in staged if float(row["gain_from"]) > 0]
    assert above == ["falling noise"]
    assert sum(float(row["gain_to"]) < 0 for row in staged) == 9


def test_a_tiny_run_learns():
    labels = np.arange(60, dtype=np.int32) % 3
    inputs = np.eye(10, dtype=np.float32)[labels]
    for schedule in ("falling noise", "growing lots"):
        found = program.accuracies(
            (inputs, labels), (inputs, labels), 12, 20, schedule, 0.3, [0.5, 1.0], [0, 1]
        )
        assert found.shape == (2,) and found.min() > 0.9
