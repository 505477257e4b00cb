r"""Table 1: what tuning costs: ways to compose the loop's iterations, and ways to tune.

The paper's table sets its method beside naive composition and random repetitions. Of a search over
candidates S, each run (epsilon, delta)-DP, it says:

  method     full search   runs      private runs in it   epsilon in all
  naive      yes           |S|       required             of order sqrt(|S|) epsilon
  RandTune   no            K random  required             2 or 3 epsilon
  its own    yes           |S|       not required         epsilon + order sqrt(U) epsilon_0

with U = (u* - u0) / g, the utility gained in units of the granularity.

What it leaves out: "2 or 3 epsilon" is for pure epsilon; |S| runs of its own are |S| k trainings on
parts and one on all records; u* is known only after the search, so that the last cost is none that
could be stated beforehand (a cap can, or u* = 1). Here the costs are numbers, at delta = 1e-5.

Left: epsilon of T iterations of epsilon_0 = 0.1, by basic composition, by advanced
composition (the paper's: sqrt(2 T log(1/delta)) e + T e (e^e - 1)), by Renyi divergences, and by
optimal composition (what `accounting.doubling_loop` states). Expected:

     T    basic   advanced    Renyi   optimal
     7     0.7     1.343      0.699     0.699
    20     2.0     2.356      1.716     1.598
   100    10.0     5.850      4.615     4.307
   199    19.9     8.862      6.960     6.480

T = 7 is what happens in the paper's setting (figure 1), where its own composition is worse than
adding up; 199 is what must be charged if no cap was fixed beforehand.

Right: 16 candidates for the MNIST run of Papernot & Steinke (Poisson lots of 256 of 60,000,
noise multiplier 1.1, 14,062 steps; 2.38 for one run). Selections train their candidates on
partitions, which protect by themselves, and then one run privately; random repetitions train all
privately. `guarantee` is 0 for the paper's own figure, the cost of the iterations that happened,
which guarantees nothing.

  python -m experiments.figures.ding_wu.table_1 --out_dir=docs/figures/ding_wu

Takes 3 seconds on one core; --quick leaves nothing out. Nothing in it depends on data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from dpjax import accounting, plotting
from dpjax.accounting.mechanisms.doubling import advanced_composition
from experiments.figures.figure import FULL, QUICK, FigureSpec
from experiments.figures.panels import new_panels
from experiments.figures.rows import distinct, select

EPSILON = 0.1
DELTA = 1e-5
ITERATIONS = (7, 20, 100, 199)
CANDIDATES = 16
LOT_SIZE, RECORDS, NOISE_MULTIPLIER, STEPS = 256, 60_000, 1.1, 14_062
"""Of the run that is tuned on the right."""

COMPOSITION, PROCEDURE = "composition", "procedure"
COLUMNS = {
    "part": "name", "method": "name", "iterations": "iterations", "delta": "probability",
    "epsilon": "nats", "guarantee": "0 or 1",
}  # fmt: skip
COMPOSITIONS = {
    "basic": "basic",
    "advanced": "advanced\n(the paper's)",
    "renyi": "Renyi\ndivergences",
    "optimal": "optimal\n(ours)",
}


def compute(size: str) -> list[dict]:
    """Returns one row per composition and number of iterations, and one per procedure."""
    del size  # Nothing to leave out.
    rows = []
    for count in ITERATIONS:
        loop = accounting.doubling_loop(EPSILON, count)
        values = {
            "basic": count * EPSILON,
            "advanced": advanced_composition(EPSILON, count, DELTA),
            "renyi": loop.epsilon(DELTA, method="rdp"),
            "optimal": loop.epsilon(DELTA),
        }
        rows += [_row(COMPOSITION, name, count, value) for name, value in values.items()]
    return rows + [
        _row(PROCEDURE, name, None, value, name != PAPERS) for name, value in procedures().items()
    ]


PAPERS = "doubling, 7 iterations happened, the paper's composition"


def procedures() -> dict[str, float]:
    """Returns epsilon at DELTA of ways to tune over 16 candidates, the training of one included."""
    run = accounting.dp_sgd(
        sampling_probability=LOT_SIZE / RECORDS, noise_multiplier=NOISE_MULTIPLIER, steps=STEPS
    )
    own_bound = accounting.doubling_loop(EPSILON, granularity=0.01)
    capped = accounting.doubling_loop(EPSILON, 20)
    segments = accounting.doubling_loop(EPSILON, granularity=0.01, variant="segments", hits=10)
    one_draw = accounting.exponential_mechanism(0.7)
    law = accounting.Geometric(mean=float(CANDIDATES))
    guarantees = {
        "one run, no tuning": run,
        f"all {CANDIDATES} runs composed": accounting.repeat(run, CANDIDATES),
        f"best of K runs, K geometric of mean {CANDIDATES}": accounting.best_of(run, law),
        "doubling, its own bound of 199 iterations": accounting.compose(own_bound, run),
        "doubling, capped at 20 iterations": accounting.compose(capped, run),
        "doubling in segments, capped at 10 hits": accounting.compose(segments, run),
        "exponential mechanism, epsilon 0.7": accounting.compose(one_draw, run),
    }
    values = {name: guarantee.epsilon(DELTA) for name, guarantee in guarantees.items()}
    return values | {PAPERS: values["one run, no tuning"] + advanced_composition(EPSILON, 7, DELTA)}


def _row(
    part: str, method: str, iterations: int | None, epsilon: float, guarantee: bool = True
) -> dict:
    cells = part, method, iterations, DELTA, epsilon, int(guarantee)
    return dict(zip(COLUMNS, cells, strict=True))


def draw(rows: Sequence[Mapping]) -> Figure:
    """Draws both parts as tables, with a bar for each procedure."""
    figure, (table, bars) = new_panels(2, width=13.0, height=4.4)
    compositions = select(rows, part=COMPOSITION)
    counts = distinct(compositions, "iterations")
    cells = [
        [
            f"{row['epsilon']:.3f}"
            for method in COMPOSITIONS
            for row in select(compositions, iterations=count, method=method)
        ]
        for count in counts
    ]
    table.axis("off")
    drawn = table.table(
        cells,
        rowLabels=[f"T = {count}" for count in counts],
        colLabels=list(COMPOSITIONS.values()),
        cellLoc="center",
        bbox=(0.08, 0.1, 0.92, 0.8),
    )
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(11)
    for (line, _), cell in drawn.get_celld().items():
        cell.set_edgecolor("#cccccc")
        if line == 0:
            cell.set_facecolor("#eeeeee")
            cell.set_fontsize(9.5)
    table.set_title(r"$\varepsilon$ of T iterations, $\varepsilon_0$ = 0.1, $\delta = 10^{-5}$")
    members = sorted(select(rows, part=PROCEDURE), key=lambda row: -row["epsilon"])
    colours = [plotting.PALETTE[0] if row["guarantee"] else plotting.PALETTE[1] for row in members]
    drawn_bars = bars.barh(
        [
            # In two lines, clear of the table.
            row["method"] if row["guarantee"] else row["method"].replace(", the", ",\nthe")
            for row in members
        ],
        [row["epsilon"] for row in members],
        color=colours,
    )
    labels = [
        f"{row['epsilon']:.2f}{'' if row['guarantee'] else ': NO guarantee'}" for row in members
    ]
    bars.bar_label(drawn_bars, labels, padding=3, fontsize=10.5)
    bars.set_xlim(0, 1.15 * members[0]["epsilon"])
    bars.tick_params(axis="y", labelsize=10)
    bars.grid(False, axis="y")
    bars.set_xlabel(r"$\varepsilon$ of the whole tuning at $\delta = 10^{-5}$ (nats)")
    bars.set_title(
        f"tuning over {CANDIDATES} candidates; a run: DP-SGD on MNIST,\n"
        f"{STEPS:,} steps, lots of {LOT_SIZE} of {RECORDS:,}, "
        f"noise multiplier {NOISE_MULTIPLIER:g}",
        fontsize=10.5,
    )
    return figure


FIGURE = FigureSpec("ding_wu", "table_1", COLUMNS, {FULL: "3 s", QUICK: "3 s"}, draw, rows=compute)

if __name__ == "__main__":
    FIGURE.run()
