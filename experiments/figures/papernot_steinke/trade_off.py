"""What figures 4 to 6 have in common: one panel per bound, one line per law of K."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.figures.figure import FULL, QUICK, FigureSpec
from experiments.figures.panels import legend_below, new_panels
from experiments.figures.papernot_steinke import setting
from experiments.figures.rows import distinct, select

LAW_COLUMNS = {"repetition": "name", "shape": "1", "mean": "runs", "delta": "probability"}
EPSILON_COLUMNS = {f"epsilon_{bound}": "nats" for bound in setting.BOUNDS}


def law_cells(member: setting.Repetition, mean: float) -> dict:
    """Returns the cells of a row that say which law of K it is about, and the three epsilons."""
    return {
        "repetition": member.name,
        "shape": member.shape,
        "mean": mean,
        "delta": setting.DELTA,
        **setting.epsilons(member, mean),
    }


def draw_panels(
    rows: Sequence[Mapping], horizontal: str, vertical: str
) -> tuple[Figure, list[Axes]]:
    """Draws one panel per bound, with one legend under them all; "epsilon" is that of the bound.

    Returns the figure and its panels, whose limits and labels are still to be set.
    """
    figure, panels = new_panels(len(setting.BOUNDS), height=3.9, share_vertical=True)
    looks = {member.name: member for member in setting.REPETITIONS}
    for bound, axes in zip(setting.BOUNDS, panels):
        for name in distinct(rows, "repetition"):
            members = select(rows, repetition=name)
            cells = [
                [row[f"epsilon_{bound}" if column == "epsilon" else column] for row in members]
                for column in (horizontal, vertical)
            ]
            axes.plot(
                *cells,
                color=looks[name].colour,
                linestyle=looks[name].line,
                label=looks[name].label,
            )
        axes.set_title(setting.BOUND_TITLES[bound])
    legend_below(figure, panels[0], columns=4)
    figure.suptitle(f"best of K runs, each {setting.RHO:g}-zCDP")
    return figure, panels


def luck_figure(
    number: int, column: str, unit: str, luck: Callable, lowest: float, label: str
) -> FigureSpec:
    """Figures 5 and 6: `luck(law)`, what a law of K buys, against the privacy of the selection.

    The vertical axis begins at `lowest`.
    """

    def compute(size: str) -> list[dict]:
        return [
            law_cells(member, mean) | {column: float(luck(member.number_of_runs(mean)))}
            for member in setting.REPETITIONS
            for mean in setting.means(member, size == QUICK, largest=1e5)
        ]

    def draw(rows: Sequence[Mapping]) -> Figure:
        figure, panels = draw_panels(rows, "epsilon", column)
        for axes in panels:
            axes.set_xlim(1.5, 8)
            axes.set_ylim(lowest, 1.0)
            axes.set_xlabel(setting.epsilon_label(rows[0]["delta"]))
        panels[0].set_ylabel(label)
        return figure

    columns = LAW_COLUMNS | EPSILON_COLUMNS | {column: unit}
    takes = {FULL: "two and a half minutes", QUICK: "12 s"}
    return FigureSpec("papernot_steinke", f"figure_{number}", columns, takes, draw, rows=compute)
