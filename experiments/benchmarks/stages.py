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

import numpy as np
from absl import flags

from dpjax import accounting, training
from dpjax.commands import command_line
from experiments.benchmarks import linear_runs
from experiments.benchmarks.correlated_noise import TASKS
from experiments.figures.rows import interval

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
    return linear_runs.lots_of(records, lot, steps, max(stages.lot_size) if stages else 1.0)


@functools.cache
def noise_needed(
    records: int, lot: int, steps: int, stages: training.Stages | None, epsilon: float
) -> float:
    """The noise multiplier of factor 1 with which a run costs epsilon at `linear_runs.DELTA`."""
    parts = (stages or training.Stages((1.0,))).of_run(steps, lots_of(records, lot, steps, stages))

    def cost(noise: float) -> accounting.Guarantee:
        return accounting.compose(
            *(
                accounting.dp_sgd(part.lots.sampling_probability, noise * part.noise, part.steps)
                for part in parts
            )
        )

    return accounting.calibrate(cost, epsilon=epsilon, delta=linear_runs.DELTA)


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
    size, stages = len(records[0]), SCHEDULES[schedule]
    falls = schedule == "falling rate"
    config = training.TrainConfig(
        loss_fn=linear_runs.loss,
        lots=lots_of(size, lot, steps, stages),
        steps=steps,
        expected_lot_size=lot,
        optimizer=training.scheduled(training.momentum, "cosine" if falls else "constant"),
        stages=stages,
    )
    given = (config, records, test, size, noise, rates, seeds)
    return linear_runs.accuracies(*given, steps=steps).astype(np.float64)


def rows(name: str, data_dir: str | None, seeds: int) -> Iterator[dict[str, Any]]:
    """Yields a row for each epsilon and schedule."""
    most, lot, steps = TASKS[name]
    records, test = linear_runs.records_of(name, most, data_dir)
    for epsilon in EPSILONS:
        alike = None
        for schedule, stages in SCHEDULES.items():
            noise = noise_needed(len(records[0]), lot, steps, stages, epsilon)
            scored = functools.partial(accuracies, records, test, lot, steps, schedule, noise)
            rate, found = linear_runs.at_best_rate(scored, seeds)
            alike = found if alike is None else alike
            gain, half = interval(found - alike)
            half = half if seeds > 1 else math.nan
            yield {
                "task": name,
                "epsilon": epsilon,
                "schedule": schedule,
                "noise_multiplier": round(noise, 4),
                "learning_rate": rate,
                "accuracy": round(float(found.mean()), 4),
                "std": round(float(found.std(ddof=1)) if seeds > 1 else 0.0, 4),
                "gain": round(gain, 4),
                "gain_from": round(gain - half, 4),
                "gain_to": round(gain + half, 4),
                "seeds": seeds,
            }


def main() -> int:
    given = flags.FLAGS
    return linear_runs.write(lambda name: rows(name, given.data_dir, given.seeds))


if __name__ == "__main__":
    linear_runs.define_flags(ROWS, TASKS)
    flags.DEFINE_integer("seeds", 5, "Runs a row is the mean of.", lower_bound=1)
    command_line.run(main)
