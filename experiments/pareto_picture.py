"""The picture of a front: a pure function of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from dpjax import plotting

_OUTCOMES = (
    "epsilon",
    "utility",
    "best",
    "worst",
    "standard_error",
    "first_seen",
    "still_on_front",
)
SHORT_NAMES = {
    "epochs": "epochs",
    "lot_size": "lot",
    "learning_rate": "rate",
    "clip_norm": "clip",
    "noise_multiplier": "noise",
}
"""Heads of narrow columns."""


def front_figure(
    front: Sequence[Mapping],
    evaluations: Sequence[Mapping],
    *,
    title: str,
    anti_ideal: Sequence[float],
    suggestion: Mapping | None = None,
) -> Figure:
    """Draws a front with its bands beside a table of its settings.

    Args:
      front: `FreshFront.rows()`.
      evaluations: `SearchRecord.rows()`; those that succeeded are drawn behind.
      title: says whether it may be published.
      anti_ideal: (epsilon, error), the ends of the horizontal axis and of the error.
      suggestion: with `epsilon`, `utility`, `low`, `high`, drawn as a star with its interval.
    """
    figure = Figure(figsize=(11.5, 5.2), layout="constrained")
    axes, table = figure.subplots(1, 2, width_ratios=(1.15, 1.0))
    plotting.style_axes(axes)
    behind = [row for row in evaluations if row["utility"] is not None]
    axes.plot(
        [row["epsilon"] for row in behind],
        [1 - row["utility"] for row in behind],
        ".",
        color="#bbbbbb",
        markersize=5,
        label="evaluated",
        zorder=1,
    )
    kept = [row for row in front if row["still_on_front"]]
    for rows, colour, label in (
        (kept, plotting.PALETTE[0], "front, measured afresh"),
        ([row for row in front if not row["still_on_front"]], plotting.PALETTE[4], "was lucky"),
    ):
        if rows:
            errors = [1 - row["utility"] for row in rows]
            axes.errorbar(
                [row["epsilon"] for row in rows],
                errors,
                yerr=[
                    [error - (1 - row["best"]) for error, row in zip(errors, rows)],
                    [(1 - row["worst"]) - error for error, row in zip(errors, rows)],
                ],
                fmt="o",
                color=colour,
                markersize=5,
                elinewidth=1.2,
                capsize=3,
                label=f"{label} (best to worst)",
                zorder=3,
            )
    if kept:
        axes.step(
            [row["epsilon"] for row in kept] + [anti_ideal[0]],
            [1 - row["utility"] for row in kept] + [1 - kept[-1]["utility"]],
            where="post",
            color=plotting.PALETTE[0],
            linewidth=1.2,
            zorder=2,
        )
    for number, row in enumerate(front, 1):
        axes.annotate(
            str(number),
            (row["epsilon"], 1 - row["utility"]),
            xytext=(4, 5),
            textcoords="offset points",
            fontsize=8.5,
        )
    if suggestion is not None:
        error = 1 - suggestion["utility"]
        axes.errorbar(
            [suggestion["epsilon"]],
            [error],
            yerr=[[error - (1 - suggestion["high"])], [(1 - suggestion["low"]) - error]],
            fmt="*",
            color=plotting.PALETTE[1],
            markersize=11,
            capsize=3,
            label="suggested (95% prediction)",
            zorder=4,
        )
    axes.set_xscale("log")
    axes.set_xlim(*_horizontal_limits(front, anti_ideal))
    axes.set_ylim(*_vertical_limits([*front, *([] if suggestion is None else [suggestion])]))
    axes.set_xlabel("epsilon of one run")
    axes.set_ylabel("error, 1 - mean accuracy")
    axes.set_title(title, fontsize=11)
    figure.legend(loc="outside lower left", ncols=4, fontsize=9.5)
    _write_table(table, front)
    return figure


def short(value: float) -> str:
    """A number for a narrow column."""
    return (
        f"{value:.0f}"
        if value == round(value)
        else f"{value:.2g}"
        if value < 10
        else f"{value:.3g}"
    )


def _horizontal_limits(
    front: Sequence[Mapping], anti_ideal: Sequence[float]
) -> tuple[float, float]:
    least = min(
        (row["epsilon"] for row in front if row["epsilon"] > 0), default=anti_ideal[0] / 100
    )
    return least / 1.6, anti_ideal[0] * 1.2


def _vertical_limits(front: Sequence[Mapping]) -> tuple[float, float]:
    """From the best to the worst repetition drawn; evaluations far above are left out."""
    best = min((1 - row.get("best", row.get("high")) for row in front), default=0.0)
    worst = max((1 - row.get("worst", row.get("low")) for row in front), default=1.0)
    margin = 0.08 * (worst - best) + 0.005
    return max(0.0, best - margin), min(1.0, worst + margin)


def _write_table(axes, front: Sequence[Mapping]) -> None:
    """The settings of the front's points, by their numbers."""
    axes.axis("off")
    if not front:
        return
    names = [name for name in front[0] if name not in _OUTCOMES]
    cells = [
        [str(number), f"{row['epsilon']:.3g}", f"{row['utility']:.3f}"]
        + [short(row[name]) for name in names]
        for number, row in enumerate(front, 1)
    ]
    heads = ["", "epsilon", "accuracy"] + [
        SHORT_NAMES.get(name, name.replace("_", " ")) for name in names
    ]
    # Rows of a readable height, from the top; a long front fills the height.
    height = min(1.0, 0.045 * (len(cells) + 1))
    table = axes.table(
        cells, colLabels=heads, loc="upper center", cellLoc="right", bbox=(0, 1 - height, 1, height)
    )
    table.auto_set_font_size(False)
    table.set_fontsize(8.5)
    for cell in table.get_celld().values():
        cell.set_linewidth(0.3)
