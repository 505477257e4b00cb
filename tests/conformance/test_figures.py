"""Every figure there is: its columns, its committed rows, and the picture made from them alone."""

import importlib
import pathlib
import re

import matplotlib
import PIL.Image
import pytest
from matplotlib.text import Text

from dpjax import accounting
from experiments.figures import panels, registry
from experiments.figures.figure import FULL, MID, QUICK
from experiments.figures.rows import SIZE, read_rows, size_of

ROOT = pathlib.Path(__file__).parents[2]
NAMES = registry.names()


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


def committed(name):
    """The one file of a figure's rows under docs/figures; some sizes have a folder of their own."""
    figure = registry.load(name)
    (path,) = (ROOT / "docs" / "figures" / figure.paper).rglob(f"{figure.name}.csv")
    return figure, path


def test_the_registry_has_every_figure():
    files = (ROOT / "experiments" / "figures").glob("*/*.py")
    looks = {f"{path.parent.name}.{path.stem}" for path in files
             if re.fullmatch(r"(figure|table)_.*", path.stem)}  # fmt: skip
    assert set(NAMES) == looks - {"papernot_steinke.figure_7_runs"} | {
        "dpareto.sparse_vector_search",
        "auditing.audit",
        "leaderboard.board",
        "leaderboard.costs",
        "leaderboard.worth",
    }
    assert NAMES.index("dp_hype.figure_9") + 1 == NAMES.index("dp_hype.figure_10")
    assert "-m experiments.figures --quick" in (ROOT / "Makefile").read_text()


def test_what_a_figure_says_of_itself(name):
    figure = registry.load(name)
    assert name == f"{figure.paper}.{figure.name}"
    assert (figure.rows is None) != (figure.train is None)
    assert {QUICK, FULL, figure.committed} <= set(figure.takes) and all(figure.takes.values())
    assert set(figure.takes) <= {QUICK, MID, FULL} or figure.paper == "dpareto"
    assert figure.columns and SIZE not in figure.columns
    assert all(column.isidentifier() and unit for column, unit in figure.columns.items())
    module = importlib.import_module(f"experiments.figures.{name}")
    assert len(module.__doc__.splitlines()[0]) > 20
    if figure.paper == "dpareto" and name != "dpareto.table_recorded":
        said = ("--quick", f"python -m experiments.figures.{name} ", "akes ")
        assert all(words in module.__doc__ for words in said)
        assert re.search("Differs from the paper|Not in the paper", module.__doc__)
    source = pathlib.Path(module.__file__).read_text()
    assert source.endswith('if __name__ == "__main__":\n    FIGURE.run()\n')


def test_committed_rows_have_their_columns_and_size(name):
    figure, path = committed(name)
    assert tuple(read_rows(path)[0]) == (SIZE, *figure.columns)
    for stem in (figure.name, *figure.trained):
        assert size_of(path.with_stem(stem)) == figure.committed
    assert all(path.with_suffix(ending).stat().st_size > 10_000 for ending in (".png", ".svg"))


def test_no_committed_picture_is_wider_than_a_page(name):
    """Eight inches at 150 dots each, from the picture's own pixels."""
    _, path = committed(name)
    with PIL.Image.open(path.with_suffix(".png")) as picture:
        assert picture.size[0] <= 8.0 * 150 and round(picture.info["dpi"][0]) == 150


def test_a_picture_fits_a_page_and_its_text_is_read(name):
    """As it is drawn now: no text below nine points, a title of two lines, a vote's of three."""
    figure, path = committed(name)
    with matplotlib.rc_context(panels.STYLE):
        picture = figure.draw(read_rows(path))
        picture.draw_without_rendering()
    written = picture.findobj(lambda artist: isinstance(artist, Text) and artist.get_text())
    sizes = {text.get_fontsize() for text in written if text.get_visible()}
    assert sizes and min(sizes) >= 9.0
    title = picture.get_suptitle()
    assert picture.get_figwidth() <= 8.0
    assert len(title.splitlines()) <= (3 if figure.paper == "dp_hype" else 2)


def test_a_law_of_k_has_one_colour_in_all_pictures():
    """Of every line that a legend names Poisson or geometric."""
    found = {"poisson": set(), "geometric": set()}
    for name in NAMES:
        figure, path = committed(name)
        if "geometric" not in path.read_text().lower():
            continue
        for axes in figure.draw(read_rows(path)).axes:
            for line in axes.get_lines():
                for law in found:
                    if law in line.get_label().lower():
                        found[law].add(matplotlib.colors.to_hex(line.get_color()))
    assert found == {law: {panels.LAW_COLOURS[law]} for law in found}


def test_the_picture_is_made_from_the_committed_rows_alone_and_labelled(name, monkeypatch):
    for call in ("best_of", "compose", "doubling_loop", "repeat"):
        monkeypatch.setattr(accounting, call, None)  # It computes nothing.
    figure, path = committed(name)
    rows = read_rows(path)
    kept = [dict(row) for row in rows]
    picture = figure.draw(rows)
    assert rows == kept
    bars = {axes for axes in picture.axes if hasattr(axes, "_colorbar")}
    shown = [axes for axes in picture.axes if axes.axison and axes.get_visible()]
    shown = [axes for axes in shown if axes not in bars]
    assert shown or any(axes.tables for axes in picture.axes)
    assert _lines(figure.draw(rows)) == _lines(picture)
    for axes in shown:
        beside = [one for one in shown if _spans(one, "rowspan") & _spans(axes, "rowspan")]
        above = [one for one in shown if _spans(one, "colspan") & _spans(axes, "colspan")]
        assert _words(axes.xaxis) or any(one.get_xlabel() for one in above)
        assert (
            _words(axes.yaxis) or any(one.get_ylabel() for one in beside) or picture.get_supylabel()
        )


def _lines(picture):
    """What its lines show; equal where `nan` is, too."""
    return str([line.get_xydata().tolist() for axes in picture.axes for line in axes.get_lines()])


def _spans(axes, direction):
    """The rows or columns of the grid that a panel takes."""
    return set(getattr(axes.get_subplotspec(), direction))


def _words(axis):
    """Whether an axis counts things that its ticks name."""
    return any(re.search("[a-z]{3}", label.get_text()) for label in axis.get_ticklabels())
