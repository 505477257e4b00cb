"""Figure 4: accuracy against epsilon where clients' data is alike (iid), for 50, 100, 250 clients.

DP-HYPE, arXiv:2510.04902; see the package for how to run. What it shows: the vote is as good as the
best candidate down to some epsilon, the smaller the more clients there are, and falls to a random
guess below; the authors' best candidate on MNIST has accuracy 0.976 at n = 50, their mean 0.31. At
mid size (an MLP) 94% of the votes at epsilon = 1 are within 2 points of the best, 0.928; with 100
clients 91% are at 0.5, with 250 97% at 0.25.

Mid size trains for about a quarter of an hour on one core, --quick (digits, 5 to 25 clients) for
twenty seconds.
"""

from __future__ import annotations

from experiments.figures.dp_hype import trade_off
from experiments.figures.dp_hype.studies import listed
from experiments.figures.dp_hype.vote_figure import vote_figure
from experiments.figures.figure import FULL, MID, QUICK

_ALL = tuple((data, n) for data in ("adult", "mnist", "cifar10") for n in (50, 100, 250))

FIGURE = vote_figure(
    4,
    trade_off.COLUMNS,
    listed({FULL: _ALL, MID: (*_ALL[:6], ("cifar10", 50)), QUICK: _ALL[:3]}),
    trade_off.dp_hype_rows,
    trade_off.drawer(3),
    mid="a quarter of an hour",
    quick="20 s",
)

if __name__ == "__main__":
    FIGURE.run()
