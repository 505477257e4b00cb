"""Figure 9: DP-HYPE against clients that send accuracies instead of votes (RawLosses).

DP-HYPE, arXiv:2510.04902; see the package for how to run. CIFAR-10, 100 clients, concentrations 5
and 0.5 (tables of figure 5). What the paper shows: a vote of one beats a vote weighted by the
accuracy, which is below one at the same noise. --quick takes twenty seconds.
"""

from __future__ import annotations

from experiments.figures.dp_hype import ablations
from experiments.figures.figure import FULL, MID, QUICK

_PAPER = (("cifar10", 100, 5.0), ("cifar10", 100, 0.5))

FIGURE = ablations.figure(
    9,
    "raw_losses",
    {FULL: _PAPER, MID: (("mnist", 100, 5.0), ("mnist", 100, 0.5)), QUICK: _PAPER},
    quick="20 s",
)

if __name__ == "__main__":
    FIGURE.run()
