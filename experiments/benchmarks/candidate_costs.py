"""K candidates at once against K sequential runs of the same engine, by placement.

Started by `experiments.benchmarks.engine` in a process of its own, since the number of host devices
is fixed when JAX starts; it ends when its standard input does. Prints one JSON line: a list of
rows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import jax
import numpy as np
from absl import flags

from dpjax import training
from dpjax.commands import command_line
from experiments.benchmarks import bound_process, timing
from experiments.benchmarks.zoo import ZOO

_MODELS = flags.DEFINE_list("candidate_models", [], "Models to measure.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Calls of each placement.", lower_bound=1)
_RECORDS = flags.DEFINE_integer("records", 6000, "Records of the data set.")
_SMALL = flags.DEFINE_bool("small", False, "Few candidates, few steps.")

# model -> (candidates, steps of a run, lot size)
SIZES = {
    "logistic_regression": (64, 100, 256),
    "mlp_784_1000_10": (16, 10, 256),
    "mlp_784_128_64_10": (16, 40, 256),
    "all_conv_net": (8, 2, 64),
}
SMALL = (4, 2, 16)


class _Call:
    """All candidates under one placement, compiled by a first call."""

    def __init__(
        self, run: Callable, option: training.Placement, candidates: int, data: tuple
    ) -> None:
        keys = training.candidate_keys(candidates)
        numbers = {
            name: np.full(candidates, value, np.float32)
            for name, value in timing.HYPERPARAMETERS.items()
        }
        self._parts = [
            (
                option.put(keys[start : start + option.lanes]),
                option.put({n: v[start : start + option.lanes] for n, v in numbers.items()}),
            )
            for start in range(0, candidates, option.lanes)
        ]
        self._call = jax.jit(option.mapped(run, (0, 0, None)))
        self._data = option.put(data, whole=True)
        self.seconds()

    def seconds(self) -> float:
        start = time.perf_counter()
        for part in self._parts:
            jax.block_until_ready(self._call(*part, self._data))
        return time.perf_counter() - start


def measure(model: str, rounds: int, small: bool, records: int) -> list[dict]:
    """Rows (model, what, median, low, high, unit): every placement over sequential runs.

    All placements take the same K candidates and are called in turn.
    """
    candidates, steps, lot = SMALL if small else SIZES[model]
    if jax.default_backend() == "gpu" and not small:
        candidates, steps = 32, 50
    problem = ZOO[model](False, lot)
    data = timing.tiled(problem.records, records)
    capacity = min(records, lot + 6 * int(lot**0.5))
    lots = training.PoissonLots(records, lot / records, capacity)
    train = timing.engine_step(problem, lot, lots, steps)

    def run(key: jax.Array, hyperparameters: dict, data: tuple) -> dict:
        return train(key, hyperparameters, problem.params, data)

    devices = jax.local_devices()
    widths = sorted({1, -(-candidates // 4), candidates})
    options = [training.Placement(width) for width in widths]
    if len(devices) > 1:
        options += [
            training.Placement(width, tuple(devices))
            for width in sorted({1, candidates // len(devices)})
        ]
    calls = {str(option): _Call(run, option, candidates, data) for option in options}
    seconds = timing.in_turn(calls, lambda name: rounds)
    alone = str(training.Placement(1))
    sequential = seconds[alone]
    rows = []

    def add(what: str, middle: float, low: float, high: float, unit: str) -> None:
        rows.append(dict(model=model, what=what, median=middle, low=low, high=high, unit=unit))

    name = f"{candidates} candidates"
    for option, taken in seconds.items():
        if option != alone:
            add(f"{name}, {option} / sequential", *timing.quartiles(taken, sequential), "ratio")
    low, middle, high = np.quantile(sequential, (0.25, 0.5, 0.75)) * 1e3 / candidates / steps
    add("sequential, one step of one candidate", middle, low, high, "ms")
    return rows


def main() -> None:
    bound_process.end_with_parent()
    rows = []
    for model in _MODELS.value or SIZES:
        rows += measure(model, _ROUNDS.value, _SMALL.value, _RECORDS.value)
    print(json.dumps(rows))


if __name__ == "__main__":
    command_line.run(main)
