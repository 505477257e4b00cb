"""The engine's benchmark: one command, one table, every ratio measured alternately in one run.

For each model: our step and the step without privacy (without noise, with noise, and the engine's
whole step on padded Poisson lots), jax-privacy and plain vmap beside ours, K candidates against K
sequential runs in every placement, the shares of the Poisson draw and of the noise, memory. Within
a turn all ways are called one after the other, so that whatever else the machine does falls on all
of them alike; a ratio is the median over turns of the ratio within a turn, with quartiles.
docs/performance.md explains the numbers.

  python -m experiments.benchmarks.engine --turns=20 --out_dir=docs/benchmarks   # ten minutes
  python -m experiments.benchmarks.engine --turns=20 --out_dir=docs/benchmarks --resume
  python -m experiments.benchmarks.engine --quick   # small batches, few turns: 2 minutes
  python -m experiments.benchmarks.engine --opacus_python=/some/environment/bin/python

Opacus runs in a process of its own and takes its turns there: by this interpreter where torch and
opacus are installed (the `bench` extra), or by --opacus_python; otherwise it is left out with one
line. Candidates run in a process of their own with 4 host devices on CPU, on the devices there are
on a GPU. With --out_dir, writes engine.csv (model, part, what, median, low, high, unit) and
engine.md after every part, a part being one model's steps or its candidates; --resume keeps the
parts found there and measures the others. "other work" is the mean number of processors that were
busy with something else during a part.
"""

from __future__ import annotations

import csv
import functools
import importlib.util
import json
import os
import pathlib
import platform
import sys
import time
from collections.abc import Callable, Sequence

import jax
import numpy as np
from absl import flags
from flax import linen as nn
from rich.console import Console
from rich.table import Table

from dpjax import training
from dpjax.commands import command_line
from experiments.benchmarks import bound_process, candidate_costs, timing, zoo
from experiments.benchmarks.opacus_process import OpacusProcess
from experiments.benchmarks.other_work import OtherWork
from experiments.benchmarks.timing import CLIP_NORM, Way
from experiments.benchmarks.zoo import Problem

_MODELS = flags.DEFINE_list("models", [], "Which models to measure; all of the table by default.")
_TURNS = flags.DEFINE_integer("turns", 40, "Calls of each way, for each model.", lower_bound=1)
_SLOW_TURNS = flags.DEFINE_integer(
    "slow_turns",
    5,
    "Turns in which the ways that form per-example gradients take part; 0 leaves them out.",
    lower_bound=0,
)
_QUICK = flags.DEFINE_bool("quick", False, "Shrink everything to seconds.")
_OUT_DIR = flags.DEFINE_string("out_dir", None, "Folder for engine.csv and engine.md.")
_OPACUS_PYTHON = flags.DEFINE_string(
    "opacus_python", None, "Interpreter that has torch and opacus; this one if unset."
)
_OPACUS = flags.DEFINE_bool("opacus", True, "Measure Opacus where it is installed.")
_CANDIDATES = flags.DEFINE_bool("candidates", True, "Measure many candidates at once.")
_RESUME = flags.DEFINE_bool("resume", False, "Keep the parts found in --out_dir.")
_HOST_DEVICES = flags.DEFINE_integer("host_devices", 4, "CPU: devices to spread candidates over.")

COLUMNS = ("model", "part", "what", "median", "low", "high", "unit")
DATASET_SIZE, STEPS = 60_000, 10_000
"""The run whose Poisson lots are drawn: MNIST's size."""

CHECKED_ROWS = 8
SLOW = ("vmap", "jax-privacy")

RATIOS = (
    ("no noise / non-private", "ours", "plain"),
    ("with noise / non-private", "noisy", "plain"),
    ("whole engine step / non-private", "whole", "plain"),
    ("whole engine step with checked contributions / whole engine step", "checked", "whole"),
    ("jax-privacy / ours", "jax-privacy", "ours"),
    ("vmap / ours", "vmap", "ours"),
    ("opacus / ours with noise", "opacus", "noisy"),
    ("opacus / non-private torch", "opacus", "torch"),
    ("Poisson draw, share of whole step", "draw", "whole"),
    ("noise, share of step with noise", "noise", "noisy"),
)
"""What is reported, over which, under which."""


class Transformer(nn.Module):
    """Encoder blocks with LayerNorm before attention and before the two dense layers."""

    blocks: int = 2
    width: int = 128
    classes: int = 10
    vocabulary: int = 1000

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = nn.Embed(self.vocabulary, self.width)(tokens)
        for _ in range(self.blocks):
            x = x + nn.MultiHeadDotProductAttention(num_heads=4)(nn.LayerNorm()(x))
            x = x + nn.Dense(self.width)(nn.gelu(nn.Dense(4 * self.width)(nn.LayerNorm()(x))))
        return nn.Dense(self.classes)(x.mean(axis=-2))


def _transformer(tiny: bool, rows: int) -> Problem:
    model = Transformer()
    return zoo.classifier(model, zoo.draw_tokens(model.vocabulary, rows, 64))


# name -> (full batch, quick batch, (tiny, rows) -> problem)
PROBLEMS: dict[str, tuple[int, int, Callable[[bool, int], Problem]]] = {
    "logistic_regression": (256, 256, zoo.logistic_regression),
    "mlp_784_1000_10": (256, 64, zoo.mlp_784_1000_10),
    "mlp_784_128_64_10": (256, 64, zoo.mlp_784_128_64_10),
    "all_conv_net": (64, 8, zoo.all_conv_net),
    "transformer": (64, 8, _transformer),
}
MODELS = tuple(PROBLEMS)


@functools.cache
def opacus_python() -> str | None:
    """The interpreter to run Opacus with, or None after saying why not."""
    if not _OPACUS.value:
        return None
    if _OPACUS_PYTHON.value:
        return _OPACUS_PYTHON.value
    if importlib.util.find_spec("opacus") and importlib.util.find_spec("torch"):
        return sys.executable
    print("opacus left out: install the bench extra, or pass --opacus_python")
    return None


def ways(problem: Problem, size: int) -> dict[str, Way]:
    """Returns what is measured, by name.

    plain, ours, vmap, jax-privacy: on a batch of `size`; without privacy, and three ways to clip.
    noisy: ours with Gaussian noise on the sum.
    noise, draw: the noise alone, and a Poisson lot alone.
    whole: the engine's step: draw, gather the padded lot, clip, noise, SGD.
    checked: the engine's step that measures the contributions of `CHECKED_ROWS` records.
    """
    params, batch = problem.params, problem.records
    key = training.candidate_keys(1, seed=0)[0]
    grad_fn = training.clipped_grad(problem.loss)

    def ours(params, batch):
        return timing.updated(params, grad_fn(params, batch, CLIP_NORM)[0], size)

    def noisy(params, batch, key):
        summed, _ = grad_fn(params, batch, CLIP_NORM)
        return timing.updated(params, training.add_gaussian_noise(key, summed, CLIP_NORM), size)

    lots = timing.poisson_lots(size, DATASET_SIZE, STEPS)
    wall = functools.partial(
        timing.compiled, clock=time.perf_counter, least_seconds=0.02, warmed=True
    )
    found = {
        "ours": wall(ours, params, batch),
        "plain": wall(timing.plain(problem), params, batch),
        "noisy": wall(noisy, params, batch, key),
        "noise": wall(
            lambda key, params: training.add_gaussian_noise(key, params, 1.0), key, params
        ),
        "draw": wall(lambda key: lots.draw(key, DATASET_SIZE), key),
    }
    records = timing.tiled(batch, DATASET_SIZE)
    for name, rows in (("whole", 0), ("checked", CHECKED_ROWS)):
        train = timing.engine_step(problem, size, lots, check_contributions=rows)
        arguments = key, timing.HYPERPARAMETERS, params, records
        found[name] = wall(train, *arguments, steps=timing.WHOLE_STEPS)
    return found


def slow_ways(problem: Problem, size: int) -> dict[str, Way]:
    """Returns those of `SLOW`, called once a turn: a call takes too long for more to matter."""
    steps = {
        "vmap": timing.by_vmap(problem, size),
        "jax-privacy": timing.by_jax_privacy(problem, size),
    }
    arguments = problem.params, problem.records
    return {
        name: timing.compiled(step, *arguments, clock=time.perf_counter, least_seconds=0.0)
        for name, step in steps.items()
        if step is not None
    }


class _Torch:
    """One way of the process of torch, by wall time."""

    def __init__(self, process: OpacusProcess, way: str) -> None:
        self._process, self._way = process, way

    def seconds(self) -> float:
        self._process(self._way)  # This process had the processor: wake the other's threads.
        return self._process(self._way)["wall"]


def step_rows(model: str, quick: bool, turns: int, slow_turns: int) -> list[dict]:
    """Returns rows (model, what, median, low, high, unit) of one model's step."""
    full, small, build = PROBLEMS[model]
    batch = small if quick else full
    problem, process, python = build(False, batch), None, opacus_python()
    found = ways(problem, batch)
    slow = slow_ways(problem, batch) if slow_turns else {}
    if python is not None:
        parameters = sum(leaf.size for leaf in jax.tree.leaves(problem.params))
        try:
            process = OpacusProcess(python, model, batch, parameters)
        except (OSError, RuntimeError) as error:
            print(f"opacus left out for {model}: {error}")
    beside = {}
    if process is not None and slow_turns:
        beside = {"opacus": _Torch(process, "opacus-hooks"), "torch": _Torch(process, "torch")}
    seconds = timing.in_turn(
        {**found, **slow, **beside}, lambda name: turns if name in found else min(turns, slow_turns)
    )
    if process is not None:
        process.close()
    rows = []
    for what, over, under in RATIOS:
        if over in seconds and under in seconds:
            rows.append(_row(what, *timing.quartiles(seconds[over], seconds[under]), "ratio"))
    for what, over in (("no noise", "ours"), ("with noise", "noisy")):
        share = found[over].bytes / found["plain"].bytes
        rows.append(_row(f"memory {what} / non-private", share, share, share, "ratio"))
    for name, taken in seconds.items():
        low, middle, high = (1e3 * float(q) for q in np.quantile(taken, (0.25, 0.5, 0.75)))
        rows.append(_row(f"time {name}", middle, low, high, "ms"))
    return [{"model": model, **row} for row in rows]


def _row(what: str, middle: float, low: float, high: float, unit: str) -> dict:
    return dict(what=what, median=middle, low=low, high=high, unit=unit)


def candidate_rows(model: str, quick: bool) -> list[dict]:
    """Rows of many candidates of one model at once, from a process of its own."""
    environment = dict(os.environ)
    if jax.default_backend() == "cpu":
        devices = f"--xla_force_host_platform_device_count={_HOST_DEVICES.value}"
        environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {devices}".strip()
    else:
        # The parent keeps a part of the device's memory.
        environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    command = [sys.executable, "-m", "experiments.benchmarks.candidate_costs"]
    command += [f"--candidate_models={model}"]
    if quick:
        command += ["--small", "--rounds=2", "--records=600"]
    try:
        output = bound_process.output_of(command, environment)
    except RuntimeError as error:
        raise RuntimeError(f"the candidates' process failed: {error}") from None
    return json.loads(output.splitlines()[-1])


def part_rows(model: str, part: str, quick: bool, turns: int, slow_turns: int) -> list[dict]:
    """Rows of one part, "step" or "candidates", and of what else the machine did meanwhile."""
    with OtherWork() as other:
        if part == "step":
            rows = step_rows(model, quick, turns, slow_turns)
        else:
            rows = candidate_rows(model, quick)
    if other.processors is not None:
        busy = dict.fromkeys(("median", "low", "high"), other.processors)
        rows.append({"model": model, "what": f"other work ({part})", **busy, "unit": "processors"})
    return [{**row, "part": part} for row in rows]


def shown(row: dict) -> str:
    """Median and quartiles of a row, with its unit."""
    if row["low"] == row["high"]:
        return f"{row['median']:.3g}"
    unit = " ms" if row["unit"] == "ms" else ""
    return f"{row['median']:.3g}{unit} ({row['low']:.3g}-{row['high']:.3g})"


def markdown(rows: Sequence[dict], heading: str) -> str:
    """The rows as a table, one line for each thing measured, one column for each model."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    cells = {(row["what"], row["model"]): shown(row) for row in rows}
    lines = [heading, "", "| | " + " | ".join(models) + " |", "|---" * (len(models) + 1) + "|"]
    for what in dict.fromkeys(row["what"] for row in rows):
        values = [cells.get((what, model), "") for model in models]
        lines.append(f"| {what} | " + " | ".join(values) + " |")
    return "\n".join(lines) + "\n"


TITLE = "# The engine, measured\n\n"


def save(rows: Sequence[dict], heading: str, out_dir: str) -> list[str]:
    """Writes engine.csv and engine.md; returns their paths."""
    os.makedirs(out_dir, exist_ok=True)
    paths = [os.path.join(out_dir, name) for name in ("engine.csv", "engine.md")]
    with open(paths[0], "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {**row, **{name: f"{row[name]:.6g}" for name in ("median", "low", "high")}}
            for row in rows
        )
    pathlib.Path(paths[1]).write_text(TITLE + markdown(rows, heading), encoding="utf-8")
    return paths


def saved_rows(heading: str, out_dir: str) -> list[dict]:
    """The rows that `save` left in a folder, none if it left nothing."""
    paths = [pathlib.Path(out_dir, name) for name in ("engine.csv", "engine.md")]
    if not all(path.exists() for path in paths):
        return []
    if heading not in paths[1].read_text(encoding="utf-8").splitlines()[:3]:
        raise ValueError(
            f"{paths[1]} has another heading (machine, versions, turns or batches): pass another "
            "--out_dir, or --noresume"
        )
    with open(paths[0], encoding="utf-8", newline="") as file:
        return [
            {**row, **{name: float(row[name]) for name in ("median", "low", "high")}}
            for row in csv.DictReader(file)
        ]


def main() -> None:
    """Measures, prints and saves."""
    models, out_dir, quick = _MODELS.value or MODELS, _OUT_DIR.value, _QUICK.value
    unknown = sorted(set(models) - set(MODELS))
    if unknown:
        raise ValueError(f"unknown model {unknown[0]!r}: pass some of {', '.join(MODELS)}")
    if _RESUME.value and not out_dir:
        raise ValueError("--resume without --out_dir: pass the folder that holds the parts")
    turns, slow_turns = (3, 2) if quick else (_TURNS.value, _SLOW_TURNS.value)
    batches = ", ".join(str(batch[1 if quick else 0]) for batch in PROBLEMS.values())
    heading = (
        f"{jax.devices()[0].device_kind}, {os.cpu_count()} CPU cores, jax {jax.__version__}, "
        f"Python {platform.python_version()}; {turns} turns; batches {batches}. Median (quartiles)."
    )
    rows = saved_rows(heading, out_dir) if _RESUME.value else []
    found = {(row["model"], row["part"]) for row in rows}
    wanted = [(model, "step") for model in models]
    if _CANDIDATES.value:
        wanted += [(model, "candidates") for model in models if model in candidate_costs.SIZES]
    order = [(model, part) for part in ("step", "candidates") for model in MODELS]
    for model, part in wanted:
        if (model, part) in found:
            continue
        rows += part_rows(model, part, quick, turns, slow_turns)
        rows.sort(key=lambda row: order.index((row["model"], row["part"])))
        if out_dir:
            save(rows, heading, out_dir)
    table = Table(title=heading)
    for column in ("model", "what", "median (quartiles)"):
        table.add_column(column)
    for row in rows:
        table.add_row(row["model"], row["what"], shown(row))
    Console(width=140).print(table)
    if out_dir:
        for path in save(rows, heading, out_dir):
            print(path)


if __name__ == "__main__":
    command_line.run(main)
