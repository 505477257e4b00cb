"""Figure 11: DP-HYPE against Feathers, whose clients add noise one by one.

DP-HYPE, arXiv:2510.04902; see the package for how to run. CIFAR-10 and MNIST among 250 clients,
iid (tables of figure 4). What the paper shows: noise added locally drowns the rewards. Ours is a
simplified Feathers that explores every candidate once (see `figure_9.feathers`).
--quick (digits, 25 clients) takes fifteen seconds.
"""

from __future__ import annotations

from experiments.figures.dp_hype import figure_9
from experiments.figures.figure import FULL, MID, QUICK

FIGURE = figure_9.figure(
    11,
    "feathers",
    {
        FULL: (("cifar10", 250), ("mnist", 250)),
        MID: (("cifar10", 50), ("mnist", 250)),
        QUICK: (("mnist", 250),),
    },
    quick="15 s",
)

if __name__ == "__main__":
    FIGURE.run()
