"""Strictness for every test: warnings are errors (pyproject.toml), silent broadcasting too.

And what runs command lines of a binary in one process of its own: importing JAX is the slow part.
"""

import collections
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import threading

import hypothesis
import jax
import kept_programs
import memory
import priced_once
import pytest
import tiers
from jax.experimental.compilation_cache import compilation_cache

jax.config.update("jax_numpy_rank_promotion", "raise")
# Tests compile hundreds of tiny programs and run each for milliseconds.
jax.config.update("jax_disable_most_optimizations", True)
# The same examples in every run, however slow the machine is: what fails once fails again.
hypothesis.settings.register_profile(
    "reproducible",
    derandomize=True,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("reproducible")


ROOT = pathlib.Path(__file__).parents[1]

PRICES = (
    "accounting/",
    "conformance/test_laws.py",
    "conformance/test_mechanisms.py",
    "conformance/test_own_law.py",
    "conformance/test_own_mechanism.py",
)
"""Tests of prices themselves, which keep none; see helpers/priced_once.py."""


def pytest_addoption(parser):
    """See `make durations`."""
    parser.addoption("--record_durations", action="store_true", help="write tests/durations.json")


def pytest_collection_modifyitems(items):
    """Marks what is too slow for `make test`, and what is fast enough for `make test_fast`."""
    seconds = tiers.read()
    chosen = {tier: tiers.chosen(tier, seconds) for tier in tiers.BUDGETS}
    for item in items:
        name = tiers.function_of(item.nodeid)
        if name in seconds and name not in chosen["test"]:
            item.add_marker(pytest.mark.slow)
        if name not in seconds or name in chosen["test_fast"]:
            item.add_marker(pytest.mark.fast)


_durations = collections.Counter()
_spent = 0.0
_drivers = set()
"""Processes of `run_cases` that are not waited for yet."""


def _processor_seconds():
    """Of this process, of the processes it has waited for and of those that run its binaries."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used) + sum(map(tiers.seconds_of, _drivers))


def pytest_runtest_logstart():
    """What was spent before, on collecting, is no test's."""
    global _spent
    _spent = _processor_seconds()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Notes what the phase took; unlike a clock it does not count what else the machine does."""
    global _spent
    report = yield
    before, _spent = _spent, _processor_seconds()
    report.processor_seconds = _spent - before
    return report


def pytest_runtest_logreport(report):
    """Of all workers, where there are some."""
    _durations[tiers.function_of(report.nodeid)] += getattr(report, "processor_seconds", 0.0)


def pytest_sessionfinish(session):
    """Writes the record, if that was asked for."""
    config = session.config
    if config.getoption("record_durations") and not hasattr(config, "workerinput"):
        tiers.write(_durations, config.getoption("numprocesses", None) or 1)


@pytest.fixture(scope="session", autouse=True)
def _compiled(tmp_path_factory):
    """Most tests build their functions anew, and compile what another test has compiled.

    What is compiled stays as it is; only tracing counts for tests that count compilations. Yields
    the folder, in which other processes of this one have folders of their own.
    """
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    with kept_programs.own_folder(tmp_path_factory.mktemp("compiled")) as folder:
        compilation_cache.set_cache_dir(str(folder))
        compilation_cache.reset_cache()  # What collecting compiled has settled that there is none.
        yield folder


def pytest_runtest_setup(item):
    """Tests of prices compute theirs; before any fixture, of a module or a session too."""
    place = pathlib.Path(item.fspath).relative_to(ROOT / "tests").as_posix()
    priced_once.USED = not place.startswith(PRICES)


@pytest.fixture(scope="session", autouse=True)
def _price_folder(tmp_path_factory):
    """Where the processes of this session keep what they priced."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    folder = folder / "priced"
    folder.mkdir(exist_ok=True)
    priced_once.keep_in(folder)
    return folder


@pytest.fixture(scope="module", autouse=True)
def _no_programs_of_earlier_files():
    """Two processes and their binaries have to share 24 GB."""
    yield
    memory.give_back(above=2)


@pytest.fixture(autouse=True)
def _no_global_double_precision():
    """No code may switch JAX to float64 for everyone; local contexts only."""
    yield
    assert not jax.config.jax_enable_x64, "a test left jax_enable_x64 on"


_DRIVER = """
import contextlib, importlib, io, json, os, sys
from absl.testing import flagsaver
from dpjax.commands import command_line

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # Whatever else is printed goes to the log.
module = importlib.import_module(sys.argv[1])
sys.path.append(sys.argv[2])
import memory, priced_once
priced_once.keep_in(sys.argv[3])
finder = sys.modules.get("dpjax.releases.certificates")  # Of binaries that release something.
find_certificate = finder and finder.found
for line in sys.stdin:
    memory.give_back(above=1)
    results = []
    cases, certificates = json.loads(line)
    if finder:
        finder.found = find_certificate if certificates else lambda statement: None
    for arguments in cases:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.ExitStack() as stack:
            stack.enter_context(flagsaver.flagsaver())
            stack.enter_context(contextlib.redirect_stdout(out))
            stack.enter_context(contextlib.redirect_stderr(err))
            try:
                command_line.parse([module.__name__, *arguments])
                code = command_line.guarded(module.main)
            except SystemExit as stop:
                code = stop.code
        results.append([code, out.getvalue(), err.getvalue()])
    print(json.dumps(results), file=answers, flush=True)
"""
_SECONDS = 1800


class _Driver:
    """One binary, imported once; every batch of command lines finds the flags' defaults."""

    def __init__(self, module, folder, prices, compiled):
        self._log = folder / "log"
        # Compiling is most of what these small runs do.
        environment = os.environ | {
            "JAX_COMPILATION_CACHE_DIR": str(compiled / f"of {module}"),
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    _DRIVER,
                    module,
                    str(ROOT / "tests" / "helpers"),
                    str(prices),
                ],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        _drivers.add(self._process.pid)

    def run(self, cases, certificates):
        watch = threading.Timer(_SECONDS, self._process.kill)
        watch.start()
        try:
            print(json.dumps([cases, certificates]), file=self._process.stdin, flush=True)
            answer = self._process.stdout.readline()
        finally:
            watch.cancel()
        assert answer, self._log.read_text()
        return [tuple(result) for result in json.loads(answer)]

    def close(self):
        self._process.communicate()
        _drivers.discard(self._process.pid)  # What it took is that of a child.


@pytest.fixture(scope="module")
def run_cases(tmp_path_factory, _price_folder, _compiled):
    """run_cases(module, list of argument lists) -> list of (exit code, stdout, stderr).

    With `fresh`, in a new process, which knows nothing of what earlier ones computed. Releases have
    no certificates, which take seconds to find, but with `certificates`.
    """
    drivers = {}

    def run(module, cases, fresh=False, certificates=False):
        if fresh and module in drivers:
            drivers.pop(module).close()
        if module not in drivers:
            folder = tmp_path_factory.mktemp("driver")
            drivers[module] = _Driver(module, folder, _price_folder, _compiled)
        try:
            return drivers[module].run(cases, certificates)
        except BaseException:
            drivers.pop(module).close()
            # It may have been killed while it wrote an entry.
            shutil.rmtree(_compiled / f"of {module}", ignore_errors=True)
            raise

    yield run
    for driver in drivers.values():
        driver.close()


@pytest.fixture
def temporary(tmp_path_factory, monkeypatch):
    """The empty folder of a test's own in which temporary files are made."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture(autouse=True)
def _no_certificates(request, monkeypatch):
    """Releases are saved without a search for their proof, but where a file asks for it."""
    finder = sys.modules.get("dpjax.releases.certificates")
    if finder is not None and not hasattr(request.module, "WRITES_CERTIFICATES"):
        monkeypatch.setattr(finder, "found", lambda statement: None)
