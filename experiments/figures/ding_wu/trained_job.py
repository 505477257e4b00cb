"""How the binaries run that train something first: flags, training that goes on, pictures."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence

from absl import flags

from experiments import command_line


def run(train: Callable[..., object], finish: Callable[[str], Sequence[str]]) -> None:
    """Runs a binary.

    Args:
      train: `train(folder, quick=..., data_dir=..., cache_dir=..., report=...)` trains what the
        folder's rows do not hold yet; left out with --redraw. `report` prints a line with the time.
      finish: `finish(folder)` makes rows and pictures from what was trained; returns their paths.
    """
    # Defined here, not at import, so that several figures can be imported into one process.
    started = {"module_name": sys.argv[0]}
    out_dir = flags.DEFINE_string(
        "out_dir", None, "Default: runs/figures/ding_wu, or ding_wu_quick.", **started
    )
    quick = flags.DEFINE_bool("quick", False, "A small part, on digits, in seconds.", **started)
    redraw = flags.DEFINE_bool(
        "redraw", False, "Train nothing; draw from the trained rows in the folder.", **started
    )
    data_dir = flags.DEFINE_string("data_dir", None, "See experiments.tune.", **started)
    cache_dir = flags.DEFINE_string("cache_dir", None, "See experiments.tune.", **started)

    def main() -> int:
        if quick.value and redraw.value:
            raise ValueError("--redraw draws what was trained: leave --quick away")
        folder = out_dir.value or os.path.join(
            "runs", "figures", "ding_wu_quick" if quick.value else "ding_wu"
        )
        os.makedirs(folder, exist_ok=True)
        start = time.monotonic()
        if not redraw.value:
            train(
                folder,
                quick=quick.value,
                data_dir=data_dir.value,
                cache_dir=cache_dir.value,
                report=lambda line: print(f"{time.monotonic() - start:.0f} s  {line}", flush=True),
            )
        for path in finish(folder):
            print(path)
        print(f"{time.monotonic() - start:.1f} s")
        return 0

    command_line.run(main)
