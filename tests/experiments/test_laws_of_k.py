"""The fitted law of K and Adam's prior are what registered rules make of their rows."""

import pathlib

import numpy as np
import pytest

from dpjax import accounting
from dpjax.tuning.problem import fitting_law
from experiments.figures.leaderboard import adam_rates, laws_of_k
from experiments.figures.rows import read_rows, select

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "figures" / "leaderboard"
LAWS, RATES = (read_rows(FOLDER / name) for name in ("laws_of_k.csv", "adam_rates.csv"))


def test_the_rule_chooses_the_law_that_the_library_has():
    assert len(LAWS) == len(list(laws_of_k.settings()))
    assert laws_of_k.chosen(LAWS) == (fitting_law.SHAPE, fitting_law.CHANCE)


@pytest.mark.parametrize("law", laws_of_k.laws(3.0))
def test_a_row_has_its_laws_mean_and_noise(law):
    for epsilon, decades in laws_of_k.PROBLEMS:
        made = laws_of_k.laws(decades)[law]
        rows = select(LAWS, law=law, epsilon=epsilon, decades=decades)
        assert len(rows) == len(laws_of_k.TABLES)
        for row in rows:
            assert row["mean_k"] == pytest.approx(made.mean, rel=1e-3)
            assert row["lowest_tenth"] <= row["median"] <= row["highest_tenth"]
        (noise,) = {row["noise_multiplier"] for row in rows}
        steps = accounting.dp_sgd(
            sampling_probability=laws_of_k.SHARE_OF_A_LOT,
            noise_multiplier=noise,
            steps=laws_of_k.STEPS,
        )
        run = accounting.compose(steps, accounting.gaussian(laws_of_k.SCORE_NOISE))
        # Noises are rounded to four digits.
        total = accounting.best_of(run, made).epsilon(laws_of_k.DELTA)
        assert total == pytest.approx(epsilon, rel=2e-3)


def test_the_winner_has_the_best_noisy_score_of_k_draws():
    generator = np.random.default_rng(1)
    scores, accuracies = generator.permutation(64) * 1e3, generator.random(64)
    accuracies[scores.argmax()] = 2.0
    found = laws_of_k.releases(accounting.Fixed(200), scores, accuracies)
    assert np.mean(found == 2.0) == pytest.approx(1 - (1 - 1 / 64) ** 200, abs=0.02)
    one = laws_of_k.releases(accounting.Fixed(1), scores, accuracies)
    assert one.mean() == pytest.approx(accuracies.mean(), abs=0.03)


def test_the_pages_have_the_rows_numbers():
    costs = (ROOT / "docs" / "procedures.md").read_text()
    for law in laws_of_k.laws(3.0):
        mine = select(LAWS, law=law)
        if f"{law} |" not in costs and f"{law}** |" not in costs:
            continue
        numbers = [
            100 * np.mean([row[name] for row in mine]) for name in ("average", "lowest_tenth")
        ]
        hard = select(LAWS, law=law, table="species", epsilon=2.0, decades=3.0)[0]
        numbers += [100 * hard[name] for name in ("average", "lowest_tenth")]
        assert " | ".join(f"{one:.1f}" for one in numbers) in costs, law
    page = (ROOT / "docs" / "public_defaults.md").read_text()
    lost = adam_rates.lost(RATES)
    for table in (*laws_of_k.TABLES, None):
        points = np.array([one for key, one in lost.items() if table in (None, key[0])])
        bold = "**" if table is None else ""
        numbers = [points[:, k].mean() if m else points[:, k].max() for k in (0, 1) for m in (1, 0)]
        assert " | ".join(f"{bold}{one:.1f}{bold}" for one in numbers) in page, table
