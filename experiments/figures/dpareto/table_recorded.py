"""The 64 settings whose results the authors published, priced and trained again.

With their code Avent et al. published results of 64 settings on Adult (30,956 training records,
delta 1e-5, Apache-2.0, https://github.com/amzn/differential-privacy-bayesian-optimization): 32
drawn at random and two grids of 16. `recorded_settings.csv` holds them with the epsilons and mean
accuracies that they recorded, to four digits, the settings to three. Here the same settings are
priced by the classic conversion that they used and by the tight bound, and trained again: logistic
regression by DP-Adam, ten repetitions each, from their starting weights.

Expected: the same epsilons to 0.013 (47 of 64 to 1e-4); what is left comes of the settings, rounded
to three digits there: with all digits of the noise they agree to 5e-7
(`tests/pareto/test_oracles.py`). Accuracies differ by no more than repetitions do
(docs/figures.md): the same training.

Computed from data without protection: not a private output.

  python -m experiments.figures.dpareto.table_recorded --data_dir=... --out_dir=docs/figures/dpareto

Takes two minutes on one core; with --quick (the prices of ten settings, nothing trained, no data) 5
seconds.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from dpjax import pareto, plotting
from experiments.figures.dpareto import maps, problems, trained_searches
from experiments.figures.figure import FULL, MID, QUICK, DataFolders, FigureSpec
from experiments.figures.panels import DATA_SETS, new_panels

RECORDS = 30_956
REPETITIONS = 10
PROBLEM = "adult_logistic_regression_adam"
SETTINGS = ("epochs", "lot_size", "learning_rate", "clip_norm", "noise_multiplier")
DATA_SET = DATA_SETS[problems.PROBLEMS[PROBLEM].dataset]
COLUMNS = {
    "data_set": "name", "records": "records",
    "epochs": "epochs", "lot_size": "records", "learning_rate": "1", "clip_norm": "gradient",
    "noise_multiplier": "clip norms", "epsilon_authors": "nats", "epsilon_classic": "nats",
    "epsilon_tight": "nats", "accuracy_authors": "share", "accuracy": "share",
    "accuracy_standard_error": "share", "repetitions": "runs",
}  # fmt: skip


def recorded() -> dict[str, np.ndarray]:
    """Returns the authors' settings and results, name -> (64,)."""
    path = pathlib.Path(__file__).with_name("recorded_settings.csv")
    table = np.genfromtxt(path, delimiter=",", names=True, dtype=None, encoding="utf-8")
    whole = ("epochs", "lot_size")
    names = (*SETTINGS, "epsilon_authors", "accuracy_authors")
    return {name: table[name].astype(int if name in whole else float) for name in names}


def compute(size: str, options: DataFolders) -> list[dict]:
    """Returns one row per setting; the quick size trains nothing and leaves accuracies empty."""
    table = recorded()
    if size == QUICK:
        table = {name: values[::7] for name, values in table.items()}
    settings = {name: table[name] for name in SETTINGS}
    shapes = pareto.RunShapes(RECORDS)
    for method, column in ((trained_searches.CLASSIC, "epsilon_classic"), (None, "epsilon_tight")):
        extra = () if method is None else (method,)
        table[column] = np.asarray(pareto.TrainingCost(shapes, problems.DELTA, *extra)(settings))
    number = len(table["epochs"])
    accuracies = np.full((number, 2), np.nan)
    if size != QUICK:
        trainer = trained_searches.Trainer(PROBLEM, MID, options)
        trainer.accuracy.repetitions = REPETITIONS
        # A diverged run guesses.
        found = np.nan_to_num(trainer.accuracy(settings, np.arange(number)), nan=0.5)
        error = found.std(axis=1, ddof=1) / REPETITIONS**0.5
        accuracies = np.stack([found.mean(axis=1), error], axis=1)
    rows = []
    for place in range(number):
        cells = {name: float(f"{values[place]:.7g}") for name, values in table.items()}
        trained = [None if np.isnan(one) else float(f"{one:.6g}") for one in accuracies[place]]
        cells |= {"accuracy": trained[0], "accuracy_standard_error": trained[1]}
        cells |= {"data_set": DATA_SET, "records": RECORDS}
        cells["repetitions"] = 0 if size == QUICK else REPETITIONS
        rows.append({name: cells[name] for name in COLUMNS})
    return rows


def draw(rows: Sequence[Mapping]) -> Figure:
    """Draws our epsilons and accuracies against the authors'."""
    figure, (costs, quality) = new_panels(2)
    theirs = maps.column(rows, "epsilon_authors")
    ends = np.array([0.8 * theirs.min(), 1.25 * theirs.max()])
    costs.plot(ends, ends, color="#999999", linewidth=1)
    for column, label, style in (
        ("epsilon_classic", "the same conversion", "o"),
        ("epsilon_tight", "tight", "D"),
    ):
        look = {"color": plotting.PALETTE[style == "D"], "markersize": 5, "fillstyle": "none"}
        costs.plot(theirs, maps.column(rows, column), style, label=label, **look)
    costs.set_xscale("log")
    costs.set_yscale("log")
    costs.set_xlabel("epsilon that the authors recorded")
    costs.set_ylabel("epsilon here, delta = 1e-5")
    where = f"{rows[0]['data_set']}, {rows[0]['records']:,} records"
    costs.set_title(f"{len(rows)} settings, LogReg+Adam")
    costs.legend(loc="upper left")
    accuracies = maps.column(rows, "accuracy_authors")
    ends = np.array([accuracies.min() - 0.01, accuracies.max() + 0.01])
    quality.plot(ends, ends, color="#999999", linewidth=1)
    quality.errorbar(
        accuracies,
        maps.column(rows, "accuracy"),
        2 * maps.column(rows, "accuracy_standard_error"),
        fmt="o",
        color=plotting.PALETTE[0],
        markersize=4,
        linewidth=1,
    )
    quality.set_xlabel("mean accuracy that the authors recorded")
    quality.set_ylabel("mean accuracy here")
    quality.set_title(f"two standard errors of {rows[0]['repetitions']:g} repetitions")
    figure.suptitle(where)
    return figure


def summary(rows: Sequence[Mapping]) -> list[str]:
    """Returns how far ours are from the authors' numbers."""
    column = {name: maps.column(rows, name) for name in COLUMNS
              if name not in ("data_set", "records", "repetitions")}  # fmt: skip
    off = np.abs(column["epsilon_classic"] - column["epsilon_authors"])
    ratio = np.median(column["epsilon_tight"] / column["epsilon_authors"])
    lines = [
        f"epsilons: {np.sum(off <= 1e-4)} of {len(rows)} within 1e-4, {off.max():.4f} at most; "
        f"tight / theirs {ratio:.3f} in the median"
    ]
    difference = column["accuracy"] - column["accuracy_authors"]
    if not np.isnan(difference).any():
        deviation = column["accuracy_standard_error"].mean() * REPETITIONS**0.5
        lines.append(
            f"accuracies: {difference.mean():+.4f} in the mean, root mean square "
            f"{np.mean(difference**2) ** 0.5:.4f}, {np.abs(difference).max():.4f} at most; a "
            f"repetition's standard deviation {deviation:.4f}"
        )
    return lines


FIGURE = FigureSpec(
    "dpareto",
    "table_recorded",
    COLUMNS,
    {FULL: "two minutes", QUICK: "5 s"},
    draw,
    rows=compute,
    options=DataFolders(),
    summary=summary,
)

if __name__ == "__main__":
    FIGURE.run()
