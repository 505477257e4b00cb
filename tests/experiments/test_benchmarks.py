"""The benchmark searches everyone, times whole steps in turn, and prints no other ratio."""

import ast
import csv
import importlib.util
import itertools
import os
import pathlib
import re
import subprocess
import sys

import jax
import numpy as np
import pytest

from experiments.accelerator import jobs
from experiments.benchmarks import contestants, prices, steps, two_versions
from experiments.benchmarks.contestants import Setting
from experiments.benchmarks.opacus_process import OpacusProcess
from experiments.benchmarks.zoo import ZOO, Problem
from experiments.figures.rows import read_rows

DOCS = pathlib.Path(__file__).parents[2] / "docs"
BUILD = contestants.contestants()


@pytest.mark.parametrize("name", [name for name in BUILD if name != "plain"])
@pytest.mark.parametrize("setting", [Setting(0), Setting(2, steps=2), Setting(1, remat=True)])
def test_every_private_contestant_takes_the_same_step(monkeypatch, name, setting):
    """On a lot of all records and without noise: clipped gradients, example by example."""
    monkeypatch.setattr(contestants, "RECORDS", 4)
    monkeypatch.setattr(contestants, "NOISE_MULTIPLIER", 0.0)
    problem = ZOO["mlp_784_1000_10"](True, 4)
    way = contestants.compiled(BUILD[name], problem, problem.records, 4, setting)
    wanted = problem.params
    for _ in range(setting.steps):
        each = jax.vmap(jax.grad(problem.loss), (None, 0))(wanted, problem.records)
        squares = sum(np.square(leaf).reshape(4, -1).sum(axis=1) for leaf in jax.tree.leaves(each))
        weights = np.minimum(1, contestants.CLIP_NORM / np.sqrt(squares))
        wanted = jax.tree.map(
            lambda value, leaf: value - 0.1 / 4 * np.tensordot(weights, leaf, 1),  # noqa: B023
            wanted,
            each,
        )
    found = way.call(np.uint32(3), *way.arguments)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), found, wanted)


def test_the_plain_step_follows_the_mean_gradient_of_its_lot():
    problem = ZOO["logistic_regression"](True, 1)  # All records are alike.
    records = contestants.tiled(problem.records)
    slope = jax.grad(problem.loss)(problem.params, jax.tree.map(lambda leaf: leaf[0], records))
    for rows in (0, 2):
        way = contestants.compiled(contestants.plain, problem, records, 4, Setting(rows))
        moved = jax.tree.map(np.subtract, way.call(np.uint32(0), *way.arguments), problem.params)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, -0.1 * b, atol=1e-6), moved, slope)


def test_micro_batches_are_powers_of_two_and_the_whole_lot():
    assert contestants.sizes(16) == [0, 8, 4, 2, 1]
    for lot in (0, 1, 12):
        with pytest.raises(ValueError, match="pass a power of two"):
            contestants.sizes(lot)


@pytest.fixture
def small(monkeypatch):
    """Two contestants that compile fast."""
    own = {name: BUILD[name] for name in ("plain", "dpjax")}
    monkeypatch.setattr(contestants, "contestants", lambda: own)
    monkeypatch.setattr(contestants, "_LEAST_SECONDS", 0.0)
    return steps.Limits(turns=2, tiny=True)


def test_a_part_is_measured_once_and_its_search_is_logged(small, tmp_path):
    folder = steps.Folder(str(tmp_path))
    (part,) = steps.parts(folder, ["steps"], ["logistic_regression"], [2], small)
    part[-1]()
    again = steps.Folder(str(tmp_path))
    assert not steps.parts(again, ["steps"], ["logistic_regression"], [2], small)
    log, rows = again.rows["search"], again.rows["steps"]
    for name in ("plain", "dpjax"):
        own = [row for row in log if row["contestant"] == name]
        assert {row["micro_batch"] for row in own} == {"whole", 1}
        assert {row["steps_a_call"] for row in own} == {1, 4}
        assert {row["remat"] for row in own} == {0, 1}
        assert all(row["milliseconds"] > 0 and row["compile_s"] > 0 for row in own)
    assert [row["contestant"] for row in rows] == ["plain", "dpjax", "dpjax auto"]
    assert rows[0]["over_plain"] == rows[1]["over_dpjax"] == 1
    assert all(row["milliseconds_low"] <= row["milliseconds"] for row in rows)
    text = steps.tables(again.rows)
    assert "logistic_regression" in text and "not searched" not in text
    own = small._replace(again=True)
    ((*_, measure),) = steps.parts(again, ["steps"], ["logistic_regression"], [2], own)
    measure()
    assert again.rows["search"] == log
    for new, old in zip(again.rows["steps"], rows, strict=True):
        assert all(new[name] == old[name] for name in ("contestant", *steps.COLUMNS["steps"][4:7]))


@pytest.mark.parametrize("name", ["vmap", "jax-privacy"])
def test_others_take_the_lots_of_our_run(name):
    """Every row pulls one number by 1, the clip norm: the first 4 steps tell their lots' rows."""
    if name not in BUILD:
        pytest.skip("jax-privacy is not installed")
    records = np.ones((contestants.RECORDS, 1), np.float32)
    problem = Problem(lambda params, row: -params * row[0], np.float32(0.0), records)
    lot, found = 1024, []
    for build, setting in (
        ("dpjax", Setting(0, steps=4)),
        (name, Setting(0, steps=4)),
        (name, Setting(0)),
    ):
        way, moved = contestants.compiled(BUILD[build], problem, records, lot, setting), []

        def noted(*given, call=way.call, moved=moved):
            moved.append(float(call(*given)))
            return moved[-1]

        way._replace(call=noted).seconds(3)
        found.append(sum(moved[: 4 // setting.steps]) * lot / contestants.LEARNING_RATE - 4 * lot)
    # Noise of 4 steps has a deviation of 2, and sizes of 4 lots one of 58.
    assert max(found) - min(found) < 16 < abs(found[0])


def test_a_trial_that_reserves_too_much_is_logged_and_not_run(small, tmp_path):
    noted, problem = [], ZOO["logistic_regression"](True, 2)
    found = contestants.search(
        problem, contestants.tiled(problem.records), 2, -1.0,
        lambda name, setting, seconds, way: noted.append((name, seconds)),
    )  # fmt: skip
    assert found == {} and noted == [(name, None) for name in ("plain", "plain", "dpjax", "dpjax")]


def test_an_accelerators_programs_are_compiled_before_any_is_timed(small, monkeypatch):
    """In threads: a compilation beside it would disturb a timing."""
    told, problem = [], ZOO["logistic_regression"](True, 2)

    def compiled(build, problem, records, lot, setting):
        told.append("compiled")
        return contestants.Way(lambda number: told.append("timed"), (), 0, 1.0, setting)

    monkeypatch.setattr(contestants, "compiled", compiled)
    monkeypatch.setattr(contestants.jax, "default_backend", lambda: "gpu")
    found = contestants.search(problem, None, 2, 1.0, lambda *told: None)
    assert [what for what, _ in itertools.groupby(told)] == ["compiled", "timed"] * 2
    assert told[:5].count("compiled") == 4 and told.count("compiled") == 8
    assert all(way.compile_seconds is None for way in found.values())


ROW = {
    **dict(device="d", model="m", lot=4, contestant="vmap", micro_batch=2, steps_a_call=1, remat=0),
    **dict(over_plain=3.0, over_plain_low=2.0, over_plain_high=4.0),
}


def _log(contestant, sizes=("whole", 2, 1)):
    own = ROW | {"contestant": contestant}
    trials = [own | {"micro_batch": size} for size in sizes]
    return [*trials, own | {"steps_a_call": 4}, own | {"remat": 1}]


def test_no_ratio_of_what_was_not_searched():
    log = [*_log("vmap"), *_log("plain")]
    assert steps.ratio(log, ROW, "plain") == "3.00 (2.00-4.00)"
    for place in range(len(log)):
        assert steps.ratio(log[:place] + log[place + 1 :], ROW, "plain") == "not searched"
    other = [row | {"device": "another"} for row in log]
    assert steps.ratio(other, ROW, "plain") == "not searched"
    auto = ROW | {"contestant": "dpjax auto"}
    assert steps.ratio([*_log("dpjax"), *_log("plain")], auto, "plain").startswith("3.00")


def test_quartiles_are_of_ratios_within_turns():
    drift = np.array([1.0, 1.0, 10.0, 10.0])  # A machine that slows down moves no ratio.
    assert steps.quartiles(3 * drift / drift) == (3, 3, 3)


def test_the_pages_tables_are_those_of_the_rows():
    folder = steps.Folder(str(DOCS / "benchmarks"))
    text = (DOCS / "benchmarks" / "steps.md").read_text(encoding="utf-8")
    assert text == steps.page(folder.rows) and "not searched" not in text
    said = (DOCS / "performance.md").read_text(encoding="utf-8")
    said = said[said.index("## What the rows say") : said.index("## What privacy adds")]
    ratios = re.findall(r"\b\d+\.\d\d\b", said)
    assert ratios and all(f"| {each} " in text for each in ratios)


def test_prices_are_measured_in_processes_of_their_own():
    cases = prices.cases()
    seconds, found = prices.taken(cases["price", "the best of Geometric(10)"], repeats=1)
    assert seconds > 0.1 and found == pytest.approx(2.675991689)
    assert prices.taken(cases["--help", "dpjax --help"], repeats=1)[1] is None
    assert {kind for kind, _ in cases} == {*prices.AIMS}


def test_the_page_of_prices_is_that_of_its_rows():
    rows = read_rows(DOCS / "benchmarks" / "prices.csv")
    assert [(row["kind"], row["what"]) for row in rows] == [*prices.cases()]
    assert (DOCS / "benchmarks" / "prices.md").read_text(encoding="utf-8") == prices.page(rows)
    slow = [row | {"processor_seconds": 99.0} for row in rows]
    assert prices.page(slow).count("**missed**") == len(rows)


def test_the_page_of_sums_is_that_of_its_rows():
    rows = read_rows(DOCS / "benchmarks" / "sums.csv")
    settings = [{"model": row["model"], "lot": row["lot"]} for row in rows]
    assert settings == [*two_versions.settings("")]
    page = (DOCS / "benchmarks" / "sums.md").read_text(encoding="utf-8")
    assert page == two_versions.page(rows)
    said = (DOCS / "performance.md").read_text(encoding="utf-8")
    more = np.array([row["ratio"] for row in rows if row["lot"] == 64]) - 1
    assert f"cost {np.median(more):.0%} of a step" in said and f"{max(more):.0%} at most" in said


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
    trials = {"0": 0.5, "4": 0.25}
    way = {"rows": 4, "parameters": parameters, "more_parameters": 0, "megabytes": 7.0} | more
    way |= {"trials": trials}
    return dict.fromkeys(names, way)


def test_opacus_takes_turns_in_its_own_process(interpreter):
    ways, refused = _ways(10, "torch", "opacus-hooks"), {"opacus-ghost": "not this one"}
    fake = interpreter(FAKE_OPACUS, ways=ways, refused=refused)
    process = OpacusProcess(fake, "gpt", 8, 10, [0, 4], tiny=True)
    assert [process.ways[name].seconds() for name in ("torch", "opacus-hooks")] == [0.25, 0.5]
    assert process.ways["torch"].setting.rows == 4 and process.refused == refused
    assert process.versions == "gpt 8 0 4 --tiny"
    trials = [
        (row["contestant"], row["micro_batch"], row["milliseconds"]) for row in process.trials
    ]
    assert trials[:2] == [("torch", "whole", 500.0), ("torch", 4, 250.0)]
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


def test_every_twin_in_torch_is_of_a_model_of_the_zoo_or_of_figure_7():
    source = pathlib.Path(steps.__file__).with_name("opacus_zoo.py").read_text()
    twins = {
        node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.decorator_list
    }
    assert twins <= {*ZOO, jobs.FIGURE_7} and {*steps.MODELS} <= {*ZOO}


@pytest.mark.skipif(
    not (importlib.util.find_spec("torch") and importlib.util.find_spec("opacus")),
    reason="needs the bench extra",
)
def test_opacus_makes_the_updates_that_it_is_timed_for():
    script = pathlib.Path(steps.__file__).with_name("opacus_steps.py")
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
