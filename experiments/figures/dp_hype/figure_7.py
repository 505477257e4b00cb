"""Figure 7: labels at ten of 50 clients under Dirichlet divisions of Adult.

DP-HYPE, arXiv:2510.04902; see the package for how to run. With two classes a concentration
of 0.5 leaves some clients with a handful of records: divisions with fewer than ten at a client are
drawn again, which at 250 clients would never end, hence 2 there.
Trains nothing: a second at every size, once the data is at hand.
"""

from __future__ import annotations

from experiments.figures.dp_hype import figure_6
from experiments.figures.figure import FULL

FIGURE = figure_6.figure(7, ("adult",), committed=FULL)

if __name__ == "__main__":
    FIGURE.run()
