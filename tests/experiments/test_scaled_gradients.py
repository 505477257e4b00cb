"""Rows of accuracy with scaled gradients: their noise is recomputed, and the guide shows them."""

import csv
import pathlib
import re

import numpy as np
import pytest

from experiments.benchmarks import scaled_gradients as program

ROOT = pathlib.Path(__file__).parents[2]
ROWS = list(csv.DictReader((ROOT / program.ROWS).read_text(encoding="utf-8").splitlines()))
RECORDS = {"species": 27_830, "mnist": 20_000}


def test_rows_are_of_all_tasks_epsilons_and_ways():
    found = [(row["task"], float(row["epsilon"]), row["way"]) for row in ROWS]
    ways = {"species": list(program.WAYS), "mnist": list(program.WAYS)[:-1]}
    assert found == [(t, e, w) for t in program.TASKS for e in program.EPSILONS for w in ways[t]]


@pytest.mark.parametrize("row", ROWS[::5], ids=lambda row: f"{row['task']} {row['epsilon']}")
def test_the_noise_of_a_row_costs_its_epsilon(row):
    _, lot, steps = program.TASKS[row["task"]]
    noise = program.noise_needed(RECORDS[row["task"]], lot, steps, float(row["epsilon"]))
    assert float(row["noise_multiplier"]) == pytest.approx(noise, abs=1e-4)


def test_the_guide_shows_the_rows():
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8").replace("MNIST", "mnist")
    shown = re.findall(r"\| (species|mnist), epsilon (\d) \| (.+) \|", page)
    assert len(shown) == len(program.TASKS) * len(program.EPSILONS)
    for task, epsilon, cells in shown:
        own = [r for r in ROWS if r["task"] == task and float(r["epsilon"]) == float(epsilon)]
        first, *others = ([100 * float(r[n]) for n in PRINTED] for r in own)
        wanted = [f"{first[0]:.1f}"]
        wanted += [f"{each[0]:.1f} ({each[1]:+.1f} ± {each[2]:.1f})" for each in others]
        assert cells.split(" | ") == wanted + ["-"] * (len(program.WAYS) - len(wanted))


PRINTED = ("accuracy", "gain_over_adam", "half_width")


@pytest.mark.parametrize("way", ["adam", "adam_scaled"])
def test_a_tiny_run_learns(way):
    labels = np.arange(60, dtype=np.int32) % 3
    records = np.eye(10, dtype=np.float32)[labels], labels
    settings = [{"learning_rate": 0.3, "clip_norm": 1.0}]
    found = program.accuracies(way, records, records, 12, 20, 0.3, settings, [0, 1])
    assert found.shape == (1, 2) and found.min() > 0.9


def test_the_public_scale_has_a_number_for_each_column():
    scale = program.public_scale()["w"][:, 0]
    columns = dict(zip(program.SCHEMA.feature_names, scale, strict=True))
    assert columns["sex=F"] == np.sqrt(2) and columns["plot_id=24"] == np.sqrt(24)
    assert columns["year"] == 1.0
