"""Figure 2: Renyi divergence of the best of K runs, K logarithmic, of mean 10 to a million.

The paper's figure shows its bound (Theorem 2, Corollary 4) on the Renyi divergence against the
order, when each run is 0.1-zCDP and K follows the logarithmic law (eta = 0) of mean 10, 10^2, ...,
10^6, beside one run's 0.1 * order and naive composition of 10 runs, 10 * 0.1 * order. The left
panel is that figure: flat up to an order of 5.8 (mean 10) to 12.8 (mean 10^6), then close to a
line; 2.1622 and 4.9297 at order 2, 3.2237 and 5.2060 at order 20.

The right panel is ours: epsilon against delta for three of the means, from the paper's curve (by
its Lemma 14 at the best order) and from our bounds, which act on privacy profiles and have no
Renyi form. "Any 0.1-zCDP run" knows what the paper's bound knows and no more; "Gaussian run" knows
the exact profile of the Gaussian mechanism of this rho. At delta = 1e-6 and mean 10: 3.451, 3.009
and 2.741.

Differs from the paper: the right panel is added; orders go from 1.25 to 30, the paper's from 0 to
30.

  python -m experiments.figures.papernot_steinke.figure_2 --out_dir=docs/figures/papernot_steinke

Takes 3 seconds on one core; with --quick 2 seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dpjax import accounting
from experiments.figures.figure import FULL, QUICK, FigureSpec
from experiments.figures.panels import new_panels
from experiments.figures.papernot_steinke import setting
from experiments.figures.rows import distinct, select

COLUMNS = {
    "quantity": "name", "bound": "name", "mean": "runs", "order": "1", "delta": "probability",
    "value": "nats",
}  # fmt: skip
RENYI, EPSILON = "renyi_divergence", "epsilon"
ONE_RUN, NAIVE = "one_run", "naive"
NAIVE_RUNS = 10
LOGARITHMIC = next(member for member in setting.REPETITIONS if member.name == "logarithmic")
MEANS = (10.0, 1e2, 1e3, 1e4, 1e5, 1e6)
MEANS_OF_PROFILES = (10.0, 1e3, 1e6)


def compute(size: str) -> list[dict]:
    """Returns rows of Renyi divergence against order, and of epsilon against delta."""
    orders = {1.5, 2.0, 5.0, 10.0, 12.5, 15.0, 20.0, 25.0, 30.0}
    if size != QUICK:
        orders |= set(np.arange(1.25, 30.0, 0.25))
    orders = np.array(sorted(orders))
    curves = [(ONE_RUN, 1.0, setting.base_run(setting.PAPER).rdp(orders))]
    naive = accounting.repeat(setting.base_run(setting.PAPER), NAIVE_RUNS)
    curves.append((NAIVE, float(NAIVE_RUNS), naive.rdp(orders)))
    for mean in MEANS:
        selection = setting.guarantee(LOGARITHMIC, mean, setting.PAPER)
        curves.append((setting.PAPER, mean, selection.rdp(orders)))
    rows = [
        _row(RENYI, bound, mean, order, None, divergence)
        for bound, mean, divergences in curves
        for order, divergence in zip(orders, divergences)
    ]
    deltas = 10.0 ** np.linspace(-9, -2, 8 if size == QUICK else 29)
    rows += [
        _row(EPSILON, bound, mean, None, delta, setting.epsilon(LOGARITHMIC, mean, bound, delta))
        for mean in MEANS_OF_PROFILES
        for bound in setting.BOUNDS
        for delta in deltas
    ]
    return rows


def _row(*cells: str | float | None) -> dict:
    return dict(zip(COLUMNS, cells, strict=True))


def draw(rows: Sequence[Mapping]) -> Figure:
    """Draws the divergences on the left, the epsilons on the right."""
    figure, (left, right) = new_panels(2, height=4.0)
    curves = select(rows, quantity=RENYI)
    selections = select(curves, bound=setting.PAPER)
    all_means = distinct(selections, "mean")
    shades = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.85, len(all_means)))
    colours = dict(zip(all_means, shades))
    lines = [
        (
            select(selections, mean=mean),
            colours[mean],
            "-",
            f"mean $10^{{{round(np.log10(mean))}}}$",
        )
        for mean in all_means
    ]
    lines.append((select(curves, bound=ONE_RUN), "#333333", "--", "one run"))
    lines.append((select(curves, bound=NAIVE), "#888888", ":", "naive"))
    highest = 1.07 * max(row["value"] for row in selections)  # The naive line leaves the panel.
    for members, colour, style, label in lines:
        orders, values = zip(*((row["order"], row["value"]) for row in members))
        left.plot(orders, values, color=colour, linestyle=style)
        # Named at its end: a legend would cover a line.
        place = (orders[-1] * 1.015, values[-1])
        if values[-1] > highest:
            inside = max(i for i, value in enumerate(values) if value <= 0.93 * highest)
            place, label = (orders[inside] + 0.6, values[inside]), f"naive, {NAIVE_RUNS} runs"
        left.text(*place, label, color=colour, va="center")
    left.set_ylim(0, highest)
    left.set_xlim(1, 1.32 * max(row["order"] for row in curves))
    left.set_xlabel("order of the Renyi divergence")
    left.set_ylabel("Renyi divergence (nats)")
    left.set_title("the paper's bound")
    profiles = select(rows, quantity=EPSILON)
    for mean in distinct(profiles, "mean"):
        for bound in distinct(profiles, "bound"):
            members = select(profiles, mean=mean, bound=bound)
            right.plot(
                [row["delta"] for row in members],
                [row["value"] for row in members],
                color=colours[mean],
                linestyle=setting.BOUND_LINES[bound],
            )
    right.set_xscale("log")
    right.set_ylim(0, None)
    right.set_xlabel("$\\delta$")
    right.set_ylabel("$\\varepsilon$ (nats)")
    right.set_title("epsilon, means as on the left")
    styles = [
        Line2D([], [], color="#333333", linestyle=setting.BOUND_LINES[bound], label=title)
        for bound, title in setting.BOUND_TITLES.items()
    ]
    right.legend(handles=styles, loc="lower left")
    figure.suptitle(f"best of K runs, each {setting.RHO:g}-zCDP; K logarithmic")
    return figure


FIGURE = FigureSpec(
    "papernot_steinke", "figure_2", COLUMNS, {FULL: "3 s", QUICK: "2 s"}, draw, rows=compute
)

if __name__ == "__main__":
    FIGURE.run()
