"""What stands beside the board: rows by record, a rate from private curvature, programs of rows."""

import pathlib

import numpy as np
import pytest
from scipy import stats

from dpjax import accounting, models
from experiments.figures import row_program
from experiments.figures.leaderboard import (
    board,
    by_record,
    development,
    mnist,
    new_user,
    private_curvature,
)
from experiments.figures.rows import distinct, read_rows

ROWS = pathlib.Path(__file__).parents[2] / "docs" / "figures" / "leaderboard"
PLACES = np.array(private_curvature.PLACES)


@pytest.mark.parametrize("program", [by_record, mnist, new_user])
def test_committed_rows_are_the_programs(program):
    rows = read_rows(ROWS / f"{program.__name__.split('.')[-1]}.csv")
    made = list(program.settings())
    for row in rows:
        assert list(row) == list(program.COLUMNS)
        assert sum(row_program._same(setting, row) for setting in made) == 1, row


def test_development_settings_are_different_and_name_columns():
    made = list(development.settings())
    assert len({tuple(one.items()) for one in made}) == len(made)
    assert [*made[0], "accuracy"] == list(development.COLUMNS)
    binned = {one["table"] for one in made if one["bins"]}
    assert binned == {name for name, columns in development.NUMBERS.items() if columns}


def test_rows_by_record_agree_with_their_accuracies():
    rows = read_rows(ROWS / "by_record.csv")
    assert distinct(rows, "registration") == [board.fingerprint()]
    for row in rows:
        apart = row["only_method"] - row["only_default"]
        assert apart == round(row["test"] * (row["accuracy"] - row["default_accuracy"]))
        assert row["entry"] == by_record.METHODS[row["method"]]


def test_an_interval_over_records_is_mcnemars():
    rows = [dict(table="wages", method="tuned", only_method=30, only_default=10, test=1000)]
    middle, half = by_record.difference(rows, "wages", "tuned")
    kinds = np.repeat([1, -1, 0], [30, 10, 960])
    assert middle == pytest.approx(100 * kinds.mean())
    assert half == pytest.approx(100 * stats.norm.ppf(0.975) * kinds.std() / np.sqrt(1000))


def test_a_program_makes_missing_rows_once(tmp_path, capsys):
    out = tmp_path / "rows.csv"
    flags = [f"--out={out}", "--word=yes"]
    settings = [{"net": "64", "split": 0}, {"net": "", "split": 0}, {"net": "", "split": 1}]
    made = []

    def row_of(setting, word):
        made.append(word)
        return None if setting["split"] else setting | {"accuracy": 0.5}

    for _ in range(2):
        columns = ("net", "split", "accuracy")
        row_program.run(columns, lambda word: settings, row_of, flags, word="said")
    assert made == ["yes"] * 4  # The last one cannot be made, and is tried again.
    assert read_rows(out) == [
        {"net": 64, "split": 0, "accuracy": 0.5},
        {"net": None, "split": 0, "accuracy": 0.5},
    ]


# A rate from private curvature -------------------------------------------------------------------


def test_gradient_and_losses_cost_what_is_asked():
    gradient, loss = private_curvature.calibrated(1 / 16, 40, 2.0, 1e-5)
    whole = private_curvature.of_a_run(1 / 16, 40, gradient, loss)
    assert 1.99 < whole.epsilon(1e-5) <= 2.0
    alone = accounting.calibrate(
        lambda noise: accounting.dp_sgd(1 / 16, noise, 40), epsilon=2.0, delta=1e-5
    )
    assert gradient == pytest.approx(private_curvature.MORE_NOISE * alone)


def test_a_steps_losses_are_priced_with_its_gradient():
    """Each of five losses as noisy as the gradient: six Gaussians of one lot, never of six lots."""
    found = private_curvature.of_a_run(1 / 16, 1, 3.0, 3.0).epsilon(1e-5)
    assert found == pytest.approx(accounting.dp_sgd(1 / 16, 3.0 / np.sqrt(6), 1).epsilon(1e-5))
    apart = accounting.compose(*[accounting.dp_sgd(1 / 16, 3.0, 1)] * 6).epsilon(1e-5)
    assert found > apart


def test_the_next_rate_is_where_the_parabola_is_lowest():
    assert private_curvature.next_rate(2.0, (PLACES - 1.3) ** 2) == pytest.approx(2.6)
    assert private_curvature.next_rate(2.0, (PLACES - 9.0) ** 2) == pytest.approx(4.0)
    assert private_curvature.next_rate(2.0, (PLACES - 0.1) ** 2) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "values", [-((PLACES - 1) ** 2), (PLACES + 1) ** 2, np.array([1.0, -1, 1, -1, 1]), 0 * PLACES]
)
def test_a_parabola_that_says_nothing_is_passed_over(values):
    assert private_curvature.next_rate(2.0, values) == 2.0


def test_it_learns_with_little_noise():
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(400, 3)).astype(np.float32)
    labels = (inputs[:, 0] > 0).astype(np.int32)
    model, params, rates = private_curvature.trained(
        models.LogisticRegression(2), inputs, labels, noise=(0.1, 0.1), rate=0.3,
        lot_size=100, steps=60, seed=0,
    )  # fmt: skip
    right = np.argmax(np.asarray(model.apply(params, inputs)), axis=1) == labels
    assert right.mean() > 0.95
    assert rates[0] == 0.6 and len(set(rates[:10])) == 1 and max(rates) > 1.0
