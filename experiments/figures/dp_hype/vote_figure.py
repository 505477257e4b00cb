"""What figures 3 to 13 have in common: tables trained or read, rows from them, and their flags.

Their flags say where tables are kept, which learning rates, and what is left out. Rows hold all a
picture shows, so that --redraw needs no table. Accuracies come from the clients' own test records
without noise: rows and pictures belong to whoever may see the data, not to a release.
"""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpjax import plotting
from dpjax.data.source import SOURCES
from dpjax.federated.voting import RATES
from experiments.figures import figure
from experiments.figures.dp_hype.studies import (
    EPSILONS,
    RATES_IN_WORDS,
    STUDY_COLUMNS,
    Study,
    study_of,
)
from experiments.figures.dp_hype.tables import Tables
from experiments.figures.figure import FULL, MID, QUICK, FigureSpec
from experiments.figures.panels import DATA_SETS, WIDTH, legend_below
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

    Above them stands the heading, and every data set with its size. The vertical label stands once,
    the horizontal one below the lowest panel of each column.
    """
    width = min(columns, len(panels))
    lines = -(-len(panels) // width)
    figure = Figure(figsize=(WIDTH, max(1.75 * lines, 2.2) + 1.2), layout="constrained")
    grid = figure.subplots(lines, width, squeeze=False, **share)
    for number, axes in enumerate(grid.flat):
        if number >= len(panels):
            axes.set_axis_off()
            continue
        plotting.style_axes(axes)
        title = list(panels)[number]
        draw_panel(axes, panels[title])
        axes.set_title(title)
        if number + width >= len(panels):  # The lowest of its column.
            axes.set_xlabel(x_label)
            axes.tick_params(labelbottom=True)
    figure.supylabel(y_label, fontsize=plotting.POINTS)
    legend_below(figure, grid.flat, legend_columns)
    figure.suptitle(_heading(rows, heading, WIDTH), fontsize=plotting.POINTS)
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
    return "\n".join([*textwrap.wrap(first_line, round(15 * width)),
                      *textwrap.wrap(note, round(15 * width))])  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Options(figure.DataFolders):
    """What the command line says; `datasets`, `clients` and `concentrations` leave others out.

    A data set whose files have no public address is shown only where `datasets` names it.
    """

    tables_dir: str = figure.option(Tables.folder, "Trained tables, shared by all figures.")
    rates: str = figure.option("artifact", "Learning rates.", choices=tuple(RATES))
    runs: int = figure.option(2_000, "Votes for each epsilon.")
    epsilons: tuple[float, ...] = figure.option(EPSILONS, "Of the votes; inf: without noise.")
    datasets: tuple[str, ...] = figure.option(
        (), "Only these data sets; if none is named, those whose files have a public address."
    )
    clients: tuple[int, ...] = figure.option((), "Only these numbers.")
    concentrations: tuple[float, ...] = figure.option(
        (), "Only these Dirichlet concentrations; 0 is iid."
    )
    net: str | None = figure.option(
        None, "Of every study: paper, or an MLP's widths as in 64-64. Default: the size's."
    )
    rounds: int | None = figure.option(
        None, "Of federated averaging. Default: the size's.", least=1
    )
    chunk_size: int = figure.option(
        Tables.chunk_size, "Candidates trained and saved at once: the memory knob.", least=1
    )

    def __post_init__(self):
        if self.runs < 2:
            raise ValueError(f"--runs={self.runs}: pass at least 2, for an interval")
        if not re.fullmatch(r"paper|\d+(-\d+)*", self.net or "paper"):
            raise ValueError(f"--net={self.net}: pass paper, or widths joined by -, as in 64-64")
        object.__setattr__(self, "epsilons", tuple(sorted(self.epsilons)))

    @property
    def tables(self) -> Tables:
        """The folder of trained tables."""
        return Tables(self.tables_dir, self.data_dir, self.cache_dir, self.chunk_size)

    def chosen(self, studies: Iterable[Study]) -> list[Study]:
        """The studies that are to be shown, with the chosen rates."""
        changes = {"rates": self.rates, "net": self.net, "rounds": self.rounds}
        changes = {name: value for name, value in changes.items() if value is not None}
        every = [dataclasses.replace(study, **changes) for study in studies]
        wanted = {
            "dataset": self.datasets,
            "clients": self.clients,
            "concentration": self.concentrations,
        }
        left = [
            study
            for study in every
            if all(not values or getattr(study, name) in values for name, values in wanted.items())
            and (self.datasets or _has_address(study.dataset))
        ]
        if not left:
            there = "; ".join(
                f"{name}: {', '.join(dict.fromkeys(f'{getattr(study, name)}' for study in every))}"
                for name in wanted
            )
            raise ValueError(f"no such federation in this figure and size: pass from {there}")
        return left


def _has_address(dataset: str) -> bool:
    """Whether all files of a data set can be downloaded, or come with a library."""
    return all(file.address.startswith("http") for file in SOURCES[dataset].files)


@dataclasses.dataclass(frozen=True)
class StudyRows:
    """The rows of a figure that shows several federations, as `FigureSpec.rows` has them.

    `rows` makes those of one study, without its columns.
    """

    studies: Callable[[str], Iterable[Study]]
    rows: Callable[[Study, Options], Iterable[Mapping]]

    def __call__(self, size: str, options: Options) -> list[dict]:
        """All rows, with the columns of their study."""
        return [
            {**dataclasses.asdict(study), **row}
            for study in options.chosen(self.studies(size))
            for row in self.rows(study, options)
        ]


def vote_figure(
    number: int,
    columns: Mapping[str, str],
    studies: Callable[[str], Iterable[Study]],
    rows: Callable[[Study, Options], Iterable[Mapping]],
    draw: Callable[[Sequence[Mapping]], Figure],
    *,
    quick: str,
    mid: str = "ten minutes",
    full: str = "hours on a GPU (an estimate)",
    **more: Any,
) -> FigureSpec:
    """One of figures 3 to 13; `columns` come after the study's, `more` is of `FigureSpec`.

    `quick`, `mid` and `full` are the wall times of these sizes; for `studies` and `rows` see
    `StudyRows`.
    """
    return FigureSpec(
        "dp_hype",
        f"figure_{number}",
        {**STUDY_COLUMNS, **columns},
        {FULL: full, MID: mid, QUICK: quick},
        draw,
        rows=StudyRows(studies, rows),
        options=Options(),
        **{"committed": MID, **more},
    )
