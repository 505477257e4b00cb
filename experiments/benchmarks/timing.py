"""Ways of taking one training step, called in turn, so that ratios within a turn are comparable.

Whatever else the machine does falls on all ways of a turn alike; a ratio is the median over turns,
with quartiles. `engine` measures wall time, `zoo_steps` CPU time.
"""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import accounting, training
from experiments.benchmarks.zoo import Problem

LEARNING_RATE, CLIP_NORM = 0.1, 1.0
HYPERPARAMETERS = {
    "learning_rate": LEARNING_RATE, "clip_norm": CLIP_NORM, "noise_multiplier": 1.0
}  # fmt: skip

WHOLE_STEPS = 4
"""Steps in one call of the engine, so that what a run does once weighs little."""


class Timed(Protocol):
    """Anything that tells how long one step takes now."""

    def seconds(self) -> float: ...


class Way(NamedTuple):
    """One compiled way of taking a step.

    `scratch` is what XLA reserves for itself, `bytes` that with arguments and results. The calls of
    one turn fill `least_seconds` of the `clock`. If `warmed`, a turn begins with a call that does
    not count: a training loop finds its own data in the caches, not what another way left there.
    `rows` are those of a micro-batch that was chosen by trial.
    """

    call: Callable[..., Any]
    arguments: tuple
    scratch: int
    bytes: int
    compile_seconds: float
    clock: Callable[[], float] = time.process_time
    least_seconds: float = 0.05
    warmed: bool = False
    steps: int = 1
    rows: int | None = None

    def seconds(self) -> float:
        """Returns the mean seconds of a step over the calls of one turn."""
        if self.warmed:
            jax.block_until_ready(self.call(*self.arguments))
        start, calls = self.clock(), 0
        while not calls or self.clock() - start < self.least_seconds:
            jax.block_until_ready(self.call(*self.arguments))
            calls += 1
        return (self.clock() - start) / calls / self.steps

    @property
    def megabytes(self) -> float:
        """Returns the scratch."""
        return self.scratch / 2**20


def compiled(function: Callable[..., Any], *arguments: Any, **more: Any) -> Way:
    """Compiles a function for its arguments and calls it once; `more` are fields of its `Way`."""
    start = time.process_time()
    with warnings.catch_warnings():
        # jax_privacy 2.0.0 calls names that its dependencies have deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        call = jax.jit(function).lower(*arguments).compile()
    seconds = time.process_time() - start
    jax.block_until_ready(call(*arguments))
    memory = call.memory_analysis()
    scratch = memory.temp_size_in_bytes
    whole = scratch + memory.argument_size_in_bytes + memory.output_size_in_bytes
    return Way(call, arguments, scratch, whole, seconds, **more)


def in_turn(ways: Mapping[str, Timed], turns: Callable[[str], int]) -> dict[str, list[float]]:
    """Returns the seconds of each way in each turn; `turns` says how many turns a way takes."""
    number = {name: turns(name) for name in ways}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(max(number.values())):
        for name, way in ways.items():
            if turn < number[name]:
                seconds[name].append(way.seconds())
    return seconds


def quartiles(over: Sequence[float], under: Sequence[float]) -> tuple[float, float, float]:
    """Returns median and quartiles, (middle, low, high), of ratios within turns."""
    count = min(len(over), len(under))
    ratios = np.asarray(over[:count]) / np.asarray(under[:count])
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    return float(middle), float(low), float(high)


# The steps ---------------------------------------------------------------------------------------


def updated(params: Any, gradients: Any, size: int = 1) -> Any:
    """Returns parameters after one step of SGD by the mean of `size` gradients' sum."""

    def step(value: jax.Array, slope: jax.Array) -> jax.Array:
        return (value - LEARNING_RATE / size * slope).astype(value.dtype)

    return jax.tree.map(step, params, gradients)


def plain(problem: Problem) -> Callable[[Any, Any], Any]:
    """Returns the step without privacy: the gradient of the mean loss."""

    def mean_loss(params: Any, batch: Any) -> jax.Array:
        return jax.vmap(problem.loss, (None, 0))(params, batch).mean()

    return lambda params, batch: updated(params, jax.grad(mean_loss)(params, batch))


def by_vmap(problem: Problem, size: int) -> Callable[[Any, Any], Any]:
    """Returns the step that forms every example's gradient, then clips and adds up."""

    def step(params: Any, batch: Any) -> Any:
        gradients = jax.vmap(jax.grad(problem.loss), (None, 0))(params, batch)
        squares = [
            jnp.square(leaf).reshape(size, -1).sum(axis=1) for leaf in jax.tree.leaves(gradients)
        ]
        weights = jnp.minimum(1, CLIP_NORM / jnp.sqrt(sum(squares)))
        return updated(
            params, jax.tree.map(lambda leaf: jnp.tensordot(weights, leaf, 1), gradients), size
        )

    return step


def by_jax_privacy(
    problem: Problem, size: int, rows: int | None = None
) -> Callable[[Any, Any], Any] | None:
    """Returns the step by `jax_privacy.clipped_grad`; None where it is not installed.

    `rows` are those of a micro-batch.
    """
    if importlib.util.find_spec("jax_privacy") is None:
        return None
    import jax_privacy

    theirs = jax_privacy.clipped_grad(
        problem.loss,
        l2_clip_norm=CLIP_NORM,
        keep_batch_dim=False,
        normalize_by=float(size),
        microbatch_size=None if rows == size else rows,
    )
    return lambda params, batch: updated(params, theirs(params, batch))


def tiled(records: Any, number: int) -> Any:
    """Returns so many records, by repeating those that there are."""

    def repeated(rows: jax.Array) -> jax.Array:
        return jnp.tile(rows, (-(-number // len(rows)), *(1,) * (rows.ndim - 1)))[:number]

    return jax.tree.map(repeated, records)


def poisson_lots(size: int, records: int, steps: int) -> training.PoissonLots:
    """Returns lots of this expected size, padded so that one in `steps` overflows by 1e-8."""
    probability = size / records
    capacity = accounting.lot_capacity(records, probability, steps, 1e-8)
    return training.PoissonLots(records, probability, capacity)


def engine_step(
    problem: Problem, size: int, lots: Any, steps: int = WHOLE_STEPS, **more: Any
) -> Callable[..., Any]:
    """Returns the engine's run: draw a lot, gather it, clip, add noise, SGD; `steps` times.

    `more` are fields of its `TrainConfig`.
    """
    return training.make_train(
        training.TrainConfig(
            loss_fn=problem.loss,
            lots=lots,
            steps=steps,
            expected_lot_size=size,
            optimizer=training.sgd(),
            **more,
        )
    )
