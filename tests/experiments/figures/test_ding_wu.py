"""Figures of Ding & Wu: rows equal the oracles, pictures come from rows alone."""

import functools
import json
import pathlib

import numpy as np
import pytest

from experiments.figures.ding_wu import figure_1, figure_2, simulation, table_1
from experiments.figures.figure import QUICK
from experiments.figures.rows import distinct, read_rows, select

MODULES = (figure_1, figure_2, table_1)
KEYS = {
    figure_1: ("selector", "partitions", "epsilon", "highest_utility", "seed"),
    figure_2: ("partitions", "ratio"),
    table_1: ("part", "method", "iterations"),
}
"""What makes a row the only one of its kind."""

UTILITY_RANGE = {  # partitions k and largest true utility of each simulated setting
    "paper k=10 eps0=.1": (10, 1.0),
    "k=100": (100, 1.0),
    "k=1000": (1000, 1.0),
    "k=1e5 (near noiseless)": (1e5, 1.0),
    "paper cand in (0,.5)": (10, 0.5),
    "k=1000, cand in (0,.5)": (1000, 0.5),
}

ROOT = pathlib.Path(__file__).parents[3]
COMMITTED = ROOT / "docs" / "figures" / "ding_wu"


def oracle(name):
    """Numbers derived independently; see tests/accounting/oracles/README.md."""
    return json.loads((ROOT / "tests" / "accounting" / "oracles" / name).read_text())


@functools.cache
def quick_rows(module):
    """Rows of a figure's --quick; computed once, not to be changed."""
    return module.compute(QUICK)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.FIGURE.name)
def test_committed_rows_are_current(module):
    """The full rows in docs/ hold the quick ones."""
    committed = read_rows(COMMITTED / f"{module.FIGURE.name}.csv")

    def key(row):
        return tuple(row[name] for name in KEYS[module])

    # The bound on the best of K runs is a numerical search: it moves a little between versions.
    tolerance = 2e-4 if module is table_1 else 1e-6
    full = {key(row): row for row in committed}
    assert len(full) == len(committed)
    for row in quick_rows(module):
        for column in module.COLUMNS:
            value = full[key(row)][column]
            if isinstance(value, float):
                assert row[column] == pytest.approx(value, rel=tolerance)
            else:
                assert row[column] == value


def test_figure_1_committed_rows_equal_the_oracle():
    rows = read_rows(COMMITTED / "figure_1.csv")
    names = {
        (10, 1.0): "paper k=10 eps0=.1 | always",
        (10, 0.5): "paper cand in (0,.5) | always",
        (1000, 1.0): "k=1000 | always",
    }
    for (partitions, highest), name in names.items():
        members = select(
            rows, selector=figure_1.DOUBLING, partitions=partitions, highest_utility=highest
        )
        assert [row["seed"] for row in members] == list(range(1000))
        wanted = oracle("svt_simulation.json")[name]
        iterations = [row["iterations"] for row in members]
        hits = [row["hits"] for row in members]
        assert wanted["T_median"] == np.median(iterations)
        assert wanted["T_mean"] == np.mean(iterations)
        assert wanted["T_p99"] == np.percentile(iterations, 99)
        assert wanted["T_p999"] == np.percentile(iterations, 99.9)
        assert wanted["T_max"] == max(iterations)
        assert wanted["true_median"] == np.median(hits)
        assert wanted["true_p99"] == np.percentile(hits, 99)
        assert wanted["true_max"] == max(hits)
        assert wanted["none"] == sum(row["utility_selected"] is None for row in members)
        # Utilities are written with six decimals.
        for column, mean in (("selected", "mean_u_selected"), ("best", "mean_u_max")):
            found = np.mean([row[f"utility_{column}"] for row in members])
            assert found == pytest.approx(wanted[mean], abs=1e-6)


def test_figure_1_paths_are_the_loops():
    # From (1, 0): a hit adds the step and doubles it, a miss halves it.
    assert figure_1.path_of("hhm").tolist() == [[1, 0], [2, 0.01], [4, 0.03], [2, 0.03]]
    for row in quick_rows(figure_1):
        if row["selector"] == figure_1.DOUBLING:
            assert len(row["answers"]) == row["iterations"]
            assert row["answers"].count("h") == row["hits"]
            steps, levels = figure_1.path_of(row["answers"]).T
            assert steps[-1] == 0 or levels[-1] >= 1


def test_figure_1_where_the_paths_end():
    """At the right with the text's noise, back to the left with that of k = 1000."""
    rows = read_rows(COMMITTED / "figure_1.csv")
    for partitions, at_largest, largest, last in ((10, 1000, 128, 128), (1000, 7, 64, 16)):
        members = select(
            rows, selector=figure_1.DOUBLING, partitions=partitions, highest_utility=1.0
        )
        steps = [figure_1.path_of(row["answers"])[:, 0] for row in members]
        assert sum(path[-1] == path.max() for path in steps) == at_largest
        assert np.median([path.max() for path in steps]) == largest
        assert np.median([path[-1] for path in steps]) == last
    lines = figure_1.draw(rows).axes[1].get_lines()
    assert len(lines) > 1000  # A line a seed.


def test_figure_1_what_the_docstring_says():
    rows = read_rows(COMMITTED / "figure_1.csv")

    def iterations(highest):
        members = select(rows, selector=figure_1.DOUBLING, partitions=10, highest_utility=highest)
        return [row["iterations"] for row in members]

    # Halving all utilities changes no count at all: the answers are noise.
    assert iterations(1.0) == iterations(0.5)
    for partitions, mean in ((10, 0.742), (1000, 0.976)):
        members = select(rows, selector=figure_1.EXPONENTIAL, partitions=partitions)
        values = np.array([row["utility_selected"] for row in members])
        # The exact mean is that of test_exponential_mechanism.py; 1000 draws, six deviations.
        assert values.mean() == pytest.approx(mean, abs=6 * values.std() / 1000**0.5)


def test_figure_2_committed_rows_equal_the_oracle():
    rows = select(read_rows(COMMITTED / "figure_2.csv"), partitions=10)
    wanted = oracle("svt_fig2.json")
    assert [row["ratio"] for row in rows] == [entry["ratio"] for entry in wanted]
    for row, entry in zip(rows, wanted):
        assert row["iterations_median"] == entry["median"]
        assert row["iterations_p99"] == entry["p99"]
        assert row["iterations_max"] == entry["max"]
        assert row["ceil_log2"] == entry["ceil_log2"]
        assert row["iterations_bound"] == entry["Tmax"]


def test_table_1_equals_the_oracle():
    rows = select(quick_rows(table_1), part=table_1.COMPOSITION)
    columns = {
        "basic": "basic",
        "advanced": "advanced_DRV10",
        "renyi": "rdp_rr",
        "optimal": "optimal_KOV",
    }
    entries = {entry["T"]: entry for entry in oracle("svt_composition.json") if
               entry["eps0"] == 0.1 and entry["delta"] == 1e-5}  # fmt: skip
    assert distinct(rows, "iterations") == [7, 20, 100, 199]
    for row in rows:
        wanted = entries[row["iterations"]][columns[row["method"]]]
        assert row["epsilon"] == pytest.approx(wanted, abs=1e-5)
    procedures = select(quick_rows(table_1), part=table_1.PROCEDURE)
    cost = {row["method"]: row["epsilon"] for row in procedures}
    assert cost["one run, no tuning"] == pytest.approx(2.38195, abs=2e-4)
    assert [row["method"] for row in procedures if not row["guarantee"]] == [table_1.PAPERS]


@pytest.mark.parametrize("setting", UTILITY_RANGE)
@pytest.mark.parametrize(
    ("mode", "variant"), [("always", "iterations"), ("after_true", "segments")]
)
def test_simulation_oracle_exactly(setting, mode, variant):
    expected = oracle("svt_simulation.json")[f"{setting} | {mode}"]
    partitions, highest = UTILITY_RANGE[setting]
    runs = [
        simulation.loop(seed, partitions=partitions, highest_utility=highest, variant=variant)
        for seed in range(simulation.SEEDS)
    ]
    traces, best = [run.trace for run in runs], [run.best for run in runs]
    selected = [run.selected for run in runs if run.selected is not None]
    iterations = [trace.iterations for trace in traces]
    hits = [trace.hits for trace in traces]
    found = {
        "T_median": np.median(iterations),
        "T_mean": np.mean(iterations),
        "T_p99": np.percentile(iterations, 99),
        "T_p999": np.percentile(iterations, 99.9),
        "T_max": max(iterations),
        "true_median": np.median(hits),
        "true_p99": np.percentile(hits, 99),
        "true_max": max(hits),
        "none": 1000 - len(selected),
    }
    assert found == {name: expected[name] for name in found}
    assert np.mean(selected) == pytest.approx(expected["mean_u_selected"], rel=1e-12)
    assert np.mean(best) == pytest.approx(expected["mean_u_max"], rel=1e-12)
