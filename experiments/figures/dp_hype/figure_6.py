"""Figure 6: labels at ten of 50 clients under Dirichlet divisions of MNIST and CIFAR-10.

DP-HYPE, arXiv:2510.04902; see the package for how to run. Concentration 30 is nearly even,
at 0.5 clients lack classes and differ in size several times over.
Trains nothing: a second at every size, once the data is at hand.
"""

from __future__ import annotations

from experiments.figures.dp_hype import label_bars

FIGURE = label_bars.figure(6, ("mnist", "cifar10"))

if __name__ == "__main__":
    FIGURE.run()
