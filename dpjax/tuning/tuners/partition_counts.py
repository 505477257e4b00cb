"""Records by partition, and every candidate trained on every one, k x |S| models in one sweep.

Nothing but a number of correct validation predictions leaves a model; its parameters are dropped on
the device. The numbers are not private: only a selection with the noise of
`partitions.AveragedUtility` may look at them.
"""

from __future__ import annotations

import dataclasses
import os
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import checks, private_files, training
from dpjax.data import splitting
from dpjax.tuning.job import Arrays, Job, bound, read_bound
from dpjax.tuning.problem.problem import BETWEEN, Material, Sizes
from dpjax.tuning.problem.task import Records, Task
from dpjax.tuning.runner import (
    bytes_of_step,
    initial_parameters,
    placed,
    placed_to_be_scored,
    scored_run,
    train_config,
)
from dpjax.tuning.tuners.partitions import PartitionLots

PyTree = Any
Run = Callable[[jax.Array, dict[str, jax.Array], PyTree], PyTree]


class EmptyPartitionWarning(UserWarning):
    """Says that a partition holds no record. It depends on data: for the curator only."""


@dataclasses.dataclass(frozen=True)
class PartitionedRecords:
    """Training records by partition, on the host; everything but k is for the curator only.

    `arrays` (size_bound, ...) have the rows of one partition together, zeros after the last: shapes
    are public, so the compiled program is the same for all neighbours. `starts` (k,) and `sizes`
    (k,) are each partition's first row and its number of rows.
    """

    arrays: object
    starts: np.ndarray
    sizes: np.ndarray


def partitioned(records: Records, partitions: int, key: bytes) -> PartitionedRecords:
    """Partitions training records by a keyed hash of identifiers; warns of empty partitions."""
    check_partitions(records, partitions)
    assert records.identifiers is not None  # Else they were just refused.
    order, sizes = splitting.partition_order(records.identifiers, partitions, key)
    empty = int(np.sum(sizes == 0))
    if empty:
        warnings.warn(
            f"{empty} of {partitions} partitions hold no record: every candidate scores 0 there "
            "(for the curator's eyes); pass fewer partitions",
            EmptyPartitionWarning,
            stacklevel=2,
        )
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    sorted_arrays = jax.tree.map(lambda rows: np.asarray(rows)[order], records.arrays)
    return PartitionedRecords(
        training.padded(sorted_arrays, records.size_bound),
        starts.astype(np.int32),
        sizes.astype(np.int32),
    )


def check_partitions(records: Records | Sizes, partitions: int) -> int:
    """Returns the number of partitions; refuses one that the records cannot be divided into."""
    partitions = checks.whole("partitions", partitions, 0)
    if not 1 <= partitions <= records.public_size:
        raise checks.Refused(("partitions", partitions), BETWEEN.format(records.public_size))
    if not records.identified:
        raise ValueError(
            "the training records have no identifiers to partition them by: make the task from "
            "data.from_arrays(...).parts(...), or pass Records(identifiers=..., "
            "stable_under_removal=True)"
        )
    return partitions


def partition_counts(
    material: Material,
    records: PartitionedRecords,
    lots: PartitionLots,
    steps: int,
    hyperparameters: Mapping[str, np.ndarray],
    keys: jax.Array,
    *,
    clipping: training.ClipRule = training.GlobalClipping(),  # noqa: B008 (immutable)
    chunk_size: int,
    job: Job,
    drawn: Arrays | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> np.ndarray | None:
    """Counts what every candidate's model of every partition gets right, (candidates, k) int64.

    Formal guarantees:
      The count of candidate s on partition j is a function of the records of partition j in their
      order, the validation records, `keys[s k + j]` and public numbers. No other partition has an
      influence, and no number of records: all shapes are public, so neighbours run the same
      compiled program and agree bit for bit on the partitions they share. It adds up over the
      validation records, and is 0 for an empty partition and for a model that is not finite. This
      is what `AveragedUtility.sensitivity` needs.

    The `keys` (candidates k,) must all be different. A shard leaves its counts in the job's folder
    and returns None. A job with a folder needs `drawn`, the folder's draw (`Job.once`).
    """
    partitions = len(records.sizes)
    total = len(keys)
    model = np.arange(total)
    traced = {name: values[model // partitions] for name, values in hyperparameters.items()}
    # Schedules may read these; the clip norm is the candidate's, or infinite without clipping.
    traced |= {
        name: np.full(total, float(value))
        for name, value in (
            ("lot_size", lots.lot_size),
            ("steps", steps),
            ("noise_multiplier", lots.noise_multiplier),
        )
    }
    if not lots.clips:
        traced["clip_norm"] = np.full(total, np.inf)
    traced.setdefault("clip_norm", np.ones(total))
    # The partition's number is below 2^24, which float32 holds exactly; its rows may lie beyond.
    traced["partition"] = model % partitions
    rule = clipping if lots.clips else training.GlobalClipping()
    task = material.task
    config = train_config(material, lots.lots, steps, lots.lot_size, job, rule)
    members = job.share(total)
    drawn = drawn or {}
    saved = _Saved(job, drawn)
    counts = saved.restore(total)
    waiting = members[counts[members] < 0]
    # The final training counts as one model more.
    models_in_all = len(members) + 1
    if progress is not None:
        progress(len(members) - len(waiting), models_in_all)
    for positions, outputs in training.sweep(
        _model_run(task, config),
        keys[waiting],
        {name: values[waiting] for name, values in traced.items()},
        (
            # The bound on a partition may exceed that on all of very few records.
            placed(records.arrays, max(task.train.size_bound, lots.lots.dataset_size_bound), job),
            records.starts,
            records.sizes,
            placed_to_be_scored(task.validation, keys),
        ),
        chunk_size=chunk_size,
        placement=job.placement,
        bytes_of_step=bytes_of_step(task, config),
    ):
        training.refuse_long(outputs.pop("longest", 0.0))
        counts[waiting[positions]] = outputs["correct"]
        saved.save(counts)
        if progress is not None:
            progress(int(np.sum(counts[members] >= 0)), models_in_all)
    saved.save(counts, now=True)
    shares = job.collected({"members": members, "counts": counts[members]}, drawn)
    if shares is None:
        return None
    for share in shares:
        counts[share["members"]] = share["counts"]
    if (counts < 0).any():
        raise ValueError("the shards do not hold every model: merge shards of one draw")
    return counts.reshape(-1, partitions)


def _model_run(task: Task, config: training.TrainConfig) -> Run:
    """Returns run(key, hyperparameters, data) -> `correct` predictions of one partition's model.

    `longest` stands beside it where contributions were checked; see `scored_run`.
    """
    train = training.make_train(config)

    def run(key: jax.Array, hyperparameters: dict[str, jax.Array], data: PyTree) -> PyTree:
        train_arrays, starts, sizes, validation = data
        partition = hyperparameters["partition"].astype(jnp.int32)
        size = jnp.asarray(sizes)[partition]
        initial = initial_parameters(task, training.stream(key, "initial"))
        params = train(
            key,
            hyperparameters,
            initial,
            train_arrays,
            number_of_records=size,
            first_record=jnp.asarray(starts)[partition],
        )
        seen = scored_run(task, params, *validation)
        correct = jnp.where(seen["finite"] & (size > 0), seen["units"], 0)
        return {"correct": correct} | {name: seen[name] for name in seen if name == "longest"}

    return run


class _Saved:
    """Counts of the models done so far, in the job's folder if it has one; for the curator only."""

    def __init__(self, job: Job, drawn: Arrays):
        self._every, self._drawn = job.checkpoint_seconds, drawn
        self._last = time.monotonic()
        self._path = None
        if job.folder is not None:
            self._path = os.path.join(job.folder, f"partition_counts_{job.name_of_share()}.npz")

    def restore(self, total: int) -> np.ndarray:
        """Returns the saved counts (total,) int64, -1 for models that are not trained yet."""
        if self._path is None or not os.path.lexists(self._path):
            return np.full(total, -1, dtype=np.int64)
        mend = "remove it, and its models are trained again"
        return read_bound(self._path, self._drawn, mend)["counts"]

    def save(self, counts: np.ndarray, now: bool = False) -> None:
        """Writes all counts if `now`, or if the last save is long enough ago."""
        if self._path is None or not (now or time.monotonic() - self._last >= self._every):
            return
        self._last = time.monotonic()
        private_files.write_anew(self._path, bound({"counts": counts}, self._drawn))
