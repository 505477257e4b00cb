r"""Figure 11: DP-HYPE against Feathers, whose clients add noise one by one.

Liebenow, Peinemann & Mohammadi, "DP-HYPE", PoPETs 2026, arXiv:2510.04902 (figure 11 in the
numbering of the published version and of the authors' code). CIFAR-10 and MNIST among 250 clients,
iid. What the paper shows: noise added locally drowns the rewards. Ours is a simplified Feathers
that explores every candidate once (see `ablations.feathers`).

Full size (default) is for a GPU, and uses the tables of figure 4. The committed figure is the mid
size: 50 clients, MLPs, 5000 images of CIFAR-10 (tables of figure 4).

  python -m experiments.figures.dp_hype.figure_11 --data_dir=...
  python -m experiments.figures.dp_hype.figure_11 --mid_size --data_dir=... \
      --out_dir=docs/figures/dp_hype

--quick (digits, 25 clients) takes fifteen seconds.
"""

from __future__ import annotations

from experiments.figures.dp_hype import ablations, trade_off
from experiments.figures.dp_hype.studies import MID, study
from experiments.figures.dp_hype.vote_figure import VoteFigure


def studies(size: str):
    """Yields the studies."""
    for dataset in ("mnist",) if size == "quick" else ("cifar10", "mnist"):
        yield study(size, dataset, 50 if size == MID else 250)


FIGURE = VoteFigure(
    "figure_11",
    trade_off.COLUMNS,
    studies,
    ablations.rows("feathers"),
    trade_off.drawer(columns=2),
)

if __name__ == "__main__":
    FIGURE.run()
