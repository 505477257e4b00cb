"""Every tuner, the untuned rule first, at equal TOTAL epsilon: accuracy of what is released.

A row is one attempt: a data set, a total epsilon (delta 1e-5, add or remove one record; tuning,
scores and training together), a method, a seed. Seeds are paired: methods of one seed divide the
records alike. Untuned rules train on all training records; tuners keep a part of them to score by.
`runs` says what the attempt's work is worth, in trainings of one model on all training records. Of
every data set, epsilon and method the statement stands in `guarantees/`, one for all seeds: it says
nothing else of another seed. Where every method stands by rule beforehand, "best in hindsight" is
no method.

  python -m experiments.leaderboard --out_dir=docs/figures/leaderboard
  python -m experiments.leaderboard --quick           # digits alone, unless --contests says more
  python -m experiments.leaderboard --contests=Adult --contests=a9a --out_dir=runs/mine

Attempts that the folder's rows hold already are not made again. Test accuracies of the releases are
not private where records are not public. The picture: accuracy less that of the untuned rule with
the same seed, mean and (from three seeds on) 95% intervals, against total epsilon; beside it
accuracy against work, at the epsilon of most attempts.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from dpjax import files, plotting
from experiments.figures.figure import FULL, QUICK, DataFolders, FigureSpec, option
from experiments.figures.leaderboard import contests
from experiments.figures.leaderboard.methods import (
    DELTA,
    HINDSIGHT,
    METHODS,
    UNTUNED,
    Entry,
    Outcome,
)
from experiments.figures.panels import delta_in_words, legend_below
from experiments.figures.rows import RowFolder, distinct, interval, select

GUARANTEES = "guarantees"
EPSILONS = {QUICK: (4.0,), FULL: (0.5, 1.0, 2.0, 4.0)}
COLUMNS = {
    "contest": "name", "epsilon": "nats", "method": "name", "seed": "1", "delta": "probability",
    "accuracy": "1", "learning_rate": "1", "runs": "trainings", "guarantee": "name",
}  # fmt: skip
_QUICK_CONTESTS, _QUICK_SEEDS = ("digits",), 1


@dataclasses.dataclass(frozen=True)
class Options(DataFolders):
    """What is competed in."""

    contests: tuple[str, ...] = option(
        tuple(contests.CONTESTS), "Data sets to compete on.", choices=tuple(contests.CONTESTS)
    )
    methods: tuple[str, ...] = option(
        tuple(METHODS), "Methods that compete.", choices=tuple(METHODS)
    )
    compile_cache: str = option(
        os.path.join("runs", "compile_cache"), "Folder where JAX keeps what it compiled."
    )


def attempts(size: str, options: Options) -> Iterator[tuple[str, int, float, str]]:
    """What is tried, as (contest, seed, epsilon, method), seeds outside: rows come evenly."""
    for contest in options.contests:
        everything = options.contests == tuple(contests.CONTESTS)
        if size == QUICK and everything and contest not in _QUICK_CONTESTS:
            continue
        seeds = _QUICK_SEEDS if size == QUICK else contests.CONTESTS[contest].seeds
        for seed in range(seeds):
            for epsilon in EPSILONS[size]:
                for name in options.methods:
                    yield contest, seed, epsilon, name


def train(folder: RowFolder, options: Options) -> None:
    """Makes the attempts that the folder's rows do not hold yet."""
    # Every attempt traces its programs anew; most of them are the same.
    jax.config.update("jax_compilation_cache_dir", os.path.abspath(options.compile_cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    rows = folder.read(FIGURE.name)
    columns = ("contest", "seed", "epsilon", "method")
    done = {tuple(row[column] for column in columns) for row in rows}
    folders = DataFolders(options.data_dir, options.cache_dir)
    for contest, seed, epsilon, name in attempts(folder.size, options):
        if (contest, seed, epsilon, name) in done:
            continue
        entry = Entry(contest, contests.loaded(contest, folders), epsilon, seed)
        outcome = METHODS[name](entry)
        stated = _guarantee(folder, entry, name, outcome)
        numbers = DELTA, outcome.accuracy, outcome.learning_rate, outcome.runs
        cells = (contest, epsilon, name, seed, *numbers, stated)
        rows.append(dict(zip(COLUMNS, cells, strict=True)))
        folder.write(FIGURE.name, COLUMNS, rows)
        folder.report(f"{contest}, epsilon {epsilon:g}, seed {seed}: {name}")


def _guarantee(folder: RowFolder, entry: Entry, name: str, outcome: Outcome) -> str:
    """Writes what the release states; returns the file's name."""
    if name == HINDSIGHT:
        return "none"
    statement = outcome.result.release.statement
    if not statement["epsilon"] <= entry.epsilon:
        raise ValueError(f"{name} costs {statement['epsilon']}, more than {entry.epsilon}")
    words = (entry.contest, f"{entry.epsilon:g}", name)
    file = "-".join("_".join(one.replace(",", "").split()) for one in words) + ".json"
    path = os.path.join(folder.path, GUARANTEES, file)
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with files.replacing(path) as partial, open(partial, "w", encoding="utf-8") as out:
            json.dump(statement, out, indent=2, sort_keys=True)
            out.write("\n")
    return file


# What the rows say -------------------------------------------------------------------------------


def differences(rows: Sequence[Mapping], contest: str, epsilon: float, name: str) -> np.ndarray:
    """Accuracy less that of the untuned rule with the same seed, (seeds that both have,)."""
    of = {
        one: {row["seed"]: row["accuracy"] for row in select(rows, contest=contest, epsilon=epsilon)
              if row["method"] == one}
        for one in (name, UNTUNED)
    }  # fmt: skip
    seeds = sorted(set(of[name]) & set(of[UNTUNED]))
    return np.array([of[name][seed] - of[UNTUNED][seed] for seed in seeds])


_FEWEST = 3
"""Seeds from which an interval is drawn."""
_NARROWEST = 0.02
"""Range of accuracies that a panel shows at least, so that a thousandth looks like one."""
_MARKERS = "osD^vPX*<>hpd8"


def draw(rows: Sequence[Mapping]) -> Figure:
    """A line for each data set: difference to the untuned rule, and accuracy against work."""
    names = distinct(rows, "contest")
    figure = Figure(figsize=(13.0, 2.3 * len(names) + 2.6), layout="constrained")
    # Broad ones on the left: at each epsilon every method has a place of its own.
    panels = figure.subplots(len(names), 2, squeeze=False, width_ratios=(5, 2))
    shown = [name for name in METHODS if name in distinct(rows, "method")]
    colors = colormaps["tab20"].colors
    looks = {
        name: (colors[(2 * number + number // 10) % 20], _MARKERS[number % len(_MARKERS)])
        for number, name in enumerate(shown)
    }
    for (left, right), contest in zip(panels, names):
        _differences_panel(left, rows, contest, looks)
        _work_panel(right, rows, contest, looks)
        left.set_ylabel("accuracy less the untuned\nrule's, percentage points", fontsize=10.5)
        right.set_ylabel("test accuracy")
    # Of whatever panel has each of them: some methods did not compete everywhere.
    legend_below(figure, panels[:, 0], columns=3, fontsize=9.5, order=looks)
    figure.suptitle(
        f"what is released at equal total epsilon, {delta_in_words(rows[0]['delta'])}: tuning, "
        "scores and training together; test accuracies, not private\n"
        "left: mean over seeds of the difference to the untuned rule with the same seed; bars: "
        f"95% intervals, from {_FEWEST} seeds on\n"
        "right: mean accuracy against work, counted in trainings of one model, at the total "
        "epsilon of most attempts",
        fontsize=11,
    )
    return figure


def _differences_panel(axes, rows: Sequence[Mapping], contest: str, looks: Mapping) -> None:
    plotting.style_axes(axes)
    epsilons = sorted(distinct(select(rows, contest=contest), "epsilon"))
    shown: list[float] = []
    seeds: list[int] = []
    for number, (name, (color, marker)) in enumerate(looks.items()):
        points = []
        for place, epsilon in enumerate(epsilons):
            values = differences(rows, contest, epsilon, name)
            if len(values):
                aside = place + 0.8 * (number / max(1, len(looks) - 1) - 0.5)
                mean, half = interval(100 * values)
                # Two seeds have an interval of twelve times their spread.
                half = half if len(values) >= _FEWEST else 0.0
                shown += [mean - half, mean + half]
                seeds.append(len(values))
                points.append((aside, mean, mean - half, mean + half))
        if points:
            where, mean, low, high = np.transpose(points)
            axes.errorbar(
                where, mean, (mean - low, high - mean), color=color, marker=marker, linestyle="",
                markersize=5.5, elinewidth=1.2, label=name,
            )  # fmt: skip
    axes.set_xticks(range(len(epsilons)), [f"{epsilon:g}" for epsilon in epsilons])
    axes.set_xlabel("total epsilon")
    axes.axhline(0.0, color="0.4", linewidth=0.9)
    axes.set_xlim(-0.5, len(epsilons) - 0.5)
    margin = 0.05 * (max(shown) - min(shown)) + 0.1
    axes.set_ylim(min(shown) - margin, max(shown) + margin)
    number = f"{min(seeds)} to {max(seeds)}" if min(seeds) < max(seeds) else f"{seeds[0]}"
    axes.set_title(f"{contest} (seeds of a point: {number})", fontsize=11)


def _work_panel(axes, rows: Sequence[Mapping], contest: str, looks: Mapping) -> None:
    plotting.style_axes(axes)
    own = select(rows, contest=contest)
    usual = max(
        distinct(own, "epsilon"), key=lambda epsilon: (len(select(own, epsilon=epsilon)), epsilon)
    )
    for name, (color, marker) in looks.items():
        some = select(own, epsilon=usual, method=name)
        if some:
            runs = float(np.mean([row["runs"] for row in some]))
            accuracy = float(np.mean([row["accuracy"] for row in some]))
            axes.plot(runs, accuracy, color=color, marker=marker, linestyle="", markersize=6)
    axes.margins(y=0.15)
    low, high = axes.get_ylim()
    if high - low < _NARROWEST:
        axes.set_ylim((low + high - _NARROWEST) / 2, (low + high + _NARROWEST) / 2)
    axes.set_xscale("log")
    axes.set_xlim(0.7, 40.0)
    axes.set_xticks([1, 3, 10, 30], ["1", "3", "10", "30"])
    axes.minorticks_off()
    axes.set_xlabel(f"work (total epsilon {usual:g})")
    axes.set_title(contest, fontsize=11)


def summary(rows: Sequence[Mapping]) -> list[str]:
    """For each data set and epsilon: the untuned rule's accuracy, and how the others differ."""
    lines = []
    for contest in distinct(rows, "contest"):
        for epsilon in sorted(distinct(select(rows, contest=contest), "epsilon")):
            some = select(rows, contest=contest, epsilon=epsilon, method=UNTUNED)
            if not some:
                continue
            usual = float(np.mean([row["accuracy"] for row in some]))
            lines.append(f"{contest}, epsilon {epsilon:g}: untuned {usual:.4f}")
            for name in METHODS:
                values = differences(rows, contest, epsilon, name)
                if name != UNTUNED and len(values):
                    mean, half = interval(values)
                    ends = f"{mean - half:+.4f} to {mean + half:+.4f}"
                    lines.append(f"  {name}: {mean:+.4f} ({ends})")
    return lines


FIGURE = FigureSpec(
    paper="leaderboard",
    name="leaderboard",
    columns=COLUMNS,
    takes={QUICK: "a minute", FULL: "eight core-hours"},
    train=train,
    draw=draw,
    options=Options(),
    summary=summary,
)

if __name__ == "__main__":
    FIGURE.run()
