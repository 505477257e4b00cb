"""Figure 5: hypervolume against evaluations, and what the searches found.

Avent et al., PoPETs 2020. Top: hypervolume at (10, 1) of the settings evaluated so far, DPareto
(here EHVI) against random search, for Adult's three pairs and MNIST's two networks, from the 16
random settings on with which a search begins; the line is the mean over seeds, the band their
range. Below: evaluations and fronts of seed 0 for MNIST 128-64 and
Adult LogReg+SGD. Hypervolumes here are as observed, so luck counts; `table_2` and
`figure_search_variation` measure fronts afresh.

Differs from the paper: EHVI in batches of 16 for HVPoI one at a time (`--method=hvpoi` adds HVPoI,
in batches of 16), tight epsilons for classic
ones; below right, random search has 1,500 points where Adult is run at full size only, else as many
as DPareto.

  python -m experiments.figures.dpareto.figure_5 --size=full_adult --data_dir=... --out_dir=...

It takes six core-hours; with --size=full days for MNIST (an estimate: not run; --problem= restricts
it); with --size=mid about an hour, see docs/figures.md; with --quick a minute, most of it
compilation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpjax import plotting
from experiments.figures.dpareto import maps
from experiments.figures.dpareto import trained_fronts as found
from experiments.figures.dpareto import trained_searches as trained
from experiments.figures.panels import WIDTH, legend_below
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
_INITIAL = 16
"""Random settings that a search begins with."""
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
    figure = Figure(figsize=(WIDTH, 7.4), layout="constrained")
    panels = figure.subplot_mosaic("aabbcc;dddeee;fffggg", height_ratios=(1.0, 0.9, 1.2))
    for axes, problem in zip(map(panels.get, "abcde"), (*trained.ADULT, *trained.MNIST)):
        plotting.style_axes(axes)
        for method in METHODS:
            _draw_progress(axes, select(rows, problem=problem, method=method))
        axes.set_title(trained.LABELS[problem])
        axes.set_xlabel("settings evaluated")
        _from_random_settings_on(axes)
    for name in "ad":
        panels[name].set_ylabel("hypervolume")
    for axes, problem in ((panels["f"], COMPARED), (panels["g"], "mnist_128_64_sgd")):
        plotting.style_axes(axes)
        members = select(rows, problem=problem, seed=0)
        longer = [name for name in distinct(members, "method") if name.startswith("random_")]
        shown = ["ehvi", *(longer or ["random"])]
        members = [row for row in members if row["method"] in shown]
        for method in reversed(shown):  # Many random dots first, ours above.
            kind = method.partition("_")[0]
            own = select(members, method=method)
            found.draw_points(axes, own, f"{len(own)} settings", found.COLOURS[kind])
        found.dress(axes, f"{trained.LABELS[problem]}, seed 0", members)
        if axes.lines:
            axes.legend()
    legend_below(figure, [panels["a"]], 3)
    found.head(figure, [row for row in rows if row["method"] in METHODS])
    return figure


def _draw_progress(axes: Axes, rows: Sequence[Mapping]) -> None:
    """Draws one kind of search: mean over seeds, and their range."""
    if not rows:
        return
    seeds = [maps.column(select(rows, seed=seed), "hypervolume") for seed in distinct(rows, "seed")]
    # A failed evaluation has no row, so that searches may differ in length.
    shortest = min(map(len, seeds))
    table = np.stack([values[:shortest] for values in seeds])
    counts = np.arange(1, shortest + 1)
    method, colour = rows[0]["method"], found.COLOURS[rows[0]["method"]]
    name = found.METHOD_LABELS[method]
    if method == "hvpoi":
        name += f", {len(seeds)} seed{'s'[: len(seeds) > 1]}"
    axes.plot(counts, table.mean(axis=0), color=colour, label=name)
    low, high = table.min(axis=0), table.max(axis=0)
    axes.fill_between(counts, low, high, color=colour, alpha=0.12, linewidth=0)


def _from_random_settings_on(axes: Axes) -> None:
    """Shows what follows the random settings that a search begins with, where searches differ."""
    curves = [line.get_ydata() for line in axes.lines]
    if not curves:
        return
    first = min(_INITIAL, min(map(len, curves))) - 1
    low, high = min(one[first] for one in curves), max(one[-1] for one in curves)
    margin = 0.08 * max(high - low, 1e-3)
    axes.set_xlim(first + 1, max(first + 2, *map(len, curves)))
    axes.set_ylim(low - margin, high + margin)


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
