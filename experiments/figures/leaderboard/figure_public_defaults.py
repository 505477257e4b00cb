r"""Where the public default's learning rate comes from: accuracy against the noise in an output.

`tuning.public_defaults` fixes the standard deviation of the noise that a run leaves in an output
whose inputs have size 1. Here that number is varied, on public problems only (`public_problems`):
digits, MNIST as pixels and as scattering features, linear models and nets, and data drawn here.
Shown is how far the accuracy is below the best noise of the same problem and epsilon, with lots of
1/16 of the records and 320 steps. Expected: at 5 within one percent of the best for linear models,
whatever the epsilon and the number of records (1.2 on digits at epsilon 0.5); a net on few records
wants less (2.5 on digits).

  python -m experiments.figures.leaderboard.figure_public_defaults \
    --out_dir=docs/figures/leaderboard

--quick: digits and one drawn problem, 2 epsilons. Accuracies are on test records and not private;
all records are public.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from dpjax import accounting, models, training
from dpjax.tuning.problem import public_defaults
from dpjax.tuning.problem.problem import POISSON
from dpjax.tuning.problem.run_settings import RunShape
from experiments.figures.figure import DEFAULT_FOLDERS, FULL, QUICK, DataFolders, FigureSpec
from experiments.figures.leaderboard import public_problems
from experiments.figures.leaderboard.public_problems import PROBLEMS, Arrays, Problem
from experiments.figures.panels import new_panels
from experiments.figures.rows import RowFolder, distinct, select

DELTA = 1e-5
OUTPUT_NOISES = (0.625, 1.25, 2.5, 5.0, 10.0, 20.0)
CHOSEN = 5.0
"""For the last iterate under global clipping, which is what these rows are of."""
EPSILONS = {QUICK: (0.5, 2.0), FULL: (0.5, 1.0, 2.0, 4.0)}
COLUMNS = {
    "problem": "name", "records": "records", "inputs": "1", "epsilon": "nats",
    "lots_in_the_data": "1", "steps": "1", "noise_multiplier": "1", "output_noise": "1",
    "learning_rate": "1", "seed": "1", "accuracy": "1",
}  # fmt: skip
LOTS = ((16, 320), (16, 160), (64, 960))
"""Lots in the data, and steps; those after the first at epsilon 2 alone."""

_MUCH = 5.0
"""Percentage points below the best that have the darkest colour."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """One problem under one law of lots, and the epsilons it is tried at."""

    name: str
    lots: int
    steps: int
    epsilons: tuple[float, ...]


def settings(size: str) -> Iterator[Setting]:
    """What is trained."""
    for name in public_problems.QUICK if size == QUICK else PROBLEMS:
        for lots, steps in LOTS:
            usual = (lots, steps) == LOTS[0]
            yield Setting(name, lots, steps, EPSILONS[size] if usual else (2.0,))


def train(folder: RowFolder, options: DataFolders = DEFAULT_FOLDERS) -> None:
    """Trains the settings that the folder's rows do not hold yet."""
    rows = folder.read(FIGURE.name)
    loaded: tuple[str, Arrays] | None = None
    for setting in settings(folder.size):
        held = dict(problem=setting.name, lots_in_the_data=setting.lots, steps=setting.steps)
        if select(rows, **held):
            continue
        if loaded is None or loaded[0] != setting.name:
            loaded = setting.name, PROBLEMS[setting.name].load(options)
        rows += _trained(PROBLEMS[setting.name], loaded[1], setting)
        folder.write(FIGURE.name, COLUMNS, rows)
        folder.report(f"{setting.name}: {setting.steps} steps of 1/{setting.lots}")


def accuracies(
    problem: Problem, arrays: Arrays, shape: RunShape, optimizer: training.Optimizer
) -> Callable[[Mapping[str, float], int], float]:
    """Returns (hyperparameters, seed) -> accuracy on test records of one run."""
    module = models.build_module(
        "mlp" if problem.widths else "logistic_regression", arrays.classes, widths=problem.widths
    )
    example = jax.ShapeDtypeStruct(arrays.inputs.shape[1:], jnp.float32)
    model = models.functional(module, example)
    run = training.make_train(
        training.TrainConfig(
            loss_fn=model.example_loss(models.cross_entropy),
            lots=shape.lots,
            steps=shape.steps,
            expected_lot_size=shape.lot_size,
            optimizer=optimizer,
        )
    )

    @jax.jit
    def accuracy(key: jax.Array, given: Mapping[str, jax.Array], held: tuple) -> jax.Array:
        inputs, labels, test_inputs, test_labels = held
        params = run(key, given, model.init(training.stream(key, "initial")), (inputs, labels))
        scores = model.apply(params, test_inputs)
        return jnp.mean(jnp.argmax(scores, axis=-1) == test_labels)

    held = arrays.inputs, arrays.labels, arrays.test_inputs, arrays.test_labels
    held = jax.tree.map(jnp.asarray, held)

    def of_run(given: Mapping[str, float], seed: int) -> float:
        (key,) = training.candidate_keys(1, seed=seed)
        return float(accuracy(key, {one: jnp.float32(given[one]) for one in given}, held))

    return of_run


def inputs_of(arrays: Arrays) -> int:
    """What enters an output of the widest layer, a bias included."""
    return 1 + int(np.prod(arrays.inputs.shape[1:]))


def _trained(problem: Problem, arrays: Arrays, setting: Setting) -> list[dict]:
    records, inputs = len(arrays.labels), inputs_of(arrays)
    shape = RunShape(round(records / setting.lots), setting.steps, POISSON, records, records)
    accuracy = accuracies(problem, arrays, shape, training.momentum())
    rows = []
    for epsilon in setting.epsilons:
        noise = accounting.calibrate(shape.price, epsilon=epsilon, delta=DELTA)
        default = public_defaults.public_defaults(
            records, inputs, epsilon, DELTA, lot_size=shape.lot_size, steps=shape.steps
        )
        for output_noise in OUTPUT_NOISES:
            rate = default.learning_rate * output_noise / public_defaults.OUTPUT_NOISE
            given = {
                "learning_rate": rate,
                "momentum": default.momentum,
                "clip_norm": default.clip_norm,
                "noise_multiplier": noise,
            }
            for seed in range(problem.seeds):
                found = accuracy(given, seed)
                numbers = records, inputs, epsilon, setting.lots, setting.steps, noise
                row = (setting.name, *numbers, output_noise, rate, seed, found)
                rows.append(dict(zip(COLUMNS, row, strict=True)))
    return rows


def means(rows: Sequence[Mapping]) -> dict[tuple, float]:
    """Mean accuracy over seeds by (problem, epsilon, lots in the data, steps, output noise)."""
    found: dict[tuple, list[float]] = {}
    for row in rows:
        name = row["problem"], row["epsilon"], row["lots_in_the_data"], row["steps"]
        found.setdefault((*name, row["output_noise"]), []).append(row["accuracy"])
    return {name: float(np.mean(values)) for name, values in found.items()}


def lost(rows: Sequence[Mapping]) -> dict[tuple[str, float], list[float]]:
    """Points below the best of the noises by (problem, noise): a number per epsilon, usual lots."""
    usual = {key: value for key, value in means(rows).items() if key[2:4] == LOTS[0]}
    found: dict[tuple[str, float], list[float]] = {}
    for key, value in usual.items():
        best = max(other for name, other in usual.items() if name[:2] == key[:2])
        found.setdefault((key[0], key[4]), []).append(100 * (best - value))
    return found


def draw(rows: Sequence[Mapping]) -> Figure:
    """What each noise loses on each problem: in the mean over epsilons, and at the worst one."""
    names, found = distinct(rows, "problem"), lost(rows)
    noises = sorted(distinct(rows, "output_noise"))
    figure, panels = new_panels(2, height=0.36 * len(names) + 1.1, share_vertical=True)
    for axes, judged, title in zip(
        panels, (np.mean, np.max), ("mean over epsilons", "worst epsilon"), strict=True
    ):
        table = np.array([[judged(found[name, noise]) for noise in noises] for name in names])
        axes.grid(False)
        axes.imshow(table, cmap="Oranges", vmin=0.0, vmax=_MUCH, aspect="auto")
        for (line, column), value in np.ndenumerate(table):
            colour = "white" if value > 0.7 * _MUCH else "black"
            axes.text(column, line, f"{value:.1f}", ha="center", va="center", color=colour)
        if CHOSEN in noises:
            corner = noises.index(CHOSEN) - 0.5, -0.5
            axes.add_patch(Rectangle(corner, 1, len(names), fill=False, linewidth=2))
        axes.set_xticks(range(len(noises)), [f"{noise:g}" for noise in noises])
        axes.set_xlabel("noise in an output (standard deviations)")
        axes.set_title(title)
    panels[0].set_yticks(range(len(names)), [public_problems.title(name, rows) for name in names])
    panels[0].set_ylabel("problem")
    figure.suptitle("accuracy points below the best noise")
    return figure


def summary(rows: Sequence[Mapping]) -> list[str]:
    """What each output noise loses, on average over problems and epsilons, and at worst."""
    found: dict[float, list[float]] = {}
    for (_, noise), values in lost(rows).items():
        found.setdefault(noise, []).extend(values)
    return [
        f"output noise {noise:g}: {np.mean(values):.2f} points lost on average, "
        f"{np.max(values):.2f} at worst"
        for noise, values in sorted(found.items())
    ]


FIGURE = FigureSpec(
    paper="leaderboard",
    name="figure_public_defaults",
    columns=COLUMNS,
    takes={QUICK: "20 seconds", FULL: "15 minutes"},
    train=train,
    draw=draw,
    options=DEFAULT_FOLDERS,
    summary=summary,
)

if __name__ == "__main__":
    FIGURE.run()
