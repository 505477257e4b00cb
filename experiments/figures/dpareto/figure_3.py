"""Figure 3: one step of the search, on the output perturbation example of figure 2.

Of the grid of figure 2, 250 settings are taken at random and with them what 50 runs measured. Two
Gaussian processes learn log epsilon and the logit of the error from them. Top: their predictions,
turned back into epsilon and error, over the whole domain, the 250 settings as white dots; and the
front of the 250 measurements beside the true front of the whole grid. Below: three criteria by
which the next setting may be chosen (star), at anti-ideal point (10, 1):
  HVPoI                   the paper's hypervolume-based probability of improvement, on the measured
                          front;
  EHVI, model units       exact expected hypervolume improvement in (log epsilon, logit error), on
                          the means of the processes;
  EHVI, reported units    the same in (epsilon, error), the area that is reported.

Expected: over the grid the predicted epsilon is off by 0.005% (median; 9% at the corner of the
domain), the predicted error by 0.004 (mean), half of what one measurement is off by (0.009). The
first two criteria point at the corner of least epsilon: they count improvement in log epsilon,
which has no lower end; the bands below it are where the front's settings lie. The third, for which
one epsilon of 1e-5 is as good as another, points at the front between epsilon 0.1 and 10.

Computed from the training and test data without protection: for the curator, not a private output.

Differs from the paper: our sensitivity (half the paper's epsilon); EHVI beside the paper's four
panels; inputs by their logarithm, so the processes see a simpler function.

  python -m experiments.figures.dpareto.figure_3 --data_dir=... --out_dir=docs/figures/dpareto

Rows of figure 2 that stand in the folder are used; without them they are computed and written
first, which takes 3 minutes. The step itself takes 10 seconds; with --quick (40 of 169 settings,
digits) 15.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from dpjax import plotting
from dpjax.tuning.pareto import acquisition, batches, fronts
from dpjax.tuning.pareto.gaussian_process import GaussianProcess
from dpjax.tuning.pareto.original_units import expected_hypervolume_improvement_in_original_units
from experiments.figures.dpareto import figure_2, maps, output_perturbation_example
from experiments.figures.dpareto.figure_2 import ANTI_IDEAL, NOISE_STD, REGULARISATION
from experiments.figures.figure import FULL, QUICK, DataFolders, FigureSpec
from experiments.figures.rows import RowFolder

NAME, GRID = "figure_3", figure_2.FIGURE.name
COPIED = {name: unit for name, unit in figure_2.COLUMNS.items() if name != "epsilon_paper"}
COLUMNS = {
    **COPIED, "sampled": "0 or 1", "predicted_epsilon": "nats", "predicted_error": "share",
    "hvpoi": "probability", "ehvi_model_units": "log nats x logit", "ehvi_reported_units": "nats",
}  # fmt: skip
CRITERIA = {
    "hvpoi": "HVPoI (the paper's criterion)",
    "ehvi_model_units": "EHVI, model units",
    "ehvi_reported_units": "EHVI, reported units",
}


def one_step(grid_rows: Sequence[Mapping], number: int) -> list[dict]:
    """Returns figure 3's rows: what the search believes after `number` settings of the grid.

    Args:
      grid_rows: rows of figure 2.
      number: of settings measured.
    """
    generator = np.random.default_rng(3)  # Of the settings: another seed shows another step.
    sampled = np.zeros(len(grid_rows), bool)
    sampled[generator.choice(len(grid_rows), number, replace=False)] = True
    domain = output_perturbation_example.DOMAIN
    unit = domain.to_unit({name: maps.column(grid_rows, name) for name in domain.names})
    points = np.stack([maps.column(grid_rows, name) for name in ("epsilon", "error")], axis=1)
    measured = fronts.to_model_units(points[sampled])
    processes = tuple(
        GaussianProcess.fit(
            unit[sampled], measured[:, place], noise_free=place == 0, generator=generator
        )
        for place in (0, 1)
    )
    mean, variance = batches.objectives_at(processes, unit)
    predicted = fronts.from_model_units(mean)
    anti_ideal = fronts.to_model_units(ANTI_IDEAL)
    values = {
        "hvpoi": acquisition.hypervolume_probability_of_improvement(
            mean, variance, measured, anti_ideal
        ),
        "ehvi_model_units": acquisition.expected_hypervolume_improvement(
            mean, variance, mean[sampled], anti_ideal
        ),
        "ehvi_reported_units": expected_hypervolume_improvement_in_original_units(
            mean, variance, mean[sampled], anti_ideal
        ),
    }
    table = {
        "sampled": sampled,
        "predicted_epsilon": predicted[:, 0],
        "predicted_error": predicted[:, 1],
        **values,
    }
    return [
        {name: row[name] for name in COPIED} | added
        for row, added in zip(grid_rows, maps.rows_of(table))
    ]


def _mark(axes: Axes, rows: Sequence[Mapping], members: np.ndarray, style: str, **look) -> None:
    """Marks settings of the grid, (n,) bool or positions."""
    places = np.arange(len(rows))[members]
    across, up = (maps.column(rows, axis.column) for axis in (REGULARISATION, NOISE_STD))
    axes.plot(across[places], up[places], style, **look)


def draw(rows: Sequence[Mapping]) -> Figure:
    """Draws predictions, fronts and criteria."""
    figure, panels = maps.new_square(2, 3, width=16.0, height=9.4)
    sampled = maps.column(rows, "sampled") > 0
    grid_axes = (REGULARISATION, NOISE_STD)
    above, below = panels
    maps.map_of_epsilons(
        above[0], rows, *grid_axes, maps.column(rows, "predicted_epsilon"), "epsilon, predicted"
    )
    maps.draw_map(
        above[1], rows, *grid_axes, maps.column(rows, "predicted_error"), "error, predicted"
    )
    for axes in above[:2]:
        _mark(axes, rows, sampled, ".", color="white", markersize=3.5)

    axes = above[2]
    epsilons = maps.column(rows, "epsilon")
    measured, exact = maps.column(rows, "error"), maps.column(rows, "error_exact")
    axes.plot(
        epsilons[sampled], measured[sampled], ".", color=plotting.PALETTE[5], markersize=4,
        label=f"{sampled.sum()} measurements",
    )  # fmt: skip
    step = fronts.front(np.stack([epsilons, measured], axis=1)[sampled])
    axes.fill_between(
        step[:, 0], step[:, 1], exact.min(), step="post", color="#000000", alpha=0.08, linewidth=0
    )
    maps.draw_front(
        axes, epsilons[sampled], measured[sampled], color=plotting.PALETTE[6], linewidth=2,
        label="their front",
    )  # fmt: skip
    maps.draw_front(
        axes, epsilons, exact, color=plotting.PALETTE[1], linestyle="--", linewidth=2,
        label="true front of the grid",
    )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlabel(f"epsilon at delta = {rows[0]['delta']:g}")
    axes.set_ylabel("classification error")
    axes.set_title("Pareto front")
    axes.legend(loc="upper right", fontsize=11)

    for axes, (name, title) in zip(below, CRITERIA.items()):
        values = maps.column(rows, name)
        # Most of the domain promises next to nothing: the last four decades are shown.
        norm = LogNorm(1e-4 * values.max(), values.max())
        shown = np.maximum(values, norm.vmin)
        maps.draw_map(axes, rows, *grid_axes, shown, title, norm=norm, colours="magma")
        best = int(np.argmax(np.where(sampled, -1.0, values)))
        _mark(axes, rows, np.array([best]), "*", color="white", markersize=18, label="next setting",
              markeredgecolor="black", clip_on=False)  # fmt: skip
    # Once: in the other panels a star may lie in the corner that a legend would take.
    legend = below[0].legend(loc="lower left", fontsize=11, facecolor="#777777")
    for text in legend.get_texts():
        text.set_color("white")
    figure.suptitle(
        f"One step of the search: output perturbation, {rows[0]['dataset']}, after "
        f"{sampled.sum()} settings of {rows[0]['repetitions']} runs each\n"
        "computed from the data without protection: for the curator, not a private output",
        fontsize=14,
    )
    return figure


def train(folder: RowFolder, options: DataFolders) -> None:
    """Writes the figure's rows, and figure 2's if the folder holds none of this size."""
    if not folder.read(GRID):
        folder.write(GRID, figure_2.COLUMNS, figure_2.compute(folder.size, options))
    measured = 40 if folder.size == QUICK else 250
    folder.write(NAME, COLUMNS, one_step(folder.read(GRID), measured))


FIGURE = FigureSpec(
    "dpareto",
    NAME,
    COLUMNS,
    {FULL: "10 s, after figure 2's 3 minutes", QUICK: "15 s"},
    draw,
    train=train,
    options=DataFolders(),
)

if __name__ == "__main__":
    FIGURE.run()
