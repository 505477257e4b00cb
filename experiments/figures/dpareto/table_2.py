"""Table 2: mean difference of hypervolume, DPareto minus random search, on Adult.

Avent et al., PoPETs 2020, 256 points: LogReg+SGD 0.158 (0.053 to 0.264), LogReg+Adam 0.439 (0.272
to 0.607), SVM+SGD 0.282 (0.161 to 0.402). Searches with one seed share their first settings, so
differences are taken seed by seed; intervals are Student's t at 95%. Judged four ways:

  measured_afresh       fronts on fresh repetitions: what to believe
  observed              the means that the search saw, luck included
  observed_classic      the same with the epsilons of the paper's conversion
  observed_classic_log  the same with gains counted in log epsilon

The paper does not say how it judged. Its intervals do: they are of 19 random searches, so these
varied by 0.22 to 0.35 (standard deviation; panel on the right). Ours vary by 0.005 to 0.012 in
epsilon, and by 0.15 to 0.16 in log epsilon: the paper's unit is log epsilon.

Differs from the paper: EHVI for HVPoI, tight epsilons for classic ones, fronts measured afresh.

  python -m experiments.figures.dpareto.table_2 --size=full_adult --data_dir=... --out_dir=...
  python -m experiments.figures.dpareto.table_2 --size=quick_adult --data_dir=... \
      --problem=adult_logistic_regression_adam      # prints on how many of five seeds it won

It takes five core-hours (--size=full is the same here); with --size=mid about an hour, the second
line minutes, see docs/figures.md; with --quick (digits) a minute, most of it compilation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from dpjax import plotting
from experiments.figures.dpareto import trained_fronts as found
from experiments.figures.dpareto import trained_searches as trained
from experiments.figures.dpareto.figure_search_variation import searches
from experiments.figures.panels import new_panels
from experiments.figures.rows import select

COLUMNS = ("problem", *trained.RAN_COLUMNS, "fresh_repetitions", "judged", "seeds", "seeds_won",
           "mean", "low", "high", "random_spread")  # fmt: skip
PAPER = {
    "adult_logistic_regression_sgd": (0.158, 0.053, 0.264),
    "adult_logistic_regression_adam": (0.439, 0.272, 0.607),
    "adult_linear_svm_sgd": (0.282, 0.161, 0.402),
}
PAPER_SEARCHES = 19
"""Random searches behind each of the paper's intervals, against one search by DPareto."""


def papers_spread(problem: str) -> float:
    """Standard deviation of the paper's random searches: what gives its 95% interval's width."""
    _, low, high = PAPER[problem]
    half = float(stats.t.ppf(0.975, PAPER_SEARCHES - 1))
    return (high - low) / 2 / half * np.sqrt(PAPER_SEARCHES)


def interval(differences: np.ndarray) -> tuple[float, float | None, float | None]:
    """Mean and Student's 95% interval of differences (n,); without ends for fewer than two."""
    mean = float(differences.mean())
    if len(differences) < 2:
        return mean, None, None
    error = differences.std(ddof=1) / np.sqrt(len(differences))
    half = float(stats.t.ppf(0.975, len(differences) - 1) * error)
    return mean, mean - half, mean + half


def spread(values: Sequence[float]) -> float | None:
    """Returns the standard deviation of values; None for fewer than two."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def rows(evaluations: Sequence[Mapping], fresh: Sequence[Mapping]) -> list[dict]:
    """One row a problem and way of judging, of the seeds that both methods have."""
    finals = found.final_rows(evaluations, fresh, ("ehvi", "random"))
    made = []
    for problem in trained.ADULT:
        pairs = []
        for ours in select(finals, problem=problem, method="ehvi"):
            pairs += [
                (ours, theirs)
                for theirs in select(finals, problem=problem, method="random", seed=ours["seed"])
            ]
        for judged in found.JUDGEMENTS if pairs else ():
            differences = np.array([ours[judged] - theirs[judged] for ours, theirs in pairs])
            mean, low, high = interval(differences)
            made.append(
                {
                    "problem": problem,
                    **{name: pairs[0][0][name] for name in trained.RAN_COLUMNS},
                    "fresh_repetitions": pairs[0][0]["fresh_repetitions"],
                    "judged": judged,
                    "seeds": len(pairs),
                    "seeds_won": int((differences > 0).sum()),
                    "mean": mean,
                    "low": low,
                    "high": high,
                    "random_spread": spread([theirs[judged] for _, theirs in pairs]),
                }
            )
    return made


def draw(rows: Sequence[Mapping]) -> Figure:
    """Draws differences with intervals, and how random searches vary, beside the paper's."""
    figure, (axes, spreads) = new_panels(2, height=4.4)
    axes.axhline(0, color="#888888", linewidth=1)
    labels = {"paper": "the paper, 256 evaluations", **found.JUDGEMENTS}
    for place, problem in enumerate(trained.ADULT):
        shown = {row["judged"]: row for row in select(rows, problem=problem)}
        shown["paper"] = dict(zip(("mean", "low", "high"), PAPER[problem]))
        shown["paper"]["random_spread"] = papers_spread(problem)
        for index, (judged, label) in enumerate(labels.items()):
            if judged not in shown:
                continue
            mean, low, high = (shown[judged][name] for name in ("mean", "low", "high"))
            colour, at = plotting.PALETTE[(6, 0, 5, 1, 2)[index]], place + 0.14 * (index - 2)
            axes.errorbar(
                [at], [mean], yerr=None if low is None else [[mean - low], [high - mean]],
                fmt="o", color=colour, capsize=4, label=label,
            )  # fmt: skip
            deviation = shown[judged]["random_spread"]
            if deviation:
                spreads.plot([at], [deviation], "o", color=colour)
    for panel in (axes, spreads):
        panel.set_xticks(
            range(len(trained.ADULT)), [trained.LABELS[name] for name in trained.ADULT]
        )
        panel.set_xlim(-0.5, len(trained.ADULT) - 0.5)
    axes.set_ylabel("hypervolume, DPareto minus random")
    spreads.set_ylabel("standard deviation of a random search")
    spreads.set_yscale("log")
    axes.set_title("gain")
    seeds = max((row["seeds"] for row in rows), default=0)
    spreads.set_title(f"spread: {seeds} searches here, {PAPER_SEARCHES} of the paper")
    found.head(figure, rows)
    handles, names = axes.get_legend_handles_labels()
    first = dict(zip(reversed(names), reversed(handles)))
    figure.legend(
        [first[label] for label in labels.values() if label in first],
        [label for label in labels.values() if label in first],
        loc="outside lower center", ncols=2,
    )  # fmt: skip
    return figure


def summary(rows: Sequence[Mapping]) -> list[str]:
    """What to print: who won on how many seeds, by the fronts measured afresh."""
    return [
        f"{trained.LABELS[row['problem']]}: DPareto won {row['seeds_won']} of {row['seeds']} seeds "
        f"after {row['evaluations']} evaluations, fronts measured afresh; mean difference "
        f"{row['mean']:+.4f}"
        for row in select(rows, judged="measured_afresh")
    ]


FIGURE = trained.figure(
    "table_2",
    COLUMNS,
    searches,
    rows,
    draw,
    full="5 core-hours",
    committed=trained.FULL_ADULT,
    summary=summary,
)

if __name__ == "__main__":
    FIGURE.run()
