"""Figures: pure functions of saved rows, without global state or a display."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpjax import files

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#333333")
"""Okabe and Ito's colours, distinct for readers with colour-blindness and in grey."""

POINTS = 9  # Of text, as printed.


def new_figure(width: float = 6.4, height: float = 4.2) -> tuple[Figure, Axes]:
    """Returns a figure with one set of axes, of this size (inches)."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    style_axes(axes)
    return figure, axes


def new_row(count: int, width: float = 2.65, height: float = 3.2) -> tuple[Figure, list[Axes]]:
    """Returns a figure with `count` axes side by side, each of this size (inches)."""
    figure = Figure(figsize=(count * width, height), layout="constrained")
    row = list(figure.subplots(1, count))
    for axes in row:
        style_axes(axes)
    return figure, row


def style_axes(axes: Axes) -> None:
    """Sets the common style of axes: a light grid behind, no box, the palette in order."""
    axes.set_prop_cycle(color=PALETTE)
    axes.grid(True, which="major", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=POINTS)
    axes.xaxis.label.set_fontsize(POINTS)
    axes.yaxis.label.set_fontsize(POINTS)


def save_figure(
    figure: Figure, out_dir: str | os.PathLike, name: str, formats: Sequence[str] = ("png", "svg")
) -> list[str]:
    """Writes a figure once per format (a file ending), atomically; returns the paths."""
    paths = [os.path.join(os.fspath(out_dir), f"{name}.{ending}") for ending in formats]
    for ending, path in zip(formats, paths):
        # No date and no random names: the same rows give the same bytes.
        metadata = {"Date": None} if ending == "svg" else {}
        with files.replacing(path) as partial, matplotlib.rc_context({"svg.hashsalt": name}):
            figure.savefig(partial, format=ending, dpi=150, metadata=metadata)
    return paths


def candidate_scores(
    rows: Sequence[Mapping], against: str, chance: float | None, title: str
) -> Figure:
    """Draws candidates' validation scores, of `CuratorRecord.rows()`, against a hyperparameter.

    `chance`, the accuracy of guessing, is drawn as a line if it is known.
    """
    figure, axes = new_figure()
    for won, label, marker, size in ((0, "candidate", "o", 36), (1, "selected", "*", 220)):
        members = [row for row in rows if row["winner"] == won]
        if members:
            axes.scatter(
                [row[against] for row in members],
                [row["validation_accuracy"] for row in members],
                marker=marker,
                s=size,
                label=label,
                zorder=2 + won,
            )
    if chance is not None:
        axes.axhline(chance, color="#888888", linestyle="--", linewidth=1, label="guessing")
    axes.set_ylim(-0.02, 1.02)
    values = [row[against] for row in rows]
    if min(values) > 0 and max(values) > 20 * min(values):
        axes.set_xscale("log")
    axes.set_xlabel(against.replace("_", " "))
    axes.set_ylabel("validation score (exact, not private)")
    axes.set_title(title)
    axes.legend(loc="best", fontsize=POINTS)
    return figure
