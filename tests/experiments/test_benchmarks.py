"""Benchmarks run small, measure what they say, and write the columns that they promise."""

import contextlib
import csv
import io
import json
import os
import sys

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

from dpjax.commands import command_line
from experiments.benchmarks import candidate_costs, engine, other_work, step_costs
from experiments.benchmarks.clipped_grad import PROBLEMS


@pytest.fixture
def run_engine(tmp_path, monkeypatch):
    """run_engine(arguments) -> (exit code, stderr) of the benchmark, here in this process."""
    # The candidates' own process: what it measures is not looked at closely.
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    parsed = flags.FLAGS.is_parsed()

    def run(*arguments):
        errors = io.StringIO()
        with flagsaver.flagsaver(), contextlib.redirect_stderr(errors):
            command_line.parse(["engine", f"--out_dir={tmp_path}", *arguments])
            code = command_line.guarded(engine.main)
        return code or 0, errors.getvalue()

    yield run
    if not parsed:
        flags.FLAGS.unparse_flags()


def test_the_quick_engine_benchmark_writes_its_table(run_engine, tmp_path, monkeypatch):
    arguments = ["--quick", "--noopacus", "--models=logistic_regression"]
    assert run_engine(*arguments) == (0, "")
    with open(tmp_path / "engine.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == engine.COLUMNS
    whats = [row["what"] for row in rows]
    assert len(set(whats)) == len(whats)
    for what, over, _ in step_costs.RATIOS:
        assert (what in whats) == (over != "opacus")
    # 4 candidates: 4 and 1 side by side on one device, 1 on each of 4; the baseline has no row.
    assert [what for what in whats if what.startswith("4 candidates")] == [
        "4 candidates, 4 side by side on 1 device(s) / sequential",
        "4 candidates, 1 side by side on 4 device(s) / sequential",
        next(what for what in whats if "auto" in what),
    ]
    assert all(float(row["low"]) <= float(row["median"]) <= float(row["high"]) for row in rows)
    assert all(float(row["median"]) > 0 for row in rows if row["unit"] != "processors")
    text = (tmp_path / "engine.md").read_text()
    assert text.count("\n| ") == len(rows) + 1 and "jax " in text

    # Interrupted after the steps, it goes on with the candidates.
    parts = {part: [row for row in rows if row["part"] == part] for part in ("step", "candidates")}
    with open(tmp_path / "engine.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, engine.COLUMNS)
        writer.writeheader()
        writer.writerows(parts["step"])
    measured = []

    def measure(model, part, quick, turns, slow_turns):
        measured.append((model, part, quick))
        numbers = ("median", "low", "high")
        return [row | {name: float(row[name]) for name in numbers} for row in parts[part]]

    monkeypatch.setattr(engine, "part_rows", measure)
    assert run_engine(*arguments, "--resume") == (0, "")
    assert measured == [("logistic_regression", "candidates", True)]
    with open(tmp_path / "engine.csv", newline="") as file:
        assert list(csv.DictReader(file)) == rows
    code, errors = run_engine(*arguments, "--resume", "--noquick")
    assert code == 2 and "has another heading" in errors
    assert len(measured) == 1


def test_an_unknown_model_ends_in_one_line(run_engine):
    code, errors = run_engine("--models=nonsense")
    assert code == 2 and errors.startswith("error: unknown model 'nonsense'")
    assert errors.count("\n") == 1


def test_every_model_of_the_table_is_a_problem():
    assert set(engine.MODELS) <= set(PROBLEMS)
    assert set(candidate_costs.SIZES) <= set(engine.MODELS)


def test_ratios_are_taken_within_turns():
    # A machine that slows down tenfold half-way moves no ratio.
    drift = np.array([1.0, 1.0, 10.0, 10.0])
    assert step_costs.quartiles(3 * drift, drift) == pytest.approx((3, 3, 3))
    assert step_costs.quartiles([2.0, 4.0], [1.0, 1.0, 9.0]) == pytest.approx((3, 2.5, 3.5))


def test_other_work_is_what_neither_this_process_nor_its_children_did(monkeypatch):
    seconds = {"machine": 100.0, "own": 7.0}
    monkeypatch.setattr(other_work, "_machine_seconds", lambda: seconds["machine"])
    monkeypatch.setattr(other_work, "_own_seconds", lambda: seconds["own"])
    monkeypatch.setattr(other_work.time, "perf_counter", lambda: seconds["machine"] / 10)
    with other_work.OtherWork() as other:
        seconds |= {"machine": 130.0, "own": 31.0}  # in 3 seconds 10 processors, 8 of them ours
    assert other.processors == pytest.approx(2.0)


def test_other_work_is_unknown_where_the_system_does_not_tell(monkeypatch):
    monkeypatch.setattr(other_work, "_machine_seconds", lambda: None)
    with other_work.OtherWork() as other:
        pass
    assert other.processors is None


def test_markdown_leaves_a_cell_empty_where_nothing_was_measured():
    rows = [
        dict(model="a", what="x", median=1.0, low=1.0, high=1.0, unit="ratio"),
        dict(model="b", what="x", median=2.0, low=1.0, high=3.0, unit="ratio"),
        dict(model="b", what="y", median=5.0, low=4.0, high=6.0, unit="ms"),
    ]
    assert engine.markdown(rows, "a machine").splitlines()[2:] == [
        "| | a | b |",
        "|---|---|---|",
        "| x | 1 | 2 (1-3) |",
        "| y |  | 5 ms (4-6) |",
    ]


FAKE_OPACUS = """#!{python}
import sys
print("ready", flush=True)
for line in sys.stdin:
    print('{{"opacus": 0.5, "torch": 0.25}}', flush=True)
"""


@pytest.fixture
def interpreter(tmp_path):
    """Makes an executable that stands in for the interpreter with torch."""

    def make(text):
        path = tmp_path / "python"
        path.write_text(text.format(python=sys.executable))
        os.chmod(path, 0o755)
        return str(path)

    return make


def test_opacus_takes_turns_in_its_own_process(interpreter):
    process = engine.OpacusProcess(interpreter(FAKE_OPACUS), "mlp_784_1000_10", 8)
    assert [process(), process()] == [json.loads('{"opacus": 0.5, "torch": 0.25}')] * 2
    process.close()


def test_an_interpreter_without_opacus_says_so(interpreter):
    broken = interpreter("#!{python}\nimport a_module_that_nobody_has\n")
    with pytest.raises(RuntimeError, match="No module named 'a_module_that_nobody_has'"):
        engine.OpacusProcess(broken, "mlp_784_1000_10", 8)
