"""A few minutes of an accelerator, rehearsed: rows come in order, and say what was not measured."""

import csv
import os
import pathlib
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import training
from dpjax.training.clipping.implicit_convolution import ImplicitConvolutions
from experiments.accelerator import checks, jobs, page, problems, profile, programs
from experiments.accelerator.rows import COLUMNS, RowFile
from experiments.accelerator.timing import Measured
from experiments.benchmarks import h100, kernels
from experiments.benchmarks.least_bytes import LAYERS, least_bytes
from experiments.figures.rows import read_rows

H100 = pathlib.Path(__file__).parents[2] / "docs" / "accelerators" / "h100"
SMALL = jobs.Job("candidates", jobs.LOGISTIC, 2, 8)


def _rows(folder) -> list[dict[str, str]]:
    with open(folder / "sweeps.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_rehearsal_writes_ceilings_then_sweeps_then_peers(tmp_path):
    command = [sys.executable, "-m", "experiments.accelerator.sweeps", f"--out_dir={tmp_path}"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    run = subprocess.run(
        [*command, "--tiny", "--most=1", "--threads=1", "--seconds=1800"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert run.returncode == 0, run.stderr
    found = _rows(tmp_path)
    assert list(found[0]) == list(COLUMNS)
    assert [row["section"] for row in found] == ["ceiling"] * 8 + [
        "candidates",
        "candidates",
        "peers",
    ]
    for row in found[-3:]:
        assert not row["note"] and float(row["milliseconds"]) >= float(row["least_milliseconds"])
        assert float(row["records_a_second"]) > 0 and int(row["kernels"]) > 0


def test_a_rehearsal_times_each_kind_of_tile(tmp_path):
    command = [sys.executable, "-m", "experiments.accelerator.tiles", f"--out_dir={tmp_path}"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    run = subprocess.run(
        [*command, "--tiny", "--threads=1", "--seconds=1800"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert run.returncode == 0, run.stderr
    with open(tmp_path / "tiles.csv", encoding="utf-8", newline="") as file:
        *found, failed = csv.DictReader(file)
    assert len(found) == 6 and {bool(row["pixels"]) for row in found} == {True, False}
    for row in found:
        assert not row["note"] and float(row["milliseconds"]) > 0
        assert float(row["off"]) < (1e-2 if row["type"] == "bfloat16" else 1e-5)
    assert failed["note"].startswith("failed: ZeroDivisionError") and not failed["milliseconds"]


def test_a_gpu_is_checked_with_implicit_convolutions_too():
    with h100.traced():
        of_a_gpu = set(checks.checks(False))
    names = (jobs.FIGURE_7_IMPLICIT, jobs.ALL_CONV_IMPLICIT)
    wanted = {f"{check}: {name}" for check in ("contributions", "formed once") for name in names}
    assert of_a_gpu - set(checks.checks(False)) == wanted
    for name in names:
        loss, _, (images, _) = problems.some(name, True, 3)
        assert isinstance(loss, ImplicitConvolutions) and len(images) == 3
    assert not isinstance(problems.some(jobs.FIGURE_7_CONV, True, 3).loss, ImplicitConvolutions)


def test_patches_that_kernels_spare_count_in_the_price_of_inner_products():
    """Small images of many channels: by inner products if patches are laid out anyway."""

    def forms(model: str) -> list[str]:
        loss, params, records = problems.some(model, False, 3)
        with h100.traced():
            found = training.clipped_grad(loss).explain(params, records).values()
        return [each.form for each in found if each.rule == "convolution"]

    assert forms(jobs.ALL_CONV_CONV) == ["product"] * 3 + ["gram"] * 2
    # Of the last layer inner products are cheap: of pixels, of which patches share most.
    assert forms(jobs.ALL_CONV_IMPLICIT) == ["product"] * 4 + ["gram"]


def test_what_fails_and_what_is_late_are_rows_and_the_rest_is_measured(tmp_path):
    file = RowFile(str(tmp_path))
    measured = Measured(file, copied=1e9, seconds=1200.0, threads=1, tiny=True)
    measured.wave([SMALL._replace(model="no such net"), SMALL])
    measured.finish()
    failed, good = _rows(tmp_path)
    assert failed["note"].startswith("failed: KeyError") and not failed["milliseconds"]
    assert not good["note"] and good["compiling"] == "0"
    seconds = float(good["milliseconds"]) / 1e3
    assert float(good["records_a_second"]) == pytest.approx(2 * 8 / seconds, rel=1e-3)
    share = 100 * float(good["megabytes_a_step"]) * 1e6 / seconds / 1e9
    assert float(good["percent_of_copy"]) == pytest.approx(share, rel=1e-3)
    start = time.monotonic()
    over = Measured(file, copied=1e9, seconds=0.0, threads=1, tiny=True)
    over.wave([SMALL])
    over.finish()
    assert _rows(tmp_path)[-1]["note"] in ("no time", "not compiled in time")
    assert time.monotonic() - start < 600


def test_a_job_takes_the_steps_of_its_candidates():
    program = programs.compiled(SMALL, tiny=True)
    loss, params, records = problems.problem(jobs.LOGISTIC, True)
    given = {"learning_rate": 0.05, "clip_norm": 1.0, "noise_multiplier": 1.1}
    for number, own in enumerate(training.candidate_keys(2, seed=0)):
        lots = training.PoissonLots(512, 8 / 512, 40)
        config = training.TrainConfig(
            loss_fn=loss, lots=lots, steps=2, expected_lot_size=8, optimizer=training.sgd()
        )
        wanted = training.make_train(config)(own, given, params, records)
        found = jax.tree.map(lambda leaf: leaf[number], program.call())  # noqa: B023
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, wanted)


def test_a_profile_names_what_ran_longest_first():
    product = jax.jit(lambda numbers: numbers @ numbers)
    numbers = jnp.ones((256, 256))
    found = profile.kernel_times(lambda: product(numbers), plane="CPU", line="")
    assert found and found == sorted(found, key=lambda kernel: -kernel.milliseconds)
    assert all(kernel.launches >= 1 and kernel.milliseconds >= 0 for kernel in found)
    assert profile.kernel_times(lambda: product(numbers)) == []


def test_jobs_of_a_model_differ():
    every = [job for wave in jobs.waves() for job in wave]
    assert len({(*job[:6], job.variant) for job in every}) == len(every)
    widths = {job.width for job in every if job.model == jobs.ALL_CONV}
    assert {1, 16, 64, 256, 1024} <= widths


# The page ----------------------------------------------------------------------------------------


def test_the_page_is_written_from_its_rows_and_shows_the_picture():
    rows = read_rows(H100 / "sweeps.csv")
    assert page.undisturbed(rows) == rows
    assert (H100 / "sweeps.md").read_text(encoding="utf-8") == page.page(
        rows, read_rows(H100 / "sums.csv")
    )
    assert (H100 / "sweeps.png").stat().st_size > 10_000
    drawn = page.picture(rows).axes[0]
    curves = [line for line in drawn.lines if line.get_linestyle() == "-"]
    found = page.sweeps(rows, jobs.LOGISTIC)
    assert list(curves[0].get_xdata()) == [1, 16, 64, 256, 1024]
    assert curves[0].get_ydata()[-1] == found[1024]["records_a_second"]
    limits = [line.get_ydata()[0] for line in drawn.lines if line.get_linestyle() == ":"]
    assert limits[0] == pytest.approx(2.458e12 / least_bytes(jobs.LOGISTIC, 64))
    assert all(max(curve.get_ydata()) < limit for curve, limit in zip(curves, limits))


def test_verdicts_follow_the_rows():
    rows = read_rows(H100 / "sweeps.csv")
    text = page.page(rows)
    assert text.count("**missed**") == 3 and "jax-privacy was 1.68 times as fast" in text
    sums = read_rows(H100 / "sums.csv")
    fast = [row | {"milliseconds_now": row["milliseconds_now"] / 3} for row in sums]
    assert page.page(rows, sums).count("**missed**") == 3
    assert page.page(rows, fast).count("**missed**") == 0
    # Times without blocks beside those with them are of the second session, like them.
    assert "0.115 ms in the first and 0.0929 ms in the second" in page.page(rows, sums)

    def changed(row: dict) -> dict:
        if row["section"] == "peers" and row["contestant"] == "dpjax":
            return row | {"milliseconds": row["milliseconds"] / 2}
        if row["section"] in ("candidates", "figure 7") and row["milliseconds"]:
            faster = {"records_a_second": row["records_a_second"] * 2.5}
            return row | faster | {"milliseconds": row["milliseconds"] / 2.5}
        return row

    text = page.page([changed(row) for row in rows])
    assert "**missed**" not in text and "dpjax is 1.19 times as fast as jax-privacy" in text


def test_what_was_disturbed_gives_way_to_what_was_timed_again():
    row = read_rows(H100 / "sweeps.csv")[-1] | {"compiling": 3, "note": None}
    again = row | {"compiling": 0, "note": "again", "milliseconds": 1.0}
    other = row | {"model": "another"}
    assert page.undisturbed([row, other, again]) == [other, again]


def test_the_least_bytes_have_the_parameters_of_the_nets():
    for model in problems.NETS:
        params = problems.on_host(model, False).params
        wanted = sum(leaf.size for leaf in jax.tree.leaves(params))
        assert sum(layer.parameters for layer in LAYERS[model]) == wanted


def test_the_least_bytes_of_a_dense_layer():
    """Inputs twice, logits four times; parameters five times in each step."""
    assert least_bytes(jobs.LOGISTIC, 64) == 4 * (2 * 784 + 4 * 10 + 5 * 7850 / 64)
    assert least_bytes(jobs.FIGURE_7_NARROW, 256) < least_bytes(jobs.FIGURE_7, 256)


# The reader of programs --------------------------------------------------------------------------

_PROGRAM = """HloModule jit_f, is_scheduled=true

%sliced (rows: f32[1000,8], at: s32[]) -> f32[4,8] {
  %rows = f32[1000,8]{1,0} parameter(0)
  %at = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %slice = f32[4,8]{1,0} dynamic-slice(%rows, %at, %zero), dynamic_slice_sizes={4,8}
}

%updated (whole: f32[1000,8], part: f32[4,8], at: s32[]) -> f32[1000,8] {
  %whole = f32[1000,8]{1,0} parameter(0)
  %part = f32[4,8]{1,0} parameter(1)
  %at.1 = s32[] parameter(2)
  %zero.1 = s32[] constant(0)
  ROOT %put = f32[1000,8]{1,0} dynamic-update-slice(%whole, %part, %at.1, %zero.1)
}

%body (carry: (s32[], f32[1000,8])) -> (s32[], f32[1000,8]) {
  %carry = (s32[], f32[1000,8]{1,0}) parameter(0)
  %turn = s32[] get-tuple-element(%carry), index=0
  %all = f32[1000,8]{1,0} get-tuple-element(%carry), index=1
  %four = f32[4,8]{1,0} fusion(%all, %turn), kind=kLoop, calls=%sliced
  %next = f32[1000,8]{1,0} fusion(%all, %four, %turn), kind=kLoop, calls=%updated
  ROOT %both = (s32[], f32[1000,8]{1,0}) tuple(%turn, %next)
}

%condition (carry.1: (s32[], f32[1000,8])) -> pred[] {
  %carry.1 = (s32[], f32[1000,8]{1,0}) parameter(0)
  %turn.1 = s32[] get-tuple-element(%carry.1), index=0
  %end = s32[] constant(5)
  ROOT %less = pred[] compare(%turn.1, %end), direction=LT
}

ENTRY %main (start: (s32[], f32[1000,8])) -> (s32[], f32[1000,8]) {
  %start = (s32[], f32[1000,8]{1,0}) parameter(0)
  ROOT %loop = (s32[], f32[1000,8]{1,0}) while(%start), condition=%condition, body=%body, \
backend_config={"known_trip_count":{"n":"5"}}
}
"""


def test_slices_count_where_a_kernel_reads_or_writes_no_more():
    """A slice of 4 x 8 floats, read and written; its index; the comparison's three numbers."""
    found = {kernel.name: kernel for kernel in kernels.kernels(_PROGRAM)}
    assert set(found) == {"four", "next", "less"}
    assert found["four"].bytes == 2 * 128 + 4
    assert found["next"].bytes == 2 * 128 + 4
    assert found["less"].bytes == 1 + 2 * 4
    assert all(kernel.loops == (5,) for kernel in found.values())


def test_a_workspace_of_a_library_does_not_count():
    text = """
ENTRY %main (left: f32[4,8], right: f32[8,2]) -> f32[4,2] {
  %left = f32[4,8]{1,0} parameter(0)
  %right = f32[8,2]{1,0} parameter(1)
  %product = (f32[4,2]{1,0}, s8[4194304]{0}) custom-call(%left, %right), \
custom_call_target="__cublas$lt$matmul"
  ROOT %found = f32[4,2]{1,0} get-tuple-element(%product), index=0
}
"""
    (product,) = kernels.kernels(text)
    assert product.bytes == 4 * (4 * 8 + 8 * 2 + 4 * 2)


def test_a_compiled_program_is_read():
    def turns(numbers: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 3, lambda turn, numbers: jnp.sin(numbers @ numbers), numbers)

    text = jax.jit(turns).lower(jnp.ones((64, 64))).compile().as_text()
    found = kernels.kernels(text)
    inside = sum(kernel.bytes for kernel in found if kernel.loops == (3,))
    # A product of two operands and a result, and a sine, perhaps in the same kernel.
    assert 2 * 64**2 * 4 <= inside <= 8 * 64**2 * 4
