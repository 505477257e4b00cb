"""Figure 4: one step of the search, on the sparse vector example of figure 2.

Of the grid of figure 2, 250 settings are taken at random and with them the F1 that 50 random orders
of the queries gave. Panels and criteria are those of figure 3: two Gaussian processes learn log
epsilon and the logit of 1 - F1 and predict both over the whole domain; the front of the 250
measurements stands beside the true front of the grid, which an integral knows exactly; and three
criteria name the next setting (star).

Expected: at the worst of the grid HVPoI points at the front's other end, a large epsilon and an
error of 0, in 19 of 20 draws. At (10, 1) it points at the corner of least epsilon (b = 100, C = 1,
where 1 - F1 is 0.98) or two of its neighbours.

Differs from the paper: the setting that is next is one of the grid; EHVI beside the paper's panels.
The queries are made up: nothing here is private data.

  python -m experiments.figures.dpareto.figure_4 --out_dir=docs/figures/dpareto

Rows of figure 2 that stand in the folder are used; without them they are computed and written
first, in 10 seconds. The step takes 30 more; with --quick (40 of 630 settings) 10 in all.
"""

from __future__ import annotations

import functools

from experiments.figures.dpareto import figure_2, search_step, sparse_vector_example
from experiments.figures.dpareto.figure_2 import BOUND, NOISE
from experiments.figures.figure import FULL, QUICK, FigureSpec
from experiments.figures.rows import RowFolder

NAME, GRID = "figure_4", figure_2.FIGURE
EXAMPLE = search_step.Example(
    title="sparse vector technique",
    data=lambda row: "100 made-up queries, ten of them 1",
    copied={name: unit for name, unit in figure_2.COLUMNS.items() if name != "error_1000"},
    domain=sparse_vector_example.DOMAIN,
    axes=(NOISE, BOUND),
    measured="error_50",
    exact="error_exact",
    error_label="error 1 - F1",
)
COLUMNS = EXAMPLE.columns
draw = functools.partial(search_step.draw, EXAMPLE)


def train(folder: RowFolder) -> None:
    """Writes the figure's rows, and figure 2's if the folder holds none of this size."""
    search_step.write_step(folder, NAME, EXAMPLE, GRID, lambda: figure_2.compute(folder.size))


FIGURE = FigureSpec(
    "dpareto",
    NAME,
    COLUMNS,
    {FULL: "30 s, after figure 2's 10 s", QUICK: "10 s"},
    draw,
    train=train,
)

if __name__ == "__main__":
    FIGURE.run()
