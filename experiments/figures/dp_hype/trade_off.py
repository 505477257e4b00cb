"""Accuracy against epsilon: what a vote at each epsilon chooses, between OPT and RANDGUESS.

A study has one table of scores. A vote is a fresh draw of the noise (exact Skellam,
`federated.voting`) on the same ballots. The paper trains anew for each of its runs; ours differ by
their noise alone. A candidate's accuracy is that of the net which the study's rounds of federated
averaging with it give, on all clients' test records. OPT is the best candidate's, RANDGUESS the
mean over candidates. Bands are 95% intervals of the mean over the votes (the authors' plotting code
divides by the root of the number of clients instead of runs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpjax import plotting
from experiments.federation.many_clients import Wins, hold_votes
from experiments.figures.dp_hype.studies import (
    DATASETS,
    Study,
    skewed,
    study,
)
from experiments.figures.dp_hype.vote_figure import (
    Options,
    by_title,
    draw_grid,
    rates_in_words,
    vote_figure,
)
from experiments.figures.figure import FULL, MID, QUICK, FigureSpec
from experiments.figures.rows import distinct, interval, select

VOTES = 5
DELTA = 1e-5
COLUMNS = {
    "algorithm": "name", "epsilon": "nats", "winner": "candidate", "won": "votes",
    "accuracy": "share", "opt": "share", "rand_guess": "share",
}  # fmt: skip
DP_HYPE = "DP-HYPE"
LABELS = {"RawLosses": "accuracies sent (RawLosses)"}
"""Algorithm -> what the legend says, where its name in the authors' code says little."""

_NO_NOISE = 10.0
"""Where an infinite epsilon stands on the axis."""


def outcome_rows(algorithm: str, outcomes: Iterable[Wins], federated: np.ndarray) -> list[dict]:
    """Rows of one algorithm: its winners at each epsilon, with candidates' accuracies (p,)."""
    best, mean = federated.max(), federated.mean()
    return [
        dict(zip(COLUMNS, (algorithm, *found, federated[found.winner], best, mean), strict=True))
        for found in outcomes
    ]


def dp_hype_rows(study: Study, options: Options) -> list[dict]:
    """DP-HYPE's votes on a study."""
    table = options.tables.table(study)
    held = hold_votes(
        table.scores, options.epsilons, options.runs, votes=VOTES, delta=DELTA, seed=study.seed
    )
    return outcome_rows(DP_HYPE, held, table.federated)


def accuracies(rows: Sequence[Mapping]) -> np.ndarray:
    """The accuracy that each vote of these rows gives, (votes,)."""
    return np.repeat([row["accuracy"] for row in rows], [row["won"] for row in rows])


def draw_panel(axes: Axes, rows: Sequence[Mapping]) -> None:
    """One study's curves."""
    lowest = rows[0]["rand_guess"]
    for number, algorithm in enumerate(distinct(rows, "algorithm")):
        members = select(rows, algorithm=algorithm)
        points = []
        for epsilon in distinct(members, "epsilon"):
            found = accuracies(select(members, epsilon=epsilon))
            points.append((min(epsilon, _NO_NOISE), *interval(found)))
        place, mean, half = np.array(points).T
        lowest = min(lowest, float((mean - half).min()))
        colour, marker = plotting.PALETTE[number], "os^Dv"[number]
        axes.plot(place, mean, f"-{marker}", color=colour, label=LABELS.get(algorithm, algorithm))
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
    # Two classes leave nothing below a half to look at, and hard images nothing above.
    if lowest > 0.55:
        axes.set_ylim(0.5, 1.0)
    else:
        axes.set_ylim(0.0, 1.02 if rows[0]["opt"] > 0.45 else 0.5)


def drawer(columns: int) -> Callable[[Sequence[Mapping]], Figure]:
    """Returns a function that draws a grid of panels, one a study."""

    def draw(rows: Sequence[Mapping]) -> Figure:
        panels = by_title(rows)
        of_one = select(next(iter(panels.values())), algorithm=DP_HYPE, epsilon=rows[0]["epsilon"])
        runs = sum(row["won"] for row in of_one)
        heading = f"k = {VOTES}, {runs:,} votes a point, 95% intervals; {rates_in_words(rows)}"
        return draw_grid(
            rows, panels, columns, draw_panel, heading=heading,
            x_label="$\\varepsilon$ of the vote (nats)",
            y_label="accuracy (exact, not private)",
        )  # fmt: skip

    return draw


def skewed_studies(size: str, clients: int) -> Iterator[Study]:
    """Yields data sets by rows, Dirichlet concentrations by columns.

    At mid size CIFAR-10 is left out; quick size has one data set.
    """
    shown = {FULL: DATASETS, MID: DATASETS[:2], QUICK: DATASETS[:1]}
    for dataset in shown[size]:
        for concentration in skewed(dataset, clients):
            yield study(size, dataset, clients, concentration)


def skewed_figure(number: int, clients: int) -> FigureSpec:
    """Figures 5 (100 clients), 12 (250) and 13 (50).

    What they show: the smaller the concentration, the more clients differ in labels and in size,
    the less they agree on candidates, and the larger the epsilon below which the vote falls to a
    random guess.
    """
    return vote_figure(
        number,
        COLUMNS,
        lambda size: skewed_studies(size, clients),
        dp_hype_rows,
        drawer(columns=3),
        quick="20 s",
    )
