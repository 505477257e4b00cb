"""Figure 5: hypervolume against evaluations, and what the searches found.

Avent et al., PoPETs 2020. Top: hypervolume at (10, 1) of the settings evaluated so far, DPareto
(here EHVI) against random search, for Adult's three pairs and MNIST's two networks; the line is the
mean over seeds, the band their range. Below: evaluations and fronts of seed 0 for MNIST 128-64 and
Adult LogReg+SGD. Hypervolumes here are as observed, so luck counts; `table_2` and
`figure_search_variation` measure fronts afresh.

Differs from the paper: EHVI in batches of 16 for HVPoI one at a time (`--method=hvpoi` adds HVPoI,
in batches of 16), tight epsilons for classic
ones; below right, random search has 1,500 points where Adult is run at full size only, else as many
as DPareto.

  python -m experiments.figures.dpareto.figure_5 --size=full_adult --data_dir=... --out_dir=...

It takes six core-hours; with --size=full days for MNIST (an estimate: not run; --problem= restricts
it); with --size=mid about an hour, see docs/pareto_fronts.md; with --quick a minute, most of it
compilation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from experiments.figures.dpareto import maps
from experiments.figures.dpareto import trained_fronts as found
from experiments.figures.dpareto import trained_searches as trained
from experiments.figures.rows import distinct, select

COLUMNS = (
    *trained.KEY_COLUMNS,
    *trained.RAN_COLUMNS,
    "evaluation",
    "epsilon",
    "utility",
    "hypervolume",
)
METHODS = ("ehvi", "hvpoi", "random")
COMPARED = "adult_logistic_regression_sgd"


def searches(size: str) -> list[tuple[str, str, int]]:
    """The searches it needs."""
    many = trained.size_of(COMPARED, size).many_random
    longer = [] if many is None else [(COMPARED, f"random_{many}", 0)]
    return trained.searches((*trained.ADULT, *trained.MNIST), size) + longer


def rows(evaluations: Sequence[Mapping], fresh: Sequence[Mapping]) -> list[dict]:
    """One row an evaluation, with the hypervolume of a search up to it."""
    made = []
    for (_, method, _), members in found.by_search(evaluations).items():
        if method not in METHODS and not method.startswith("random_"):
            continue
        for place, row in enumerate(members):
            made.append(
                {name: row[name] for name in COLUMNS[:-1]}
                | {"hypervolume": float(f"{found.hypervolume(members[: place + 1]):.7g}")}
            )
    return made


def draw(rows: Sequence[Mapping]) -> Figure:
    """Draws hypervolumes above, fronts below."""
    figure, panels = maps.new_square(2, 2, width=12.5, height=9.6)
    for axes, problems in ((panels[0, 0], trained.ADULT), (panels[0, 1], trained.MNIST)):
        styles = dict(zip(problems, ("-", "--", ":")))
        for problem in problems:
            for method in METHODS:
                _draw_progress(axes, select(rows, problem=problem, method=method), styles[problem])
        axes.set_xscale("log", base=2)
        axes.set_xlabel("settings evaluated")
        axes.set_ylabel("hypervolume at (10, 1), as observed")
        shown = [row for row in rows if row["problem"] in problems and row["method"] in METHODS]
        seeds = len(distinct(shown, "seed"))
        found.head(axes, f"Mean and range of {seeds} seeds" if seeds > 1 else "One seed", shown)
        if axes.lines:
            axes.legend(fontsize=9, loc="lower right")
    for axes, problem in (
        (panels[1, 0], "mnist_128_64_sgd"),
        (panels[1, 1], COMPARED),
    ):
        members = select(rows, problem=problem, seed=0)
        longer = [name for name in distinct(members, "method") if name.startswith("random_")]
        shown = ["ehvi", *(longer or ["random"])]
        members = [row for row in members if row["method"] in shown]
        for method in reversed(shown):  # Many random dots first, ours above.
            kind = method.partition("_")[0]
            own = select(members, method=method)
            label = f"{found.METHOD_LABELS[kind]}, {len(own)} points"
            found.draw_points(axes, own, label, found.COLOURS[kind])
        found.dress(axes, f"{trained.LABELS[problem]}, seed 0", members)
        if axes.lines:
            axes.legend(fontsize=11)
    figure.suptitle(f"DPareto against random search ({trained.NOT_PRIVATE})", fontsize=13)
    return figure


def _draw_progress(axes, rows: Sequence[Mapping], style: str) -> None:
    """Draws one kind of search: mean over seeds, and their range."""
    if not rows:
        return
    seeds = [maps.column(select(rows, seed=seed), "hypervolume") for seed in distinct(rows, "seed")]
    # A failed evaluation has no row, so that searches may differ in length.
    shortest = min(map(len, seeds))
    table = np.stack([values[:shortest] for values in seeds])
    counts = np.arange(1, shortest + 1)
    method, colour = rows[0]["method"], found.COLOURS[rows[0]["method"]]
    name = f"{trained.LABELS[rows[0]['problem']]}, {found.METHOD_LABELS[method]}"
    if method == "hvpoi":
        name += f", {len(seeds)} seed{'s'[: len(seeds) > 1]}"
    axes.plot(counts, table.mean(axis=0), style, color=colour, label=name)
    low, high = table.min(axis=0), table.max(axis=0)
    axes.fill_between(counts, low, high, color=colour, alpha=0.12, linewidth=0)


FIGURE = trained.figure(
    "figure_5",
    COLUMNS,
    searches,
    rows,
    draw,
    full="Adult 6 core-hours, MNIST days (an estimate)",
    full_adult="6 core-hours",
    committed=trained.FULL_ADULT,
)

if __name__ == "__main__":
    FIGURE.run()
