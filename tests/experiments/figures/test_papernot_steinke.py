"""Figures of Papernot & Steinke: quick rows equal the oracles, pictures come from rows alone."""

import json
import math
import pathlib

import mpmath
import numpy as np
import pytest
from scipy import optimize
from sklearn.datasets import make_blobs

from dpjax import accounting
from experiments.figures.figure import QUICK
from experiments.figures.papernot_steinke import (
    figure_1,
    figure_2,
    figure_3,
    figure_4,
    figure_5,
    figure_6,
    figure_8,
    figure_one_outlier,
    figure_tightness,
    setting,
)
from experiments.figures.rows import SIZE, distinct, read_rows, select

MODULES = (
    figure_1, figure_one_outlier, figure_2, figure_3, figure_4, figure_5, figure_6, figure_8,
)  # fmt: skip
COMMITTED = pathlib.Path(__file__).parents[3] / "docs" / "figures" / "papernot_steinke"


def oracle(name):
    """Numbers derived independently; see oracles/README.md."""
    return json.loads((pathlib.Path(__file__).parent / "oracles" / name).read_text())


@pytest.fixture(scope="module")
def quick_rows(tmp_path_factory):
    """Rows of every figure's --quick, as read back from its file."""
    folder = tmp_path_factory.mktemp("figures")
    rows = {}
    for module in MODULES:
        path, *pictures = module.FIGURE.produce(folder, QUICK)
        assert len(pictures) == 2
        rows[module] = read_rows(path)
    return rows


def only(rows, **values):
    """The one row with these values."""
    (row,) = select(rows, **values)
    return row


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.FIGURE.name)
def test_columns(quick_rows, module):
    assert tuple(quick_rows[module][0]) == (SIZE, *module.FIGURE.columns)
    assert len(quick_rows[module]) > 10


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.FIGURE.name)
def test_committed_rows_are_current(quick_rows, module):
    """The full rows in docs/ hold the quick ones."""
    committed = read_rows(COMMITTED / f"{module.FIGURE.name}.csv")
    numbers = {"value", "accuracy", "expected_quantile", "success_probability", "s", "t"}
    numbers |= {"good_set_probability", *figure_8.BOUNDS}
    numbers |= {f"epsilon_{bound}" for bound in setting.BOUNDS}
    keys = [column for column in module.FIGURE.columns if column not in numbers]

    def key(row):
        return tuple(
            float(f"{row[k]:.9g}") if isinstance(row[k], float | int) else row[k] for k in keys
        )

    full = {key(row): row for row in committed}
    assert len(full) == len(committed)
    for row in quick_rows[module]:
        for column in numbers & set(module.FIGURE.columns):
            ours = column.startswith("epsilon_tight") or row.get("bound", "").startswith("tight")
            # Our bound is a numerical upper bound, good to about 1e-3.
            tolerance = {"abs": 2e-3, "rel": 1e-3} if ours else {"abs": 1e-5}
            if column == "accuracy":
                tolerance = {"abs": 0.01}
            assert full[key(row)][column] == pytest.approx(row[column], **tolerance)


def test_figure_1_turns_with_outliers_and_only_falls_without():
    rows = read_rows(COMMITTED / "figure_1.csv")
    alphas = np.array(distinct(rows, "alpha"))
    having = figure_1.accuracies(rows, figure_1.OUTLIERS)
    mean, error = having.mean(axis=0), having.std(axis=0).max() / np.sqrt(len(having))
    assert 8 <= alphas[mean.argmax()] <= 12
    assert mean.max() > mean[0] + 0.08 and mean.max() > mean[-1] + 6 * error
    without = figure_1.accuracies(rows, 0).mean(axis=0)
    assert without[0] == 1 and np.all(np.diff(without) < 4e-4) and without[-1] < 0.996


def test_figure_1_has_the_papers_records():
    """Those whose centres the paper prints, and its outliers."""
    *_, centres = make_blobs(n_samples=40, centers=2, random_state=6, return_centers=True)
    assert centres.round(2).tolist() == [[7.86, -3.36], [6.42, -9.17]]
    inputs, labels = figure_1.the_records(8)
    for label, centre in zip((-1, 1), centres):
        members = inputs[:40][labels[:40] == label]
        assert len(members) == 20 and np.abs(members.mean(axis=0) - centre).max() < 0.3
    assert inputs[40:].tolist() == [[7.9, -8.0]] * 8 and labels[40:].tolist() == [-1] * 8


def test_figure_1_takes_the_stated_step():
    """Two passes over one record, by hand: the gradient of ||w||^2 + alpha hinge."""
    x, y = np.array([[2.0, -1.0]]), np.array([-1.0])
    weights, intercepts = figure_1.train(x, y, np.array([3.0, 5.0]), runs=2, passes=2)
    assert weights.shape == (2, 2, 2) and intercepts.shape == (2, 2)
    first = figure_1.STEP * 3 * y[0] * x[0]
    for run in (0, 1):
        assert weights[run, 0] == pytest.approx((1 - 2 * figure_1.STEP) * first + first)
        assert intercepts[run] == pytest.approx(2 * figure_1.STEP * y[0] * np.array([3, 5]))


def test_one_outlier_the_tuned_weight_reveals_the_outlier(quick_rows):
    rows = quick_rows[figure_one_outlier]
    without, having = (figure_one_outlier.tuned_weights(rows, outlier) for outlier in (0, 1))
    assert len(without) == len(having) == 5
    assert max(without) < 0.01 < min(having)


def test_one_outlier_committed_claims():
    """What the docstring says of the 100 draws."""
    rows = read_rows(COMMITTED / "figure_one_outlier.csv")
    without, having = (
        np.array(figure_one_outlier.tuned_weights(rows, outlier)) for outlier in (0, 1)
    )
    assert np.sum(without < 0.01) == 100
    assert np.sum(having > 0.01) == 93
    assert np.sum(without != having) == 99


@pytest.mark.parametrize("weight", [1e-2, 1.0])
def test_one_outlier_trains_the_stated_objective(weight):
    inputs, labels = figure_one_outlier.draw_records(np.random.default_rng(3), 10)

    def objective(values):
        margins = labels * (inputs @ values[:2] + values[2])
        return weight / 2 * values[:2] @ values[:2] + np.mean(np.maximum(0, 1 - margins))

    machine = figure_one_outlier.train(weight, inputs, labels)
    reached = objective(np.append(machine.coef_[0], machine.intercept_))
    best = optimize.minimize(
        objective, np.zeros(3), method="Nelder-Mead", options={"xatol": 1e-9, "maxiter": 20000}
    )
    assert reached <= best.fun + 1e-4
    # A machine of another weight does worse on this objective.
    other = figure_one_outlier.train(3 * weight, inputs, labels)
    assert objective(np.append(other.coef_[0], other.intercept_)) > reached + 1e-4


def test_one_outlier_ties_go_to_the_largest_weight():
    rows = [
        {"draw": 0, "outlier": 0, "regularisation_weight": weight, "accuracy": accuracy}
        for weight, accuracy in ((0.1, 0.9), (1.0, 0.9), (10.0, 0.5))
    ]
    assert figure_one_outlier.tuned_weights(rows, 0) == [1.0]


def test_figure_2_renyi_curves(quick_rows):
    naive = select(quick_rows[figure_2], bound=figure_2.NAIVE)
    assert [row["value"] for row in naive] == pytest.approx([row["order"] for row in naive])
    rows = select(quick_rows[figure_2], quantity=figure_2.RENYI, bound=setting.PAPER)
    wanted = oracle("ps_figures.json")["fig2"]
    assert distinct(rows, "mean") == [entry["mean"] for entry in wanted]
    for entry in wanted:
        for order, divergence in entry["rdp"].items():
            row = only(rows, mean=entry["mean"], order=float(order))
            assert row["value"] == pytest.approx(divergence, abs=1e-5)


def test_figure_3_renyi_curves(quick_rows):
    rows = select(quick_rows[figure_3], quantity=figure_3.RENYI)
    names = {0.0: "logarithmic", 1.0: "geometric", 5.0: "eta=5"}
    for entry in oracle("ps_figures.json")["fig3"]:
        name = names[entry["eta"]] if entry["dist"] == "tnb" else entry["dist"]
        # Poisson: the paper's theorem corrected, and non-decreasing in the order.
        curve = entry["rdp_fixed_mono"] if name == "poisson" else entry["rdp"]
        for order, divergence in curve.items():
            row = only(rows, repetition=name, order=float(order))
            assert row["value"] == pytest.approx(divergence, abs=1e-5)


def law_name(entry):
    """The row's name of an oracle's law."""
    names = {0.0: "logarithmic", 1.0: "geometric"}
    shape = entry.get("shape", entry.get("eta"))
    return "poisson" if shape is None else names.get(shape, f"eta={shape:g}")


def test_figure_4_epsilons(quick_rows):
    for entry in oracle("ps_epsilons.json"):
        row = only(quick_rows[figure_4], repetition=law_name(entry), mean=entry["mean"])
        paper, tight = row["epsilon_papernot_steinke"], row["epsilon_tight_gaussian"]
        assert paper == pytest.approx(entry["rdp"], abs=entry["rdp_tolerance"])
        # The oracle is the envelope; the exact bound is smaller for Poisson laws of large mean.
        assert tight <= entry["envelope"] + max(5e-3, 1e-3 * entry["envelope"])
        if law_name(entry) != "poisson":
            assert tight == pytest.approx(entry["envelope"], abs=5e-3, rel=1e-3)
        if entry["lower"] is not None:
            assert tight >= entry["lower"]


@pytest.mark.parametrize(
    "name, mean, epsilon",
    [("logarithmic", 10, 3.011), ("geometric", 10, 3.248), ("geometric", 100, 4.157)],
)
def test_figure_4_epsilons_of_any_zcdp_run(quick_rows, name, mean, epsilon):
    row = only(quick_rows[figure_4], repetition=name, mean=mean)
    assert row["epsilon_tight_zcdp"] == pytest.approx(epsilon, abs=5e-3)


@pytest.mark.parametrize("module", [figure_4, figure_5, figure_6], ids=lambda m: m.FIGURE.name)
def test_ours_is_never_above_the_papers(quick_rows, module):
    for row in quick_rows[module]:
        slack = 1e-9 * row["epsilon_papernot_steinke"]
        assert row["epsilon_tight_zcdp"] <= row["epsilon_papernot_steinke"] + slack
        assert row["epsilon_tight_gaussian"] <= row["epsilon_tight_zcdp"] + slack


@pytest.mark.parametrize("module", [figure_4, figure_5, figure_6], ids=lambda m: m.FIGURE.name)
def test_epsilon_grows_with_the_mean(quick_rows, module):
    rows = quick_rows[module]
    for name in distinct(rows, "repetition"):
        members = select(rows, repetition=name)
        assert np.all(np.diff([row["mean"] for row in members]) > 0)
        for bound in setting.BOUNDS:
            assert np.all(np.diff([row[f"epsilon_{bound}"] for row in members]) > 0)


@pytest.mark.parametrize(
    "module, column, wanted",
    [
        (figure_5, "expected_quantile", "expected_quantile"),
        (figure_6, "success_probability", "success_m100"),
    ],
    ids=["figure_5", "figure_6"],
)
def test_utilities(quick_rows, module, column, wanted):
    entries = oracle("ps_figures.json")["fig5_6_utility"]
    assert len(entries) == 32
    for entry in entries:
        name = "naive" if entry["dist"] == "naive" else law_name(entry)
        row = only(quick_rows[module], repetition=name, mean=entry["mean"])
        assert row[column] == pytest.approx(entry[wanted], abs=1e-5)


@pytest.mark.parametrize(
    "law",
    [
        accounting.Fixed(7),
        accounting.Poisson(0.3),
        accounting.Binomial(12, 0.4),
        accounting.TruncatedNegativeBinomial(0.5, 10.0),
        accounting.AtMost(accounting.Geometric(50.0), 20),
    ],
    ids=repr,
)
def test_expected_quantile_is_the_sum_over_the_law(law):
    k = np.arange(5000.0)
    assert figure_5.expected_quantile(law) == pytest.approx(
        float(np.sum(law.pmf(k) * k / (k + 1))), abs=1e-9
    )


def test_figure_8_bounds(quick_rows):
    rows = select(quick_rows[figure_8], example=figure_8.ONE_ORDER)
    columns = {
        "s": "s",
        "t": "t",
        "good_set_probability": "QS",
        "lower": "exact",
        "upper_own_divergences": "upper_exactD",
        "upper": "upper_fig8",
    }
    for entry in oracle("ps_fig8.json"):
        row = only(rows, order=entry["lam"], a=entry["a"])
        for column, name in columns.items():
            assert row[column] == pytest.approx(entry[name], abs=1e-5)


def test_figure_8_upper_bounds_are_above(quick_rows):
    for row in quick_rows[figure_8]:
        assert row["lower"] <= row["upper_own_divergences"]
        assert row["upper_best_exponents"] <= row["upper"] + 1e-12
        if row["example"] == figure_8.EVERY_ORDER:
            assert row["lower"] <= row["upper_best_exponents"]


def test_figure_8_one_pair_is_zcdp_at_every_order(quick_rows):
    row = select(quick_rows[figure_8], example=figure_8.EVERY_ORDER)[0]
    p, q = (np.exp(logs) for logs in figure_8.pair(row["a"], row["s"], row["t"]))
    assert p.sum() == pytest.approx(1) and q.sum() == pytest.approx(1)
    worst = 0.0
    for order in np.linspace(1.003, 80, 3000):
        for first, second in ((p, q), (q, p)):
            moment = np.sum(first**order * second ** (1 - order))
            worst = max(worst, np.log(moment) / (order - 1) / order)
    assert worst == pytest.approx(setting.RHO, abs=1e-4)
    assert worst <= setting.RHO + 1e-6


def test_figure_8_correction_below_order_two():
    """Proposition 15 as printed is false there: S everything, l = 1.5."""
    p, q = np.log([0.5, 0.5]), np.log([0.4, 0.6])
    order = 1.5
    exact = figure_8.divergence(order, p, q)
    backward = figure_8.divergence(order, q, p)  # Any positive number: D_{0.5} is not defined here.
    forward = figure_8.divergence(order, p, q)
    printed = forward + (order - 2) / (order - 1) * backward
    assert printed < exact
    assert figure_8.upper_bound(order, 1.0, 1.0, forward, backward) >= exact
    above = figure_8.upper_bound(3.0, 1.0, 1.0, forward, backward)
    assert above == pytest.approx(forward + backward / 2)


# ---- Appendices D.3 and D.4


def test_d3_examples_are_zcdp_and_their_winners_exact():
    """In 60 digits, from the committed masses and the laws' own generating functions."""
    rows = select(read_rows(COMMITTED / "figure_tightness.csv"), appendix="D.3")
    assert len(rows) == 20
    functions = {
        "geometric": lambda x: x / 10 / (1 - x * 9 / 10),
        "Poisson": lambda x: mpmath.exp(10 * (x - 1)),
    }
    with mpmath.workdps(60):
        for row in rows:
            assert row["lower"] < row["upper"]
            laws = []
            for names in (figure_tightness.MASSES[:3], figure_tightness.MASSES[3:]):
                masses = [mpmath.mpf(row[name]) for name in names]
                laws.append([mass / sum(masses) for mass in masses])

            def divergence(p, q, order):
                moment = sum(x**order * y ** (1 - order) for x, y in zip(p, q))
                return mpmath.log(moment) / (order - 1)

            for order in (1.01, 1.5, 2, 4.5, 10, 30, 100, 1000):
                both = divergence(*laws, order), divergence(*laws[::-1], order)
                assert max(both) <= 0.1 * order * 1.01
            if row["law"] in functions:
                f = functions[row["law"]]
                winners = [[f(0), 1 - f(1 - a), f(1 - a) - f(c), f(c) - f(0)] for a, _, c in laws]
                winners = [winner[f(0) == 0 :] for winner in winners]
                order = int(row["order"])
                both = divergence(*winners, order), divergence(*winners[::-1], order)
                assert float(max(both)) == pytest.approx(row["lower"], rel=1e-6)


def test_d4_chances_are_those_of_simulated_searches():
    """20,000 searches among 10 options (seed 0), within 5 standard errors; at no gap 1 in m."""
    generator, options, a, gap = np.random.default_rng(0), 10, 2.5, 6.0
    counts = generator.logseries(1 - options**-a, 20_000)
    owner = np.repeat(np.arange(counts.size), counts)
    best = generator.random(owner.size) < 1 / options
    scores = gap * best + generator.laplace(0.0, 2.0, owner.size)
    order = np.lexsort((scores, owner))
    found = best[order][np.cumsum(counts) - 1].mean()
    wanted = figure_tightness.chance(a, options, gap)
    assert abs(found - wanted) < 5 * math.sqrt(wanted * (1 - wanted) / counts.size)
    assert figure_tightness.chance(a, options, 0.0) == pytest.approx(0.1, rel=1e-4)
    rows = select(read_rows(COMMITTED / "figure_tightness.csv"), appendix="D.4")
    for row in rows:
        assert row["gap"] > row["gap_exponential"]
        chance = figure_tightness.chance(row["exponent"], row["options"], row["gap"])
        assert chance == pytest.approx(0.5, abs=1e-4)
