r"""Figure 7: labels at ten of 50 clients under Dirichlet divisions of Adult.

Liebenow, Peinemann & Mohammadi, "DP-HYPE", PoPETs 2026, arXiv:2510.04902 (figure 7 in the numbering
of the published version and of the authors' code). With two classes a concentration of 0.5 leaves
some clients with a handful of records: divisions with fewer than ten at a client are drawn again,
which at 250 clients would never end, hence 2 there. Trains nothing.

  python -m experiments.figures.dp_hype.figure_7 --data_dir=... --out_dir=docs/figures/dp_hype

A second, once the data is prepared; --quick (digits) likewise.
"""

from __future__ import annotations

from experiments.figures.dp_hype import label_bars
from experiments.figures.dp_hype.studies import CONCENTRATIONS, FULL, QUICK, study
from experiments.figures.dp_hype.vote_figure import VoteFigure


def studies(size: str):
    """Yields the studies; all records are divided whatever the size, for nothing is trained."""
    for concentration in CONCENTRATIONS:
        yield study(size if size == QUICK else FULL, "adult", 50, concentration)


FIGURE = VoteFigure(
    "figure_7", label_bars.COLUMNS, studies, label_bars.label_rows, label_bars.draw
)

if __name__ == "__main__":
    FIGURE.run()
