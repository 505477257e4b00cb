"""The engine's benchmark: one command, one table, every ratio measured alternately in one run.

For each model: our step and the step without privacy (without noise, with noise, and the engine's
whole step on padded Poisson lots), jax-privacy and plain vmap beside ours, K candidates against K
sequential runs in every placement, the shares of the Poisson draw and of the noise, memory. Within
a turn all ways are called one after the other, so that whatever else the machine does falls on all
of them alike; a ratio is the median over turns of the ratio within a turn, with quartiles.
docs/performance.md explains the numbers.

  python -m experiments.benchmarks.engine --turns=20 --out_dir=docs/benchmarks   # 7 minutes
  python -m experiments.benchmarks.engine --quick   # small batches, few turns: 2 minutes
  python -m experiments.benchmarks.engine --opacus_python=/some/environment/bin/python

Opacus runs in a process of its own and takes its turns there: by this interpreter where torch and
opacus are installed (the `bench` extra), or by --opacus_python; otherwise it is left out with one
line. Candidates run in a process of their own with 4 host devices on CPU, on the devices there are
on a GPU. Writes engine.csv (model, what, median, low, high, unit) and engine.md with --out_dir.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import pathlib
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence

import jax
from absl import flags
from rich.console import Console
from rich.table import Table

from experiments import command_line
from experiments.benchmarks import candidate_costs, clipped_grad, step_costs

# --models, --turns, --slow_turns, --quick and --out_dir.
flags.adopt_module_key_flags(clipped_grad)
_OPACUS_PYTHON = flags.DEFINE_string(
    "opacus_python", None, "Interpreter that has torch and opacus; this one if unset."
)
_OPACUS = flags.DEFINE_bool("opacus", True, "Measure Opacus where it is installed.")
_CANDIDATES = flags.DEFINE_bool("candidates", True, "Measure many candidates at once.")
_HOST_DEVICES = flags.DEFINE_integer("host_devices", 4, "CPU: devices to spread candidates over.")

COLUMNS = ("model", "what", "median", "low", "high", "unit")
MODELS = ("logistic_regression", "mlp_784_1000_10", "mlp_784_128_64_10", "all_conv_net",
          "transformer")  # fmt: skip


class OpacusProcess:
    """Opacus in a process of its own; each call is one turn there.

    Raises:
      RuntimeError: the process did not get ready; the message is its last line.
    """

    def __init__(self, python: str, model: str, batch: int) -> None:
        script = pathlib.Path(__file__).with_name("opacus_steps.py")
        # Threads that spin while they wait would take the processor from the other process.
        environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
        self._process = subprocess.Popen(
            [python, str(script), model, str(batch)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        if self._process.stdout.readline().strip() != "ready":
            error = (self._process.communicate()[1].strip().splitlines() or ["no output"])[-1]
            raise RuntimeError(error)

    def __call__(self) -> dict[str, float]:
        """Seconds of one step, "opacus" and "torch"."""
        print("step", file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


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
    beside, python = None, opacus_python()
    if python is not None:
        try:
            beside = OpacusProcess(python, model, batch)
        except (OSError, RuntimeError) as error:
            print(f"opacus left out for {model}: {error}")
    seconds, memory = step_costs.measure(step_costs.ways(build(batch)), turns, slow_turns, beside)
    if beside is not None:
        beside.close()
    return step_costs.rows(model, seconds, memory)


def candidate_rows(models: Sequence[str], quick: bool) -> list[dict]:
    """Rows of many candidates at once, from a process of its own."""
    environment = dict(os.environ)
    if jax.default_backend() == "cpu":
        devices = f"--xla_force_host_platform_device_count={_HOST_DEVICES.value}"
        environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {devices}".strip()
    else:
        # The parent keeps a part of the device's memory.
        environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    command = [sys.executable, "-m", "experiments.benchmarks.candidate_costs"]
    command += [f"--candidate_models={','.join(models)}"]
    if quick:
        command += ["--small", "--rounds=2", "--records=600"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the candidates' process failed: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout.splitlines()[-1])


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
    pathlib.Path(paths[1]).write_text(markdown(rows, heading), encoding="utf-8")
    return paths


def main() -> None:
    """Measures, prints and saves."""
    values = flags.FLAGS.flag_values_dict()
    models = values["models"] or list(MODELS)
    unknown = sorted(set(models) - set(clipped_grad.PROBLEMS))
    if unknown:
        known = ", ".join(clipped_grad.PROBLEMS)
        raise ValueError(f"unknown model {unknown[0]!r}: pass some of {known}")
    quick: bool = values["quick"]
    turns, slow_turns = (3, 2) if quick else (values["turns"], values["slow_turns"])
    load: Callable[[], tuple] = getattr(os, "getloadavg", lambda: (0.0,))
    before = load()[0]
    rows = []
    for model in models:
        rows += step_rows(model, quick, turns, slow_turns)
    many = [model for model in models if model in candidate_costs.SIZES]
    if _CANDIDATES.value and many:
        rows += candidate_rows(many, quick)
    batches = ", ".join(str(clipped_grad.PROBLEMS[name][1 if quick else 0]) for name in models)
    heading = (
        f"{jax.devices()[0].device_kind}, {os.cpu_count()} CPU cores, jax {jax.__version__}, "
        f"Python {platform.python_version()}; {turns} turns; batches {batches}; other work on the "
        f"machine: load average {before:.1f} before, {load()[0]:.1f} after. Median (quartiles)."
    )
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
