"""Where candidates run: how many side by side on one device, and over which devices.

Candidates never exchange anything, so every placement is a vectorised run on each device and no
communication between them; a result depends on the placement by float32 rounding only.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dpjax import checks
from dpjax.training import micro_batches
from dpjax.training.mesh import CANDIDATES as AXIS
from dpjax.training.mesh import LotMesh

Tree = Any
SPREAD, SPREAD_MODEL = "lot_over_devices", "model_over_devices"
NAMES = ("rule", "vmap", "one_by_one", "devices", "devices_one_by_one", SPREAD, SPREAD_MODEL)


@dataclasses.dataclass(frozen=True)
class Placement:
    """Places a number of candidates side by side on each of several devices.

    Attributes:
      width: candidates vectorised on one device, at least 1.
      devices: of this process; None for JAX's default device.
      mesh: instead of `devices`, sets of devices, each of which trains one candidate at a time; it
        must be the run's own mesh (`TrainConfig(mesh=)`).
    """

    width: int
    devices: tuple[jax.Device, ...] | None = None
    mesh: LotMesh | None = None

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"a placement of width {self.width}: pass at least 1")
        if self.devices is not None and not self.devices:
            raise ValueError("a placement on no devices: pass jax.local_devices(), or None")
        if self.mesh is not None and (self.width > 1 or self.devices is not None):
            raise ValueError("one candidate on each set of a mesh: pass Placement(1, mesh=...)")

    @property
    def device_count(self) -> int:
        """Returns the number of devices, or of sets of them, that candidates are spread over."""
        if self.mesh is not None:
            return self.mesh.candidates
        return 1 if self.devices is None else len(self.devices)

    @property
    def lanes(self) -> int:
        """Returns the number of candidates in one call, over all devices."""
        return self.width * self.device_count

    def __str__(self) -> str:
        return f"{self.width} side by side on {self.device_count} device(s)"

    def with_lanes(self, lanes: int) -> Placement:
        """Returns a placement on the same devices of `lanes` candidates, a multiple of them."""
        return dataclasses.replace(self, width=lanes // self.device_count)

    def mapped(self, function: Callable[..., Tree], in_axes: Sequence[int | None]) -> Callable:
        """Maps `function` over the leading axis (lanes, ...) of the arguments whose in_axes is 0.

        The others go whole to every device. Returns a traceable function; every output has the
        leading axis. `jax.jit` belongs to the caller.
        """
        if self.width > 1:

            def beside_others(*arguments: Tree) -> Tree:
                """Calls the function, which is traced here as one of those on a device."""
                with micro_batches.side_by_side(self.width):
                    return function(*arguments)

            on_one_device = jax.vmap(beside_others, in_axes=tuple(in_axes))
        else:
            # One candidate is not vectorised: batched products of one are slower on a CPU.
            def on_one_device(*arguments: Tree) -> Tree:
                """Calls the function for the one lane that a device holds."""
                single = [
                    argument if axis is None else jax.tree.map(lambda leaf: leaf[0], argument)
                    for argument, axis in zip(arguments, in_axes, strict=True)
                ]
                return jax.tree.map(lambda leaf: leaf[None], function(*single))

        if self._mesh is None or AXIS not in self._mesh.axis_names:
            return on_one_device
        return jax.shard_map(
            on_one_device,
            mesh=self._mesh,
            in_specs=tuple(P() if axis is None else P(AXIS) for axis in in_axes),
            out_specs=P(AXIS),
            axis_names={AXIS},
            check_vma=False,
        )

    def put(self, tree: Tree, *, whole: bool = False) -> Tree:
        """Copies host arrays to the devices: (lanes, ...) split over them, or `whole` to each.

        Arrays that lie on several devices stay where they are.
        """
        mesh = self._mesh
        spec = P() if whole or mesh is None or AXIS not in mesh.axis_names else P(AXIS)

        def one(leaf: Any) -> jax.Array:
            if isinstance(leaf, jax.Array) and len(leaf.sharding.device_set) > 1:
                return leaf
            if self.mesh is not None and self.mesh.spans_processes:
                return self.mesh.put(leaf)
            return jax.device_put(leaf, None if mesh is None else NamedSharding(mesh, spec))

        return jax.tree.map(one, tree)

    @property
    def _mesh(self) -> Mesh | AbstractMesh | None:
        if self.mesh is not None:
            return self.mesh.mesh
        return None if self.devices is None else Mesh(np.asarray(self.devices), (AXIS,))


_BYTES_OF_A_SMALL_STEP = 2**20
"""Most bytes of a step on a CPU for candidates to gain from running side by side, which shares the
fixed cost of its kernels. Measured on 2 cores that were busy (10th percentiles of some 80 turns),
time of 16 side by side over that of one by one: logistic regression 0.79 at 86 kB, 0.82 at 166 kB,
0.92 to 1.02 at 400 kB, 1.02 at 728 kB, 0.91 at 852 kB, 1.19 at 1.4 MB, 1.9 at 3 MB; MLPs 0.81 at
493 kB, 1.09 at 7.6 MB. Two or four side by side were between, or up to 5% better than either."""

_BYTES_SIDE_BY_SIDE = 2**24
"""Most bytes of the steps of all candidates side by side on a CPU: no more was measured."""


BytesOfStep = int | Callable[[int], int]
"""Roughly the bytes that one candidate's step touches (`dp_sgd.bytes_of_step`), or a function that
returns them for a number of candidates side by side."""


def named_placement(
    name: str,
    chunk_size: int,
    bytes_of_step: BytesOfStep | None = None,
    *,
    bytes_beside: int = 0,
    devices: Sequence[jax.Device] | None = None,
) -> Placement:
    """Returns the placement of this name; nothing is measured.

    `rule`: on a CPU, candidates side by side if their steps are small, else one by one; on an
    accelerator, as many side by side as should fit its memory, in the fewest groups of one size, or
    all if it does not tell its memory. They are spread over all devices of this process. Without
    `bytes_of_step`, as `vmap`.
    `vmap`: chunk_size candidates vectorised on the default device; `one_by_one`: no vectorisation;
    `devices`: chunk_size candidates vectorised on every device of this process;
    `devices_one_by_one`: one candidate at a time on each of them; `lot_over_devices`: one candidate
    at a time, whose run spreads its lots over the devices itself, and the records;
    `model_over_devices`: so too, but its parameters in the place of the lots. `2x4x3`: 2 candidates
    at a time on 12 devices each, in 4 groups that share the lots, of 3 that share the parameters;
    the devices are those of this process or, with 1 candidate at a time, of all processes.
    For these `TrainConfig(mesh=)` has to be that of the placement.

    Example:
      >>> from dpjax import training
      >>> training.named_placement("vmap", 8)
      Placement(width=8, devices=None, mesh=None)

    Args:
      chunk_size: the most candidates side by side on one device.
      bytes_of_step: roughly the bytes that one candidate's step touches (`dp_sgd.bytes_of_step`),
        or a function that returns them for a number of candidates side by side.
      bytes_beside: of the other arrays on each device, such as the records.
      devices: whose number, kind and memory count; those of this process unless given.
    """
    if (mesh := mesh_named(name)) is not None:
        return Placement(1, mesh=mesh)
    found = tuple(jax.local_devices() if devices is None else devices)
    if name == "rule" and bytes_of_step is not None:
        own = bytes_of_step if callable(bytes_of_step) else lambda width: bytes_of_step
        memory = micro_batches.memory_of(found)
        if found[0].platform == "cpu":
            alone = max(own(1), 1)
            small = alone <= _BYTES_OF_A_SMALL_STEP
            width = min(chunk_size, _BYTES_SIDE_BY_SIDE // alone) if small else 1
        elif memory is None:
            width = chunk_size
        else:
            width = _fitting(own, chunk_size, memory - bytes_beside)
        return Placement(width, found if len(found) > 1 else None)
    width = 1 if name.endswith("one_by_one") else chunk_size
    return Placement(width, found if name.startswith("devices") else None)


def _fitting(bytes_of_step: Callable[[int], int], chunk_size: int, room: int) -> int:
    """Returns how many of `chunk_size` candidates stand side by side, in groups of one size.

    They are the most whose steps take at most `room` bytes. If not even one fits, it returns 1: a
    sweep that may be too large is still tried.
    """
    turns = 1
    while (width := -(-chunk_size // turns)) > 1 and width * (own := bytes_of_step(width)) > room:
        # Beside fewer others a candidate takes no less memory, so no more than these can fit.
        turns = -(-chunk_size // max(1, min(width - 1, room // max(own, 1))))
    return width


def spreads_runs(name: str) -> bool:
    """Returns whether a placement spreads each run over devices; refuses a name that none has."""
    is_grid = _GRID.fullmatch(name) is not None
    if name not in NAMES and not is_grid:
        raise checks.Refused(
            ("placement", name),
            f": pass one of {', '.join(NAMES)}, or numbers of candidates, of groups that share "
            "lots and of devices that share a model, such as 2x4x1",
        )
    return is_grid or name in (SPREAD, SPREAD_MODEL)


def mesh_named(name: str) -> LotMesh | None:
    """Returns the devices as a placement's runs share them; None if they do not.

    They are this process's, or all processes' where the numbers say so.
    """
    if not spreads_runs(name):
        return None
    devices, everywhere = tuple(jax.local_devices()), tuple(jax.devices())
    grid = {SPREAD: (1, len(devices), 1), SPREAD_MODEL: (1, 1, len(devices))}.get(name)
    candidates, groups, model = grid or map(int, name.split("x"))
    if candidates == 1 and groups * model == len(everywhere):
        devices = everywhere
    elif candidates * groups * model != len(devices):
        several = len(everywhere) > len(devices)
        together = f", or for 1 candidate at a time {len(everywhere)}, those of all" * several
        words = f" on {len(devices)} device(s) of this process: pass numbers whose product that is"
        raise checks.Refused(("placement", name), words, together)
    # Anyone who splits a model is short of memory.
    return LotMesh(devices, model > 1, model, split_data=True, candidates=candidates)


_GRID = re.compile("[1-9][0-9]*x[1-9][0-9]*x[1-9][0-9]*")
