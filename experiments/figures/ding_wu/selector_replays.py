"""Replays private selections, with their real noise, over models that were trained once."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np

from dpjax import accounting
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.randomness.integer_laws import discrete_gaussian
from dpjax.tuning.tuners.partitions import AveragedUtility
from experiments.figures.ding_wu import selector_settings
from experiments.figures.ding_wu.selector_settings import (
    EXPONENTIAL,
    RANDOM,
    REPETITIONS,
    SELECTORS,
)
from experiments.figures.rows import distinct, select

BEST, NOISELESS = "best_candidate", "noiseless_selection"
COLUMNS = {
    "dataset": "name", "epsilon": "nats", "delta": "probability", "selector": "name",
    "partitions": "partitions", "epsilon_0": "nats", "epsilon_selection": "nats",
    "noise_multiplier": "clip norms", "noise_ratio": "utilities", "replays": "replays",
    "accuracy": "share", "accuracy_standard_error": "share", "no_hit_share": "share",
}  # fmt: skip


def replay(
    partition_rows: Sequence[Mapping], final_rows: Sequence[Mapping], replays: int
) -> list[dict]:
    """Returns the mean test accuracy of what every selector releases.

    A replay puts the candidates in a random order (the loop favours the first), selects with the
    tuning's own selector, and takes one of the chosen candidate's final trainings at the noise that
    the selection leaves room for. The random numbers are seeded: they need not be secret here. The
    rows are those of `selector_trainings`.
    """
    rows = []
    for dataset in distinct(final_rows, "dataset"):
        finals = select(final_rows, dataset=dataset)
        utilities = select(partition_rows, dataset=dataset)
        rows += _references(finals, utilities, replays)
        for partitions in distinct(utilities, "partitions"):
            members = select(utilities, partitions=partitions)
            for name in SELECTORS:
                for epsilon in distinct(select(finals, selector=name), "epsilon_0"):
                    rows.append(_replayed(finals, members, name, epsilon, replays))
    return rows


def accuracies(rows: Sequence[Mapping], column: str = "test_accuracy") -> np.ndarray:
    """Returns a column of final trainings at one noise, (trainings, candidates)."""
    shape = (1 + max(row["training"] for row in rows), 1 + max(row["candidate"] for row in rows))
    table = np.full(shape, np.nan)
    for row in rows:
        table[row["training"], row["candidate"]] = row[column]
    if np.isnan(table).any():
        raise ValueError("the final trainings are not complete: run again without --redraw")
    return table


def _replayed(
    finals: Sequence[Mapping],
    utilities: Sequence[Mapping],
    name: str,
    epsilon: float,
    replays: int,
) -> dict:
    """Replays one selector at one epsilon_0 on the utilities of one k."""
    mine = select(finals, selector=name, epsilon_0=epsilon)
    table = accuracies(mine)
    first = utilities[0]
    utility = AveragedUtility(first["partitions"], first["validation_size"])
    units = [row["units"] for row in sorted(utilities, key=lambda row: row["candidate"])]
    chooser = selector_settings.selector(name, epsilon)
    source = random.Random(f"{first['dataset']} {first['partitions']} {name} {epsilon}")
    found, misses = [], 0
    for _ in range(replays):
        order = source.sample(range(len(units)), len(units))
        place, events = chooser.select([units[i] for i in order], utility, source.randrange)
        misses += events.get("no_hit_so_the_default_candidate", False)
        found.append(table[source.randrange(len(table)), order[place]])
    ratio = accounting.selection_noise_ratio(len(units), utility.effective_partitions, epsilon)
    return _row(
        mine[0],
        name,
        np.array(found),
        partitions=first["partitions"],
        noise_ratio=ratio,
        no_hit_share=None if name == EXPONENTIAL else misses / replays,
    )


def _references(
    finals: Sequence[Mapping], utilities: Sequence[Mapping], replays: int
) -> list[dict]:
    """The rows without epsilon_0: random and best candidate, repetitions, selection without noise.

    All are trained privately with the whole budget, except for random repetitions, whose
    candidates share it. Best candidate and selection without noise are not private.
    """
    full = select(finals, selector=RANDOM)
    table = accuracies(full)
    means = table.mean(axis=0)
    repeated = select(finals, selector=REPETITIONS)
    rows = [
        _row(full[0], RANDOM, table.ravel()),
        _row(full[0], BEST, table[:, np.argmax(means)]),
        _row(repeated[0], REPETITIONS, _best_of_runs(repeated, replays)),
    ]
    for partitions in distinct(utilities, "partitions"):
        members = select(utilities, partitions=partitions)
        best = max(members, key=lambda row: row["units"])["candidate"]
        rows.append(_row(full[0], NOISELESS, table[:, best], partitions=partitions))
    return rows


def _best_of_runs(rows: Sequence[Mapping], replays: int) -> np.ndarray:
    """Replays random repetitions: K candidates with replacement, the best noisy score wins."""
    test = accuracies(rows)
    correct = accuracies(rows, "validation_correct").ravel()
    source = np.random.default_rng(11)
    counts = selector_settings.LAW_OF_K.sample(replays, source=source)
    noise = discrete_gaussian(rows[0]["score_noise"], int(np.sum(counts)), HostRandomness(12))
    ends = np.cumsum(counts)
    drawn = source.integers(correct.size, size=ends[-1])
    scores = correct[drawn] + noise
    winners = [
        drawn[end - count + np.argmax(scores[end - count : end])]
        for count, end in zip(counts, ends)
    ]
    return test.ravel()[winners]


def _row(
    final: Mapping,
    name: str,
    values: np.ndarray,
    *,
    partitions: int | None = None,
    noise_ratio: float | None = None,
    no_hit_share: float | None = None,
) -> dict:
    """One row; `final` is any of the final trainings that the values come from."""
    found = {
        "selector": name,
        "partitions": partitions,
        "noise_ratio": noise_ratio,
        "replays": len(values),
        "accuracy": values.mean(),
        "accuracy_standard_error": values.std() / len(values) ** 0.5,
        "no_hit_share": no_hit_share,
    }
    return {column: found[column] if column in found else final[column] for column in COLUMNS}
