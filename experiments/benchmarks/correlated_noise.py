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

import numpy as np
from absl import flags

from dpjax import accounting, training
from dpjax.commands import command_line
from experiments.benchmarks import linear_runs

ROWS = pathlib.Path("docs/figures/correlated_noise/accuracy.csv")
EPSILONS, BANDS = (1.0, 4.0, 8.0), (1, 4, 8)
TASKS = {"digits": (None, 64, 450), "mnist": (20_000, 500, 400)}
"""Name -> records at most, expected lot size, steps."""


def noise_needed(records: int, lot: int, steps: int, bands: int, epsilon: float) -> float:
    """The noise multiplier with which a run costs epsilon at `linear_runs.DELTA`."""
    return linear_runs.noise_needed(bands * lot / records, -(-steps // bands), epsilon)


def accuracies(
    records: Any, test: Any, lot: int, steps: int, bands: int, noise: float, rates: Any, seeds: Any
) -> np.ndarray:
    """Test accuracies of runs with these rates and seeds, (runs,)."""
    size = len(records[0])
    chance = bands * lot / size
    capacity = accounting.lot_capacity(-(-size // bands), chance, steps, 1e-9)
    config = training.TrainConfig(
        loss_fn=linear_runs.loss,
        lots=training.CyclicPoissonLots(size, chance, capacity, bands),
        steps=steps,
        expected_lot_size=lot,
        optimizer=training.momentum(),
        noise=training.BandedNoise(bands),
    )
    return linear_runs.accuracies(config, records, test, size + bands, noise, rates, seeds)


def rows(name: str, data_dir: str | None, seeds: int) -> Iterator[dict[str, Any]]:
    """Yields a row for each epsilon and number of bands."""
    most, lot, steps = TASKS[name]
    records, test = linear_runs.records_of(name, most, data_dir)
    for epsilon in EPSILONS:
        for bands in BANDS:
            noise = noise_needed(len(records[0]), lot, steps, bands, epsilon)
            scored = functools.partial(accuracies, records, test, lot, steps, bands, noise)
            rate, found = linear_runs.at_best_rate(scored, seeds)
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
    given = flags.FLAGS
    return linear_runs.write(lambda name: rows(name, given.data_dir, given.seeds))


if __name__ == "__main__":
    linear_runs.define_flags(ROWS, TASKS)
    flags.DEFINE_integer("seeds", 5, "Runs a row is the mean of.", lower_bound=1)
    command_line.run(main)
