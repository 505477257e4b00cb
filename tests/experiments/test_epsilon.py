"""What tuning costs, from the command line."""

import json
import pathlib

import pytest
from processes import python

from dpjax import accounting

ROOT = pathlib.Path(__file__).parents[2]
MNIST = ["--sampling_probability=0.00426666666666667", "--noise_multiplier=1.1", "--steps=14062"]


def _prices(run_cases, *cases):
    """The epsilons of several command lines."""
    prices = []
    results = run_cases("experiments.epsilon", [["--json", *arguments] for arguments in cases])
    for code, printed, errors in results:
        assert code == 0, errors
        prices.append(json.loads(printed)["epsilon"])
    return prices


def test_the_papers_mnist_run_answered_cold():
    done = python(
        "-X", "importtime", "-m", "experiments.epsilon", "--json", "--cap=0", *MNIST, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    prices = json.loads(done.stdout)["epsilon"]
    assert prices["one_run"] == pytest.approx(2.39, abs=1e-2)
    assert prices["whole_tuning"] == pytest.approx(3.5487, abs=1e-3)
    assert prices["papers_bound"] == pytest.approx(5.049, abs=1e-3)
    assert prices["naive_composition_at_mean"] > 8
    names = (line.rpartition("|")[2].strip() for line in done.stderr.splitlines())
    imported = {name.split(".")[0] for name in names}
    assert "scipy" in imported
    assert not imported & {
        "dp_accounting",
        *("jax", "flax", "optax", "orbax", "matplotlib", "sklearn"),
        *("tensorflow_datasets", "PIL", "flwr"),
    }


def test_a_table_is_printed_and_a_plot_is_drawn(run_cases, tmp_path):
    plot = tmp_path / "cost.png"
    ((code, printed, errors),) = run_cases(
        "experiments.epsilon", [["--rho=0.1", "--delta=1e-6", f"--plot={plot}"]]
    )
    assert code == 0, errors
    # A law drawn in secret is not what someone did who ran ten of their own choosing.
    assert "mean 9.92" in printed and "--repetitions=adaptive" in printed
    assert "naive composition" in printed and plot.stat().st_size > 5000
    assert list(tmp_path.iterdir()) == [plot]  # And no other form of it.


def test_what_the_whole_allows_and_a_large_delta(run_cases):
    run = ["--rho=0.005", "--repetitions=adaptive", "--mean=1"]
    lots = ["--dataset_size=2000", "--lot_size=100", "--noise_multiplier=2", "--steps=50"]
    (_, one, _), (_, shown, _), (_, fixed, _), (_, small, _), (_, capped, _) = run_cases(
        "experiments.epsilon",
        [
            [*run, "--json"],
            [*run, "--delta=0.01"],
            [*lots, "--json", "--cap=0", "--delta=0.0006"],
            [*lots, "--json", "--cap=0", "--delta=0.0004"],
            ["--rho=0.005", "--json", "--repetitions=logarithmic", "--mean=50"],
        ],
    )
    found, base = json.loads(one)["whole_tuning_allows"], accounting.zcdp(0.005)
    assert found["attack_success"]["0.01"] == float(base.attack_success(0.01))
    assert found["group_epsilon"]["2"] == base.group_epsilon(2, 1e-5)
    assert found["replace_one_epsilon"] == accounting.replace_one(base).epsilon(1e-5)
    assert "caution" not in json.loads(one) and "true positive rate" in shown
    assert "CAUTION: delta 0.01 is large: it allows publishing one record in 100" in shown
    # Without being asked, the cap makes another law of it.
    assert "its mean is 12.6, not 50: pass --cap=0" in json.loads(capped)["caution"]
    # The number of records is known there, and a replaced record is what is priced.
    assert "above 1/2000" in json.loads(fixed)["caution"] and "caution" not in json.loads(small)
    assert "replace_one_epsilon" not in json.loads(fixed)["whole_tuning_allows"]


def test_retraining_the_score_and_a_renyi_curve_of_your_own(run_cases, tmp_path):
    path = tmp_path / "curve.csv"
    orders = [1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128]
    path.write_text("order,epsilon\n" + "\n".join(f"{a},{0.1 * a}" for a in orders))
    common = ["--delta=1e-6", "--cap=0"]
    plain, retrained, scored, mine = _prices(
        run_cases,
        ["--rho=0.1", *common],
        ["--rho=0.1", *common, "--retrain"],
        ["--rho=0.1", *common, "--score_noise=1.0"],
        [f"--rdp_csv={path}", *common],
    )
    assert retrained["whole_tuning"] > plain["whole_tuning"] + 0.3
    assert scored["whole_tuning"] > plain["whole_tuning"] + 0.3
    # Less is known between the orders, so the bound may only grow, and grows little.
    assert plain["whole_tuning"] - 1e-3 <= mine["whole_tuning"] <= 1.1 * plain["whole_tuning"]


def test_a_curve_as_spreadsheets_write_it(run_cases, tmp_path):
    """A byte order mark, capitals, spaces and lines in another order; and its own relation."""
    path = tmp_path / "curve.csv"
    path.write_bytes(b"\xef\xbb\xbfOrder, Epsilon\n8,.8\n2,.2\n4,.4\n")
    plain = tmp_path / "plain.csv"
    plain.write_text("order,epsilon\n2,.2\n4,.4\n8,.8\n")
    cases = [
        ["--json", f"--rdp_csv={file}", "--delta=1e-3", "--neighbouring_relation=replace_one"]
        for file in (path, plain)
    ]
    (_, first, _), (_, second, _) = run_cases("experiments.epsilon", cases)
    assert json.loads(first) == json.loads(second)
    assert json.loads(first)["neighbouring_relation"] == "replace_one"


def test_a_statement_that_lacks_a_part_is_not_verified(run_cases, tmp_path):
    """Its epsilon alone is that of its mechanism: that is no release."""
    guarantee = accounting.best_of(
        accounting.gaussian(noise_multiplier=2.0), accounting.Geometric(mean=5)
    )
    claim = {
        "private": True,
        "epsilon": guarantee.epsilon(1e-5),
        "delta": 1e-5,
        "neighbouring_relation": guarantee.relation,
        "mechanism": guarantee.provenance,
        "randomness": {"secret": True},
    }
    path = tmp_path / "guarantee.json"
    path.write_text(json.dumps(claim))
    ((code, printed, _),) = run_cases("experiments.epsilon", [[f"--verify={path}"]])
    assert code == 1 and "NOT VERIFIED: it lacks sha256" in printed


def test_runs_on_a_secret_part_and_a_final_run_on_the_rest_or_on_all(run_cases):
    common = ["--rho=0.1", "--mean=10", "--cap=0", "--probability=0.2"]
    base, law = accounting.zcdp(0.1), accounting.Geometric(mean=10)
    rest, everything, scored, adaptive = _prices(
        run_cases,
        common,
        [*common, "--final_on=all"],
        [*common, "--score_noise=1"],
        ["--rho=0.1", "--mean=10", "--repetitions=adaptive", "--probability=0.2"],
    )
    best, part = accounting.best_of(base, law), dict(probability=0.2)
    assert rest["whole_tuning"] == accounting.split(best, base, **part).epsilon(1e-5)
    of_all = accounting.split(best, base, final_on="all", **part)
    assert everything["whole_tuning"] == of_all.epsilon(1e-5) > rest["whole_tuning"]
    papers = accounting.split(accounting.best_of(base, law, method="rdp"), base, **part)
    assert rest["papers_bound"] == papers.epsilon(1e-5, method="rdp") > rest["whole_tuning"]
    assert rest["naive_composition_at_mean"] == accounting.repeat(base, 11).epsilon(1e-5)
    # A record that is scored is in no part: nothing hides it.
    count = accounting.best_of(accounting.discrete_gaussian(1.0), law)
    assert scored["whole_tuning"] == pytest.approx(count.epsilon(1e-5), rel=1e-3)
    assert scored["whole_tuning"] > 2 * rest["whole_tuning"]
    any_way = accounting.split(accounting.repeat(base, 10), base, **part)
    assert adaptive["whole_tuning"] == any_way.epsilon(1e-5)
    shown = run_cases("experiments.epsilon", [[*common, "--json"], common])
    assert json.loads(shown[0][1])["probability"] == 0.2
    assert json.loads(shown[0][1])["final_on"] == "rest"
    assert "on a secret part of the records" in " ".join(shown[1][1].split())


def test_runs_chosen_in_any_way_are_composed(run_cases):
    """Of 20 runs: neither a law of K nor independent draws are needed."""
    base, common = accounting.zcdp(0.01), ["--rho=0.01", "--mean=20"]
    adaptive, retrained, drawn = _prices(
        run_cases,
        [*common, "--repetitions=adaptive"],
        [*common, "--repetitions=adaptive", "--retrain"],
        common,
    )
    composed = accounting.repeat(base, 20).epsilon(1e-5)
    assert adaptive["whole_tuning"] == adaptive["naive_composition_at_mean"] == composed
    assert adaptive["papers_bound"] is None
    assert retrained["whole_tuning"] == accounting.repeat(base, 21).epsilon(1e-5)
    assert drawn["whole_tuning"] < 0.5 * composed
    shown = run_cases(
        "experiments.epsilon",
        [[*common, "--repetitions=adaptive"], [*common, "--repetitions=fixed"]],
    )
    assert "at most 20 runs, each chosen in any way" in " ".join(shown[0][1].split())
    # A law of K is needed for the other two rows.
    assert all(row in shown[1][1] for row in ("Renyi", "naive composition at the mean of K"))
    assert not any(row in shown[0][1] for row in ("Renyi", "the mean of K", "no such bound"))
    # The help is the text of these two.
    help_in = ("dpjax/commands/law_flags.py", "dpjax/commands/price.py")
    pages = ("README.md", "docs/should_i_tune.md", "docs/sharp_edges.md", *help_in)
    texts = [(ROOT / name).read_text() for name in pages]
    for words in (shown[1][1], *texts):
        for other in ("Optuna", "pruning", "stopping when", "adaptive", "independent"):
            assert other in " ".join(words.split()), (other, words[:80])


def test_one_runs_epsilon_and_delta_are_all_that_is_known(run_cases):
    """Prices are at a larger delta: of ten runs each may reveal everything with its own."""
    common = ["--json", "--epsilon=1", "--delta=1e-7", "--mean=10", "--cap=0"]
    results = run_cases(
        "experiments.epsilon",
        [common, [*common, "--total_delta=1e-5"]],
    )
    plain, later = (json.loads(printed) for _, printed, _ in results)
    base, law = accounting.approximate(1.0, 1e-7), accounting.Geometric(mean=10)
    assert plain["delta"] == pytest.approx(2.2e-6)
    # Corollary 3's for what does not fail, (2 + eta) epsilon: Lemma 20.
    assert plain["epsilon"]["whole_tuning"] < plain["epsilon"]["papers_bound"] < 3.0001
    for found in (plain, later):
        best = accounting.best_of(base, law).epsilon(found["delta"])
        assert found["epsilon"]["whole_tuning"] == best
    assert later["delta"] == 1e-5 and best > 1.0


REFUSED = [
    (["--epsilon=1", "--rho=1"], "exactly one of"),
    (
        ["--sampling_probability=256", "--noise_multiplier=1", "--steps=100"],
        "--sampling_probability=256: pass a number in (0, 1], the share of the records in a lot",
    ),
    (["--epsilon=-1"], "--epsilon must be finite and >= 0"),
    (["--epsilon=1", "--total_delta=1e-9"], "--total_delta=1e-09: pass a number above --delta"),
    (["--epsilon=1", "--delta=0.2"], "of each of 10 runs leaves nothing to state"),
    (["--rho=0.1", "--total_delta=0.1"], "--total_delta belongs to --epsilon"),
    ([], "exactly one of"),
    (["--rho=0.1", "--pure_epsilon=1"], "exactly one of"),
    (["--sampling_probability=0.1"], "--noise_multiplier and --steps"),
    (["--sampling_probability=0.1", "--steps=9", "--noise_multiplier=1e-30"], "protects nothing"),
    (["--sampling_probability=0.1", "--steps=9", "--noise_multiplier=1e-12"], "protects nothing"),
    (["--sampling_probability=0.1", "--steps=10000000", "--noise_multiplier=0.01"], "fewer steps"),
    (["--sampling_probability=0.1", "--steps=1000000000", "--noise_multiplier=1"], "at most 1e+07"),
    (["--rho=0.1", "--delta=1"], "--delta"),
    (["--rho=0.1", "--repetitions=truncated_negative_binomial", "--shape=-1"], "shape"),
    (["--rho=0.1", "--mean=0.5"], "mean"),
    (["--rdp_csv=/nowhere.csv"], "nowhere"),
    (["--rdp_csv=pyproject.toml"], "order,epsilon"),
    (["--verify=README.md"], "is not a guarantee.json: it is not JSON; pass that of a release\n"),
    (["--rho=0.1", "--score_noise=-1"], "--score_noise must be finite and > 0"),
    (["--rho=-1"], "--rho must be finite and > 0"),
    (["--rho=0.1", "--plot=cost.gif"], ".png"),
    (["--rho=0.1", "--probability=1.5"], "--probability must be in (0, 1)"),
    (["--rho=0.1", "--probability=0.2", "--retrain"], "drop --retrain"),
    (["--rho=0.1", "--final_on=all"], "pass --probability beside"),
    (
        ["--rho=0.1", "--probability=0.2", "--neighbouring_relation=replace_one"],
        "--probability has no price under replace_one",
    ),
    (["--rho=0.1", "--plot=/nowhere/cost.png"], "no such folder"),
    (["--rho=0.1", "--steps=50"], "--steps is not read with --rho"),
    (["--rho=0.1", "--shape=3"], "--repetitions=truncated_negative_binomial"),
    (["--rho=0.1", "--repetitions=fixed", "--trials=50"], "the number of runs as --mean"),
    (["--rho=0.1", "--repetitions=binomial", "--trials=0"], "trials must be a whole number"),
    (["--rho=0.1", "--repetitions=adaptive", "--mean=2.5"], "a whole number"),
    (["--rho=0.1", "--repetitions=adaptive", "--mean=0"], "a whole number"),
    (["--rho=0.1", "--repetitions=adaptive", "--cap=5"], "has no --cap"),
    (["--rho=0.1", "--mean=50", "--cap=10"], "above --cap=10"),
    (["--rho=0.1", "--mean=100"], "above --cap=64"),
    (["--rho=0.1", "--mean=1e12", "--cap=0"], "at most 1e+06"),
    (["--rho=0.1", "--cap=-1"], "0 for no cap"),
    (["--verify=/nowhere.json"], "cannot be read"),
    (["--verify=docs"], "docs holds no release: pass a run's folder, or its guarantee.json"),
]


def test_bad_input_is_one_line_and_exit_code_2(run_cases):
    results = run_cases("experiments.epsilon", [arguments for arguments, _ in REFUSED])
    for (arguments, message), (code, _, errors) in zip(REFUSED, results):
        assert code == 2 and errors.count("error: ") == 1, arguments
        assert message in errors and len(errors.splitlines()) == 1, arguments
