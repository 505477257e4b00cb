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

Above: epsilon of T iterations of epsilon_0 = 0.1, by basic composition, by advanced
composition (the paper's: sqrt(2 T log(1/delta)) e + T e (e^e - 1)), by Renyi divergences, and by
optimal composition (what `accounting.doubling_loop` states). Expected:

     T    basic   advanced    Renyi   optimal
     7     0.7     1.343      0.699     0.699
    20     2.0     2.356      1.716     1.598
   100    10.0     5.850      4.615     4.307
   199    19.9     8.862      6.960     6.480

T = 7 is what happens in the paper's setting (figure 1), where its own composition is worse than
adding up; 199 is what must be charged if no cap was fixed beforehand.

Below: 16 candidates for the MNIST run of Papernot & Steinke (Poisson lots of 256 of 60,000,
noise multiplier 1.1, 14,062 steps; 2.38 for one run). Selections train their candidates on
partitions, which protect by themselves, and then one run privately; random repetitions train all
privately. `guarantee` is 0 for the paper's own figure, the cost of the iterations that happened,
which guarantees nothing.

  python -m experiments.figures.ding_wu.table_1 --out_dir=docs/figures/ding_wu

Takes 3 seconds on one core; --quick leaves nothing out. Nothing in it depends on data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpjax import accounting
from dpjax.accounting.mechanisms.doubling import advanced_composition
from experiments.figures.figure import FULL, QUICK, FigureSpec
from experiments.figures.panels import WIDTH
from experiments.figures.rows import distinct, select

EPSILON = 0.1
DELTA = 1e-5
ITERATIONS = (7, 20, 100, 199)
CANDIDATES = 16
LOT_SIZE, RECORDS, NOISE_MULTIPLIER, STEPS = 256, 60_000, 1.1, 14_062
"""Of the run that is tuned below."""

COMPOSITION, PROCEDURE = "composition", "procedure"
COLUMNS = {
    "part": "name", "method": "name", "iterations": "iterations", "delta": "probability",
    "epsilon": "nats", "guarantee": "0 or 1",
}  # fmt: skip
COMPOSITIONS = {
    "basic": "basic",
    "advanced": "advanced (paper's)",
    "renyi": "Renyi",
    "optimal": "optimal (ours)",
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
    """Sets both parts as tables."""
    compositions = select(rows, part=COMPOSITION)
    counts = distinct(compositions, "iterations")
    by_method = [
        [f"{count}"]
        + [
            f"{select(compositions, iterations=count, method=method)[0]['epsilon']:.3f}"
            for method in COMPOSITIONS
        ]
        for count in counts
    ]
    procedures = [
        [row["method"], f"{row['epsilon']:.2f}", "yes" if row["guarantee"] else "NO"]
        for row in sorted(select(rows, part=PROCEDURE), key=lambda row: row["epsilon"])
    ]
    figure = Figure(figsize=(WIDTH, 0.27 * (len(by_method) + len(procedures)) + 1.7),
                    layout="constrained")  # fmt: skip
    upper, lower = figure.subplots(2, height_ratios=(len(by_method) + 1, len(procedures) + 1))
    _draw_table(upper, ["iterations", *COMPOSITIONS.values()], by_method, (0.16, *[0.21] * 4))
    upper.set_title(r"$\varepsilon$ of the loop, $\varepsilon_0$ = 0.1, $\delta = 10^{-5}$")
    _draw_table(
        lower, ["tuning", r"$\varepsilon$ in all", "guarantee"], procedures, (0.68, 0.16, 0.16)
    )
    lower.set_title(f"{CANDIDATES} candidates, tuning and one private run on MNIST")
    return figure


def _draw_table(
    axes: Axes, heads: Sequence[str], cells: Sequence[Sequence[str]], widths: Sequence[float]
) -> None:
    axes.axis("off")
    drawn = axes.table(
        cells, colLabels=heads, colWidths=widths, cellLoc="left", colLoc="left", bbox=(0, 0, 1, 1)
    )
    drawn.auto_set_font_size(False)
    for (line, _), cell in drawn.get_celld().items():
        cell.PAD = 0.012 / cell.get_width()  # As much in every column.
        cell.set(edgecolor="#cccccc", facecolor="#eeeeee" if line == 0 else "none")


FIGURE = FigureSpec("ding_wu", "table_1", COLUMNS, {FULL: "3 s", QUICK: "3 s"}, draw, rows=compute)

if __name__ == "__main__":
    FIGURE.run()
