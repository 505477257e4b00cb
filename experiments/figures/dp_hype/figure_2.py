r"""Figure 2: how often the noisy vote names a good candidate, by simulation without training.

Liebenow, Peinemann & Mohammadi, "DP-HYPE", PoPETs 2026, arXiv:2510.04902, figure 2, its settings
from the authors' code. 250 clients; at every client the utility of a good candidate is normal with
mean 1, of a bad one with mean 0, both of standard deviation s. Each client names its k best, noise
is added to the counts, and the vote succeeds if a good candidate wins. 5000 votes a point.
  a  100 candidates, 5 good, s from 0 to 1;
  b  100 candidates, s = 0.2, 1 to 100 good ones;
  c  5 good ones, s = 0.2, 100 to 2700 candidates (in the published version only).

What it shows: at epsilon = 1 every k but 100 succeeds almost always; at 0.25 noise matters, k = 5
is best where utilities overlap, and the best k is about the number of good candidates. k = 100 of
100 is a uniform guess: success 5% in a. Without overlap (s = 0) all clients name the same
candidates, and k = 25 spreads its votes evenly over 5 good and 20 bad ones: 20%.

Two calibrations at delta = 1e-5: solid, the analytic Gaussian with sensitivity
sqrt(2 min(k, p - k)); dotted, the standard deviations in the authors' code, 2 to 9% larger. Where k
is all candidates, ballots say nothing, no noise is needed, and the winner is drawn at random.

Thin lines are Theorem V.1 (`theorem_v_1`), averaged over the same votes.

  python -m experiments.figures.dp_hype.figure_2 --out_dir=docs/figures/dp_hype

Full size takes four and a half minutes of one core; --quick (100 votes a point) eight seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from scipy import optimize

from dpjax import accounting, plotting
from experiments.figures.figure import FULL, QUICK, FigureSpec
from experiments.figures.panels import WIDTH
from experiments.figures.rows import distinct, select

CLIENTS = 250
DELTA = 1e-5
EPSILONS = (0.25, 1.0)
VOTES = (1, 5, 25, 50, 100)
SIMULATIONS, QUICK_SIMULATIONS = 5000, 100

# Standard deviations in the authors' code, by epsilon, for each of VOTES.
ARTIFACT_SIGMAS = {
    0.25: (20.5, 46.0, 100.3, 145.0, 205.0),
    1.0: (5.5, 12.5, 27.0, 40.0, 55.0),
}
NOISES = ("analytic", "artifact")
COLUMNS = {
    "panel": "name", "spread": "utility", "good": "candidates", "candidates": "candidates",
    "votes": "votes", "epsilon": "nats", "noise": "name", "sigma": "votes",
    "simulations": "votes held", "success": "share", "bound": "probability",
}  # fmt: skip

_UTILITIES_AT_ONCE = 12_000_000


def settings() -> Iterator[tuple[str, float, int, int]]:
    """Yields panel, spread, number of good and of all candidates, point by point."""
    for spread in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        yield "a", spread, 5, 100
    for good in (1, 2, 4, 8, 16, 32, 64, 100):
        yield "b", 0.2, good, 100
    for candidates in (100, 300, 900, 2700):
        yield "c", 0.2, 5, candidates


def sigma(noise: str, epsilon: float, votes: int, candidates: int) -> float:
    """Standard deviation of the noise; 1 where every candidate is named, when it does not matter.

    The artifact has no list of its own for more than 100 candidates: its noise depends on k alone.
    """
    if noise == "artifact":
        return ARTIFACT_SIGMAS[epsilon][VOTES.index(votes)]
    if votes == candidates:
        return 1.0
    return accounting.calibrate_vote(epsilon, DELTA, votes, candidates)


def counts(
    simulations: int, spread: float, good: int, candidates: int, source: np.random.Generator
) -> np.ndarray:
    """Votes without noise, the good candidates first, (simulations, len(VOTES), candidates).

    Equal utilities, which occur where `spread` is 0, are ordered by index.
    """
    utilities = source.standard_normal((simulations, CLIENTS, candidates), dtype=np.float32)
    utilities *= np.float32(-spread)
    utilities[..., :good] -= 1.0  # Negative utilities: the smallest are the best.
    most = max(VOTES)
    if candidates > most:
        best = np.argpartition(utilities, most, axis=-1)[..., :most]
        order = np.argsort(np.take_along_axis(utilities, best, axis=-1), axis=-1)
        ranked = np.take_along_axis(best, order, axis=-1)
    else:
        ranked = np.argsort(utilities, axis=-1, kind="stable")
    offsets = candidates * np.arange(simulations)[:, np.newaxis, np.newaxis]
    found = [
        np.bincount((ranked[..., :votes] + offsets).ravel(), minlength=simulations * candidates)
        for votes in VOTES
    ]
    return np.stack([total.reshape(simulations, candidates) for total in found], axis=1)


def theorem_v_1(gap: np.ndarray, bad: int, deviation: float) -> np.ndarray:
    """Returns a lower bound on the probability that a good candidate wins a noisy vote.

    DP-HYPE, Theorem V.1: 1 - bad deviation exp(-gap^2 / (4 deviation^2)) / (gap sqrt(pi)). It holds
    for a gap above 0, which the theorem does not say, and may be negative; both give 0 here.

    Args:
      gap: (votes,) least count of a good candidate less the largest of a bad one, without noise.
      bad: number of bad candidates.
      deviation: standard deviation of the noise on a count.
    """
    positive = np.maximum(gap, 1e-300)
    tail = deviation / (positive * math.sqrt(math.pi)) * np.exp(-((gap / deviation) ** 2) / 4)
    return np.where(gap > 0, np.maximum(0.0, 1.0 - bad * tail), 0.0) if bad else np.ones(len(gap))


def gap_for(probability: float, bad: int, deviation: float) -> float:
    """Returns the least gap, in votes, at which `theorem_v_1` promises a probability.

    Divided by the share of clients by which good candidates lead bad ones it is how many clients a
    federation needs.
    """

    def missing(gap: float) -> float:
        return float(theorem_v_1(np.array([gap]), bad, deviation)[0]) - probability

    return float(optimize.brentq(missing, 1e-9 * deviation, 1e3 * deviation))


Found = dict[tuple[int, float, str], float]
"""A number by votes, epsilon and noise."""


def successes(
    simulations: int, spread: float, good: int, candidates: int, source: np.random.Generator
) -> tuple[Found, Found]:
    """How many of the simulated votes a good candidate wins, and at least wins by Theorem V.1."""
    found: Found = {(v, e, noise): 0 for v in VOTES for e in EPSILONS for noise in NOISES}
    bounds = dict.fromkeys(found, 0.0)
    left = simulations
    while left:
        now = min(left, max(1, _UTILITIES_AT_ONCE // (CLIENTS * candidates)))
        plain = counts(now, spread, good, candidates, source)
        for votes, epsilon, noise in found:
            deviation, held = sigma(noise, epsilon, votes, candidates), plain[:, VOTES.index(votes)]
            drawn = source.standard_normal((now, candidates))
            drawn *= deviation
            winners = np.argmax(held + drawn, axis=1)
            found[votes, epsilon, noise] += int(np.sum(winners < good))
            worst_bad = held[:, good:].max(axis=1, initial=0)
            bound = theorem_v_1(
                held[:, :good].min(axis=1) - worst_bad, candidates - good, deviation
            )
            bounds[votes, epsilon, noise] += float(bound.sum())
        left -= now
    return found, bounds


def compute(size: str) -> list[dict]:
    """Returns one row for each point, k, epsilon and noise."""
    simulations = QUICK_SIMULATIONS if size == QUICK else SIMULATIONS
    source = np.random.default_rng(2)
    rows = []
    for panel, spread, good, candidates in settings():
        if size == QUICK and candidates > 300:
            continue
        found, bounds = successes(simulations, spread, good, candidates, source)
        for (votes, epsilon, noise), won in found.items():
            deviation = sigma(noise, epsilon, votes, candidates)
            vote = panel, spread, good, candidates, votes, epsilon, noise, deviation
            bound = bounds[votes, epsilon, noise] / simulations
            cells = (*vote, simulations, won / simulations, bound)
            rows.append(dict(zip(COLUMNS, cells, strict=True)))
    return rows


AXES = {
    "a": ("spread", "standard deviation $s$ of utilities\n(100 candidates, 5 good)"),
    "b": ("good", "good candidates\n(of 100, $s$ = 0.2)"),
    "c": ("candidates", "candidates\n(5 good, $s$ = 0.2)"),
}


def draw(rows: Sequence[Mapping]) -> Figure:
    """Draws success against each panel's axis, one row of panels for each epsilon."""
    figure = Figure(figsize=(WIDTH, 6.2), layout="constrained")
    grid = figure.subplots(len(EPSILONS), len(AXES), sharey=True, sharex="col")
    markers = dict(zip(VOTES, "os^Dv"))
    for line, epsilon in zip(grid, EPSILONS):
        for axes, (panel, (column, _)) in zip(line, AXES.items()):
            plotting.style_axes(axes)
            members = select(rows, panel=panel, epsilon=epsilon)
            for colour, votes in zip(plotting.PALETTE, distinct(members, "votes")):
                for noise, style in zip(NOISES, ("-", ":")):
                    points = select(members, votes=votes, noise=noise)
                    axes.plot(
                        [row[column] for row in points],
                        [row["success"] for row in points],
                        style + markers[votes],
                        color=colour,
                        markersize=4 if noise == "analytic" else 2,
                        label=f"$k={votes}$" if noise == "analytic" else None,
                    )
                points = select(members, votes=votes, noise="analytic")
                bound = [row["bound"] for row in points]
                axes.plot([row[column] for row in points], bound, color=colour, linewidth=0.8)
            if panel != "a":
                axes.set_xscale("log", base=2 if panel == "b" else 3)
                ticks = sorted({row[column] for row in members})
                # 64 and 100 would touch.
                names = [
                    str(tick) if 2 * tick <= later else ""
                    for tick, later in zip(ticks, (*ticks[1:], math.inf))
                ]
                axes.set_xticks(ticks, names)
                axes.minorticks_off()
            axes.set_ylim(-0.02, 1.05)
            axes.set_title(f"({panel}) $\\varepsilon={epsilon:g}$")
        line[0].set_ylabel("P[a good candidate wins]")
    for axes, (_, label) in zip(grid[-1], AXES.values()):
        axes.set_xlabel(label)
    handles, labels = grid[0][0].get_legend_handles_labels()
    handles += [grid[0][0].plot([], [], style, color="#333333")[0] for style in ("-", ":")]
    handles += grid[0][0].plot([], [], color="#333333", linewidth=0.8)
    labels += ["noise: analytic Gaussian", "noise: the authors' code", "Theorem V.1, analytic"]
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    figure.suptitle(
        f"{CLIENTS} clients, {rows[0]['simulations']} simulated votes a point, $\\delta=10^{{-5}}$"
    )
    return figure


FIGURE = FigureSpec(
    "dp_hype",
    "figure_2",
    COLUMNS,
    {FULL: "four and a half minutes", QUICK: "8 s"},
    draw,
    rows=compute,
)

if __name__ == "__main__":
    FIGURE.run()
