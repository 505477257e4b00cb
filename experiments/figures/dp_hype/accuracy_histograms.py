"""How good the candidates are: a histogram of their accuracies, for each federation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpjax import plotting
from experiments.figures.dp_hype.panel_grid import by_study, draw_grid
from experiments.figures.dp_hype.studies import TITLES, Study, study_of
from experiments.figures.dp_hype.vote_figure import Options

COLUMNS = {"candidate": "number", "accuracy": "share"}
_BINS = np.linspace(0.0, 1.0, 50)


def histogram_rows(study: Study, options: Options) -> list[dict]:
    """One row per candidate: its accuracy by federated averaging."""
    federated = options.tables.federated(study)
    return [{"candidate": i, "accuracy": value} for i, value in enumerate(federated)]


def drawer(columns: int, panel: Callable[[Study], str]) -> Callable[[Sequence[Mapping]], Figure]:
    """Returns a function that draws the histograms.

    Args:
      columns: panels side by side.
      panel: the panel that a study belongs to, and its title.
    """

    def draw(rows: Sequence[Mapping]) -> Figure:
        panels: dict[str, list] = {}
        for group in by_study(rows):
            panels.setdefault(panel(study_of(group[0])), []).append(group)
        return draw_grid(
            rows, panels, columns, _draw_panel,
            heading=f"100 candidates, federated averaging, {rows[0]['rates']} rates",
            x_label="accuracy (exact, not private)", y_label="candidates", legend_columns=4,
            sharex=True, sharey=True,
        )  # fmt: skip

    return draw


def _draw_panel(axes: Axes, groups: Sequence[Sequence[Mapping]]) -> None:
    """Histograms of several data sets over each other, each data set in its colour."""
    names = list(TITLES)
    for group in groups:
        dataset = group[0]["dataset"]
        axes.hist(
            [row["accuracy"] for row in group],
            bins=_BINS,
            color=plotting.PALETTE[names.index(dataset)],
            alpha=0.6,
            label=TITLES[dataset],
        )
    axes.set_xlim(0.0, 1.0)
