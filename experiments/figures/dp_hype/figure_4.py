r"""Figure 4: accuracy against epsilon where clients' data is alike (iid), for 50, 100, 250 clients.

Liebenow, Peinemann & Mohammadi, "DP-HYPE", PoPETs 2026, arXiv:2510.04902 (figure 4 in the numbering
of the published version and of the authors' code). What it shows: the vote is as good as the best
candidate down to some epsilon, the smaller the more clients there are, and falls to a random guess
below; the authors' best candidate on MNIST has accuracy .976 at n = 50, their mean candidate .31.

Full size (default) is for a GPU: the paper's nets on all of MNIST, CIFAR-10 and Adult. It has not
been run for this project, for want of one; by its 2 x 10^17 floating-point operations, four fifths
of them for CIFAR-10, about five hours at 10 TFLOP/s. The authors report days for theirs.
The committed figure is the mid size: an MLP 784-64-10 on all 60,000 images of MNIST and one of
width 32 on 5000 images of CIFAR-10, 50 clients each; the paper's net on all of Adult; two rounds of
federated averaging instead of five. On MNIST at epsilon = 1 the chosen candidate is within 2 points
of the best (.926) in all 20 votes, in 95% of 400 others. 5000 photographs are too few for an MLP:
CIFAR-10's best candidate has .17, and the vote on it says nothing.

  python -m experiments.figures.dp_hype.figure_4 --data_dir=...
  python -m experiments.figures.dp_hype.figure_4 --mid_size --data_dir=... \
      --out_dir=docs/figures/dp_hype

--quick (digits, 5 to 25 clients) takes half a minute.
"""

from __future__ import annotations

from experiments.figures.dp_hype import trade_off
from experiments.figures.dp_hype.studies import MID, study
from experiments.figures.dp_hype.vote_figure import VoteFigure


def studies(size: str):
    """Yields the studies: data sets by rows, clients by columns."""
    for dataset in ("adult",) if size == "quick" else ("adult", "mnist", "cifar10"):
        for clients in (50, 100, 250):
            if size == MID and dataset != "adult" and clients > 50:
                continue
            yield study(size, dataset, clients)


FIGURE = VoteFigure(
    "figure_4", trade_off.COLUMNS, studies, trade_off.dp_hype_rows, trade_off.drawer(columns=3)
)

if __name__ == "__main__":
    FIGURE.run()
