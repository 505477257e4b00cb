"""Pictures of several federations: a panel each, one legend, and a heading that says what differs.

Accuracies and counts are drawn as they are, without noise: for whoever may see the data.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpjax import plotting
from experiments.figures.dp_hype.studies import (
    RATES_IN_WORDS,
    STUDY_COLUMNS,
    Study,
    study_of,
)
from experiments.figures.panels import DATA_SETS, legend_below
from experiments.figures.rows import distinct

_FULL_SIZE = "full size"


def by_study(rows: Sequence[Mapping]) -> list[list[Mapping]]:
    """Rows grouped by study, in order of appearance."""
    groups: dict[Study, list[Mapping]] = {}
    for row in rows:
        groups.setdefault(study_of({name: row[name] for name in STUDY_COLUMNS}), []).append(row)
    return list(groups.values())


def by_title(rows: Sequence[Mapping]) -> dict[str, list[Mapping]]:
    """Rows grouped by study: title of its panel -> rows."""
    found: dict[str, list[Mapping]] = {}
    for group in by_study(rows):
        title = study_of(group[0]).title
        if title in found:
            raise ValueError(
                f"rows of two federations called {title!r}: pass rows of one list of rates, net "
                "and seed"
            )
        found[title] = group
    return found


def rates_in_words(rows: Sequence[Mapping]) -> str:
    """Which learning rates the candidates have."""
    names = distinct(rows, "rates")
    if len(names) != 1:
        raise ValueError(f"rows of several lists, {', '.join(names)}: pass rows of one")
    return RATES_IN_WORDS[names[0]]


def draw_grid(
    rows: Sequence[Mapping],
    panels: Mapping[str, Any],
    columns: int,
    draw_panel: Callable[[Axes, Any], None],
    *,
    heading: str,
    x_label: str,
    y_label: str,
    legend_columns: int = 3,
    **share: Any,
) -> Figure:
    """Draws panels, title -> what `draw_panel` draws, in so many columns, with one legend.

    Above them stands the heading, with a note where vertical scales differ, and every data set with
    its size. Labels stand at the leftmost panels, and at the lowest ones where they share the axis.
    """
    width = min(columns, len(panels))
    lines = -(-len(panels) // width)
    figure = Figure(figsize=(max(3.8 * width, 7.0), 2.8 * lines + 1.5), layout="constrained")
    grid = figure.subplots(lines, width, squeeze=False, **share)
    for number, axes in enumerate(grid.flat):
        if number >= len(panels):
            axes.set_axis_off()
            continue
        plotting.style_axes(axes)
        title = list(panels)[number]
        draw_panel(axes, panels[title])
        axes.set_title(title, fontsize=11.5)
        # Of a shared axis the lowest panel of each column has the label.
        if number + width >= len(panels) or not share.get("sharex"):
            axes.set_xlabel(x_label)
            axes.tick_params(labelbottom=True)
    for axes in grid[:, 0]:
        axes.set_ylabel(y_label)
    if len({axes.get_ylim() for axes in grid.flat[: len(panels)]}) > 1:
        heading += "; vertical scales differ"
    legend_below(figure, grid.flat, legend_columns, fontsize=None)
    figure.suptitle(_heading(rows, heading, figure.get_figwidth()), fontsize=10.5)
    return figure


def _heading(rows: Sequence[Mapping], first_line: str, width: float) -> str:
    """The first line, then each data set with what is not the paper's, broken to inches."""
    studies = [study_of(group[0]) for group in by_study(rows)]
    notes = []
    for study in studies:
        alike = {other.footnote for other in studies if other.dataset == study.dataset}
        name = DATA_SETS[study.dataset] + (f", n = {study.clients}" if len(alike) > 1 else "")
        notes.append(f"{name}: {study.footnote or _FULL_SIZE}")
    note = "; ".join(dict.fromkeys(notes))
    return "\n".join([*textwrap.wrap(first_line, round(14 * width)),
                      *textwrap.wrap(note, round(12 * width))])  # fmt: skip
