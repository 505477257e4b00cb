"""How every figure's binary runs: compute rows, save them, draw from the file, print the paths."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from absl import flags
from matplotlib.figure import Figure

from dpjax import plotting
from experiments import command_line
from experiments.figures import rows as row_files


@dataclasses.dataclass(frozen=True)
class FigureJob:
    """One figure of one paper.

    Attributes:
      paper: folder name of the paper, as in `papernot_steinke`.
      name: file name without ending, as in `figure_2`.
      columns: of the raw rows.
      compute: `compute(quick)` returns the rows; quick ones are a coarse subset, made in seconds.
      draw: `draw(rows)` returns the picture; a pure function of the rows.
    """

    paper: str
    name: str
    columns: Sequence[str]
    compute: Callable[[bool], Sequence[Mapping]]
    draw: Callable[[Sequence[Mapping]], Figure]

    def produce(
        self, out_dir: str | os.PathLike, *, quick: bool = False, redraw: bool = False
    ) -> list[str]:
        """Writes `<name>.csv`, `.png` and `.pdf`; returns their paths.

        Args:
          out_dir: folder, made if absent.
          quick: few rows, in seconds.
          redraw: draw from the rows that already stand in `out_dir` instead of computing them.

        Raises:
          ValueError: if another figure's rows stand in the way.
          FileNotFoundError: if `redraw` finds no rows.
        """
        os.makedirs(out_dir, exist_ok=True)
        path = os.path.join(os.fspath(out_dir), f"{self.name}.csv")
        if not redraw:
            row_files.write_rows(path, self.columns, self.compute(quick))
        # The picture is made from the file, so it can show nothing that the file does not hold.
        figure = self.draw(row_files.read_rows(path))
        return [path, *plotting.save_figure(figure, out_dir, self.name)]

    def run(self) -> None:
        """Runs the binary: flags, rows, picture, paths."""
        # Defined here, not at import, so that several figures can be imported into one process;
        # as the started module's own, so that --help shows them.
        started = {"module_name": sys.argv[0]}
        out_dir = flags.DEFINE_string(
            "out_dir",
            None,
            f"Folder to write into. Default: runs/figures/{self.paper}, or with --quick "
            f"runs/figures/{self.paper}_quick.",
            **started,
        )
        quick = flags.DEFINE_bool("quick", False, "A coarse figure, in seconds.", **started)
        redraw = flags.DEFINE_bool(
            "redraw", False, "Only draw again, from the rows already in the folder.", **started
        )

        def main() -> int:
            if quick.value and redraw.value:
                raise ValueError("--redraw draws the rows that are there: leave --quick away")
            folder = out_dir.value or os.path.join(
                "runs", "figures", self.paper + ("_quick" if quick.value else "")
            )
            start = time.monotonic()
            for path in self.produce(folder, quick=quick.value, redraw=redraw.value):
                print(path)
            print(f"{time.monotonic() - start:.1f} s")
            return 0

        command_line.run(main)
