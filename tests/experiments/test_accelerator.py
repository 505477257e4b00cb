"""A few minutes of an accelerator, rehearsed: rows come in order, and say what was not measured."""

import csv
import os
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import models, training
from experiments.accelerator import jobs, problems, profile, programs
from experiments.accelerator.rows import COLUMNS, RowFile
from experiments.accelerator.timing import Measured
from experiments.benchmarks import kernels

SMALL = jobs.Job("candidates", jobs.LOGISTIC, 2, 8)


def _rows(folder) -> list[dict[str, str]]:
    with open(folder / "sweeps.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_rehearsal_writes_ceilings_then_sweeps_then_peers(tmp_path):
    command = [sys.executable, "-m", "experiments.accelerator.sweeps", f"--out_dir={tmp_path}"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    run = subprocess.run(
        [*command, "--tiny", "--most=1", "--threads=1", "--seconds=300"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    found = _rows(tmp_path)
    assert list(found[0]) == list(COLUMNS)
    assert [row["section"] for row in found] == ["ceiling"] * 8 + ["candidates", "one-hot", "peers"]
    for row in found[-3:]:
        assert not row["note"] and float(row["milliseconds"]) >= float(row["least_milliseconds"])
        assert float(row["records_a_second"]) > 0 and int(row["kernels"]) > 0


def test_what_fails_and_what_is_late_are_rows_and_the_rest_is_measured(tmp_path):
    file = RowFile(str(tmp_path))
    measured = Measured(file, copied=1e9, seconds=120.0, threads=1, tiny=True)
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
    assert time.monotonic() - start < 60


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


def test_one_hot_labels_give_the_same_loss():
    logits = jnp.asarray(np.random.default_rng(0).normal(size=10), jnp.float32)
    for label in range(10):
        want = jax.value_and_grad(models.cross_entropy)(logits, jnp.int32(label))
        found = jax.value_and_grad(problems.one_hot_cross_entropy)(logits, jnp.int32(label))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found, want)


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


def test_a_compiled_program_is_read():
    def turns(numbers: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 3, lambda turn, numbers: jnp.sin(numbers @ numbers), numbers)

    text = jax.jit(turns).lower(jnp.ones((64, 64))).compile().as_text()
    found = kernels.kernels(text)
    inside = sum(kernel.bytes for kernel in found if kernel.loops == (3,))
    # A product of two operands and a result, and a sine, perhaps in the same kernel.
    assert 2 * 64**2 * 4 <= inside <= 8 * 64**2 * 4
