"""Figure 8: fronts side by side - which model and optimiser for which epsilon.

Avent et al., PoPETs 2020: on Adult LogReg+Adam is best nearly always; on MNIST the network 128-64
beats the wider one at small epsilon. DPareto's fronts of seed 0, measured afresh.

Differs from the paper: EHVI for HVPoI, tight epsilons for classic ones, fronts measured afresh.

  python -m experiments.figures.dpareto.figure_8 --size=full_adult --data_dir=... --out_dir=...

It takes an hour of a core; with --size=full many more for MNIST (an estimate: not run; --problem=
restricts it); with --size=mid half as long; with --quick a minute, most of it compilation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from dpjax import plotting
from experiments.figures import panels
from experiments.figures.dpareto import maps
from experiments.figures.dpareto import trained_fronts as found
from experiments.figures.dpareto import trained_searches as trained
from experiments.figures.dpareto.figure_7 import COLUMNS, rows, searches
from experiments.figures.rows import distinct, select


def draw(rows: Sequence[Mapping]) -> Figure:
    """Draws one panel a data set."""
    figure, axes = panels.new_panels(2, height=3.8)
    for panel, names in zip(axes, (trained.ADULT, trained.MNIST)):
        drawn = [row for row in rows if row["problem"] in names]
        for place, problem in enumerate(names):
            members = select(drawn, problem=problem)
            if members:
                maps.draw_front(
                    panel, maps.column(members, "epsilon"), 1 - maps.column(members, "utility"),
                    color=plotting.PALETTE[place], linewidth=2, marker="o", markersize=3,
                    label=trained.LABELS[problem],
                )  # fmt: skip
        found.dress(panel, " and ".join(distinct(drawn, "data_set")), drawn)
        if panel.lines:
            panel.legend()
    found.head(figure, rows)
    return figure


FIGURE = trained.figure(
    "figure_8",
    COLUMNS,
    searches,
    rows,
    draw,
    full="Adult half an hour, MNIST many (an estimate)",
    full_adult="an hour",
    committed=trained.FULL_ADULT,
)

if __name__ == "__main__":
    FIGURE.run()
