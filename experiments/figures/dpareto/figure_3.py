"""Figure 3: one step of the search, on the output perturbation example of figure 1.

Of the grid of figure 1, 250 settings are taken at random and with them what 50 runs measured. Two
Gaussian processes learn log epsilon and the logit of the error from them. Top: their predictions,
turned back into epsilon and error, over the whole domain, the 250 settings as white dots; and the
front of the 250 measurements beside the true front of the whole grid. Below: three criteria by
which the next setting may be chosen (large star):
  HVPoI, worst of the grid    the paper's hypervolume-based probability of improvement, on the
                              measured front, at the anti-ideal point that footnote 8 names for this
                              example: worst epsilon and worst error, here the grid's true ones;
  HVPoI, (10, 1)              the same at the anti-ideal point of the paper's section 4;
  EHVI, reported units        exact expected hypervolume improvement in (epsilon, error), the area
                              that is reported, at (10, 1), on the means of the processes.
Small stars: what HVPoI names next after 20 draws of the 250 settings.

Expected: over the grid the predicted error is off by half of what one measurement is off by. At the
worst of the grid HVPoI points at the front, at a small epsilon and a medium error, in 14 of 20
draws; in 6 at the corner of least epsilon, where it points in all 20 at (10, 1): improvement counts
in log epsilon, which has no lower end, and up to an error of 1. EHVI, for which one epsilon of 1e-5
is as good as another, points at the front between epsilon 0.1 and 10.

Computed from the training and test data without protection: for the curator, not a private output.

Differs from the paper: our sensitivity (half the paper's epsilon); EHVI beside the paper's four
panels; inputs by their logarithm, so the processes see a simpler function.

  python -m experiments.figures.dpareto.figure_3 --data_dir=... --out_dir=docs/figures/dpareto

Rows of figure 1 that stand in the folder are used; without them they are computed and written
first, which takes 3 minutes. The step itself takes 20 seconds; with --quick (40 of 169 settings,
digits) 15.
"""

from __future__ import annotations

import functools

from experiments.figures.dpareto import figure_1, output_perturbation_example, search_step
from experiments.figures.dpareto.figure_1 import NOISE_STD, REGULARISATION
from experiments.figures.figure import FULL, QUICK, DataFolders, FigureSpec
from experiments.figures.rows import RowFolder

NAME, GRID = "figure_3", figure_1.FIGURE
EXAMPLE = search_step.Example(
    title="output perturbation",
    data=figure_1.data_in_words,
    copied={name: unit for name, unit in figure_1.COLUMNS.items() if name != "epsilon_paper"},
    domain=output_perturbation_example.DOMAIN,
    axes=(REGULARISATION, NOISE_STD),
    measured="error",
    exact="error_exact",
    error_label="classification error",
    delta="delta",
)
COLUMNS = EXAMPLE.columns
draw = functools.partial(search_step.draw, EXAMPLE)


def train(folder: RowFolder, options: DataFolders) -> None:
    """Writes the figure's rows, and figure 1's if the folder holds none of this size."""
    search_step.write_step(
        folder, NAME, EXAMPLE, GRID, lambda: figure_1.compute(folder.size, options)
    )


FIGURE = FigureSpec(
    "dpareto",
    NAME,
    COLUMNS,
    {FULL: "20 s, after figure 1's 3 minutes", QUICK: "15 s"},
    draw,
    train=train,
    options=DataFolders(),
)

if __name__ == "__main__":
    FIGURE.run()
