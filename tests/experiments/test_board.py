"""The board on judgement tables: registered first, paired by split; its pages say what rows do."""

import pathlib

import numpy as np
import pytest
from scipy import stats

from dpjax import data
from dpjax.tuning.problem import public_defaults
from experiments.figures.leaderboard import board, pages, registration
from experiments.figures.rows import RowFolder, distinct, read_rows

ROOT = pathlib.Path(__file__).parents[2]
COMMITTED = ROOT / "docs" / "figures" / "leaderboard" / "board.csv"


def test_every_row_was_made_under_the_registration_as_it_stands():
    rows = read_rows(COMMITTED)
    assert distinct(rows, "registration") == [board.fingerprint()]
    made = [(row["table"], row["split"], row["epsilon"], row["method"]) for row in rows]
    assert sorted(made) == sorted(board.attempts("full"))


def test_the_default_is_the_one_that_was_registered():
    assert {
        "net from records": public_defaults.NET_FROM,
        "widths": public_defaults.WIDTHS,
        "noise in an output, linear": public_defaults.OUTPUT_NOISE,
        "noise in an output, net": public_defaults.OUTPUT_NOISE_OF_NETS,
        "clipping": public_defaults.CLIPPING.name,
        "average": "the second half of the iterates",
    } == registration.RULE
    assert public_defaults.AVERAGE.share == 0.5


@pytest.mark.parametrize("name", pages.PAGES)
def test_pages_say_what_the_rows_say(name):
    page = (ROOT / name).read_text(encoding="utf-8")
    assert "<!-- board: " in page
    assert page == pages.written(page, pages.parts()), "run python -m " + pages.__name__


def _rows(accuracies):
    same = dict(table="wages", epsilon=2.0, test=100)
    return [
        dict(same, split=split, method=method, accuracy=one, train=train)
        for method, (train, of_splits) in accuracies.items()
        for split, one in enumerate(of_splits)
    ]


def test_a_tables_interval_is_wider_for_what_its_splits_share():
    rows = _rows({"net": (20_000, [0.7, 0.72, 0.71]), "DP-EBM": (20_000, [0.69, 0.7, 0.71])})
    middle, half = board.difference(rows, "wages", "default", "DP-EBM")
    paired = np.array([1.0, 2.0, 0.0])
    factor = stats.t.ppf(0.975, 2) * paired.std(ddof=1)
    assert middle == pytest.approx(1.0)
    assert half == pytest.approx(factor * np.sqrt(1 / 3 + 100 / 20_000))
    assert half > factor * np.sqrt(1 / 3)


def test_the_default_goes_by_the_number_of_records():
    both = {"net": (9_999, [0.7]), "linear": (9_999, [0.6])}
    assert board.accuracies(_rows(both), "wages", "default") == {0: 0.6}
    many = {name: (10_000, of) for name, (_, of) in both.items()}
    assert board.accuracies(_rows(many), "wages", "default") == {0: 0.7}


def test_a_difference_is_bold_where_its_interval_excludes_0():
    assert pages.points((0.5, 0.4)) == "**+0.50 (+0.10 to +0.90)**"
    assert pages.points((-0.5, 0.6)) == "-0.50 (-1.10 to +0.10)"


def test_columns_are_found_again_in_inputs():
    schema = data.read_schema(registration.TABLES["police stops"].schema)
    columns = {name: [None, low, high] for name, (low, high) in schema.inputs.ranges.items()}
    columns |= {name: [None, of[0], of[1]] for name, of in schema.inputs.vocabularies.items()}
    found = board.columns_of(schema.inputs, schema.encode(columns))
    numbers = len(schema.inputs.ranges)
    assert np.isnan(found[0, :numbers]).all()
    ends = np.array([*schema.inputs.ranges.values()])
    np.testing.assert_allclose(found[1:, :numbers], ends.T, atol=1e-5)
    assert (found[1, numbers:] == 0).all() and (found[2, numbers:] == 1).all()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_quick_size_makes_rows_of_ours_once(tmp_path):
    made = []
    folder = RowFolder(str(tmp_path), "quick", made.append)
    board.train(folder, board.Options())
    rows = folder.read("board")
    assert [row["method"] for row in rows] == ["default of 0.2", "linear", "net", "tuned"]
    assert all(0 < row["accuracy"] < 1 and row["train"] == 400 for row in rows)
    (tuned,) = (row for row in rows if row["method"] == "tuned")
    assert tuned["one_run"] < 2 < tuned["composed"]
    assert len(made) == 4
    board.train(folder, board.Options())
    assert len(made) == 4
    assert board.draw(rows).axes[0].get_xlabel()
