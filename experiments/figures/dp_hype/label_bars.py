"""What a Dirichlet division looks like: how many records of each class the first clients hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from dpjax import data, plotting
from experiments.figures.dp_hype.studies import Study, study_of
from experiments.figures.dp_hype.trade_off import by_study, heading
from experiments.figures.dp_hype.vote_figure import Options
from experiments.figures.rows import distinct, select

COLUMNS = ("client", "label", "count")
SHOWN = 10


def label_rows(study: Study, options: Options) -> list[dict]:
    """One row for each of the first ten clients and each class."""
    dataset = study.load(options.data_dir, options.cache_dir)
    labels = dataset.train.labels[: study.records or None]
    counts = data.partitioners.label_counts(labels, study.divide(labels), dataset.classes)
    return [
        {"client": client, "label": label, "count": counts[client, label]}
        for client in range(min(SHOWN, study.clients))
        for label in range(dataset.classes)
    ]


def draw(rows: Sequence[Mapping]) -> Figure:
    """Stacked bars, data sets by rows and concentrations by columns."""
    groups = by_study(rows)
    columns = min(3, len(groups))
    lines = -(-len(groups) // columns)
    figure = Figure(figsize=(11.0, 2.9 * lines + 1.2), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False, sharey="row")
    for axes, group in zip(grid.flat, groups):
        plotting.style_axes(axes)
        bottom = np.zeros(len(distinct(group, "client")))
        labels = distinct(group, "label")
        shades = matplotlib.colormaps["viridis"](np.linspace(0.0, 1.0, len(labels)))
        for label, shade in zip(labels, shades):
            members = select(group, label=label)
            counts = np.array([row["count"] for row in members])
            axes.bar([row["client"] for row in members], counts, bottom=bottom, color=shade,
                     label=f"class {label}")  # fmt: skip
            bottom += counts
        axes.set_ylim(top=1.05 * max(bottom.max(), axes.get_ylim()[1] / 1.05))
        axes.set_title(study_of(group[0]).title, fontsize=11.5)
        axes.set_xticks(distinct(group, "client"))
    for axes in grid[-1]:
        axes.set_xlabel("client")
    for axes in grid[:, 0]:
        axes.set_ylabel("records (exact, not private)")
    handles = dict(zip(*grid[0, 0].get_legend_handles_labels()[::-1]))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=5)
    title = f"the first {SHOWN} clients of a Dirichlet division"
    figure.suptitle(heading(rows, title, figure.get_figwidth()), fontsize=10.5)
    return figure
