"""Trains many private runs at once: of one shape, or with different lot sizes and steps.

`sweep` vectorises runs of one shape over candidates, in chunks of one size. In `mixed_sweep` every
candidate has a configuration of its own: candidates of similar lots share a program (`schedule.py`,
`LotFamily`), a fixed number of slots advances together until the first of them has finished, and a
finished slot takes the next candidate. No step is executed that no candidate waits for, except in
slots that have run out of candidates.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from dpjax import checks
from dpjax.randomness.keys import IMPLEMENTATION, candidate_keys
from dpjax.training.compilation import jit
from dpjax.training.dp_sgd import TrainConfig, checked_number_of_records
from dpjax.training.lots import Lots, family_of
from dpjax.training.stages import Stages
from dpjax.training.sweep import hosts
from dpjax.training.sweep.checkpoints import Arrays, Checkpoints
from dpjax.training.sweep.placement import BytesOfStep, Placement, named_placement
from dpjax.training.sweep.schedule import Bucket, Work, plan_buckets
from dpjax.training.sweep.slots import Candidates, Inputs, SlotProgram, Slots, key_of, train_buckets
from dpjax.training.sweep.streaming import StreamedSlots, check_stream

Tree = Any
Run = Callable[[jax.Array, dict[str, jax.Array], Tree], Tree]
"""run(key, hyperparameters, data) -> pytree: one candidate, pure."""


def sweep(
    run: Run,
    keys: jax.Array,
    hyperparameters: Mapping[str, Any],
    data: Tree,
    *,
    chunk_size: int = 32,
    placement: str | Placement = "rule",
    bytes_of_step: BytesOfStep | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[tuple[np.ndarray, Tree]]:
    """Trains all candidates, chunk by chunk, with one compilation.

    Candidates that differ in lot size or number of steps are for `mixed_sweep`.

    Formal guarantees:
      * Candidates are independent: each uses its own key, and a key given twice is refused, since
        equal keys would add identical noise. Lanes that only fill up the last chunk get fresh keys
        of their own and their results are dropped.
      * A candidate's result depends on its key, its hyperparameters and the data alone, not on its
        position, the chunk size or the other candidates (up to float32 rounding, which may depend
        on the width of the vectorisation).
      * How many candidates there are shows in the number of chunks and their timing: both must stay
        with the curator.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from dpjax import training
      >>> config = training.TrainConfig(
      ...     loss_fn=lambda w, x: (x @ w - 1.0) ** 2,
      ...     lots=training.PoissonLots(100, 0.1, 40),
      ...     steps=5,
      ...     expected_lot_size=10,
      ...     optimizer=training.sgd(),
      ... )
      >>> train = training.make_train(config)
      >>> def run(key, given, rows):
      ...     return train(key, given, jnp.zeros(2), rows)
      >>> given = {
      ...     "clip_norm": np.ones(3),
      ...     "noise_multiplier": np.ones(3),
      ...     "learning_rate": np.array([0.1, 0.3, 1.0]),
      ... }
      >>> keys = training.candidate_keys(3)
      >>> for places, params in training.sweep(run, keys, given, np.ones((100, 2), np.float32)):
      ...     print(places, params.shape)
      [0 1 2] (3, 2)

    Args:
      run: one candidate, `run(key, hyperparameters, data) -> pytree of arrays`. Give the same
        function object again to reuse its compilation.
      keys: typed key array (candidates,), from `candidate_keys`.
      hyperparameters: name -> array (candidates,).
      data: pytree of arrays, copied to the device once and shared by all candidates.
      chunk_size: THE memory knob: at most this many candidates live on one device at a time, each
        with parameters, optimiser state, a lot and its activations. The candidates are spread
        evenly over as few chunks as that allows.
      placement: "rule", "vmap", "one_by_one", "devices", "devices_one_by_one"
        (`named_placement`), or a `Placement`. If the devices do not divide the number of
        candidates, the last lanes are filled up, with a warning.
      bytes_of_step: of one candidate's step (`training.bytes_of_step`), or a function of how many
        are side by side. "rule" chooses by it; without it "rule" is "vmap".
      progress: called with (candidates done, candidates in all) after every chunk.

    Yields:
      indices int64 (k,) of the finished candidates and their outputs, a pytree of host arrays
      (k, ...). What is refused is refused by the call itself, not by the first chunk.
    """
    checks.whole("chunk_size", chunk_size)
    values = checked_candidates(keys, hyperparameters)
    if isinstance(placement, str):
        leaves = jax.tree.leaves(data)
        beside = sum(np.size(leaf) * jax.dtypes.result_type(leaf).itemsize for leaf in leaves)
        placement = named_placement(placement, chunk_size, bytes_of_step, bytes_beside=beside)
    number, devices = keys.shape[0], placement.device_count
    if not number:
        return iter(())
    if number % devices:
        warnings.warn(
            f"{number} candidates do not divide by {devices} devices: the last lanes are padding",
            stacklevel=2,
        )
    # Spread evenly over the fewest turns that the placement allows.
    turns = -(-number // placement.lanes)
    placement = placement.with_lanes(devices * -(-number // (turns * devices)))
    # The generator is a separate function, or the refusals above would wait for the first chunk.
    return _chunks(run, placement, np.asarray(jax.random.key_data(keys)), values, data, progress)


def _chunks(
    run: Run,
    placement: Placement,
    key_words: np.ndarray,
    values: dict[str, np.ndarray],
    data: Tree,
    progress: Callable[[int, int], None] | None,
) -> Iterator[tuple[np.ndarray, Tree]]:
    """Runs the candidates in chunks of one call each; yields their places and outputs."""
    number, lanes = len(key_words), placement.lanes
    placed, data = _placed(run, placement), placement.put(data, whole=True)
    for start in range(0, number, lanes):
        members = np.arange(start, min(start + lanes, number))
        # Lanes without a candidate have keys of their own: no two share noise, even if dropped.
        free = lanes - len(members)
        places = np.append(members, np.zeros(free, int))
        words = np.append(key_words[members], jax.random.key_data(candidate_keys(free)), axis=0)
        own = {name: value[places] for name, value in values.items()}
        inputs = placement.put({"key": words, "hyperparameters": own})
        outputs = hosts.fetched(placed(inputs, data))
        if progress is not None:
            progress(int(members[-1]) + 1, number)
        yield members, _first(outputs, len(members))


def _first(outputs: Tree, number: int) -> Tree:
    return jax.tree.map(lambda leaf: leaf[:number], outputs)


@functools.lru_cache(maxsize=8)
def _placed(run: Run, placement: Placement) -> Callable[..., Tree]:
    """Returns the jitted run over a chunk, cached so that a repeated sweep need not compile."""

    def of_inputs(inputs: Inputs, data: Tree) -> Tree:
        return run(key_of(inputs), inputs["hyperparameters"], data)

    return jit(placement.mapped(of_inputs, (0, None)))


def mixed_sweep(
    configs: Sequence[TrainConfig],
    keys: jax.Array,
    hyperparameters: Mapping[str, Any],
    data: Tree,
    *,
    initial: Callable[[jax.Array], Tree],
    finish: Callable[[Tree, Tree], Tree] = lambda params, finish_data: params,
    finish_data: Tree = (),
    number_of_records: int | None = None,
    chunk_size: int = 32,
    useful_work: float = 0.85,
    steps_per_call: int = 4096,
    stream_bytes: int | None = None,
    placement: Placement | None = None,
    population: Sequence[TrainConfig] | None = None,
    checkpoints: Checkpoints | None = None,
    progress: Callable[[int, int], None] | None = None,
    report: Callable[[Work], None] | None = None,
) -> Iterator[tuple[np.ndarray, Tree]]:
    """Trains candidates that may differ in lots, number of steps and expected lot size.

    Formal guarantees:
      * Candidate i is trained as `make_train(configs[i])` trains it: with the lots of its own
        `configs[i].lots` (their capacity and failure probability are what its accounting needs;
        empty places never hold a record), its own steps, key and hyperparameters. Its guarantee is
        that of `make_train`. Its lots hold the same records at other places: last bits differ, and
        so do the keys that a loss with keys is given, which are of the places.
      * Its result does not depend on the other candidates, their order, the slots, the steps per
        call or the placement, up to float32 rounding.
      * A key given twice is refused; slots without a candidate get fresh keys, and what they
        compute is dropped.
      * The order and the times at which candidates finish depend on the number of candidates: they
        stay with the curator.

    Args:
      configs: one for each candidate, equal in everything but `lots`, `steps`,
        `expected_lot_size`, `noise` and `stages` (`dataclasses.replace`); all lots of one relation.
      keys, hyperparameters: as in `sweep`.
      data: pytree of arrays (rows, ...), the private records; copied to the device once, unless
        `stream_bytes` says otherwise.
      initial: key -> parameters, given each candidate's own "initial" stream. Must not see data.
      finish: (trained parameters, finish_data) -> what to hand out of a candidate, a pytree of
        arrays; the parameters by default.
      finish_data: pytree of arrays that `finish` reads, for example validation records.
      number_of_records: as in `make_train`: rows of `data`, from the first on, that are records.
      chunk_size: as in `sweep`.
      useful_work: least planned fraction of useful work, in (0, 1] (see `schedule.plan_buckets`).
        Lower: fewer compilations, more candidates side by side, more padding and waiting.
      steps_per_call: at most so many steps in one call to the device; the host can do nothing in
        between (progress, interruption, a checkpoint).
      stream_bytes: for records that do not fit the device. `data`, NumPy arrays such as
        `np.load(path, mmap_mode="r")`, then stays where it is. The host copies the rows of the lots
        of some steps to each device while it takes those before: at most so many bytes, or two
        steps' lots of all slots if these are more. The data needs no padding. None: all records
        are on the device.
      placement: devices to spread over; its width is an upper limit beside chunk_size. None: the
        default device.
      population: typical configurations, in typical proportions, that buckets and slots are
        planned for; every candidate must have lots, steps, noise and stages of one of them. The
        compiled programs, and with them the last bits of a result, then do not depend on which
        candidates were drawn, nor on how many. None: planned for `configs`.
      checkpoints: where to save slots and finished candidates. If the folder holds a save of this
        same sweep, the sweep goes on from there: it yields the candidates that had finished again,
        then the others, all bit for bit as without the interruption (same machine, same versions,
        same options). The folder is deleted at the end.
      progress: as in `sweep`, whenever some have finished.
      report: called once, at the end, with the `Work` done.

    Yields:
      indices int64 (k,) of finished candidates and their outputs, a pytree of host arrays (k, ...),
      in the order of finishing.
    """
    checks.whole("chunk_size", chunk_size)
    checks.whole("steps_per_call", steps_per_call)
    values = checked_candidates(keys, hyperparameters)
    configs = list(configs)
    if len(configs) != keys.shape[0]:
        raise ValueError(
            f"{len(configs)} configurations for {keys.shape[0]} keys: pass one for each candidate"
        )
    _refuse_other_differences(configs)
    placement = Placement(chunk_size) if placement is None else placement
    if stream_bytes is not None and configs:
        check_stream(stream_bytes, data, configs[0], placement)
    on_device = stream_bytes is None
    for lots in {config.lots for config in configs}:
        number = checked_number_of_records(lots, data, number_of_records, in_shapes=on_device)
    buckets = _planned(configs, population, placement, chunk_size, useful_work)
    candidates = Candidates(configs, np.asarray(jax.random.key_data(keys)), values)
    # Saves of another sweep are refused before anything is put on a device or compiled.
    saved: tuple[Arrays | None, list[Arrays]] = (None, [])
    identity: dict[str, str] = {}
    if checkpoints is not None:
        saved = checkpoints.restore()
        identity = candidates.identity(buckets, data, number) if configs else {}
        _refuse_other_saves(checkpoints, *saved, identity, buckets)
    data = placement.put(data, whole=True) if on_device else data
    program, planned = None, configs if population is None else population
    if configs:
        drawn, bands = [each.lots for each in planned], max(each.bands for each in planned)
        stages = max(len(each.stages.shares) if each.stages else 0 for each in planned)
        program = SlotProgram(
            configs[0], initial, finish, data, finish_data, number, drawn, bands, stages
        )

    def slots_of(bucket: Bucket) -> Slots:
        assert program is not None  # A bucket has members.
        if stream_bytes is None:
            return Slots(bucket, candidates, program, placement)
        most = min(steps_per_call, max(config.steps for config in planned))
        return StreamedSlots(bucket, candidates, program, placement, stream_bytes, most)

    words = json.dumps(identity).encode()
    return train_buckets(
        buckets, slots_of, steps_per_call, checkpoints, words, saved, progress, report
    )


def _planned(
    configs: list[TrainConfig],
    population: Sequence[TrainConfig] | None,
    placement: Placement,
    chunk_size: int,
    useful_work: float,
) -> list[Bucket]:
    """Puts the candidates into the buckets that are planned for the population."""
    population = configs if population is None else list(population)
    families = [family_of(config.lots) for config in population]
    buckets = plan_buckets(
        [dataclasses.replace(family, capacity=0) for family in families],
        [family.capacity for family in families],
        [config.steps for config in population],
        slots=min(chunk_size, placement.width) * placement.device_count,
        useful_work=useful_work,
        slots_multiple=placement.device_count,
    )
    bucket_of = {
        _planned_by(population[member]): number
        for number, bucket in enumerate(buckets)
        for member in bucket.members
    }
    members: list[list[int]] = [[] for _ in buckets]
    for index, config in enumerate(configs):
        if _planned_by(config) not in bucket_of:
            raise ValueError(
                f"candidate {index} has {config.lots}, {config.steps} steps, stages "
                f"{config.stages} and noise of {config.bands} bands, which the population lacks: "
                "pass a population with every setting a candidate may have"
            )
        members[bucket_of[_planned_by(config)]].append(index)
    return [
        dataclasses.replace(
            bucket, members=tuple(sorted(own, key=lambda index: (-configs[index].steps, index)))
        )
        for bucket, own in zip(buckets, members)
        if own
    ]


def _planned_by(config: TrainConfig) -> tuple[Lots, int, int, Stages | None]:
    """Returns what a population must have of a candidate."""
    return config.lots, config.steps, config.bands, config.stages


def _refuse_other_differences(configs: list[TrainConfig]) -> None:
    """Refuses configurations that differ in more than what a candidate may have of its own."""
    may_differ = ("lots", "steps", "expected_lot_size", "noise", "stages")
    for config in configs[1:]:
        for field in dataclasses.fields(TrainConfig):
            ours, first = getattr(config, field.name), getattr(configs[0], field.name)
            if field.name not in may_differ and ours is not first and ours != first:
                raise ValueError(
                    f"the candidates' configurations differ in {field.name}: make them from one by "
                    f"dataclasses.replace, changing only {', '.join(may_differ)}"
                )


def _refuse_other_saves(
    checkpoints: Checkpoints,
    standing: Arrays | None,
    earlier: list[Arrays],
    identity: Mapping[str, str],
    buckets: list[Bucket],
) -> None:
    """Refuses saves of another sweep, and those that lack or repeat a candidate."""
    if standing is None:
        return
    try:
        begun, number = json.loads(standing["identity"].tobytes()), int(standing["bucket"])
        taken, in_slots = int(standing["taken"]), standing["member"].tolist()
        kept = [index for arrays in earlier for index in arrays["members"].tolist()]
    except (KeyError, ValueError):
        raise checkpoints.damaged() from None
    if others := checks.differing(begun, identity):
        raise ValueError(
            f"{checkpoints.folder} holds checkpoints of another sweep ({', '.join(others)}): pass "
            "the candidates and options that it was begun with, or another folder"
        )
    met = [index for bucket in buckets[:number] for index in bucket.members]
    met += buckets[number].members[:taken]
    # Every candidate that was begun is in a slot or has finished, once.
    if sorted(kept + [index for index in in_slots if index >= 0]) != sorted(met):
        raise checkpoints.damaged()


def checked_candidates(
    keys: jax.Array, hyperparameters: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Checks keys and hyperparameters; returns the latter as float32 (candidates,)."""
    if not jax.dtypes.issubdtype(getattr(keys, "dtype", None), jax.dtypes.prng_key):
        raise ValueError("keys are not typed keys: pass training.candidate_keys(number)")
    if str(jax.random.key_impl(keys)) != IMPLEMENTATION:
        raise ValueError(
            f"keys are of kind {jax.random.key_impl(keys)}: pass {IMPLEMENTATION} "
            "keys, as training.candidate_keys makes them; others may repeat bits when vectorised"
        )
    if keys.ndim != 1:
        raise ValueError(f"keys have shape {keys.shape}: pass one key per candidate, (candidates,)")
    number = keys.shape[0]
    if len(np.unique(np.asarray(jax.random.key_data(keys)), axis=0)) < number:
        raise ValueError(
            "two candidates share a key and would get identical noise: pass a different key for "
            "each, from training.candidate_keys(number)"
        )
    values = {name: np.asarray(value, np.float32) for name, value in hyperparameters.items()}
    for name, value in values.items():
        if value.shape != (number,):
            raise ValueError(
                f"hyperparameter {name} has shape {value.shape}: pass one number per candidate, "
                f"({number},)"
            )
    return values
