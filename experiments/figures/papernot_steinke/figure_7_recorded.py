r"""Figure 7 as its authors drew it, from the accuracies of all their 400 runs, and with our bound.

The paper trains an all-convolutional net on MNIST by DP-SGD (Poisson lots of 256, clip norm 1,
noise multiplier 1.1, 60 epochs) with each of 400 learning rates from 0.025 to 1, evenly spaced in
their logarithm, and replays random selection: draw K, draw K of the trained models with
replacement, release the best by its TEST accuracy (not private for those records). The authors
published the 400 accuracies with the script that draws the figure (tensorflow/privacy,
research/hyperparameters_2022, Apache-2.0); `recorded_accuracies.csv` holds them, and everything
here is computed from those numbers: nothing is trained.

Left: the picture of the paper. Its laws are the logarithmic, the geometric, the truncated negative
binomial of eta = +0.5, and Poisson; its means follow from eleven values of gamma, which the dots
mark; its baseline, .9594, is the best of the 400 runs, chosen without privacy. Its horizontal axis,
"privacy budget", is the smallest value that the bound on the Renyi divergence takes over the
orders. That is no epsilon of (epsilon, delta): no delta belongs to it, and an epsilon of these
bounds at delta = 1e-5 is larger by 0.9 to 2.2 (middle), for Poisson of mean 1 and more by 1.3 to
2.8; of a smaller mean its axis is negative. A K of 0, which a Poisson law allows, has accuracy 0
there and 1/10, a guess, in the other panels.

Middle: the same bounds (Theorems 2 and 6, Poisson's with the event K = 0 and the exact delta) at
delta = 1e-5. Right: our bound at the same delta.

Differs from the paper: curves are the exact mean over the law of K by its generating function where
the authors average 1,000 replays (500 by the text); the middle and the right panel are ours. The
script looks accuracies up by the text of a rate: with NumPy 2 it finds 379 of the 400
and counts the others, whose last digit differs, as accuracy 0; here all 400 are found. Their
Renyi curve of one run is that of 14,063 steps, ours of 14,062: they differ by 7e-5 of it.

  python -m experiments.figures.papernot_steinke.figure_7_recorded \
      --out_dir=docs/figures/papernot_steinke

Takes 20 seconds on one core; with --quick (few means) 6 seconds.
"""

from __future__ import annotations

import functools
import math
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from dpjax import accounting
from experiments.figures.figure import FULL, QUICK, FigureSpec
from experiments.figures.panels import legend_below, new_panels
from experiments.figures.papernot_steinke import figure_7, setting
from experiments.figures.papernot_steinke.figure_7 import DELTA
from experiments.figures.papernot_steinke.figure_7_runs import SETTINGS
from experiments.figures.rows import distinct, select

LAWS = ("logarithmic", "eta=0.5", "geometric", "poisson")
GAMMAS = (1e-7, 8e-6, 1e-4, 2.4e-4, 0.0015, 0.0035, 0.025, 0.05, 0.1, 0.2, 0.5)
"""The authors'; a Poisson law of their script has mean 100 gamma."""

BASELINE = 0.9594
"""Accuracy of the best of the 400 runs, the authors' search without privacy."""

ORDERS = (*np.arange(1.25, 2.51, 0.25), *np.arange(3.0, 5.0, 0.5), *range(5, 64), 128, 256, 512)
"""Orders at which the authors know one run's Renyi divergence."""

COLUMNS = {
    "repetition": "name", "mean": "runs", "authors": "0 or 1", "least_divergence": "nats",
    "delta": "probability", "epsilon_papernot_steinke": "nats", "epsilon_tight": "nats",
    "accuracy": "share", "accuracy_none_counts_zero": "share",
}  # fmt: skip
PANELS = {
    "least_divergence": ("as in the paper", "least Renyi divergence (nats)"),
    "epsilon_papernot_steinke": ("by the paper's bounds", None),
    "epsilon_tight": ("by the tight bound", None),
}


@functools.cache
def recorded() -> tuple[np.ndarray, np.ndarray]:
    """Returns the 400 rates, increasing, and the authors' test accuracies, both float64 (400,)."""
    table = np.loadtxt(
        pathlib.Path(__file__).with_name("recorded_accuracies.csv"), delimiter=",", skiprows=1
    )
    return table[:, 0], table[:, 1]


def authors_mean(name: str, gamma: float) -> float:
    """Returns the mean of K that the authors' script has at a gamma, by law."""
    if name == "poisson":
        return 100 * gamma
    if name == "logarithmic":
        return (1 / gamma - 1) / math.log(1 / gamma)
    eta = 1.0 if name == "geometric" else 0.5
    return eta * (1 - gamma) / (gamma * (1 - gamma**eta))


def authors_means(name: str) -> list[float]:
    """Returns the means of the law's dots: the script leaves out what would not fit its axes."""
    least = {"logarithmic": 0.0, "eta=0.5": 1e-4, "geometric": 1e-4, "poisson": 0.0015}[name]
    return sorted(authors_mean(name, gamma) for gamma in GAMMAS if gamma >= least)


def least_divergence(name: str, mean: float) -> float:
    """Returns the authors' horizontal axis: the least bound on the Renyi divergence over ORDERS.

    Theorems 2 and 6 as printed, at the authors' orders; Theorem 6's delta from the Renyi curve.
    """
    orders, curve = np.array(ORDERS), _one_run()
    if name == "poisson":
        epsilons = np.log1p(1 / (orders - 1))
        deltas = [_delta(orders, curve, epsilon) for epsilon in epsilons]
        return float(np.min(curve + mean * np.array(deltas) + math.log(mean) / (orders - 1)))
    eta = {"logarithmic": 0.0, "eta=0.5": 0.5, "geometric": 1.0}[name]
    gamma = accounting.TruncatedNegativeBinomial(eta, mean).gamma
    second = (1 + eta) * np.min((1 - 1 / orders) * curve + math.log(1 / gamma) / orders)
    return float(np.min(curve + second + math.log(mean) / (orders - 1)))


def _delta(orders: np.ndarray, curve: np.ndarray, epsilon: float) -> float:
    """Returns the least delta at an epsilon that a Renyi curve shows (Lemma 14)."""
    logs = (orders - 1) * (curve - epsilon + np.log1p(-1 / orders)) - np.log(orders)
    return float(np.exp(min(0.0, logs.min())))


@functools.cache
def _one_run() -> np.ndarray:
    """Renyi divergences of one run at ORDERS, (orders,)."""
    return np.asarray(SETTINGS[FULL].guarantee(ideal=True).rdp(np.array(ORDERS)))


def compute(size: str) -> list[dict]:
    """Returns one row for each law of K and mean."""
    _, accuracies = recorded()
    run = SETTINGS[FULL].guarantee(ideal=True)
    rows = []
    for member in (one for name in LAWS for one in setting.REPETITIONS if one.name == name):
        dots = authors_means(member.name)
        means = {float(f"{mean:.6g}"): 1 for mean in (dots[::4] if size == QUICK else dots)}
        if size != QUICK:
            largest = 60.0 if member.name == "poisson" else max(means)
            low = -1.0 if member.name == "poisson" else 0.02
            for exponent in np.arange(low, math.log10(largest), 0.1):
                means.setdefault(float(f"{10**exponent:.6g}"), 0)
        for mean in sorted(means):
            law = member.law(mean)
            accuracy = figure_7.expected_accuracy(accuracies, law)
            none = law.generating_function(0.0)
            rows.append(
                {
                    "repetition": member.name,
                    "mean": mean,
                    "authors": means[mean],
                    "least_divergence": least_divergence(member.name, mean),
                    "delta": DELTA,
                    "epsilon_papernot_steinke": accounting.best_of(run, law, method="rdp").epsilon(
                        DELTA, method="rdp"
                    ),
                    "epsilon_tight": accounting.best_of(run, law).epsilon(DELTA),
                    "accuracy": accuracy,
                    "accuracy_none_counts_zero": accuracy - float(none) * figure_7.GUESS,
                }
            )
    return rows


def draw(rows: Sequence[Mapping]) -> Figure:
    """Draws accuracy against the cost, a panel for each measure of it."""
    figure, panels = new_panels(len(PANELS), height=3.9, share_vertical=True)
    looks = {member.name: member for member in setting.REPETITIONS}
    for (column, (title, label)), axes in zip(PANELS.items(), panels):
        height = "accuracy_none_counts_zero" if column == "least_divergence" else "accuracy"
        for name in distinct(rows, "repetition"):
            members = select(rows, repetition=name)
            look = {"color": looks[name].colour}
            axes.plot(
                [row[column] for row in members],
                [row[height] for row in members],
                label=looks[name].label,
                **look,
            )
            dots = select(members, authors=1)
            axes.plot([row[column] for row in dots], [row[height] for row in dots], ".", **look)
        axes.axhline(
            BASELINE,
            color="#333333",
            linestyle="--",
            label="best of the 400",
        )
        axes.set_title(title)
        axes.set_xlabel(label or setting.epsilon_label(rows[0]["delta"]))
        axes.set_xlim(0.5 if label else 2.0, 8)
    panels[0].set_ylim(0.85, 0.97)
    panels[0].set_ylabel("mean accuracy of the released model")
    figure.suptitle("MNIST, the authors' 400 recorded runs, scored on TEST data")
    legend_below(figure, panels[0], columns=5)
    return figure


def summary(rows: Sequence[Mapping]) -> list[str]:
    """Returns the accuracy of every law where its cost is 3 to 5, by each measure."""
    lines = []
    for column in PANELS:
        height = "accuracy_none_counts_zero" if column == "least_divergence" else "accuracy"
        for budget in (3.0, 3.3, 3.6, 4.0, 5.0):
            found = {}
            for name in distinct(rows, "repetition"):
                members = select(rows, repetition=name)
                cost = [row[column] for row in members]
                if cost[0] <= budget <= cost[-1]:
                    found[name] = np.interp(budget, cost, [row[height] for row in members])
            values = ", ".join(f"{name} {value:.4f}" for name, value in found.items())
            lines.append(f"{column} {budget}: {values}")
    return lines


FIGURE = FigureSpec(
    "papernot_steinke",
    "figure_7_recorded",
    COLUMNS,
    {FULL: "20 s", QUICK: "6 s"},
    draw,
    rows=compute,
    summary=summary,
)

if __name__ == "__main__":
    FIGURE.run()
