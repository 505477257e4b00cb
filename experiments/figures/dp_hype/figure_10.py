r"""Figure 10: DP-HYPE against one candidate for each subset of the clients (Subsets).

Liebenow, Peinemann & Mohammadi, "DP-HYPE", PoPETs 2026, arXiv:2510.04902 (figure 10 in the
numbering of the published version and of the authors' code). CIFAR-10 among 250 clients
(concentration 30) and MNIST among 100 (iid). What the paper shows: training one candidate instead
of a hundred saves a client's time and costs nearly all of the utility. Two amounts of noise: ours,
for a sum of accuracies that one client moves by 1, divided by the size of the subset; the authors'
code adds as much as for two moved numbers to the mean, whatever the size.

Full size (default) is for a GPU, and uses the tables of figures 4 and 12. The committed figure is
the mid size: Adult in place of both (tables of figures 4 and 12).

  python -m experiments.figures.dp_hype.figure_10 --data_dir=...
  python -m experiments.figures.dp_hype.figure_10 --mid_size --data_dir=... \
      --out_dir=docs/figures/dp_hype

--quick takes two minutes (digits, 100 clients, as Subsets needs one for each candidate).
"""

from __future__ import annotations

import dataclasses

from experiments.figures.dp_hype import ablations, trade_off
from experiments.figures.dp_hype.studies import FULL, MID, study
from experiments.figures.dp_hype.vote_figure import VoteFigure


def studies(size: str):
    """Yields the studies."""
    if size == FULL:
        yield study(size, "cifar10", 250, 30.0)
        yield study(size, "mnist", 100)
    elif size == MID:
        yield study(size, "adult", 250, 30.0)
        yield study(size, "adult", 100)
    else:
        found = study(size, "mnist", 1000)
        yield dataclasses.replace(found, records=0)


FIGURE = VoteFigure(
    "figure_10",
    trade_off.COLUMNS,
    studies,
    ablations.rows("subsets"),
    trade_off.drawer(columns=2),
)

if __name__ == "__main__":
    FIGURE.run()
