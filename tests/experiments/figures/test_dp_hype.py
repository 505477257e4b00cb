"""DP-HYPE's figures: simulations against an independent one, studies, rows, kept tables."""

import dataclasses
import importlib
import math
import pathlib

import numpy as np
import pytest
from scipy import stats

from dpjax import accounting
from dpjax.federated.local_training import ClientScores
from dpjax.federated.voting import RATES
from experiments.figures.dp_hype import (
    figure_2,
    figure_3,
    figure_9,
    studies,
    tables,
    trade_off,
)
from experiments.figures.dp_hype.vote_figure import Options, vote_figure
from experiments.figures.figure import FULL, MID, QUICK
from experiments.figures.rows import RowFolder, interval, read_rows, select, write_rows

NUMBERS = (3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)
TINY = studies.Study("digits", 4, 0.0, net="5", epochs=1, rounds=1, records=60)


def _figure(number):
    return importlib.import_module(f"experiments.figures.dp_hype.figure_{number}").FIGURE


# ---- figure 2


def _by_hand(spread, good, candidates, votes, sigma, simulations, source):
    """The simulation in plain words: shuffled good candidates, Python's own sorting."""
    won = 0
    for _ in range(simulations):
        chosen = set(source.choice(candidates, good, replace=False).tolist())
        means = np.array([1.0 if h in chosen else 0.0 for h in range(candidates)])
        counts = np.zeros(candidates)
        for _ in range(figure_2.CLIENTS):
            utilities = means + spread * source.normal(size=candidates)
            counts[sorted(range(candidates), key=lambda h: -utilities[h])[:votes]] += 1
        won += int(np.argmax(counts + sigma * source.normal(size=candidates))) in chosen
    return won / simulations


def test_success_probability_matches_an_independent_simulation():
    """Figure 2a at epsilon 0.25: within three standard errors of the difference, for every k."""
    spread, simulations, others = 0.6, 1000, 60
    found, bounds = figure_2.successes(simulations, spread, 5, 100, np.random.default_rng(0))
    source = np.random.default_rng(1)
    ours, theirs = [], []
    for votes in figure_2.VOTES:
        # Sigma from the closed form of the analytic Gaussian, not from our calibration.
        moved = min(votes, 100 - votes)
        mu = _gaussian_mu(0.25, 1e-5)
        sigma = math.sqrt(2 * moved) / mu if moved else 1.0
        ours.append(found[votes, 0.25, "analytic"] / simulations)
        theirs.append(_by_hand(spread, 5, 100, votes, sigma, others, source))
    for mine, his in zip(ours, theirs):
        pooled = (simulations * mine + others * his) / (simulations + others)
        error = math.sqrt(pooled * (1 - pooled) * (1 / simulations + 1 / others))
        assert abs(mine - his) <= 3 * error
    assert ours[1] > 0.8 > ours[2] > 0.5 > ours[3] > 0.15 > ours[4]
    # Theorem V.1 is below what happens, up to four standard errors.
    for key, won in found.items():
        assert 0 <= bounds[key] <= won + 4 * math.sqrt(won * (1 - won / simulations)) + 1e-9
    assert bounds[5, 1.0, "analytic"] > 0.9 * simulations


def test_theorem_v_1_by_noisy_votes():
    """One good and 99 bad candidates, all of which are a gap behind: the bound's own worst case."""
    source, deviation, bad = np.random.default_rng(6), 3.0, 99
    for gap in (9.0, 12.0, 15.0):
        noise = deviation * source.normal(size=(40_000, bad + 1))
        won = np.mean(gap + noise[:, 0] > noise[:, 1:].max(axis=1))
        bound = figure_2.theorem_v_1(np.array([gap]), bad, deviation)[0]
        exact = stats.norm.sf(gap / (math.sqrt(2) * deviation))
        assert bound <= max(0.0, 1 - bad * exact)  # The theorem's tail is above the normal law's.
        assert won >= bound - 0.01
    assert won == pytest.approx(bound, abs=0.01)  # At a large gap little is lost.
    assert (figure_2.theorem_v_1(np.array([-1.0, 0.0, 0.1]), bad, deviation) == 0).all()
    assert figure_2.theorem_v_1(np.array([1.0]), 0, deviation) == 1
    needed = figure_2.gap_for(0.95, bad, deviation)
    assert figure_2.theorem_v_1(np.array([needed]), bad, deviation)[0] == pytest.approx(0.95)
    # Twice the noise, twice the clients.
    assert figure_2.gap_for(0.95, bad, 2 * deviation) == pytest.approx(2 * needed)


def _gaussian_mu(epsilon, delta):
    def profile(mu):
        upper = stats.norm.cdf(mu / 2 - epsilon / mu)
        return upper - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)

    low, high = 1e-3, 10.0
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if profile(middle) < delta else (low, middle)
    return low


def test_a_uniform_guess_and_no_overlap():
    found, _ = figure_2.successes(400, 0.0, 5, 100, np.random.default_rng(3))
    assert found[5, 1.0, "analytic"] == 400  # all clients name the same five good ones
    # Twenty-five or a hundred candidates with equal counts: binomial, four standard errors.
    assert found[25, 0.25, "analytic"] / 400 == pytest.approx(0.2, abs=0.08)
    assert found[100, 0.25, "analytic"] / 400 == pytest.approx(0.05, abs=0.044)


def test_counts_are_top_k_counts():
    plain = figure_2.counts(2, 0.5, 3, 130, np.random.default_rng(5))
    assert plain.shape == (2, 5, 130)
    for place, votes in enumerate(figure_2.VOTES):
        assert (plain[:, place].sum(axis=1) == figure_2.CLIENTS * votes).all()
    assert (plain[:, 1, :3].min() > plain[:, 1, 3:].max()).all()
    assert (np.diff(plain, axis=1) >= 0).all()  # who names more names these too


def test_noise_of_figure_2():
    for epsilon in figure_2.EPSILONS:
        for votes in figure_2.VOTES[:-1]:
            ours = figure_2.sigma("analytic", epsilon, votes, 100)
            theirs = figure_2.sigma("artifact", epsilon, votes, 100)
            assert 1.02 < theirs / ours < 1.10
            assert accounting.vote(ours, votes, 100).epsilon(1e-5) <= epsilon


def test_quick_figure_2(monkeypatch, tmp_path):
    monkeypatch.setattr(figure_2, "QUICK_SIMULATIONS", 4)
    figure_2.FIGURE.produce(tmp_path, QUICK)
    rows = RowFolder(str(tmp_path), QUICK).read("figure_2")
    assert tuple(rows[0]) == tuple(figure_2.COLUMNS)
    assert len(rows) == (6 + 8 + 2) * 5 * 2 * 2
    assert (tmp_path / "figure_2.png").stat().st_size > 10_000


# ---- studies


def test_full_size_is_the_papers():
    by_number = {number: list(_figure(number).rows.studies(FULL)) for number in NUMBERS}
    assert {len(by_number[n]) for n in (4, 5, 12, 13)} == {9}
    every = {study for found in by_number.values() for study in found}
    assert {study.clients for study in every} == {50, 100, 250}
    assert {study.dataset for study in every} == {"mnist", "cifar10", "adult"}
    assert all(study.net == "paper" and not study.records for study in every)
    assert all((study.epochs, study.rounds) == (10 if study.dataset == "cifar10" else 5, 5)
               for study in every)  # fmt: skip
    assert {s.concentration for s in by_number[13]} == {30.0, 5.0, 0.5}
    assert {s.concentration for s in by_number[12] if s.dataset == "adult"} == {30.0, 5.0, 2.0}
    assert all(s.concentration == 0.0 for s in by_number[4])
    assert all(len(study.candidates()) == 100 for study in every)
    assert len({study.stem for study in every}) == len(every)
    expected = (0.1, 0.25, 0.5, 1.0, 3.0, math.inf)
    assert expected == studies.EPSILONS == Options().epsilons


@pytest.mark.parametrize("size", studies.SIZES)
def test_every_size_has_studies_that_survive_their_rows(size, tmp_path):
    for number in NUMBERS:
        found = list(_figure(number).rows.studies(size))
        assert len(set(found)) == len(found) > 0
        assert size != QUICK or {study.dataset for study in found} == {"digits"}
        path = tmp_path / f"{number}.csv"
        write_rows(path, studies.STUDY_COLUMNS, map(dataclasses.asdict, found))
        assert [studies.study_of(row) for row in read_rows(path)] == found


def test_divisions():
    labels = np.repeat(np.arange(3), 200)
    for concentration in (0.0, 0.5):
        parts = dataclasses.replace(TINY, concentration=concentration).divide(labels)
        assert len(parts) == 4 and sum(len(part) for part in parts) == 600


# ---- tables, rows, pictures


@pytest.fixture(scope="module")
def produced(tmp_path_factory):
    """A folder with the rows and picture of one tiny federation, and its tables' folder."""
    folder = tmp_path_factory.mktemp("dp_hype")
    options = Options(tables_dir=str(folder / "tables"), chunk_size=60, runs=3)
    figure = vote_figure(
        99, trade_off.COLUMNS, lambda size: [TINY], trade_off.dp_hype_rows, trade_off.drawer(3),
        quick="",
    )  # fmt: skip
    figure.produce(folder, QUICK, options=options)
    return figure, folder, options


def test_rows_of_a_trade_off(produced):
    _, folder, options = produced
    rows = read_rows(folder / "figure_99.csv")
    for epsilon in studies.EPSILONS:
        assert sum(row["won"] for row in select(rows, epsilon=epsilon)) == 3
        assert len(trade_off.accuracies(select(rows, epsilon=epsilon))) == 3
    federated = options.tables.federated(TINY)
    assert federated.shape == (100,)
    for row in rows:
        assert row["accuracy"] == federated[row["winner"]]
        assert row["opt"] == federated.max() and row["rand_guess"] == federated.mean()
    assert len({row["winner"] for row in select(rows, epsilon=math.inf)}) == 1
    assert (folder / "figure_99.png").stat().st_size > 10_000


class Untrained(tables.Tables):
    """Tables that cannot be trained."""

    def _federation(self, study):
        raise AssertionError("trained again")


def test_trained_tables_are_kept_and_redrawing_needs_none(produced):
    figure, folder, options = produced
    before = (folder / "figure_99.csv").read_bytes()
    tables_there = pathlib.Path(options.tables.folder)
    written = {path: path.stat().st_mtime_ns for path in tables_there.iterdir()}
    figure.produce(folder, QUICK, options=options)
    assert (folder / "figure_99.csv").read_bytes() == before
    assert {path: path.stat().st_mtime_ns for path in tables_there.iterdir()} == written
    figure.produce(folder, redraw=True, options=Options(tables_dir=str(folder / "nowhere")))
    assert (folder / "figure_99.csv").read_bytes() == before
    more_rounds = dataclasses.replace(TINY, rounds=2)  # The clients' own training is the same.
    kept = Untrained(**dataclasses.asdict(options.tables))
    assert kept.scores(more_rounds).losses.shape == (4, 100)
    for other in (more_rounds, dataclasses.replace(TINY, seed=1)):
        with pytest.raises(AssertionError, match="trained again"):
            kept.table(other)


def test_a_stopped_table_goes_on_with_the_piece_it_was_at(tmp_path, monkeypatch):
    """Pieces are kept, none is trained twice, and what comes out does not depend on them."""
    asked = []

    def train(net, parts, candidates, **_):
        if len(asked) == 2:
            raise KeyboardInterrupt
        asked.append(len(candidates))
        rates = np.array([[candidate["learning_rate"] for candidate in candidates]])
        return ClientScores(rates, rates + len(parts))

    monkeypatch.setattr(tables, "train_clients", train)
    kept = tables.Tables(str(tmp_path), chunk_size=30)
    with pytest.raises(KeyboardInterrupt):
        kept.scores(TINY)
    asked.clear()
    asked_before = len(list(tmp_path.iterdir()))
    found = kept.scores(TINY)
    assert asked_before == 2 and asked == [25, 25]
    rates = [candidate["learning_rate"] for candidate in TINY.candidates()]
    assert found.losses[0].tolist() == rates
    assert [path.name for path in tmp_path.iterdir()] == [f"{TINY.clients_stem}_clients.npz"]


def test_what_a_figure_shows_can_be_chosen():
    every = list(_figure(12).rows.studies(FULL))
    options = Options(rates="log_spaced", datasets=("adult",), concentrations=(2.0, 5.0))
    found = options.chosen(every)
    assert [study.concentration for study in found] == [5.0, 2.0]
    assert {study.rates for study in found} == {"log_spaced"}
    assert Options().chosen(every) == every
    (other,) = Options(net="paper", rounds=2, datasets=("cifar10_subset",)).chosen(
        _figure(4).rows.studies(MID)
    )
    assert (other.net, other.rounds, other.footnote.count("MLP")) == ("paper", 2, 0)
    with pytest.raises(ValueError, match="--net=wide: pass paper, or widths"):
        Options(net="wide")
    with pytest.raises(ValueError, match="pass from dataset: adult, mnist, cifar10; clients: 250"):
        Options(clients=(100,)).chosen(every)


def test_what_has_no_public_address_is_shown_where_it_is_named():
    """No default fails for want of a file that nobody can download."""
    for number in NUMBERS:
        figure = _figure(number)
        for size in studies.SIZES:
            shown = {study.dataset for study in Options().chosen(figure.rows.studies(size))}
            assert shown and "cifar10_subset" not in shown
    (named,) = Options(datasets=("cifar10_subset",)).chosen(_figure(3).rows.studies(MID))
    assert named.clients == 50


def test_mid_size_shows_every_number_of_clients_and_small_nets_of_mnist():
    for number, shown in ((4, 6), (5, 6), (12, 6), (13, 6), (8, 18)):
        found = Options().chosen(_figure(number).rows.studies(MID))
        assert len(found) == shown and {s.net for s in found if s.dataset == "mnist"} == {"64"}


# ---- titles and headings


def _rows(*found, **more):
    return [{**dataclasses.asdict(study), "candidate": 0, "accuracy": 0.5} | more
            for study in found]  # fmt: skip


def test_titles_name_the_data_set_that_was_run():
    """Quick rows are digits, whatever the paper's panel shows; skew is the one of the division."""
    for number in (4, 5, 9, 10, 11, 12, 13):
        for study in _figure(number).rows.studies(QUICK):
            assert study.title.startswith(f"digits, n = {study.clients}, ")
            assert "quick size, not the paper's data" in study.footnote
    last = list(_figure(12).rows.studies(FULL))[2]
    assert last.title == "Adult, n = 250, $\\alpha=2$" and not last.footnote
    assert studies.study(MID, "mnist", 50).footnote == "MLP 64, 2 rounds (paper: 5)"
    subset = studies.study(MID, "cifar10", 50).footnote
    assert subset == "10,000 of its 50,000 images, MLP 32"
    half = dataclasses.replace(studies.study(FULL, "mnist", 50), records=30_000, epochs=2)
    assert half.footnote == "30000 records, 2 epochs (paper: 5)"


def test_histograms_of_two_concentrations_name_both():
    """Adult has 2 for 0.5 among 250 clients, in the panel where MNIST has 0.5."""
    every = [study for study in _figure(8).rows.studies(FULL) if study.clients == 250]
    picture = _figure(8).draw(_rows(*every))
    titles = [axes.get_title() for axes in picture.axes]
    assert titles[:2] == ["250 clients, $\\alpha=30$", "250 clients, $\\alpha=5$"]
    assert titles[2] == "250 clients,\n$\\alpha=2$ (Adult), $\\alpha=0.5$ (MNIST, CIFAR-10)"
    assert "MNIST: full size" in picture.get_suptitle()
    quick = _figure(3).draw(_rows(*_figure(3).rows.studies(QUICK)))
    assert "digits: quick size, not the paper's data, 600 records" in quick.get_suptitle()
    assert "MNIST" not in quick.get_suptitle() + quick.axes[0].get_title()


def test_headings_name_the_list_of_rates_and_rows_of_two_are_refused():
    one = studies.study(FULL, "adult", 50)
    others = [dataclasses.replace(one, rates=rates) for rates in ("artifact", "table_iii")]
    assert set(studies.RATES_IN_WORDS) == set(RATES)
    for study in others:
        picture = _figure(3).draw(_rows(study))
        assert studies.RATES_IN_WORDS[study.rates] in picture.get_suptitle()
    assert others[0].stem != others[1].stem and others[0].clients_stem != others[1].clients_stem
    with pytest.raises(ValueError, match="pass rows of one"):
        _figure(3).draw(_rows(*others))
    outcome = {"algorithm": "DP-HYPE", "epsilon": 1.0, "winner": 0, "won": 1, "opt": 0.5,
               "rand_guess": 0.1}  # fmt: skip
    with pytest.raises(ValueError, match="rows of two federations called 'Adult, n = 50, iid'"):
        _figure(4).draw(_rows(*others, **outcome))


def test_histograms(produced, tmp_path):
    _, _, options = produced
    figure = vote_figure(
        98, figure_3.COLUMNS, lambda size: [TINY],
        figure_3.histogram_rows, figure_3.drawer(1),
        quick="",
    )  # fmt: skip
    figure.produce(tmp_path, QUICK, options=options)
    rows = read_rows(tmp_path / "figure_98.csv")
    assert [row["candidate"] for row in rows] == list(range(100))


def test_label_bars(tmp_path):
    figure = _figure(7)
    figure.produce(tmp_path, QUICK)
    rows = read_rows(tmp_path / "figure_7.csv")
    for concentration in studies.CONCENTRATIONS:
        members = select(rows, concentration=concentration)
        assert len(members) == 5 * 10
        assert sum(row["count"] for row in members) == 600


def test_interval_is_students_over_runs():
    values = np.random.default_rng(0).normal(size=20)
    mean, half = interval(values)
    found = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert (mean - half, mean + half) == pytest.approx((found.low, found.high))


# ---- ablations


def _table(clients, candidates=100):
    """Candidate 3 is best everywhere."""
    accuracies = np.full((clients, candidates), 0.2)
    accuracies[:, 3], accuracies[:, 4:8] = 0.9, 0.5
    return tables.Table(ClientScores(1.0 - accuracies, accuracies), accuracies[0])


@pytest.mark.parametrize("make", [m for group in figure_9.ALGORITHMS.values()
                                  for m in group.values()])  # fmt: skip
def test_ablations_find_the_best_without_noise_and_guess_under_much(make):
    source = np.random.default_rng(0)
    winner = make(_table(200))
    assert {winner(math.inf, source) for _ in range(20)} == {3}
    drowned = [winner(0.1, source) for _ in range(30)]
    assert len(set(drowned)) > 1


def test_noise_of_ablations():
    assert figure_9.sigma(1.0, math.sqrt(10.0)) == pytest.approx(
        accounting.calibrate_vote(1.0, 1e-5, 5, 100), rel=1e-5
    )
    assert figure_9.sigma(math.inf, 1.0) == 0.0
    # The authors calibrate a subset's noise for two moved numbers; one client moves one.
    for epsilon in (0.5, 1.0, 3.0):
        assert figure_9.ARTIFACT_SUBSET_SIGMAS[epsilon] == pytest.approx(
            math.sqrt(2.0) * figure_9.sigma(epsilon, 1.0), rel=0.1
        )
    with pytest.raises(ValueError, match="99 clients for 100 subsets"):
        figure_9.subsets(_table(99), as_in_artifact=False)
