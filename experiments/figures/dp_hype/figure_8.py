"""Figure 8: accuracies of the 100 candidates by federated averaging where clients' data is skewed.

DP-HYPE, arXiv:2510.04902; see the package for how to run. One panel for each number of clients and
each Dirichlet concentration (2 stands for 0.5 at Adult among 250 clients). What it shows: with more
clients and stronger skew the good candidates get fewer and worse. Uses the tables of figures 5, 12
and 13. --quick (digits, 5 to 25 clients) takes half a minute.
"""

from __future__ import annotations

from collections.abc import Iterator

from experiments.figures.dp_hype import figure_3
from experiments.figures.dp_hype.studies import CONCENTRATIONS, Study
from experiments.figures.dp_hype.trade_off import skewed_studies
from experiments.figures.dp_hype.vote_figure import vote_figure

_PANELS = {2.0: 0.5}
"""Concentrations shown in another's panel."""


def _concentration(study: Study) -> float:
    return _PANELS.get(study.concentration, study.concentration)


def studies(size: str) -> Iterator[Study]:
    """Yields the studies, concentrations by rows and numbers of clients by columns."""
    every = [study for clients in (50, 100, 250) for study in skewed_studies(size, clients)]
    for concentration in CONCENTRATIONS:
        yield from (study for study in every if _concentration(study) == concentration)


FIGURE = vote_figure(
    8,
    figure_3.COLUMNS,
    studies,
    figure_3.histogram_rows,
    figure_3.drawer(3, _concentration),
    quick="half a minute",
)

if __name__ == "__main__":
    FIGURE.run()
