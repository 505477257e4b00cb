"""How long the accounting takes: one selection, one calibration, ten thousand settings.

Prints a table of medians with the smallest and largest time; nothing depends on the device.
Takes about 20 s.

  python -m experiments.benchmarks.accounting
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
from absl import flags
from rich.console import Console
from rich.table import Table

from dpjax import accounting
from dpjax.commands import command_line

_REPEATS = flags.DEFINE_integer("repeats", 5, "Timed calls of each, after one that is not.")


def seconds(call: Callable[[int], object], repeats: int) -> list[float]:
    """Times `call(i)`, i = 1..repeats, after `call(0)`; results must not be cached across i."""
    call(0)
    taken = []
    for number in range(1, repeats + 1):
        start = time.perf_counter()
        call(number)
        taken.append(time.perf_counter() - start)
    return taken


def cases() -> dict[str, Callable[[int], object]]:
    """Returns what is timed, by name."""
    run = accounting.dp_sgd(sampling_probability=256 / 60000, noise_multiplier=1.1, steps=14062)
    run.pair.delta(0.0)
    generator = np.random.default_rng(0)
    settings = 10_000
    probability = generator.uniform(1e-3, 0.2, settings)
    noise = generator.uniform(0.6, 8.0, settings)
    steps = generator.integers(100, 10_000, settings)
    orders = np.arange(2, 65)

    def best_of(number: int) -> float:
        law = accounting.Geometric(mean=10 + number)
        return accounting.best_of(run, law, method="envelope").pair.delta(1.0)

    def grid(sampling: str) -> Callable[[int], object]:
        return lambda number: accounting.rdp_grid(
            sampling_probability=probability,
            noise_multiplier=noise + 1e-6 * number,
            steps=steps,
            orders=orders,
            sampling=sampling,
        )

    return {
        "best_of, one envelope bound (MNIST run, geometric)": best_of,
        "one DP-SGD run's epsilon (14,062 steps)": lambda number: accounting.dp_sgd(
            sampling_probability=256 / 60000, noise_multiplier=1.1 + 0.01 * number, steps=14062
        ).epsilon(1e-5),
        "rdp_grid, 10,000 settings x 63 orders, Poisson": grid("poisson"),
        "rdp_grid, the same, without replacement": grid("without_replacement"),
    }


def main() -> int:
    """Prints the table; returns the exit code."""
    if _REPEATS.value < 1:
        raise ValueError(f"--repeats={_REPEATS.value}: pass at least 1")
    table = Table(title=f"accounting, milliseconds, {_REPEATS.value} calls")
    for column in ("what", "median", "smallest", "largest"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for name, call in cases().items():
        taken = [1e3 * value for value in seconds(call, _REPEATS.value)]
        numbers = (statistics.median(taken), min(taken), max(taken))
        table.add_row(name, *(f"{number:.1f}" for number in numbers))
    Console().print(table)
    return 0


if __name__ == "__main__":
    command_line.run(main)
