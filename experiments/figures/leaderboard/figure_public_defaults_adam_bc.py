r"""Where the public default of DP-AdamBC comes from: noise in an output, and the variance floor.

`tuning.adam_bc_defaults` makes the floor of a parameter's second moment the variance of the noise
(a floor of 1 here, as deviations go) and the learning rate what leaves noise of 5 in
an output at most. Both numbers are varied, on public problems only (`public_problems`), beside the
default of momentum. Shown is the accuracy less that one's. Expected: at floor 1 and noise 5 within
.3 percentage points of it for linear models, 1.1 and 1.3 above it for the net on digits; and hardly
a change from floor 1 to 2, where the noise drowns nearly every second moment and DP-AdamBC is
momentum with another scale.

  python -m experiments.figures.leaderboard.figure_public_defaults_adam_bc \
    --out_dir=docs/figures/leaderboard

--quick: digits and one drawn problem, one epsilon. Accuracies are on test records and not private;
all records are public.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from dpjax import accounting, plotting, training
from dpjax.tuning.problem import public_defaults
from dpjax.tuning.problem.problem import POISSON, RunShape
from experiments.figures.figure import DEFAULT_FOLDERS, FULL, QUICK, DataFolders, FigureSpec
from experiments.figures.leaderboard import public_problems
from experiments.figures.leaderboard.figure_public_defaults import (
    DELTA,
    accuracies,
    inputs_of,
)
from experiments.figures.leaderboard.public_problems import PROBLEMS, Problem
from experiments.figures.panels import delta_in_words, legend_below
from experiments.figures.rows import RowFolder, distinct, select

OUTPUT_NOISES = (1.25, 2.5, 5.0, 10.0)
FLOORS = (0.5, 1.0, 2.0)
"""Root of the variance floor, in deviations of the noise in a gradient."""

NAMES = {
    QUICK: public_problems.QUICK,
    FULL: (
        "digits",
        "digits, 128 hidden",
        "20 normal, 5,000",
        "50 uniform, 20,000",
        "13 categories, 20,000",
    ),
}
EPSILONS = {QUICK: (2.0,), FULL: (0.5, 2.0)}
SEEDS = 2
MOMENTUM, ADAM_BC = "momentum", "adam_bc"
COLUMNS = {
    "problem": "name", "records": "records", "inputs": "1", "epsilon": "nats", "optimizer": "name",
    "floor": "1", "output_noise": "1", "learning_rate": "1", "seed": "1", "accuracy": "1",
}  # fmt: skip


def train(folder: RowFolder, options: DataFolders = DEFAULT_FOLDERS) -> None:
    """Trains the problems that the folder's rows do not hold yet."""
    rows = folder.read(FIGURE.name)
    for name in NAMES[folder.size]:
        if select(rows, problem=name):
            continue
        rows += _trained(name, PROBLEMS[name], EPSILONS[folder.size], options)
        folder.write(FIGURE.name, COLUMNS, rows)
        folder.report(name)


def _trained(
    name: str, problem: Problem, epsilons: Sequence[float], options: DataFolders
) -> list[dict]:
    arrays = problem.load(options)
    records, inputs = len(arrays.labels), inputs_of(arrays)
    rows = []
    for epsilon in epsilons:
        usual = public_defaults.public_defaults(records, inputs, epsilon, DELTA)
        own = public_defaults.adam_bc_defaults(records, inputs, epsilon, DELTA)
        shape = RunShape(own.lot_size, own.steps, POISSON, records, records)
        noise = accounting.calibrate(shape.price, epsilon=epsilon, delta=DELTA)
        of_all = {"clip_norm": own.clip_norm, "noise_multiplier": noise}
        rule = public_defaults.OUTPUT_NOISE_OF_ADAM_BC
        rate = usual.learning_rate * rule / public_defaults.OUTPUT_NOISE
        tried = [(MOMENTUM, 0.0, rule, rate, {"momentum": usual.momentum})] + [
            (
                ADAM_BC,
                floor,
                output_noise,
                own.learning_rate * floor * output_noise / rule,
                {"variance_floor": own.variance_floor * floor**2},
            )
            for floor in FLOORS
            for output_noise in OUTPUT_NOISES
        ]
        accuracy = {
            optimizer: accuracies(problem, arrays, shape, training.OPTIMIZERS[optimizer].make())
            for optimizer in (MOMENTUM, ADAM_BC)
        }
        for optimizer, floor, output_noise, rate, others in tried:
            for seed in range(SEEDS):
                given = {"learning_rate": rate} | others | of_all
                found = accuracy[optimizer](given, seed)
                numbers = records, inputs, epsilon, optimizer, floor, output_noise, rate, seed
                rows.append(dict(zip(COLUMNS, (name, *numbers, found), strict=True)))
    return rows


def gains(rows: Sequence[Mapping]) -> dict[tuple, float]:
    """Mean accuracy less momentum's default, in points, by (problem, epsilon, floor, noise)."""
    found: dict[tuple, list[float]] = {}
    for row in rows:
        name = row["problem"], row["epsilon"], row["floor"], row["output_noise"]
        found.setdefault(name, []).append(100 * row["accuracy"])
    means = {name: float(np.mean(values)) for name, values in found.items()}
    usual = {name[:2]: value for name, value in means.items() if name[2] == 0.0}
    return {name: value - usual[name[:2]] for name, value in means.items() if name[2]}


def draw(rows: Sequence[Mapping]) -> Figure:
    """A panel for each problem: what is gained on momentum's default, by the noise in an output."""
    names, found = distinct(rows, "problem"), gains(rows)
    across = min(3, len(names))
    down = -(-len(names) // across)
    figure = Figure(figsize=(2.9 * across + 0.8, 3.0 * down + 1.4), layout="constrained")
    panels = np.atleast_1d(figure.subplots(down, across, sharey=True)).ravel()
    noises = sorted({name[3] for name in found})
    floors = sorted({name[2] for name in found})
    epsilons = sorted(distinct(rows, "epsilon"))
    for axes, name in zip(panels, names, strict=False):
        plotting.style_axes(axes)
        for style, epsilon in zip(("-o", ":s"), epsilons, strict=False):
            for color, floor in zip(("C0", "C1", "C2"), floors, strict=False):
                gained = [found[name, epsilon, floor, one] for one in noises]
                label = f"epsilon {epsilon:g}, floor {floor:g}"
                axes.plot(noises, gained, style, color=color, label=label, markersize=3.5)
        axes.axvline(public_defaults.OUTPUT_NOISE_OF_ADAM_BC, color="0.4", linewidth=0.9)
        axes.axhline(0.0, color="0.4", linewidth=0.9)
        axes.set_xscale("log")
        axes.margins(x=0.08)
        axes.set_xticks(noises, [f"{one:g}" for one in noises], fontsize=10)
        axes.minorticks_off()
        axes.set_ylim(-10.0, 7.0)
        axes.set_title(public_problems.title(name, rows), fontsize=11)
        axes.set_xlabel("noise in an output\n(standard deviations, at most)")
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    for axes in panels[: len(names) : across]:
        axes.set_ylabel("accuracy less momentum's\ndefault, percentage points")
    legend_below(figure, panels[0], columns=3, fontsize=10)
    figure.suptitle(
        f"DP-AdamBC on public problems at {delta_in_words(DELTA)}, mean accuracy over seeds;\n"
        "floor: root of the variance floor, in deviations of the noise in a gradient\n"
        "vertical line: the noise of the public default; horizontal line: momentum's default",
        fontsize=11,
    )
    return figure


def summary(rows: Sequence[Mapping]) -> list[str]:
    """What each floor and output noise gains on momentum's default, on average and at worst."""
    found: dict[tuple, list[float]] = {}
    for (_, _, floor, output_noise), value in gains(rows).items():
        found.setdefault((floor, output_noise), []).append(value)
    return [
        f"floor {floor:g}, output noise {noise:g}: {np.mean(values):+.2f} points on average, "
        f"{np.min(values):+.2f} at worst"
        for (floor, noise), values in sorted(found.items())
    ]


FIGURE = FigureSpec(
    paper="leaderboard",
    name="figure_public_defaults_adam_bc",
    columns=COLUMNS,
    takes={QUICK: "20 seconds", FULL: "6 minutes"},
    train=train,
    draw=draw,
    options=DEFAULT_FOLDERS,
    summary=summary,
)

if __name__ == "__main__":
    FIGURE.run()
