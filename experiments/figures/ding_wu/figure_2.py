r"""Figure 2: iterations of the doubling loop against the length of the climb, and their cost.

The paper's figure: iterations against the ratio of the utility gained to the granularity,
(u* - u_0)/g, from 10 to 2000; its point is growth like a logarithm where the worst case grows in
proportion. Simulated as figure 1 is (100 uniform utilities, k = 10, epsilon_0 = 0.1, 1000 seeds),
with g = 1/ratio and u_0 = 0, so that u*, about 0.99, makes the axis (1 - u_0)/g. The median is
ceil(log2(ratio + 1)) at every ratio, the 99th percentile too, the largest of 1000 two more.

That growth is the noise's doing: at k = 10 the answers do not depend on the utilities (figure 1).
With k = 1000 they do, and the loop climbs to u*, turns, and halves its steps: 9 to 13 iterations
at ratios up to 200, 35 at most. (Above, the last doubling lands so close to 1, at 511/500, that
noise of scale 0.04 mostly carries it past, and the median falls back to the logarithm.)

Right, ours: what these iterations cost at delta = 1e-5. The paper charges the iterations that
happened, by advanced composition: 1.0 to 1.7 for the medians, and no guarantee, since the count
depends on the data. Sound is the loop's own bound of 2 ratio - 1 iterations (1.59 at ratio 10,
46.1 at 2000), the segment variant's of `ratio` hits (0.99 and 28.3), or a cap fixed beforehand (20
iterations: 1.60), all by optimal composition.

  python -m experiments.figures.ding_wu.figure_2 --out_dir=docs/figures/ding_wu

Takes 7 seconds on one core; with --quick (3 ratios) 4 seconds. The utilities are invented:
nothing in the figure is private. The paper prints no numbers of its figure: the
points are simulated from its protocol, and nearly logarithmic as there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from dpjax import accounting, plotting
from dpjax.accounting.mechanisms.doubling import advanced_composition
from experiments.figures.ding_wu import simulation
from experiments.figures.figure import FULL, QUICK, FigureSpec
from experiments.figures.panels import new_panels
from experiments.figures.rows import select

RATIOS = (10, 20, 50, 100, 200, 500, 1000, 2000)
PARTITIONS = (10, 1000)
DELTA = 1e-5
CAP = 20
COLUMNS = {
    "partitions": "partitions", "ratio": "1", "seeds": "seeds", "iterations_median": "iterations",
    "iterations_p99": "iterations", "iterations_max": "iterations", "ceil_log2": "iterations",
    "iterations_bound": "iterations", "delta": "probability", "epsilon_paper_at_median": "nats",
    "epsilon_bound": "nats", "epsilon_segments": "nats", "epsilon_cap": "nats",
}  # fmt: skip


def compute(size: str) -> list[dict]:
    """Returns one row per number of partitions and ratio."""
    rows = []
    for partitions in PARTITIONS:
        for ratio in (10, 100, 1000) if size == QUICK else RATIOS:
            granularity = 1.0 / ratio
            iterations = [
                simulation.loop(
                    seed, partitions=partitions, granularity=granularity
                ).trace.iterations
                for seed in range(simulation.SEEDS)
            ]
            median = float(np.median(iterations))
            rows.append(
                {
                    "partitions": partitions,
                    "ratio": ratio,
                    "seeds": simulation.SEEDS,
                    "iterations_median": median,
                    "iterations_p99": np.percentile(iterations, 99),
                    "iterations_max": max(iterations),
                    "ceil_log2": math.ceil(math.log2(ratio + 1)),
                    "iterations_bound": accounting.max_iterations(granularity=granularity),
                    "delta": DELTA,
                    "epsilon_paper_at_median": advanced_composition(
                        simulation.EPSILON, round(median), DELTA
                    ),
                    "epsilon_bound": _epsilon(granularity=granularity),
                    "epsilon_segments": _epsilon(granularity=granularity, variant="segments"),
                    "epsilon_cap": _epsilon(granularity=granularity, iterations=CAP),
                }
            )
    return rows


def _epsilon(**settings) -> float:
    return accounting.doubling_loop(simulation.EPSILON, **settings).epsilon(DELTA)


def draw(rows: Sequence[Mapping]) -> Figure:
    """Draws iterations, and what they cost, against the ratio."""
    figure, (counts, costs) = new_panels(2, height=5.0)
    blue, red, green, pink = plotting.PALETTE[:4]
    for partitions, colour in zip(PARTITIONS, (blue, red)):
        members = select(rows, partitions=partitions)
        ratios = [row["ratio"] for row in members]
        for column, marker, line, name in (
            ("iterations_median", "o", "-", "median"),
            ("iterations_max", "^", ":", "largest of 1000"),
        ):
            counts.plot(
                ratios,
                [row[column] for row in members],
                marker=marker,
                linestyle=line,
                color=colour,
                label=f"k = {partitions}{' (the paper)' if partitions == 10 else ''}: {name}",
            )
    members = select(rows, partitions=PARTITIONS[0])
    ratios = [row["ratio"] for row in members]
    counts.plot(
        ratios,
        [row["ceil_log2"] for row in members],
        "+",
        color="#333333",
        markersize=13,
        markeredgewidth=1.8,
        label=r"$\lceil \log_2(\mathrm{ratio} + 1) \rceil$",
    )
    for column, label, colour, line in (
        ("epsilon_bound", "loop's own bound, 2 ratio - 1", blue, "-"),
        ("epsilon_segments", "segments' own bound, ratio hits", green, "-"),
        ("epsilon_cap", f"cap of {CAP} iterations, fixed beforehand", pink, "-"),
        ("epsilon_paper_at_median", "the paper's at its median: NO guarantee", red, "--"),
    ):
        costs.plot(
            ratios,
            [row[column] for row in members],
            marker="o",
            color=colour,
            linestyle=line,
            label=label,
        )
    for axes in (counts, costs):
        axes.set_xscale("log")
        axes.set_xlabel(r"ratio $(1 - u_0)\,/\,g$")
    counts.set_ylabel("iterations of the loop")
    counts.set_ylim(bottom=0)
    counts.set_title(r"100 uniform utilities, $\varepsilon_0$ = 0.1")
    counts.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18))
    costs.set_yscale("log")
    costs.set_ylabel(r"$\varepsilon$ of the selection at $\delta = 10^{-5}$ (nats)")
    costs.set_title("what the selection costs")
    costs.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18))
    return figure


FIGURE = FigureSpec("ding_wu", "figure_2", COLUMNS, {FULL: "7 s", QUICK: "4 s"}, draw, rows=compute)

if __name__ == "__main__":
    FIGURE.run()
