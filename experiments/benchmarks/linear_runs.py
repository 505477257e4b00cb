"""Linear models trained privately: what programs share that compare accuracies at equal epsilon.

Settings are chosen by test accuracy on seeds that are not reported, which no release may do; it is
the same for all that is compared.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from dpjax import accounting, data, training
from experiments.figures.rows import interval, write_rows

DELTA = 1e-5
RATES = (0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.0)
CHOOSING = 2
"""Seeds that settings are chosen by; those of the rows follow them."""

Run = Callable[[jax.Array, dict[str, jax.Array], Any], jax.Array]


def records_of(
    name: str,
    most: int | None,
    data_dir: str | None,
    encode: Callable[[np.ndarray], np.ndarray] = lambda inputs: inputs,
) -> tuple[Any, Any]:
    """Training records, at most so many, and test records: inputs float32 (n, d), labels (n,)."""
    parts = data.load(name, data_dir).without_validation()
    found = []
    for part, number in ((parts.train, most), (parts.test, None)):
        inputs = encode(part.inputs[:number])
        found.append((inputs.reshape(len(inputs), -1), part.labels[:number]))
    return found[0], found[1]


def loss(params: Any, record: Any) -> jax.Array:
    inputs, label = record
    return -jax.nn.log_softmax(inputs @ params["w"] + params["b"])[label]


def lots_of(records: int, lot: int, steps: int, largest: float = 1.0) -> training.PoissonLots:
    """Poisson lots with room for stages of up to `largest` times the expected size."""
    chance = lot / records
    capacity = accounting.lot_capacity(records, chance * largest, steps, 1e-9)
    return training.PoissonLots(records, chance, capacity)


def noise_needed(chance: float, steps: int, epsilon: float) -> float:
    """The noise multiplier with which DP-SGD costs epsilon at DELTA."""
    return accounting.calibrate(
        lambda noise: accounting.dp_sgd(chance, noise, steps), epsilon=epsilon, delta=DELTA
    )


def run_of(config: training.TrainConfig, records: Any) -> Run:
    """A function of a key, hyperparameters and (training, test) records: the test accuracy."""
    inputs, classes = records[0].shape[1], int(records[1].max()) + 1
    train = training.make_train(config)

    def run(key: jax.Array, given: dict[str, jax.Array], arrays: Any) -> jax.Array:
        start = {"w": jnp.zeros((inputs, classes)), "b": jnp.zeros(classes)}
        params = train(key, given, start, arrays[0])
        scores = arrays[1][0] @ params["w"] + params["b"][None]
        return jnp.mean(jnp.argmax(scores, axis=1) == arrays[1][1])

    return run


def accuracies(
    config: training.TrainConfig,
    records: Any,
    test: Any,
    seed: int,
    noise: float,
    rates: Sequence[float],
    seeds: Sequence[int],
    **more: float,
) -> np.ndarray:
    """Test accuracies of runs with momentum, of these rates and seeds, float32 (runs,)."""
    keys = training.candidate_keys(max(seeds) + 1, seed=seed)
    alike = {"momentum": 0.9, "clip_norm": 1.0, "noise_multiplier": noise} | more
    given = {name: jnp.full(len(rates), value, jnp.float32) for name, value in alike.items()}
    given["learning_rate"] = jnp.asarray(rates, jnp.float32)
    mapped = training.jit(jax.vmap(run_of(config, records), in_axes=(0, 0, None)))
    # Runs of one seed and several rates share their noise: none is released.
    return np.asarray(mapped(keys[np.asarray(seeds)], given, (records, test)))


def compared(found: np.ndarray, plain: np.ndarray, gain: str = "gain") -> dict[str, float]:
    """The columns of a row: a mean accuracy, its spread, and the mean gain over `plain`."""
    mean, half = interval(found - plain)
    values = (found.mean(), found.std(ddof=1), mean, half)
    names = ("accuracy", "std", gain, "half_width")
    return {name: round(float(value), 4) for name, value in zip(names, values)}


def at_best_rate(
    scored: Callable[[Sequence[float], Sequence[int]], np.ndarray], seeds: int
) -> tuple[float, np.ndarray]:
    """Chooses the best of RATES by the first seeds; returns it and the others' accuracies."""
    tried = [rate for rate in RATES for _ in range(CHOOSING)]
    trial = scored(tried, list(range(CHOOSING)) * len(RATES))
    rate = RATES[int(np.argmax(trial.reshape(len(RATES), CHOOSING).mean(axis=1)))]
    return rate, scored([rate] * seeds, list(range(CHOOSING, CHOOSING + seeds)))


def define_flags(rows: pathlib.Path, tasks: Iterable[str]) -> None:
    """Defines --out, --data_dir and --tasks of the program that is run.

    Not at import, since a session of tests imports several of these programs.
    """
    flags.DEFINE_string("out", str(rows), "Where to write the rows.")
    flags.DEFINE_string("data_dir", None, "Where MNIST lies; see `data.load`.")
    flags.DEFINE_list("tasks", list(tasks), "Which tasks to train on.")


def write(rows_of: Callable[[str], Iterable[Mapping[str, Any]]]) -> int:
    """Prints the rows of every task of --tasks and writes them to --out; returns the exit code."""
    found = []
    for name in flags.FLAGS.tasks:
        for row in rows_of(name):
            print(row, flush=True)
            found.append(row)
    write_rows(flags.FLAGS.out, list(found[0]), found)
    return 0
