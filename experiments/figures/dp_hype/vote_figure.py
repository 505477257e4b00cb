"""How the binaries of figures 3 to 13 run: tables trained or read, rows from them, a picture.

The flags say which size, where tables are kept, and which learning rates. Rows hold all that a
picture shows, so that --redraw needs no table. Accuracies come from the clients' own test records
without noise: rows and pictures belong to whoever may see the data, not to a release.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from absl import flags
from matplotlib.figure import Figure

from dpjax import plotting
from dpjax.tuning.vote_candidates import RATES
from experiments import command_line
from experiments.figures import rows as row_files
from experiments.figures.dp_hype import tables
from experiments.figures.dp_hype.studies import FULL, MID, QUICK, STUDY_COLUMNS, Study

PAPER = "dp_hype"
Rows = list[dict]


@dataclasses.dataclass(frozen=True)
class Options:
    """What the command line says.

    Attributes:
      data_dir, cache_dir: see `data.load`.
      tables_dir: folder of the trained tables.
      rates: name of the list of learning rates.
      runs: simulated votes for each epsilon.
      chunk_size: candidates trained at once.
    """

    data_dir: str | None = None
    cache_dir: str | None = None
    tables_dir: str = "runs/figures/dp_hype_tables"
    rates: str = "artifact"
    runs: int = 20
    chunk_size: int | None = None

    def table(self, study: Study) -> tables.Table:
        """The study's table, trained if it is not there."""
        return tables.table(
            study,
            self.tables_dir,
            data_dir=self.data_dir,
            cache_dir=self.cache_dir,
            chunk_size=self.chunk_size,
        )


@dataclasses.dataclass(frozen=True)
class VoteFigure:
    """One figure.

    Attributes:
      name: file name without ending.
      columns: of the rows, after those of the study.
      studies: size -> the federations it shows.
      rows: (study, options) -> rows without the study's columns.
      draw: rows -> picture, a pure function.
    """

    name: str
    columns: Sequence[str]
    studies: Callable[[str], Iterable[Study]]
    rows: Callable[[Study, Options], Iterable[Mapping]]
    draw: Callable[[Sequence[Mapping]], Figure]

    def produce(self, size: str | None, out_dir: str, options: Options) -> list[str]:
        """Writes `<name>.csv`, `.png` and `.pdf`; returns their paths.

        Args:
          size: one of `studies.SIZES`; None draws the rows that are there.
          out_dir: folder, made if absent.
          options: of the command line.
        """
        os.makedirs(out_dir, exist_ok=True)
        path = os.path.join(out_dir, f"{self.name}.csv")
        if size is not None:
            found = []
            for study in self.studies(size):
                study = dataclasses.replace(study, rates=options.rates)
                own = dataclasses.asdict(study)
                found += [{**own, **row} for row in self.rows(study, options)]
            row_files.write_rows(path, (*STUDY_COLUMNS, *self.columns), found)
        figure = self.draw(row_files.read_rows(path))
        return [path, *plotting.save_figure(figure, out_dir, self.name)]

    def run(self) -> None:
        """Runs the binary: flags, tables, rows, picture, paths."""
        # Defined here, not at import, so that several figures can be imported into one process.
        started = {"module_name": sys.argv[0]}
        out_dir = flags.DEFINE_string(
            "out_dir", None, f"Default: runs/figures/{PAPER}[_quick|_mid_size].", **started
        )
        quick = flags.DEFINE_bool("quick", False, "Digits, few clients: seconds.", **started)
        mid_size = flags.DEFINE_bool(
            "mid_size", False, "MLPs and fewer clients, for CPU: minutes to an hour.", **started
        )
        redraw = flags.DEFINE_bool("redraw", False, "Only draw the folder's rows.", **started)
        data_dir = flags.DEFINE_string("data_dir", None, "See experiments.tune.", **started)
        cache_dir = flags.DEFINE_string("cache_dir", None, "See experiments.tune.", **started)
        tables_dir = flags.DEFINE_string(
            "tables_dir", Options.tables_dir, "Trained tables, shared by all figures.", **started
        )
        rates = flags.DEFINE_enum("rates", "artifact", list(RATES), "Learning rates.", **started)
        runs = flags.DEFINE_integer("runs", 20, "Votes for each epsilon.", **started)
        chunk_size = flags.DEFINE_integer(
            "chunk_size", None, "Candidates trained at once: the memory knob.", **started
        )

        def main() -> int:
            if quick.value + mid_size.value + redraw.value > 1:
                raise ValueError("pass one of --quick, --mid_size and --redraw")
            if runs.value < 2:
                raise ValueError(f"--runs={runs.value}: pass at least 2, for an interval")
            size = QUICK if quick.value else MID if mid_size.value else FULL
            kind = "" if size == FULL else f"_{size}"
            options = Options(
                data_dir.value, cache_dir.value, tables_dir.value, rates.value, runs.value,
                chunk_size.value,
            )  # fmt: skip
            folder = out_dir.value or os.path.join("runs", "figures", f"{PAPER}{kind}")
            start = time.monotonic()
            for path in self.produce(None if redraw.value else size, folder, options):
                print(path)
            print(f"{time.monotonic() - start:.1f} s")
            return 0

        command_line.run(main)
