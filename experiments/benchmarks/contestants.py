"""Everyone who takes a training step in the benchmark, and the search for everyone's best settings.

A step is the whole of it: draw a lot of the records, gather it, gradients, update; with privacy
also padding, clipping and noise. All train the same model in the same precision on Poisson lots of
the same expected size and capacity, vmap and jax-privacy on the very lots that our runs draw; the
plain step draws lots of exactly that size.

  plain        gradient of the mean loss, no privacy
  vmap         per-example gradients by `jax.vmap`, clipped and added up
  jax-privacy  `jax_privacy.clipped_grad`, where it is installed; rows of padding come last, so that
               it skips micro-batches of nothing else
  dpjax        `training.make_train`
  torch, opacus-hooks, opacus-ghost  see `opacus_steps`, in a process of their own
"""

from __future__ import annotations

import concurrent.futures
import importlib.util
import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import accounting, training
from dpjax.randomness import threefry
from experiments.benchmarks.zoo import Problem

Step = Callable[[jax.Array, jax.Array, Any, Any], Any]
"""(key of a call, number of the step in it, params, records) -> params."""

LEARNING_RATE, CLIP_NORM, NOISE_MULTIPLIER = 0.1, 1.0, 1.0
RECORDS = 6000
STEPS_A_CALL = 4
_LEAST_SECONDS = 0.05
"""A turn goes on until that, and for `STEPS_A_CALL` steps at least: a Poisson lot of 64 is 12% off
its mean, so that one step says little of the next."""
_TURN = 2**12
"""Calls of `STEPS_A_CALL` steps from one turn to the next: every way begins a turn at one lot."""
_LONG = 1.0
"""Seconds of a call that is measured once in a trial; of shorter ones the least of two counts."""
_HOPELESS = 4.0
"""Settings that take this many times as long as the fastest trial are not measured again: on an
accelerator, where each micro-batch of one row waits for the host, they took most of the search."""
_LEVEL = 1.15
"""Settings within this factor of the fastest trial are tried again, in turn."""


class Setting(NamedTuple):
    """How a contestant takes its step; `rows` of a micro-batch, 0 for the whole lot at once."""

    rows: int
    remat: bool = False
    steps: int = 1  # in one call of the compiled program


class Timed(Protocol):
    """Anything that tells how long one step takes now."""

    def seconds(self, turn: int = 0) -> float: ...


def _clock() -> float:
    """Returns seconds: the CPU time of the process where JAX runs on a CPU, else wall time."""
    return time.process_time() if jax.default_backend() == "cpu" else time.perf_counter()


class Way(NamedTuple):
    """A compiled step; `scratch` is what XLA reserves beside arguments and results, in bytes."""

    call: Callable[..., Any]
    arguments: tuple
    scratch: int
    compile_seconds: float | None
    setting: Setting

    def seconds(self, turn: int = 0) -> float:
        """Returns the mean seconds of a step, over calls that fill some time."""
        most = max(1, STEPS_A_CALL // self.setting.steps)
        start, calls = _clock(), 0
        while calls < most or _clock() - start < _LEAST_SECONDS:
            number = np.uint32(_TURN * most * turn + calls)
            jax.block_until_ready(self.call(number, *self.arguments))
            calls += 1
        return (_clock() - start) / calls / self.setting.steps


def compiled(
    build: Callable[[Problem, int, Setting], Step],
    problem: Problem,
    records: Any,
    lot: int,
    setting: Setting,
) -> Way:
    """Compiles `setting.steps` steps of a contestant, as a function of the call's number."""
    step = build(problem, lot, setting)
    ours = getattr(build, "func", build) in (dpjax, dpjax_auto, dpjax_side_by_side)
    jit = training.jit if ours else jax.jit  # As a sweep compiles it.

    def steps(number: jax.Array, params: Any, records: Any) -> Any:
        first = np.uint32(0)
        if setting.steps == 1 and not ours:  # A run of ours has its steps inside.
            number, first = jnp.divmod(number, np.uint32(STEPS_A_CALL))
        key = jax.random.fold_in(training.candidate_keys(1, seed=0)[0], number)
        if setting.steps == 1 or ours:
            return step(key, first, params, records)
        return jax.lax.fori_loop(
            0,
            setting.steps,
            lambda place, params: step(key, jnp.uint32(place), params, records),
            params,
        )

    start = time.process_time()
    with warnings.catch_warnings():
        # jax_privacy 2.0.0 calls names that its dependencies have deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        call = jit(steps).lower(np.uint32(0), problem.params, records).compile()
    seconds = time.process_time() - start
    scratch = call.memory_analysis().temp_size_in_bytes
    return Way(call, (problem.params, records), scratch, seconds, setting)


def in_turn(ways: Mapping[Any, Timed], turns: int) -> dict[Any, list[float]]:
    """Returns the seconds of each way in each turn: what disturbs a turn disturbs all of them."""
    seconds: dict[Any, list[float]] = {name: [] for name in ways}
    for turn in range(turns):
        for name, way in ways.items():
            seconds[name].append(way.seconds(turn))
    return seconds


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Returns median, lower and upper quartile."""
    low, middle, high = np.quantile(np.asarray(values, float), (0.25, 0.5, 0.75))
    return float(middle), float(low), float(high)


# The steps ---------------------------------------------------------------------------------------


def tiled(records: Any) -> Any:
    """Returns `RECORDS` records, by repeating those that there are."""

    def repeated(rows: jax.Array) -> jax.Array:
        return jnp.tile(rows, (-(-RECORDS // len(rows)), *(1,) * (rows.ndim - 1)))[:RECORDS]

    return jax.tree.map(repeated, records)


def lots_of(lot: int) -> training.PoissonLots:
    """Returns lots of this expected size, padded so that one in 1,000 steps overflows by 1e-8."""
    capacity = accounting.lot_capacity(RECORDS, lot / RECORDS, 1000, 1e-8)
    return training.PoissonLots(RECORDS, lot / RECORDS, capacity)


def _keys_of_a_step(key: jax.Array, place: jax.Array) -> Iterator[jax.Array]:
    """Returns the keys of lot and noise with which step `place` of a run of ours draws them."""
    return (threefry.fold_in(training.stream(key, name), place) for name in ("lots", "noise"))


def _loss(problem: Problem, setting: Setting) -> Callable[[Any, Any], jax.Array]:
    return jax.checkpoint(problem.loss) if setting.remat else problem.loss


def _updated(params: Any, gradients: Any, lot: int) -> Any:
    def step(value: jax.Array, slope: jax.Array) -> jax.Array:
        return (value - LEARNING_RATE / lot * slope).astype(value.dtype)

    return jax.tree.map(step, params, gradients)


def _noisy(key: jax.Array, summed: Any) -> Any:
    leaves, structure = jax.tree.flatten(summed)
    return jax.tree.unflatten(
        structure,
        [
            leaf + CLIP_NORM * NOISE_MULTIPLIER * jax.random.normal(each, leaf.shape, leaf.dtype)
            for each, leaf in zip(jax.random.split(key, len(leaves)), leaves)
        ],
    )


def _picked(records: Any, indices: jax.Array) -> Any:
    return jax.tree.map(lambda rows: rows[indices], records)


def _in_turns(sum_of: Callable, params: Any, records: Any, lot: tuple, rows: int) -> Any:
    """Adds up `sum_of(params, batch, mask)` over micro-batches that hold a row of the lot."""
    indices, mask = lot
    if not rows or rows >= len(mask):
        return sum_of(params, _picked(records, indices), mask)
    indices, mask = _padded_last(indices, mask, rows)

    def turn(number: jax.Array, total: Any) -> Any:
        start = number * rows
        own = jax.lax.dynamic_slice_in_dim(indices, start, rows)
        live = jax.lax.dynamic_slice_in_dim(mask, start, rows)
        return jax.tree.map(jnp.add, total, sum_of(params, _picked(records, own), live))

    zero = jax.tree.map(jnp.zeros_like, params)
    turns = (jnp.sum(mask, dtype=jnp.int32) + rows - 1) // rows
    return jax.lax.fori_loop(0, turns, turn, zero)


def _padded_last(indices: jax.Array, mask: jax.Array, rows: int) -> tuple[jax.Array, jax.Array]:
    order = jnp.argsort(~mask, stable=True)
    more = -len(mask) % rows
    return jnp.pad(indices[order], (0, more)), jnp.pad(mask[order], (0, more))


def plain(problem: Problem, lot: int, setting: Setting) -> Step:
    loss = _loss(problem, setting)

    def sum_of(params: Any, batch: Any, mask: jax.Array) -> Any:
        return jax.grad(lambda params: jax.vmap(loss, (None, 0))(params, batch).sum())(params)

    def step(key: jax.Array, place: jax.Array, params: Any, records: Any) -> Any:
        indices = jax.random.randint(jax.random.fold_in(key, place), (lot,), 0, RECORDS)
        every = jnp.ones(lot, bool)
        summed = _in_turns(sum_of, params, records, (indices, every), setting.rows)
        return _updated(params, summed, lot)

    return step


def vmap(problem: Problem, lot: int, setting: Setting) -> Step:
    loss, lots = _loss(problem, setting), lots_of(lot)

    def sum_of(params: Any, batch: Any, mask: jax.Array) -> Any:
        gradients = jax.vmap(jax.grad(loss), (None, 0))(params, batch)
        squares = [
            jnp.square(leaf.astype(jnp.float32)).reshape(len(mask), -1).sum(axis=1)
            for leaf in jax.tree.leaves(gradients)
        ]
        weights = mask * jnp.minimum(1, CLIP_NORM / jnp.sqrt(sum(squares)))
        return jax.tree.map(
            lambda leaf: jnp.tensordot(weights.astype(leaf.dtype), leaf, 1), gradients
        )

    def step(key: jax.Array, place: jax.Array, params: Any, records: Any) -> Any:
        of_lot, of_noise = _keys_of_a_step(key, place)
        lot_drawn = lots.draw(of_lot, RECORDS)
        summed = _in_turns(sum_of, params, records, lot_drawn, setting.rows)
        return _updated(params, _noisy(of_noise, summed), lot)

    return step


def jax_privacy(problem: Problem, lot: int, setting: Setting) -> Step:
    """Returns their step. The lot is drawn as ours: their own draw is made on the host."""
    import jax_privacy

    lots, rows = lots_of(lot), setting.rows
    theirs = jax_privacy.clipped_grad(
        _loss(problem, setting),
        l2_clip_norm=CLIP_NORM,
        keep_batch_dim=False,
        microbatch_size=rows or None,
    )

    def step(key: jax.Array, place: jax.Array, params: Any, records: Any) -> Any:
        of_lot, of_noise = _keys_of_a_step(key, place)
        indices, mask = lots.draw(of_lot, RECORDS)
        if rows:
            # Their micro-batch i of n holds rows i, i + n, ...: it is filled with ours in order.
            indices, mask = _padded_last(indices, mask, rows)
            indices, mask = (each.reshape(-1, rows).T.reshape(-1) for each in (indices, mask))
        summed = theirs(params, _picked(records, indices), is_padding_example=~mask)
        return _updated(params, _noisy(of_noise, summed), lot)

    return step


def config_of_ours(
    problem: Problem, lot: int, setting: Setting, micro_batch: Any = "auto"
) -> training.TrainConfig:
    """Returns our run: DP-SGD on these lots."""
    return training.TrainConfig(
        loss_fn=_loss(problem, setting),
        lots=lots_of(lot),
        steps=setting.steps,
        expected_lot_size=lot,
        optimizer=training.sgd(),
        micro_batch_size=micro_batch,
    )


def _hyperparameters() -> dict[str, float]:
    names = "learning_rate", "clip_norm", "noise_multiplier"
    return dict(zip(names, (LEARNING_RATE, CLIP_NORM, NOISE_MULTIPLIER), strict=True))


def dpjax(problem: Problem, lot: int, setting: Setting) -> Step:
    return _run_of(config_of_ours(problem, lot, setting, setting.rows or None))


def dpjax_auto(problem: Problem, lot: int, setting: Setting) -> Step:
    """Returns our step with the micro-batches that it has where nothing is said."""
    return _run_of(config_of_ours(problem, lot, setting))


def _run_of(config: training.TrainConfig) -> Step:
    train = training.make_train(config)
    return lambda key, place, params, records: train(key, _hyperparameters(), params, records)


def dpjax_side_by_side(problem: Problem, lot: int, setting: Setting, width: int) -> Step:
    """Returns `STEPS_A_CALL` steps of each of so many candidates, side by side."""
    config = config_of_ours(problem, lot, setting._replace(steps=STEPS_A_CALL))
    mapped = training.Placement(width).mapped(training.make_train(config), (0, 0, None, None))
    given = {name: jnp.full(width, value) for name, value in _hyperparameters().items()}
    return lambda key, place, params, records: mapped(
        jax.random.split(key, width), given, params, records
    )


def contestants() -> dict[str, Callable[[Problem, int, Setting], Step]]:
    """Returns those that run in this process, by name."""
    found = {"plain": plain, "vmap": vmap, "jax-privacy": jax_privacy, "dpjax": dpjax}
    if importlib.util.find_spec("jax_privacy") is None:
        del found["jax-privacy"]
    return found


# The search --------------------------------------------------------------------------------------


def sizes(lot: int) -> list[int]:
    """Returns the micro-batches that a search tries: powers of two, and 0 for the whole lot."""
    if lot < 2 or lot & (lot - 1):
        raise ValueError(f"a lot of {lot}: pass a power of two, as the micro-batches are")
    return [0, *(lot >> shift for shift in range(1, lot.bit_length()))]


def search(
    problem: Problem,
    records: Any,
    lot: int,
    memory: float,
    tried: Callable[[str, Setting, float | None, Way], None],
) -> dict[str, Way]:
    """Returns every contestant's fastest way, by its name; those alone that have one that fits.

    Every micro-batch is tried, then remat and several steps a call with the best of them. `tried`
    is told of every trial: who, the setting, its seconds or None where it would take more than
    `memory` bytes, and the way.
    """
    builds = contestants()
    found: dict[str, dict[Setting, tuple[float, Way]]] = {name: {} for name in builds}

    def attempt(trials: Sequence[tuple[str, Setting]]) -> None:
        ways = compiled_each(
            lambda trial: compiled(builds[trial[0]], problem, records, lot, trial[1]), trials
        )
        for (name, setting), way in zip(trials, ways):
            own = found[name]
            least = min((each for each, _ in own.values()), default=math.inf)
            seconds = None if way.scratch > memory else _trial(way, _HOPELESS * least)
            tried(name, setting, seconds, way)
            if seconds is not None:
                own[setting] = seconds, way
                least = min(least, seconds)
            # Else a machine holds hundreds of programs that nobody calls again.
            for other, (taken, _) in list(own.items()):
                if taken > _LEVEL * least:
                    del own[other]

    # Ours copies the records where a run is of one step.
    first = {name: STEPS_A_CALL if build is dpjax else 1 for name, build in builds.items()}
    attempt([(name, Setting(rows, steps=first[name])) for name in builds for rows in sizes(lot)])
    more = []
    for name, own in found.items():
        if own:
            best = min(own, key=lambda setting: own[setting][0])
            # Convolutions may take fifty times as long in a loop: two steps of slow ones will do.
            several = STEPS_A_CALL if own[best][0] < _LONG else 2
            other = 1 if best.steps > 1 else several
            more += [(name, best._replace(steps=other)), (name, best._replace(remat=True))]
    attempt(more)
    ways = {}
    for name, own in found.items():
        if own:
            again = in_turn({setting: way for setting, (_, way) in own.items()}, 3)
            best = min(again, key=lambda setting: float(np.median(again[setting])))
            ways[name] = own[best][1]
    return ways


def compiled_each(compile_one: Callable[[Any], Way], trials: Sequence[Any]) -> Iterable[Way]:
    """Compiles on a CPU one after another, when it is asked for; elsewhere all at once, in threads.

    Programs for an accelerator leave the host's cores idle, so that a search takes a fraction of
    the time; the seconds of one compilation then say nothing.
    """
    if jax.default_backend() == "cpu":
        return map(compile_one, trials)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
        return [way._replace(compile_seconds=None) for way in threads.map(compile_one, trials)]


def _trial(way: Way, hopeless: float) -> float:
    """Returns the seconds of a step; of one call if it is long, or longer than `hopeless`."""
    once = _once(way)
    if once > hopeless and jax.default_backend() != "cpu":
        once = _once(way)  # The first call may have loaded the program.
    if once > min(_LONG / way.setting.steps, hopeless):
        return once
    return min(way.seconds() for _ in range(2))


def _once(way: Way) -> float:
    start = _clock()
    jax.block_until_ready(way.call(np.uint32(0), *way.arguments))
    return (_clock() - start) / way.setting.steps
