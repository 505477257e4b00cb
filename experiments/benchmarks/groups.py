"""How many of 1,024 candidates the rule of placement trains at once on an H100, and what they take.

  JAX_PLATFORMS=cpu python -m experiments.benchmarks.groups --out=docs/benchmarks/groups.csv

Programs are compiled without a device; needs what `experiments.benchmarks.h100` names.
"""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from dpjax import training
from experiments.accelerator import problems, programs
from experiments.accelerator.jobs import ALL_CONV, FIGURE_7, GPT, Job
from experiments.benchmarks import bytes as of_bytes
from experiments.benchmarks import h100
from experiments.figures import row_program

CANDIDATES = 1024
MEMORY = int(0.75 * 84_929_347_584)
"""Bytes that JAX takes of an H100 of 80 GB by default."""

COLUMNS = ("model", "lot", "micro_batch", "group", "rows", "estimate_gb", "compiled_gb")
"""Of a row:

  micro_batch   the setting; rows: what it comes to, 0 for the whole lot
  group         candidates at once
  compiled_gb   arguments, results and scratch of a group's program
"""


def settings() -> Iterator[dict[str, Any]]:
    """Yields the first columns of rows."""
    for model, lot, setting in (
        (ALL_CONV, 64, "auto"), (ALL_CONV, 64, "whole lot"), (FIGURE_7, 256, "auto"),
        (GPT, 64, "auto"),
    ):  # fmt: skip
        yield {"model": model, "lot": lot, "micro_batch": setting}


def row_of(setting: Mapping[str, Any]) -> dict[str, Any]:
    """Places the candidates, compiles the program of a group, and returns its row."""
    rows = "auto" if setting["micro_batch"] == "auto" else problems.RECORDS
    job = Job("groups", setting["model"], CANDIDATES, setting["lot"], rows)
    loss, params, records = problems.on_host(job.model, False)
    config = programs.sweep(job, loss, problems.RECORDS, False).config
    device: Any = types.SimpleNamespace(
        platform="gpu", memory_stats=lambda: {"bytes_limit": MEMORY}
    )
    beside = problems.RECORDS * sum(
        math.prod(leaf.shape[1:]) * leaf.dtype.itemsize for leaf in jax.tree.leaves(records)
    )
    with h100.traced():
        own = functools.partial(training.bytes_of_step, config, params, records)
        placement = training.named_placement(
            "rule", CANDIDATES, own, bytes_beside=beside, devices=[device]
        )
        width = placement.width
        estimate = width * own(width)
    lowered, _, found = of_bytes.lowered(job._replace(width=width), h100.sharding())
    compiled = lowered.compile(compiler_options={**programs.DEFAULTS, **h100.UNTUNED})
    memory = compiled.memory_analysis()
    taken = memory.temp_size_in_bytes + memory.argument_size_in_bytes
    taken += memory.output_size_in_bytes
    sizes = {"estimate_gb": estimate, "compiled_gb": taken}
    return {**setting, "group": width, "rows": found} | {
        name: float(f"{value / 1e9:.3g}") for name, value in sizes.items()
    }


if __name__ == "__main__":
    row_program.run(COLUMNS, settings, row_of)
