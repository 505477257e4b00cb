"""How the binaries of figures 4 to 8 and Table 2 run: train what is missing, derive rows, draw."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence

from absl import flags
from matplotlib.figure import Figure

from experiments import command_line
from experiments.figures import job
from experiments.figures.dpareto import trained_searches
from experiments.figures.dpareto.figure_2 import data_flags

Searches = Callable[[str], Sequence[tuple[str, str, int]]]


def produce(
    folder: str,
    name: str,
    columns: Sequence[str],
    rows: Callable[[list[dict], list[dict]], list[dict]],
    draw: Callable[[Sequence[dict]], Figure],
) -> list[str]:
    """Makes one figure from the folder's trained rows; returns the paths written.

    Raises:
      ValueError: if nothing was trained that it shows.
    """
    evaluations, fresh = trained_searches.stored(folder)
    made = rows(evaluations, fresh)
    if not made:
        raise ValueError(f"{folder} holds no search that {name} shows: leave --redraw away")
    return job.FigureJob("dpareto", name, columns, lambda quick: made, draw).produce(folder)


def run(
    name: str,
    searches: Searches,
    columns: Sequence[str],
    rows: Callable[[list[dict], list[dict]], list[dict]],
    draw: Callable[[Sequence[dict]], Figure],
) -> None:
    """Runs a binary.

    Args:
      name: of the figure.
      searches: size -> the searches it needs, as `trained_searches.train` wants them.
      columns: of its rows.
      rows: (all evaluations, fronts measured afresh) -> its rows.
      draw: its rows -> the picture.
    """
    started = {"module_name": sys.argv[0]}
    out_dir = flags.DEFINE_string(
        "out_dir", None, "Default: runs/figures/dpareto, with _mid or _quick.", **started
    )
    quick = flags.DEFINE_bool("quick", False, "On digits, in seconds.", **started)
    mid = flags.DEFINE_bool("mid_size", False, "For four CPU cores: minutes.", **started)
    redraw = flags.DEFINE_bool("redraw", False, "Train nothing; draw what was trained.", **started)
    folders = data_flags()

    def main() -> int:
        if quick.value + mid.value + redraw.value > 1:
            raise ValueError("pass one of --quick, --mid_size, --redraw")
        size = trained_searches.FULL
        if quick.value or mid.value:
            size = trained_searches.QUICK if quick.value else trained_searches.MID
        ending = "" if size == trained_searches.FULL else f"_{size}"
        folder = out_dir.value or os.path.join("runs", "figures", f"dpareto{ending}")
        start = time.monotonic()
        if not redraw.value:
            trained_searches.train(
                folder,
                searches(size),
                size,
                data_dir=folders["data_dir"].value,
                cache_dir=folders["cache_dir"].value,
                report=lambda line: print(f"{time.monotonic() - start:.0f} s  {line}", flush=True),
            )
        for path in produce(folder, name, columns, rows, draw):
            print(path)
        print(f"{time.monotonic() - start:.1f} s")
        return 0

    command_line.run(main)
