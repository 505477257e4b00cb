"""Trains and scores the candidates of any procedure, each from its own key."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np

from dpjax import training
from dpjax.training.contribution_check import Checked, refuse_long
from dpjax.training.places import random_order
from dpjax.training.sweep.streaming import bytes_of_row
from dpjax.tuning.job import Job
from dpjax.tuning.problem.problem import Material, Problem
from dpjax.tuning.problem.run_settings import RunSetting
from dpjax.tuning.problem.task import Records, Task, all_finite, scored_at_once, total_units

PyTree = Any
CandidateRun = Callable[[jax.Array, dict[str, jax.Array], PyTree], PyTree]


class PlannedRuns(Protocol):
    """The part of a `private_runs.RunsPlan` that training reads."""

    @property
    def problem(self) -> Problem:
        """Returns the problem to tune on."""

    @property
    def selection(self) -> Any:
        """Returns the selection, of which only the mean number of runs is read."""

    @property
    def settings(self) -> tuple[RunSetting, ...]:
        """Returns the accounted settings a candidate may have."""


def train_config(
    material: Material,
    lots: training.PoissonLots | training.CyclicPoissonLots | training.FixedLots,
    steps: int,
    lot_size: float,
    job: Job = Job(),  # noqa: B008 (immutable)
    clipping: training.ClipRule = training.GlobalClipping(),  # noqa: B008 (immutable)
) -> training.TrainConfig:
    """Returns the static configuration of training on a task.

    `lots` also fix the neighbouring relation; the noisy sum is divided by `lot_size`, the expected
    number of records in a lot; `job` gives micro-batches, shared devices and checks.
    """
    task = material.task
    return training.TrainConfig(
        loss_fn=task.example_loss,
        lots=lots,
        steps=steps,
        expected_lot_size=lot_size,
        optimizer=material.optimizer,
        trainable=task.trainable,
        with_rng=task.with_rng,
        average=task.average,
        loss_reads=task.loss_reads,
        micro_batch_size=job.micro_batch_size,
        mesh=job.mesh,
        clipping=clipping,
        check_contributions=job.check_contributions,
    )


def config_of_setting(
    material: Material,
    setting: RunSetting,
    job: Job = Job(),  # noqa: B008 (immutable)
    clipping: training.ClipRule = training.GlobalClipping(),  # noqa: B008 (immutable)
) -> training.TrainConfig:
    """Returns `train_config` of a run that is accounted for as `setting`."""
    lots, size = setting.lots, setting.expected_lot_size
    config = train_config(material, lots, setting.steps, size, job, clipping)
    return dataclasses.replace(config, noise=setting.noise, stages=setting.stages)


def bytes_of_step(task: Task, config: training.TrainConfig) -> Callable[[int], int]:
    """Returns a function: candidates side by side -> bytes that the step of one of them touches.

    They are estimated from shapes, by `training.bytes_of_step`.
    """
    params = jax.eval_shape(task.initial, training.candidate_keys(1, seed=0)[0])
    return functools.partial(training.bytes_of_step, config, params, task.train.arrays)


_READ_FROM_SETTINGS = {
    "noise_multiplier": "noise_multiplier",
    "lot_size": "expected_lot_size",
    "steps": "steps",
}


def hyperparameters_of_runs(
    drawn: Mapping[str, np.ndarray], settings: Sequence[RunSetting]
) -> dict[str, np.ndarray]:
    """Returns the hyperparameters that each run reads, name -> (runs,) float64.

    `drawn` are those drawn for the runs. A clip norm is 1 where none was drawn; `noise_multiplier`,
    `lot_size` (the expected number of records in a lot) and `steps` come from the settings.
    """
    given = dict(drawn)
    for name, of_setting in _READ_FROM_SETTINGS.items():
        given[name] = np.asarray([float(getattr(setting, of_setting)) for setting in settings])
    given.setdefault("clip_norm", np.ones(len(settings)))
    return given


def initial_parameters(task: Task, key: jax.Array) -> PyTree:
    """Returns a candidate's initial parameters, as one of a batch of candidates too.

    On a CPU, jaxlib factorises a batch of matrices, as orthogonal initialisers of recurrent kernels
    ask for, inside the threads that it waits for: two such calls at once can wait for ever. What
    factorises is therefore computed for one candidate after another.
    """
    initial = task.initial
    if _factorises(jax.make_jaxpr(initial)(jax.ShapeDtypeStruct(key.shape, key.dtype)).jaxpr):
        initial = jax.custom_batching.sequential_vmap(initial)
    return initial(key)


def _factorises(jaxpr: Any) -> bool:
    """Returns whether a program holds an operation of `jax.lax.linalg`, at any depth."""
    for equation in jaxpr.eqns:
        if equation.primitive in _LINEAR_ALGEBRA:
            return True
        for leaf in jax.tree.leaves(list(equation.params.values())):
            inner = getattr(leaf, "jaxpr", leaf)
            if hasattr(inner, "eqns") and _factorises(inner):
                return True
    return False


_LINEAR_ALGEBRA = {
    one for one in vars(jax.lax.linalg).values() if isinstance(one, jax.extend.core.Primitive)
}


def run_of(
    task: Task, config: training.TrainConfig
) -> Callable[[jax.Array, Mapping[str, jax.Array], PyTree], PyTree]:
    """Returns run(key, hyperparameters, records as of `placed_records`) -> parameters.

    The initial parameters come from their own stream of the key; the rest, and the guarantee, is
    that of `training.make_train`.
    """
    train = training.make_train(config)

    def run(
        key: jax.Array, hyperparameters: Mapping[str, jax.Array], records: NumberedRecords
    ) -> PyTree:
        initial = initial_parameters(task, training.stream(key, "initial"))
        return train(key, hyperparameters, initial, *records)

    return run


NumberedRecords = tuple[PyTree, np.int32]
"""Records, padded to their public bound, and how many of the rows are records."""


def placed_records(records: Records, job: Job = Job()) -> NumberedRecords:  # noqa: B008 (immutable)
    """Returns records padded to their bound, split over the devices that share a run, if any.

    Their number is an argument of programs, and neither a shape nor a constant of them. Records
    that are streamed stay as they are: no program has their shape.
    """
    if job.stream_bytes is not None:
        return records.arrays, np.int32(records.number)
    return placed(records.arrays, records.size_bound, job), np.int32(records.number)


def placed(arrays: PyTree, rows: int, job: Job) -> PyTree:
    """Returns arrays padded to so many rows, split over the devices that share a run, if any."""
    if job.mesh is None:
        return training.padded(arrays, rows)
    return job.mesh.put_records(arrays, by_all=True, rows=rows)


@functools.cache
def _ordered() -> Callable[[jax.Array, int], jax.Array]:
    """Returns `random_order`, compiled once for each number of places."""
    return training.jit(random_order, static_argnums=1)


def placed_to_be_scored(records: Records, keys: jax.Array) -> tuple[PyTree, np.ndarray]:
    """Returns validation records at places of their own, and which places hold one, bool (rows,).

    Formal guarantees:
      A record that comes, goes or is replaced moves `total_units` by at most `Task.units`, whatever
      a score's last bits have to do with its place: there is a place for each of the `size_bound`
      records, in an order that is uniform and depends on no record (`places.random_order`), and
      neighbours can be coupled so that all other records stand at the same places.

    The order comes from the first of the candidates' keys (n,): the same in all shards of a job.
    """
    ((arrays, counts),) = pieces_to_be_scored(records, keys, records.size_bound)
    return arrays, counts


def pieces_to_be_scored(
    records: Records, keys: jax.Array, rows: int
) -> Iterator[tuple[PyTree, np.ndarray]]:
    """Yields what `placed_to_be_scored` returns in pieces of so many places, all of one shape.

    Formal guarantees: those of `placed_to_be_scored`. A record's piece, and its place there, are of
    its place among all. The places behind the last one of all hold no record.
    """
    places = records.size_bound
    order = np.arange(places)
    if len(keys):
        order = np.asarray(_ordered()(training.stream(keys[0], "scores"), places))
    order = np.pad(order, (0, -places % rows), constant_values=places)
    for first in range(0, len(order), rows):
        own = order[first : first + rows]
        counts = own < records.number

        def placed(leaf: PyTree) -> np.ndarray:
            leaf = np.asarray(leaf)
            found = np.zeros((rows, *leaf.shape[1:]), leaf.dtype)
            found[counts] = leaf[own[counts]]  # noqa: B023 (called here alone)
            return found

        yield jax.tree.map(placed, records.arrays), counts


def scored_run(
    task: Task, params: PyTree, validation_arrays: PyTree, counts: jax.Array | None = None
) -> dict[str, PyTree]:
    """Scores a trained candidate; returns its `params`, `units` and `finite`.

    `units`, int32, is the score summed over the validation records that count (`counts`, bool (n,);
    None for all), in whole units (`Task.units`): with `correct`, the number predicted correctly.
    `finite` says whether all parameters are. A run whose contributions were checked has `longest`.
    """
    kept = unscored_run(params)
    return kept | {"units": total_units(task, kept["params"], validation_arrays, counts)}


def unscored_run(params: PyTree) -> dict[str, PyTree]:
    """Returns what `scored_run` does without the score."""
    if isinstance(params, Checked):
        return unscored_run(params.params) | {"longest": params.longest}
    return {"params": params, "finite": all_finite(params)}


def scorer_in_pieces(
    task: Task, keys: jax.Array, stream_bytes: int
) -> Callable[[PyTree], np.ndarray]:
    """Returns a function of trained candidates, parameters (k, ...) -> their `units`, int32 (k,).

    A piece of the validation records has at most `stream_bytes`, or as many as are scored at once
    if these are more.
    """
    records, scored = task.validation, training.jit(functools.partial(total_units, task))
    at_once = scored_at_once(records.arrays, records.size_bound)
    fitting = stream_bytes // (at_once * bytes_of_row(records.arrays))
    rows = min(records.size_bound, at_once * max(1, fitting))

    def units_of(params: PyTree) -> np.ndarray:
        alone = [
            jax.tree.map(lambda leaf, own=own: leaf[own], params)
            for own in range(len(jax.tree.leaves(params)[0]))
        ]
        units = np.zeros(len(alone), np.int32)
        for arrays, counts in pieces_to_be_scored(records, keys, rows):
            arrays = jax.device_put(arrays)
            units += np.array([scored(own, arrays, counts) for own in alone], np.int32)
        return units

    return units_of


def trained_runs(
    plan: PlannedRuns,
    material: Material,
    hyperparameters: dict[str, np.ndarray],
    keys: jax.Array,
    members: np.ndarray,
    chunk_size: int,
    job: Job,
) -> Iterator[tuple[np.ndarray, PyTree]]:
    """Trains the candidates `members` of a procedure in chunks; yields (indices, outputs).

    The last chunk is filled up to `chunk_size`: no program's shape shows how many there are.
    """
    if not len(members):
        return
    rule = plan.problem.clipping
    configs = {one: config_of_setting(material, one, job, rule) for one in plan.settings}
    placement = _placement(material.task, configs, chunk_size, job)
    # Two settings may be the same once lot sizes are rounded: `configs` may have fewer.
    if job.folder is None and job.stream_bytes is None and len(plan.settings) == 1:
        found = _train_one_setting(
            material.task, configs, hyperparameters, keys, members, placement, job
        )
    else:
        found = _train_longest_first(
            plan, material.task, configs, hyperparameters, keys, members, placement, job
        )
    for positions, outputs in found:
        refuse_long(outputs.pop("longest", 0.0))
        yield positions, outputs


Configs = Mapping[RunSetting, training.TrainConfig]
"""How the candidates of each accounted setting are trained."""


def _placement(task: Task, configs: Configs, chunk_size: int, job: Job) -> training.Placement:
    """Chooses a placement by the largest setting, which is public, never by one that was drawn."""
    largest = max(configs, key=lambda setting: setting.lots.capacity)
    own = bytes_of_step(task, configs[largest]) if job.placement == "rule" else None
    # By the bounds, not by how many records there are, which is private.
    train, validation = (
        records.size_bound * bytes_of_row(records.arrays)
        for records in (task.train, task.validation)
    )
    beside = validation + (train if job.stream_bytes is None else job.stream_bytes)
    return training.named_placement(job.placement, chunk_size, own, bytes_beside=beside)


def _train_one_setting(
    task: Task,
    configs: Configs,
    hyperparameters: dict[str, np.ndarray],
    keys: jax.Array,
    members: np.ndarray,
    placement: training.Placement,
    job: Job,
) -> Iterator[tuple[np.ndarray, PyTree]]:
    """Trains the candidates of a plan with one setting, in order."""
    ((setting, config),) = configs.items()
    # Whole chunks only: a program's shape, and with it the last bits of what it computes, must
    # not depend on K. The lanes that fill a chunk have their own keys, and are dropped.
    fillers = -len(members) % placement.lanes
    lanes = np.append(members, np.full(fillers, members[-1]))
    values = {name: all_[lanes] for name, all_ in hyperparameters.items()}
    for positions, outputs in training.sweep(
        run_of_candidate(task, config),
        jnp.concatenate([keys[members], training.candidate_keys(fillers)]),
        hyperparameters_of_runs(values, [setting] * len(lanes)),
        (
            placed_records(task.train, job),
            placed_to_be_scored(task.validation, keys),
        ),
        chunk_size=placement.width,
        placement=placement,
    ):
        real = int(np.sum(positions < len(members)))
        yield members[positions[:real]], jax.tree.map(lambda leaf: leaf[:real], outputs)  # noqa: B023


def _train_longest_first(
    plan: PlannedRuns,
    task: Task,
    configs: Configs,
    hyperparameters: dict[str, np.ndarray],
    keys: jax.Array,
    members: np.ndarray,
    placement: training.Placement,
    job: Job,
) -> Iterator[tuple[np.ndarray, PyTree]]:
    """Trains candidates of several settings, or with checkpoints, those of most steps first."""
    setting_of = {
        member: setting
        for setting, having in _by_setting(plan, hyperparameters, len(keys))
        for member in having
    }
    own = [setting_of[member] for member in members]
    # Programs are planned for the expected candidates, not for those drawn: K must not show.
    runs = plan.selection.expected_runs
    population = [
        configs[setting]
        for setting in plan.settings
        for _ in range(max(1, round(setting.probability * runs)))
    ]
    train_arrays, number = placed_records(task.train, job)
    units_of = None
    if job.stream_bytes is not None:
        units_of = scorer_in_pieces(task, keys, job.stream_bytes)
    for positions, outputs in training.mixed_sweep(
        [configs[setting] for setting in own],
        keys[members],
        hyperparameters_of_runs(
            {name: values[members] for name, values in hyperparameters.items()}, own
        ),
        train_arrays,
        initial=task.initial,
        finish=lambda params, validation: (
            scored_run(task, params, *validation) if units_of is None else unscored_run(params)
        ),
        finish_data=placed_to_be_scored(task.validation, keys) if units_of is None else (),
        number_of_records=int(number),
        chunk_size=placement.width,
        placement=placement,
        population=population,
        checkpoints=job.checkpoints(),
        stream_bytes=job.stream_bytes,
    ):
        if units_of is not None:
            outputs["units"] = units_of(outputs["params"])
        yield members[positions], outputs


def _by_setting(
    plan: PlannedRuns, hyperparameters: dict[str, np.ndarray], total: int
) -> Iterator[tuple[RunSetting, np.ndarray]]:
    """Groups candidates by accounted setting; yields (setting, indices)."""
    if len(plan.settings) == 1:  # Whatever the space draws: a tuner may train shorter runs.
        yield plan.settings[0], np.arange(total)
        return
    drawn = [values for values, _ in plan.problem.space.accounted_settings()]
    for values, setting in zip(drawn, plan.settings):
        belongs = np.ones(total, dtype=bool)
        for name, value in values.items():
            belongs &= hyperparameters[name] == value
        members = np.flatnonzero(belongs)
        if len(members):
            yield setting, members


def run_of_candidate(task: Task, config: training.TrainConfig) -> CandidateRun:
    """Returns run(key, hyperparameters, data) -> what `scored_run` keeps of a candidate."""
    trained = run_of(task, config)

    def run(key: jax.Array, hyperparameters: dict[str, jax.Array], data: PyTree) -> PyTree:
        records, validation = data
        return scored_run(task, trained(key, hyperparameters, records), *validation)

    return run


def untrained(task: Task) -> PyTree:
    """Returns initial parameters, which depend on no record, for want of trained ones."""
    return jax.device_get(task.initial(jax.random.key(0)))
