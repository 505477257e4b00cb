"""Runs of any function: what is drawn when, what is ranked, what leaves, what it costs."""

import concurrent.futures
import contextlib
import dataclasses
import io
import json
import multiprocessing
import pickle
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs_elsewhere import model_and_count

from dpjax import accounting, bridges, tuning
from dpjax.accounting import provenance
from dpjax.after_the_draw import AfterTheDrawWarning
from dpjax.bridges import selection as searches
from dpjax.bridges.runs import planned
from dpjax.bridges.selection import RunsWarning, Search, drawn
from dpjax.releases import release, verification
from dpjax.tuning import cautions
from dpjax.tuning.selection import BestOf

BASE = accounting.gaussian(2.0)
SPACE = tuning.Space(rate=tuning.Uniform(0.0, 1.0))
SCORE = bridges.CountedScore("disjoint", 100, noise=3.0)
LEAKY = accounting.dp_sgd(0.5, 1.0, 1, failure_probability=1e-6)
LAW = accounting.AtMost(accounting.Poisson(4), cap=8)


def _result(search, *, secret):
    return searches.result(
        search.procedure,
        search.outcome(),
        searches.ModelFile(),
        None,
        secret=secret,
        search=search,
        started=0.0,
    )


def _tune(run=model_and_count, space=SPACE, **changed):
    given = {"base": BASE, "score": SCORE, "repetitions": LAW, "seed": 1} | changed
    return bridges.tune(run, space, **given)


def _fed(noise, law=LAW, seed=1):
    """A search with a draw of so many candidates, in which the noise is replaced."""
    procedure = planned(
        bridges.Candidates.of(SPACE), base=BASE, score=SCORE, repetitions=law, delta=1e-5, model=""
    )
    draw = drawn(dataclasses.replace(procedure, choice=BestOf(accounting.Fixed(len(noise)))), seed)
    return Search(procedure, draw | {"noise": np.array(noise)})


@pytest.mark.parametrize(
    ("records", "priced"),
    [
        ("disjoint", lambda count: accounting.parallel(BASE, count)),
        ("training", lambda count: accounting.compose(BASE, count)),
        ("public", lambda count: BASE),
    ],
)
def test_the_price_is_that_of_run_and_count_selected_from(records, priced):
    score = bridges.CountedScore(records, 100, noise=None if records == "public" else 3.0)
    result = _tune(score=score)
    run = priced(accounting.discrete_gaussian(3.0, 1))
    assert result.run_guarantee.epsilon(1e-5) == run.epsilon(1e-5)
    assert result.guarantee.epsilon(1e-5) == accounting.best_of(run, LAW).epsilon(1e-5)
    assert result.release.statement["epsilon"] == result.guarantee.stated_epsilon(1e-5)


def test_noise_that_is_not_named_costs_what_is_promised():
    alone = accounting.best_of(BASE, LAW).epsilon(1e-5)
    assert _tune(score=bridges.CountedScore("disjoint", 100)).guarantee.epsilon(
        1e-5
    ) == pytest.approx(alone, rel=1e-6)
    result = _tune(score=bridges.CountedScore("training", 100))
    assert BASE.epsilon(1e-5) < result.run_guarantee.epsilon(1e-5) <= 1.01 * BASE.epsilon(1e-5)


def test_the_noisy_score_is_ranked_with_a_noise_of_each_candidates_own():
    search = _fed([-40, 0, -100])
    for index, count in enumerate([60, 50, 100]):
        search.report(index, search.candidate(index)[1], count)
    result = _result(search, secret=False)
    np.testing.assert_allclose(result.curator.scores, [0.2, 0.5, 0.0])
    np.testing.assert_allclose(result.curator.accuracies, [0.6, 0.5, 1.0])
    assert result.curator.winner == 1
    assert result.release.params == result.release.hyperparameters


@pytest.mark.parametrize("seed", [None, 1])
def test_each_candidate_has_a_noise_of_the_charged_size(seed):
    procedure = _fed([0]).procedure
    many = dataclasses.replace(procedure, choice=BestOf(accounting.Fixed(4000)))
    noise, again = (drawn(many, seed)["noise"] for _ in range(2))
    assert noise.shape == (4000,) and noise.std() == pytest.approx(3.0, rel=0.06)
    assert np.array_equal(noise, again) == (seed is not None)


def test_the_winner_has_the_law_of_the_best_of_k():
    """Runs that succeed with probability .3: the released one does as the law of K says."""
    law = accounting.Geometric(mean=3)
    procedure = planned(
        bridges.Candidates.of(SPACE),
        base=accounting.pure(1.0),
        score=bridges.CountedScore("public", 1),
        repetitions=law,
        delta=1e-5,
        model="",
    )
    runs, succeeded, source = 6000, 0, np.random.default_rng(1)
    for _ in range(runs):
        search = Search(procedure, drawn(procedure, None))
        for index in range(search.number):
            success = bool(source.random() < 0.3)
            search.report(index, success, int(success))
        search.outcome()  # Refused where a candidate is left.
        succeeded += search.model
    # Within 6 deviations, once in 5 * 10^8 runs beyond: not seeded, K is secret. A fixed K, and one
    # run more or fewer, are at least 14 away.
    wanted = float(law.success_probability(0.3))
    assert abs(succeeded / runs - wanted) < 6 * np.sqrt(wanted * (1 - wanted) / runs)
    assert abs(1 - 0.7**3 - wanted) > 10 * np.sqrt(wanted * (1 - wanted) / runs)


def test_everything_random_is_drawn_before_the_first_run(tmp_path):
    draw, found = tmp_path / "work" / "drawn.npz", []
    job = tuning.Job(folder=str(draw.parent))
    _tune(
        lambda seed, h: found.append(draw.read_bytes()) or (h, 1),
        repetitions=accounting.Fixed(3),
        job=job,
    )
    assert len(found) == 3 and len(set(found)) == 1
    arrays = np.load(io.BytesIO(found[0]))
    assert {name: len(arrays[name]) for name in ("noise", "hyperparameter_rate", "seeds")} == {
        "noise": 3, "hyperparameter_rate": 3, "seeds": 3,
    } and arrays["counts"] == [3]  # fmt: skip


def test_the_release_is_the_same_whatever_k_was(tmp_path):
    """The first candidate wins among 2 and among 7."""
    folders = []
    for number in (2, 7):
        search = _fed([50] + [0] * (number - 1))
        for index in search.left:
            rate = search.candidate(index)[1]["rate"]
            search.report(index, {"w": np.full(2, rate)}, 10)
        result = _result(search, secret=True)
        assert result.curator.number_of_candidates == number
        assert str(number) not in f"{result!r}{result.curator!r}".replace("e-05", "")[:30]
        folders.append(tmp_path / str(number))
        result.release.save(folders[-1])
    files = [{p.name: p.read_bytes() for p in folder.iterdir()} for folder in folders]
    assert files[0] == files[1] and len(files[0]) == 3


def test_a_run_that_raises_counts_ranks_worst_and_is_not_retried():
    seeds = []

    def run(seed, hyperparameters):
        seeds.append(seed)
        if len(seeds) == 2:
            raise ArithmeticError("record 17 is odd")
        return hyperparameters, 50

    with pytest.warns(RunsWarning, match="for the curator") as warned:
        result = _tune(run, repetitions=accounting.Fixed(4), on_outcome=(seen := []).append)
    published = json.dumps(result.release.statement)
    assert not any("odd" in str(one.message) for one in warned) and "odd" not in published
    assert len(set(seeds)) == 4 and [one.candidate for one in seen] == [0, 1, 2, 3]
    assert [one.failed for one in seen] == [False, True, False, False]
    assert result.curator.details["remarks"] == {
        "1": "ranked worst: it raised ArithmeticError: record 17 is odd"
    }
    assert (
        result.curator.winner != 1 and repr(seen[0]) == "Outcome(not private: for the curator only)"
    )


@pytest.mark.filterwarnings("ignore:no run could be released")
def test_where_all_runs_fail_the_kind_of_error_is_named_and_its_text_is_not():
    def slips(seed, hyperparameters):
        raise KeyError("record 17: odd")

    for run, kind in (
        (slips, "it raised KeyError;"),
        (lambda seed, h: h + 1, "it raised TypeError;"),
        (lambda seed, h: 3, r"it returned no pair \(model, count\);"),
        (lambda seed, h: (h, None), "it returned no number of correct predictions;"),
    ):
        pattern = f"all runs failed and the whole epsilon is spent; of the first: {kind}"
        with pytest.warns(RunsWarning, match=pattern) as warned:
            result = _tune(run, repetitions=accounting.Fixed(3))
        (line,) = [str(one.message) for one in warned if one.category is RunsWarning]
        assert "odd" not in line and "\n" not in line and "3" not in line
        assert len(result.curator.details["remarks"]) == 3


@pytest.mark.parametrize("model", [object(), {"w": object()}, "text", {"w": np.array([None])}])
def test_a_model_that_cannot_be_written_is_refused_when_the_first_one_is_returned(model):
    ran = []

    def run(seed, hyperparameters):
        ran.append(seed)
        return model, 1

    with pytest.raises(ValueError, match="is not a pytree of arrays: pass save_model") as raised:
        _tune(run, repetitions=accounting.Fixed(3))
    assert len(ran) == 1 and "\n" not in str(raised.value)
    # The default is looked at before any run.
    with pytest.raises(ValueError, match="is not a pytree of arrays: pass save_model"):
        _tune(run, default=model)
    assert len(ran) == 1


def test_a_report_that_was_refused_leaves_its_candidate_to_be_reported():
    procedure = planned(
        bridges.Candidates.of(SPACE),
        base=BASE,
        score=SCORE,
        repetitions=accounting.Fixed(2),
        delta=1e-5,
        model="",
    )
    search = Search(procedure, drawn(procedure, 1))
    with pytest.raises(ValueError, match="pass save_model"):
        search.report(0, object(), 100)
    assert search.left == [0, 1]
    assert search.report(1, {"w": np.ones(2)}, 1).count == 1
    with pytest.raises(ValueError, match="candidates are left"):
        search.outcome()
    assert search.failed(0, "no model").failed and search.left == []
    with pytest.warns(RunsWarning, match="some runs raised"):
        assert _result(search, secret=False).curator.winner == 1


def test_no_candidate_releases_the_default():
    """Poisson's K is 0 with a chance of 1 / e, with this seed among others."""

    def never(seed, hyperparameters):
        pytest.fail("no run may be begun")

    default = {"w": np.zeros(1)}
    with pytest.warns(cautions.UntrainedReleaseWarning):
        result = _tune(never, repetitions=accounting.Poisson(1), default=default, seed=1)
    assert result.curator.number_of_candidates == 0 and result.release.params is default
    assert set(result.release.hyperparameters.values()) == {None}


@pytest.mark.filterwarnings("ignore::dpjax.bridges.selection.RunsWarning")
def test_without_a_winner_the_default_is_released(tmp_path):
    def run(seed, hyperparameters):
        raise ValueError

    for changed, default in (({"run": run}, {"w": np.zeros(2)}), ({"run": run}, None)):
        with pytest.warns(cautions.UntrainedReleaseWarning):
            result = _tune(**changed, default=default, repetitions=accounting.Fixed(2))
        assert result.release.params is default
        assert result.release.hyperparameters == {"rate": None}
        result.release.save(folder := tmp_path / str(default is None))
        assert (folder / "model.msgpack").exists() == (default is not None)
        assert verification.verify_release(str(folder / "guarantee.json")).epsilon > 0


@pytest.mark.parametrize(
    ("given", "counted"),
    [
        (37, 37),
        (np.int64(37), 37),
        (jnp.int32(37), 37),
        (np.array(37.0), 37),
        (37.9, 37),
        (101, 100),
        (10**400, 100),
        (float("inf"), 100),
        (-3, 0),
        (-0.5, 0),
        (float("nan"), None),
        (None, None),
        (True, None),
        (np.bool_(True), None),
        (jnp.array(True), None),
        ("37", None),
        (np.arange(2), None),
    ],
)
def test_a_count_is_a_whole_number_of_records_or_ranks_worst(given, counted):
    count, remark = SCORE.counted(given)
    assert count == counted
    assert (remark is None) == (counted is not None and given == counted)


def test_an_accuracy_in_the_place_of_a_count_is_named():
    count, remark = SCORE.counted(0.91)
    assert count == 0 and "it returned a fraction" in remark


def test_counts_that_differ_by_one_differ_by_one_at_most_when_ranked():
    for low in np.concatenate([np.linspace(-2.5, 2.5, 23), np.linspace(97.5, 102.5, 23)]):
        assert abs(SCORE.counted(low + 1.0)[0] - SCORE.counted(low)[0]) <= 1


@pytest.mark.parametrize("returned", [None, 5, (1, 2, 3), [1, 2]])
def test_what_is_no_pair_ranks_worst(returned):
    with pytest.warns(RunsWarning), pytest.warns(cautions.UntrainedReleaseWarning):
        result = _tune(lambda seed, h: returned, repetitions=accounting.Fixed(1))
    assert "no pair" in result.curator.details["remarks"]["0"]


class _Backwards(concurrent.futures.Executor):
    """Ends the last candidate first."""

    def __init__(self, error=None):
        self.waiting, self.error = [], error

    def submit(self, function, /, *arguments):
        future = concurrent.futures.Future()
        self.waiting.append((future, function, arguments))
        if len(self.waiting) == 5:
            for one, function, arguments in reversed(self.waiting):
                if self.error is None:
                    one.set_result(function(*arguments))
                else:
                    one.set_exception(self.error)
        return future


def test_the_order_of_completion_and_the_place_change_nothing():
    law = accounting.Fixed(5)
    context = multiprocessing.get_context("spawn")
    plain = _tune(repetitions=law)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        for executor in (_Backwards(), pool):
            result = _tune(repetitions=law, executor=executor)
            assert result.release.params == plain.release.params
            np.testing.assert_array_equal(result.curator.scores, plain.curator.scores)


@pytest.mark.parametrize("ends", [lambda: None, lambda: _Backwards()])
def test_the_earlier_of_equals_wins_whichever_ended_first(ends):
    result = _tune(
        lambda seed, h: (h, 7),
        repetitions=accounting.Fixed(5),
        executor=ends(),
        score=bridges.CountedScore("public", 100),  # Without noise.
    )
    assert result.curator.winner == 0
    assert result.release.params == result.release.hyperparameters


def test_a_pool_that_died_releases_nothing():
    died = concurrent.futures.BrokenExecutor("memory")
    with pytest.raises(RuntimeError, match="nothing is released") as raised:
        _tune(repetitions=accounting.Fixed(5), executor=_Backwards(died))
    assert "5" not in str(raised.value)
    # What could not be pickled is one candidate's failure.
    with pytest.warns(RunsWarning), pytest.warns(cautions.UntrainedReleaseWarning):
        _tune(repetitions=accounting.Fixed(5), executor=_Backwards(pickle.PicklingError("lambda")))


@pytest.mark.parametrize("ends", [lambda: None, lambda: _Backwards()])
def test_a_run_that_contradicts_what_is_declared_releases_nothing(ends):
    outcomes = []

    def run(seed, hyperparameters):
        raise bridges.ContradictionError("it took a step more than is charged: charge it")

    with pytest.raises(RuntimeError, match="a step more than is charged"):
        _tune(run, repetitions=accounting.Fixed(5), executor=ends(), on_outcome=outcomes.append)
    assert not outcomes


def test_what_is_drawn_is_secret_and_seeds_make_whole_keys():
    """Without a seed nothing is drawn twice: not K, no candidate, no seed of a run."""
    seeds, rates, numbers = [], [], []
    for _ in range(4):
        run = lambda seed, h: seeds.append(seed) or rates.append(h["rate"]) or (h, 1)  # noqa: E731
        result = _tune(run, repetitions=accounting.Geometric(100), seed=None)
        numbers.append(result.curator.number_of_candidates)
    assert len(set(seeds)) == len(set(rates)) == sum(numbers) and len(set(numbers)) > 1
    assert 2**40 < max(seeds) < 2**63
    first, second = (jax.random.key_data(bridges.jax_key(s)) for s in (5, 5 + 2**40))
    assert not np.array_equal(first, second)


def test_labels_are_read_released_and_verified(tmp_path):
    space = bridges.Candidates(SPACE, {"optimizer": ["sgd", "adam", None, True]})
    seen = []
    result = _tune(lambda seed, h: seen.append(h["optimizer"]) or ({"w": 1.0}, 1), space=space,
                   repetitions=accounting.Fixed(12))  # fmt: skip
    assert set(seen) <= {"sgd", "adam", None, True} and len(set(seen)) > 1
    result.release.save(tmp_path / "release")
    assert verification.verify_release(str(tmp_path / "release" / "guarantee.json")).secret is False
    assert space.may_be({"rate": 0.5, "optimizer": "adam"})
    assert not space.may_be({"rate": 0.5, "optimizer": "lion"})
    assert not space.may_be({"rate": 0.5, "optimizer": 1})
    assert not space.may_be({"rate": 2.0, "optimizer": "adam"})
    assert not space.may_be({"rate": 0.5})


def test_the_statement_says_what_is_not_proven_and_edits_are_refused(tmp_path):
    result = _tune(lambda seed, h: ({"w": np.ones(2)}, 1))
    result.release.save(tmp_path / "release")
    claim = result.release.statement
    assert "NOT proven here" in claim["one_run"]["guarantee_is"]
    for place, value in (
        (("one_run", "epsilon"), 0.1),
        (("one_run", "guarantee_is"), "proven"),
        (("one_run", "mechanism", "parameters", "noise_multiplier"), 4.0),
        (("score", "records"), "public"),
        (("score", "noise_standard_deviation_in_records"), 9.0),
        (("selection", "law_of_K", "cap"), 3),
        (("epsilon",), 0.1),
        (("randomness", "secret"), True),
    ):
        edited = json.loads(json.dumps(claim))
        at = edited
        for name in place[:-1]:
            at = at[name]
        at[place[-1]] = value
        rebuilt = verification.rebuilt(edited)
        assert rebuilt.statement != edited, place


@pytest.mark.parametrize("name", provenance.REMOVED)
def test_a_mechanism_that_an_older_version_priced_is_refused_in_one_line(name, tmp_path):
    result = _tune(lambda seed, h: ({"w": np.ones(2)}, 1))
    result.release.save(tmp_path / "release")
    path = tmp_path / "release" / "guarantee.json"
    claim = json.loads(path.read_text())
    claim["one_run"]["mechanism"] = {"mechanism": name, "parameters": {}, "parts": []}
    hashes = claim[release.SEAL]
    del hashes[release.THIS_STATEMENT]
    hashes[release.THIS_STATEMENT] = release.sha256(release.json_bytes(claim))
    path.write_text(json.dumps(claim))
    priced = f"{name!r} was last priced by version {provenance.REMOVED[name]}: use that version"
    with pytest.raises(verification.NotVerified, match=priced) as refused:
        verification.verify_release(str(path))
    assert "\n" not in str(refused.value)


def test_a_model_of_any_kind_has_its_own_file(tmp_path):
    with open(tmp_path / "writes", "w") as log:

        def save(model, path):
            log.write("x")
            with open(path, "w") as file:
                file.write(model)

        def run(seed, hyperparameters):
            return "a model", 1

        result = _tune(run, save_model=save, model_file="model.txt")
        result.release.save(tmp_path / "release")
    assert set((tmp_path / "writes").read_text()) == {"x"}  # Once for each best so far.
    assert (tmp_path / "release" / "model.txt").read_text() == "a model"
    verification.verify_release(str(tmp_path / "release" / "guarantee.json"))
    with pytest.raises(ValueError, match="pass save_model"):
        _tune(run)


LABELLED = tuning.Space(o=tuning.Choice([0, 2]))
WRITES = {"save_model": lambda model, path: None}
REFUSED = {
    "run must be a function": lambda: _tune(3),
    # Nobody says what a run costs, and which records are counted, unless asked.
    "pass base=, the guarantee of one run, such as": lambda: _tune(base=None),
    "pass score=, which records are counted, such as": lambda: _tune(score=None),
    "base must be a Guarantee": lambda: _tune(base=1.0),
    "score must be a CountedScore": lambda: _tune(score=0.9),
    "repetitions must be a RepetitionLaw": lambda: _tune(repetitions=10),
    "delta must be in": lambda: _tune(delta=0),
    "space must be a Space": lambda: _tune(space={"rate": 0.1}),
    "on_outcome must be a function": lambda: _tune(on_outcome=1),
    "has no submit: pass a pool": lambda: _tune(executor="threads"),
    "model must be text": lambda: _tune(model=None),
    "no epsilon holds at delta 1e-09": lambda: _tune(delta=1e-9, base=LEAKY),
    "pass one of .*disjoint": lambda: bridges.CountedScore("private", 100),
    "without noise: drop noise": lambda: bridges.CountedScore("public", 100, noise=1.0),
    "all places 0 to 1": lambda: bridges.Candidates(LABELLED, {"o": ["a", "b"]}),
    "nothing to draw: pass space, such as": lambda: bridges.Candidates(None, {}),
    "a label of o must be": lambda: bridges.Candidates(None, {"o": [object()]}),
    "below 2.63": lambda: bridges.jax_key(2**63),
    "wrote no file": lambda: _tune(lambda seed, h: ("a model", 1), **WRITES),
    "has no writer: pass save_model": lambda: _tune(model_file="model.txt"),
    "'guarantee.json': pass a file's": lambda: _tune(**WRITES, model_file="guarantee.json"),
    "'certificate.json': pass a file's": lambda: _tune(**WRITES, model_file="certificate.json"),
    "'a/b': pass a file's name": lambda: _tune(**WRITES, model_file="a/b"),
    "'..': pass a file's name": lambda: _tune(**WRITES, model_file=".."),
}


@pytest.mark.parametrize("line", REFUSED)
def test_bad_arguments_are_refused_in_one_line(line):
    with pytest.raises(ValueError, match=line) as raised:
        REFUSED[line]()
    assert "\n" not in str(raised.value)


def test_which_records_are_counted_has_no_default():
    with pytest.raises(TypeError, match="records"):
        bridges.CountedScore(public_size=100)


def test_the_command_line_verifies_it(tmp_path, request):
    _tune(lambda seed, h: ({"w": np.ones(2)}, 1)).release.save(tmp_path / "release")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "experiments.epsilon",
            f"--verify={tmp_path}/release/guarantee.json",
        ],
        cwd=request.config.rootpath,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "the claim holds" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    "missing", [lambda h: h["lr"], lambda h: [h[name] for name in ("rate", "lr")]]
)
def test_a_name_that_is_not_drawn_ends_the_tuning_in_the_first_run(missing, tmp_path):
    ran = []

    def run(seed, h):
        ran.append(seed)
        missing(h)
        return {"w": np.zeros(2)}, 1

    with pytest.raises(bridges.ContradictionError, match="reads the hyperparameter 'lr'.*rate"):
        _tune(run, repetitions=accounting.Fixed(5))
    assert len(ran) == 1


def test_a_name_that_may_be_missing_is_read_as_of_any_dictionary():
    def run(seed, h):
        with contextlib.suppress(KeyError):
            h["lr"]
        assert h.get("lr") is None and "lr" not in h and isinstance(h, dict)
        return h, 1

    result = _tune(run, repetitions=accounting.Fixed(2))
    assert set(result.release.params) == {"rate"} and not result.curator.details["remarks"]


@pytest.mark.parametrize("run", [lambda seed: (1, 1), lambda: (1, 1), lambda s, h, data: (1, 1)])
def test_a_run_of_other_arguments_is_refused_before_the_draw(run):
    with pytest.raises(ValueError, match=r"pass a function of \(seed, hyperparameters\)"):
        _tune(run)


def test_a_callback_that_raises_costs_no_release():
    def on_outcome(outcome):
        raise ConnectionError("the tracking server is down")

    with pytest.warns(AfterTheDrawWarning, match="on_outcome failed .ConnectionError"):
        result = _tune(lambda seed, h: (h, 1), on_outcome=on_outcome)
    assert result.release.params
