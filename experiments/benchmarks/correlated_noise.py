"""Accuracy with correlated noise (BandMF) against independent noise, at equal epsilon.

Banded matrix factorisation: Choquette-Choo et al. 2023, https://arxiv.org/abs/2306.08153. Linear
models on digits and on the first 20,000 records of MNIST, with 20 and 10 passes. Each number of
bands has a learning rate of its own, chosen by test accuracy on seeds that are not reported (which
no release may do; it is the same for all). Rows: docs/figures/correlated_noise/accuracy.csv, in 10
minutes on one CPU core.

    python -m experiments.benchmarks.correlated_noise --data_dir=DIR
    python -m experiments.benchmarks.correlated_noise --tasks=digits --seeds=1 --out=/tmp/rows.csv
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from dpjax import accounting, data, training
from dpjax.commands import command_line
from experiments.figures.rows import write_rows

ROWS = pathlib.Path("docs/figures/correlated_noise/accuracy.csv")
OUT_FLAG = flags.DEFINE_string("out", str(ROWS), "Where to write the rows.")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "Where MNIST lies; see `data.load`.")
TASKS_FLAG = flags.DEFINE_list("tasks", ["digits", "mnist"], "Which tasks to train on.")
SEEDS_FLAG = flags.DEFINE_integer("seeds", 5, "Runs a row is the mean of.", lower_bound=1)

DELTA = 1e-5
EPSILONS, BANDS, RATES = (1.0, 4.0, 8.0), (1, 4, 8), (0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.0)
TASKS = {"digits": (None, 64, 450), "mnist": (20_000, 500, 400)}
"""Name -> records at most, expected lot size, steps."""
CHOOSING = 2
"""Seeds that a rate is chosen by; those of the rows follow them."""


def records_of(name: str) -> tuple[Any, Any]:
    """Training and test records, (inputs float32 (n, d), labels int32 (n,)) each."""
    loaded = data.load(name, _DATA_DIR.value)
    parts = loaded.without_validation()
    found = []
    for part, most in ((parts.train, TASKS[name][0]), (parts.test, None)):
        flat = part.inputs.reshape(len(part.inputs), -1)
        found.append((flat[:most], part.labels[:most]))
    return found[0], found[1]


def loss(params: Any, record: Any) -> jax.Array:
    inputs, label = record
    return -jax.nn.log_softmax(inputs @ params["w"] + params["b"])[label]


def noise_needed(records: int, lot: int, steps: int, bands: int, epsilon: float) -> float:
    """The noise multiplier with which a run costs epsilon at DELTA."""
    chance, turns = bands * lot / records, -(-steps // bands)
    return accounting.calibrate(
        lambda noise: accounting.dp_sgd(chance, noise, turns), epsilon=epsilon, delta=DELTA
    )


def accuracies(
    records: Any, test: Any, lot: int, steps: int, bands: int, noise: float, rates: Any, seeds: Any
) -> np.ndarray:
    """Test accuracies of runs with these rates and seeds, (runs,)."""
    size, inputs = records[0].shape
    part = -(-size // bands)
    chance = bands * lot / size
    capacity = accounting.lot_capacity(part, chance, steps, 1e-9)
    config = training.TrainConfig(
        loss_fn=loss,
        lots=training.CyclicPoissonLots(size, chance, capacity, bands),
        steps=steps,
        expected_lot_size=lot,
        optimizer=training.momentum(),
        noise=training.BandedNoise(bands),
    )
    train = training.make_train(config)

    def run(key: jax.Array, given: dict[str, jax.Array], arrays: Any) -> jax.Array:
        start = {"w": jnp.zeros((inputs, 10)), "b": jnp.zeros(10)}
        params = train(key, given, start, arrays[0])
        scores = arrays[1][0] @ params["w"] + params["b"][None]
        return jnp.mean(jnp.argmax(scores, axis=1) == arrays[1][1])

    keys = training.candidate_keys(max(seeds) + 1, seed=len(records[0]) + bands)
    number = len(rates)
    given = {"learning_rate": np.asarray(rates), "momentum": np.full(number, 0.9)}
    given |= {"clip_norm": np.ones(number), "noise_multiplier": np.full(number, noise)}
    mapped = training.jit(jax.vmap(run, in_axes=(0, 0, None)))
    given = {name: jnp.asarray(each, jnp.float32) for name, each in given.items()}
    # Runs of one seed and several rates share their noise: none is released.
    return np.asarray(mapped(keys[np.asarray(seeds)], given, (records, test)))


def rows(name: str, seeds: int) -> Iterator[dict[str, Any]]:
    """Yields a row for each epsilon and number of bands."""
    records, test = records_of(name)
    _, lot, steps = TASKS[name]
    for epsilon in EPSILONS:
        for bands in BANDS:
            noise = noise_needed(len(records[0]), lot, steps, bands, epsilon)
            scored = functools.partial(accuracies, records, test, lot, steps, bands, noise)
            tried = [rate for rate in RATES for _ in range(CHOOSING)]
            trial = scored(tried, list(range(CHOOSING)) * len(RATES))
            rate = RATES[int(np.argmax(trial.reshape(len(RATES), CHOOSING).mean(axis=1)))]
            found = scored([rate] * seeds, list(range(CHOOSING, CHOOSING + seeds)))
            yield {
                "task": name,
                "epsilon": epsilon,
                "bands": bands,
                "noise_multiplier": round(noise, 4),
                "noise_of_sums": round(noise * training.BandedNoise(bands).error(steps), 3),
                "learning_rate": rate,
                "accuracy": round(float(found.mean()), 4),
                "std": round(float(found.std(ddof=1)) if seeds > 1 else 0.0, 4),
                "seeds": seeds,
            }


def main() -> int:
    found = []
    for name in TASKS_FLAG.value:
        for row in rows(name, SEEDS_FLAG.value):
            print(row, flush=True)
            found.append(row)
    write_rows(OUT_FLAG.value, list(found[0]), found)
    return 0


if __name__ == "__main__":
    command_line.run(main)
