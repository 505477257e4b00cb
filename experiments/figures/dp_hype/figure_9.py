r"""Figure 9: DP-HYPE against clients that send accuracies instead of votes (RawLosses).

Liebenow, Peinemann & Mohammadi, "DP-HYPE", PoPETs 2026, arXiv:2510.04902 (figure 9 in the numbering
of the published version and of the authors' code). CIFAR-10, 100 clients, concentrations 5 and 0.5.
What the paper shows: a vote of one beats a vote weighted by the accuracy, which is below one at the
same noise.

Full size (default) is for a GPU, and uses the tables of figure 5. The committed figure is the mid
size: MNIST, 50 clients, 12,000 images and an MLP 784-64-10 (tables of figure 13).

  python -m experiments.figures.dp_hype.figure_9 --data_dir=...
  python -m experiments.figures.dp_hype.figure_9 --mid_size --data_dir=... \
      --out_dir=docs/figures/dp_hype

--quick (digits, 5 to 10 clients) takes half a minute.
"""

from __future__ import annotations

from experiments.figures.dp_hype import ablations, trade_off
from experiments.figures.dp_hype.studies import MID, study
from experiments.figures.dp_hype.vote_figure import VoteFigure


def studies(size: str):
    """Yields the studies."""
    dataset, clients = ("mnist", 50) if size == MID else ("cifar10", 100)
    for concentration in (5.0, 0.5):
        yield study(size, dataset, clients, concentration)


FIGURE = VoteFigure(
    "figure_9",
    trade_off.COLUMNS,
    studies,
    ablations.rows("raw_losses"),
    trade_off.drawer(columns=2),
)

if __name__ == "__main__":
    FIGURE.run()
