"""The benchmark: whole steps of everyone at their best, many candidates at once, memory.

  python -m experiments.benchmarks --out_dir=docs/benchmarks     # hours; goes on if stopped
  python -m experiments.benchmarks --models=lstm,gpt --lots=64,256
  python -m experiments.benchmarks --quick                       # tiny models, a minute
  python -m experiments.benchmarks --opacus_python=/some/environment/bin/python

For each model and lot every contestant (`contestants.py`) is searched: every micro-batch of 1, 2,
4, ... rows and the whole lot, then several steps a call, then `jax.checkpoint` around the loss. The
best of each, and ours with the micro-batches of "auto", then take their steps in turn in one
process; a ratio is the median over turns of the ratio within a turn, with quartiles. Times are CPU
times of the process on a CPU, wall times elsewhere. Memory is the scratch that XLA reserves; for
torch what a step adds to resident memory.

Rows, in --out_dir, a finished part at a time:

  search.csv      every trial: the search log
  steps.csv       the steps in turn
  candidates.csv  candidates side by side: time and memory of one
  memory.csv      scratch against lots, compiled and not run
  steps.md        all of them as tables

A ratio is printed for contestants alone whose search log is whole (`steps.ratio`).
"""

from __future__ import annotations

import pathlib

import jax
from absl import flags
from rich.console import Console

from dpjax.commands import command_line
from experiments.benchmarks import contestants, steps
from experiments.benchmarks.zoo import ZOO

_MODELS = flags.DEFINE_list("models", list(steps.MODELS), "Models of the zoo.")
_LOTS = flags.DEFINE_list("lots", ["64"], "Expected lots of the steps, powers of two.")
_TURNS = flags.DEFINE_integer("turns", 7, "Turns of the best ways.", lower_bound=1)
_PARTS = flags.DEFINE_list("parts", ["steps", "candidates", "memory"], "What is measured.")
_QUICK = flags.DEFINE_bool("quick", False, "Tiny models, a lot of 8, few turns.")
_AGAIN = flags.DEFINE_bool(
    "again", False, "Steps that have rows are timed again, by the settings that were found."
)
_OUT_DIR = flags.DEFINE_string("out_dir", None, "Folder of the rows.")
_GIGABYTES = flags.DEFINE_float(
    "gigabytes",
    None,
    "A trial that reserves more is not run. Default: 8, half of an accelerator's memory.",
)
_OPACUS_PYTHON = flags.DEFINE_string(
    "opacus_python", None, "Interpreter that has torch and opacus; left out if unset."
)


def main() -> None:
    """Measures what is missing, and prints the tables."""
    unknown = sorted(set(_MODELS.value) - set(ZOO))
    if unknown:
        raise ValueError(f"unknown model {unknown[0]!r}: pass some of {', '.join(ZOO)}")
    limits = steps.Limits(
        _TURNS.value, _GIGABYTES.value, opacus_python=_OPACUS_PYTHON.value, again=_AGAIN.value
    )
    lots = [int(lot) for lot in _LOTS.value]
    if _QUICK.value:
        limits, lots = limits._replace(turns=2, seconds=5.0, tiny=True), [8]
    for lot in lots:
        contestants.sizes(lot)
    if not limits.opacus_python:
        print("opacus left out: name an interpreter that has torch and opacus by --opacus_python")
    folder = steps.Folder(_OUT_DIR.value)
    wanted = steps.parts(folder, _PARTS.value, _MODELS.value, lots, limits)
    with command_line.progress_bar(Console()) as bar:
        task = bar.add_task("parts", total=len(wanted))
        for name, model, lot, measure in wanted:
            bar.update(task, description=f"{name}: {model}, lot {lot}")
            measure()
            jax.clear_caches()
            if folder.path:
                text = steps.page(folder.rows)
                pathlib.Path(folder.path, "steps.md").write_text(text, encoding="utf-8")
            bar.advance(task)
    print(steps.tables(folder.rows))


if __name__ == "__main__":
    command_line.run(main)
