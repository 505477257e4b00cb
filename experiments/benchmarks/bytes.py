"""What sweeps launch and move on an H100, by programs compiled without one.

  JAX_PLATFORMS=cpu python -m experiments.benchmarks.bytes --out=docs/benchmarks/bytes.csv
  ... --models=figure_7_net,gpt    # some; the nets with a formula of least bytes come first

Needs what `experiments.benchmarks.h100` names; a program takes 10 to 200 s. Rows that the file
holds are not made again: remove those of a model that has changed. The page, bytes.md, is written
beside it. Lots have 64 records, those of figure 7's net 256. The micro-batch is that of "auto".
"""

from __future__ import annotations

import math
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from experiments.accelerator import problems, programs
from experiments.accelerator.jobs import FIGURES_7, Job
from experiments.benchmarks import h100
from experiments.benchmarks.least_bytes import LAYERS, least_bytes
from experiments.benchmarks.zoo import ZOO
from experiments.figures import row_program
from experiments.figures.rows import table

WIDTHS = (1, 64, 256)
COLUMNS = (
    "model",
    "candidates",
    "lot",
    "jax",
    "rows",
    "kernels",
    "kilobytes_a_record",
    "least_kilobytes_a_record",
    "scratch_mb",
    "lowered_mb",
)
"""Of a row:

  rows                      of a micro-batch, 0 for the whole lot
  kernels                   launched in a step of all candidates
  kilobytes_a_record        that the kernels touch in a step, for each record of the expected lots
  least_kilobytes_a_record  by the formula of `experiments.benchmarks.least_bytes`
  scratch_mb                of device memory beside parameters and records
  lowered_mb                of all results in the program before it is compiled, loops taken once
"""

RISE = 1.05
"""A number that rises by more is a defect: what a step launches and moves is its speed."""

OLDER = (
    *("depthwise", "u_net", "lora_beside", "last_layer", "associative_scan", "lora_merged"),
    *("bfloat16_transformer", "wrn_16_4", "wrn_16_4_standardised", "vit_ti", "gpt", "lstm", "gru"),
)
"""Models whose rows are of programs that draw the lot of each step by itself."""

_RESULT = re.compile(r"tensor<((?:\d+x)*)([a-z]+\d+)>")


def job_of(model: str, candidates: int) -> Job:
    """Returns what is compiled."""
    return Job("bytes", model, candidates, 256 if model in FIGURES_7 else 64, "auto")


def lowered(job: Job, place: jax.sharding.Sharding | None) -> tuple[jax.stages.Lowered, int, int]:
    """Returns a sweep's program before it is compiled, its steps, and the rows of a micro-batch.

    `place` is that of the arguments; None lowers it for a GPU that need not be known here.
    """
    loss, params, few = problems.on_host(job.model, False)
    made = programs.sweep(job, loss, problems.RECORDS, False)

    def shape(leaf: Any, *leading: int) -> jax.ShapeDtypeStruct:
        lengths = (*leading, *jnp.shape(leaf)[len(leading) :])
        return jax.ShapeDtypeStruct(lengths, jnp.result_type(leaf), sharding=place)

    params = jax.tree.map(shape, params)
    records = jax.tree.map(lambda leaf: shape(leaf, problems.RECORDS), few)
    with h100.traced():
        rows = made.rows(params, records)
        traced = jax.jit(made.steps).trace(shape(made.keys), shape(made.rates), params, records)
        text = traced.lower() if place else traced.lower(lowering_platforms=("cuda",))
    return text, made.config.steps, rows


def result_bytes(text: str) -> int:
    """Returns the bytes of the results of all operations of a program in StableHLO.

    Each stands once, whatever is fused later and however often a loop turns: what two versions of
    the same program differ by, known without a compiler for the device.
    """
    found = 0
    for line in text.splitlines():
        # An operation with a body names its result where the body ends.
        if " = " in line or line.lstrip().startswith("})"):
            _, _, types = line.rpartition(" -> " if " -> " in line else " : ")
            for lengths, kind in _RESULT.findall(types):
                bits = 8 if kind == "i1" else int(re.findall(r"\d+", kind)[0])
                found += math.prod(map(int, lengths.split("x")[:-1])) * bits // 8
    return found


def lowered_megabytes(model: str, candidates: int) -> float:
    """Returns `lowered_mb` of a row; needs no plugin."""
    before, _, _ = lowered(job_of(model, candidates), None)
    return _rounded(result_bytes(before.as_text()) / 1e6)


def risen(row: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Returns what of `found` is more than a committed row's, by more than `RISE`, in words."""
    names = ("kernels", "kilobytes_a_record", "scratch_mb", "lowered_mb")
    return [
        f"{row['model']}, {row['candidates']} candidates: {name} {row[name]} -> {found[name]}"
        for name in names
        if name in found and found[name] > RISE * row[name]
    ]


def settings(models: str | None = None) -> Iterator[dict[str, Any]]:
    """Yields the first columns of rows; the models with a formula come first."""
    named = models.split(",") if models else list(dict.fromkeys((*LAYERS, *ZOO)))
    for model in named:
        for candidates in WIDTHS:
            lot = job_of(model, candidates).lot
            yield {"model": model, "candidates": candidates, "lot": lot, "jax": jax.__version__}


def row_of(setting: Mapping[str, Any], models: str | None = None) -> dict[str, Any]:
    """Compiles a program, and returns its row."""
    del models
    job = job_of(setting["model"], setting["candidates"])
    before, steps, rows = lowered(job, h100.sharding())
    compiled = before.compile(compiler_options={**programs.DEFAULTS, **h100.UNTUNED})
    turns = programs.turns_of_lots(job, rows)
    launched, touched = programs.counted(compiled.as_text(), steps, turns)
    least = least_bytes(job.model, job.lot) if job.model in LAYERS else None
    return {
        **setting,
        "rows": rows,
        "kernels": launched,
        "kilobytes_a_record": _rounded(touched / 1e3 / job.width / job.lot),
        "least_kilobytes_a_record": None if least is None else _rounded(least / 1e3),
        "scratch_mb": _rounded(compiled.memory_analysis().temp_size_in_bytes / 1e6),
        "lowered_mb": _rounded(result_bytes(before.as_text()) / 1e6),
    }


def _rounded(number: float) -> float:
    return float(f"{number:.5g}")


def page(rows: Sequence[Mapping]) -> str:
    """Returns the page of the rows."""
    lines = [
        "# Bytes of a sweep on an H100", "",
        "The table counts the kernels that a private step of many candidates launches, and the "
        "bytes that it moves. Counts are of programs that were compiled for an H100 on a machine "
        "without one ([rows](bytes.csv), `python -m experiments.benchmarks.bytes`). Fewer bytes "
        "make a sweep faster, because [memory traffic limits it]"
        "(../accelerators/h100/sweeps.md).", "",
        "Bytes are those of all operands and results of the kernels, per record of an expected "
        "lot. Memory traffic is at most this, since a cache holds some of them. The column "
        "\"least\" follows from [a formula by layer](#the-formula). A program that the compiler "
        "tuned on a device differs by a few percent.", "",
        "Nets whose names end in `_conv` have `nn.Conv` in place of patches. Those in `_implicit` "
        "have it too, by [kernels that never store a patch](../accelerators.md#"
        "convolutions-without-patches), which are off until a device has passed its checks with "
        "them. Those in `_bfloat16` have activations of that type ([the option]"
        "(../accelerators.md#activations-in-bfloat16)).", "",
    ]  # fmt: skip
    if older := [name for name in OLDER if any(row["model"] == name for row in rows)]:
        lines += [
            f"Rows of {', '.join(older)} are of earlier programs, which draw the lot of each step "
            "by itself, and copy factors to clear rows that do not count. Both take more kernels.",
            "",
        ]
    cells = []
    for row in rows:
        taken, least = row["kilobytes_a_record"], row["least_kilobytes_a_record"]
        cells.append(
            [
                row["model"],
                *(str(row[name]) for name in ("candidates", "lot")),
                str(row["rows"] or "whole lot"),
                f"{row['kernels']:,}",
                _sized(taken),
                "" if least is None else _sized(least),
                "" if least is None else f"{100 * taken / least:,.0f}%",
                f"{row['scratch_mb']:,.0f}",
            ]
        )
    head = ["model", "candidates", "lot", "rows at once", "kernels per step"]
    head += ["kB per record", "least", "share of the least", "scratch, MB"]
    versions = ", ".join(dict.fromkeys(str(row["jax"]) for row in rows))
    formula = [
        "", f"Compiled by jax {versions}, products by libraries, without operations that add in "
        "whatever order threads arrive.", "", "## The formula", "",
        "The formula counts passes over memory, in float32 (activations of a net in `_bfloat16` in "
        "that type):", "",
        "| array | passes | which |", "|---|---|---|",
        "| a layer's output | 4 | written, read for the derivative, its gradient read twice |",
        "| a layer's input | 3, or 2 in the first layer | read twice, its gradient written |",
        "| pooling | 4 | 2 of its input, 2 of its output |",
        "| a convolution's kernel | 3 per record | its gradient written, read for the norm, "
        "read for the sum |",
        "| a parameter | 6 per step, or 5 in the first layer | read twice, the sum written and "
        "read, then read and written by the update |", "",
        "The formula charges nothing for noise, lots, clipping weights, biases and activations, "
        "and takes the expected number of rows. A real step has more rows. It has all that a lot "
        "may hold (129 for an expected 64), or the micro-batches of the candidate with the "
        "largest lot. In logistic regression most bytes go to passes over these rows. They are "
        "gathered, and read for the product, the norm and the gradient.", "",
    ]  # fmt: skip
    return "\n".join([*lines, table(head, cells), *formula])


def _sized(kilobytes: float) -> str:
    return f"{kilobytes:,.0f}" if kilobytes >= 100 else f"{kilobytes:.1f}"


def main() -> None:
    """Compiles what is missing, and writes the page."""
    out, rows = row_program.run(COLUMNS, settings, row_of, models="names, with commas between")
    pathlib.Path(out).with_suffix(".md").write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
