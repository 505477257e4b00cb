"""Where candidates run: how many side by side on one device, and over which devices.

Candidates never exchange anything, so every placement is a vectorised run on each device and no
communication between them; a result depends on the placement by float32 rounding only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

Tree = Any
AXIS = "candidates"


@dataclasses.dataclass(frozen=True)
class Placement:
    """A number of candidates side by side on each of some devices.

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
