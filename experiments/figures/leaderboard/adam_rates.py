"""Where Adam's good learning rates are: what `tuning.adam_rate` was fitted to.

Test accuracy of private runs with Adam, by learning rate, on development tables. Every run has the
noise of a best of K, K negative binomial of shape 2 and mean 30, at a total epsilon of 1, 2 or 8.
`moves` is what the rule makes a constant: rate * sqrt(steps * inputs).

  python -m experiments.figures.leaderboard.adam_rates \\
      --out=docs/figures/leaderboard/adam_rates.csv

Five minutes of a core. Rows that the file holds are not made again.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dpjax import accounting
from dpjax.tuning import adam_rate
from experiments.figures import row_program
from experiments.figures.leaderboard import laws_of_k

LAW = accounting.TruncatedNegativeBinomial(2.0, mean=30)
RUNS = (*itertools.product((1.0, 2.0, 8.0), (60,)), (2.0, 20), (2.0, 320))
"""Total epsilons and steps."""
RATES = np.geomspace(1e-4, 10**0.5, 19)
SEEDS = 2
COLUMNS = ("table", "inputs", "epsilon", "steps", "learning_rate", "moves", "accuracy")
"""Of a row: inputs that enter an output, its bias included; the mean accuracy of two runs."""


def settings(**_: Any) -> Iterator[dict[str, Any]]:
    """What is tried, as the first columns of its row."""
    for table, (epsilon, steps) in itertools.product(laws_of_k.TABLES, RUNS):
        inputs = 1 + laws_of_k.records_of(table)[0].shape[1]
        for rate in RATES:
            shown = float(f"{rate:.4g}")
            yield {
                "table": table,
                "inputs": inputs,
                "epsilon": epsilon,
                "steps": steps,
                "learning_rate": shown,
                "moves": float(f"{shown * math.sqrt(steps * inputs):.4g}"),
            }


def row_of(setting: Mapping[str, Any], **_: Any) -> dict[str, Any]:
    """Returns the row of a setting; all rates of a run are trained together."""
    accuracies = _curve(setting["table"], setting["epsilon"], setting["steps"])
    place = int(np.abs(np.log(RATES / setting["learning_rate"])).argmin())
    return {**setting, "accuracy": round(float(accuracies[place]), 4)}


@functools.lru_cache(maxsize=1)
def _curve(table: str, epsilon: float, steps: int) -> np.ndarray:
    """Returns the mean accuracy at each rate."""
    noise = laws_of_k.noise_for(LAW, epsilon, steps)
    rates = np.repeat(RATES, SEEDS).astype(np.float32)
    given = {
        "learning_rate": rates,
        "clip_norm": np.ones_like(rates),
        "noise_multiplier": np.full_like(rates, noise),
    }
    _, accuracies = laws_of_k.trained(table, steps, given)
    return accuracies.reshape(-1, SEEDS).mean(axis=1)


def lost(rows: Sequence[Mapping[str, Any]], usual: float = 1e-3) -> dict[tuple, tuple[float, ...]]:
    """Returns, by table, epsilon and steps, how far two rates are from the best one, in points.

    They are the rate that is nearest to the rule's, and a usual one.
    """
    found: dict[tuple, tuple[float, ...]] = {}
    for table, (epsilon, steps) in itertools.product(laws_of_k.TABLES, RUNS):
        mine = [
            row
            for row in rows
            if (row["table"], row["epsilon"], row["steps"]) == (table, epsilon, steps)
        ]
        best = max(row["accuracy"] for row in mine)
        rates = adam_rate(mine[0]["inputs"], steps), usual
        near = [
            min(mine, key=lambda row: abs(math.log(row["learning_rate"] / one))) for one in rates
        ]
        found[table, epsilon, steps] = tuple(100 * (best - row["accuracy"]) for row in near)
    return found


def main() -> None:
    """Makes the rows, and prints what the rule's rate and a usual one lose."""
    _, rows = row_program.run(COLUMNS, settings, row_of)
    for problem, points in lost(rows).items():
        print(*problem, *(f"{one:.1f}" for one in points), sep=", ")


if __name__ == "__main__":
    main()
