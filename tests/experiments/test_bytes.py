"""What a sweep moves does not rise; the compiled counts where JAX's CUDA plugin is installed.

The program before it is compiled is lowered for a GPU on any machine: the bytes of all its results
are counted everywhere. Kernels, bytes and scratch need a compiler for an H100.
"""

import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from dpjax import training
from experiments.accelerator import problems, programs
from experiments.benchmarks import bytes as of_bytes
from experiments.benchmarks import h100
from experiments.figures.rows import read_rows, select

DOCS = pathlib.Path(__file__).parents[2] / "docs" / "benchmarks"
ROWS = read_rows(DOCS / "bytes.csv")
CHECKED = [("logistic_regression", 64), ("mlp_784_128_64_10", 64), ("figure_7_net", 64)]
CHECKED += [("figure_7_net_implicit", 64), ("figure_7_net_implicit_bfloat16", 64)]


def _in_a_process(expression: str) -> list[dict]:
    """Returns what an expression finds for every checked model: rules trace there as on a GPU."""
    words = (
        "import json; from experiments.benchmarks import bytes as b; print(json.dumps("
        f"[{expression} for model, candidates in {CHECKED}]))"
    )
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    ran = subprocess.run(
        [sys.executable, "-c", words], env=environment, capture_output=True, text=True, timeout=600
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def _refuse_rises(expression: str) -> None:
    committed = [select(ROWS, model=model, candidates=number)[0] for model, number in CHECKED]
    if {row["jax"] for row in committed} != {jax.__version__}:
        pytest.skip(f"the rows are of jax {committed[0]['jax']}")
    rises = []
    for row, found in zip(committed, _in_a_process(expression), strict=True):
        rises += of_bytes.risen(row, found)
    assert not rises, "\n".join(rises)


def test_the_page_is_written_from_its_rows():
    assert (DOCS / "bytes.md").read_text(encoding="utf-8") == of_bytes.page(ROWS)


def test_every_net_with_a_formula_has_its_rows_and_none_is_below_it():
    for model in of_bytes.LAYERS:
        assert [row["candidates"] for row in select(ROWS, model=model)] == list(of_bytes.WIDTHS)
        for row in select(ROWS, model=model):
            assert row["kilobytes_a_record"] > row["least_kilobytes_a_record"]


@pytest.mark.parametrize("model", ["logistic_regression", "mlp_784_128_64_10", "all_conv_net_conv"])
def test_what_a_step_is_estimated_to_take_is_no_less_than_was_compiled(model):
    """The placement "rule" keeps this within a device's memory."""
    loss, params, records = problems.some(model, False, 8)
    for row in select(ROWS, model=model)[1:]:
        job = of_bytes.job_of(model, row["candidates"])
        config = programs.sweep(job, loss, problems.RECORDS, False).config
        with h100.traced():
            own = training.bytes_of_step(config, params, records, job.width)
        assert row["scratch_mb"] < 0.7 * job.width * own / 1e6


def test_programs_before_they_are_compiled_have_not_grown():
    """Lowered for a GPU, so the plugin is not needed; loops count once, whatever is fused later."""
    _refuse_rises('{"lowered_mb": b.lowered_megabytes(model, candidates)}')


@pytest.mark.skipif(not h100.is_installed(), reason="needs JAX's CUDA plugin: no device, 300 MB")
def test_programs_for_an_h100_launch_and_move_no_more():
    setting = '{"model": model, "candidates": candidates, "lot": b.job_of(model, candidates).lot}'
    _refuse_rises(f"b.row_of({setting})")


def test_a_rise_of_more_than_five_percent_is_named():
    row = select(ROWS, model="figure_7_net", candidates=64)[0]
    assert of_bytes.risen(row, row | {"kernels": row["kernels"] * 1.04, "scratch_mb": 0}) == []
    (said,) = of_bytes.risen(row, {"lowered_mb": row["lowered_mb"] * 1.06})
    assert said.startswith("figure_7_net, 64 candidates: lowered_mb")


def test_results_of_operations_with_and_without_bodies_count():
    def steps(numbers: jax.Array) -> jax.Array:
        turned = jax.lax.fori_loop(0, 9, lambda turn, kept: kept * 2, numbers)
        return jax.lax.sort(turned)

    def found(rows: int) -> int:
        text = jax.jit(steps).lower(jnp.ones((rows, 100))).as_text()
        return of_bytes.result_bytes(text)

    # The loop, the product and its factor, the sorted numbers; the turns of the loop do not count.
    assert 4 * 40_000 <= found(100) <= 7 * 40_000
    assert 0 <= 10 * found(100) - found(1000) < 1000
