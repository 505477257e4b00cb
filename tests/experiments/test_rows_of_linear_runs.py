"""Rows of accuracy of linear runs: their noise is recomputed, and the guides show them."""

import csv
import pathlib
import re

import numpy as np
import pytest

from dpjax import training
from experiments.benchmarks import correlated_noise, scaled_gradients, stages

ROOT = pathlib.Path(__file__).parents[2]
PROGRAMS = {"bands": correlated_noise, "way": scaled_gradients, "schedule": stages}
"""By the column that tells ways to train apart."""
RECORDS = {"digits": 1438, "mnist": 20_000, "species": 27_830}


def _rows_of(program):
    return list(csv.DictReader((ROOT / program.ROWS).read_text(encoding="utf-8").splitlines()))


ROWS = {column: _rows_of(program) for column, program in PROGRAMS.items()}
SOME = [("bands", row) for row in ROWS["bands"][::5]]
SOME += [("way", row) for row in ROWS["way"][::5]]
SOME += [("schedule", row) for row in ROWS["schedule"][5::11]]
TRIED = {
    "bands": lambda task: map(str, correlated_noise.BANDS),
    "way": lambda task: list(scaled_gradients.WAYS)[: None if task == "species" else -1],
    "schedule": lambda task: stages.SCHEDULES,
}


@pytest.mark.parametrize("column", PROGRAMS)
def test_rows_are_of_all_tasks_epsilons_and_ways(column):
    program, rows = PROGRAMS[column], ROWS[column]
    found = [(row["task"], float(row["epsilon"]), row[column]) for row in rows]
    assert found == [
        (task, epsilon, one)
        for task in program.TASKS
        for epsilon in program.EPSILONS
        for one in TRIED[column](task)
    ]
    assert column == "way" or {row["seeds"] for row in rows} == {"5"}


def test_a_schedule_computes_as_many_gradients():
    for one in filter(None, stages.SCHEDULES.values()):
        assert np.mean(one.lot_size) == pytest.approx(1.0)


@pytest.mark.parametrize("column, row", SOME, ids=lambda one: one if type(one) is str else "")
def test_the_noise_of_a_row_costs_its_epsilon(column, row):
    program = PROGRAMS[column]
    _, lot, steps = program.TASKS[row["task"]]
    of = {"bands": lambda: [int(row["bands"])], "schedule": lambda: [stages.SCHEDULES[row[column]]]}
    own = of.get(column, list)()
    noise = program.noise_needed(RECORDS[row["task"]], lot, steps, *own, float(row["epsilon"]))
    assert float(row["noise_multiplier"]) == pytest.approx(noise, abs=1e-4)
    if column == "bands":
        of_sums = noise * training.BandedNoise(*own).error(steps)
        assert float(row["noise_of_sums"]) == pytest.approx(of_sums, abs=1e-3)


def _scaled(rows):
    first, *others = (
        [100 * float(row[name]) for name in ("accuracy", "gain_over_adam", "half_width")]
        for row in rows
    )
    cells = [
        f"{first[0]:.1f}",
        *(f"{a:.1f} ({gain:+.1f} ± {half:.1f})" for a, gain, half in others),
    ]
    return cells + ["-"] * (len(scaled_gradients.WAYS) - len(cells))


SHOWN = {
    "bands": (
        "howto/correlated_noise.md",
        lambda rows: [
            f"{100 * float(r['accuracy']):.1f} ({100 * float(r['std']):.1f})" for r in rows
        ],
    ),
    "way": ("training.md", _scaled),
}


@pytest.mark.parametrize("column", SHOWN)
def test_the_guide_shows_the_rows(column):
    program, (name, wanted) = PROGRAMS[column], SHOWN[column]
    page = (ROOT / "docs" / name).read_text(encoding="utf-8").replace("MNIST", "mnist")
    shown = re.findall(rf"\| ({'|'.join(program.TASKS)}), epsilon (\d) \| (.+) \|", page)
    assert len(shown) == len(program.TASKS) * len(program.EPSILONS)
    for task, epsilon, cells in shown:
        own = [
            (row["task"], float(row["epsilon"])) == (task, float(epsilon)) for row in ROWS[column]
        ]
        rows = [row for row, its in zip(ROWS[column], own, strict=True) if its]
        assert cells.split(" | ") == wanted(rows)


def _percent(row, name):
    return f"{100 * float(row[name]):+.2f}"


def test_the_guide_shows_the_rows_of_stages():
    page = (ROOT / "docs" / "howto" / "stages.md").read_text(encoding="utf-8")
    table = [line.split(" | ") for line in page.splitlines() if re.search(r"\d \([+-]", line)]
    rows = ROWS["schedule"]
    by_schedule = [
        [row for row in rows if row["schedule"] == one] for one in stages.SCHEDULES if one != "none"
    ]
    assert [cells[1:] for cells in table] == [
        [
            f"{_percent(row, 'gain')} ({_percent(row, 'gain_from')} to {_percent(row, 'gain_to')})"
            + " |" * (number == 3)
            for number, row in enumerate(own)
        ]
        for own in by_schedule
    ]
    staged = [row for row in rows if row["schedule"] not in ("none", "falling rate")]
    assert len(staged) == 24
    above = [row["schedule"] for row in staged if float(row["gain_from"]) > 0]
    assert above == ["falling noise"]
    assert sum(float(row["gain_to"]) < 0 for row in staged) == 9


GIVEN = (0.3, [0.5, 1.0], [0, 1])
SCALED = (0.3, [{"learning_rate": 0.3, "clip_norm": 1.0}], [0, 1])
TINY = [
    *((correlated_noise, (12, 20, bands, *GIVEN)) for bands in (1, 3)),
    *((stages, (12, 20, schedule, *GIVEN)) for schedule in ("falling noise", "growing lots")),
    *((scaled_gradients, (way, 12, 20, *SCALED)) for way in ("adam", "adam_scaled")),
]


@pytest.mark.parametrize("program, arguments", TINY)
def test_a_tiny_run_learns(program, arguments):
    labels = np.arange(60, dtype=np.int32) % 3
    records = np.eye(10, dtype=np.float32)[labels], labels
    before = [] if type(arguments[0]) is int else [arguments[0]]
    found = program.accuracies(*before, records, records, *arguments[len(before) :])
    assert found.size == 2 and found.min() > 0.9


def test_the_public_scale_has_a_number_for_each_column():
    scale = scaled_gradients.public_scale()["w"][:, 0]
    columns = dict(zip(scaled_gradients.SCHEMA.feature_names, scale, strict=True))
    assert columns["sex=F"] == np.sqrt(2) and columns["plot_id=24"] == np.sqrt(24)
    assert columns["year"] == 1.0
