r"""Figure 6: labels at ten of 50 clients under Dirichlet divisions of MNIST and CIFAR-10.

Liebenow, Peinemann & Mohammadi, "DP-HYPE", PoPETs 2026, arXiv:2510.04902 (figure 6 in the numbering
of the published version and of the authors' code). Concentration 30 is nearly even, at 0.5 clients
lack classes and differ in size several times over. Trains nothing.

The committed figure has the subset of CIFAR-10 (--mid_size) in place of CIFAR-10.

  python -m experiments.figures.dp_hype.figure_6 --data_dir=... [--mid_size] \
      --out_dir=docs/figures/dp_hype

A second, once the data is prepared; --quick (digits) likewise.
"""

from __future__ import annotations

import dataclasses

from experiments.figures.dp_hype import label_bars
from experiments.figures.dp_hype.studies import CONCENTRATIONS, study
from experiments.figures.dp_hype.vote_figure import VoteFigure


def studies(size: str):
    """Yields the studies; all records are divided whatever the size, for nothing is trained."""
    for dataset in ("mnist",) if size == "quick" else ("mnist", "cifar10"):
        for concentration in CONCENTRATIONS:
            found = study(size, dataset, 50, concentration)
            yield dataclasses.replace(found, records=0, net="paper", rounds=5)


FIGURE = VoteFigure(
    "figure_6", label_bars.COLUMNS, studies, label_bars.label_rows, label_bars.draw
)

if __name__ == "__main__":
    FIGURE.run()
