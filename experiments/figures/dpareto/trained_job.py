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
from experiments.figures import rows as row_files
from experiments.figures.dpareto import trained_searches
from experiments.figures.dpareto.figure_2 import data_flags

_SIZE_FLAGS = {
    trained_searches.QUICK: ("quick", "On digits, in seconds."),
    trained_searches.QUICK_ADULT: ("quick_adult", "Adult, 8 epochs at most: minutes."),
    trained_searches.MID: ("mid_size", "For four CPU cores: an hour or two."),
}
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
    summary: Callable[[Sequence[dict]], Sequence[str]] | None = None,
) -> None:
    """Runs a binary.

    Args:
      name: of the figure.
      searches: size -> the searches it needs, as `trained_searches.train` wants them.
      columns: of its rows.
      rows: (all evaluations, fronts measured afresh) -> its rows.
      draw: its rows -> the picture.
      summary: its rows -> lines to print.
    """
    started = {"module_name": sys.argv[0]}
    out_dir = flags.DEFINE_string(
        "out_dir", None, "Default: runs/figures/dpareto, the size after it.", **started
    )
    sizes = {
        size: flags.DEFINE_bool(flag, False, said, **started)
        for size, (flag, said) in _SIZE_FLAGS.items()
    }
    redraw = flags.DEFINE_bool("redraw", False, "Train nothing; draw what was trained.", **started)
    problem = flags.DEFINE_multi_enum(
        "problem", None, list(trained_searches.LABELS), "Train these only.", **started
    )
    folders = data_flags()

    def main() -> int:
        if redraw.value + sum(flag.value for flag in sizes.values()) > 1:
            raise ValueError("pass one of --quick, --quick_adult, --mid_size, --redraw")
        size = next((size for size, flag in sizes.items() if flag.value), trained_searches.FULL)
        ending = "" if size == trained_searches.FULL else f"_{size}"
        folder = out_dir.value or os.path.join("runs", "figures", f"dpareto{ending}")
        start = time.monotonic()
        if not redraw.value:
            trained_searches.train(
                folder,
                [one for one in searches(size) if not problem.value or one[0] in problem.value],
                size,
                data_dir=folders["data_dir"].value,
                cache_dir=folders["cache_dir"].value,
                report=lambda line: print(f"{time.monotonic() - start:.0f} s  {line}", flush=True),
            )
        paths = produce(folder, name, columns, rows, draw)
        if summary is not None:
            paths += summary(row_files.read_rows(paths[0]))
        print("\n".join([*paths, f"{time.monotonic() - start:.1f} s"]))
        return 0

    command_line.run(main)
