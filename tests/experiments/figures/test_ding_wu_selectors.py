"""Selectors at equal total cost: budgets add up, replays are what they say, rows are kept."""

import dataclasses
import pathlib
import shutil

import numpy as np
import pytest
from marked_rows import marked

from dpjax import accounting
from experiments.figures.ding_wu import (
    figure_selectors,
    selector_replays,
    selector_settings,
    selector_trainings,
    table_released,
)
from experiments.figures.figure import FULL, QUICK
from experiments.figures.rows import SIZE, RowFolder, read_rows, select

TINY = selector_settings.Study("digits", 200, 0.4, 2.0, 1e-5, 2, (3,), (0.1,))
RATES = selector_settings.RATES


@pytest.fixture(scope="module")
def committed(request):
    folder = request.config.rootpath / "docs" / "figures" / "ding_wu"
    names = ("figure_selectors_partitions", "figure_selectors_finals", "figure_selectors")
    return {name: read_rows(folder / f"{name}.csv") for name in (*names, "table_released")}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folder of rows of two steps of training, and what was reported."""
    lines = []
    folder = RowFolder(str(tmp_path_factory.mktemp("selectors")), QUICK, lines.append)
    selector_trainings.train([TINY], folder)
    return folder, lines


def test_every_selector_spends_the_same_total():
    study = selector_settings.STUDIES[FULL][0]
    setup = selector_settings.set_up(study)
    study = dataclasses.replace(study, epsilons=(0.15, 1.0))
    rows = selector_settings.budgets(study, setup)
    for row in rows:
        run = setup.setting.guarantee(row["noise_multiplier"])
        if row["selector"] == selector_settings.RANDOM:
            whole = run
        elif row["selector"] == selector_settings.REPETITIONS:
            score = accounting.discrete_gaussian(noise_std=row["score_noise"])
            law = accounting.AtMost(accounting.Geometric(mean=10), cap=64)
            whole = accounting.best_of(accounting.parallel(run, score), law)
        elif row["selector"] == selector_settings.EXPONENTIAL:
            selection = accounting.exponential_mechanism(row["epsilon_0"])
            whole = accounting.compose(selection, run)
        else:
            count = 12 if row["selector"] == selector_settings.DOUBLING else 6
            selection = accounting.doubling_loop(row["epsilon_0"], count)
            assert row["epsilon_selection"] == pytest.approx(selection.epsilon(1e-5))
            whole = accounting.compose(selection, run)
        assert 1.99 <= whole.epsilon(1e-5) <= 2.0 * (1 + 1e-9)
    names = [(row["selector"], row["epsilon_0"]) for row in rows]
    # What would leave nothing for the training is left out.
    assert (selector_settings.DOUBLING, 1.0) not in names
    assert (selector_settings.SEGMENTS, 1.0) not in names
    assert (selector_settings.EXPONENTIAL, 1.0) in names


def test_trained_rows(trained):
    folder, lines = trained
    assert len(lines) == 3
    partitions, finals = map(folder.read, selector_trainings.FILES)
    assert tuple(partitions[0]) == selector_trainings.PARTITION_COLUMNS
    assert [row["candidate"] for row in partitions] == list(range(16))
    assert all(0 <= row["units"] <= 3 * row["validation_size"] for row in partitions)
    assert tuple(finals[0]) == selector_trainings.FINAL_COLUMNS
    # A random candidate, random repetitions, and three selectors, each trained twice.
    assert len(finals) == 16 * 5 * 2
    for row in finals:
        assert row["learning_rate"] == pytest.approx(RATES[row["candidate"]])
        assert 0 <= row["test_accuracy"] <= 1


def test_a_stopped_program_goes_on(trained, tmp_path):
    folder, _ = trained
    partitions, finals = (pathlib.Path(folder.file(name)) for name in selector_trainings.FILES)
    lines = finals.read_text().splitlines(keepends=True)
    kept = "".join(lines[: 1 + len(lines) // 2])  # The columns' names and the first trainings.
    there = pathlib.Path(shutil.copy(partitions, tmp_path))
    counted = marked(there, "units", 1)
    (tmp_path / finals.name).write_text(kept)
    selector_trainings.train([TINY], RowFolder(str(tmp_path), QUICK))
    assert read_rows(there) == counted  # Nothing was to do there.
    again = (tmp_path / finals.name).read_text()
    assert again.startswith(kept) and len(again.splitlines()) == len(lines)
    # And when all is there, nothing is loaded at all: nobody has such a data set.
    for path in (partitions, finals):
        (tmp_path / path.name).write_text(path.read_text().replace("digits", "nobodys"))
    nobodys = dataclasses.replace(TINY, dataset="nobodys")
    selector_trainings.train([nobodys], RowFolder(str(tmp_path), QUICK))
    with pytest.raises(ValueError, match="other settings.*--out_dir"):
        selector_trainings.train([dataclasses.replace(TINY, epochs=9.0)], folder)


def test_pictures_come_from_the_trained_rows_alone(trained, monkeypatch):
    folder, _ = trained  # Of settings that a training of this size would refuse.
    monkeypatch.setattr(figure_selectors, "REPLAYS", 20)
    *_, path, picture, _ = figure_selectors.FIGURE.produce(folder.path, redraw=True)
    assert pathlib.Path(picture).stat().st_size > 10_000
    rows = read_rows(path)
    assert tuple(rows[0]) == (SIZE, *selector_replays.COLUMNS)
    assert {row["selector"] for row in rows} >= set(selector_settings.SELECTORS)


def _invented(epsilon, selector="exponential"):
    """Two trainings of 16 candidates whose accuracy is their number over 16; k = 10."""
    finals = [
        {
            "dataset": "x", "epsilon": 2.0, "delta": 1e-5, "selector": selector,
            "epsilon_0": epsilon, "epsilon_selection": epsilon, "noise_multiplier": 1.0,
            "score_noise": 1e-3, "training": training, "candidate": candidate,
            "validation_correct": 10 * candidate, "test_accuracy": candidate / 16,
        }
        for training in range(2) for candidate in range(16)
    ]  # fmt: skip
    utilities = [
        {"dataset": "x", "validation_size": 100, "partitions": 10, "candidate": candidate,
         "units": 50 * candidate}
        for candidate in range(16)
    ]  # fmt: skip
    return finals, utilities


@pytest.mark.parametrize("epsilon, accuracy", [(500.0, 15 / 16), (1e-6, 7.5 / 16)])
def test_replay_without_noise_finds_the_best_and_with_noise_alone_any(epsilon, accuracy):
    finals, utilities = _invented(epsilon)
    row = selector_replays._replayed(finals, utilities, "exponential", epsilon, 600)
    # Six standard errors.
    slack = 6 * row["accuracy_standard_error"] + 1e-12
    assert row["accuracy"] == pytest.approx(accuracy, abs=slack)
    assert row["replays"] == 600 and row["no_hit_share"] is None


def test_replay_of_the_exponential_mechanism_has_its_law():
    epsilon = 4.0
    finals, utilities = _invented(epsilon)
    row = selector_replays._replayed(finals, utilities, "exponential", epsilon, 2000)
    weights = np.exp(epsilon * 10 * np.arange(16) * 0.05 / 2)
    exact = weights @ (np.arange(16) / 16) / weights.sum()
    assert row["accuracy"] == pytest.approx(exact, abs=6 * row["accuracy_standard_error"])


def test_replay_of_random_repetitions_is_the_mean_of_the_best():
    finals, _ = _invented(None, "random_repetitions")
    found = selector_replays._best_of_runs(finals, 4000)
    law = accounting.AtMost(accounting.Geometric(mean=10), cap=64)
    below = np.array([law.generating_function(level) for level in np.arange(17) / 16])
    exact = np.diff(below) @ np.arange(16) / 16
    assert found.mean() == pytest.approx(exact, abs=6 * found.std() / 4000**0.5)


def test_committed_figure_comes_from_committed_trainings(committed):
    finals = select(committed["figure_selectors_finals"], dataset="digits")
    utilities = select(committed["figure_selectors_partitions"], dataset="digits", partitions=100)
    rows = select(committed["figure_selectors"], dataset="digits", partitions=100)
    for name, epsilon in (("exponential", 0.5), ("segments", 0.05)):
        (row,) = select(rows, selector=name, epsilon_0=epsilon)
        again = selector_replays._replayed(finals, utilities, name, epsilon, row["replays"])
        assert {SIZE: FULL} | again == pytest.approx(row)


def test_summary_counts_wins_and_shares():
    random = table_released.Setting("x", 2.0, "random_candidate")
    setting = table_released.Setting("x", 2.0, "exponential", 24, 1.0, "rehearsal")
    rows = [
        table_released._row(which, seed, 0.1, accuracy)
        for which, accuracies in ((random, (0.5, 0.9, 0.7, 0.3)), (setting, (0.55, 0.7)))
        for seed, accuracy in enumerate(accuracies)
    ]
    (entry,) = table_released.summary(rows)
    assert entry["wins"] == 1 and entry["seeds"] == 2
    # 0.55 beats two of four; 0.7 beats two and ties with one.
    assert entry["share_won"] == pytest.approx((2 + 2.5) / 8)
    assert entry["above_mean"] == 1
    assert entry["noise_ratio"] == pytest.approx(0.4621, abs=1e-4)


def test_the_table_in_the_docs_is_that_of_the_committed_rows(committed, request):
    page = (request.config.rootpath / "docs" / "figures.md").read_text()
    entries = table_released.summary(committed["table_released"])
    assert len(entries) == len(table_released.SETTINGS)
    for entry in entries:
        assert entry["seeds"] == 10
        assert table_released.table_line(entry) in page
    # The claim: at a noise ratio of at most 0.5 on digits, somewhere 8 of 10, and not everywhere.
    wins = [e["wins"] for e in entries if e["dataset"] == "digits" and e["noise_ratio"] <= 0.5]
    assert max(wins) >= 8 > min(wins)


def test_a_small_table(tmp_path, monkeypatch):
    monkeypatch.setitem(table_released.LOTS, "digits", (200, 0.4))
    folder = RowFolder(str(tmp_path), QUICK)
    setting = table_released.Setting("digits", 2.0, "exponential", 3, 1.0, "rehearsal")
    table_released.compute([setting], folder, seeds=1, random_number=3)
    rows = folder.read(table_released.NAME)
    assert [row["selector"] for row in rows] == ["random_candidate"] * 3 + ["exponential"]
    assert tuple(rows[0]) == tuple(table_released.COLUMNS)
    marked(folder.file(table_released.NAME), "test_accuracy")
    rows = folder.read(table_released.NAME)
    table_released.compute([setting], folder, seeds=1, random_number=3)
    assert folder.read(table_released.NAME) == rows
    figure = table_released.draw(rows)
    assert len(figure.axes[0].get_lines()) == 4
    (entry,) = table_released.summary(rows)
    assert table_released.table_line(entry).startswith("| digits | 2 | exponential | 3 | 1 |")
