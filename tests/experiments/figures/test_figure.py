"""The runner: rows written whole, read back exactly, never over another figure's or size's."""

import dataclasses
import os
import pathlib

import matplotlib
import numpy as np
import PIL.Image
import pytest
from processes import python

from experiments.figures.figure import FULL, MID, QUICK, FigureSpec, option
from experiments.figures.panels import new_panels
from experiments.figures.rows import SIZE, RowFolder, distinct, read_rows, select, write_rows

ROOT = pathlib.Path(__file__).parents[3]

FIGURE_8 = "experiments.figures.papernot_steinke.figure_8"
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


def spec(given=ROWS, draw=drawn, **more):
    """A figure whose rows are given, fewer of them if quick."""
    return FigureSpec(
        "a_paper",
        "figure_9",
        dict.fromkeys(COLUMNS, "1"),
        {FULL: "no time", QUICK: "no time"},
        draw,
        **({"rows": lambda size: given[: 2 if size == QUICK else 3]} | more),
    )


def test_a_picture_is_drawn_in_the_common_style_and_gives_the_same_bytes(tmp_path):
    seen = []

    def noting(rows):
        seen.append(float(matplotlib.rcParams["axes.titlesize"]))
        return drawn(rows)

    before = matplotlib.rcParams["axes.titlesize"]
    found = [spec(draw=noting).produce(tmp_path / name) for name in ("one", "two")]
    assert seen == [9.0, 9.0] and matplotlib.rcParams["axes.titlesize"] == before
    for one, two in zip(*found, strict=True):
        assert pathlib.Path(one).read_bytes() == pathlib.Path(two).read_bytes()
    with PIL.Image.open(tmp_path / "one" / "figure_9.png") as picture:
        assert picture.mode == "P" and round(picture.info["dpi"][0]) == 150


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

    paths = spec(draw=draw).produce(tmp_path, QUICK)
    assert [os.path.basename(path) for path in paths] == [
        "figure_9.csv",
        "figure_9.png",
        "figure_9.svg",
    ]
    assert all(os.path.getsize(path) for path in paths)
    assert seen == [ROWS[:2]]
    # Redrawing takes what stands there, not what compute would give.
    spec(given=[], draw=draw).produce(tmp_path, redraw=True)
    assert seen[1] == ROWS[:2]
    assert {row[SIZE] for row in read_rows(paths[0])} == {QUICK}


def test_redrawing_the_same_rows_gives_the_same_bytes(tmp_path):
    figure = spec(draw=lambda rows: drawn(rows[:1]))
    before = [pathlib.Path(path).read_bytes() for path in figure.produce(tmp_path)]
    after = [pathlib.Path(path).read_bytes() for path in figure.produce(tmp_path, redraw=True)]
    assert before == after


def test_rows_of_another_size_are_refused(tmp_path):
    computed = []

    def rows(size):
        computed.append(size)
        return ROWS[:2]

    figure = spec(draw=lambda rows: drawn(rows[:1]), rows=rows)
    path = pathlib.Path(figure.produce(tmp_path, QUICK)[0])
    before = path.read_bytes()
    for asked in ({}, {"size": FULL, "redraw": True}):
        with pytest.raises(ValueError, match="size quick, not full: pass --size=quick or another"):
            figure.produce(tmp_path, **asked)
    assert path.read_bytes() == before and computed == [QUICK]  # Refused before the work.
    with pytest.raises(ValueError, match="has no size mid: pass --size=full|quick"):
        figure.produce(tmp_path, MID)
    path.write_bytes(before.replace(b"quick", b"full", 1))
    with pytest.raises(ValueError, match=r"not of one size \(found: full, quick\)"):
        figure.produce(tmp_path, redraw=True)
    write_rows(tmp_path / "old.csv", COLUMNS, ROWS)
    with pytest.raises(ValueError, match="name no size: pass another --out_dir"):
        RowFolder(str(tmp_path), FULL).read("old")
    assert RowFolder(str(tmp_path), FULL).read("absent") == []


@dataclasses.dataclass(frozen=True)
class Options:
    number: int | None = option(None, "How many.")


def test_training_goes_on_where_it_stopped(tmp_path):
    said, asked = [], []

    def train(folder, options):
        asked.append(options)
        runs = folder.read("figure_9_runs")
        for number in range(len(runs), 3):
            runs.append({"run": number})
            folder.write("figure_9_runs", ["run"], runs)
            folder.report(f"run {number}")
            if number == 1 and len(asked) == 1:
                raise KeyboardInterrupt

    figure = spec(
        rows=None,
        draw=lambda rows: drawn(rows[:1]),
        train=train,
        derive=lambda folder: ROWS[: len(folder.read("figure_9_runs"))],
        trained=["figure_9_runs"],
        options=Options(),
    )
    with pytest.raises(KeyboardInterrupt):
        figure.produce(tmp_path, QUICK, report=said.append)
    assert len(read_rows(tmp_path / "figure_9_runs.csv")) == 2
    paths = figure.produce(tmp_path, QUICK, options=Options(number=5), report=said.append)
    assert said == ["run 0", "run 1", "run 2"] and [one.number for one in asked] == [None, 5]
    assert [os.path.basename(path) for path in paths[:2]] == ["figure_9_runs.csv", "figure_9.csv"]
    with pytest.raises(ValueError, match="size quick, not full"):
        figure.produce(tmp_path)
    figure.produce(tmp_path, redraw=True)  # Derives anew, trains nothing.
    assert len(asked) == 2  # Nor does a refused size.
    nothing = dataclasses.replace(figure, derive=lambda folder: [])
    with pytest.raises(ValueError, match="holds nothing that figure_9 shows"):
        nothing.produce(tmp_path, redraw=True)


def test_flags_are_the_fields_of_the_options(tmp_path):
    """A figure of its own, in a program of its own: flags are one process's."""
    program = tmp_path / "program.py"
    program.write_text(
        "import dataclasses\n"
        "from experiments.figures.figure import *\n"
        "from experiments.figures.panels import new_panels\n"
        "@dataclasses.dataclass(frozen=True)\n"
        "class Options(DataFolders):\n"
        "    law: str = option('geometric', 'A law.', choices=('geometric', 'poisson'))\n"
        "    number: int | None = option(None, 'How many.', least=1)\n"
        "    means: tuple[float, ...] = option((1.0, 10.0), 'Of K.')\n"
        "    only: tuple[str, ...] = option((), 'Only these.', choices=('a', 'b'))\n"
        "def rows(size, options):\n"
        "    print(size, options)\n"
        "    return [{'x': 1}]\n"
        "FigureSpec('a_paper', 'figure_9', {'x': '1'}, {FULL: '1 s', QUICK: '0 s'},\n"
        "           lambda rows: new_panels(1)[0], rows=rows, options=Options()).run()\n"
    )

    def run(*arguments):
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        return python(program, f"--out_dir={tmp_path}", *arguments, cwd=ROOT, env=environment)

    done = run("--quick", "--law=poisson", "--means=2,inf", "--only=b", "--only=a", "--data_dir=d")
    assert done.stdout.splitlines()[0] == (
        "quick Options(data_dir='d', cache_dir=None, law='poisson', number=None, "
        "means=(2.0, inf), only=('b', 'a'))"
    )
    assert "--number=0" in run("--number=0").stderr
    assert "<geometric|poisson>" in run("--law=binomial").stderr


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--quick", "--redraw"], "leave --redraw away"),
        (["--quick", "--size=full"], "leave it or --size=full away"),
        (["--size=mid"], "should be one of <full|quick>"),
        (["--redraw"], "No such file"),
        (["--nonsense"], "there is no flag --nonsense"),
    ],
)
def test_a_wrong_call_ends_in_one_line(tmp_path, arguments, message):
    done = python("-m", FIGURE_8, f"--out_dir={tmp_path}", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_binary_prints_the_paths(tmp_path):
    done = python("-m", FIGURE_8, f"--out_dir={tmp_path}", "--quick", check=True)
    printed = done.stdout.splitlines()[:3]
    assert printed == [str(tmp_path / f"figure_8.{ending}") for ending in ("csv", "png", "svg")]


_ALL = """
import runpy, sys
from experiments.figures import registry
registry.names = lambda: ["ding_wu.table_1", "papernot_steinke.figure_8"]
sys.argv = ["figures", *sys.argv[1:]]
runpy.run_module("experiments.figures", run_name="__main__")
"""


@pytest.mark.parametrize(
    "arguments, wanted",
    [
        (["--quick"], ["ding_wu_quick/table_1", "papernot_steinke_quick/figure_8"]),
        (["--size=mid"], []),  # Neither knows it.
        (["--list"], []),
    ],
)
def test_all_figures_in_one_go(tmp_path, arguments, wanted):
    done = python("-c", _ALL, f"--out_dir={tmp_path}", *arguments, check=True)
    assert sorted(tmp_path.rglob("*.png")) == [tmp_path / f"{one}.png" for one in wanted]
    if arguments == ["--list"]:
        assert done.stdout.splitlines()[1] == "papernot_steinke.figure_8 full: 3 s; quick: 2 s"
    else:
        assert all(f"{tmp_path}/{one}.csv" in done.stdout for one in wanted)
