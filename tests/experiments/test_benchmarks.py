"""Benchmarks run small, measure what they say, and write the columns that they promise."""

import ast
import contextlib
import csv
import importlib.util
import io
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

from dpjax.commands import command_line
from experiments.benchmarks import candidate_costs, engine, other_work, timing
from experiments.benchmarks.opacus_process import OpacusProcess
from experiments.benchmarks.zoo import ZOO


@pytest.fixture
def run_engine(tmp_path, monkeypatch):
    """run_engine(arguments) -> (exit code, stderr) of the benchmark, here in this process."""
    # The candidates' own process: what it measures is not looked at closely.
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    parsed = flags.FLAGS.is_parsed()

    def run(*arguments):
        errors = io.StringIO()
        engine.opacus_python.cache_clear()  # It says once in a process what it has found.
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
    for what, over, _ in engine.RATIOS:
        assert (what in whats) == (over != "opacus")
    # 4 candidates: 4 and 1 side by side on one device, 1 on each of 4; the baseline has no row.
    assert [what for what in whats if what.startswith("4 candidates")] == [
        "4 candidates, 4 side by side on 1 device(s) / sequential",
        "4 candidates, 1 side by side on 4 device(s) / sequential",
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


def test_candidates_are_of_models_of_the_table():
    assert set(candidate_costs.SIZES) <= set(engine.MODELS)


def test_ratios_are_taken_within_turns():
    # A machine that slows down tenfold half-way moves no ratio.
    drift = np.array([1.0, 1.0, 10.0, 10.0])
    assert timing.quartiles(3 * drift, drift) == pytest.approx((3, 3, 3))
    assert timing.quartiles([2.0, 4.0], [1.0, 1.0, 9.0]) == pytest.approx((3, 2.5, 3.5))


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
import json, sys
ways = {ways}
hello = dict(ways=ways, refused={refused}, versions=" ".join(sys.argv[2:]))
print(json.dumps(hello), flush=True)
for line in sys.stdin:
    cpu = {{"torch": 0.25, "opacus-hooks": 0.5, "opacus-ghost": 0.75}}[line.strip()]
    print(json.dumps(dict(cpu=cpu, wall=cpu**2)), flush=True)
"""


@pytest.fixture
def interpreter(tmp_path):
    """Makes an executable that stands in for the interpreter with torch."""

    def make(text, **values):
        path = tmp_path / "python"
        path.write_text(text.format(python=sys.executable, **values))
        os.chmod(path, 0o755)
        return str(path)

    return make


def _ways(parameters, *names, **more):
    way = {"rows": 4, "parameters": parameters, "more_parameters": 0, "megabytes": 7.0, **more}
    return dict.fromkeys(names, way)


def test_opacus_takes_turns_in_its_own_process(interpreter):
    ways, refused = _ways(10, "torch", "opacus-hooks"), {"opacus-ghost": "not this one"}
    fake = interpreter(FAKE_OPACUS, ways=ways, refused=refused)
    process = OpacusProcess(fake, "gpt", 8, 10, [2, 8], tiny=True)
    assert [process("torch"), process("opacus-hooks"), process("torch")] == [
        {"cpu": 0.25, "wall": 0.0625},
        {"cpu": 0.5, "wall": 0.25},
        {"cpu": 0.25, "wall": 0.0625},
    ]
    assert process.rows == {"torch": 4, "opacus-hooks": 4} and process.refused == refused
    assert process.versions == "gpt 8 2 8 --tiny"
    process.close()


def test_an_interpreter_without_opacus_says_so(interpreter):
    broken = interpreter("#!{python}\nimport a_module_that_nobody_has\n")
    with pytest.raises(RuntimeError, match="No module named 'a_module_that_nobody_has'"):
        OpacusProcess(broken, "mlp_784_1000_10", 8, 795_010)


def test_a_twin_of_another_size_is_not_compared(interpreter):
    fake = interpreter(FAKE_OPACUS, ways=_ways(12, "torch"), refused={})
    with pytest.raises(RuntimeError, match="gru has 12 parameters by torch and 10 are expected"):
        OpacusProcess(fake, "gru", 8, 10)
    # What the twin is said to have besides is no difference.
    fake = interpreter(FAKE_OPACUS, ways=_ways(12, "torch", more_parameters=2), refused={})
    OpacusProcess(fake, "gru", 8, 10).close()


def test_the_engine_compares_wall_times_with_opacus(run_engine, tmp_path, interpreter):
    ways = _ways(7850, "torch", "opacus-hooks", "opacus-ghost")
    python = interpreter(FAKE_OPACUS, ways=ways, refused={})
    arguments = ["--quick", "--nocandidates", "--models=logistic_regression"]
    assert run_engine(*arguments, f"--opacus_python={python}") == (0, "")
    with open(tmp_path / "engine.csv", newline="") as file:
        medians = {row["what"]: float(row["median"]) for row in csv.DictReader(file)}
    assert medians["opacus / non-private torch"] == 4
    assert medians["time opacus"] == 250


def test_the_zoo_puts_opacus_beside_ours(run_cases, tmp_path, interpreter):
    ways = _ways(210, "torch", "opacus-hooks")
    refused = {"opacus-ghost": "not this one"}
    python = interpreter(FAKE_OPACUS, ways=ways, refused=refused)
    arguments = ["--quick", "--models=logistic_regression", "--noat_once", "--peer_rows="]
    cases = [
        [*arguments, f"--opacus_python={python}", f"--out_dir={tmp_path}"],
        arguments,
        [*arguments, f"--opacus_python={tmp_path}/nothing"],
    ]
    results = run_cases("experiments.benchmarks.zoo_steps", cases)
    assert [code or 0 for code, _, _ in results] == [0, 0, 0]
    printed = [output.splitlines()[0] for _, output, _ in results]
    assert printed[0] == "opacus-ghost cannot train logistic_regression: not this one"
    assert printed[1].startswith("opacus left out: name an interpreter")
    assert printed[2].startswith("opacus left out for logistic_regression: ")
    with open(tmp_path / "zoo_steps.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["way"] for row in rows[::2]] == ["plain", "engine", "ours", *ways]
    columns = "seconds", "scratch_megabytes", "compile_seconds", "micro_batch_rows"
    cells = {row["way"]: [row[column] for column in columns] for row in rows}
    assert cells["torch"] == ["0.25", "7", "", "4"]
    assert cells["opacus-hooks"] == ["0.5", "7", "", "4"]
    assert 0 < float(cells["engine"][0]) < 0.25 and cells["engine"][3] == ""


def test_every_model_of_the_engines_table_has_a_twin_in_torch_and_no_other_model_has_one():
    source = pathlib.Path(engine.__file__).with_name("opacus_zoo.py").read_text()
    twins = {
        node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.decorator_list
    }
    assert {*engine.MODELS} <= twins <= {*ZOO, *engine.MODELS}


@pytest.mark.skipif(
    not (importlib.util.find_spec("torch") and importlib.util.find_spec("opacus")),
    reason="needs the bench extra",
)
def test_opacus_makes_the_updates_that_it_is_timed_for():
    script = pathlib.Path(engine.__file__).with_name("opacus_steps.py")
    subprocess.run([sys.executable, str(script), "--check"], check=True)


def test_pareto_searches_beside_peers_keep_their_rows_and_are_judged_by_the_truth(
    run_cases, tmp_path
):
    searches = ["--searches=random", "--searches=Optuna TPE"]
    line = [f"--out_dir={tmp_path}", "--seeds=1", "--evaluations=18", *searches]
    ((code, printed, errors),) = run_cases("experiments.benchmarks.pareto_peers", [line])
    assert code in (0, None), errors
    assert "sparse vector" in printed
    kept = (tmp_path / "pareto_peers.csv").read_bytes()
    with open(tmp_path / "pareto_peers.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 and {row["search"] for row in rows} == {"random", "Optuna TPE"}
    # The whole domain of the sparse vector example holds 1.541.
    for row in rows:
        largest = 1.541 if row["problem"] == "sparse vector" else 10.0
        assert 0 < float(row["true_hypervolume"]) < largest
    run_cases("experiments.benchmarks.pareto_peers", [line])
    assert (tmp_path / "pareto_peers.csv").read_bytes() == kept
    ((code, _, errors),) = run_cases(
        "experiments.benchmarks.pareto_peers", [[*line, "--evaluations=8"]]
    )
    assert code == 2 and "pass at least 16" in errors
