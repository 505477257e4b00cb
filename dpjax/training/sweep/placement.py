"""Where candidates run: how many side by side on one device, and over which devices.

Candidates never exchange anything, so every placement is a vectorised run on each device and no
communication between them; a result depends on the placement by float32 rounding only.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dpjax.randomness import keys as key_streams

Tree = Any
AXIS = "candidates"
SPREAD = "lot_over_devices"
NAMES = ("rule", "auto", "vmap", "one_by_one", "devices", "devices_one_by_one", SPREAD)


@dataclasses.dataclass(frozen=True)
class Placement:
    """A number of candidates side by side on each of some devices.

    Example:
      >>> from dpjax import training
      >>> training.named_placement("one_by_one", 8)
      Placement(width=1, devices=None)

    Attributes:
      width: candidates vectorised on one device, at least 1.
      devices: of this process; None for JAX's default device.
    """

    width: int
    devices: tuple[jax.Device, ...] | None = None

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"a placement of width {self.width}: pass at least 1")
        if self.devices is not None and not self.devices:
            raise ValueError("a placement on no devices: pass jax.local_devices(), or None")

    @property
    def device_count(self) -> int:
        """Over how many devices the candidates are spread."""
        return 1 if self.devices is None else len(self.devices)

    @property
    def lanes(self) -> int:
        """Candidates in one call, over all devices."""
        return self.width * self.device_count

    def __str__(self) -> str:
        return f"{self.width} side by side on {self.device_count} device(s)"

    def with_lanes(self, lanes: int) -> Placement:
        """The same devices with `lanes` candidates in one call, a multiple of their number."""
        return dataclasses.replace(self, width=lanes // self.device_count)

    def mapped(self, function: Callable[..., Tree], in_axes: Sequence[int | None]) -> Callable:
        """`function` over the leading axis (lanes, ...) of the arguments whose in_axes is 0.

        The others go whole to every device. Returns a traceable function; every output has the
        leading axis. `jax.jit` belongs to the caller.
        """
        if self.width > 1:
            on_one_device = jax.vmap(function, in_axes=tuple(in_axes))
        else:
            # Not a vectorisation over one candidate: batched products of one are slower on CPU.
            def on_one_device(*arguments: Tree) -> Tree:
                single = [
                    argument if axis is None else jax.tree.map(lambda leaf: leaf[0], argument)
                    for argument, axis in zip(arguments, in_axes, strict=True)
                ]
                return jax.tree.map(lambda leaf: leaf[None], function(*single))

        if self.devices is None:
            return on_one_device
        return jax.shard_map(
            on_one_device,
            mesh=self._mesh,
            in_specs=tuple(P() if axis is None else P(AXIS) for axis in in_axes),
            out_specs=P(AXIS),
            check_vma=False,
        )

    def put(self, tree: Tree, *, whole: bool = False) -> Tree:
        """Copies host arrays to the devices: (lanes, ...) split over them, or `whole` to each."""
        if self.devices is None:
            return jax.device_put(tree)
        return jax.device_put(tree, NamedSharding(self._mesh, P() if whole else P(AXIS)))

    @property
    def _mesh(self) -> Mesh:
        return Mesh(np.asarray(self.devices), (AXIS,))


_BYTES_OF_A_SMALL_STEP = 2**20
"""On a CPU, what a step may touch for candidates to gain by standing side by side: they share the
fixed cost of its kernels. Measured on 2 cores that were busy (10th percentiles of some 80 turns),
time of 16 side by side over that of one by one: logistic regression .79 at 86 kB, .82 at 166 kB,
.92 to 1.02 at 400 kB, 1.02 at 728 kB, .91 at 852 kB, 1.19 at 1.4 MB, 1.9 at 3 MB; MLPs .81 at 493
kB, 1.09 at 7.6 MB. Two or four side by side were between, or up to 5% better than either."""

_BYTES_SIDE_BY_SIDE = 2**24
"""What the steps of all candidates side by side may touch on a CPU: no more was measured."""


def placement_by_rule(chunk_size: int, bytes_of_step: int) -> Placement:
    """The placement "rule", from public numbers alone: nothing is measured.

    On a CPU, candidates of small steps side by side and others one by one; on an accelerator all
    side by side. Over all devices of this process, where there are several.

    Example:
      >>> from dpjax import training
      >>> small = training.placement_by_rule(8, bytes_of_step=10_000)
      >>> small.width
      8

    Args:
      chunk_size: at most so many on one device.
      bytes_of_step: what one candidate's step touches, roughly (`dp_sgd.bytes_of_step`).
    """
    devices = tuple(jax.local_devices())
    width = chunk_size
    if jax.default_backend() == "cpu":
        small = bytes_of_step <= _BYTES_OF_A_SMALL_STEP
        width = min(chunk_size, _BYTES_SIDE_BY_SIDE // max(bytes_of_step, 1)) if small else 1
    return Placement(width, devices if len(devices) > 1 else None)


def named_placement(name: str, chunk_size: int, bytes_of_step: int | None = None) -> Placement:
    """Returns the placement of this name; nothing is measured.

    `rule`: `placement_by_rule` where `bytes_of_step` is known, else as `vmap`;
    `vmap`: chunk_size candidates vectorised on the default device; `one_by_one`: no vectorisation;
    `devices`: chunk_size candidates vectorised on every device of this process;
    `devices_one_by_one`: one candidate at a time on each of them; `lot_over_devices`: one candidate
    at a time, whose run spreads its lots over the devices itself (`TrainConfig(mesh=LotMesh())`).

    Example:
      >>> from dpjax import training
      >>> training.named_placement("vmap", 8)
      Placement(width=8, devices=None)

    Raises:
      ValueError: an unknown name, or "auto", which must be measured.
    """
    fixed = [known for known in NAMES if known != "auto"]
    if name not in fixed:
        raise ValueError(f"placement {name!r}: pass one of {', '.join(fixed)}")
    if name == "rule" and bytes_of_step is not None:
        return placement_by_rule(chunk_size, bytes_of_step)
    devices = tuple(jax.local_devices()) if name.startswith("devices") else None
    return Placement(1 if name == SPREAD or name.endswith("one_by_one") else chunk_size, devices)


def placement_options(chunk_size: int) -> list[Placement]:
    """What "auto" chooses from: wide, narrower and no vectorisation, on one and on all devices.

    Example:
      >>> from dpjax import training
      >>> len(training.placement_options(8)) > 0
      True
    """
    widths = sorted({chunk_size, -(-chunk_size // 4), 1}, reverse=True)
    options = [Placement(width) for width in widths]
    if len(jax.local_devices()) > 1:
        options += [Placement(width, tuple(jax.local_devices())) for width in widths]
    return options


@dataclasses.dataclass(frozen=True)
class Trial:
    """Runs of a model, of any length, on which placements are timed.

    Example:
      >>> import dataclasses
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
      >>> def run_of(steps):
      ...     train = training.make_train(dataclasses.replace(config, steps=steps))
      ...     return lambda key, given, rows: train(key, given, jnp.zeros(2), rows)
      >>> training.Trial(run_of, steps=config.steps).steps
      5

    Attributes:
      run_of: number of steps -> a run like that of `sweep`.
      steps: of the runs that the placement is for, at least 1; no trial is longer.
    """

    run_of: Callable[[int], Callable[..., Tree]]
    steps: int


_SHORTEST_TRIAL = 16
"""Steps; as many as are run before it is known how long one takes."""


def fastest_placement(
    trial: Callable[[jax.Array, dict[str, jax.Array], Tree], Tree] | Trial,
    hyperparameters: Mapping[str, Any],
    data: Tree,
    options: Sequence[Placement],
    *,
    repeats: int = 3,
    least_seconds: float = 0.2,
) -> tuple[Placement, dict[Placement, float]]:
    """Times placements on a short run of the given model and picks the fastest.

    Every option is compiled and called once unmeasured; then all take turns, so that a busy moment
    of the machine meets all of them alike. In a turn an option is called as often as fills
    `least_seconds`: a sweep calls it many times in a row, and one call of a few milliseconds after
    another option has had the caches and the threads says little. An option more than
    three times as slow as the best takes no further turns. The keys are fresh and the results
    dropped: nothing of the candidates proper is computed or spent.

    What a call costs besides its steps is measured with them, and should weigh what it weighs in
    the sweep. A `Trial` is therefore as long, for each option, as fills `least_seconds`, unless the
    real runs are shorter.

    Example:
      >>> import jax
      >>> import numpy as np
      >>> from dpjax import training
      >>> def run(key, given, rows):  # Stands for a training.
      ...     return given["learning_rate"] * rows.sum() + jax.random.normal(key)
      >>> options = [training.Placement(1), training.Placement(4)]
      >>> best, seconds = training.fastest_placement(
      ...     run, {"learning_rate": 0.1}, np.ones(8, np.float32), options, least_seconds=0.01
      ... )
      >>> best in options, set(seconds) == set(options)
      (True, True)

    Args:
      trial: a `Trial`, or a run like that of `sweep`, measured as it is.
      hyperparameters: name -> scalar, one typical candidate.
      data: pytree of arrays.
      options: at least one.
      repeats: turns of each option; the median counts.
      least_seconds: of one turn, and of a `Trial`, about.

    Returns:
      The best option, and the seconds per candidate of every option: of the run given, or of a run
      of `trial.steps` steps.
    """
    if not isinstance(trial, Trial):
        run = trial
        trial = Trial(lambda _: run, 1)
    placed = {option.devices: option.put(data, whole=True) for option in options}
    calls, candidates = {}, {}
    for option in options:
        calls[option], steps = _prepared(
            trial, hyperparameters, placed[option.devices], option, least_seconds
        )
        candidates[option] = steps / trial.steps * option.lanes
    seconds: dict[Placement, list[float]] = {option: [] for option in options}
    contenders = list(options)
    for _ in range(repeats):
        for option in contenders:
            # Until the time is up, not a number of calls set beforehand: on a machine that has
            # become busy meanwhile these could take a hundred times as long.
            number, elapsed, start = 0, 0.0, time.perf_counter()
            while elapsed < least_seconds:
                calls[option]()
                number, elapsed = number + 1, time.perf_counter() - start
            seconds[option].append(elapsed / number / candidates[option])
        typical = {option: statistics.median(taken) for option, taken in seconds.items()}
        least = min(typical.values())
        contenders = [option for option in contenders if typical[option] <= 3 * least]
    return min(contenders, key=typical.__getitem__), typical


def _prepared(
    trial: Trial,
    hyperparameters: Mapping[str, Any],
    placed: Tree,
    option: Placement,
    least_seconds: float,
) -> tuple[Callable[[], None], int]:
    """One call of the trial in every lane of an option, compiled and called, and its steps."""
    lanes = {
        name: np.full(option.lanes, value, np.float32) for name, value in hyperparameters.items()
    }
    arguments = (
        option.put(key_streams.candidate_keys(option.lanes)),
        option.put(lanes),
        placed,
    )

    def timed(steps: int) -> tuple[Callable[[], None], float]:
        mapped = jax.jit(option.mapped(trial.run_of(steps), (0, 0, None)))

        def call() -> None:
            jax.block_until_ready(mapped(*arguments))

        call()
        start = time.perf_counter()
        call()
        return call, time.perf_counter() - start

    steps = min(trial.steps, _SHORTEST_TRIAL)
    call, seconds = timed(steps)
    enough = min(trial.steps, math.ceil(steps * least_seconds / seconds))
    if enough >= 2 * steps:
        steps = enough
        call, _ = timed(steps)
    return call, steps
