"""What figures 3 and 4 share: one step of the search on an example whose grid is known."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dpjax import plotting
from dpjax.pareto import acquisition, batches, fronts
from dpjax.pareto.domain import Domain
from dpjax.pareto.gaussian_process import GaussianProcess
from experiments.figures.dpareto import maps
from experiments.figures.figure import QUICK, FigureSpec
from experiments.figures.rows import RowFolder

PRACTICAL = (10.0, 1.0)
"""Anti-ideal point of the paper's experiments, section 4; its examples have another: `worst`."""

ADDED = {
    "sampled": "0 or 1", "predicted_epsilon": "nats", "predicted_error": "share",
    "hvpoi": "log nats x logit", "hvpoi_measured": "log nats x logit",
    "hvpoi_practical": "log nats x logit", "ehvi_reported_units": "nats",
    "next": "draws", "next_measured": "draws", "next_practical": "draws",
}  # fmt: skip
CRITERIA = {
    "hvpoi": ("HVPoI, worst of the grid", "gain x its probability"),
    "hvpoi_practical": ("HVPoI, (10, 1)", "gain x its probability"),
    "ehvi_reported_units": ("EHVI, (10, 1)", "expected gain (nats x share)"),
}
"""Column -> title of its panel, label of its colour bar; a gain is one in hypervolume."""

COUNTED = {
    "hvpoi": "next", "hvpoi_measured": "next_measured", "hvpoi_practical": "next_practical"
}  # fmt: skip
"""Criterion -> column that counts in how many draws of the settings it names this one next."""

SEED = 3
"""Of the settings that are drawn; the counts are of this seed and those that follow it."""


@dataclasses.dataclass(frozen=True)
class Example:
    """An example whose grid is known, and how a step of a search on it is drawn.

    Attributes:
      title: of the picture.
      data: a row of the grid -> words for the data and their size.
      copied: columns of the grid's rows that the step's rows keep, with units.
      domain: of its two hyperparameters.
      axes: the same two, horizontal and vertical.
      measured: column of the error that a search sees.
      exact: column of the true error.
      error_label: of the error's axis.
      delta: column of epsilon's delta; None where epsilon is pure.
    """

    title: str
    data: Callable[[Mapping], str]
    copied: Mapping[str, str]
    domain: Domain
    axes: tuple[maps.GridAxis, maps.GridAxis]
    measured: str
    exact: str
    error_label: str
    delta: str | None = None

    @property
    def columns(self) -> dict[str, str]:
        """Of the step's rows."""
        return {**self.copied, **ADDED}


def write_step(
    folder: RowFolder,
    name: str,
    example: Example,
    grid: FigureSpec,
    compute: Callable[[], Sequence[Mapping]],
) -> None:
    """Writes a step's rows, and those of the grid's figure if the folder holds none of its size."""
    if not folder.read(grid.name):
        folder.write(grid.name, grid.columns, compute())
    measured, draws = (40, 2) if folder.size == QUICK else (250, 20)
    folder.write(name, example.columns, one_step(example, folder.read(grid.name), measured, draws))


def worst(grid_rows: Sequence[Mapping], error: str) -> tuple[float, float]:
    """Returns the grid's worst epsilon and its worst in a column of errors: footnote 8's point."""
    epsilon, error = (float(maps.column(grid_rows, name).max()) for name in ("epsilon", error))
    return epsilon, error


def one_step(
    example: Example, grid_rows: Sequence[Mapping], number: int, draws: int = 1
) -> list[dict]:
    """Returns the step's rows: what the search believes after `number` settings of the grid.

    Args:
      example: what is searched.
      grid_rows: rows of its whole grid.
      number: of settings measured.
      draws: of these settings, over which is counted what comes next; the rows are of the first.
    """
    tables = [_step(example, grid_rows, number, SEED + draw) for draw in range(draws)]
    for criterion, column in COUNTED.items():
        places = [next_setting(table, criterion) for table in tables]
        tables[0][column] = np.bincount(places, minlength=len(grid_rows))
    return [
        {name: row[name] for name in example.copied} | added
        for row, added in zip(grid_rows, maps.rows_of(tables[0]))
    ]


def next_setting(table: Mapping[str, np.ndarray], criterion: str) -> int:
    """Returns the place on the grid that a criterion names next: a setting not yet measured."""
    return int(np.argmax(np.where(table["sampled"] > 0, -1.0, table[criterion])))


def _step(
    example: Example, grid_rows: Sequence[Mapping], number: int, seed: int
) -> dict[str, np.ndarray]:
    """Returns the columns (grid,) of one draw of settings, but for the counts."""
    generator = np.random.default_rng(seed)
    sampled = np.zeros(len(grid_rows), bool)
    sampled[generator.choice(len(grid_rows), number, replace=False)] = True
    domain = example.domain
    unit = domain.to_unit({name: maps.column(grid_rows, name) for name in domain.names})
    points = np.stack(
        [maps.column(grid_rows, name) for name in ("epsilon", example.measured)], axis=1
    )
    measured = fronts.to_model_units(points[sampled])
    processes = tuple(
        GaussianProcess.fit(
            unit[sampled], measured[:, place], noise_free=place == 0, generator=generator
        )
        for place in (0, 1)
    )
    mean, variance = batches.objectives_at(processes, unit)
    predicted = fronts.from_model_units(mean)
    practical = fronts.to_model_units(PRACTICAL)
    hvpoi = functools.partial(
        acquisition.hypervolume_probability_of_improvement, mean, variance, measured
    )
    return {
        "sampled": sampled,
        "predicted_epsilon": predicted[:, 0],
        "predicted_error": predicted[:, 1],
        "hvpoi": hvpoi(fronts.to_model_units(worst(grid_rows, example.exact))),
        "hvpoi_measured": hvpoi(fronts.to_model_units(worst(grid_rows, example.measured))),
        "hvpoi_practical": hvpoi(practical),
        "ehvi_reported_units": acquisition.expected_hypervolume_improvement_in_original_units(
            mean, variance, mean[sampled], practical
        ),
    }


def _mark(axes: Axes, rows: Sequence[Mapping], grid_axes, members, style: str, **look) -> None:
    """Marks settings of the grid, (n,) bool or positions."""
    places = np.arange(len(rows))[members]
    across, up = (maps.column(rows, axis.column) for axis in grid_axes)
    axes.plot(across[places], up[places], style, **look)


def draw(example: Example, rows: Sequence[Mapping]) -> Figure:
    """Draws predictions, fronts and criteria."""
    figure, panels = maps.new_square(3, 2, height=9.2)
    sampled = maps.column(rows, "sampled") > 0
    grid_axes = example.axes
    above, below = panels.ravel()[:3], panels.ravel()[3:]
    maps.map_of_epsilons(
        above[0], rows, *grid_axes, maps.column(rows, "predicted_epsilon"), "epsilon, predicted"
    )
    maps.draw_map(
        above[1], rows, *grid_axes, maps.column(rows, "predicted_error"), "error, predicted",
        unit=example.error_label,
    )  # fmt: skip
    look = {"color": "white", "markersize": 2.5}
    for axes in above[:2]:
        _mark(axes, rows, grid_axes, sampled, ".", clip_on=False, **look)
    # White on white: with an edge in the legend.
    entries = [
        Line2D(
            [], [], linestyle="", marker="o", markeredgecolor="#555555", label="settings", **look
        )
    ]

    axes = above[2]
    epsilons = maps.column(rows, "epsilon")
    measured, exact = maps.column(rows, example.measured), maps.column(rows, example.exact)
    axes.plot(
        epsilons[sampled], measured[sampled], ".", color=plotting.PALETTE[5], markersize=4,
        label=f"their {sampled.sum()} measurements",
    )  # fmt: skip
    step = fronts.front(np.stack([epsilons, measured], axis=1)[sampled])
    axes.fill_between(
        step[:, 0], step[:, 1], exact.min(), step="post", color="#000000", alpha=0.08, linewidth=0,
        label="better than their front",
    )  # fmt: skip
    maps.draw_front(
        axes, epsilons[sampled], measured[sampled], color=plotting.PALETTE[6], linewidth=2,
        label="their front",
    )  # fmt: skip
    maps.draw_front(
        axes, epsilons, exact, color=plotting.PALETTE[1], linestyle="--", linewidth=2,
        label="true front of the grid",
    )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlabel(maps.epsilon_label(rows[0][example.delta] if example.delta else None))
    axes.set_ylabel(example.error_label)
    axes.set_title("Pareto front")
    entries += axes.get_legend_handles_labels()[0]

    for axes, (name, (title, unit)) in zip(below, CRITERIA.items()):
        values = maps.column(rows, name)
        # Most of the domain promises next to nothing: the last four decades are shown.
        norm = LogNorm(1e-4 * values.max(), values.max())
        shown = np.maximum(values, norm.vmin)
        look = {"norm": norm, "colours": "magma", "unit": unit, "extend": "min"}
        maps.draw_map(axes, rows, *grid_axes, shown, title, **look)
        # Of a colour that neither the map nor the paper around it has: it may lie in a corner.
        look = {"color": plotting.PALETTE[5], "markeredgecolor": "black", "clip_on": False}
        if name in COUNTED:
            counts = maps.column(rows, COUNTED[name])
            _mark(
                axes, rows, grid_axes, counts > 0, "*", markersize=7, zorder=4,
                label=f"next setting in {counts.sum():.0f} draws", **look,
            )  # fmt: skip
        best = next_setting({"sampled": sampled, name: values}, name)
        _mark(
            axes, rows, grid_axes, np.array([best]), "*", markersize=14, zorder=5,
            label="next setting", **look,
        )  # fmt: skip
    entries += below[0].get_legend_handles_labels()[0]
    # Below the panels: inside it would cover measurements.
    figure.legend(handles=entries, loc="outside lower center", ncols=4)
    figure.suptitle(
        f"{example.data(rows[0])}, {sampled.sum()} settings of 50 runs; not a private output"
    )
    return figure
