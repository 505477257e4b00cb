"""Figure 1: the output perturbation example - epsilon and error over the domain, and the front.

Logistic regression on Adult by stochastic gradient descent, Gaussian noise on the final parameters
(`output_perturbation_example`): regularisation gamma in [1e-4, 1], noise sigma in
[0.1, 10], both on a logarithmic grid of 55 values, ten epochs, 50 runs a setting, epsilon at delta
= 1e-6, the authors' division of Adult (LIBSVM's a1a.t to train, 30,956 records; a1a to test).
Top: epsilon and classification error over the domain. Below: the Pareto front, and the settings
that make it.

The rows hold epsilon twice, with our sensitivity 2 / (gamma n) and with the paper's 4 / (gamma n):
the same parameters cost about half with ours. They hold the error twice too: the mean of 50 noisy
runs, as in the paper, and the exact mean over the noise of those 50 trainings. Expected, on a1a:

  hypervolume at (10, 1)    our epsilon   the paper's epsilon
  50 runs                   8.328         8.293
  exact over the noise      8.323         8.286

The error on the front falls from 0.5, a guess, below epsilon 1e-4, over 0.24, the share of the
smaller class, at 0.01, to 0.16 at 10.

Computed from the training and test data without protection: a picture for the curator of the data
(here a public research set), not a private output.

Differs from the paper: our sensitivity, the exact means; ten epochs without early stopping.

  python -m experiments.figures.dpareto.figure_1 --data_dir=... --out_dir=docs/figures/dpareto

Takes 3 minutes on 4 CPU cores; with --quick (digits, odd or even: 13 x 13, 10 runs) 10 seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

import experiments.data_sets  # noqa: F401 - registers what `data.load` may name.
from dpjax import data, plotting
from dpjax.pareto import fronts
from experiments.figures.dpareto import maps, output_perturbation_example
from experiments.figures.dpareto.output_perturbation_example import OutputPerturbationExample
from experiments.figures.figure import DEFAULT_FOLDERS, FULL, QUICK, DataFolders, FigureSpec
from experiments.figures.panels import legend_below

COLUMNS = {
    "dataset": "name", "records": "records", "repetitions": "runs", "delta": "probability",
    "regularisation": "1", "noise_std": "parameters", "epsilon": "nats", "epsilon_paper": "nats",
    "error": "share", "error_exact": "share",
}  # fmt: skip
TITLES = {"a1a": "Adult (a1a)", "digits": "digits"}
"""Name for `data.load` -> name in headings."""

ANTI_IDEAL = (10.0, 1.0)
REGULARISATION = maps.GridAxis("regularisation", "regularisation gamma")
NOISE_STD = maps.GridAxis("noise_std", "noise sigma")


def load_example(name: str, folders: DataFolders, **options) -> OutputPerturbationExample:
    """Returns the example on `a1a` (the paper's division of Adult) or on `digits`, odd or even.

    Norms are bounded by public numbers: an a1a record has 14 ones at most, a digit 64 pixels of at
    most 1.
    """
    loaded = data.load(name, **folders.folders)
    norm_bound = {"a1a": 14.0, "digits": 64.0}[name] ** 0.5
    return OutputPerturbationExample.from_records(
        loaded.train.inputs,
        loaded.train.labels % 2 == 1,
        loaded.test.inputs,
        loaded.test.labels % 2 == 1,
        norm_bound=norm_bound,
        **options,
    )


def evaluate(
    name: str,
    number: int,
    repetitions: int,
    options: DataFolders = DEFAULT_FOLDERS,
    *,
    progress=None,
) -> list[dict]:
    """Returns one row per setting of a square grid.

    Args:
      name: `a1a` or `digits`.
      number: values of each hyperparameter.
      repetitions: runs a setting.
      options: where the data are.
      progress: called with epochs done and their number.
    """
    ours = load_example(name, options)
    paper = load_example(name, options, lipschitz=2.0)
    settings = output_perturbation_example.grid(number)
    source = np.random.default_rng(2)  # Of orders and noise: another seed moves points slightly.
    different, which = np.unique(settings["regularisation"], return_inverse=True)
    trained = ours.train(different, repetitions, source=source, progress=progress)
    trained, noise_std = trained[which], settings["noise_std"]
    noisy = ours.noisy_accuracies(trained, noise_std, source=source).mean(axis=1)
    exact = ours.expected_accuracies(trained, noise_std).mean(axis=1)
    table = {
        **settings,
        "epsilon": ours.epsilons(settings),
        "epsilon_paper": paper.epsilons(settings),
        "error": 1 - noisy,
        "error_exact": 1 - exact,
    }
    return maps.rows_of(
        table,
        dataset=name,
        records=len(ours.train_inputs),
        repetitions=repetitions,
        delta=ours.delta,
    )


def data_in_words(row: Mapping) -> str:
    """Data set and size, from any of the figure's rows."""
    return f"{TITLES[row['dataset']]}, {row['records']:,} training records"


def draw(rows: Sequence[Mapping]) -> Figure:
    """Draws the two maps, the fronts, and where the exact front lies in the domain."""
    figure, panels = maps.new_square(height=6.8)
    epsilons = maps.column(rows, "epsilon")
    exact = maps.column(rows, "error_exact")
    grid_axes = (REGULARISATION, NOISE_STD)
    maps.map_of_epsilons(panels[0, 0], rows, *grid_axes, epsilons, "epsilon")
    maps.draw_map(panels[0, 1], rows, *grid_axes, exact, "classification error", unit="share")
    axes = panels[1, 0]
    colours = plotting.PALETTE
    repetitions = rows[0]["repetitions"]
    for error, epsilon, label, colour, width in (
        ("error_exact", "epsilon", "exact", colours[6], 3.0),
        ("error", "epsilon", f"{repetitions} runs", colours[1], 1.2),
        ("error_exact", "epsilon_paper", "paper's epsilon", colours[0], 1.8),
    ):
        costs, errors = maps.column(rows, epsilon), maps.column(rows, error)
        volume = maps.hypervolume(costs, errors, ANTI_IDEAL)
        maps.draw_front(
            axes, costs, errors, color=colour, linewidth=width, label=f"{label}: {volume:.3f}"
        )
    axes.set_xscale("log")
    axes.set_xlabel(maps.epsilon_label(rows[0]["delta"]))
    axes.set_ylabel("classification error")
    axes.set_title("Pareto front, hypervolume at (10, 1)")
    legend_below(figure, axes, 3)
    on_front = fronts.non_dominated(np.stack([epsilons, exact], axis=1))
    title = "settings of the exact front"
    maps.draw_inputs(panels[1, 1], rows, *grid_axes, on_front, epsilons, title)
    figure.suptitle(
        f"{data_in_words(rows[0])}, {repetitions} runs per setting; not a private output"
    )
    return figure


def compute(size: str, options: DataFolders = DEFAULT_FOLDERS) -> list[dict]:
    """Returns the figure's rows: `evaluate` at its two sizes, epochs printed as they pass."""
    return evaluate(
        *(("digits", 13, 10) if size == QUICK else ("a1a", 55, 50)),
        options,
        progress=lambda done, every: print(f"epoch {done} of {every}", flush=True),
    )


FIGURE = FigureSpec(
    "dpareto",
    "figure_1",
    COLUMNS,
    {FULL: "3 minutes on 4 CPU cores", QUICK: "10 s"},
    draw,
    rows=compute,
    options=DataFolders(),
)

if __name__ == "__main__":
    FIGURE.run()
