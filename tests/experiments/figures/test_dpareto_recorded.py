"""The authors' 64 published settings: the same prices, the same accuracies when trained here."""

import pathlib

import numpy as np
import pytest

from dpjax import pareto
from experiments.figures.dpareto import maps, table_recorded, trained_searches
from experiments.figures.figure import MID, QUICK, DataFolders
from experiments.figures.rows import read_rows

FILES = pathlib.Path(__file__).resolve().parents[4] / "shared" / "data"
ROWS = pathlib.Path(__file__).parents[3] / "docs" / "figures" / "dpareto" / "table_recorded.csv"


def test_quick_prices_equal_the_committed_ones():
    committed = read_rows(ROWS)[::7]
    rows = table_recorded.compute(QUICK, DataFolders())
    assert len(rows) == len(committed) == 10
    for row, kept in zip(rows, committed):
        assert row["accuracy"] is None
        for name in (*table_recorded.SETTINGS, "epsilon_classic", "epsilon_tight"):
            np.testing.assert_allclose(row[name], kept[name], rtol=2e-3)
        # The published settings are rounded to three digits, so their prices are, about.
        np.testing.assert_allclose(row["epsilon_classic"], row["epsilon_authors"], rtol=0.02)
        assert row["epsilon_tight"] < row["epsilon_classic"]


def test_committed_accuracies_are_the_authors():
    rows = read_rows(ROWS)
    off = maps.column(rows, "accuracy") - maps.column(rows, "accuracy_authors")
    deviation = maps.column(rows, "accuracy_standard_error").mean() * 10**0.5
    assert len(rows) == 64 and abs(off.mean()) < 0.002
    assert (off**2).mean() ** 0.5 < 0.01 and deviation < 0.01 and np.abs(off).max() < 0.03


@pytest.mark.skipif(
    not (FILES / "a9a").is_dir(),
    reason="the published files of a9a are not at hand, and the recorded accuracies are of them",
)
def test_ten_settings_trained_again_have_the_recorded_accuracies(tmp_path):
    """The ten of fewest steps, three repetitions, within four standard errors of the difference
    (theirs is the mean of ten repetitions; the spread of each setting is that of our ten in the
    table) and .005, for what a spread of ten says of one that is skewed. No made-up data can stand
    in for Adult here; without files the prices above and the committed accuracies are tested."""
    recorded, repetitions = table_recorded.recorded(), 3
    settings = {name: recorded[name].astype(float) for name in table_recorded.SETTINGS}
    fewest = np.argsort(pareto.RunShapes(table_recorded.RECORDS).steps(settings), kind="stable")[
        :10
    ]
    settings = {name: values[fewest] for name, values in settings.items()}
    folders = DataFolders(str(FILES), str(tmp_path))
    trainer = trained_searches.Trainer(table_recorded.PROBLEM, MID, folders)
    assert trainer.accuracy.task.train.number == table_recorded.RECORDS
    trainer.accuracy.repetitions = repetitions
    spread = maps.column(read_rows(ROWS), "accuracy_standard_error")[fewest] * np.sqrt(10)
    allowed = 4 * spread * np.sqrt(1 / repetitions + 1 / 10) + 0.005

    def off(changed):
        found = trainer.accuracy(settings | changed, np.arange(10))
        return np.abs(found.mean(axis=1) - recorded["accuracy_authors"][fewest])

    assert (off({}) <= allowed).all()
    # The same noise on a sum of half the sensitivity, or twice it, would be noticed.
    for factor in (0.5, 2.0):
        changed = {"noise_multiplier": factor * settings["noise_multiplier"]}
        assert (off(changed) > allowed).sum() >= 2
