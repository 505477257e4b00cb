"""Accuracy with activations in bfloat16: does a private net lose any at the same noise?

The all-convolutional net of figure 7's comparison (`AllConvNet`), on the first 10,000 records of
MNIST, pooled to 14 x 14 pixels: 400 steps of expected lots of 200 at noise multiplier 1. Runs of
one seed have the same initial parameters, lots and noise, whatever their type of activations. A CPU
computes bfloat16 in float32 and rounds. Rows: docs/benchmarks/compute_dtype.csv, in 7 minutes of
one core.

    python -m experiments.benchmarks.compute_dtype --data_dir=DIR
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from dpjax import models, training
from dpjax.commands import command_line
from dpjax.models.functional import COMPUTE_DTYPES
from experiments.benchmarks import linear_runs
from experiments.figures.papernot_steinke.all_conv_nets import AllConvNet

ROWS = pathlib.Path("docs/benchmarks/compute_dtype.csv")
TASKS = {"mnist": (10_000, 200, 400)}
"""Name -> records at most, expected lot size, steps."""
NOISE, SEEDS = 1.0, 3
_GIVEN = {"learning_rate": 0.1, "momentum": 0.9, "clip_norm": 1.0, "noise_multiplier": NOISE}


def pooled(inputs: np.ndarray) -> np.ndarray:
    """Images as means of 2 x 2 pixels."""
    return inputs.reshape(-1, 14, 2, 14, 2).mean((2, 4))


def accuracies(dtype: str, records: Any, test: Any, lot: int, steps: int) -> np.ndarray:
    """Test accuracies of a run of each seed with activations of this type."""
    net = models.functional(AllConvNet(10), np.zeros((14, 14, 1), np.float32))
    config = training.TrainConfig(
        loss_fn=net.computed_in(dtype).example_loss(models.cross_entropy),
        lots=linear_runs.lots_of(len(records[0]), lot, steps),
        steps=steps,
        expected_lot_size=lot,
        optimizer=training.momentum(),
    )
    train = training.make_train(config)
    given = {name: jnp.float32(value) for name, value in _GIVEN.items()}

    def run(key: jax.Array, data: Any) -> jax.Array:
        params = train(key, given, net.init(training.stream(key, "initial")), data)
        # A release is used in float32, however it was trained.
        scores = jax.lax.map(lambda image: net.apply(params, image[None])[0], test[0])
        return jnp.mean(jnp.argmax(scores, axis=1) == test[1])

    compiled = training.jit(run)
    return np.asarray([compiled(key, records) for key in training.candidate_keys(SEEDS, seed=0)])


def rows(name: str, data_dir: str | None, quick: bool) -> Iterator[dict[str, Any]]:
    """Yields a row for each type; `quick`: 3 steps of 200 records."""
    most, lot, steps = (200, 20, 3) if quick else TASKS[name]
    parts = linear_runs.records_of(name, most, data_dir, pooled)
    records, test = (
        (inputs.reshape(-1, 14, 14, 1).astype(np.float32), labels) for inputs, labels in parts
    )
    for dtype in COMPUTE_DTYPES:
        found = accuracies(dtype, records, test, lot, steps)
        if dtype == COMPUTE_DTYPES[0]:
            plain = found
        yield {
            "task": name, "compute_dtype": dtype, "noise_multiplier": NOISE, "steps": steps,
            "seeds": SEEDS, **linear_runs.compared(found, plain),
        }  # fmt: skip


def main() -> int:
    given = flags.FLAGS
    return linear_runs.write(lambda name: rows(name, given.data_dir, given.quick))


if __name__ == "__main__":
    linear_runs.define_flags(ROWS, TASKS)
    flags.DEFINE_bool("quick", False, "3 steps of 200 records.")
    command_line.run(main)
