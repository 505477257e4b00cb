r"""Figure 12: accuracy against epsilon for 250 clients with skewed data (Dirichlet).

Liebenow, Peinemann & Mohammadi, "DP-HYPE", PoPETs 2026, arXiv:2510.04902 (figure 12 in the
numbering of the published version and of the authors' code). Concentrations 30, 5 and 0.5 (2 for
Adult, where 0.5 leaves clients without records): the smaller, the more clients differ in labels and
in size, the less they agree on candidates, and the larger the epsilon below which the vote falls to
a random guess.

Full size (default) is for a GPU and has not been run for this project, for want of one: 2 x 10^17
floating-point operations, about five hours at 10 TFLOP/s. The committed figure is the mid size:
Adult alone, the paper's net, two rounds of federated averaging instead of five.

  python -m experiments.figures.dp_hype.figure_12 --data_dir=...
  python -m experiments.figures.dp_hype.figure_12 --mid_size --data_dir=... \
      --out_dir=docs/figures/dp_hype

--quick (digits, 25 clients) takes half a minute.
"""

from __future__ import annotations

from experiments.figures.dp_hype.trade_off import skewed_figure

FIGURE = skewed_figure(12, 250, mid_size=("adult",))

if __name__ == "__main__":
    FIGURE.run()
