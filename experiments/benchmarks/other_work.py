"""How much else the machine did while something was measured."""

from __future__ import annotations

import os
import pathlib
import time


class OtherWork:
    """Counts the processors busy, between entry and exit, with work that is not ours.

    Ours are this process and the child processes that it has waited for. After exit `processors` is
    their mean number; None where the system does not tell (Linux does, in /proc/stat).
    """

    def __init__(self) -> None:
        self.processors: float | None = None

    def __enter__(self) -> OtherWork:
        self._start = time.perf_counter(), _machine_seconds(), _own_seconds()
        return self

    def __exit__(self, *exception: object) -> None:
        start, machine, own = self._start
        now = _machine_seconds()
        if machine is not None and now is not None:
            others = now - machine - (_own_seconds() - own)
            self.processors = max(0.0, others / (time.perf_counter() - start))


def _machine_seconds() -> float | None:
    """Seconds that all processors together were busy, theft by other guests included."""
    try:
        line = pathlib.Path("/proc/stat").read_text(encoding="ascii").splitlines()[0]
    except OSError:
        return None
    user, nice, system, _idle, _waiting, *interrupts = map(int, line.split()[1:9])
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    return sum(os.times()[:4])
