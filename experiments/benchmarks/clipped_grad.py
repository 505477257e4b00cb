"""How much does clipping cost? One step of SGD, clipped without noise, against the plain step.

For each model, the ways of taking one step are called in turn, so that whatever else the machine
does falls on all of them alike, and ratios are taken within a turn. Reported: the median of each
ratio and its quartiles, and the memory of the compiled steps (arguments, results and scratch).

  python -m experiments.benchmarks.clipped_grad            # about 3 minutes on 4 cores
  python -m experiments.benchmarks.clipped_grad --quick    # a minute: few turns, small batches
  python -m experiments.benchmarks.clipped_grad --models=mlp_784_1000_10 --out_dir=out

Columns: `ours / plain` (plain is the step without clipping), `vmap / ours` (per-example gradients
formed by vmap, then clipped and summed), `jax-privacy / ours` (`jax_privacy.clipped_grad`, where
installed), and memory, `ours / plain`. With --out_dir, writes one row for each call to
clipped_grad.csv: model, method, turn, seconds.
"""

from __future__ import annotations

import csv
import importlib.util
import os
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from flax import linen as nn
from rich.console import Console
from rich.table import Table

from dpjax import models
from dpjax.commands import command_line
from dpjax.training import clipped_grad
from experiments.figures.papernot_steinke.all_conv_nets import AllConvNet

_MODELS = flags.DEFINE_list("models", [], "Which models to measure; all by default.")
_TURNS = flags.DEFINE_integer("turns", 40, "Calls of each way, for each model.", lower_bound=1)
_SLOW_TURNS = flags.DEFINE_integer(
    "slow_turns",
    5,
    "Turns in which the ways that form per-example gradients take part; 0 leaves them out.",
    lower_bound=0,
)
_QUICK = flags.DEFINE_bool("quick", False, "Shrink everything to seconds.")
_OUT_DIR = flags.DEFINE_string("out_dir", None, "Folder for clipped_grad.csv.")

CLIP_NORM = 1.0
LEARNING_RATE = 0.1
SLOW = ("vmap", "jax-privacy")

Step = Callable[[Any, Any], Any]


class Problem(NamedTuple):
    """A model with a batch.

    Attributes:
      apply: (params, inputs (batch, ...)) -> logits (batch, classes).
      params: initial parameters.
      batch: inputs and labels.
    """

    apply: Callable[[Any, jax.Array], jax.Array]
    params: Any
    batch: tuple[jax.Array, jax.Array]

    def loss(self, params: Any, example: tuple[jax.Array, jax.Array]) -> jax.Array:
        """Loss of one example."""
        inputs, label = example
        return models.cross_entropy(self.apply(params, inputs[None])[0], label)

    def mean_loss(self, params: Any, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        return models.cross_entropy(self.apply(params, batch[0]), batch[1]).mean()


class Transformer(nn.Module):
    """Encoder blocks with LayerNorm before attention and before the two dense layers."""

    blocks: int = 2
    width: int = 128
    classes: int = 10
    vocabulary: int = 1000

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = nn.Embed(self.vocabulary, self.width)(tokens)
        for _ in range(self.blocks):
            x = x + nn.MultiHeadDotProductAttention(num_heads=4)(nn.LayerNorm()(x))
            x = x + nn.Dense(self.width)(nn.gelu(nn.Dense(4 * self.width)(nn.LayerNorm()(x))))
        return nn.Dense(self.classes)(x.mean(axis=-2))


class FlaxConvNet(nn.Module):
    """The all-convolutional net of `AllConvNet`, by `nn.Conv`: one convolution a layer."""

    classes: int = 10

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        for channels, stride in zip((32, 32, 64, 64, 64), (1, 2, 1, 2, 1), strict=True):
            images = nn.relu(nn.Conv(channels, (3, 3), strides=stride)(images))
        return nn.Dense(self.classes)(images.mean(axis=(1, 2)))


def _problem(model: nn.Module, inputs: np.ndarray) -> Problem:
    params = jax.jit(model.init)(jax.random.key(0), inputs[:1])
    return Problem(model.apply, params, (jnp.asarray(inputs), jnp.arange(len(inputs)) % 10))


def _floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def _tokens(batch: int, length: int) -> np.ndarray:
    return np.random.default_rng(0).integers(1000, size=(batch, length)).astype(np.int32)


# name -> (full batch, quick batch, problem of a batch size)
PROBLEMS: dict[str, tuple[int, int, Callable[[int], Problem]]] = {
    "logistic_regression": (
        256, 256, lambda batch: _problem(models.LogisticRegression(10), _floats(batch, 784))
    ),
    "mlp_784_1000_10": (
        256, 64, lambda batch: _problem(models.MLP((1000,), 10), _floats(batch, 784))
    ),
    "mlp_784_128_64_10": (
        256, 64, lambda batch: _problem(models.MLP((128, 64), 10), _floats(batch, 784))
    ),
    "transformer": (64, 8, lambda batch: _problem(Transformer(), _tokens(batch, 64))),
    "all_conv_net": (
        64, 8, lambda batch: _problem(AllConvNet(10), _floats(batch, 28, 28, 1))
    ),
    "flax_conv_net": (64, 8, lambda batch: _problem(FlaxConvNet(), _floats(batch, 28, 28, 1))),
}  # fmt: skip


def _updated(params: Any, gradients: Any) -> Any:
    return jax.tree.map(lambda value, slope: value - LEARNING_RATE * slope, params, gradients)


def steps(problem: Problem) -> dict[str, Step]:
    """The ways of taking one step: (params, batch) -> params."""
    size = len(problem.batch[1])
    grad_fn = clipped_grad(problem.loss)

    def ours(params: Any, batch: Any) -> Any:
        summed, _ = grad_fn(params, batch, CLIP_NORM)
        return _updated(params, jax.tree.map(lambda leaf: leaf / size, summed))

    def plain(params: Any, batch: Any) -> Any:
        return _updated(params, jax.grad(problem.mean_loss)(params, batch))

    def by_vmap(params: Any, batch: Any) -> Any:
        gradients = jax.vmap(jax.grad(problem.loss), (None, 0))(params, batch)
        squares = [
            jnp.square(leaf).reshape(size, -1).sum(axis=1) for leaf in jax.tree.leaves(gradients)
        ]
        weights = jnp.minimum(1, CLIP_NORM / jnp.sqrt(sum(squares))) / size
        summed = jax.tree.map(lambda leaf: jnp.tensordot(weights, leaf, 1), gradients)
        return _updated(params, summed)

    ways: dict[str, Step] = {"ours": ours, "plain": plain, "vmap": by_vmap}
    if importlib.util.find_spec("jax_privacy") is not None:
        import jax_privacy

        theirs = jax_privacy.clipped_grad(
            problem.loss, l2_clip_norm=CLIP_NORM, keep_batch_dim=False, normalize_by=float(size)
        )
        ways["jax-privacy"] = lambda params, batch: _updated(params, theirs(params, batch))
    return ways


def measure(problem: Problem, turns: int, slow_turns: int) -> tuple[dict[str, list], dict]:
    """Seconds of each call in turn, and bytes of memory, for each way of taking a step."""
    compiled, memory = {}, {}
    for name, step in steps(problem).items():
        if name in SLOW and not slow_turns:
            continue
        with warnings.catch_warnings():
            # jax_privacy 2.0.0 calls names that its dependencies have deprecated.
            warnings.simplefilter("ignore", DeprecationWarning)
            compiled[name] = jax.jit(step).lower(problem.params, problem.batch).compile()
        analysis = compiled[name].memory_analysis()
        memory[name] = (
            analysis.temp_size_in_bytes
            + analysis.argument_size_in_bytes
            + analysis.output_size_in_bytes
        )
        jax.block_until_ready(compiled[name](problem.params, problem.batch))
    seconds: dict[str, list[float]] = {name: [] for name in compiled}
    for turn in range(turns):
        for name, step in compiled.items():
            if name in SLOW and turn >= slow_turns:
                continue
            start = time.perf_counter()
            jax.block_until_ready(step(problem.params, problem.batch))
            seconds[name].append(time.perf_counter() - start)
    return seconds, memory


def ratio(seconds: dict[str, list[float]], over: str, under: str) -> str:
    """Median and quartiles of the ratio of two ways, within turns."""
    if over not in seconds:
        return "-"
    count = min(len(seconds[over]), len(seconds[under]))
    ratios = np.asarray(seconds[over][:count]) / np.asarray(seconds[under][:count])
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    return f"{middle:.3g} ({low:.3g}-{high:.3g})"


def main() -> None:
    unknown = sorted(set(_MODELS.value) - set(PROBLEMS))
    if unknown:
        raise ValueError(f"unknown model {unknown[0]!r}: pass some of {', '.join(PROBLEMS)}")
    turns, slow_turns = (5, 3) if _QUICK.value else (_TURNS.value, _SLOW_TURNS.value)
    table = Table(title=f"One clipped step, no noise; {jax.devices()[0].device_kind}")
    columns = ("model", "batch", "plain ms", "ours / plain", "vmap / ours", "jax-privacy / ours")
    for column in (*columns, "memory"):
        table.add_column(column)
    rows = [("model", "method", "turn", "seconds")]
    for name in _MODELS.value or PROBLEMS:
        batch, quick_batch, build = PROBLEMS[name]
        batch = quick_batch if _QUICK.value else batch
        seconds, memory = measure(build(batch), turns, slow_turns)
        table.add_row(
            name,
            str(batch),
            f"{1e3 * np.median(seconds['plain']):.3g}",
            ratio(seconds, "ours", "plain"),
            ratio(seconds, "vmap", "ours"),
            ratio(seconds, "jax-privacy", "ours"),
            f"{memory['ours'] / memory['plain']:.3g}",
        )
        rows += [(name, way, i, s) for way, each in seconds.items() for i, s in enumerate(each)]
    Console(width=120).print(table)
    if _OUT_DIR.value:
        os.makedirs(_OUT_DIR.value, exist_ok=True)
        with open(os.path.join(_OUT_DIR.value, "clipped_grad.csv"), "w", newline="") as file:
            csv.writer(file).writerows(rows)


if __name__ == "__main__":
    command_line.run(main)
