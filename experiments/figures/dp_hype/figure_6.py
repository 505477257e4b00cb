"""Figure 6: labels at ten of 50 clients under Dirichlet divisions of MNIST and CIFAR-10.

DP-HYPE, arXiv:2510.04902; see the package for how to run. Concentration 30 is nearly even,
at 0.5 clients lack classes and differ in size several times over.
Trains nothing: a second at every size, once the data is at hand.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.federation import partitioners
from experiments.figures.dp_hype.studies import (
    CONCENTRATIONS,
    Study,
    study,
)
from experiments.figures.dp_hype.vote_figure import Options, by_title, draw_grid, vote_figure
from experiments.figures.figure import FULL, MID, QUICK, FigureSpec
from experiments.figures.rows import distinct, select

COLUMNS = {"client": "number", "label": "number", "count": "records"}
SHOWN = 10


def label_rows(study: Study, options: Options) -> list[dict]:
    """One row for each of the first ten clients and each class."""
    dataset = study.load(options.tables.data_dir, options.tables.cache_dir)
    labels = dataset.train.labels[: study.records or None]
    counts = partitioners.label_counts(labels, study.divide(labels), dataset.classes)
    return [
        {"client": client, "label": label, "count": counts[client, label]}
        for client in range(min(SHOWN, study.clients))
        for label in range(dataset.classes)
    ]


def draw(rows: Sequence[Mapping]) -> Figure:
    """Stacked bars, data sets by rows and concentrations by columns."""
    return draw_grid(
        rows, by_title(rows), 3, _draw_panel,
        heading=f"the first {SHOWN} clients of a Dirichlet division",
        x_label="client", y_label="records (exact, not private)", legend_columns=5, sharey="row",
    )  # fmt: skip


def _draw_panel(axes: Axes, rows: Sequence[Mapping]) -> None:
    bottom = np.zeros(len(distinct(rows, "client")))
    labels = distinct(rows, "label")
    shades = matplotlib.colormaps["viridis"](np.linspace(0.0, 1.0, len(labels)))
    for label, shade in zip(labels, shades):
        members = select(rows, label=label)
        counts = np.array([row["count"] for row in members])
        axes.bar(
            [row["client"] for row in members], counts, bottom=bottom, color=shade,
            label=f"class {label}",
        )  # fmt: skip
        bottom += counts
    axes.set_ylim(top=1.05 * max(bottom.max(), axes.get_ylim()[1] / 1.05))
    axes.set_xticks(distinct(rows, "client"))


def figure(number: int, datasets: Sequence[str], **more: Any) -> FigureSpec:
    """Figures 6 and 7: data sets by rows, Dirichlet concentrations by columns, 50 clients."""

    def studies(size: str) -> Iterable[Study]:
        for dataset in datasets if size != QUICK else datasets[:1]:
            for concentration in CONCENTRATIONS:
                found = study(size, dataset, 50, concentration)
                # Nothing is trained, so nothing but the records and their division is smaller.
                whole = study(FULL, dataset, 50, concentration)
                smaller = {name: getattr(found, name) for name in ("dataset", "clients", "records")}
                yield dataclasses.replace(whole, **smaller)

    takes = dict.fromkeys((FULL, MID, QUICK), "a second")
    return vote_figure(number, COLUMNS, studies, label_rows, draw, **takes, **more)


FIGURE = figure(6, ("mnist", "cifar10"))

if __name__ == "__main__":
    FIGURE.run()
