"""Which kernels a program's time goes to, by JAX's profiler."""

from __future__ import annotations

import collections
import glob
import os
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

DEVICE_PLANE, STREAM = "GPU", "Stream"
"""Parts of the names of the profile's planes and lines on which a GPU's kernels stand."""


class Kernel(NamedTuple):
    """All launches of one name."""

    name: str
    milliseconds: float
    launches: int


def kernel_times(
    call: Callable[[], Any], plane: str = DEVICE_PLANE, line: str = STREAM
) -> list[Kernel]:
    """Returns what one call launches on planes and lines of such names, longest first."""
    times: dict[str, list[float]] = collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(call())
        for path in glob.glob(os.path.join(folder, "**", "*.xplane.pb"), recursive=True):
            for own in jax.profiler.ProfileData.from_file(path).planes:
                for events in own.lines if plane in own.name else ():
                    for event in events.events if line in events.name else ():
                        times[event.name].append(event.duration_ns / 1e6)
    found = [Kernel(name, sum(each), len(each)) for name, each in times.items()]
    return sorted(found, key=lambda kernel: -kernel.milliseconds)
