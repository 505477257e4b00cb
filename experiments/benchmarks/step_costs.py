"""One step: what clipping, noise, drawing the lot and padding it add to a step without privacy."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import accounting, training
from experiments.benchmarks import clipped_grad
from experiments.benchmarks.clipped_grad import CLIP_NORM, SLOW, Problem

DATASET_SIZE, STEPS, FAILURE_PROBABILITY = 60_000, 10_000, 1e-8
"""The run whose Poisson lots are drawn: MNIST's size, and padding that overflows so rarely."""

WHOLE_STEPS = 4
"""Steps in one call of the engine, so that what a run does once weighs little."""

CHECKED_ROWS = 8

Way = tuple[Callable[..., Any], tuple, int]
"""A function to compile, the arguments to call it with, and how many steps one call takes."""


def ways(problem: Problem) -> dict[str, Way]:
    """What is measured, by name.

    plain, ours, vmap, jax-privacy: as in `clipped_grad.steps`, on a batch of fixed size.
    noisy: ours with Gaussian noise on the sum.
    noise, draw: the noise alone, and a Poisson lot alone.
    whole: the engine's step: draw, gather the padded lot, clip, noise, SGD; seconds of one of
      `WHOLE_STEPS`.
    checked: the engine's step that measures the contributions of `CHECKED_ROWS` records.
    """
    size = len(problem.batch[1])
    key = training.candidate_keys(1, seed=0)[0]
    found: dict[str, Way] = {
        name: (step, (problem.params, problem.batch), 1)
        for name, step in clipped_grad.steps(problem).items()
    }
    grad_fn = training.clipped_grad(problem.loss)

    def noisy(params: Any, batch: Any, key: jax.Array) -> Any:
        summed, _ = grad_fn(params, batch, CLIP_NORM)
        summed = training.add_gaussian_noise(key, summed, CLIP_NORM)
        return jax.tree.map(lambda p, g: p - clipped_grad.LEARNING_RATE / size * g, params, summed)

    probability = size / DATASET_SIZE
    capacity = accounting.lot_capacity(DATASET_SIZE, probability, STEPS, FAILURE_PROBABILITY)
    lots = training.PoissonLots(DATASET_SIZE, probability, capacity)
    config = training.TrainConfig(
        loss_fn=problem.loss,
        lots=lots,
        steps=WHOLE_STEPS,
        expected_lot_size=size,
        optimizer=training.sgd(),
    )
    numbers = {"learning_rate": 0.1, "clip_norm": CLIP_NORM, "noise_multiplier": 1.0}
    repeats = -(-DATASET_SIZE // size)
    records = jax.tree.map(
        lambda rows: jnp.tile(rows, (repeats, *(1,) * (rows.ndim - 1)))[:DATASET_SIZE],
        problem.batch,
    )
    found["noisy"] = noisy, (problem.params, problem.batch, key), 1
    found["noise"] = (
        lambda key, params: training.add_gaussian_noise(key, params, 1.0),
        (key, problem.params),
        1,
    )
    found["draw"] = lambda key: lots.draw(key, DATASET_SIZE), (key,), 1
    for name, rows in (("whole", 0), ("checked", CHECKED_ROWS)):
        train = training.make_train(dataclasses.replace(config, check_contributions=rows))
        found[name] = train, (key, numbers, problem.params, records), WHOLE_STEPS
    return found


def measure(
    found: Mapping[str, Way],
    turns: int,
    slow_turns: int,
    beside: Callable[[], dict[str, float]] | None = None,
) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Seconds of every step, all ways called in turn, and bytes of the compiled ways.

    In a turn a way is called once unmeasured and then as often as fills `_LEAST_SECONDS`, of which
    the mean counts: a training loop finds its own data in the caches, not what another way left
    there. Those of `SLOW` are called once, since they take too long for it to matter.

    Args:
      found: of `ways`.
      turns: calls of each.
      slow_turns: calls of those that form per-example gradients; 0 leaves them out.
      beside: called once a slow turn; seconds by name of what runs in another process.

    Returns:
      seconds by name, and what XLA reserves (arguments, results, scratch) by name.
    """
    compiled, memory = {}, {}
    for name, (function, arguments, _) in found.items():
        if name in SLOW and not slow_turns:
            continue
        with warnings.catch_warnings():
            # jax_privacy 2.0.0 calls names that its dependencies have deprecated.
            warnings.simplefilter("ignore", DeprecationWarning)
            compiled[name] = jax.jit(function).lower(*arguments).compile()
        analysis = compiled[name].memory_analysis()
        memory[name] = (
            analysis.temp_size_in_bytes
            + analysis.argument_size_in_bytes
            + analysis.output_size_in_bytes
        )
        jax.block_until_ready(compiled[name](*arguments))
    seconds: dict[str, list[float]] = {name: [] for name in compiled}
    for turn in range(turns):
        for name, call in compiled.items():
            if name in SLOW and turn >= slow_turns:
                continue
            seconds[name].append(_seconds_of_call(call, found[name][1], name) / found[name][2])
        if beside is not None and turn < slow_turns:
            for name, taken in beside().items():
                seconds.setdefault(name, []).append(taken)
    return seconds, memory


_LEAST_SECONDS = 0.02


def _seconds_of_call(call: Callable[..., Any], arguments: tuple, name: str) -> float:
    """Mean seconds of one call in a row of calls."""

    def row(calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            jax.block_until_ready(call(*arguments))
        return (time.perf_counter() - start) / calls

    return row(1) if name in SLOW else row(max(1, round(_LEAST_SECONDS / row(1))))


def quartiles(over: Sequence[float], under: Sequence[float]) -> tuple[float, float, float]:
    """Median and quartiles, (middle, low, high), of ratios within turns."""
    count = min(len(over), len(under))
    low, middle, high = np.quantile(
        np.asarray(over[:count]) / np.asarray(under[:count]), (0.25, 0.5, 0.75)
    )
    return float(middle), float(low), float(high)


RATIOS = (
    ("no noise / non-private", "ours", "plain"),
    ("with noise / non-private", "noisy", "plain"),
    ("whole engine step / non-private", "whole", "plain"),
    ("whole engine step with checked contributions / whole engine step", "checked", "whole"),
    ("jax-privacy / ours", "jax-privacy", "ours"),
    ("vmap / ours", "vmap", "ours"),
    ("opacus / ours with noise", "opacus", "noisy"),
    ("opacus / non-private torch", "opacus", "torch"),
    ("Poisson draw, share of whole step", "draw", "whole"),
    ("noise, share of step with noise", "noise", "noisy"),
)
"""What is reported, over which, under which."""


def rows(model: str, seconds: Mapping[str, list[float]], memory: Mapping[str, int]) -> list[dict]:
    """One row (model, what, median, low, high, unit) for each number measured."""
    found = []
    for what, over, under in RATIOS:
        if over in seconds and under in seconds:
            middle, low, high = quartiles(seconds[over], seconds[under])
            found.append(dict(what=what, median=middle, low=low, high=high, unit="ratio"))
    for what, over in (("no noise", "ours"), ("with noise", "noisy")):
        share = memory[over] / memory["plain"]
        what = f"memory {what} / non-private"
        found.append(dict(what=what, median=share, low=share, high=share, unit="ratio"))
    for name, taken in seconds.items():
        low, middle, high = (1e3 * float(q) for q in np.quantile(taken, (0.25, 0.5, 0.75)))
        found.append(dict(what=f"time {name}", median=middle, low=low, high=high, unit="ms"))
    return [{"model": model, **row} for row in found]
