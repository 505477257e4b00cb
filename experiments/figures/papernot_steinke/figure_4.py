"""Figure 4: the expected number of runs that a privacy budget buys, for different laws of K.

The paper's figure shows E[K], on the vertical axis, against epsilon at delta = 1e-6, from its Renyi
bounds, each run 0.1-zCDP, for several laws of K and for naive composition of E[K] runs. The left
panel is that figure: at mean 10, 3.066 (eta = -0.5), 3.451 (logarithmic), 4.068 (geometric), 4.607
(Poisson), 7.766 (naive); at mean 1000, 5.840 (geometric). With eta fixed the cost grows with log
E[K]; Poisson's and naive composition's with E[K].

The other two panels are ours: the tight bound for any 0.1-zCDP run (the same knowledge;
logarithmic 10: 3.009, geometric 10: 3.246), and for a Gaussian run, whose exact profile is known
(2.741, 2.892; Poisson 10: 3.652; geometric 1000: 4.53). Naive composition is exact in the last.

Differs from the paper: the other two panels; the values of eta and the range of E[K], 1 to 1000,
are ours. At E[K] = 1, K is 1 for every eta. Poisson's curve includes the event K = 0, without which
the paper's Theorem 6 is false for means below 1.

  python -m experiments.figures.papernot_steinke.figure_4 --out_dir=docs/figures/papernot_steinke

Takes a minute and a half on one core; with --quick 10 seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from experiments.figures.figure import FULL, QUICK, FigureSpec
from experiments.figures.papernot_steinke import setting, trade_off

COLUMNS = trade_off.LAW_COLUMNS | trade_off.EPSILON_COLUMNS


def compute(size: str) -> list[dict]:
    """Returns one row per law of K and mean."""
    return [
        trade_off.law_cells(member, mean)
        for member in setting.REPETITIONS
        for mean in setting.means(member, size == QUICK)
    ]


def draw(rows: Sequence[Mapping]) -> Figure:
    """Draws the mean of K against epsilon, as the paper does."""
    figure, panels = trade_off.draw_panels(rows, "epsilon", "mean")
    for axes in panels:
        axes.set_yscale("log")
        axes.set_xlim(0, 8)
        axes.set_xlabel(setting.epsilon_label(rows[0]["delta"]))
    panels[0].set_ylim(1, 1e3)
    panels[0].set_ylabel("expected number of runs E[K]")
    return figure


FIGURE = FigureSpec(
    "papernot_steinke",
    "figure_4",
    COLUMNS,
    {FULL: "a minute and a half", QUICK: "10 s"},
    draw,
    rows=compute,
)

if __name__ == "__main__":
    FIGURE.run()
