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
from dpjax.federated.vote_candidates import RATES
from experiments import command_line
from experiments.figures import rows as row_files
from experiments.figures.dp_hype.studies import (
    EPSILONS,
    FULL,
    MID,
    QUICK,
    STUDY_COLUMNS,
    Study,
)
from experiments.figures.dp_hype.tables import Tables

PAPER = "dp_hype"
Rows = list[dict]


@dataclasses.dataclass(frozen=True)
class Options:
    """What the command line says.

    Attributes:
      tables: the folder of trained tables.
      rates: name of the list of learning rates.
      runs: simulated votes for each epsilon.
      epsilons: of the votes; infinite for one without noise.
      datasets, clients, concentrations: studies of other values are left out; empty for all.
    """

    tables: Tables = Tables()
    rates: str = "artifact"
    runs: int = 20
    epsilons: tuple[float, ...] = EPSILONS
    datasets: tuple[str, ...] = ()
    clients: tuple[int, ...] = ()
    concentrations: tuple[float, ...] = ()

    def chosen(self, studies: Iterable[Study]) -> list[Study]:
        """The studies that are to be shown, with the chosen rates.

        Raises:
          ValueError: if none is left, saying what there is.
        """
        every = [dataclasses.replace(study, rates=self.rates) for study in studies]
        wanted = {
            "dataset": self.datasets,
            "clients": self.clients,
            "concentration": self.concentrations,
        }
        left = [
            study
            for study in every
            if all(not values or getattr(study, name) in values for name, values in wanted.items())
        ]
        if not left:
            there = "; ".join(
                f"{name}: {', '.join(dict.fromkeys(f'{getattr(study, name)}' for study in every))}"
                for name in wanted
            )
            raise ValueError(f"no such federation in this figure and size: pass from {there}")
        return left


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
            for study in options.chosen(self.studies(size)):
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
            "tables_dir", Tables.folder, "Trained tables, shared by all figures.", **started
        )
        rates = flags.DEFINE_enum("rates", "artifact", list(RATES), "Learning rates.", **started)
        runs = flags.DEFINE_integer("runs", 20, "Votes for each epsilon.", **started)
        epsilons = flags.DEFINE_list(
            "epsilons", [f"{epsilon:g}" for epsilon in EPSILONS], "Of the votes.", **started
        )
        datasets = flags.DEFINE_list("datasets", [], "Only these data sets.", **started)
        clients = flags.DEFINE_list("clients", [], "Only these numbers.", **started)
        concentrations = flags.DEFINE_list(
            "concentrations", [], "Only these Dirichlet concentrations; 0 is iid.", **started
        )
        chunk_size = flags.DEFINE_integer(
            "chunk_size", Tables.chunk_size,
            "Candidates trained and saved at once: the memory knob.", lower_bound=1, **started,
        )  # fmt: skip

        def main() -> int:
            if quick.value + mid_size.value + redraw.value > 1:
                raise ValueError("pass one of --quick, --mid_size and --redraw")
            if runs.value < 2:
                raise ValueError(f"--runs={runs.value}: pass at least 2, for an interval")
            size = QUICK if quick.value else MID if mid_size.value else FULL
            kind = "" if size == FULL else f"_{size}"
            options = Options(
                Tables(tables_dir.value, data_dir.value, cache_dir.value, chunk_size.value),
                rates.value,
                runs.value,
                tuple(sorted(float(epsilon) for epsilon in epsilons.value)),
                tuple(datasets.value),
                tuple(int(number) for number in clients.value),
                tuple(float(concentration) for concentration in concentrations.value),
            )
            folder = out_dir.value or os.path.join("runs", "figures", f"{PAPER}{kind}")
            start = time.monotonic()
            for path in self.produce(None if redraw.value else size, folder, options):
                print(path)
            print(f"{time.monotonic() - start:.1f} s")
            return 0

        command_line.run(main)
