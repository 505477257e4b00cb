"""Figure 1: training accuracy against the weight of the hinge loss, with and without outliers.

The paper's figure motivates the paper: a hyperparameter that was tuned without privacy shows
whether outliers were among the records. A linear machine minimises ||w||^2 + alpha times the
hinge loss max(0, 1 - y (w.x + b)) by stochastic gradient descent on 40 records of two normal
classes of standard deviation 1, centred at (7.86, -3.36), labelled -1, and (6.42, -9.17), labelled
+1; then on these and eight outliers, all at (7.9, -8.0), labelled -1. Accuracy is that on the
training records. With the outliers it rises up to alpha about 8 and falls again; without them it
only falls.

The records here. The printed centres are those that scikit-learn's `make_blobs(n_samples=40,
centers=2, random_state=6)` draws, to every digit, so its 40 records are taken to be the paper's.

The same comes out, by the numbers of docs/figures.md. The turning point belongs to the procedure,
not to the objective: a larger alpha makes larger steps, and with smaller steps it moves to the
right. The tuned weights of the two curves differ, so the weight alone says something of the eight
records; `figure_one_outlier` shows the same for one.

Left open by the paper, and ours: steps of 0.0003, one record at a time, 400 passes in a fresh
random order, from zero; the mean over 400 runs, whose orders alone differ (the paper has one run),
with the band of their quartiles. Step and passes were picked so that the turn shows. There is no
privacy bound to draw: nothing in this figure is private.

  python -m experiments.figures.papernot_steinke.figure_1 --out_dir=docs/figures/papernot_steinke

Takes 10 seconds on one core; with --quick (20 runs, 4 weights) 2 seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import make_blobs

from dpjax import plotting
from experiments.figures.figure import FULL, QUICK, FigureSpec
from experiments.figures.panels import legend_below, new_panels
from experiments.figures.rows import distinct, select

COLUMNS = {"run": "number", "outliers": "records", "alpha": "1", "accuracy": "share"}
RECORDS, SEED = 40, 6
OUTLIERS, OUTLIER = 8, (7.9, -8.0)
STEP, PASSES = 3e-4, 400
ALPHAS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 32, 40, 48, 56, 64)
QUICK_ALPHAS = (1, 8, 16, 64)


def the_records(outliers: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs (records, 2) and labels (records,) of -1 and +1, float64; outliers last."""
    inputs, classes = make_blobs(n_samples=RECORDS, centers=2, random_state=SEED)
    labels = np.append(2.0 * classes - 1, np.full(outliers, -1.0))
    return np.concatenate([inputs, np.tile(OUTLIER, (outliers, 1))]), labels


def train(
    inputs: np.ndarray, labels: np.ndarray, alphas: np.ndarray, runs: int, passes: int = PASSES
) -> tuple[np.ndarray, np.ndarray]:
    """Returns weights (runs, alphas, 2), intercepts (runs, alphas) by stochastic gradient descent.

    A run meets the records (records, 2) in an order of its own, the same for every alpha.
    """
    sources = [np.random.default_rng(run) for run in range(runs)]
    weights, intercepts = np.zeros((runs, len(alphas), 2)), np.zeros((runs, len(alphas)))
    for _ in range(passes):
        for order in np.transpose([source.permutation(len(labels)) for source in sources]):
            x, y = inputs[order][:, None], labels[order][:, None]
            margins = y * (np.sum(weights * x, axis=-1) + intercepts)
            push = np.where(margins < 1, STEP * alphas * y, 0.0)
            weights = (1 - 2 * STEP) * weights + push[..., None] * x
            intercepts = intercepts + push
    return weights, intercepts


def compute(size: str) -> list[dict]:
    """Returns one row per run, with or without outliers, and weight."""
    alphas = QUICK_ALPHAS if size == QUICK else ALPHAS
    rows = []
    for outliers in (0, OUTLIERS):
        inputs, labels = the_records(outliers)
        weights, intercepts = train(inputs, labels, np.array(alphas), 20 if size == QUICK else 400)
        sides = np.where(weights @ inputs.T + intercepts[..., None] >= 0, 1.0, -1.0)
        rows += [
            {"run": run, "outliers": outliers, "alpha": alpha, "accuracy": round(accuracy, 4)}
            for run, shares in enumerate(np.mean(sides == labels, axis=-1).tolist())
            for alpha, accuracy in zip(alphas, shares)
        ]
    return rows


def accuracies(rows: Sequence[Mapping], outliers: int) -> np.ndarray:
    """Returns (runs, alphas) accuracies, the weights increasing."""
    members = select(rows, outliers=outliers)
    return np.array([[row["accuracy"] for row in select(members, run=number)]
                     for number in distinct(members, "run")])  # fmt: skip


def draw(rows: Sequence[Mapping]) -> Figure:
    """Draws the mean accuracy with and without outliers, and the band of the quartiles."""
    figure, (axes,) = new_panels(1, height=3.6)
    alphas = distinct(rows, "alpha")
    records = f"{RECORDS} records"
    labels = {0: records, OUTLIERS: f"the same {records} and {OUTLIERS} outliers"}
    for outliers, label in labels.items():
        colour = plotting.PALETTE[1 if outliers else 0]
        table = accuracies(rows, outliers)
        mean = table.mean(axis=0)
        axes.plot(alphas, mean, color=colour, label=label)
        axes.fill_between(
            alphas, *np.quantile(table, [0.25, 0.75], axis=0), color=colour, alpha=0.15, linewidth=0
        )
        best = int(np.argmax(mean))
        axes.plot(alphas[best], mean[best], "*", color=colour, markersize=13)
    axes.set_xlabel("weight alpha of the hinge loss")
    axes.set_ylabel("accuracy on the training records")
    axes.set_title(f"mean and quartiles of {len(table)} runs; star: best weight")
    legend_below(figure, axes, columns=2)
    return figure


FIGURE = FigureSpec(
    "papernot_steinke", "figure_1", COLUMNS, {FULL: "10 s", QUICK: "2 s"}, draw, rows=compute
)

if __name__ == "__main__":
    FIGURE.run()
