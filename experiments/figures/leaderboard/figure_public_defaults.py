r"""Where the public default's learning rate comes from: accuracy against the noise in an output.

`tuning.public_defaults` fixes the standard deviation of the noise that a run leaves in an output
whose inputs have size 1. Here that number is varied, on public problems only (`public_problems`):
digits, MNIST as pixels and as scattering features, linear models and nets, and data drawn here.
Shown is the accuracy less the best of the same problem and epsilon. Expected: at 5 within one
percent of the best for linear models, whatever the epsilon, the number of records and the lots; a
net on few records wants less (2.5 on digits).

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

from dpjax import accounting, models, plotting, training
from dpjax.tuning.problem import public_defaults
from dpjax.tuning.problem.problem import POISSON, RunShape
from experiments.figures.figure import DEFAULT_FOLDERS, FULL, QUICK, DataFolders, FigureSpec
from experiments.figures.leaderboard import public_problems
from experiments.figures.leaderboard.public_problems import PROBLEMS, Arrays, Problem
from experiments.figures.panels import delta_in_words, legend_below
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

_STYLES = ("-o", ":", "--")
"""Of `LOTS`."""

_LINEAR = 2.0
"""Percentage points below the best down to which the vertical scale is linear."""


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


def draw(rows: Sequence[Mapping]) -> Figure:
    """A panel for each problem: what is lost against the best, by the noise in an output."""
    names, found = distinct(rows, "problem"), means(rows)
    across = min(3, len(names))
    down = -(-len(names) // across)
    figure = Figure(figsize=(2.9 * across + 0.6, 2.9 * down + 1.6), layout="constrained")
    panels = np.atleast_1d(figure.subplots(down, across, sharex=True, sharey=True)).ravel()
    noises = sorted(distinct(rows, "output_noise"))
    epsilons = sorted(distinct(rows, "epsilon"))
    for axes, name in zip(panels, names, strict=False):
        plotting.style_axes(axes)
        for color, epsilon in zip(("C0", "C1", "C2", "C3"), epsilons, strict=False):
            lines = [key[2:4] for key in found if key[:2] == (name, epsilon)]
            best = max(value for key, value in found.items() if key[:2] == (name, epsilon))
            for lots, steps in dict.fromkeys(lines):
                lost = [100 * (found[name, epsilon, lots, steps, one] - best) for one in noises]
                label = f"epsilon {epsilon:g}"
                if (lots, steps) != LOTS[0]:
                    label += f", lots of 1/{lots}, {steps} steps"
                style = _STYLES[LOTS.index((lots, steps))]
                axes.plot(noises, lost, style, color=color, label=label, markersize=3.5)
        axes.axvline(CHOSEN, color="0.4", linewidth=0.9)
        axes.set_xscale("log")
        # Room at the sides, lest ticks of neighbours touch.
        axes.margins(x=0.1)
        axes.set_xticks(noises, [f"{one:g}".removeprefix("0") for one in noises], fontsize=10)
        axes.minorticks_off()
        # Logarithmic where much is lost: a net on few records loses 20 points.
        axes.set_yscale("symlog", linthresh=_LINEAR)
        axes.set_yticks([0, -1, -2, -5, -10, -20], ["0", "-1", "-2", "-5", "-10", "-20"])
        axes.set_ylim(-26.0, 0.3)
        axes.set_title(public_problems.title(name, rows), fontsize=11)
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    for axes in panels[max(0, len(names) - across) : len(names)]:
        axes.set_xlabel("noise in an output\n(standard deviations)")
        axes.tick_params(labelbottom=True)
    for axes in panels[: len(names) : across]:
        axes.set_ylabel("accuracy less the best,\npercentage points")
    legend_below(figure, panels[0], columns=3)
    lots, steps = LOTS[0]
    figure.suptitle(
        f"public problems at {delta_in_words(DELTA)}; lots of 1/{lots} of the records, {steps} "
        "steps, but where said;\nmean accuracy over seeds, less the best of the same problem and "
        f"epsilon\nvertical line: the public default; scale: linear down to -{_LINEAR:g} points, "
        "logarithmic below",
        fontsize=11,
    )
    return figure


def summary(rows: Sequence[Mapping]) -> list[str]:
    """What each output noise loses, on average over problems and epsilons, and at worst."""
    usual = {key: value for key, value in means(rows).items() if key[2:4] == LOTS[0]}
    lost: dict[float, list[float]] = {}
    for key, value in usual.items():
        best = max(other for name, other in usual.items() if name[:2] == key[:2])
        lost.setdefault(key[4], []).append(100 * (best - value))
    return [
        f"output noise {noise:g}: {np.mean(values):.2f} points lost on average, "
        f"{np.max(values):.2f} at worst"
        for noise, values in sorted(lost.items())
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
