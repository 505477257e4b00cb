"""DPareto's figures 5 to 8 and Table 2: sizes, a trained search, derived rows, pictures."""

import dataclasses
import importlib
import pathlib
import time
from concurrent import futures

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marked_rows import marked
from matplotlib.figure import Figure

from dpjax import private_files
from experiments.figures.dpareto import (
    figure_5,
    figure_6,
    figure_7,
    figure_search_variation,
    problems,
    table_2,
    trained_fronts,
)
from experiments.figures.dpareto import trained_searches as trained
from experiments.figures.rows import RowFolder, read_rows, select

COMMITTED = pathlib.Path(__file__).parents[3] / "docs" / "figures" / "dpareto"

NAMES = ("figure_5", "figure_search_variation", "figure_6", "figure_7", "figure_8", "table_2")
PROBLEM = "adult_logistic_regression_sgd"


def made_up_rows():
    """Rows of small searches whose errors follow a formula: EHVI's are lower by 0.01."""
    generator = np.random.default_rng(4)
    evaluations, fresh = [], []
    for problem in trained.LABELS:
        for method in ("ehvi", "random", "grid_2"):
            for seed in range(3):
                key = {"problem": problem, "method": method, "seed": seed}
                key |= trained.ran(problem, method, trained.FULL) | {"evaluations": 6}
                for place, epsilon in enumerate(0.1 * 2.0 ** np.arange(6)):
                    utility = 0.7 + 0.02 * place + (0.01 if method == "ehvi" else 0)
                    utility += 0.002 * generator.random()
                    row = key | dict.fromkeys(trained.SETTING_COLUMNS, 1.0)
                    row |= {"epsilon": epsilon, "epsilon_classic": 1.25 * epsilon}
                    row |= {"utility": utility}
                    row |= {"best": utility + 0.01, "worst": utility - 0.01}
                    evaluations.append(row | {"evaluation": place})
                    fresh.append(row | {"first_seen": utility + 0.005, "fresh_repetitions": 20})
    return evaluations, fresh


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_is_drawn_and_says_that_it_is_not_private(name):
    module = importlib.import_module(f"experiments.figures.dpareto.{name}")
    rows = module.rows(*made_up_rows())
    assert rows and all(set(row) == set(module.FIGURE.columns) for row in rows)
    figure = module.draw(rows)
    assert isinstance(figure, Figure)
    said = figure.get_suptitle()
    assert "NOT private" in said
    assert "Adult: 30,956 records, up to 64 epochs" in said
    if name in ("figure_5", "figure_7", "figure_8"):
        assert "MNIST: 60,000 records, up to 400 epochs" in said
    assert "6 evaluations of 10 repetitions" in said
    digits = module.draw([row | {"data_set": "digits", "records": 1438} for row in rows])
    said = " ".join([digits.get_suptitle(), *(axes.get_title() for axes in digits.axes)])
    assert "digits: 1,438 records" in said
    assert "Adult" not in said and "MNIST" not in said


@pytest.mark.parametrize("name", NAMES)
def test_part_of_the_searches_is_drawn_too(name):
    module = importlib.import_module(f"experiments.figures.dpareto.{name}")
    kept = [select(rows, problem=PROBLEM) for rows in made_up_rows()]
    assert isinstance(module.draw(module.rows(*kept)), Figure)


def test_full_size_is_the_papers():
    for problem in problems.PROBLEMS:
        size = trained.size_of(problem, trained.FULL)
        assert (size.evaluations, size.initial, size.repetitions) == (16 + 256, 16, 10)
        assert size.grids == (3, 4) and size.epochs is size.records is None
    assert figure_5.searches(trained.FULL)[-1] == (PROBLEM, "random_1500", 0)
    assert len(figure_5.searches(trained.FULL)) == 5 * 2 * 5 + 1
    assert len(figure_5.searches(trained.MID)) == 5 * 2 * 3 + 2 * 2
    ran = trained.ran("mnist_1000_sgd", "ehvi", trained.FULL)
    assert tuple(ran.values()) == ("MNIST", 60_000, 400, 272, 10) and set(ran) == set(
        trained.RAN_COLUMNS
    )
    assert trained.ran(PROBLEM, "grid_4", trained.FULL)["evaluations"] == 1024
    assert trained.ran(PROBLEM, "random_1500", trained.FULL)["evaluations"] == 1500
    assert figure_6.searches(trained.FULL)[1:] == [(PROBLEM, "grid_3", 0), (PROBLEM, "grid_4", 0)]
    assert {one[2] for one in figure_7.searches(trained.FULL)} == {0}


def test_full_on_adult_is_full_there_and_takes_all_records_of_mnist():
    for problem in problems.PROBLEMS:
        size = trained.size_of(problem, trained.FULL_ADULT)
        assert size.records is size.lot_size is None
        assert (size == trained.size_of(problem, trained.FULL)) == problem.startswith("adult")


def test_caps_keep_draws_inside_and_leave_the_rest():
    problem = problems.PROBLEMS["mnist_1000_sgd"]
    size = trained.size_of("mnist_1000_sgd", trained.MID)
    domain, laws = trained.capped(problem.domain, problem.laws, size)
    drawn = laws.sample(500, np.random.default_rng(0))
    assert drawn["epochs"].max() == size.epochs and drawn["lot_size"].max() <= size.lot_size
    assert domain.largest("epochs") == size.epochs
    assert domain.parameters["clip_norm"] == problem.domain.parameters["clip_norm"]
    unchanged = trained.capped(problem.domain, problem.laws, trained.Size())
    assert unchanged[0].parameters == problem.domain.parameters
    assert unchanged[1].laws == problem.laws.laws


def test_a_search_is_trained_once_and_methods_share_their_start(tmp_path, monkeypatch):
    small = dataclasses.replace(trained.SIZES[trained.QUICK, "a1a"], evaluations=6, initial=4)
    monkeypatch.setitem(trained.SIZES, (trained.QUICK, "a1a"), small)
    wanted = [(PROBLEM, "random", 0), (PROBLEM, "ehvi", 0)]
    said = []
    folder = RowFolder(str(tmp_path), trained.QUICK, said.append)
    trained.train(folder, wanted)
    evaluations, fresh = trained.stored(folder)
    assert len(said) == 2 and len(evaluations) == 12 and fresh
    assert all(row["epsilon_classic"] > row["epsilon"] for row in evaluations)
    for rows in (evaluations, fresh):
        assert {(row["data_set"], row["records"]) for row in rows} == {("digits", 1438)}
    columns = (*trained.SETTING_COLUMNS, "epsilon", "utility")
    starts = [
        [[row[name] for name in columns] for row in trained_fronts.of(evaluations, *key)[:4]]
        for key in wanted
    ]
    assert starts[0] == starts[1]
    assert (tmp_path / "records" / f"{PROBLEM}-ehvi-0.jsonl").stat().st_mode & 0o077 == 0

    marked(folder.file(trained.SEARCHES), "utility")
    there = trained.stored(folder)
    trained.train(folder, wanted)
    assert trained.stored(folder) == there
    paths = figure_search_variation.FIGURE.produce(tmp_path, redraw=True)
    assert [path.rsplit(".", 1)[1] for path in paths[2:]] == ["csv", "png", "svg"]
    with pytest.raises(ValueError, match="size quick, not mid: pass --size=quick"):
        figure_search_variation.FIGURE.produce(tmp_path, trained.MID)


def test_a_long_random_search_begins_as_the_usual_one(tmp_path, monkeypatch):
    small = dataclasses.replace(trained.SIZES[trained.QUICK, "a1a"], evaluations=4, initial=4)
    monkeypatch.setitem(trained.SIZES, (trained.QUICK, "a1a"), small)
    folder = RowFolder(str(tmp_path), trained.QUICK)
    trained.train(folder, [(PROBLEM, "random", 0), (PROBLEM, "random_8", 0)])
    evaluations, _ = trained.stored(folder)
    short, long = (
        [row["utility"] for row in select(evaluations, method=method)]
        for method in ("random", "random_8")
    )
    assert (len(short), len(long)) == (4, 8) and long[:4] == short
    assert [row["evaluations"] for row in evaluations] == [4] * 4 + [8] * 8
    # What a row says was run is what was: the digits, all of them.
    assert (
        trained.Trainer(PROBLEM, trained.QUICK, trained.Options()).accuracy.task.train.number
        == (evaluations[0]["records"])
    )


@pytest.mark.parametrize("change", [{"records": 2000}, {"data_set": "digits"}, {"repetitions": 3}])
def test_rows_of_less_than_the_size_are_refused(tmp_path, change):
    evaluations, fresh = (select(rows, problem=PROBLEM) for rows in made_up_rows())
    folder = RowFolder(str(tmp_path), trained.FULL)
    due = trained.ran(PROBLEM, "ehvi", trained.FULL)
    for name, columns, rows in (
        (trained.SEARCHES, trained.EVALUATION_COLUMNS, evaluations),
        (trained.FRONTS, trained.FRONT_COLUMNS, fresh),
    ):
        kept = [row | due | change for row in select(rows, method="ehvi")]
        folder.write(name, columns, [{column: row[column] for column in columns} for row in kept])
    name, value = next(iter(change.items()))
    with pytest.raises(ValueError, match=f"{name} {value}.*, where size full is .*pass another"):
        table_2.FIGURE.produce(tmp_path, trained.FULL)
    with pytest.raises(ValueError, match="pass another --out_dir"):
        table_2.FIGURE.produce(tmp_path, redraw=True)


def test_processes_side_by_side_lose_no_rows(tmp_path):
    evaluations, fresh = made_up_rows()
    (tmp_path / "records").mkdir()

    class Slow(RowFolder):
        def write(self, name, columns, rows):
            rows = list(rows)
            time.sleep(0.01)  # Between reading and writing.
            super().write(name, columns, rows)

    folder = Slow(str(tmp_path), trained.FULL)

    def add(key):
        due = trained.ran(key[0], key[1], trained.FULL)
        own = [trained_fronts.of(rows, *key) for rows in (evaluations, fresh)]
        columns = (trained.EVALUATION_COLUMNS, trained.FRONT_COLUMNS)
        trained.add(
            folder,
            *([{name: (row | due)[name] for name in names} for row in rows]
              for names, rows in zip(columns, own)),
        )  # fmt: skip

    keys = [(PROBLEM, method, seed) for method in ("ehvi", "random") for seed in range(3)]
    with futures.ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(add, key) for key in keys]:
            done.result()
    add(keys[0])  # Again: its rows take the place of the old ones.
    there, again = trained.stored(folder)
    for rows in (there, again):
        assert len(rows) == 6 * 6 and set(trained_fronts.by_search(rows)) == set(keys)
    assert not list(tmp_path.rglob("*.lock"))


def test_a_search_that_another_process_has_begun_is_left_to_it(tmp_path):
    """A search that begins looks for its problem, which nobody has."""
    said = []
    folder = RowFolder(str(tmp_path), trained.QUICK, said.append)
    (tmp_path / "records").mkdir()
    lock = tmp_path / "records" / "none-ehvi-0.jsonl.lock"
    wanted = [("none", "ehvi", 0), ("none", "random", 0)]
    begun = pytest.raises(KeyError, match="none")
    with private_files.locked(lock, "records"), futures.ThreadPoolExecutor(1) as pool:
        pool.submit(trained.train, folder, wanted[:1]).result()
        with begun:
            pool.submit(trained.train, folder, wanted).result()
    assert len(said) == 2 and all("ehvi, seed 0: left to another process" in one for one in said)
    with begun:
        trained.train(folder, wanted[:1])


def test_nothing_to_draw_is_one_line(tmp_path):
    with pytest.raises(
        ValueError, match="holds nothing that figure_search_variation shows: leave --redraw"
    ):
        figure_search_variation.FIGURE.produce(tmp_path, trained.FULL, redraw=True)


def test_hypervolume_of_figure_4_grows_to_that_of_all():
    evaluations, fresh = made_up_rows()
    made = select(figure_5.rows(evaluations, fresh), problem=PROBLEM, method="ehvi", seed=1)
    volumes = [row["hypervolume"] for row in made]
    assert volumes == sorted(volumes)
    members = trained_fronts.of(evaluations, PROBLEM, "ehvi", 1)
    assert volumes[-1] == pytest.approx(trained_fronts.hypervolume(members), rel=1e-6)
    # One point: the rectangle up to (10, 1).
    assert volumes[0] == pytest.approx((10 - 0.1) * members[0]["utility"], rel=1e-6)


def test_hypervolume_as_the_paper_may_have_judged():
    rows = [{"epsilon": 0.5, "epsilon_classic": 1.0, "utility": 0.75}]
    assert trained_fronts.papers_hypervolume(rows, logarithmic=False) == pytest.approx(9 * 0.75)
    expected = np.log(10) * 0.75
    assert trained_fronts.papers_hypervolume(rows, logarithmic=True) == pytest.approx(expected)


def test_parameters_start_as_in_the_authors_code():
    zeros = {"k": jnp.zeros((123, 1)), "b": jnp.zeros(1)}
    task = dataclasses.make_dataclass("Task", ["initial"])(lambda key: zeros)
    start = jax.jit(jax.vmap(trained.the_authors_start(task).initial))
    drawn = start(jax.random.split(jax.random.key(0), 1000))
    # 1,000 draws: five standard errors of a standard deviation are 12%.
    assert float(drawn["b"].std()) == pytest.approx(np.sqrt(3), rel=0.12)
    assert float(drawn["k"].std()) == pytest.approx(np.sqrt(6 / 124), rel=0.02)
    assert abs(np.corrcoef(drawn["b"][:, 0], drawn["k"][:, 0, 0])[0, 1]) < 0.16


def test_every_search_on_adult_may_use_the_rates_that_are_drawn():
    for name, problem in problems.PROBLEMS.items():
        law = problem.laws.laws["learning_rate"]
        assert trained.searched_domain(name).largest("learning_rate") == law.most


def test_the_quick_size_on_adult_says_who_won():
    rows = table_2.rows(*made_up_rows())
    said = table_2.summary(rows)
    assert said[1].startswith("LogReg+Adam: DPareto won 3 of 3 seeds after 6 evaluations")
    size = trained.size_of("adult_logistic_regression_adam", trained.QUICK_ADULT)
    assert size.seeds == 5 and size.records is None


def test_table_2_takes_differences_seed_by_seed():
    evaluations, fresh = made_up_rows()
    row = select(table_2.rows(evaluations, fresh), problem=PROBLEM, judged="measured_afresh")[0]
    # Errors lower by 0.01 over nearly all of (0, 10), give or take the made-up noise.
    assert (row["seeds"], row["seeds_won"]) == (3, 3)
    assert row["mean"] == pytest.approx(0.099, abs=0.02) and row["low"] < row["mean"] < row["high"]
    # Student's t with two degrees of freedom, by hand: 4.3027 / sqrt(3) times the deviation 1.
    mean, low, high = table_2.interval(np.array([1.0, 2.0, 3.0]))
    assert (mean, low, high) == pytest.approx((2, 2 - 2.4841, 2 + 2.4841), abs=1e-4)
    assert table_2.interval(np.array([1.0])) == (1.0, None, None)
    finals = trained_fronts.final_rows(evaluations, fresh, ("random",))
    values = [final["measured_afresh"] for final in select(finals, problem=PROBLEM)]
    assert len(values) == 3 and row["random_spread"] == pytest.approx(np.std(values, ddof=1))
    assert table_2.spread([1.0]) is None


def test_table_2_of_the_paper_is_in_log_epsilon():
    """The intervals' width gives how 19 searches vary; ours vary so in log epsilon alone."""
    rows = read_rows(COMMITTED / "table_2.csv")
    for problem in trained.ADULT:
        _, low, high = table_2.PAPER[problem]
        paper = table_2.papers_spread(problem)
        assert 2.1009 * paper / 19**0.5 == pytest.approx((high - low) / 2, rel=1e-4)
        found = {row["judged"]: row["random_spread"] for row in select(rows, problem=problem)}
        assert 0.3 * paper < found.pop("observed_classic_log") < paper
        assert len(found) == 3 and max(found.values()) < 0.06 * paper


def test_the_papers_criterion_is_searched_by_and_drawn_beside_ours():
    """`--method=hvpoi`: a search for each by EHVI, with its seed; curves and dots of its own."""
    wanted = trained.with_others(figure_search_variation.searches(trained.FULL), ("hvpoi",))
    usual = trained.with_others(figure_search_variation.searches(trained.FULL), ())
    assert [one for one in wanted if one not in usual] == [
        (problem, "hvpoi", seed) for seed in range(5) for problem in trained.ADULT
    ]
    evaluations, fresh = made_up_rows()
    for rows in (evaluations, fresh):
        rows += [
            row | {"method": "hvpoi"}
            for row in select(rows, problem=PROBLEM, method="ehvi", seed=0)
        ]
    drawn = figure_5.draw(figure_5.rows(evaluations, fresh))
    labels = drawn.axes[0].get_legend_handles_labels()[1]
    assert sorted(labels) == ["DPareto (EHVI)", "DPareto (HVPoI), 1 seed", "random"]
    panel = figure_search_variation.draw(figure_search_variation.rows(evaluations, fresh)).axes[0]
    ticks = [tick.get_text() for tick in panel.get_xticklabels()]
    assert ticks == ["DPareto\n(EHVI)", "DPareto\n(HVPoI)", "random"]
