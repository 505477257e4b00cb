"""Accuracy against epsilon: what a vote at each epsilon chooses, between OPT and RANDGUESS.

One table of scores per study; a run is a fresh draw of the clients' noise (exact Skellam shares,
`tuning.voting`) on the same ballots. Where the paper trains anew for each run, ours differ by their
noise alone. Accuracy of a candidate is that of the net which the study's rounds of federated
averaging with it give, on all clients' test records. OPT is the best candidate's, RANDGUESS the
mean over candidates. Bands are 95% intervals of Student's t over the runs (the authors' plotting
code divides by the root of the number of clients instead of runs).
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from dpjax import plotting
from dpjax.tuning.federation_simulation import hold_votes
from experiments.figures.dp_hype.studies import (
    FULL,
    STUDY_COLUMNS,
    Study,
    skewed,
    study,
    study_of,
)
from experiments.figures.dp_hype.vote_figure import Options, VoteFigure
from experiments.figures.rows import distinct, select

EPSILONS = (0.1, 0.25, 0.5, 1.0, 3.0, math.inf)
VOTES = 5
DELTA = 1e-5
COLUMNS = ("algorithm", "epsilon", "run", "winner", "accuracy", "opt", "rand_guess")
DP_HYPE = "DP-HYPE"

_NO_NOISE = 10.0
"""Where an infinite epsilon stands on the axis."""


def outcome_rows(
    algorithm: str, winners: Iterable[tuple[float, int, int]], federated: np.ndarray
) -> list[dict]:
    """Rows of one algorithm.

    Args:
      algorithm: its name in the legend.
      winners: (epsilon, run, index of the winner).
      federated: (p,) accuracy of each candidate.
    """
    return [
        {
            "algorithm": algorithm,
            "epsilon": epsilon,
            "run": run,
            "winner": winner,
            "accuracy": federated[winner],
            "opt": federated.max(),
            "rand_guess": federated.mean(),
        }
        for epsilon, run, winner in winners
    ]


def dp_hype_rows(study: Study, options: Options) -> list[dict]:
    """DP-HYPE's votes on a study."""
    table = options.table(study)
    held = hold_votes(
        table.scores, EPSILONS, options.runs, votes=VOTES, delta=DELTA, seed=study.seed
    )
    winners = [(outcome.epsilon, outcome.run, outcome.winner) for outcome in held]
    return outcome_rows(DP_HYPE, winners, table.federated)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half the width of its 95% interval by Student's t."""
    values = np.asarray(values, np.float64)
    error = values.std(ddof=1) / math.sqrt(len(values))
    return float(values.mean()), float(stats.t.ppf(0.975, len(values) - 1) * error)


def draw_panel(axes: Axes, rows: Sequence[Mapping], *, title: bool = True) -> None:
    """One study's curves."""
    lowest = rows[0]["rand_guess"]
    for number, algorithm in enumerate(distinct(rows, "algorithm")):
        members = select(rows, algorithm=algorithm)
        points = []
        for epsilon in distinct(members, "epsilon"):
            found = [row["accuracy"] for row in select(members, epsilon=epsilon)]
            points.append((min(epsilon, _NO_NOISE), *interval(found)))
        place, mean, half = np.array(points).T
        lowest = min(lowest, float((mean - half).min()))
        colour, marker = plotting.PALETTE[number], "os^Dv"[number]
        axes.plot(place, mean, f"-{marker}", color=colour, label=algorithm)
        axes.fill_between(place, mean - half, mean + half, color=colour, alpha=0.2, linewidth=0)
    for column, label, style in (
        ("opt", "OPT (best)", ":"),
        ("rand_guess", "RANDGUESS (mean)", "--"),
    ):
        axes.axhline(rows[0][column], color="#333333", linestyle=style, linewidth=1.3, label=label)
    axes.set_xscale("log")
    epsilons = [min(epsilon, _NO_NOISE) for epsilon in distinct(rows, "epsilon")]
    names = [f"{value:g}" if value < _NO_NOISE else "$\\infty$" for value in epsilons]
    axes.set_xticks(epsilons, names)
    axes.minorticks_off()
    # Two classes leave nothing below a half to look at.
    axes.set_ylim(bottom=0.5 if lowest > 0.6 else 0.0, top=1.0 if lowest > 0.6 else 1.02)
    if title:
        axes.set_title(study_of(rows[0]).title, fontsize=11.5)


def by_study(rows: Sequence[Mapping]) -> list[list[Mapping]]:
    """Rows grouped by study, in order of appearance."""
    groups: dict[Study, list[Mapping]] = {}
    for row in rows:
        groups.setdefault(study_of({name: row[name] for name in STUDY_COLUMNS}), []).append(row)
    return list(groups.values())


def heading(rows: Sequence[Mapping], first_line: str, width: float) -> str:
    """What stands above the panels: a line, and what of the studies is not the paper's.

    Args:
      rows: all of the figure's.
      first_line: of the heading.
      width: of the figure, inches; what is longer is broken.
    """
    notes = [study_of(group[0]).footnote for group in by_study(rows)]
    note = "; ".join(dict.fromkeys(note for note in notes if note))
    return "\n".join([first_line, *textwrap.wrap(note, round(11 * width))])


def drawer(columns: int) -> Callable[[Sequence[Mapping]], Figure]:
    """Returns a function that draws a grid of panels, one a study, so many side by side."""

    def draw(rows: Sequence[Mapping]) -> Figure:
        groups = by_study(rows)
        lines = -(-len(groups) // columns)
        width = min(columns, len(groups))
        figure = Figure(
            figsize=(max(3.8 * width, 6.5), 2.9 * lines + 1.3), layout="constrained"
        )
        grid = figure.subplots(lines, width, squeeze=False)
        for axes, group in zip(grid.flat, groups):
            plotting.style_axes(axes)
            draw_panel(axes, group)
        for axes in grid.flat[len(groups) :]:
            axes.set_axis_off()
        for axes in grid[-1]:
            axes.set_xlabel("$\\varepsilon$ of the vote (nats)")
        for axes in grid[:, 0]:
            axes.set_ylabel("accuracy (exact, not private)")
        handles = {}
        for axes in grid.flat:
            handles.update(zip(*axes.get_legend_handles_labels()[::-1]))
        figure.legend(
            handles.values(),
            handles.keys(),
            loc="outside lower center",
            ncols=2 if width == 1 else 3,
            fontsize=10.5,
        )
        runs = max(row["run"] for row in rows) + 1
        first = study_of(rows[0])
        title = (
            f"one client replaced, $\\delta=10^{{-5}}$, k = {VOTES}, {runs} votes a point, "
            f"95% intervals; {first.rates} rates"
        )
        figure.suptitle(heading(rows, title, figure.get_figwidth()), fontsize=10.5)
        return figure

    return draw


def skewed_figure(number: int, clients: int, mid_size: Sequence[str]) -> VoteFigure:
    """Figures 5, 12 and 13: data sets by rows, Dirichlet concentrations by columns.

    Args:
      number: of the figure.
      clients: n.
      mid_size: the data sets that it shows at mid and quick size.
    """

    def studies(size: str) -> Iterable[Study]:
        for dataset in ("adult", "mnist", "cifar10") if size == FULL else mid_size:
            for concentration in skewed(dataset, clients):
                found = study(size, dataset, clients, concentration)
                if found.dataset != "digits" or dataset == mid_size[0]:
                    yield found

    return VoteFigure(f"figure_{number}", COLUMNS, studies, dp_hype_rows, drawer(columns=3))
