"""Figure 2: the sparse vector example - epsilon and error over the domain, and the Pareto front.

One hundred binary queries, ten of them 1, are answered by the sparse vector technique with noise b
and at most C positive answers (`sparse_vector_example`). Top: epsilon, and error 1 -
F1, over the domain, b in [0.01, 100] and C in 1..30. Below: the Pareto front, and the settings that
make it.

The rows hold the error of a setting three times: the mean of 50 random orders, as in the paper; of
1000; and exactly, by an integral. Expected hypervolumes on this grid of 101 x 30:

  error by           anti-ideal (10, 1)   (100, 1)
  50 orders          1.74 +- 0.03         40.9 +- 0.4
  1000 orders        1.556 +- 0.003       39.50 +- 0.03      (reference values: 1.566, 39.24)
  exactly            1.5375               39.34

The more orders, the smaller: a front of noisy means picks the settings that were lucky (the
winner's curse), by 13% at 50 orders, by 1% even at 1000. The least error is 0.83 for epsilon <= 10,
0.35 for <= 100 and 0 for <= 500. Nothing here is private data: the queries are made up.

Differs from the paper: the exact front is ours, and the grid is finer.

  python -m experiments.figures.dpareto.figure_2 --out_dir=docs/figures/dpareto

Takes 10 seconds on one core; with --quick (21 x 30) 4 seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from dpjax import plotting
from dpjax.pareto import fronts
from experiments.figures.dpareto import maps, sparse_vector_example
from experiments.figures.figure import FULL, QUICK, FigureSpec
from experiments.figures.panels import legend_below

COLUMNS = {
    "noise": "scale", "bound": "answers", "epsilon": "nats", "error_50": "1 - F1",
    "error_1000": "1 - F1", "error_exact": "1 - F1",
}  # fmt: skip
ANTI_IDEALS = ((10.0, 1.0), (100.0, 1.0))
NOISE = maps.GridAxis("noise", "noise b")
BOUND = maps.GridAxis("bound", "bound C on positive answers", logarithmic=False)
LOOKS = {
    "error_exact": {"label": "exact", "color": plotting.PALETTE[6], "linewidth": 3.0},
    "error_1000": {"label": "1000 orders", "color": plotting.PALETTE[5], "linewidth": 1.2},
    "error_50": {"label": "50 orders", "color": plotting.PALETTE[1], "linewidth": 1.2},
}


def compute(size: str) -> list[dict]:
    """Returns one row per setting of the grid."""
    example = sparse_vector_example.SparseVectorExample()
    settings = sparse_vector_example.grid(21 if size == QUICK else 101)
    source = np.random.default_rng(1)  # Of the simulated orders: another seed moves them slightly.
    table = {
        **settings,
        "epsilon": example.epsilons(settings),
        "error_50": 1 - example.utilities(settings, 50, source=source).mean(axis=1),
        "error_1000": 1 - example.utilities(settings, 1000, source=source).mean(axis=1),
        "error_exact": 1 - example.expected_utilities(settings),
    }
    return maps.rows_of(table)


def draw(rows: Sequence[Mapping]) -> Figure:
    """Draws the two maps, the three fronts, and where the exact front lies in the domain."""
    figure, panels = maps.new_square(height=6.8)
    epsilons = maps.column(rows, "epsilon")
    exact = maps.column(rows, "error_exact")
    maps.map_of_epsilons(panels[0, 0], rows, NOISE, BOUND, epsilons, "epsilon")
    maps.draw_map(panels[0, 1], rows, NOISE, BOUND, exact, "error 1 - F1, exact", unit="1 - F1")
    axes = panels[1, 0]
    for name, look in LOOKS.items():
        errors = maps.column(rows, name)
        volumes = ", ".join(
            f"{maps.hypervolume(epsilons, errors, point):.2f}" for point in ANTI_IDEALS
        )
        label = f"{look['label']}: {volumes}"
        maps.draw_front(axes, epsilons, errors, **{**look, "label": label})
    axes.set_xscale("log")
    axes.set_xlabel(maps.EPSILON)
    axes.set_ylabel("error 1 - F1")
    axes.set_title("Pareto front, hypervolumes at (10, 1), (100, 1)")
    legend_below(figure, axes, 3)
    on_front = fronts.non_dominated(np.stack([epsilons, exact], axis=1))
    maps.draw_inputs(
        panels[1, 1], rows, NOISE, BOUND, on_front, epsilons,
        "settings of the exact front",
    )  # fmt: skip
    figure.suptitle("100 queries, ten of them 1")
    return figure


FIGURE = FigureSpec(
    "dpareto", "figure_2", COLUMNS, {FULL: "10 s", QUICK: "4 s"}, draw, rows=compute
)

if __name__ == "__main__":
    FIGURE.run()
