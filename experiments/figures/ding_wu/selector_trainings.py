"""Everything trained for the figure of selectors, in two files of rows that can be gone on with.

`..._partitions.csv`: correct validation predictions of every candidate's models of all partitions
together. `..._finals.csv`: validation and test results of every candidate trained privately, with
the noise that each selector leaves room for. Both hold numbers that are not private.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np

from dpjax import training
from dpjax.tuning.job import Job
from dpjax.tuning.problem.problem import Material
from dpjax.tuning.problem.task import total_units
from dpjax.tuning.runner import placed_records
from dpjax.tuning.tuners.partition_counts import partition_counts, partitioned
from dpjax.tuning.tuners.partitions import (
    REHEARSAL,
    AveragedUtility,
    partition_lots,
)
from experiments.figures.ding_wu import selector_settings, tasks
from experiments.figures.ding_wu.selector_settings import Setup, Study
from experiments.figures.figure import DEFAULT_FOLDERS, DataFolders
from experiments.figures.rows import RowFolder, select

PARTITIONS, FINALS = FILES = ("figure_selectors_partitions", "figure_selectors_finals")
FIXED = ("dataset", "lot_size", "epochs", "epsilon", "delta")
PARTITION_COLUMNS = (*FIXED, "validation_size", "partitions", "candidate", "learning_rate", "units")
FINAL_COLUMNS = (
    *FIXED,
    *selector_settings.BUDGET_COLUMNS,
    *("training", "candidate", "learning_rate", "validation_correct", "test_accuracy"),
)
CANDIDATES = np.arange(len(selector_settings.RATES))
_CHUNK = 64


def train(
    studies: Sequence[Study], folder: RowFolder, options: DataFolders = DEFAULT_FOLDERS
) -> None:
    """Trains what the two files do not hold yet.

    Keys come from the operating system, so nothing but the files is needed to go on after a stop.
    """
    partition_rows = _held(folder, PARTITIONS, studies)
    final_rows = _held(folder, FINALS, studies)
    for study in studies:
        done = {row["partitions"] for row in select(partition_rows, dataset=study.dataset)}
        missing = [count for count in study.partitions if count not in done]
        complete = _finals_complete(study, select(final_rows, dataset=study.dataset))
        if not missing and complete:
            continue
        setup = selector_settings.set_up(study, options)
        for partitions in missing:
            partition_rows += _partition_rows(study, setup, partitions)
            folder.write(PARTITIONS, PARTITION_COLUMNS, partition_rows)
            folder.report(f"{study.dataset}: every candidate on each of {partitions} partitions")
        if complete:
            continue
        # With the same settings, the same noises: the rows name them by selector and epsilon_0.
        budgets = selector_settings.budgets(study, setup)
        run = _final_run(study, setup)
        for number in range(study.trainings):
            mine = select(final_rows, dataset=study.dataset, training=number)
            held = {(row["selector"], row["epsilon_0"]) for row in mine}
            todo = [b for b in budgets if (b["selector"], b["epsilon_0"]) not in held]
            if todo:
                final_rows += _final_rows(study, setup, run, number, todo)
                folder.write(FINALS, FINAL_COLUMNS, final_rows)
                folder.report(
                    f"{study.dataset}: final trainings, {number + 1} of {study.trainings}"
                )


def _held(folder: RowFolder, name: str, studies: Sequence[Study]) -> list[dict]:
    """The rows of a file, if it is there and fits the studies."""
    rows = folder.read(name)
    fixed = {study.dataset: study.fixed for study in studies}
    for row in rows:
        wanted = fixed.get(row["dataset"], {})
        if any(row[name] != value for name, value in wanted.items()):
            raise ValueError(
                f"{folder.file(name)} holds trainings of other settings: pass another --out_dir, "
                "or --redraw to draw them"
            )
    return rows


def _finals_complete(study: Study, rows: Sequence[Mapping]) -> bool:
    """Whether every number of training has the same, full set of selectors."""
    sets = [
        {(row["selector"], row["epsilon_0"]) for row in select(rows, training=number)}
        for number in range(study.trainings)
    ]
    asked = {epsilon for _, epsilon in sets[0] if epsilon is not None}
    return all(sets) and all(s == sets[0] for s in sets) and asked == set(study.epsilons)


def _partition_rows(study: Study, setup: Setup, partitions: int) -> list[dict]:
    """Trains every candidate on every partition; the rehearsal's noise is the whole budget's."""
    task, count = setup.task, len(CANDIDATES)
    counts = partition_counts(
        Material.of(task, selector_settings.space()),
        partitioned(task.train, partitions, tasks.SPLIT_KEY),
        partition_lots(setup.setting, task.train.public_size, partitions, REHEARSAL),
        setup.setting.steps,
        selector_settings.hyperparameters(CANDIDATES),
        training.candidate_keys(count * partitions),
        chunk_size=4 * _CHUNK,
        job=Job(),
    )
    units = AveragedUtility(partitions, task.validation.public_size).total(counts)
    return [
        {
            **study.fixed,
            "validation_size": task.validation.public_size,
            "partitions": partitions,
            "candidate": int(candidate),
            "learning_rate": selector_settings.RATES[candidate],
            "units": units[candidate],
        }
        for candidate in CANDIDATES
    ]


def _final_rows(
    study: Study, setup: Setup, run: Callable, number: int, budgets: Sequence[Mapping]
) -> list[dict]:
    """Trains every candidate privately at every budget's noise, once."""
    pairs = list(itertools.product(budgets, CANDIDATES))
    candidates = np.array([candidate for _, candidate in pairs])
    noise = np.array([budget["noise_multiplier"] for budget, _ in pairs])
    rows: list[dict] = []
    for indices, (validation, test) in training.sweep(
        run,
        training.candidate_keys(len(pairs)),
        {**selector_settings.hyperparameters(candidates), "noise_multiplier": noise},
        (placed_records(setup.task.train), setup.task.validation.arrays, setup.test),
        chunk_size=_CHUNK,
    ):
        for index, right, accuracy in zip(indices, validation, test):
            budget, candidate = pairs[index]
            rows.append(
                {
                    **study.fixed,
                    **budget,
                    "training": number,
                    "candidate": int(candidate),
                    "learning_rate": selector_settings.RATES[candidate],
                    "validation_correct": int(right),
                    "test_accuracy": round(float(accuracy), 6),
                }
            )
    return rows


def _final_run(study: Study, setup: Setup) -> Callable:
    """run(key, hyperparameters, data) -> correct validation predictions, test accuracy."""
    task, setting = setup.task, setup.setting
    train_one = training.make_train(
        training.TrainConfig(
            loss_fn=task.loss,
            lots=setting.lots,
            steps=setting.steps,
            expected_lot_size=study.lot_size,
            optimizer=training.momentum(),
        )
    )

    def run(key: jax.Array, given: dict, records: tuple) -> tuple[jax.Array, jax.Array]:
        train_records, validation_arrays, test_arrays = records
        initial = task.initial(training.stream(key, "initial"))
        params = train_one(key, given, initial, *train_records)
        right = total_units(task, params, test_arrays)
        accuracy = right / len(test_arrays[1])
        return total_units(task, params, validation_arrays), accuracy

    return run
