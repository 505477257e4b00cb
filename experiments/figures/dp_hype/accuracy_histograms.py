"""How good the candidates are: a histogram of the accuracies of all 100, for each federation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpjax import plotting
from experiments.figures.dp_hype.studies import TITLES, Study, study_of
from experiments.figures.dp_hype.trade_off import by_study, heading
from experiments.figures.dp_hype.vote_figure import Options

COLUMNS = ("candidate", "accuracy")
_BINS = np.linspace(0.0, 1.0, 50)


def histogram_rows(study: Study, options: Options) -> list[dict]:
    """One row per candidate: its accuracy by federated averaging."""
    federated = options.table(study).federated
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
        lines = -(-len(panels) // columns)
        width = min(columns, len(panels))
        figure = Figure(figsize=(max(4.2 * width, 7.5), 2.5 * lines + 1.4), layout="constrained")
        grid = figure.subplots(lines, width, squeeze=False, sharex=True, sharey=True)
        for axes, (title, groups) in zip(grid.flat, panels.items()):
            plotting.style_axes(axes)
            _panel(axes, groups)
            axes.set_title(title, fontsize=12)
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        for axes in grid[-1]:
            axes.set_xlabel("accuracy (exact, not private)")
        for axes in grid[:, 0]:
            axes.set_ylabel("candidates")
        found = {}
        for axes in grid.flat:
            found.update(zip(*axes.get_legend_handles_labels()[::-1]))
        figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=4)
        first = study_of(rows[0])
        title = f"100 candidates, federated averaging, {first.rates} rates"
        figure.suptitle(heading(rows, title, figure.get_figwidth()), fontsize=10.5)
        return figure

    return draw


def _panel(axes: Axes, groups: Sequence[Sequence[Mapping]]) -> None:
    """Histograms of several data sets over each other, each data set in its colour."""
    names = list(TITLES)
    for group in groups:
        study = study_of(group[0])
        number = names.index(study.dataset)
        axes.hist(
            [row["accuracy"] for row in group],
            bins=_BINS,
            color=plotting.PALETTE[number],
            alpha=0.6,
            label=TITLES[study.dataset],
        )
    axes.set_xlim(0.0, 1.0)
