"""Draws every figure at one size, or lists them.

  python -m experiments.figures --quick         all, as `make figures_quick`
  python -m experiments.figures --size=mid      those that know this size
  python -m experiments.figures --list          names, sizes and their wall times

Every figure runs with its own defaults; its binary has flags for the rest.
"""

from __future__ import annotations

import os
import time

from absl import flags

from dpjax.commands import command_line
from experiments.figures import registry
from experiments.figures.figure import FULL, MID, QUICK, ROOT, define_size

_LIST = flags.DEFINE_bool("list", False, "Only list the figures.")
_OUT_DIR = flags.DEFINE_string("out_dir", ROOT, "Folder; every paper and size has one inside.")


def main(size: str) -> int:
    """Draws or lists the figures that know a size."""
    for name in registry.names():
        figure = registry.load(name)
        if _LIST.value:
            print(name, "; ".join(f"{known}: {takes}" for known, takes in figure.takes.items()))
        elif size in figure.takes:
            print(name, flush=True)
            start, before = time.monotonic(), _processor_seconds()
            figure.show(figure.produce(figure.default_folder(size, _OUT_DIR.value), size))
            used = _processor_seconds() - before
            print(f"{time.monotonic() - start:.1f} s, {used:.1f} s of processor time", flush=True)
    return 0


def _processor_seconds() -> float:
    """Of this process and those that it has waited for, which other programs do not lengthen."""
    return sum(os.times()[:4])


if __name__ == "__main__":
    asked = define_size({QUICK: "minutes for all", MID: "hours", FULL: "days"})
    command_line.run(lambda: main(asked() or FULL))
