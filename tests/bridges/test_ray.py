"""A Ray cluster as the executor: what is asked of Ray, and what its failures come to."""

import concurrent.futures
import importlib.util
import inspect
import os
import subprocess
import sys
import tempfile
import threading
import types

import numpy as np
import pytest
from runs_elsewhere import model_and_count

from dpjax import accounting, bridges, tuning
from dpjax.bridges import ray as adapter
from dpjax.bridges.selection import RunsWarning

GIVEN = {
    "base": accounting.gaussian(2.0),
    "score": bridges.CountedScore("disjoint", 100, noise=3.0),
    "repetitions": accounting.Fixed(4),
    "seed": 1,
}
SPACE = tuning.Space(rate=tuning.Uniform(0.0, 1.0))


class _RayError(Exception):
    pass


class _RayTaskError(_RayError):
    pass


class _Reference:
    def __init__(self, value):
        self.value = value


class _Promised(_Reference):
    def future(self):
        return self.value


class _Ray(types.ModuleType):
    """As much of Ray as the adapter uses: it runs a task at once, in a thread of its own."""

    def __init__(self, joined=True, ends=None):
        super().__init__("ray")
        self.exceptions = types.SimpleNamespace(RayTaskError=_RayTaskError)
        self.joined, self.ends, self.hold = joined, ends or {}, False
        self.asked, self.arguments, self.stored, self.cancelled = [], [], [], []

    def init(self, **given):
        self.joined = True

    def is_initialized(self):
        return self.joined

    def put(self, value):
        if getattr(value, "__name__", "") == "unpicklable":
            raise TypeError("cannot pickle\nit")
        self.stored.append(value)
        return _Reference(value)

    def cancel(self, given):
        self.cancelled.append(given)

    def remote(self, function):
        def call(*arguments):
            number = len(self.arguments)
            self.arguments.append(arguments)
            future = concurrent.futures.Future()
            if self.hold and number:
                return _Promised(future)
            plain = [one.value if isinstance(one, _Reference) else one for one in arguments]

            def work():
                if number in self.ends:
                    future.set_exception(self.ends[number])
                else:
                    future.set_result(function(*plain))

            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            return _Promised(future)

        def options(**asked):
            self.asked.append(asked)
            return types.SimpleNamespace(remote=call)

        return types.SimpleNamespace(options=options)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")


def _fake(monkeypatch, **given):
    monkeypatch.setitem(sys.modules, "ray", fake := _Ray(**given))
    return fake


def test_each_candidate_is_one_task_that_says_nothing_and_is_never_retried(monkeypatch):
    fake = _fake(monkeypatch)
    with adapter.executor(cpus=2, gpus=0.5) as cluster:
        result = bridges.tune(model_and_count, SPACE, executor=cluster, **GIVEN)
    assert fake.asked == [
        {
            "name": "candidate",
            "num_cpus": 2.0,
            "num_gpus": 0.5,
            "max_retries": 0,
            "retry_exceptions": False,
        }
    ]
    # One task each, and the function with all its data is sent once.
    assert len(fake.arguments) == 4 and len(fake.stored) == 2
    assert len({arguments[2] for arguments in fake.arguments}) == 4
    plain = bridges.tune(model_and_count, SPACE, **GIVEN)
    assert result.release.params == plain.release.params
    np.testing.assert_array_equal(result.curator.scores, plain.curator.scores)


def test_a_worker_that_died_releases_nothing(monkeypatch):
    _fake(monkeypatch, ends={2: _RayError("the worker died")})
    with pytest.raises(RuntimeError, match="a process of the executor died.*nothing is released"):
        bridges.tune(model_and_count, SPACE, executor=adapter.executor(), **GIVEN)


def test_a_worker_that_died_stops_the_others(monkeypatch):
    fake = _fake(monkeypatch, ends={0: _RayError("the worker died")})
    fake.hold = True
    with pytest.raises(RuntimeError, match="a process of the executor died.*nothing is released"):
        bridges.tune(model_and_count, SPACE, executor=adapter.executor(), **GIVEN)
    assert len(fake.cancelled) == 3


def test_what_was_raised_in_a_task_is_one_candidates_failure(monkeypatch):
    _fake(monkeypatch, ends={1: _RayTaskError("the model cannot be pickled")})
    with pytest.warns(RunsWarning):
        result = bridges.tune(model_and_count, SPACE, executor=adapter.executor(), **GIVEN)
    assert list(result.curator.details["remarks"]) == ["1"]
    assert np.isneginf(result.curator.scores).tolist() == [False, True, False, False]


def test_a_run_that_cannot_be_sent_is_refused_before_any_is_run(monkeypatch):
    fake = _fake(monkeypatch)

    def unpicklable(seed, hyperparameters):
        raise AssertionError

    with pytest.raises(ValueError, match="cannot be sent to Ray's workers") as raised:
        bridges.tune(unpicklable, SPACE, executor=adapter.executor(), **GIVEN)
    assert "\n" not in str(raised.value) and not fake.arguments


def test_an_executor_that_was_shut_down_takes_no_more(monkeypatch):
    fake = _fake(monkeypatch)
    cluster = adapter.executor()
    assert cluster.submit(max, 2, 3).result() == 3
    fake.hold = True
    waiting = cluster.submit(max, 4, 5)
    cluster.shutdown(cancel_futures=True)
    assert waiting.cancelled() and len(fake.cancelled) == 1
    with pytest.raises(RuntimeError, match="shut down"):
        cluster.submit(max, 2, 3)


def test_what_is_missing_is_named_in_one_line(monkeypatch):
    _fake(monkeypatch, joined=False)
    with pytest.raises(ValueError, match=r"call ray.init\(include_dashboard=False\) first"):
        adapter.executor()
    for value in ("1", None):
        if value is None:
            monkeypatch.delenv("RAY_USAGE_STATS_ENABLED")
        else:
            monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", value)
        with pytest.raises(ValueError, match="set RAY_USAGE_STATS_ENABLED=0") as raised:
            adapter.executor()
        assert "\n" not in str(raised.value)
    for wrong in ({"cpus": 0}, {"cpus": "4"}, {"gpus": -1}):
        with pytest.raises(ValueError, match="must be finite and >"):
            adapter.executor(**wrong)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install -e '.\[ray\]'") as raised:
        adapter.executor()
    assert "\n" not in str(raised.value)


def test_the_example_of_the_page_runs_as_written(monkeypatch, request):
    fake = _fake(monkeypatch, joined=False)
    page = (request.config.rootpath / "docs" / "bridges.md").read_text()
    example = page.split("\n## On a Ray")[1].split("```python\n")[1].split("```")[0]
    known = {"run": model_and_count, "space": SPACE, "base": GIVEN["base"], "score": GIVEN["score"]}
    exec(compile(example, "docs/bridges.md", "exec"), known)
    assert len(fake.arguments) == known["result"].curator.number_of_candidates


def test_the_docstring_keeps_its_promises():
    section = " ".join(inspect.getdoc(adapter.executor).split("Formal guarantees:")[1].split())
    for promise in (
        "one task, which Ray runs once",
        "ends the tuning without a release",
        "says nothing of a candidate or of K",
        "the curator's ONLY",
    ):
        assert promise in section


_PROGRAM = """
import os, sys, warnings
import numpy as np, ray
from dpjax import accounting, bridges, tuning
import dpjax.bridges.ray

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    ray.init(num_cpus=1, include_dashboard=False, object_store_memory=80_000_000,
             log_to_driver=False, _temp_dir=sys.argv[1])
given = dict(base=accounting.gaussian(2.0), repetitions=accounting.Fixed(3), seed=1,
             score=bridges.CountedScore("disjoint", 100, noise=3.0))
space = tuning.Space(rate=tuning.Uniform(0.0, 1.0))
deaths = sys.argv[2]
weights = np.ones(100_000)

def run(seed, hyperparameters):
    return {"rate": hyperparameters["rate"] * weights[:2], "seed": seed}, 50

def dies(seed, hyperparameters):
    with open(deaths, "a") as file:
        file.write("x")
    os._exit(1)

with bridges.ray.executor() as cluster:
    there = bridges.tune(run, space, executor=cluster, **given)
    here = bridges.tune(run, space, **given)
    assert there.release.params["seed"] == here.release.params["seed"]
    np.testing.assert_array_equal(there.release.params["rate"], here.release.params["rate"])
    try:
        bridges.tune(dies, space, executor=cluster, **given)
    except RuntimeError as error:
        print(error)
ray.shutdown()
"""


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray")
def test_ray_itself_runs_candidates_and_retries_no_worker(tmp_path, request):
    root = str(request.config.rootpath)
    # Paths of its sockets have room for some hundred letters; a process of its own, which ends.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _PROGRAM, folder, str(tmp_path / "deaths")],
            env=os.environ | {"PYTHONPATH": os.pathsep.join([root, *filter(None, sys.path)])},
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr
    assert "nothing is released" in done.stdout
    # Each of the three ran once at most.
    assert 1 <= len((tmp_path / "deaths").read_text()) <= 3
