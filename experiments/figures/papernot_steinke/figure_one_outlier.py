r"""One outlier: a regularisation weight tuned without privacy tells whether it was there.

Ours, after the paper's figure 1 (`figure_1`), sharper than it: one record suffices, not eight, the
training has no randomness that could blur what is revealed, and accuracy is measured on fresh
records. The best weight differs with and without the outlier, so whoever learns the chosen weight
alone, and no model, learns whether that record was in the data.

What is trained here. A linear soft-margin support vector machine (scikit-learn's SVC, intercept
not regularised), minimising weight/2 * ||w||^2 + mean of max(0, 1 - y (w.x + b)), on 60 records,
30 of each class y = -1, +1: x = (y + 0.8 g1, y/10 + 0.05 g2), g1 and g2 independent standard
normal. The first coordinate alone separates the classes at 89%; the second, of small scale, at
98%, but takes a large weight vector. The outlier is one more record, x = (6, 3) labelled -1.
Accuracy is measured on 2,000 fresh records of the same law, the same ones with and without the
outlier; the tuned weight is the most accurate of 21 between 1e-4 and 10, the largest of equals.
All of it is repeated on 100 independent draws of the data (seeds 0 to 99).

Training and choice are deterministic given the data, so one draw where the two weights differ
already refutes every finite epsilon (at any delta below 1). There is no privacy bound to draw:
nothing in this figure is private, which is its point.

  python -m experiments.figures.papernot_steinke.figure_one_outlier \
      --out_dir=docs/figures/papernot_steinke

Takes 20 seconds on one core; with --quick (5 draws, 11 weights) 2 seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from sklearn.svm import SVC

from dpjax import plotting
from experiments.figures.figure import FULL, QUICK, FigureSpec
from experiments.figures.panels import new_panels
from experiments.figures.rows import distinct, select

COLUMNS = {
    "draw": "number", "outlier": "0 or 1", "regularisation_weight": "1", "accuracy": "share",
}  # fmt: skip
OUTLIER = (np.array([6.0, 3.0]), -1.0)
RECORDS_PER_CLASS = 30
TEST_RECORDS_PER_CLASS = 1000
CENTRE, SCALE = np.array([1.0, 0.1]), np.array([0.8, 0.05])


def draw_records(generator: np.random.Generator, per_class: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs (2 * per_class, 2) and labels (2 * per_class,) of -1 and +1, float64."""
    labels = np.repeat([1.0, -1.0], per_class)
    inputs = labels[:, None] * CENTRE + SCALE * generator.standard_normal((2 * per_class, 2))
    return inputs, labels


def train(weight: float, inputs: np.ndarray, labels: np.ndarray) -> SVC:
    """Returns the machine of least weight/2 * ||w||^2 + mean hinge loss; labels are -1, +1."""
    # scikit-learn minimises ||w||^2 / 2 + C * sum of hinge losses.
    return SVC(kernel="linear", C=1 / (weight * len(labels))).fit(inputs, labels)


def compute(size: str) -> list[dict]:
    """Returns one row per draw, with or without the outlier, and weight."""
    weights = np.logspace(-4, 1, 11 if size == QUICK else 21)
    rows = []
    for seed in range(5 if size == QUICK else 100):
        generator = np.random.default_rng(seed)
        inputs, labels = draw_records(generator, RECORDS_PER_CLASS)
        test = draw_records(generator, TEST_RECORDS_PER_CLASS)
        extended = np.vstack([inputs, OUTLIER[0]]), np.append(labels, OUTLIER[1])
        for outlier, training in ((0, (inputs, labels)), (1, extended)):
            rows += [
                {
                    "draw": seed,
                    "outlier": outlier,
                    "regularisation_weight": weight,
                    "accuracy": train(weight, *training).score(*test),
                }
                for weight in weights
            ]
    return rows


def tuned_weights(rows: Sequence[Mapping], outlier: int) -> list[float]:
    """Returns each draw's most accurate weight, the largest of equals: what tuning would reveal."""
    best = {}
    for row in select(rows, outlier=outlier):
        candidate = (row["accuracy"], row["regularisation_weight"])
        best[row["draw"]] = max(best.get(row["draw"], candidate), candidate)
    return [weight for _, weight in best.values()]


def draw(rows: Sequence[Mapping]) -> Figure:
    """Draws accuracy against weight, and how often each weight is chosen over the draws."""
    figure, (curves, counts) = new_panels(2)
    weights = np.array(sorted(distinct(rows, "regularisation_weight")))
    draws = distinct(rows, "draw")
    half_step = np.sqrt(weights[1] / weights[0])
    edges = np.append(weights / half_step, weights[-1] * half_step)
    for outlier, label in ((0, "without the outlier"), (1, "with the outlier")):
        colour = plotting.PALETTE[outlier]
        # (draws, weights)
        table = np.array(
            [
                [
                    row["accuracy"]
                    for row in sorted(
                        select(rows, outlier=outlier, draw=member),
                        key=lambda row: row["regularisation_weight"],
                    )
                ]
                for member in draws
            ]
        )
        low, middle, high = np.quantile(table, [0.1, 0.5, 0.9], axis=0)
        curves.plot(weights, middle, color=colour, label=label)
        curves.fill_between(weights, low, high, color=colour, alpha=0.2, linewidth=0)
        best = np.argmax(middle)
        curves.plot(weights[best], middle[best], "*", color=colour, markersize=13)
        counts.hist(tuned_weights(rows, outlier), bins=edges, color=colour, alpha=0.75, label=label)
    for axes in (curves, counts):
        axes.set_xscale("log")
    curves.set_xlabel("regularisation weight")
    curves.set_ylabel("accuracy on fresh records")
    curves.set_title(f"median and 10-90% band of {len(draws)} draws")
    curves.legend(loc="lower left")
    counts.set_xlabel("tuned regularisation weight")
    counts.set_ylabel(f"draws of the data (of {len(draws)})")
    counts.set_title("what the tuned weight alone reveals")
    counts.legend(loc="upper center")
    counts.set_ylim(0, 1.2 * counts.get_ylim()[1])
    return figure


FIGURE = FigureSpec(
    "papernot_steinke",
    "figure_one_outlier",
    COLUMNS,
    {FULL: "20 s", QUICK: "2 s"},
    draw,
    rows=compute,
)

if __name__ == "__main__":
    FIGURE.run()
