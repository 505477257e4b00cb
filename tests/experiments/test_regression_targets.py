"""What targets of a regression are learned as is what the registered rule makes of its rows."""

import pathlib

import numpy as np

from dpjax.tuning.problem.targets import LEARNED
from experiments.figures.leaderboard import regression_targets
from experiments.figures.rows import read_rows, select

ROOT = pathlib.Path(__file__).parents[2]
ROWS = read_rows(ROOT / "docs/figures/leaderboard/regression_targets.csv")


def test_the_rule_chooses_the_range_that_the_library_has():
    rows = select(ROWS, part="development")
    assert len(rows) == 7 * 3 * 6
    chosen = regression_targets.chosen(rows)
    assert (-chosen, chosen) == LEARNED


def test_the_page_has_the_means_of_the_rows():
    page = (ROOT / "docs" / "public_defaults.md").read_text()
    for model in regression_targets.MODELS:
        rows = select(ROWS, part="development", model=model)
        for one in regression_targets.CANDIDATES:
            found = select(rows, targets=regression_targets.learned_as(one))
            mean = np.mean([max(0.0, row["r2"]) for row in found])
            assert f" {mean:.3f} " in page or f"**{mean:.3f}**" in page
    for problem in regression_targets.JUDGED:
        for model in (regression_targets.KEPT, regression_targets.NET):
            rows = select(ROWS, part="judged", problem=problem, model=model, targets="-5..5")
            found = [row["r2"] for row in rows]
            words = f"**{np.mean(found):.3f}** ({min(found):.3f})"
            assert len(found) == 3 and words in page
