"""Rows of accuracy in bfloat16: of both types, as the page says, and a tiny run makes one."""

import pathlib
import re

import numpy as np
import pytest

from experiments.benchmarks import compute_dtype as program
from experiments.figures.rows import read_rows

ROOT = pathlib.Path(__file__).parents[2]


def test_the_page_says_what_the_rows_say():
    plain, narrow = read_rows(ROOT / program.ROWS)
    assert (plain["compute_dtype"], narrow["compute_dtype"]) == ("float32", "bfloat16")
    _, lot, steps = program.TASKS["mnist"]
    assert {row["steps"] for row in (plain, narrow)} == {steps} and plain["gain"] == 0
    page = " ".join((ROOT / "docs" / "accelerators.md").read_text(encoding="utf-8").split())
    said = re.search(
        r"accuracy was ([\d.]+) in float32 and ([\d.]+) in bfloat16, a difference of "
        r"([+-][\d.]+) \(([+-][\d.]+) to ([+-][\d.]+)\)\. (\w+) seeds .* lots of (\d+), (\d+) "
        r"steps and noise multiplier ([\d.]+)\.",
        page,
    ).groups()
    gain, half = narrow["gain"], narrow["half_width"]
    numbers = (plain["accuracy"], narrow["accuracy"], gain, gain - half, gain + half)
    assert [float(one) for one in said[:5]] == pytest.approx(numbers, abs=5.1e-4)
    assert said[5] == {3: "Three"}[plain["seeds"]] and said[6:8] == (str(lot), str(steps))
    assert float(said[8]) == plain["noise_multiplier"]


def test_a_tiny_run_is_made_in_bfloat16():
    images = np.random.default_rng(0).random((12, 28, 28), np.float32)
    pooled = program.pooled(images)
    assert pooled.shape == (12, 14, 14) and abs(pooled.mean() - images.mean()) < 1e-6
    records = pooled[..., None], np.arange(12, dtype=np.int32) % 10
    found = program.accuracies("bfloat16", records, records, 4, 2)
    assert found.shape == (program.SEEDS,) and ((found >= 0) & (found <= 1)).all()
