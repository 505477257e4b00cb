"""Figure 7: the replay is exact, the runs are kept, and quick rows have their columns."""

import dataclasses
import shutil

import numpy as np
import pytest
from marked_rows import marked

from dpjax import accounting, models
from experiments.figures.figure import FULL, MID, QUICK
from experiments.figures.papernot_steinke import figure_7, figure_7_runs
from experiments.figures.rows import SIZE, RowFolder, read_rows, select

TINY = figure_7_runs.Options(rates=2, steps=2)


@pytest.fixture(scope="module")
def produced(tmp_path_factory):
    """A folder with a figure of two rates of two steps, and the progress that was reported."""
    folder = tmp_path_factory.mktemp("figure_7")
    reported = []
    with pytest.MonkeyPatch.context() as patch:
        few = dataclasses.replace(figure_7_runs.SETTINGS[QUICK], test_records=30)
        patch.setitem(figure_7_runs.SETTINGS, QUICK, few)
        figure_7.FIGURE.produce(folder, QUICK, options=TINY, report=reported.append)
    return folder, reported


def test_rates_are_the_largest_400_of_1000():
    every = figure_7_runs.learning_rates(400)
    assert every.shape == (400,) and every[-1] == 1.0
    assert every[0] == pytest.approx(0.025, rel=0.02)
    assert np.diff(np.log(every)) == pytest.approx(np.log(1e4) / 999)
    few = figure_7_runs.learning_rates(20)
    assert set(few) <= set(every) and few[0] == every[0] and few[-1] == 1.0
    with pytest.raises(ValueError, match="--rates=401: pass 1 to 400"):
        figure_7_runs.learning_rates(401)


def test_full_size_is_the_papers():
    full = figure_7_runs.SETTINGS[FULL]
    assert full.epochs == pytest.approx(60, rel=1e-3)
    assert (full.rates, full.lot_size, full.clip_norm, full.noise_multiplier) == (400, 256, 1, 1.1)
    assert full.guarantee(ideal=False).epsilon(1e-5) == pytest.approx(2.3821, abs=2e-4)


@pytest.mark.parametrize(
    "law",
    [accounting.Geometric(mean=4), accounting.Logarithmic(mean=10), accounting.Poisson(2.0),
     accounting.Fixed(3)],
    ids=str,
)  # fmt: skip
def test_the_replay_has_the_exact_mean(law):
    accuracies = np.array([0.9, 0.2, 0.55, 0.3, 0.7])
    source = np.random.default_rng(0)
    runs = law.sample(20_000, source=source)
    released = figure_7.released_accuracies(accuracies, runs, source)
    # By brute force: the largest of k independent choices.
    direct = [accuracies[source.integers(5, size=k)].max() if k else figure_7.GUESS for k in runs]
    error = np.std(direct) / len(runs) ** 0.5
    exact = figure_7.expected_accuracy(accuracies, law)
    assert released.mean() == pytest.approx(exact, abs=5 * error)  # 1e-6 to fail, twice
    assert np.mean(direct) == pytest.approx(exact, abs=5 * error)
    assert set(released) <= {*accuracies, figure_7.GUESS}


def test_fixed_one_run_is_the_plain_mean():
    accuracies = np.array([0.1, 0.2, 0.6])
    assert figure_7.expected_accuracy(accuracies, accounting.Fixed(1)) == pytest.approx(0.3)


def test_quick_rows(produced):
    folder, reported = produced
    rows = read_rows(folder / "figure_7.csv")
    assert tuple(rows[0]) == (SIZE, *figure_7.COLUMNS)
    assert {row["repetition"] for row in rows} == set(figure_7.LAWS)
    assert {row["trials"] for row in rows} == {500}
    assert all(row["epsilon_tight"] <= row["epsilon_papernot_steinke"] for row in rows)
    for name in figure_7.LAWS:
        members = select(rows, repetition=name)
        assert np.all(np.diff([row["epsilon_tight"] for row in members]) > 0)
        # A guess, where Poisson's K = 0, may be better than two steps of training.
        if name != "poisson":
            assert np.all(np.diff([row["accuracy_exact"] for row in members]) > -1e-12)
    runs = read_rows(folder / "figure_7_runs.csv")
    assert tuple(runs[0]) == (SIZE, *figure_7_runs.COLUMNS)
    assert [row["rate"] for row in runs] == list(figure_7_runs.learning_rates(2))
    assert all(0 <= row["accuracy"] <= 1 for row in runs)
    assert reported == ["1 of 2 rates", "2 of 2 rates"]
    assert (folder / "figure_7.png").stat().st_size > 10_000


def test_finished_runs_are_not_trained_again(produced, monkeypatch, tmp_path):
    folder = shutil.copytree(produced[0], tmp_path / "copy")
    path = folder / "figure_7_runs.csv"
    before = marked(path, "accuracy")
    few = dataclasses.replace(figure_7_runs.SETTINGS[QUICK], test_records=30)
    monkeypatch.setitem(figure_7_runs.SETTINGS, QUICK, few)
    figure_7_runs.train(RowFolder(str(folder), QUICK), TINY)
    assert read_rows(path) == before
    with pytest.raises(ValueError, match="other settings.*--out_dir"):
        figure_7_runs.train(RowFolder(str(folder), QUICK), dataclasses.replace(TINY, steps=3))
    with pytest.raises(ValueError, match="size quick, not mid: pass --size=quick"):
        figure_7_runs.train(RowFolder(str(folder), MID), TINY)


def test_two_processes_share_the_rates_of_one_folder(tmp_path, monkeypatch):
    asked = []

    def trained(configs, keys, given, records, **_):
        asked.append(given["learning_rate"].tolist())
        other = dataclasses.replace(three, process="1/2" if len(asked) == 1 else "0/2")
        if len(asked) == 1:  # The other one writes while this one trains.
            figure_7_runs.train(folder, other)
        yield np.arange(len(keys)), given["learning_rate"] / 2

    monkeypatch.setattr(figure_7_runs.training, "mixed_sweep", trained)
    three = dataclasses.replace(TINY, rates=3)
    folder = RowFolder(str(tmp_path), QUICK)
    figure_7_runs.train(folder, dataclasses.replace(three, process="0/2"))
    rates = figure_7_runs.learning_rates(3).tolist()
    assert asked == [rates[::2], rates[1::2]]
    _, rows = figure_7_runs.read(folder)
    assert [(row["rate"], row["accuracy"]) for row in rows] == [(rate, rate / 2) for rate in rates]
    for wrong in ("2/2", "1", "a/b"):
        with pytest.raises(ValueError, match="pass 0/2 or 1/2"):
            figure_7_runs.train(folder, dataclasses.replace(three, rates=3, process=wrong))


def test_a_stopped_program_goes_on_with_the_nets_in_training(tmp_path, monkeypatch):
    monkeypatch.setitem(figure_7_runs.NETS, "all_conv", models.LogisticRegression)
    monkeypatch.setattr(figure_7_runs, "SECONDS_BETWEEN_SAVES", 0.0)
    given = dataclasses.replace(TINY, rates=3, steps=4)
    path = tmp_path / "figure_7_runs_0_of_1_candidates.npz"

    def stop(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        figure_7_runs.train(RowFolder(str(tmp_path), QUICK, stop), given)
    first, before = figure_7_runs.read(RowFolder(str(tmp_path), QUICK))[1], path.read_bytes()
    with pytest.raises(ValueError, match="other settings"):
        figure_7_runs.train(RowFolder(str(tmp_path), QUICK), dataclasses.replace(given, steps=5))
    # Other keys would be other nets: those of the saves are taken, and stay in the file.
    reported = []
    with pytest.raises(KeyboardInterrupt):
        figure_7_runs.train(RowFolder(str(tmp_path), QUICK, stop), given)
    assert path.read_bytes() == before
    figure_7_runs.train(RowFolder(str(tmp_path), QUICK, reported.append), given)
    rows = figure_7_runs.read(RowFolder(str(tmp_path), QUICK))[1]
    assert len(first) == 1 and first[0] in rows and reported[-1] == "3 of 3 rates"
    assert [row["rate"] for row in rows] == list(figure_7_runs.learning_rates(3))
    assert [found.name for found in tmp_path.iterdir()] == ["figure_7_runs.csv"]


def test_a_picture_of_a_part_names_how_many_there_are():
    rows = figure_7.compute(figure_7_runs.SETTINGS[QUICK], np.array([0.2, 0.8]), QUICK)
    assert {row["rates"] for row in rows} == {2}


def test_redrawing_gives_the_same_rows(produced, tmp_path):
    folder, _ = produced
    shutil.copy(folder / "figure_7_runs.csv", tmp_path)
    figure_7.FIGURE.produce(tmp_path, redraw=True)
    assert (tmp_path / "figure_7.csv").read_bytes() == (folder / "figure_7.csv").read_bytes()


def test_mixed_or_foreign_runs_are_refused(tmp_path):
    folder = RowFolder(str(tmp_path), QUICK)
    row = {**dataclasses.asdict(TINY.settings(QUICK)), "rate": 1.0, "accuracy": 0.5}
    folder.write(figure_7_runs.NAME, figure_7_runs.COLUMNS, [row, {**row, "steps": 9}])
    with pytest.raises(ValueError, match="different settings"):
        figure_7_runs.read(folder)
    (tmp_path / "figure_7_runs.csv").unlink()
    folder.write(figure_7_runs.NAME, ("a",), [{"a": 1}])
    with pytest.raises(ValueError, match="no runs of figure 7"):
        figure_7_runs.read(folder)
