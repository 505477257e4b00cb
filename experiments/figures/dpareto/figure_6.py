"""Figure 6: DPareto against grid search, on Adult with LogReg+SGD.

Avent et al., PoPETs 2020: 256 proposals beat grids of 243 and 1,024 points. Left: evaluations and
fronts; right: hypervolume at (10, 1), as observed and of the front measured afresh. Grids are even
on linear scales, learning rates from 0.001 to 0.1, as the authors' are. At mid size DPareto has
144 evaluations, the grids 32 and 243 points.

Differs from the paper: EHVI for HVPoI, tight epsilons for classic ones, fronts measured afresh.

  python -m experiments.figures.dpareto.figure_6 --size=full_adult --data_dir=... --out_dir=...

It takes an hour of a core, half of it for the grid of 1,024 (--size=full is the same here). With
--size=mid it takes half an hour, with --quick (a grid of 32) half a minute, most of it compilation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from dpjax import plotting
from experiments.figures import panels
from experiments.figures.dpareto import trained_fronts as found
from experiments.figures.dpareto import trained_searches as trained
from experiments.figures.rows import select

PROBLEM = "adult_logistic_regression_sgd"
COLUMNS = ("method", *trained.RAN_COLUMNS, "fresh_repetitions", "measurement",
           *trained.SETTING_COLUMNS, "epsilon", "utility")  # fmt: skip


def searches(size: str) -> list[tuple[str, str, int]]:
    """The searches it needs."""
    grids = [f"grid_{points}" for points in trained.size_of(PROBLEM, size).grids]
    return [(PROBLEM, method, 0) for method in ("ehvi", *grids)]


def rows(evaluations: Sequence[Mapping], fresh: Sequence[Mapping]) -> list[dict]:
    """One row an evaluation, of the search and of the front measured afresh."""
    return [
        {name: row.get(name) for name in COLUMNS} | {"measurement": measurement}
        for measurement, members in (("search", evaluations), ("afresh", fresh))
        for row in select(members, problem=PROBLEM, seed=0)
        if row["method"] == "ehvi" or row["method"].startswith("grid_")
    ]


def draw(rows: Sequence[Mapping]) -> Figure:
    """Draws fronts on the left, hypervolumes on the right."""
    figure, (left, right) = panels.new_panels(2, height=3.8)
    searched = select(rows, measurement="search")
    methods, names = found.methods_of(searched), []
    for place, method in enumerate(methods):
        members, colour = select(searched, method=method), plotting.PALETTE[place]
        name = "DPareto" if method == "ehvi" else "grid"
        label = f"{name}, {len(members)} points"
        found.draw_points(left, members, label, colour)
        afresh = select(rows, measurement="afresh", method=method)
        # No bars: they begin at 0, where differences of 0.03 are not seen.
        for judged, fill, offset in ((members, "none", 0.1), (afresh, "full", -0.1)):
            volume = found.hypervolume(judged)
            right.plot(volume, offset - place, "o", color=colour, fillstyle=fill, markersize=8)
            right.annotate(
                f"{volume:.3f}", (volume, offset - place), (7, 0), textcoords="offset points",
                va="center",
            )  # fmt: skip
        names.append(label.replace(", ", "\n"))
    found.dress(left, trained.LABELS[PROBLEM], searched)
    left.legend()
    for fill, label in (("none", "as observed"), ("full", "front measured afresh")):
        right.plot([], [], "o", color="#333333", fillstyle=fill, label=label)
    panels.legend_below(figure, right, 2)
    right.set_yticks(-np.arange(len(names)), names)
    right.set_ylim(-len(names) + 0.5, 0.5)
    right.margins(x=0.25)
    right.set_xlabel("hypervolume at (10, 1)")
    found.head(figure, rows)
    return figure


FIGURE = trained.figure(
    "figure_6",
    COLUMNS,
    searches,
    rows,
    draw,
    full="an hour",
    quick="half a minute",
    committed=trained.FULL_ADULT,
)

if __name__ == "__main__":
    FIGURE.run()
