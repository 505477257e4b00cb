r"""Figure 8 on MNIST, paired: how far the wide net is ahead of the deep one, by epochs.

Avent et al., PoPETs 2020: on MNIST the net 128-64 beats the one of 1,000 units at small epsilon.
Figure 8's fronts here are of two epochs, where the paper's are of up to 400. This is the test of
whether epochs reverse the order: both nets are trained at the same 16 settings, drawn from the
paper's laws, for 1, 4, 12, 40, 100 and 400 epochs.

Differs from the paper: settings are drawn, not searched; at mid size the first 10,000 records, at
most 40 epochs, one repetition. Lots are of the paper's size, so 40 epochs have the steps of 7 of
the paper's.

  python -m experiments.figures.dpareto.figure_8_epochs --size=mid --data_dir=... --out_dir=...

It takes an hour of a core with --size=mid and goes on where it was stopped; with --quick (digits)
a minute. Full, all records, takes days (an estimate: not run).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from dpjax import pareto, plotting
from experiments.figures.dpareto import problems, trained_searches
from experiments.figures.dpareto.trained_searches import LABELS, MNIST, SETTING_COLUMNS, Size
from experiments.figures.figure import FULL, MID, QUICK, DataFolders, FigureSpec
from experiments.figures.panels import legend_below, new_panels
from experiments.figures.rows import RowFolder, distinct, interval, select

WIDE, DEEP = MNIST
COLUMNS = {
    "problem": "name", "setting": "number", "records": "records", "repetitions": "trainings",
    **{name: trained_searches.UNITS[name] for name in SETTING_COLUMNS},
    "epsilon": "nats", "utility": "share",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Amount:
    """How much is trained: settings, numbers of epochs, and of a run what a `Size` says."""

    settings: int = 16
    epochs: tuple[int, ...] = (1, 4, 12, 40, 100, 400)
    size: Size = Size()


AMOUNTS = {
    FULL: Amount(),
    MID: Amount(epochs=(1, 4, 12, 40), size=Size(repetitions=1, records=10_000)),
    QUICK: Amount(4, (1, 2), Size(repetitions=2, lot_size=256)),
}


def settings(amount: Amount, epochs: int) -> pareto.Settings:
    """The settings of one number of epochs, name -> (settings,); else the same for all."""
    wide = problems.PROBLEMS[WIDE]
    _, laws = trained_searches.capped(wide.domain, wide.laws, amount.size)
    drawn = laws.sample(amount.settings, np.random.default_rng(0))
    return drawn | {"epochs": np.full(amount.settings, epochs)}


def train(folder: RowFolder, options: DataFolders) -> None:
    """Trains both nets for each number of epochs that the folder's rows do not hold yet."""
    amount = AMOUNTS[folder.size]
    dataset = trained_searches.dataset_of(WIDE, folder.size)
    nets = {
        problem: trained_searches.trained_accuracy(problem, dataset, amount.size, options)
        for problem in MNIST
    }
    for epochs in amount.epochs:
        for problem, accuracy in nets.items():
            rows = folder.read("figure_8_epochs")
            if select(rows, problem=problem, epochs=epochs):
                continue
            chosen = settings(amount, epochs)
            found = accuracy(chosen, np.arange(amount.settings))
            found = np.nan_to_num(found, nan=accuracy.failed_as)
            epsilons = pareto.TrainingCost(accuracy.shapes, problems.DELTA)(chosen)
            made = [
                {
                    "problem": problem,
                    "setting": place,
                    "records": accuracy.shapes.dataset_size,
                    "repetitions": amount.size.repetitions,
                    **{name: float(f"{chosen[name][place]:.7g}") for name in SETTING_COLUMNS},
                    "epsilon": float(f"{epsilons[place]:.7g}"),
                    "utility": float(np.mean(found[place])),
                }
                for place in range(amount.settings)
            ]
            folder.write("figure_8_epochs", COLUMNS, [*rows, *made])
            folder.report(f"{problem}, {epochs} epochs: accuracy {np.mean(found):.4f}")


def leads(rows: Sequence[Mapping], epochs: int) -> tuple[np.ndarray, np.ndarray]:
    """Epsilons and the wide net's accuracy minus the deep one's, (settings,) each."""
    wide, deep = (
        sorted(select(rows, problem=name, epochs=epochs), key=lambda row: row["setting"])
        for name in (WIDE, DEEP)
    )
    pairs = list(zip(wide, deep))
    return (
        np.array([row["epsilon"] for row, _ in pairs]),
        np.array([one["utility"] - other["utility"] for one, other in pairs]),
    )


def draw(rows: Sequence[Mapping]) -> Figure:
    """Draws the lead against epochs, its mean over the settings, and against epsilon."""
    figure, (by_epochs, by_epsilon) = new_panels(2)
    every = [
        value for value in distinct(rows, "epochs") if select(rows, problem=DEEP, epochs=value)
    ]
    found = [leads(rows, value) for value in every]
    means, halves = np.array([interval(lead) for _, lead in found]).T
    by_epochs.plot(every, [lead for _, lead in found], color="#999999", linewidth=0.7, alpha=0.6)
    by_epochs.errorbar(
        every, means, halves, color=plotting.PALETTE[0], marker="o", capsize=3,
        label="mean of the settings, 95% interval",
    )  # fmt: skip
    by_epochs.set_xscale("log")
    by_epochs.set_xticks(every, [f"{value:g}" for value in every])
    by_epochs.minorticks_off()
    by_epochs.set_xlabel("epochs")
    by_epochs.set_ylabel(f"accuracy, {LABELS[WIDE]} minus {LABELS[DEEP]}")
    for place, (value, (epsilons, lead)) in enumerate(zip(every, found)):
        by_epsilon.scatter(
            epsilons, lead, s=18, color=plotting.PALETTE[place % len(plotting.PALETTE)],
            label=f"{value:g} epoch{'s'[: value > 1]}",
        )  # fmt: skip
    by_epsilon.set_xscale("log")
    by_epsilon.set_xlabel("$\\varepsilon$ (nats)")
    for axes in (by_epochs, by_epsilon):
        axes.axhline(0.0, color="#333333", linewidth=0.8)
    legend_below(figure, (by_epochs, by_epsilon), 5)
    figure.suptitle(f"Both nets at equal settings ({trained_searches.NOT_PRIVATE})")
    return figure


def summary(rows: Sequence[Mapping]) -> list[str]:
    """One line for each number of epochs."""
    lines = []
    for epochs in distinct(rows, "epochs"):
        mean, half = interval(leads(rows, epochs)[1])
        lines.append(f"{epochs:g} epochs: {100 * mean:+.1f} points (+- {100 * half:.1f})")
    return lines


FIGURE = FigureSpec(
    "dpareto",
    "figure_8_epochs",
    COLUMNS,
    {FULL: "days (an estimate)", MID: "an hour", QUICK: "a minute"},
    draw,
    train=train,
    options=DataFolders(),
    summary=summary,
    committed=MID,
)

if __name__ == "__main__":
    FIGURE.run()
