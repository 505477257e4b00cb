r"""Figure 3: accuracies of the 100 candidates by federated averaging, 50 clients, iid.

Liebenow, Peinemann & Mohammadi, "DP-HYPE", PoPETs 2026, arXiv:2510.04902 (figure 3 in the numbering
of the published version and of the authors' code). What it shows: a few candidates are good, most
are useless, since most learning rates are too small; on Adult the useless ones guess the larger
class. In the authors' published table for MNIST the best has .976, the mean is .31, and 26 of the
100 exceed .85.

Full size (default) is for a GPU (see figure 4). The committed figure is the mid size: an MLP
784-64-10 on all of MNIST, one of width 32 on 5000 images of CIFAR-10, Adult as in the paper.

  python -m experiments.figures.dp_hype.figure_3 --data_dir=...
  python -m experiments.figures.dp_hype.figure_3 --mid_size --data_dir=... \
      --out_dir=docs/figures/dp_hype

--quick (digits) takes fifteen seconds.
"""

from __future__ import annotations

from experiments.figures.dp_hype import accuracy_histograms
from experiments.figures.dp_hype.studies import study
from experiments.figures.dp_hype.vote_figure import VoteFigure


def studies(size: str):
    """Yields one study a data set."""
    for dataset in ("mnist",) if size == "quick" else ("mnist", "cifar10", "adult"):
        yield study(size, dataset, 50)


FIGURE = VoteFigure(
    "figure_3",
    accuracy_histograms.COLUMNS,
    studies,
    accuracy_histograms.histogram_rows,
    accuracy_histograms.drawer(1, lambda study: f"{study.clients} clients, iid"),
)

if __name__ == "__main__":
    FIGURE.run()
