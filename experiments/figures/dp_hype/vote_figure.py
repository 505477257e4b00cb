"""What figures 3 to 13 have in common: tables trained or read, rows from them, and their flags.

Their flags say where tables are kept, which learning rates, and what is left out. Rows hold all a
picture shows, so that --redraw needs no table. Accuracies come from the clients' own test records
without noise: rows and pictures belong to whoever may see the data, not to a release.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from dpjax.data.source import SOURCES
from dpjax.federated.voting import RATES
from experiments.figures import figure
from experiments.figures.dp_hype.studies import EPSILONS, STUDY_COLUMNS, Study
from experiments.figures.dp_hype.tables import Tables
from experiments.figures.figure import FULL, MID, QUICK, FigureSpec


@dataclasses.dataclass(frozen=True)
class Options(figure.DataFolders):
    """What the command line says; `datasets`, `clients` and `concentrations` leave others out.

    A data set whose files have no public address is shown only where `datasets` names it.
    """

    tables_dir: str = figure.option(Tables.folder, "Trained tables, shared by all figures.")
    rates: str = figure.option("artifact", "Learning rates.", choices=tuple(RATES))
    runs: int = figure.option(20, "Votes for each epsilon.")
    epsilons: tuple[float, ...] = figure.option(EPSILONS, "Of the votes; inf: without noise.")
    datasets: tuple[str, ...] = figure.option(
        (), "Only these data sets; if none is named, those whose files have a public address."
    )
    clients: tuple[int, ...] = figure.option((), "Only these numbers.")
    concentrations: tuple[float, ...] = figure.option(
        (), "Only these Dirichlet concentrations; 0 is iid."
    )
    chunk_size: int = figure.option(
        Tables.chunk_size, "Candidates trained and saved at once: the memory knob.", least=1
    )

    def __post_init__(self):
        if self.runs < 2:
            raise ValueError(f"--runs={self.runs}: pass at least 2, for an interval")
        object.__setattr__(self, "epsilons", tuple(sorted(self.epsilons)))

    @property
    def tables(self) -> Tables:
        """The folder of trained tables."""
        return Tables(self.tables_dir, self.data_dir, self.cache_dir, self.chunk_size)

    def chosen(self, studies: Iterable[Study]) -> list[Study]:
        """The studies that are to be shown, with the chosen rates."""
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
            and (self.datasets or _has_address(study.dataset))
        ]
        if not left:
            there = "; ".join(
                f"{name}: {', '.join(dict.fromkeys(f'{getattr(study, name)}' for study in every))}"
                for name in wanted
            )
            raise ValueError(f"no such federation in this figure and size: pass from {there}")
        return left


def _has_address(dataset: str) -> bool:
    """Whether all files of a data set can be downloaded, or come with a library."""
    return all(file.address.startswith("http") for file in SOURCES[dataset].files)


@dataclasses.dataclass(frozen=True)
class StudyRows:
    """The rows of a figure that shows several federations, as `FigureSpec.rows` has them.

    `rows` makes those of one study, without its columns.
    """

    studies: Callable[[str], Iterable[Study]]
    rows: Callable[[Study, Options], Iterable[Mapping]]

    def __call__(self, size: str, options: Options) -> list[dict]:
        """All rows, with the columns of their study."""
        return [
            {**dataclasses.asdict(study), **row}
            for study in options.chosen(self.studies(size))
            for row in self.rows(study, options)
        ]


def vote_figure(
    number: int,
    columns: Mapping[str, str],
    studies: Callable[[str], Iterable[Study]],
    rows: Callable[[Study, Options], Iterable[Mapping]],
    draw: Callable[[Sequence[Mapping]], Figure],
    *,
    quick: str,
    mid: str = "ten minutes",
    full: str = "hours on a GPU (an estimate)",
    **more: Any,
) -> FigureSpec:
    """One of figures 3 to 13; `columns` come after the study's, `more` is of `FigureSpec`.

    `quick`, `mid` and `full` are the wall times of these sizes; for `studies` and `rows` see
    `StudyRows`.
    """
    return FigureSpec(
        "dp_hype",
        f"figure_{number}",
        {**STUDY_COLUMNS, **columns},
        {FULL: full, MID: mid, QUICK: quick},
        draw,
        rows=StudyRows(studies, rows),
        options=Options(),
        **{"committed": MID, **more},
    )
