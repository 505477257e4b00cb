"""Figure 10: DP-HYPE against one candidate for each subset of the clients (Subsets).

DP-HYPE, arXiv:2510.04902; see the package for how to run. CIFAR-10 among 250 clients (concentration
30) and MNIST among 100 (iid), tables of figures 4 and 12. What the paper shows: training one
candidate instead of a hundred saves a client's time and costs nearly all of the utility. Two
amounts of noise: ours, for a sum of accuracies that one client moves by 1, divided by the size of
the subset; the authors' code adds as much as for two moved numbers to the mean, whatever the size.
--quick (digits, 100 clients, as Subsets needs one for each candidate) takes half a minute.
"""

from __future__ import annotations

from experiments.figures.dp_hype import figure_9
from experiments.figures.figure import FULL, MID, QUICK

FIGURE = figure_9.figure(
    10,
    "subsets",
    {
        FULL: (("cifar10", 250, 30.0), ("mnist", 100)),
        MID: (("mnist", 250, 30.0), ("mnist", 100)),
        QUICK: (("mnist", 1000),),
    },
    quick="half a minute",
)

if __name__ == "__main__":
    FIGURE.run()
