"""Figure 12: accuracy against epsilon for 250 clients with skewed data (Dirichlet).

DP-HYPE, arXiv:2510.04902; see the package for how to run, and `trade_off.skewed_figure` for what
figures 5, 12 and 13 show. --quick takes twenty seconds.
"""

from __future__ import annotations

from experiments.figures.dp_hype.trade_off import skewed_figure

FIGURE = skewed_figure(12, 250)

if __name__ == "__main__":
    FIGURE.run()
