r"""Figure 1: the path of the doubling loop, how many iterations it takes, and what it selects.

The paper's setting: 100 candidates with utilities uniform in (0, 1), k = 10 partitions, epsilon_0 =
0.1 an iteration, granularity 0.01, lower bound 0, over 1000 seeds. The loop ends in a few
iterations, and the paper concludes that tuning costs little. It does not show what the loop
selects, and there is its flaw (numbers in docs/figures.md): the small count says nothing about
utilities; some noise of 100 numbers always passes, and seven doublings pass 1.

The caption has the paths end at the left top. With the noise that the text asks for (Laplace, of
scale 2 on the threshold and 4 on the utilities, which lie in (0, 1)) all end at the right top, at
their largest step. With noise of 0.02 and 0.04 they turn back to the left at the top. Those are
what Python makes of `2/k*epsilon_0` and `4/k*epsilon_0`, so they may be the paper's: a guess, since
there is no published code. They are the noise of k = 1000, whose rows are drawn.

With k = 1000 the loop works: 0.959, and then it takes longer, 12 iterations (median; 21 at most).
An exponential mechanism at the same budget, one draw for all, does better at either k: its exact
mean is 0.742 at k = 10 and epsilon 0.7 (the seven iterations; 0.746 over these seeds), 0.976 at k =
1000 and epsilon 0.1 (the budget of ONE iteration of the loop; 0.975 over these seeds).

Top: the paper's picture, with the text's noise and with noise of 0.02 and 0.04. Every line is one
seed's path of (step, u) after each iteration, u the utility accumulated, from (1, 0); a hit moves
it up by the step, which then doubles, a miss halves the step. Steps are in units of the
granularity, on a scale of powers of two where the paper's is linear, and lines are shifted a little
so that equal paths stay visible. Red: the paper's bound, the zigzag of hit, miss, hit, ..., for as
many iterations as the longest path.
Below: histogram of iterations; the share of seeds whose selected candidate is at least so good.
Ours: k = 1000, utilities in (0, 0.5), the exponential mechanism, the two panels below.

  python -m experiments.figures.ding_wu.figure_1 --out_dir=docs/figures/ding_wu

Takes 4 seconds on one core; with --quick (100 seeds) 2 seconds. The utilities are invented:
nothing in the figure is private.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpjax import plotting
from dpjax.accounting.mechanisms.doubling import ThresholdLoop, threshold_levels
from experiments.figures.ding_wu import simulation
from experiments.figures.figure import FULL, QUICK, FigureSpec
from experiments.figures.panels import WIDTH, legend_below
from experiments.figures.rows import select

COLUMNS = {
    "selector": "name", "partitions": "partitions", "epsilon": "nats", "highest_utility": "utility",
    "seed": "number", "iterations": "iterations", "hits": "hits", "answers": "h or m each",
    "utility_selected": "utility", "utility_best": "utility", "utility_random": "utility",
}  # fmt: skip
DOUBLING, EXPONENTIAL = "doubling", "exponential"


@dataclasses.dataclass(frozen=True)
class Setting:
    """One selector in one setting, and how it is drawn."""

    selector: str
    partitions: int
    epsilon: float
    highest_utility: float
    label: str
    colour: str
    line: str = "-"

    @property
    def cells(self) -> dict:
        """The cells of a row that say which setting it is about."""
        names = ("selector", "partitions", "epsilon", "highest_utility")
        return {name: getattr(self, name) for name in names}


_BLUE, _RED, _GREEN, _PINK = plotting.PALETTE[:4]
SETTINGS = (
    Setting(DOUBLING, 10, 0.1, 1.0, "doubling, k = 10 (the paper's)", _BLUE),
    Setting(DOUBLING, 10, 0.1, 0.5, "same, utilities in (0, 0.5)", _PINK, "--"),
    Setting(DOUBLING, 1000, 0.1, 1.0, "doubling, k = 1000", _RED),
    Setting(EXPONENTIAL, 10, 0.7, 1.0, r"exponential, k = 10, $\varepsilon$ = 0.7", _GREEN, "--"),
    Setting(EXPONENTIAL, 1000, 0.1, 1.0, r"exponential, k = 1000, $\varepsilon$ = 0.1", _GREEN),
)


def compute(size: str) -> list[dict]:
    """Returns one row per setting and seed."""
    rows = []
    for setting in SETTINGS:
        for seed in range(100 if size == QUICK else simulation.SEEDS):
            if setting.selector == DOUBLING:
                found = simulation.loop(
                    seed,
                    partitions=setting.partitions,
                    epsilon=setting.epsilon,
                    highest_utility=setting.highest_utility,
                )
            else:
                found = simulation.exponential(
                    seed, partitions=setting.partitions, epsilon=setting.epsilon
                )
            utilities = {"selected": found.selected, "best": found.best, "random": found.random}
            rows.append(
                {
                    **setting.cells,
                    "seed": seed,
                    "iterations": found.trace.iterations,
                    "hits": found.trace.hits,
                    "answers": "".join("h" if hit else "m" for hit in found.trace.answers) or None,
                    # Six decimals keep the file small.
                    **{f"utility_{name}": _rounded(value) for name, value in utilities.items()},
                }
            )
    return rows


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def draw(rows: Sequence[Mapping]) -> Figure:
    """Draws the paths, the histogram of iterations, and how good the selected candidates are."""
    figure = Figure(figsize=(WIDTH, 8.2), layout="constrained")
    panels = figure.subplots(2, 2)
    for axes in panels.flat:
        plotting.style_axes(axes)
    loops = [setting for setting in SETTINGS if setting.selector == DOUBLING]
    titles = ("noise 2 and 4 (the text)", "noise 0.02 and 0.04 (a guess)")
    for axes, setting, title in zip(panels[0], (loops[0], loops[-1]), titles):
        _draw_paths(axes, select(rows, **setting.cells), title)
    counts, quality = panels[1]
    width = 0.8 / len(loops)
    for position, setting in enumerate(loops):
        members = select(rows, **setting.cells)
        values, times = np.unique([row["iterations"] for row in members], return_counts=True)
        # Each has its own place in the column, so that equal histograms stay visible.
        counts.bar(
            values + (position - 1) * width,
            100.0 * times / len(members),
            width,
            color=setting.colour,
            label=setting.label,
        )
    for setting in SETTINGS:
        if setting.highest_utility == 1.0:
            members = select(rows, **setting.cells)
            _draw_share(quality, members, "utility_selected", setting.label, setting)
    paper = select(rows, **SETTINGS[0].cells)
    for column, label, line in (
        ("utility_best", "best candidate", "-"),
        ("utility_random", "drawn at random", ":"),
    ):
        look = dataclasses.replace(SETTINGS[0], colour="#777777", line=line)
        _draw_share(quality, paper, column, label, look)
    counts.set_xlabel("iterations of the loop (its bound: 199)")
    counts.set_ylabel("seeds (%)")
    counts.set_title("iterations")
    counts.legend(loc="upper right")
    quality.set_xlabel("true utility of the selected candidate")
    quality.set_ylabel("seeds that select at least that (%)")
    quality.set_title("what was selected (legend below: mean utility)")
    quality.set_xlim(0, 1.01)
    quality.set_ylim(0, 103)
    figure.suptitle(f"{simulation.CANDIDATES} candidates of invented utilities, {len(paper)} seeds")
    # Below the panels: inside it would cover two of its lines.
    legend_below(figure, quality, columns=2)
    return figure


def path_of(answers: str, granularity: float = simulation.GRANULARITY) -> np.ndarray:
    """Returns the (step, u) of a loop after each answer, h or m, (answers + 1, 2), from (1, 0).

    Steps are in units of the granularity.
    """
    loop = ThresholdLoop(threshold_levels(granularity))
    points = [(loop.step, 0.0)]
    for answer in answers:
        loop.record(answer == "h")
        points.append((loop.step, loop.level * granularity))
    return np.array(points, float)


def _draw_paths(axes: Axes, members: Sequence[Mapping], title: str) -> None:
    """Draws every seed's path of step and u, and the zigzag that the paper's bound rests on."""
    shifts = np.linspace(-0.12, 0.12, len(members))  # Of the exponent of the step.
    for place, (row, shift) in enumerate(zip(members, shifts)):
        steps, levels = path_of(row["answers"]).T
        axes.plot(
            _places(steps) + shift, levels, color=_BLUE, linewidth=0.5, alpha=0.3, rasterized=True,
            label="a seed" if place == 0 else None,
        )  # fmt: skip
    longest = max(row["iterations"] for row in members)
    steps, levels = path_of(("hm" * longest)[:longest]).T
    axes.plot(
        _places(steps), levels, color="#cc0000", linewidth=2.5, label="hit, miss, hit, ... (bound)"
    )
    ticks = (0, 1, 2, 4, 8, 16, 32, 64, 128)
    axes.set_xticks(_places(np.array(ticks, float)), [str(tick) for tick in ticks])
    axes.axhline(1.0, color="#777777", linestyle=":", linewidth=1.5, label="largest utility")
    axes.set_xlabel("step (of granularity 0.01)")
    axes.set_ylabel("accumulated utility u")
    axes.set_title(f"paths, {title}")
    for line in axes.legend(loc="center left").get_lines():
        line.set(alpha=1.0, linewidth=1.5)


def _places(steps: np.ndarray) -> np.ndarray:
    """Where steps stand: their logarithm to base 2, and 0 one unit before 1."""
    return np.where(steps > 0, np.log2(np.maximum(steps, 1.0)), -1.0)


def _draw_share(axes, members: Sequence[Mapping], column: str, label: str, look: Setting) -> None:
    """Draws the share of the seeds with at least each utility; no selection counts as 0."""
    values = np.sort([row[column] or 0.0 for row in members])
    share = 100.0 * np.arange(len(values), 0, -1) / len(values)
    axes.plot(
        np.append(values, values[-1]),
        np.append(share, 0.0),
        color=look.colour,
        linestyle=look.line,
        label=f"{label} ({values.mean():.3f})",
    )


FIGURE = FigureSpec("ding_wu", "figure_1", COLUMNS, {FULL: "4 s", QUICK: "2 s"}, draw, rows=compute)

if __name__ == "__main__":
    FIGURE.run()
