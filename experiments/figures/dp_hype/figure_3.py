"""Figure 3: accuracies of the 100 candidates by federated averaging, 50 clients, iid.

DP-HYPE, arXiv:2510.04902; see the package for how to run. What it shows: a few candidates are good,
most are useless, since most learning rates are too small; on Adult the useless ones guess one of
the two classes. In the authors' published table for MNIST the best has 0.976, the mean is 0.31, and
26 of the 100 exceed 0.85; at mid size (an MLP) 0.928, 0.33 and 18.

Mid size trains for about ten minutes on one core, --quick for fifteen seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpjax import plotting
from experiments.figures.dp_hype.studies import Study, listed, study_of
from experiments.figures.dp_hype.vote_figure import (
    Options,
    by_study,
    draw_grid,
    rates_in_words,
    vote_figure,
)
from experiments.figures.figure import FULL, MID, QUICK
from experiments.figures.panels import DATA_SETS

COLUMNS = {"candidate": "number", "accuracy": "share"}


def histogram_rows(study: Study, options: Options) -> list[dict]:
    """One row per candidate: its accuracy by federated averaging."""
    federated = options.tables.federated(study)
    return [{"candidate": i, "accuracy": value} for i, value in enumerate(federated)]


def drawer(
    columns: int, panel: Callable[[Study], Hashable] = lambda study: study.concentration
) -> Callable[[Sequence[Mapping]], Figure]:
    """Returns a function that draws the candidates' accuracies, so many panels side by side.

    Studies of as many clients share a panel where `panel` of them is equal.
    """

    def draw(rows: Sequence[Mapping]) -> Figure:
        panels: dict[tuple, list] = {}
        for group in by_study(rows):
            study = study_of(group[0])
            panels.setdefault((study.clients, panel(study)), []).append(group)
        return draw_grid(
            rows, {_title(groups): groups for groups in panels.values()}, columns, _draw_panel,
            heading=f"100 candidates, federated averaging; {rates_in_words(rows)}",
            x_label="accuracy (exact, not private)",
            y_label="candidates at least as accurate", legend_columns=4, sharex=True, sharey=True,
        )  # fmt: skip

    return draw


def _title(groups: Sequence[Sequence[Mapping]]) -> str:
    """Clients and division; the data sets beside it where they are not divided alike."""
    studies = [study_of(group[0]) for group in groups]
    divisions: dict[str, list[str]] = {}
    for study in studies:
        divisions.setdefault(study.division, []).append(DATA_SETS[study.dataset])
    words = [
        division if len(divisions) == 1 else f"{division} ({', '.join(names)})"
        for division, names in divisions.items()
    ]
    between = " " if len(words) == 1 else "\n"  # Two do not fit into a line.
    return f"{studies[0].clients} clients,{between}{', '.join(words)}"


def _draw_panel(axes: Axes, groups: Sequence[Sequence[Mapping]]) -> None:
    """How many candidates are at least as good, a staircase in the colour of each data set."""
    names = list(DATA_SETS)
    for group in groups:
        accuracies = np.sort([row["accuracy"] for row in group])
        axes.step(
            [0.0, *accuracies, 1.0],
            [len(accuracies), *range(len(accuracies), 0, -1), 0],
            where="pre",
            color=plotting.PALETTE[names.index(group[0]["dataset"])],
            label=DATA_SETS[group[0]["dataset"]],
        )
    # Few are good: a linear axis shows only the many that are not.
    axes.set_yscale("symlog", linthresh=1.0)
    axes.set_yticks([0, 1, 10, 100], ["0", "1", "10", "100"])
    axes.set_ylim(0, 130)
    axes.set_xlim(0.0, 1.0)


_ALL = (("mnist", 50), ("cifar10", 50), ("adult", 50))

FIGURE = vote_figure(
    3,
    COLUMNS,
    listed({FULL: _ALL, MID: _ALL, QUICK: (("mnist", 50),)}),
    histogram_rows,
    drawer(1),
    mid="ten minutes",
    quick="15 s",
)

if __name__ == "__main__":
    FIGURE.run()
