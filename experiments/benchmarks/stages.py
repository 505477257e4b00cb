"""Accuracy of runs in stages against runs whose steps are all alike, at equal epsilon.

Linear models on digits and on the first 20,000 records of MNIST, as in `correlated_noise`. Each
schedule has a learning rate of its own, chosen by test accuracy on seeds that are not reported
(which no release may do; it is the same for all). A gain is paired: runs of one seed share initial
parameters and keys. Its interval is Student's, at 95%. Rows: docs/figures/stages/accuracy.csv, in
20 minutes on one CPU core.

    python -m experiments.benchmarks.stages --data_dir=DIR
    python -m experiments.benchmarks.stages --tasks=digits --seeds=2 --out=/tmp/rows.csv
"""

from __future__ import annotations

import functools
import math
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from dpjax import accounting, training
from dpjax.commands import command_line
from experiments.benchmarks.correlated_noise import (
    CHOOSING,
    DELTA,
    OUT_FLAG,
    RATES,
    SEEDS_FLAG,
    TASKS,
    TASKS_FLAG,
    loss,
    records_of,
)
from experiments.figures.rows import write_rows

ROWS = pathlib.Path("docs/figures/stages/accuracy.csv")
EPSILONS = (1.0, 4.0)
THIRDS = (1 / 3, 1 / 3, 1 / 3)
SCHEDULES = {
    "none": None,
    "falling noise": training.Stages(THIRDS, noise=(1.25, 1.0, 0.8)),
    "rising noise": training.Stages(THIRDS, noise=(0.8, 1.0, 1.25)),
    "falling clip norm": training.Stages(THIRDS, clip_norm=(1.0, 0.5, 0.25)),
    "growing lots": training.Stages(THIRDS, lot_size=(0.5, 1.0, 1.5)),
    "growing lots and noise": training.Stages(
        THIRDS, noise=(0.8, 1.0, 1.2), lot_size=(0.5, 1.0, 1.5)
    ),
    "falling noise and clip norm": training.Stages(
        THIRDS, noise=(1.25, 1.0, 0.8), clip_norm=(1.0, 0.5, 0.25)
    ),
    "falling rate": None,
}
"""All have the same expected number of gradients. The last one is a learning rate that falls along
half a cosine; it costs nothing either."""


def lots_of(records: int, lot: int, steps: int, stages: training.Stages | None) -> Any:
    """Lots of a run, with room for the largest of its stages."""
    chance = lot / records
    most = chance * max(stages.lot_size if stages else (1.0,))
    return training.PoissonLots(
        records, chance, accounting.lot_capacity(records, most, steps, 1e-9)
    )


@functools.cache
def noise_needed(
    records: int, lot: int, steps: int, stages: training.Stages | None, epsilon: float
) -> float:
    """The noise multiplier of factor 1 with which a run costs epsilon at DELTA."""
    parts = (stages or training.Stages((1.0,))).of_run(steps, lots_of(records, lot, steps, stages))

    def cost(noise: float) -> accounting.Guarantee:
        return accounting.compose(
            *(
                accounting.dp_sgd(part.lots.sampling_probability, noise * part.noise, part.steps)
                for part in parts
            )
        )

    return accounting.calibrate(cost, epsilon=epsilon, delta=DELTA)


def accuracies(
    records: Any,
    test: Any,
    lot: int,
    steps: int,
    schedule: str,
    noise: float,
    rates: Any,
    seeds: Any,
) -> np.ndarray:
    """Test accuracies of runs with these rates and seeds, (runs,)."""
    size, inputs = records[0].shape
    stages = SCHEDULES[schedule]
    falls = schedule == "falling rate"
    config = training.TrainConfig(
        loss_fn=loss,
        lots=lots_of(size, lot, steps, stages),
        steps=steps,
        expected_lot_size=lot,
        optimizer=training.scheduled(training.momentum, "cosine" if falls else "constant"),
        stages=stages,
    )
    train = training.make_train(config)

    def run(key: jax.Array, given: dict[str, jax.Array], arrays: Any) -> jax.Array:
        start = {"w": jnp.zeros((inputs, 10)), "b": jnp.zeros(10)}
        params = train(key, given, start, arrays[0])
        scores = arrays[1][0] @ params["w"] + params["b"][None]
        return jnp.mean(jnp.argmax(scores, axis=1) == arrays[1][1])

    keys = training.candidate_keys(max(seeds) + 1, seed=size)
    number = len(rates)
    given = {"learning_rate": np.asarray(rates), "momentum": np.full(number, 0.9)}
    given |= {"clip_norm": np.ones(number), "noise_multiplier": np.full(number, noise)}
    given |= {"steps": np.full(number, steps)}
    mapped = training.jit(jax.vmap(run, in_axes=(0, 0, None)))
    given = {name: jnp.asarray(each, jnp.float32) for name, each in given.items()}
    # Runs of one seed and several rates share their noise: none is released.
    return np.asarray(mapped(keys[np.asarray(seeds)], given, (records, test)), np.float64)


def interval(gains: np.ndarray) -> tuple[float, float]:
    """Student's interval at 95% of the mean of paired differences."""
    if len(gains) < 2:
        return math.nan, math.nan
    half = stats.t.ppf(0.975, len(gains) - 1) * gains.std(ddof=1) / math.sqrt(len(gains))
    return float(gains.mean() - half), float(gains.mean() + half)


def rows(name: str, seeds: int) -> Iterator[dict[str, Any]]:
    """Yields a row for each epsilon and schedule."""
    records, test = records_of(name)
    _, lot, steps = TASKS[name]
    for epsilon in EPSILONS:
        alike = None
        for schedule, stages in SCHEDULES.items():
            noise = noise_needed(len(records[0]), lot, steps, stages, epsilon)
            scored = functools.partial(accuracies, records, test, lot, steps, schedule, noise)
            tried = [rate for rate in RATES for _ in range(CHOOSING)]
            trial = scored(tried, list(range(CHOOSING)) * len(RATES))
            rate = RATES[int(np.argmax(trial.reshape(len(RATES), CHOOSING).mean(axis=1)))]
            found = scored([rate] * seeds, list(range(CHOOSING, CHOOSING + seeds)))
            alike = found if alike is None else alike
            low, high = interval(found - alike)
            yield {
                "task": name,
                "epsilon": epsilon,
                "schedule": schedule,
                "noise_multiplier": round(noise, 4),
                "learning_rate": rate,
                "accuracy": round(float(found.mean()), 4),
                "std": round(float(found.std(ddof=1)) if seeds > 1 else 0.0, 4),
                "gain": round(float((found - alike).mean()), 4),
                "gain_from": round(low, 4),
                "gain_to": round(high, 4),
                "seeds": seeds,
            }


def main() -> int:
    out = OUT_FLAG.value if OUT_FLAG.present else str(ROWS)
    found = []
    for name in TASKS_FLAG.value:
        for row in rows(name, SEEDS_FLAG.value):
            print(row, flush=True)
            found.append(row)
    write_rows(out, list(found[0]), found)
    return 0


if __name__ == "__main__":
    command_line.run(main)
