"""What figures 1 to 4 share: maps over a grid of two hyperparameters, fronts as steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from dpjax import plotting
from dpjax.pareto import fronts
from experiments.figures.panels import WIDTH, delta_in_words

EPSILON_COLOURS, ERROR_COLOURS = "viridis", "cividis"
EPSILON = "epsilon (nats)"


def epsilon_label(delta: float | None) -> str:
    """Label of an axis of epsilon at a delta; None: pure."""
    if delta is None:
        return EPSILON
    return f"epsilon at {delta_in_words(delta)} (nats)"


@dataclasses.dataclass(frozen=True)
class GridAxis:
    """One hyperparameter of a grid.

    Attributes:
      column: of the rows.
      label: on the axis.
      logarithmic: whether the grid is spaced in its logarithm.
    """

    column: str
    label: str
    logarithmic: bool = True

    def edges(self, centres: np.ndarray) -> np.ndarray:
        """Returns the borders between cells, (n + 1,), of centres (n,) in order."""
        scaled = np.log(centres) if self.logarithmic else centres
        between = 0.5 * (scaled[1:] + scaled[:-1])
        first, last = 2 * scaled[0] - between[0], 2 * scaled[-1] - between[-1]
        edges = np.concatenate([[first], between, [last]])
        return np.exp(edges) if self.logarithmic else edges

    def dress(self, axes: Axes, *, vertical: bool) -> None:
        """Labels and scales this hyperparameter's axis."""
        which = axes.yaxis if vertical else axes.xaxis
        which.set_label_text(self.label)
        if self.logarithmic:
            (axes.set_yscale if vertical else axes.set_xscale)("log")


def new_square(rows: int = 2, columns: int = 2, height: float = 6.4):
    """Returns a figure and its panels (rows, columns) in the common style."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes in panels.flat:
        plotting.style_axes(axes)
    return figure, panels


def column(rows: Sequence[dict], name: str) -> np.ndarray:
    """Returns one column as (n,) float64; empty cells are nan."""
    return np.array([np.nan if row[name] is None else row[name] for row in rows], np.float64)


def rows_of(table: Mapping[str, np.ndarray], **shared) -> list[dict]:
    """Returns one row per entry of the table's columns (n,); seven digits of each number are kept.

    Args:
      table: name -> (n,) numbers.
      **shared: what every row has too, first.
    """
    columns = [[float(f"{value:.7g}") for value in values] for values in table.values()]
    return [shared | dict(zip(table, cells)) for cells in zip(*columns)]


def draw_map(
    axes: Axes,
    rows: Sequence[dict],
    horizontal: GridAxis,
    vertical: GridAxis,
    values: np.ndarray,
    title: str,
    *,
    norm: Normalize | None = None,
    colours: str = ERROR_COLOURS,
    unit: str = "",
    extend: str = "neither",
):
    """Draws values (n,), one a row, as coloured cells of the grid; returns the mesh.

    Args:
      axes: of the panel.
      rows: of the grid.
      horizontal, vertical: its hyperparameters.
      values: one a row.
      title: of the panel.
      norm: of the colours; the values' range if None.
      colours: name of a colour map.
      unit: label of the colour bar.
      extend: "min" where less than the bar's lower end is shown in its colour.
    """
    across, up = column(rows, horizontal.column), column(rows, vertical.column)
    columns, lines = np.unique(across), np.unique(up)
    table = np.full((len(lines), len(columns)), np.nan)
    table[np.searchsorted(lines, up), np.searchsorted(columns, across)] = values
    horizontal.dress(axes, vertical=False)
    vertical.dress(axes, vertical=True)
    axes.grid(False)
    mesh = axes.pcolormesh(
        horizontal.edges(columns), vertical.edges(lines), table, cmap=colours, norm=norm,
        rasterized=True,
    )  # fmt: skip
    axes.set_title(title)
    _add_bar(axes, mesh, unit, extend)
    return mesh


def _add_bar(axes: Axes, drawn, unit: str, extend: str = "neither") -> None:
    bar = axes.figure.colorbar(drawn, ax=axes, extend=extend)
    bar.set_label(unit)


def map_of_epsilons(axes: Axes, rows, horizontal: GridAxis, vertical: GridAxis, values, title: str):
    """`draw_map` of epsilons, coloured by their logarithm."""
    norm = LogNorm(np.nanmin(values), np.nanmax(values))
    look = {"norm": norm, "colours": EPSILON_COLOURS, "unit": EPSILON}
    return draw_map(axes, rows, horizontal, vertical, values, title, **look)


def draw_front(axes: Axes, epsilons: np.ndarray, errors: np.ndarray, **look) -> None:
    """Draws the front of points as a staircase, down to the right."""
    steps = fronts.front(np.stack([epsilons, errors], axis=1))
    axes.step(steps[:, 0], steps[:, 1], where="post", **look)


def draw_inputs(
    axes: Axes, rows, horizontal: GridAxis, vertical: GridAxis, on_front, epsilons, title: str
) -> None:
    """Draws where on the grid the settings of the front (n,) bool lie, coloured by epsilon."""
    horizontal.dress(axes, vertical=False)
    vertical.dress(axes, vertical=True)
    for axis, limits in ((horizontal, axes.set_xlim), (vertical, axes.set_ylim)):
        edges = axis.edges(np.unique(column(rows, axis.column)))
        limits(edges[0], edges[-1])
    members = np.flatnonzero(on_front)
    dots = axes.scatter(
        column(rows, horizontal.column)[members],
        column(rows, vertical.column)[members],
        c=epsilons[members],
        cmap=EPSILON_COLOURS,
        norm=LogNorm(epsilons.min(), epsilons.max()),
        s=16,
        clip_on=False,  # Whole ones at the borders of the domain too.
        zorder=3,
    )
    axes.set_title(title)
    _add_bar(axes, dots, EPSILON)


def hypervolume(epsilons: np.ndarray, errors: np.ndarray, anti_ideal: Sequence[float]) -> float:
    """Returns the hypervolume of points given by columns."""
    return fronts.hypervolume(np.stack([epsilons, errors], axis=1), anti_ideal)
