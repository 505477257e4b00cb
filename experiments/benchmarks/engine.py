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
from collections.abc import Sequence

import jax
from absl import flags
from rich.console import Console
from rich.table import Table

from dpjax.commands import command_line
from experiments.benchmarks import bound_process, candidate_costs, clipped_grad, step_costs
from experiments.benchmarks.opacus_process import OpacusProcess
from experiments.benchmarks.other_work import OtherWork

# --models, --turns, --slow_turns, --quick and --out_dir.
flags.adopt_module_key_flags(clipped_grad)
_OPACUS_PYTHON = flags.DEFINE_string(
    "opacus_python", None, "Interpreter that has torch and opacus; this one if unset."
)
_OPACUS = flags.DEFINE_bool("opacus", True, "Measure Opacus where it is installed.")
_CANDIDATES = flags.DEFINE_bool("candidates", True, "Measure many candidates at once.")
_RESUME = flags.DEFINE_bool("resume", False, "Keep the parts found in --out_dir.")
_HOST_DEVICES = flags.DEFINE_integer("host_devices", 4, "CPU: devices to spread candidates over.")

COLUMNS = ("model", "part", "what", "median", "low", "high", "unit")
MODELS = ("logistic_regression", "mlp_784_1000_10", "mlp_784_128_64_10", "all_conv_net",
          "transformer")  # fmt: skip


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


def step_rows(model: str, quick: bool, turns: int, slow_turns: int) -> list[dict]:
    """Rows of one model's step."""
    full, small, build = clipped_grad.PROBLEMS[model]
    batch = small if quick else full
    problem, process, python = build(batch), None, opacus_python()
    if python is not None:
        parameters = sum(leaf.size for leaf in jax.tree.leaves(problem.params))
        try:
            process = OpacusProcess(python, model, batch, parameters)
        except (OSError, RuntimeError) as error:
            print(f"opacus left out for {model}: {error}")

    def beside() -> dict[str, float]:
        taken = {}
        for name, way in (("opacus", "opacus-hooks"), ("torch", "torch")):
            process(way)  # This one had the processor: wake the other's threads.
            taken[name] = process(way)["wall"]
        return taken

    seconds, memory = step_costs.measure(
        step_costs.ways(problem), turns, slow_turns, beside if process else None
    )
    if process is not None:
        process.close()
    return step_costs.rows(model, seconds, memory)


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
    """The rows that `save` left in a folder, none if it left nothing.

    Raises:
      ValueError: they were measured elsewhere, or otherwise.
    """
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
    values = flags.FLAGS.flag_values_dict()
    models = values["models"] or list(MODELS)
    unknown = sorted(set(models) - set(clipped_grad.PROBLEMS))
    if unknown:
        known = ", ".join(clipped_grad.PROBLEMS)
        raise ValueError(f"unknown model {unknown[0]!r}: pass some of {known}")
    if _RESUME.value and not values["out_dir"]:
        raise ValueError("--resume without --out_dir: pass the folder that holds the parts")
    quick: bool = values["quick"]
    turns, slow_turns = (3, 2) if quick else (values["turns"], values["slow_turns"])
    batches = ", ".join(str(clipped_grad.PROBLEMS[name][1 if quick else 0]) for name in MODELS)
    heading = (
        f"{jax.devices()[0].device_kind}, {os.cpu_count()} CPU cores, jax {jax.__version__}, "
        f"Python {platform.python_version()}; {turns} turns; batches {batches}. Median (quartiles)."
    )
    rows = saved_rows(heading, values["out_dir"]) if _RESUME.value else []
    found = {(row["model"], row["part"]) for row in rows}
    wanted = [(model, "step") for model in models]
    if _CANDIDATES.value:
        wanted += [(model, "candidates") for model in models if model in candidate_costs.SIZES]
    columns = dict.fromkeys((*MODELS, *clipped_grad.PROBLEMS))
    order = [(model, part) for part in ("step", "candidates") for model in columns]
    for model, part in wanted:
        if (model, part) in found:
            continue
        rows += part_rows(model, part, quick, turns, slow_turns)
        rows.sort(key=lambda row: order.index((row["model"], row["part"])))
        if values["out_dir"]:
            save(rows, heading, values["out_dir"])
    table = Table(title=heading)
    for column in ("model", "what", "median (quartiles)"):
        table.add_column(column)
    for row in rows:
        table.add_row(row["model"], row["what"], shown(row))
    Console(width=140).print(table)
    if values["out_dir"]:
        for path in save(rows, heading, values["out_dir"]):
            print(path)


if __name__ == "__main__":
    command_line.run(main)
