"""Rows of figures: written whole, read back exactly, never over another figure's."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from experiments.figures import job
from experiments.figures.panels import new_panels
from experiments.figures.rows import distinct, read_rows, select, write_rows

COLUMNS = ("law", "mean", "epsilon", "order")
ROWS = [
    {"law": "geometric", "mean": 10.0, "epsilon": 1 / 3, "order": None},
    {"law": "eta=-0.5", "mean": 1e-300, "epsilon": np.float64(2.6), "order": np.int64(7)},
    {"law": 'with "quotes", and\nmore', "mean": float("inf"), "epsilon": -0.1, "order": 3},
]


def drawn(rows):
    """A figure of the rows' first two numbers."""
    figure, (axes,) = new_panels(1)
    axes.plot([row["mean"] for row in rows], [row["epsilon"] for row in rows])
    return figure


def figure_job(rows=ROWS, columns=COLUMNS, draw=drawn):
    """A job whose rows are given."""
    return job.FigureJob(
        "a_paper", "figure_9", columns, lambda quick: rows[: 2 if quick else 3], draw
    )


def test_rows_read_back_as_they_were(tmp_path):
    path = tmp_path / "rows.csv"
    write_rows(path, COLUMNS, ROWS)
    assert read_rows(path) == ROWS
    assert type(read_rows(path)[1]["order"]) is int
    assert type(read_rows(path)[0]["mean"]) is float


def test_a_failed_write_leaves_the_old_rows(tmp_path):
    path = tmp_path / "rows.csv"
    write_rows(path, COLUMNS, ROWS)

    def failing():
        yield ROWS[0]
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError):
        write_rows(path, COLUMNS, failing())
    assert read_rows(path) == ROWS


def test_another_figures_rows_are_not_overwritten(tmp_path):
    path = tmp_path / "rows.csv"
    write_rows(path, COLUMNS, ROWS)
    with pytest.raises(ValueError, match="another figure's rows.*--out_dir"):
        write_rows(path, ("other",), [{"other": 1}])
    assert read_rows(path) == ROWS
    write_rows(path, COLUMNS, ROWS[:1])
    assert len(read_rows(path)) == 1


def test_rows_of_other_columns_are_refused(tmp_path):
    with pytest.raises(ValueError, match="columns"):
        write_rows(tmp_path / "rows.csv", COLUMNS, [{"law": "geometric"}])


def test_select_and_distinct():
    rows = [{"a": 1, "b": x} for x in (3, 1, 3)]
    assert select(rows, b=3) == [rows[0], rows[2]]
    assert distinct(rows, "b") == [3, 1]


def test_the_picture_is_drawn_from_the_file(tmp_path):
    seen = []

    def draw(rows):
        seen.append(rows)
        return drawn(rows[:1])

    paths = figure_job(draw=draw).produce(tmp_path, quick=True)
    assert [os.path.basename(path) for path in paths] == [
        "figure_9.csv",
        "figure_9.png",
        "figure_9.pdf",
    ]
    assert all(os.path.getsize(path) for path in paths)
    assert seen == [ROWS[:2]]
    # Redrawing takes what stands there, not what compute would give.
    figure_job(rows=[], draw=draw).produce(tmp_path, redraw=True)
    assert seen[1] == ROWS[:2]


def test_redrawing_the_same_rows_gives_the_same_bytes(tmp_path):
    figure = figure_job(draw=lambda rows: drawn(rows[:1]))
    before = [pathlib.Path(path).read_bytes() for path in figure.produce(tmp_path)]
    after = [pathlib.Path(path).read_bytes() for path in figure.produce(tmp_path, redraw=True)]
    assert before == after


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--quick", "--redraw"], "leave --quick away"),
        (["--redraw"], "No such file"),
        (["--nonsense"], "Unknown command line flag"),
    ],
)
def test_a_wrong_call_ends_in_one_line(tmp_path, arguments, message):
    done = subprocess.run(
        [sys.executable, "-m", "experiments.figures.papernot_steinke.figure_8"]
        + [f"--out_dir={tmp_path}"]
        + arguments,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_binary_prints_the_paths(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "experiments.figures.papernot_steinke.figure_8"]
        + [f"--out_dir={tmp_path}", "--quick"],
        capture_output=True,
        text=True,
        check=True,
    )
    printed = done.stdout.splitlines()[:3]
    assert printed == [str(tmp_path / f"figure_8.{ending}") for ending in ("csv", "png", "pdf")]
