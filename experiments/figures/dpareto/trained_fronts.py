"""What figures 5 to 8 and Table 2 derive from trained rows: hypervolumes, fronts, bands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpjax import plotting
from dpjax.pareto import fronts
from experiments.figures.dpareto import maps, problems
from experiments.figures.dpareto.trained_searches import KEY_COLUMNS, RAN_COLUMNS
from experiments.figures.rows import distinct, select

METHOD_LABELS = {
    "ehvi": "DPareto (EHVI)",
    "hvpoi": "DPareto (HVPoI)",
    "random": "random",
    "uniform": "random (uniform)",
}
JUDGEMENTS = {
    "measured_afresh": "front measured afresh",
    "observed": "as observed",
    "observed_classic": "as observed, classic epsilons",
    "observed_classic_log": "as observed, log of classic epsilons",
}
COLOURS = dict(zip(("ehvi", "random", "hvpoi", "uniform"), plotting.PALETTE))


def points(rows: Sequence[Mapping], column: str = "utility") -> np.ndarray:
    """Returns (n, 2) float64: epsilon, and 1 minus a column of utilities."""
    return np.stack([maps.column(rows, "epsilon"), 1 - maps.column(rows, column)], axis=1)


def hypervolume(rows: Sequence[Mapping], column: str = "utility") -> float:
    """Returns the hypervolume of rows at the paper's anti-ideal point (10, 1)."""
    return fronts.hypervolume(points(rows, column), problems.ANTI_IDEAL)


def papers_hypervolume(rows: Sequence[Mapping], *, logarithmic: bool) -> float:
    """Returns the hypervolume at (10, 1) of measured means, with epsilons as the paper quotes them.

    Args:
      rows: evaluations.
      logarithmic: count gains in log epsilon, as the authors' scripts can
        (`compute_pf_volume(..., log_transform_x=True)`).
    """
    corners = points([row | {"epsilon": row["epsilon_classic"]} for row in rows])
    anti_ideal = np.array(problems.ANTI_IDEAL)
    if logarithmic:
        corners[:, 0], anti_ideal[0] = np.log(corners[:, 0]), np.log(anti_ideal[0])
    return fronts.hypervolume(corners, anti_ideal)


def on_front(rows: Sequence[Mapping]) -> list[Mapping]:
    """Returns the rows on the front by mean utility, by increasing epsilon."""
    if not rows:
        return []
    kept = np.flatnonzero(fronts.non_dominated(points(rows)))
    return sorted((rows[place] for place in kept), key=lambda row: row["epsilon"])


def by_search(rows: Sequence[Mapping]) -> dict[tuple, list[Mapping]]:
    """Returns the rows of each search, keyed by (problem, method, seed), in order."""
    found: dict[tuple, list[Mapping]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in KEY_COLUMNS), []).append(row)
    return found


def final_rows(
    evaluations: Sequence[Mapping], fresh: Sequence[Mapping], methods: Sequence[str]
) -> list[dict]:
    """One row a search: its hypervolume as judged in the `JUDGEMENTS`."""
    again = by_search(fresh)
    return [
        {
            "problem": key[0],
            "method": key[1],
            "seed": key[2],
            **{name: members[0][name] for name in RAN_COLUMNS},
            "fresh_repetitions": again[key][0]["fresh_repetitions"],
            "measured_afresh": hypervolume(again[key]),
            "observed": hypervolume(members),
            "observed_classic": papers_hypervolume(members, logarithmic=False),
            "observed_classic_log": papers_hypervolume(members, logarithmic=True),
        }
        for key, members in by_search(evaluations).items()
        if key in again and key[1] in methods
    ]


def head(figure: Figure, rows: Sequence[Mapping]) -> None:
    """Says above a figure what was run, a line for each data set, and that it is not private."""
    lines = [_what_ran(select(rows, data_set=name)) for name in distinct(rows, "data_set")]
    figure.suptitle("; ".join(["\n".join(lines) or "nothing run", "NOT private"]))


def _what_ran(rows: Sequence[Mapping]) -> str:
    """What rows of one data set say was run: records, epochs, evaluations, repetitions."""
    said = {name: _span(rows, name) for name in RAN_COLUMNS[1:]}
    words = (
        f"{rows[0]['data_set']}: {said['records']} records, up to {said['most_epochs']} epochs, "
        f"{said['evaluations']} evaluations of {said['repetitions']} repetitions"
    )
    if rows[0].get("fresh_repetitions") is not None:
        words += f", {_span(rows, 'fresh_repetitions')} fresh"
    return words


def _span(rows: Sequence[Mapping], column: str) -> str:
    """The numbers of a column as words: one, or the least and the largest."""
    numbers = [row[column] for row in rows]
    ends = sorted({min(numbers), max(numbers)})
    return " to ".join(f"{end:,}" for end in ends)


def draw_points(axes: Axes, rows: Sequence[Mapping], label: str, colour: str, size=8) -> None:
    """Draws evaluations as dots and their front as a staircase."""
    if not rows:
        return
    drawn = points(rows)
    axes.scatter(
        drawn[:, 0], drawn[:, 1], s=size, color=colour, alpha=0.35, linewidths=0, rasterized=True
    )
    maps.draw_front(axes, drawn[:, 0], drawn[:, 1], color=colour, linewidth=2, label=label)


def dress(axes: Axes, title: str, rows: Sequence[Mapping]) -> None:
    """Labels a panel of fronts: epsilon up to 10 on a logarithmic scale, errors of fronts."""
    axes.set_xscale("log")
    axes.set_xlabel("epsilon")
    axes.set_ylabel("classification error")
    axes.set_title(title)
    inside = [row for row in rows if row["epsilon"] <= problems.ANTI_IDEAL[0]]
    if not inside:
        return
    axes.set_xlim(0.8 * min(row["epsilon"] for row in inside), problems.ANTI_IDEAL[0])
    groups: dict[tuple, list[Mapping]] = {}
    for row in inside:
        groups.setdefault((row.get("problem"), row.get("method")), []).append(row)
    # Most random settings are far above every front: they would squeeze it.
    errors = np.concatenate([fronts.front(points(members))[:, 1] for members in groups.values()])
    margin = 0.08 * max(float(np.ptp(errors)), 0.02)
    axes.set_ylim(errors.min() - margin, errors.max() + margin)


def methods_of(rows: Sequence[Mapping]) -> list[str]:
    """Returns the methods in order of appearance."""
    return distinct(rows, "method")


def of(rows: Sequence[Mapping], problem: str, method: str, seed: int = 0) -> list[Mapping]:
    """Returns the rows of one search."""
    return select(rows, problem=problem, method=method, seed=seed)
