r"""What tuning costs: total epsilon of the best of K runs against the mean of K, by four bounds.

One run is the MNIST training of Papernot & Steinke (ICLR 2022), as in `docs/should_i_tune.md`; K is
geometric. Shown are this project's exact bound, the published bounds (by Renyi divergence, and by
one number of the privacy profile) and the composition of as many published runs as K's mean.

  python -m experiments.figures.leaderboard.costs --out_dir=docs/figures/leaderboard

Nothing is trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from dpjax import accounting, plotting
from experiments.figures.figure import FULL, QUICK, FigureSpec
from experiments.figures.panels import WIDTH, delta_in_words, legend_below
from experiments.figures.papernot_steinke.profile_bound import profile_bound

DELTA, STEPS, NOISE, SHARE = 1e-5, 14_062, 1.1, 256 / 60_000
MEANS = {QUICK: (2, 10), FULL: (2, 3, 5, 10, 20, 50, 100)}
LINES = {
    "composition": "all runs published (composition)",
    "renyi": "best of K, Renyi bound (2022)",
    "profile": "best of K, profile bound (2024)",
    "ours": "best of K, dpjax",
    "one_run": "one run, nothing tuned",
}
COLUMNS = {"mean_k": "1", **dict.fromkeys(LINES, "nats")}


def rows(size: str) -> list[dict[str, Any]]:
    """Returns a row of epsilons per mean of K."""
    run = accounting.dp_sgd(sampling_probability=SHARE, noise_multiplier=NOISE, steps=STEPS)
    assert run.pair is not None
    found = []
    for mean in MEANS[size]:
        law = accounting.Geometric(mean)
        best = accounting.best_of(run, law)
        found.append(
            {
                "mean_k": mean,
                "composition": accounting.compose(*[run] * mean).epsilon(DELTA),
                "renyi": best.epsilon(DELTA, "rdp"),
                "profile": profile_bound(run.pair, law).epsilon(DELTA),
                "ours": best.epsilon(DELTA),
                "one_run": run.epsilon(DELTA),
            }
        )
    return found


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Total epsilon against the mean of K, a line per bound."""
    figure, axes = plotting.new_figure(WIDTH, 4.0)
    blue, red, green, *_, dark = plotting.PALETTE
    styles = dict(zip(LINES, ("-.", "--", ":", "-", "-"), strict=True))
    colours = dict(zip(LINES, (green, red, plotting.PALETTE[3], blue, dark), strict=True))
    means = [row["mean_k"] for row in rows]
    for name, words in LINES.items():
        axes.plot(
            means, [row[name] for row in rows], styles[name], color=colours[name], label=words,
            linewidth=3 if name == "ours" else 2, marker="o" if name == "ours" else None,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xticks(means, [f"{mean:g}" for mean in means])
    axes.minorticks_off()
    axes.set_ylim(0, 12)
    axes.set_xlabel("mean of K, the number of candidates (geometric)")
    axes.set_ylabel(f"total epsilon, {delta_in_words(DELTA)}")
    legend_below(figure, axes, columns=2)
    return figure


FIGURE = FigureSpec(
    paper="leaderboard",
    name="costs",
    columns=COLUMNS,
    takes={QUICK: "seconds", FULL: "half a minute"},
    draw=draw,
    rows=rows,
)

if __name__ == "__main__":
    FIGURE.run()
