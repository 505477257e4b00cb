"""A job's folder: what an interrupted selection goes on with, and what it never does twice."""

import concurrent.futures
import functools
import os
import stat
import subprocess
import sys
import threading

import numpy as np
import pytest
from runs_elsewhere import killed_at_the_third, model_and_count

from dpjax import accounting, bridges, tuning
from dpjax.bridges.any_run import code
from dpjax.bridges.selection import RunsWarning
from dpjax.tuning import Job, cautions
from dpjax.tuning.job import read_arrays

FIVE = accounting.Fixed(5)
GIVEN = {
    "base": accounting.gaussian(2.0),
    "score": bridges.CountedScore("disjoint", 100, noise=3.0),
    "repetitions": FIVE,
    "seed": 1,
}
SPACE = tuning.Space(rate=tuning.Uniform(0.0, 1.0))


class _Interrupted:
    """`model_and_count`, interrupted at one call; notes the seeds it is called with."""

    def __init__(self, at=None, raises=()):
        self.at, self.raises, self.seeds = at, raises, []

    def __call__(self, seed, hyperparameters):
        self.seeds.append(seed)
        if len(self.seeds) == self.at:
            raise KeyboardInterrupt
        if len(self.seeds) in self.raises:
            raise ArithmeticError("no luck")
        return model_and_count(seed, hyperparameters)


def _tune(run, folder, **changed):
    job = None if folder is None else Job(folder=str(folder))
    return bridges.tune(run, SPACE, **(GIVEN | {"job": job} | changed))


def _released(result, folder):
    result.release.save(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# The winner ran after the interruption, then before it.
@pytest.mark.parametrize(("at", "seed", "winner"), [(1, 1, 4), (3, 2, 0), (5, 5, 3)])
def test_an_interrupted_selection_releases_what_it_would_have(tmp_path, at, seed, winner):
    whole = _tune(model_and_count, None, seed=seed)
    plain = _released(whole, tmp_path / "plain")
    assert whole.curator.winner == winner and "model.msgpack" in plain
    first, second = _Interrupted(at), _Interrupted()
    with pytest.raises(KeyboardInterrupt):
        _tune(first, tmp_path / "work", seed=seed)
    seen = []
    result = _tune(second, tmp_path / "work", seed=seed, on_outcome=seen.append)
    # What was under way runs again with its own seed, what had ended does not.
    assert first.seeds[:-1] + second.seeds == [*dict.fromkeys(first.seeds + second.seeds)]
    assert second.seeds[0] == first.seeds[-1] and len(second.seeds) == 6 - at
    assert [one.candidate for one in seen] == list(range(at - 1, 5))
    assert _released(result, tmp_path / "release") == plain
    np.testing.assert_array_equal(result.curator.scores, whole.curator.scores)
    np.testing.assert_array_equal(result.curator.accuracies, whole.curator.accuracies)
    assert result.curator.winner == winner


def test_a_killed_process_is_followed_by_one_that_goes_on(tmp_path, monkeypatch, request):
    monkeypatch.setenv("RUNS_SO_FAR", str(runs := tmp_path / "runs"))
    program = (
        "from runs_elsewhere import killed_at_the_third as run\n"
        "from dpjax import accounting, bridges, tuning\n"
        "bridges.tune(run, tuning.Space(rate=tuning.Uniform(0.0, 1.0)),\n"
        "    base=accounting.gaussian(2.0), repetitions=accounting.Fixed(5),\n"
        "    score=bridges.CountedScore('disjoint', 100, noise=3.0),\n"
        f"    job=tuning.Job(folder={str(tmp_path / 'work')!r}))"
    )
    root = str(request.config.rootpath)
    found = {**os.environ, "PYTHONPATH": os.pathsep.join([root, f"{root}/tests/helpers"])}
    done = subprocess.run([sys.executable, "-c", program], env=found, capture_output=True)
    assert done.returncode == 9, done.stderr
    drawn = (tmp_path / "work" / "drawn.npz").read_bytes()
    kept_files = sorted(path.name for path in (tmp_path / "work").glob("ended_*"))
    assert kept_files == ["ended_0.npz", "ended_1.npz"]
    during = []

    def look(outcome):
        during.append((tmp_path / "work" / "drawn.npz").read_bytes())

    result = _tune(killed_at_the_third, tmp_path / "work", seed=None, on_outcome=look)
    assert during == [drawn] * 3  # Without a seed, nothing could be drawn the same again.
    (tmp_path / "drawn.npz").write_bytes(drawn)
    noise = read_arrays(str(tmp_path / "drawn.npz"), "")["noise"]
    with_noise = 100 * (result.curator.scores - result.curator.accuracies)
    np.testing.assert_allclose(with_noise, noise, atol=1e-9)
    seeds = runs.read_text().split()
    assert len(seeds) == 6 and seeds[2] == seeds[3] and len(set(seeds)) == 5
    assert result.curator.number_of_candidates == 5


def test_what_failed_is_not_tried_again_and_stays_worst(tmp_path):
    first, second = _Interrupted(4, raises=(2,)), _Interrupted()
    with pytest.raises(KeyboardInterrupt):
        _tune(first, tmp_path / "work")
    with pytest.warns(RunsWarning):
        result = _tune(second, tmp_path / "work")
    assert first.seeds[1] not in second.seeds and len(second.seeds) == 2
    assert result.curator.scores[1] == -np.inf and np.isnan(result.curator.accuracies[1])
    assert result.curator.details["remarks"] == {
        "1": "ranked worst: it raised ArithmeticError: no luck"
    }


@pytest.mark.filterwarnings("ignore::dpjax.bridges.selection.RunsWarning")
def test_a_draw_that_is_spent_is_no_more_and_its_release_is_found(tmp_path):
    run = _Interrupted(raises=(1,))
    result = _tune(run, tmp_path / "work", seed=None)
    folder = tmp_path / "work"
    assert {path.name for path in folder.iterdir()} == {"consumed", "outcome.npz"}
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(folder / "outcome.npz").st_mode) == 0o600
    left = read_arrays(str(folder / "outcome.npz"), "")
    assert not {"seeds", "noise"} & set(left)
    again = _tune(run, folder, seed=None)
    assert len(run.seeds) == 5
    assert _released(again, tmp_path / "b") == _released(result, tmp_path / "a")
    assert again.release.params == result.release.params
    assert again.curator.rows()[1:] == result.curator.rows()[1:]
    assert again.curator.details == result.curator.details


def _edited(seed, hyperparameters):
    return model_and_count(seed, hyperparameters)[0], 50


def _write(model, path):
    with open(path, "w") as file:
        file.write(str(model["rate"]))


def _write_nothing_else(model, path):
    with open(path, "wb") as file:
        file.write(b"always the same")


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"base": accounting.gaussian(3.0)}, "base"),
        ({"score": bridges.CountedScore("disjoint", 101, noise=3.0)}, "score"),
        ({"score": bridges.CountedScore("disjoint", 100, noise=4.0)}, "score"),
        ({"repetitions": accounting.Fixed(6)}, "selection"),
        ({"delta": 1e-6}, "delta"),
        ({"model": "another"}, "model"),
        ({"seed": 2}, "seed"),
        ({"seed": None}, "seed"),
        ({"run": _edited}, "run"),
        ({"run": lambda seed, h: (h, 1)}, "run"),
        ({"default": {"w": np.zeros(2)}}, "default"),
        ({"save_model": _write}, "save_model"),
        ({"label": "other data"}, "flags"),
        ({"space": tuning.Space(rate=tuning.Uniform(0.0, 2.0))}, "search space"),
    ],
)
def test_a_folder_goes_on_with_the_same_arguments_only(tmp_path, changed, named):
    def at_once(outcome):
        raise KeyboardInterrupt

    folder = str(tmp_path / "work")
    with pytest.raises(KeyboardInterrupt):
        _tune(model_and_count, folder, on_outcome=at_once)
    given = GIVEN | {"run": model_and_count, "space": SPACE, "on_outcome": None} | changed
    job = Job(folder=folder, label=given.pop("label", ""))
    pattern = rf"begun with other .*\({named}.*\)|begun with other .*[(, ]{named}[,)]"
    with pytest.raises(ValueError, match=pattern) as raised:
        bridges.tune(given.pop("run"), given.pop("space"), job=job, **given)
    assert "\n" not in str(raised.value)


def test_a_name_of_code_tells_what_would_run_and_not_where_it_stands():
    def one(seed, h):
        return h, seed in {"a", "b"}

    moved = {}
    exec("\n\n\ndef one(seed, h):\n    return h, seed in {'a', 'b'}", moved)
    exec("def other(seed, h):\n    return h, seed in {'a', 'c'}", moved)
    assert code(one)[2] == code(moved["one"])[2] != code(moved["other"])[2]
    assert code(_Interrupted())[:2] == [__name__, "_Interrupted"]
    assert code(_Interrupted())[2] and code(None)[2] is not None


def _with_noise(noise, seed, hyperparameters):
    return {"noise": np.ones(2)}, 50


def _closed_over(noise):
    return lambda seed, hyperparameters: _with_noise(noise, seed, hyperparameters)


def _by_default(noise):
    def run(seed, hyperparameters, noise=noise):
        return _with_noise(noise, seed, hyperparameters)

    return run


def _by_keyword_default(noise):
    def run(seed, hyperparameters, *, noise=noise):
        return _with_noise(noise, seed, hyperparameters)

    return run


def _by_name(noise):
    little, much = 0.01, 2.0
    if noise == little:
        return lambda seed, hyperparameters: _with_noise(little, seed, hyperparameters)
    return lambda seed, hyperparameters: _with_noise(much, seed, hyperparameters)


def _decorated(noise):
    @functools.wraps(model_and_count)
    def run(seed, hyperparameters):
        return _with_noise(noise, seed, hyperparameters)

    return run


@pytest.mark.parametrize(
    "made",
    [
        lambda noise: functools.partial(_with_noise, noise),
        lambda noise: functools.partial(functools.partial(_with_noise), noise),
        lambda noise: functools.partial(_with_noise, {"steps": [(noise, "each")]}),
        lambda noise: functools.partial(_with_noise, np.array([1.0, noise])),
        _closed_over,
        _by_default,
        _by_keyword_default,
        _by_name,
        _decorated,
    ],
)
def test_a_run_that_was_made_with_less_noise_is_not_gone_on_with(made, tmp_path):
    """Else candidates that ended with it could win, at the price of the noise that is declared."""

    def stop(outcome):
        raise KeyboardInterrupt

    for noise, other in ((0.01, 2.0), (2.0, 0.01)):
        work = tmp_path / str(noise)
        with pytest.raises(KeyboardInterrupt):
            _tune(made(noise), work, on_outcome=stop)
        with pytest.raises(ValueError, match=r"other data or settings \(run\)"):
            _tune(made(other), work)
        with pytest.raises(KeyboardInterrupt):
            _tune(made(noise), work, on_outcome=stop)


def test_what_a_run_notes_in_a_list_is_no_setting(tmp_path):
    notes = []

    def run(seed, hyperparameters):
        notes.append(seed)
        if len(notes) == 3:
            raise KeyboardInterrupt
        return model_and_count(seed, hyperparameters)

    with pytest.raises(KeyboardInterrupt):
        _tune(run, tmp_path / "work")
    _tune(run, tmp_path / "work")
    assert len(notes) == 6 and len(set(notes)) == 5


class _Dies(concurrent.futures.Executor):
    """Runs some candidates, the last first, then its process dies."""

    def __init__(self, alive):
        self.waiting, self.alive = [], alive

    def submit(self, function, /, *arguments):
        self.waiting.append((concurrent.futures.Future(), function, arguments))
        if len(self.waiting) == 5:
            for place, (future, function, arguments) in enumerate(reversed(self.waiting)):
                if place < self.alive:
                    future.set_result(function(*arguments))
                else:
                    future.set_exception(concurrent.futures.BrokenExecutor())
        return self.waiting[-1][0]


def test_a_pool_that_died_is_followed_by_the_candidates_that_are_left(tmp_path):
    with pytest.raises(RuntimeError, match="nothing is released"):
        _tune(model_and_count, tmp_path / "work", executor=_Dies(2))
    left = 5 - len(list((tmp_path / "work").glob("ended_*")))
    ran = []
    result = _tune(model_and_count, tmp_path / "work", on_outcome=ran.append)
    assert 3 <= left <= 5 and len(ran) == left
    plain = _tune(model_and_count, None)
    assert _released(result, tmp_path / "a") == _released(plain, tmp_path / "b")


def test_a_model_of_any_kind_is_kept_as_its_file(tmp_path):
    for save in (_write, _write_nothing_else):
        work, given = tmp_path / f"work {save.__name__}", {"save_model": save, "model_file": "m"}
        with pytest.raises(KeyboardInterrupt):
            _tune(_Interrupted(5), work, **given)
        result = _tune(_Interrupted(), work, **given)
        plain = _tune(model_and_count, None, **given)
        files = _released(result, tmp_path / f"a {save.__name__}")
        assert files == _released(plain, tmp_path / f"b {save.__name__}")
        assert _tune(_Interrupted(), work, **given).release.params == files["m"]


@pytest.mark.filterwarnings("ignore::dpjax.bridges.selection.RunsWarning")
def test_no_candidate_and_no_winner_are_found_again_too(tmp_path):
    def run(seed, hyperparameters):
        raise ValueError

    for name, law in (("none", accounting.Geometric(1.001)), ("worst", FIVE)):
        with pytest.warns(cautions.UntrainedReleaseWarning):
            released = [
                _tune(run, tmp_path / name, repetitions=law, default={"w": np.ones(2)})
                for _ in range(2)
            ]
        assert _released(released[0], tmp_path / f"{name} a") == _released(
            released[1], tmp_path / f"{name} b"
        )


def test_files_that_are_damaged_or_of_another_draw_are_refused(tmp_path):
    for name in "ab":
        with pytest.raises(KeyboardInterrupt):
            _tune(_Interrupted(3), tmp_path / name, seed=None)
    mine = tmp_path / "a" / "ended_0.npz"
    assert stat.S_IMODE(os.stat(mine).st_mode) == 0o600
    mine.write_bytes((tmp_path / "b" / "ended_0.npz").read_bytes())
    with pytest.raises(ValueError, match="another draw than the folder's: remove it, and its cand"):
        _tune(_Interrupted(), tmp_path / "a", seed=None)
    mine.write_bytes(mine.read_bytes()[:-20])
    with pytest.raises(ValueError, match="damaged or cut short"):
        _tune(_Interrupted(), tmp_path / "a", seed=None)
    mine.unlink()
    run = _Interrupted()
    _tune(run, tmp_path / "a", seed=None)
    assert len(run.seeds) == 4


@pytest.mark.parametrize(
    ("job", "line"),
    [
        ("work", "job must be a Job, such as tuning.Job"),
        (Job(folder="work", shard=(0, 2)), "pass job=tuning.Job.folder='work'. with folder"),
        (Job(placement="vmap"), "does not place these runs on devices"),
    ],
)
def test_a_job_is_a_folder_and_a_label(job, line):
    with pytest.raises(ValueError, match=line) as raised:
        _tune(model_and_count, None, job=job)
    assert "\n" not in str(raised.value) and not os.path.exists("work")


def test_one_at_a_time_works_in_a_folder(tmp_path):
    errors = []

    def other():
        try:
            _tune(model_and_count, tmp_path / "work")
        except ValueError as error:
            errors.append(str(error))

    def run(seed, hyperparameters):
        if not errors:
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        return hyperparameters, 1

    _tune(run, tmp_path / "work")
    assert len(errors) == 1 and "another process works in" in errors[0]
