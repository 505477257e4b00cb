"""Compiles a job: steps of many candidates as a sweep takes them, or of one run by anyone."""

from __future__ import annotations

import contextlib
import dataclasses
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
from experiments.accelerator.jobs import ALL_CONVS, FIGURES_7, GPT, Job
from experiments.benchmarks import contestants, kernels
from experiments.benchmarks.zoo import Problem

_TRACING = threading.Lock()
"""Tracing holds the interpreter: one thread at a time, so that the first jobs compile early."""

_MAKING = threading.Lock()

DEFAULTS = {"xla_gpu_exclude_nondeterministic_ops": True}
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
    if job.contestant == "sweep":
        return _sweep(job, tiny)
    return _single_run(job, tiny)


def problem_of(job: Job, tiny: bool) -> Problem:
    """Returns what a job trains; it is made once."""
    with _MAKING:
        return problems.problem(job.model, tiny)


class Sweep(NamedTuple):
    """Steps of candidates side by side, a function of keys, rates, parameters and records."""

    config: training.TrainConfig
    steps: Callable[[jax.Array, jax.Array, Any, Any], Any]
    keys: jax.Array
    rates: np.ndarray

    def rows(self, params: Any, records: Any) -> int:
        """Returns how many rows of a lot are taken at once; 0 for the whole lot."""
        rows = _rows(self.config, params, records, len(self.rates))
        return rows if rows < self.config.lots.capacity else 0


def _rows(config: training.TrainConfig, params: Any, records: Any, width: int) -> int:
    """Returns how many rows of a lot a sweep of so many candidates side by side takes at once."""
    nothing = jax.tree.map(lambda leaf: None, params)
    state = training.dp_sgd.RunState(nothing, None, params)
    capacity = config.lots.capacity
    return training.dp_sgd.rows_of_micro_batch(config, {}, state, records, capacity, width)


def sweep(job: Job, loss: Callable[..., jax.Array], number: int, tiny: bool) -> Sweep:
    """Returns `job.width` private runs side by side, as `training.sweep` maps them.

    `number` is that of the records.
    """
    rate = job.lot / number
    heavy = job.model in (*FIGURES_7, *ALL_CONVS, GPT) and job.width > 1
    config = training.TrainConfig(
        loss_fn=loss,
        lots=training.PoissonLots(
            number, rate, accounting.lot_capacity(number, rate, _STEPS_OF_FIGURE_7, 1e-8)
        ),
        steps=2 if heavy or tiny else 8,
        expected_lot_size=job.lot,
        optimizer=training.sgd(),
        micro_batch_size=job.rows,
    )
    placement = training.Placement(job.width)

    def steps(words: jax.Array, rates: jax.Array, params: Any, records: Any) -> Any:
        ones = jnp.ones_like(rates)
        given = {"learning_rate": rates, "clip_norm": ones, "noise_multiplier": 1.1 * ones}
        rows = _rows(config, params, records, job.width)
        train = training.make_train(dataclasses.replace(config, micro_batch_size=rows))
        mapped = placement.mapped(train, (0, 0, None, None))
        return mapped(jax.random.wrap_key_data(words, impl="threefry2x32"), given, params, records)

    keys = jax.random.key_data(training.candidate_keys(job.width, seed=0))
    return Sweep(config, steps, keys, np.full(job.width, 0.05, np.float32))


def turns_of_lots(job: Job, rows: int) -> int:
    """Returns the micro-batches that lots take; the candidate with the largest one sets it."""
    largest = job.lot + np.sqrt(2 * job.lot * np.log(max(job.width, 2)))
    return int(-(-largest // rows)) if rows else 1


def _sweep(job: Job, tiny: bool) -> Program:
    """Compiles a sweep."""
    loss, params, records = problem_of(job, tiny)
    made = sweep(job, loss, len(jax.tree.leaves(records)[0]), tiny)
    arguments = (*jax.device_put((made.keys, made.rates), jax.devices()[0]), params, records)
    of_a_gpu = jax.default_backend() == "gpu"
    precision = jax.default_matmul_precision(job.precision) if job.precision else _NOTHING
    start = time.monotonic()
    with _TRACING, precision:
        rows = made.rows(params, records)
        lowered = jax.jit(made.steps).lower(*arguments)
    call = lowered.compile(compiler_options={**DEFAULTS, **job.options} if of_a_gpu else None)
    seconds = time.monotonic() - start
    return _program(call, arguments, made.config.steps, rows, turns_of_lots(job, rows), seconds)


_NOTHING = contextlib.nullcontext()


def _single_run(job: Job, tiny: bool) -> Program:
    """Compiles a contestant of the benchmark; all have lots of this size of the same records."""
    whole = problem_of(job, tiny)
    records = jax.tree.map(lambda rows: rows[: contestants.RECORDS], whole.records)
    builds = contestants.contestants()
    if job.contestant not in builds:
        raise ImportError(f"{job.contestant} is not installed")
    setting = contestants.Setting(0, steps=contestants.STEPS_A_CALL)
    rows = job.rows
    if rows == "auto":
        config = contestants.config_of_ours(whole, job.lot, setting)
        rows = _rows(config, whole.params, records, 1)
        rows = rows if rows < config.lots.capacity else 0
    setting, build = setting._replace(rows=rows), builds[job.contestant]
    start = time.monotonic()
    way = contestants.compiled(build, whole, contestants.tiled(records), job.lot, setting)
    seconds = time.monotonic() - start
    turns = -(-job.lot // setting.rows) if setting.rows else 1
    arguments = (np.uint32(0), *way.arguments)
    return _program(way.call, arguments, setting.steps, setting.rows, turns, seconds)


def _program(
    call: Any, arguments: tuple, steps: int, rows: int, turns: int, seconds: float
) -> Program:
    launched, touched = counted(call.as_text(), steps, turns)
    scratch = call.memory_analysis().temp_size_in_bytes
    return Program(lambda: call(*arguments), steps, rows, launched, touched, scratch, seconds)


def counted(text: str, steps: int, turns: int) -> tuple[int, int]:
    """Returns how many kernels a step launches and how many bytes these touch.

    A loop whose end the program does not say is taken for that over `turns` micro-batches. Where
    the text is not understood there are zeros: the times are worth having.
    """
    try:
        found = kernels.kernels(text)
    except (LookupError, ValueError, StopIteration):
        return 0, 0
    times = [math.prod(turns if trips is None else trips for trips in each.loops) for each in found]
    touched = sum(number * each.bytes for number, each in zip(times, found))
    return round(sum(times) / steps), touched // steps
