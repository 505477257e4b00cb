r"""How much searches vary - DPareto against random search, seed by seed, on Adult.

Avent et al., PoPETs 2020. Each dot is one search: the hypervolume at (10, 1) that it observed, and
that of its front measured afresh on repetitions that had no part in choosing it. The difference
between the two is the winner's curse. `--method=hvpoi` adds searches by the paper's criterion,
`--method=uniform` random search by uniform laws.

Differs from the paper: the picture is ours, of what its Table 2 tests; EHVI for HVPoI, tight
epsilons for classic ones, fronts measured afresh.

  python -m experiments.figures.dpareto.figure_search_variation \
      --size=full_adult --data_dir=... --out_dir=...

It takes five core-hours (--size=full is the same here); with --size=mid about an hour, see
docs/figures.md; with --quick a minute, most of it compilation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from experiments.figures import panels
from experiments.figures.dpareto import trained_fronts as found
from experiments.figures.dpareto import trained_searches as trained
from experiments.figures.rows import select

COLUMNS = (*trained.KEY_COLUMNS, *trained.RAN_COLUMNS, "fresh_repetitions", "observed",
           "measured_afresh")  # fmt: skip
METHODS = ("ehvi", "hvpoi", "random", "uniform")


def searches(size: str) -> list[tuple[str, str, int]]:
    """The searches it needs."""
    return trained.searches(trained.ADULT, size)


def rows(evaluations: Sequence[Mapping], fresh: Sequence[Mapping]) -> list[dict]:
    """One row a search on Adult."""
    adult = [row for row in evaluations if row["problem"] in trained.ADULT]
    made = found.final_rows(adult, fresh, METHODS)
    return [{name: row[name] for name in COLUMNS} for row in made]


def draw(rows: Sequence[Mapping]) -> Figure:
    """Draws one panel a pair of model and optimiser."""
    figure, axes = panels.new_panels(3, height=3.8)
    for panel, problem in zip(axes, trained.ADULT):
        methods = [one for one in METHODS if select(rows, problem=problem, method=one)]
        for place, method in enumerate(methods):
            members = select(rows, problem=problem, method=method)
            for offset, column, marker, label in (
                (-0.12, "observed", "o", "as observed"),
                (0.12, "measured_afresh", "D", "measured afresh"),
            ):
                values = [row[column] for row in members]
                panel.scatter(
                    np.full(len(values), place + offset), values, marker=marker, s=30, alpha=0.7,
                    facecolors="none" if column == "observed" else found.COLOURS[method],
                    edgecolors=found.COLOURS[method],
                    label=label if method == "ehvi" else None,
                )  # fmt: skip
        panel.set_xticks(
            range(len(methods)), [found.METHOD_LABELS[name].replace(" ", "\n") for name in methods]
        )
        panel.set_xlim(-0.5, max(len(methods), 1) - 0.5)
        panel.set_title(trained.LABELS[problem])
    axes[0].set_ylabel("hypervolume at (10, 1)")
    # Below: inside the panels it hides dots.
    panels.legend_below(figure, axes[0], 2)
    found.head(figure, rows)
    return figure


FIGURE = trained.figure(
    "figure_search_variation",
    COLUMNS,
    searches,
    rows,
    draw,
    full="5 core-hours",
    committed=trained.FULL_ADULT,
)

if __name__ == "__main__":
    FIGURE.run()
