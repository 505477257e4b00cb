r"""Figure 13: accuracy against epsilon for 50 clients with skewed data (Dirichlet).

Liebenow, Peinemann & Mohammadi, "DP-HYPE", PoPETs 2026, arXiv:2510.04902 (figure 13 in the
numbering of the published version and of the authors' code). Concentrations 30, 5 and 0.5: the
smaller, the more clients differ in labels and in size, the less they agree on candidates, and the
larger the epsilon below which the vote falls to a random guess.

Full size (default) is for a GPU and has not been run for this project, for want of one: 2 x 10^17
floating-point operations, about five hours at 10 TFLOP/s. The committed figure is the mid size: all
of Adult with the paper's net, 12,000 images of MNIST with an MLP 784-64-10, two rounds of federated
averaging instead of five.

  python -m experiments.figures.dp_hype.figure_13 --data_dir=...
  python -m experiments.figures.dp_hype.figure_13 --mid_size --data_dir=... \
      --out_dir=docs/figures/dp_hype

--quick (digits, 5 clients) takes half a minute.
"""

from __future__ import annotations

from experiments.figures.dp_hype.trade_off import skewed_figure

FIGURE = skewed_figure(13, 50, mid_size=("adult", "mnist"))

if __name__ == "__main__":
    FIGURE.run()
