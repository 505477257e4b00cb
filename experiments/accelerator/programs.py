"""Compiles a job: steps of many candidates as a sweep takes them, or of one run by anyone."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import accounting, training
from experiments.accelerator import problems
from experiments.accelerator.jobs import ALL_CONV, FIGURE_7, GPT, ONE_HOT, Job
from experiments.benchmarks import contestants, kernels
from experiments.benchmarks.zoo import Problem

_TRACING = threading.Lock()
"""Tracing holds the interpreter: one thread at a time, so that the first jobs compile early."""

_MAKING = threading.Lock()

_DEFAULTS = {"xla_gpu_exclude_nondeterministic_ops": True}
"""As `training.jit` compiles."""

_STEPS_OF_FIGURE_7 = 14_062
"""A lot's capacity is such that one of so many steps overflows with probability 1e-8."""


class Program(NamedTuple):
    """A compiled call of `steps` steps; of one step: kernels launched and bytes they touch."""

    call: Callable[[], Any]
    steps: int
    rows: int
    kernels: int
    bytes: int
    scratch: int
    compile_seconds: float


def compiled(job: Job, tiny: bool) -> Program:
    """Compiles a job; `tiny` is a rehearsal."""
    if job.contestant in ("sweep", ONE_HOT):
        return _sweep(job, tiny)
    return _single_run(job, tiny)


def problem_of(job: Job, tiny: bool) -> Problem:
    """Returns what a job trains; it is made once."""
    with _MAKING:
        return problems.problem(job.model, tiny, job.contestant == ONE_HOT)


def _sweep(job: Job, tiny: bool) -> Program:
    """Compiles `job.width` private runs side by side, as `training.sweep` maps them."""
    loss, params, records = problem_of(job, tiny)
    number = len(jax.tree.leaves(records)[0])
    rate = job.lot / number
    capacity = accounting.lot_capacity(number, rate, _STEPS_OF_FIGURE_7, 1e-8)
    heavy = job.model in (FIGURE_7, ALL_CONV, GPT) and job.width > 1
    config = training.TrainConfig(
        loss_fn=loss,
        lots=training.PoissonLots(number, rate, capacity),
        steps=2 if heavy or tiny else 8,
        expected_lot_size=job.lot,
        optimizer=training.sgd(),
        micro_batch_size=job.rows,
    )
    mapped = training.Placement(job.width).mapped(training.make_train(config), (0, 0, None, None))

    def steps(words: jax.Array, rates: jax.Array, params: Any, records: Any) -> Any:
        ones = jnp.ones_like(rates)
        given = {"learning_rate": rates, "clip_norm": ones, "noise_multiplier": 1.1 * ones}
        return mapped(jax.random.wrap_key_data(words, impl="threefry2x32"), given, params, records)

    keys = jax.random.key_data(training.candidate_keys(job.width, seed=0))
    rates = np.full(job.width, 0.05, np.float32)
    arguments = jax.device_put((keys, rates), jax.devices()[0]) + (params, records)
    of_a_gpu = jax.default_backend() == "gpu"
    precision = jax.default_matmul_precision(job.precision) if job.precision else _NOTHING
    start = time.monotonic()
    with _TRACING, precision:
        rows = _rows(config, params, records)
        lowered = jax.jit(steps).lower(*arguments)
    call = lowered.compile(compiler_options={**_DEFAULTS, **job.options} if of_a_gpu else None)
    seconds = time.monotonic() - start
    # Every turn is as long as the candidate with the largest lot asks for.
    largest = job.lot + np.sqrt(2 * job.lot * np.log(max(job.width, 2)))
    turns = int(-(-largest // rows)) if rows < capacity else 1
    return _program(call, arguments, config.steps, rows if rows < capacity else 0, turns, seconds)


_NOTHING = contextlib.nullcontext()


def _rows(config: training.TrainConfig, params: Any, records: Any) -> int:
    """Returns how many rows of a lot are taken at once."""
    nothing = jax.tree.map(lambda leaf: None, params)
    state = training.dp_sgd.RunState(nothing, None, params)
    return training.dp_sgd.rows_of_micro_batch(config, {}, state, records, config.lots.capacity)


def _single_run(job: Job, tiny: bool) -> Program:
    """Compiles a contestant of the benchmark; all have lots of this size of the same records."""
    whole = problem_of(job, tiny)
    records = jax.tree.map(lambda rows: rows[: contestants.RECORDS], whole.records)
    builds = {**contestants.contestants(), "dpjax auto": contestants.dpjax_auto}
    if job.contestant not in builds:
        raise ImportError(f"{job.contestant} is not installed")
    auto = job.rows == "auto"
    build = builds["dpjax auto" if auto else job.contestant]
    setting = contestants.Setting(0 if auto else job.rows, steps=contestants.STEPS_A_CALL)
    start = time.monotonic()
    way = contestants.compiled(build, whole, contestants.tiled(records), job.lot, setting)
    seconds = time.monotonic() - start
    turns = -(-job.lot // setting.rows) if setting.rows else 1
    arguments = (np.uint32(0), *way.arguments)
    return _program(way.call, arguments, setting.steps, setting.rows, turns, seconds)


def _program(
    call: Any, arguments: tuple, steps: int, rows: int, turns: int, seconds: float
) -> Program:
    launched, touched = _launched(call.as_text(), turns)
    scratch = call.memory_analysis().temp_size_in_bytes
    return Program(
        lambda: call(*arguments),
        steps,
        rows,
        round(launched / steps),
        touched // steps,
        scratch,
        seconds,
    )


def _launched(text: str, turns: int) -> tuple[int, int]:
    """Returns how many kernels a call launches and how many bytes these touch.

    A loop whose end the program does not say is taken for that over micro-batches. A text that is
    not understood gives zeros: its times are worth having.
    """
    try:
        found = kernels.kernels(text)
    except (LookupError, ValueError, StopIteration):
        return 0, 0
    times = [math.prod(turns if trips is None else trips for trips in each.loops) for each in found]
    return sum(times), sum(number * each.bytes for number, each in zip(times, found))
