r"""Selectors at equal total cost: what is released, against k and epsilon_0, really trained.

Not in the paper. 16 learning rates from 1e-3 to 10 (logistic regression, momentum 0.9, clip norm 1)
on digits and Adult; every selector spends epsilon 2 at delta 1e-5 in all, on selection AND final
training. Vertical: mean test accuracy of the released model, with two standard errors over the
replays below.

  doubling     Ding & Wu's loop, granularity 0.05, capped at 12 iterations of epsilon_0 each;
  segments     the same, fresh threshold noise after a hit only, capped at 6 hits of epsilon_0 each;
  exponential  one draw of epsilon_0 over the same utilities;
  random repetitions   every candidate trained privately, best of K by a noisy validation score, K
               geometric of mean 10, at most 64: neither k nor epsilon_0, a level;
  random candidate     one drawn without looking, trained with the whole budget: a level;
  best candidate       the best of the 16 with the whole budget: what hindsight knows, a level;
  no noise     the largest utility wins: what these utilities are worth at best, a level for each k.

The lines end where the selection alone would take more than 95% of the budget, and leave the
picture below where what is left for the training is too little. Best candidate and no noise are not
private; all numbers are read off test data and belong to the curator.

Design: every candidate is trained once on every partition (`tuning.partition_models`, a rehearsal
of DP-SGD), and privately at every noise that some selector leaves room for, 8 times with other
keys. Then each selection is replayed 1000 times over these models, with the tuning's own selectors
and their exact noise, the candidates in a new random order every time. The rehearsal's noise is
here that of a final training with the whole budget, one for all selectors; `tuning.Doubling`
rehearses with its own.

What it shows: see docs/figures.md.

  python -m experiments.figures.ding_wu.figure_selectors --data_dir=... \
      --out_dir=docs/figures/ding_wu
  python -m experiments.figures.ding_wu.figure_selectors --redraw --out_dir=...

Takes five minutes on one CPU core that is busy with other work; --redraw a minute; --quick (digits
alone, fewer epochs, k and epsilon_0) 15 seconds. Trained models' results go to
figure_selectors_partitions.csv and figure_selectors_finals.csv as they finish; a stopped program
goes on from there, and --redraw replays the selections from these files alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpjax import plotting
from experiments.figures.ding_wu import (
    selector_replays,
    selector_settings,
    selector_trainings,
)
from experiments.figures.figure import FULL, QUICK, DataFolders, FigureSpec
from experiments.figures.panels import DATA_SETS, WIDTH, delta_in_words, legend_below
from experiments.figures.rows import RowFolder, distinct, select

REPLAYS = 1000
CANDIDATES = len(selector_settings.RATES)
LINES = {
    selector_settings.EXPONENTIAL: ("exponential mechanism", plotting.PALETTE[2], "o"),
    selector_settings.SEGMENTS: ("doubling in segments", plotting.PALETTE[3], "s"),
    selector_settings.DOUBLING: ("doubling (Ding & Wu)", plotting.PALETTE[0], "^"),
}
LEVELS = {
    # The broad one stays in sight where no noise selects it.
    selector_replays.BEST: ("best candidate", "#bbbbbb", "-", 5),
    selector_replays.NOISELESS: ("no noise: largest utility", "#222222", "--", 1.5),
    selector_settings.REPETITIONS: ("random repetitions", plotting.PALETTE[1], "-", 1.5),
    selector_settings.RANDOM: ("random candidate", "#777777", ":", 1.5),
}


def draw(rows: Sequence[Mapping]) -> Figure:
    """Draws accuracy against epsilon_0: a row for each data set, a column for each k."""
    datasets = distinct(rows, "dataset")
    counts = {
        name: [k for k in distinct(select(rows, dataset=name), "partitions") if k is not None]
        for name in datasets
    }
    columns = max(map(len, counts.values()))
    figure = Figure(figsize=(WIDTH, 2.7 * len(datasets) + 1.2), layout="constrained")
    grid = figure.subplots(len(datasets), columns, sharex=True, sharey="row", squeeze=False)
    for line, name in zip(grid, datasets):
        levels = [row["accuracy"] for row in select(rows, dataset=name, epsilon_0=None)]
        margin = 0.08 * (max(levels) - min(levels))
        # A selection that leaves little for the training falls far below: it leaves the picture.
        line[0].set_ylim(min(levels) - 0.6 * (max(levels) - min(levels)), max(levels) + margin)
        for axes, partitions in zip(line, counts[name]):
            plotting.style_axes(axes)
            _draw_panel(axes, select(rows, dataset=name), partitions)
        line[0].set_ylabel(f"{DATA_SETS[name]}: test accuracy")
    for axes in grid[-1]:
        axes.set_xlabel(r"$\varepsilon_0$ (nats)")
    figure.suptitle(
        rf"{CANDIDATES} learning rates, selection and training cost $\varepsilon$ = "
        rf"{rows[0]['epsilon']:g} at {delta_in_words(rows[0]['delta'])}; test data, not private"
    )
    legend_below(figure, grid[0][-1], columns=3 if columns > 2 else 2)
    return figure


def _draw_panel(axes: Axes, rows: Sequence[Mapping], partitions: int) -> None:
    """Draws one data set at one number of partitions."""
    for name, (label, colour, style, width) in LEVELS.items():
        count = partitions if name == selector_replays.NOISELESS else None
        (row,) = select(rows, selector=name, partitions=count)
        axes.axhline(
            row["accuracy"], color=colour, linestyle=style, linewidth=width, label=label, zorder=1.5
        )
    below = []
    for name, (label, colour, marker) in LINES.items():
        members = select(rows, selector=name, partitions=partitions)
        axes.errorbar(
            [row["epsilon_0"] for row in members],
            [row["accuracy"] for row in members],
            [2.0 * row["accuracy_standard_error"] for row in members],
            color=colour,
            marker=marker,
            markersize=5,
            label=label,
        )
        below += [
            (f"{name} at {row['epsilon_0']:g}: {row['accuracy']:.3f}", colour)
            for row in members
            if row["accuracy"] < axes.get_ylim()[0]
        ]
    if below:
        below.append(("below the panel:", "#333333"))
    for place, (words, colour) in enumerate(below):
        axes.text(
            0.02, 0.02 + 0.075 * place, words, color=colour, transform=axes.transAxes, zorder=5,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
        )  # fmt: skip
    drawn = select(rows, selector=selector_settings.EXPONENTIAL, partitions=partitions)
    # The smallest epsilon_0 at which noise does not exceed the range of utilities.
    one = drawn[0]["noise_ratio"] * drawn[0]["epsilon_0"]
    if one >= 0.5 * drawn[0]["epsilon_0"]:
        label = "noise as large as utilities"
        axes.axvline(one, color="#333333", linewidth=1, linestyle=(0, (1, 3)), label=label)
    axes.set_xscale("log")
    axes.set_title(f"k = {partitions} partitions")


def train(folder: RowFolder, options: DataFolders) -> None:
    """Trains what the folder does not hold yet."""
    selector_trainings.train(selector_settings.STUDIES[folder.size], folder, options)


def derive(folder: RowFolder) -> list[dict]:
    """Replays the selections over the folder's trained rows."""
    return selector_replays.replay(*map(folder.read, selector_trainings.FILES), REPLAYS)


FIGURE = FigureSpec(
    "ding_wu",
    "figure_selectors",
    selector_replays.COLUMNS,
    {FULL: "five minutes on a busy core", QUICK: "15 s"},
    draw,
    train=train,
    derive=derive,
    trained=selector_trainings.FILES,
    options=DataFolders(),
)

if __name__ == "__main__":
    FIGURE.run()
