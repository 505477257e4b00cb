r"""Figure 5: accuracy against epsilon for 100 clients with skewed data (Dirichlet).

Liebenow, Peinemann & Mohammadi, "DP-HYPE", PoPETs 2026, arXiv:2510.04902 (figure 5 in the numbering
of the published version and of the authors' code). Concentrations 30, 5 and 0.5: the smaller, the
more clients differ in labels and in size, the less they agree on candidates, and the larger the
epsilon below which the vote falls to a random guess.

Full size (default) is for a GPU and has not been run for this project, for want of one: 2 x 10^17
floating-point operations, about five hours at 10 TFLOP/s. The committed figure is the mid size:
Adult alone, the paper's net, two rounds of federated averaging instead of five.

  python -m experiments.figures.dp_hype.figure_5 --data_dir=...
  python -m experiments.figures.dp_hype.figure_5 --mid_size --data_dir=... \
      --out_dir=docs/figures/dp_hype

--quick (digits, 10 clients) takes half a minute.
"""

from __future__ import annotations

from experiments.figures.dp_hype.trade_off import skewed_figure

FIGURE = skewed_figure(5, 100, mid_size=("adult",))

if __name__ == "__main__":
    FIGURE.run()
