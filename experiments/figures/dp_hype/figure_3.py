"""Figure 3: accuracies of the 100 candidates by federated averaging, 50 clients, iid.

DP-HYPE, arXiv:2510.04902; see the package for how to run. What it shows: a few candidates are good,
most are useless, since most learning rates are too small; on Adult the useless ones guess one of
the two classes. In the authors' published table for MNIST the best has .976, the mean is .31, and
26 of the 100 exceed .85; at mid size (an MLP) .926, .32 and 19. Candidates share their initial
parameters here, so all useless ones share one accuracy, where the authors' scatter around chance.

Mid size trains for about ten minutes on one core, --quick for fifteen seconds.
"""

from __future__ import annotations

from experiments.figures.dp_hype import accuracy_histograms
from experiments.figures.dp_hype.studies import listed
from experiments.figures.dp_hype.vote_figure import vote_figure
from experiments.figures.figure import FULL, MID, QUICK

_ALL = (("mnist", 50), ("cifar10", 50), ("adult", 50))

FIGURE = vote_figure(
    3,
    accuracy_histograms.COLUMNS,
    listed({FULL: _ALL, MID: _ALL, QUICK: (("mnist", 50),)}),
    accuracy_histograms.histogram_rows,
    accuracy_histograms.drawer(1),
    mid="ten minutes",
    quick="15 s",
)

if __name__ == "__main__":
    FIGURE.run()
