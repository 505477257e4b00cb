"""Figure 7: the fronts with the best and the worst repetition of each of their settings.

Avent et al., PoPETs 2020. DPareto's fronts on Adult (three pairs) and MNIST (two networks), seed 0.
Settings, means and bands are of the repetitions measured afresh, not of those that chose them.

Differs from the paper: EHVI for HVPoI, tight epsilons for classic ones; twenty fresh repetitions
instead of the ten of the search, for MNIST four.

  python -m experiments.figures.dpareto.figure_7 --size=full_adult --data_dir=... --out_dir=...

It takes an hour of a core; with --size=full many more for MNIST (an estimate: not run; --problem=
restricts it); with --size=mid half as long; with --quick a minute, most of it compilation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from dpjax import plotting
from experiments.figures.dpareto import maps
from experiments.figures.dpareto import trained_fronts as found
from experiments.figures.dpareto import trained_searches as trained
from experiments.figures.panels import legend_below
from experiments.figures.rows import select

COLUMNS = ("problem", *trained.RAN_COLUMNS, "fresh_repetitions", *trained.SETTING_COLUMNS,
           "epsilon", "utility", "best", "worst")  # fmt: skip


def searches(size: str) -> list[tuple[str, str, int]]:
    """The searches it needs."""
    names = (*trained.ADULT, *trained.MNIST)
    return [one for one in trained.searches(names, size, methods=("ehvi",)) if one[2] == 0]


def rows(evaluations: Sequence[Mapping], fresh: Sequence[Mapping]) -> list[dict]:
    """One row a setting that is on its front when measured afresh, up to epsilon 10."""
    return [
        {name: row[name] for name in COLUMNS}
        for problem in trained.LABELS
        for row in found.on_front(found.of(fresh, problem, "ehvi"))
    ]


def draw(rows: Sequence[Mapping]) -> Figure:
    """Draws one panel a problem."""
    figure, panels = maps.new_square(2, 3, height=5.4)
    panels[1, 2].set_visible(False)
    for axes, problem in zip(panels.flat, trained.LABELS):
        members = select(rows, problem=problem)
        colour = plotting.PALETTE[list(trained.LABELS).index(problem)]
        axes.set_title(trained.LABELS[problem])
        if not members:
            continue
        epsilons = maps.column(members, "epsilon")
        worst, mean, best = (
            1 - maps.column(members, name) for name in ("worst", "utility", "best")
        )
        axes.step(epsilons, mean, "o-", where="post", color=colour, markersize=3, label="mean")
        axes.fill_between(
            epsilons, best, worst, step="post", color=colour, alpha=0.25, linewidth=0,
            label="best to worst",
        )  # fmt: skip
        axes.set_xscale("log")
        axes.set_xlabel("epsilon")
    for axes in panels[:, 0]:
        axes.set_ylabel("classification error")
    legend_below(figure, panels.flat, 2)
    found.head(figure, rows)
    return figure


FIGURE = trained.figure(
    "figure_7",
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
