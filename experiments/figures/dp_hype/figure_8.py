r"""Figure 8: accuracies of the 100 candidates by federated averaging where clients' data is skewed.

Liebenow, Peinemann & Mohammadi, "DP-HYPE", PoPETs 2026, arXiv:2510.04902 (figure 8 in the numbering
of the published version and of the authors' code). One panel for each number of clients and each
Dirichlet concentration (2 stands for 0.5 at Adult among 250 clients). What it shows: with more
clients and stronger skew the good candidates get fewer and worse.

Full size (default) is for a GPU and uses the tables of figures 5, 12 and 13. The committed figure
is the mid size: the tables that figures 5, 12 and 13 have at that size, CIFAR-10 left out.

  python -m experiments.figures.dp_hype.figure_8 --data_dir=...
  python -m experiments.figures.dp_hype.figure_8 --mid_size --data_dir=... \
      --out_dir=docs/figures/dp_hype

--quick (digits, 5 to 25 clients) takes a minute.
"""

from __future__ import annotations

from experiments.figures.dp_hype import accuracy_histograms
from experiments.figures.dp_hype.studies import CONCENTRATIONS, MID, Study, skewed, study
from experiments.figures.dp_hype.vote_figure import VoteFigure

_PANELS = {2.0: 0.5}
"""Concentrations shown in another's panel."""


def studies(size: str):
    """Yields the studies, concentrations by rows and numbers of clients by columns."""
    for place in range(len(CONCENTRATIONS)):
        for clients in (50, 100, 250):
            for dataset in ("adult",) if size == "quick" else ("mnist", "cifar10", "adult"):
                if size == MID and (dataset == "cifar10" or clients > 50 and dataset == "mnist"):
                    continue
                yield study(size, dataset, clients, skewed(dataset, clients)[place])


def _panel(study: Study) -> str:
    concentration = _PANELS.get(study.concentration, study.concentration)
    return f"{study.clients} clients, $\\alpha={concentration:g}$"


FIGURE = VoteFigure(
    "figure_8",
    accuracy_histograms.COLUMNS,
    studies,
    accuracy_histograms.histogram_rows,
    accuracy_histograms.drawer(3, _panel),
)

if __name__ == "__main__":
    FIGURE.run()
