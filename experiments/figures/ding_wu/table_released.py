r"""Is a privately selected candidate better than a random one, once the selection is paid for?

Not in the paper. The whole procedure, `tuning.Exponential` or
`tuning.Doubling`, is run ten times (seeds 0 to 9) in each of several settings: 16 candidates drawn
from a law of learning rates (log-uniform from 0.003 to 3; momentum 0.9, clip norm 1; logistic
regression), the selection, and the private training of the chosen one, together at the stated
epsilon and delta 1e-5. Against it stand 100 candidates drawn from the same law and trained with the
WHOLE epsilon, none of it spent on a selection. Seed s is paired with the s-th of them; more telling
than the ten pairs is the share of all 1000 comparisons that the release wins.

What it shows: see docs/figures.md. All accuracies are on test data; they belong to the
curator.

  python -m experiments.figures.ding_wu.table_released --data_dir=... \
      --out_dir=docs/figures/ding_wu

Takes a quarter of an hour on one CPU core; --quick (digits, one setting, 2 seeds, 20 random
candidates) 25 seconds. Rows go to table_released.csv as they come; a stopped
program goes on from there, and --redraw only draws.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpjax import accounting, plotting, tuning
from dpjax.accounting.mechanisms.exponential import selection_noise_ratio
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.tuning.private_runs import execute, plan_runs
from dpjax.tuning.problem.problem import Material, Problem, RunOptions
from dpjax.tuning.problem.task import Task, total_units
from dpjax.tuning.selection import BestOf
from dpjax.tuning.tuners.partitions import NON_PRIVATE, REHEARSAL, SelectionNoiseWarning
from experiments.figures.ding_wu import tasks
from experiments.figures.figure import DEFAULT_FOLDERS, FULL, QUICK, DataFolders, FigureSpec
from experiments.figures.panels import DATA_SETS, WIDTH, legend_below
from experiments.figures.rows import RowFolder, distinct, select

NAME = "table_released"
DELTA = 1e-5
CANDIDATES = 16
SEEDS, RANDOM_CANDIDATES = 10, 100
RANDOM = "random_candidate"


@dataclasses.dataclass(frozen=True)
class Setting:
    """One way to select and train; the fields are columns of the rows.

    The selector is "exponential", "doubling" (granularity 0.05, 12 iterations at most), or
    "random_candidate", for which the last three are None. Epsilon is of selection and training
    together.
    """

    dataset: str
    epsilon: float
    selector: str
    partitions: int | None = None
    epsilon_0: float | None = None
    partition_training: str | None = None

    @property
    def noise_ratio(self) -> float | None:
        """4 ln 16 / (k epsilon_0); above 1 the selection is mostly noise."""
        if self.partitions is None:
            return None
        return selection_noise_ratio(CANDIDATES, self.partitions, self.epsilon_0)

    @property
    def label(self) -> str:
        """Words for the picture."""
        words = rf"{DATA_SETS[self.dataset]}, total $\varepsilon$ = {self.epsilon:g}"
        if self.partition_training == NON_PRIVATE:
            words += ", plain"
        words += f"\n{self.selector.replace('_', ' ')}"
        if self.partitions is not None:
            words += rf", k = {self.partitions}, $\varepsilon_0$ = {self.epsilon_0:g}"
        return words


SETTINGS = (
    Setting("digits", 4.0, "exponential", 24, 1.0, REHEARSAL),
    Setting("digits", 4.0, "exponential", 50, 1.0, REHEARSAL),
    Setting("digits", 4.0, "exponential", 10, 0.5, REHEARSAL),
    Setting("digits", 2.0, "exponential", 24, 1.0, REHEARSAL),
    Setting("digits", 2.0, "exponential", 24, 1.0, NON_PRIVATE),
    Setting("digits", 2.0, "exponential", 50, 0.5, REHEARSAL),
    Setting("digits", 2.0, "exponential", 100, 0.25, REHEARSAL),
    Setting("digits", 2.0, "exponential", 10, 0.5, REHEARSAL),
    Setting("digits", 2.0, "exponential", 10, 0.1, REHEARSAL),
    Setting("digits", 1.1, "exponential", 24, 1.0, REHEARSAL),
    Setting("digits", 2.0, "doubling", 100, 0.1, REHEARSAL),
    Setting("adult", 2.0, "exponential", 100, 0.25, REHEARSAL),
    Setting("adult", 2.0, "exponential", 300, 0.1, REHEARSAL),
    Setting("digits", 4.0, "exponential", 100, 1.0, REHEARSAL),
)
LOTS = {"digits": (72, 20.0), "adult": (512, 5.0)}
"""Lot size and epochs of the final training."""

COLUMNS = {
    "dataset": "name", "epsilon": "nats", "selector": "name", "partitions": "partitions",
    "epsilon_0": "nats", "partition_training": "name", "delta": "probability",
    "noise_ratio": "utilities", "seed": "number", "learning_rate": "1", "test_accuracy": "share",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Setup:
    """A task with test records, made once for each data set."""

    task: Task
    test: tuple[np.ndarray, np.ndarray]

    @functools.cached_property
    def _judge(self) -> Callable[[Any, Any], jax.Array]:
        return jax.jit(lambda params, arrays: total_units(self.task, params, arrays))

    def accuracy(self, params: Any) -> float:
        """Returns the test accuracy of parameters."""
        return round(float(self._judge(params, self.test)) / len(self.test[1]), 6)


def space() -> tuning.Space:
    """Returns the law of the candidates, that of `experiments.tune`."""
    rate = tuning.LogUniform(0.003, 3.0)
    return tuning.Space(learning_rate=rate, momentum=0.9, clip_norm=1.0)


def released(setting: Setting, setup: Setup, seed: int) -> dict:
    """Runs the whole procedure once; returns its row."""
    lot_size, epochs = LOTS[setting.dataset]
    own = dict(
        selection_epsilon=setting.epsilon_0,
        candidates=CANDIDATES,
        partitions=setting.partitions,
        partition_training=setting.partition_training,
    )
    tuner: Any = tuning.Exponential(**own)
    if setting.selector == "doubling":
        tuner = tuning.Doubling(**own, granularity=0.05, iterations=12)
    with warnings.catch_warnings():
        # Some settings are here to show what it warns of.
        warnings.simplefilter("ignore", SelectionNoiseWarning)
        result = tuning.tune(
            setup.task,
            space(),
            tuner,
            epsilon=setting.epsilon,
            delta=DELTA,
            run=tuning.RunOptions(lot_size=lot_size, epochs=epochs),
            seed=seed,
            chunk_size=256,
        )
    rate = result.release.hyperparameters["learning_rate"]
    return _row(setting, seed, rate, setup.accuracy(result.release.params))


def random_candidates(setting: Setting, setup: Setup, number: int) -> list[dict]:
    """Trains independent candidates with the whole epsilon; returns their rows."""
    lot_size, epochs = LOTS[setting.dataset]
    procedure = plan_runs(
        Problem.of(
            setup.task,
            space(),
            RunOptions(lot_size=lot_size, epochs=epochs),
            epsilon=setting.epsilon,
            delta=DELTA,
            # No score is looked at, so none is paid for.
            validation_is_public=True,
        ),
        BestOf(accounting.Fixed(1)),
    )
    done = execute(
        procedure,
        Material.of(setup.task, space()),
        randomness=HostRandomness(1000),
        executions=number,
        chunk_size=50,
    )
    rates = done.hyperparameters["learning_rate"]
    return [
        _row(setting, seed, float(rates[seed]), setup.accuracy(done.best.output(seed)))
        for seed in range(number)
    ]


def _row(setting: Setting, seed: int, rate: float, accuracy: float) -> dict:
    return {
        **dataclasses.asdict(setting),
        "delta": DELTA,
        "noise_ratio": setting.noise_ratio,
        "seed": seed,
        "learning_rate": rate,
        "test_accuracy": accuracy,
    }


def compute(
    settings: Sequence[Setting],
    folder: RowFolder,
    options: DataFolders = DEFAULT_FOLDERS,
    *,
    seeds: int = SEEDS,
    random_number: int = RANDOM_CANDIDATES,
) -> None:
    """Runs what the folder's file does not hold yet, random candidates to compare with included."""
    rows = folder.read(NAME)
    setups: dict[str, Setup] = {}
    controls = dict.fromkeys(Setting(s.dataset, s.epsilon, RANDOM) for s in settings)
    for setting in (*controls, *settings):
        held = {row["seed"] for row in select(rows, **dataclasses.asdict(setting))}
        wanted = random_number if setting.selector == RANDOM else seeds
        missing = [seed for seed in range(wanted) if seed not in held]
        if not missing:
            continue
        if setting.dataset not in setups:
            setups[setting.dataset] = Setup(*tasks.logistic_regression(setting.dataset, options))
        setup = setups[setting.dataset]
        if setting.selector == RANDOM:
            rows += random_candidates(setting, setup, wanted)
            folder.write(NAME, COLUMNS, rows)
        for seed in missing if setting.selector != RANDOM else ():
            rows.append(released(setting, setup, seed))
            folder.write(NAME, COLUMNS, rows)
        folder.report(setting.label)


def summary(rows: Sequence[Mapping]) -> list[dict]:
    """Returns one row for each setting: how often and by how much the release wins.

    `wins` counts seeds whose release is better than the random candidate of the same number,
    `share_won` all comparisons with all random candidates at that data set and epsilon (ties count
    half).
    """
    found = {}
    for row in rows:
        setting = Setting(*(row[field.name] for field in dataclasses.fields(Setting)))
        found.setdefault(setting, []).append(row)
    table = []
    for setting, members in found.items():
        if setting.selector == RANDOM:
            continue
        control = found[Setting(setting.dataset, setting.epsilon, RANDOM)]
        others = np.array([row["test_accuracy"] for row in sorted(control, key=_seed)])
        mine = np.array([row["test_accuracy"] for row in sorted(members, key=_seed)])
        gaps = mine[:, None] - others[None, :]
        table.append(
            {
                **dataclasses.asdict(setting),
                "noise_ratio": setting.noise_ratio,
                "seeds": len(mine),
                "wins": int(np.sum(mine > others[: len(mine)])),
                "above_mean": int(np.sum(mine > others.mean())),
                "share_won": float(np.mean((gaps > 0) + 0.5 * (gaps == 0))),
                "released_mean": float(mine.mean()),
                "random_mean": float(others.mean()),
                "random_least": float(others.min()),
                "random_number": len(others),
            }
        )
    datasets = distinct(rows, "dataset")
    return sorted(
        table,
        key=lambda entry: (
            datasets.index(entry["dataset"]),
            -entry["epsilon"],
            entry["noise_ratio"],
        ),
    )


def _seed(row: Mapping) -> int:
    return row["seed"]


def draw(rows: Sequence[Mapping]) -> Figure:
    """Draws released and random candidates' accuracies, one line of dots for each setting.

    Settings whose mean release is worse than every random candidate have a panel of their own,
    with its own scale: they would squeeze all others.
    """
    table = summary(rows)
    ruined = [entry for entry in table if entry["released_mean"] < entry["random_least"]]
    parts = [part for part in ([e for e in table if e not in ruined], ruined) if part]
    figure = Figure(figsize=(WIDTH, 1.6 + 0.4 * len(table)), layout="constrained")
    # Labels stay clear of the left edge.
    figure.get_layout_engine().set(w_pad=0.15)
    heights = [len(part) + 0.2 for part in parts]
    panels = figure.subplots(len(parts), squeeze=False, height_ratios=heights)[:, 0]
    for axes, part in zip(panels, parts):
        plotting.style_axes(axes)
        _draw_settings(axes, rows, part)
    panels[-1].set_xlabel("test accuracy (for the curator)")
    if len(parts) > 1:
        panels[-1].set_title("another scale: worse in the mean than every random candidate")
    first = table[0]
    figure.suptitle(
        f"{first['seeds']} releases (dots) and {first['random_number']} random candidates per "
        "setting; right: share of pairs won"
    )
    legend_below(figure, panels[0], columns=3)
    return figure


def _draw_settings(axes: Axes, rows: Sequence[Mapping], table: Sequence[Mapping]) -> None:
    """Draws the settings of one panel, the first of the table on top."""
    shade, blue, red = "#999999", plotting.PALETTE[0], plotting.PALETTE[1]
    ticks = []
    for place, entry in enumerate(reversed(table)):
        setting = Setting(*(entry[field.name] for field in dataclasses.fields(Setting)))
        control = select(rows, **dataclasses.asdict(Setting(*_control(setting))))
        mine = select(rows, **dataclasses.asdict(setting))
        for members, colour, offset, mark, name in (
            (control, shade, 0.14, "|", "random candidates, whole epsilon"),
            (mine, blue if entry["noise_ratio"] <= 0.5 else red, -0.14, "o", None),
        ):
            values = [row["test_accuracy"] for row in members]
            axes.plot(
                values,
                np.full(len(values), place + offset),
                mark,
                color=colour,
                alpha=0.75,
                label=name if place == 0 else None,
            )
        ticks.append(setting.label)
        axes.text(
            1.01, place, f"{100 * entry['share_won']:.0f}%", va="center",
            transform=axes.get_yaxis_transform(),
        )  # fmt: skip
    axes.plot([], [], "o", color=blue, label="released, noise ratio at most 0.5")
    axes.plot([], [], "o", color=red, label="released, noise ratio above 0.5")
    axes.set_yticks(range(len(ticks)), ticks)
    axes.set_ylim(-0.6, len(ticks) - 0.4)


def _control(setting: Setting) -> tuple[str, float, str]:
    return setting.dataset, setting.epsilon, RANDOM


def train(folder: RowFolder, options: DataFolders) -> None:
    """Runs what the folder does not hold yet."""
    if folder.size == QUICK:
        compute(SETTINGS[3:4], folder, options, seeds=2, random_number=20)
    else:
        compute(SETTINGS, folder, options)


def table_line(entry: Mapping) -> str:
    """Returns one row of the table as Markdown."""
    partitions = "plain" if entry["partition_training"] == NON_PRIVATE else "rehearsal"
    cells = (
        entry["dataset"],
        f"{entry['epsilon']:g}",
        entry["selector"],
        entry["partitions"],
        f"{entry['epsilon_0']:g}",
        partitions,
        f"{entry['noise_ratio']:.2g}",
        f"{entry['released_mean']:.3f}",
        f"{entry['random_mean']:.3f}",
        f"{entry['wins']} of {entry['seeds']}",
        f"{100 * entry['share_won']:.0f}%",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


FIGURE = FigureSpec(
    "ding_wu",
    NAME,
    COLUMNS,
    {FULL: "a quarter of an hour", QUICK: "25 s"},
    draw,
    train=train,
    options=DataFolders(),
    summary=lambda rows: [table_line(entry) for entry in summary(rows)],
)

if __name__ == "__main__":
    FIGURE.run()
