"""Strictness for every test: warnings are errors (pyproject.toml), silent broadcasting too.

And what runs command lines of a binary in one process of its own: importing JAX is the slow part.
"""

import json
import os
import pathlib
import subprocess
import sys
import threading

import jax
import memory
import priced_once
import pytest
from jax.experimental.compilation_cache import compilation_cache

jax.config.update("jax_numpy_rank_promotion", "raise")
# Tests compile hundreds of tiny programs and run each for milliseconds.
jax.config.update("jax_disable_most_optimizations", True)


ROOT = pathlib.Path(__file__).parents[1]
HELPERS = ROOT / "tests" / "helpers"

SLOW = (
    "accounting/mechanisms/test_dp_sgd.py",
    "accounting/numerics/test_composition.py",
    "accounting/numerics/test_rdp_grid.py",
    "accounting/selection/test_adaptive.py",
    "accounting/selection/test_selection.py",
    "accounting/selection/test_selection_exact.py",
    "accounting/selection/test_selection_soundness.py",
    "accounting/selection/test_split.py",
    "auditing/test_audits.py",
    "auditing/test_executions.py",
    "bridges/test_jax_privacy_training.py",
    "bridges/test_opacus_training.py",
    "commands/",
    "conformance/test_data_sets.py",
    "conformance/test_figures.py",
    "conformance/test_models.py",
    "conformance/test_own_",
    "experiments/",
    "federated/",
    "models/test_pooled_convolutions.py",
    "randomness/test_noise.py",
    "test_docs.py",
    "test_docstring_examples.py",
    "test_readme.py",
    "training/clipping/test_clip_rules.py",
    "training/clipping/test_clipped_grad_arguments.py",
    "training/clipping/test_clipped_grad_models.py",
    "training/clipping/test_zoo.py",
    "training/sweep/test_checkpoints.py",
    "training/sweep/test_hosts.py",
    "training/sweep/test_mixed.py",
    "training/sweep/test_placement.py",
    "training/test_clipping_audit.py",
    "training/test_dp_sgd.py",
    "training/test_host_data.py",
    "training/test_last_bits.py",
    "training/test_mesh.py",
    "training/test_micro_batches.py",
    "training/test_quantile_clipping.py",
    "training/test_tpu_lowering.py",
    "tuning/pareto/",
    "tuning/test_audit.py",
    "tuning/test_audit_adaptive.py",
    "tuning/test_subset_audit.py",
    "tuning/test_iterates_audit.py",
    "tuning/test_cautions.py",
    "tuning/test_clipping.py",
    "tuning/test_executed_noise.py",
    "tuning/test_job.py",
    "tuning/evaluations/test_partitioned_selection.py",
    "tuning/evaluations/test_partitions.py",
    "tuning/problem/test_any_score.py",
    "tuning/problem/test_loss_reads.py",
    "tuning/problem/test_user_tasks.py",
    "tuning/tuners/test_adaptive_proposals.py",
    "tuning/tuners/test_chosen_iterate.py",
    "tuning/tuners/test_random_repetitions.py",
    "tuning/tuners/test_subset_tuning.py",
    "tuning/tuners/test_threshold_stopping.py",
    "tuning/test_verification.py",
    "tuning/test_wiring_",
)
"""Files and folders left out by `make test_fast`: what trains, deploys, draws figures or prices at
length. Nothing is left out of `make test`."""


PRICES = (
    "accounting/",
    "conformance/test_laws.py",
    "conformance/test_mechanisms.py",
    "conformance/test_own_law.py",
    "conformance/test_own_mechanism.py",
)
"""Tests of prices themselves, which keep none; see helpers/priced_once.py."""


def pytest_ignore_collect(collection_path, config):
    """`make test_fast` does not even import the slow files."""
    place = collection_path.relative_to(ROOT / "tests").as_posix()
    if config.option.markexpr == "not slow" and (place.startswith(SLOW) or f"{place}/" in SLOW):
        return True
    return None


def pytest_collection_modifyitems(items):
    """Marks the tests of slow files."""
    for item in items:
        place = pathlib.Path(item.fspath).relative_to(ROOT / "tests").as_posix()
        if place.startswith(SLOW):
            item.add_marker(pytest.mark.slow)


def pytest_configure(config):
    """Hands files out in their order: by number of tests, the long ones with few would be last."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


@pytest.fixture(scope="session", autouse=True)
def _compile_equal_programs_once(tmp_path_factory):
    """Most tests build their functions anew, and compile what another test has compiled.

    One folder for each process, since JAX writes its entries in place. What is compiled stays as
    it is; only tracing counts for tests that count compilations.
    """
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.set_cache_dir(str(tmp_path_factory.mktemp("compiled")))
    compilation_cache.reset_cache()  # What collecting compiled has settled that there is none.


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
certifying = sys.modules.get("dpjax.tuning.certifying")  # Of binaries that release something.
find_certificate = certifying and certifying.found
for line in sys.stdin:
    memory.give_back(above=1)
    results = []
    cases, certificates = json.loads(line)
    if certifying:
        certifying.found = find_certificate if certificates else lambda statement: None
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
_SECONDS = 600


class _Driver:
    """One binary, imported once; every batch of command lines finds the flags' defaults."""

    def __init__(self, module, folder, prices):
        self._log = folder / "log"
        # Compiling is most of what these small runs do.
        environment = os.environ | {
            "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
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


@pytest.fixture(scope="module")
def run_cases(tmp_path_factory, _price_folder):
    """run_cases(module, list of argument lists) -> list of (exit code, stdout, stderr).

    With `fresh`, in a new process, which knows nothing of what earlier ones computed. Releases have
    no certificates, which take seconds to find, but with `certificates`.
    """
    drivers = {}

    def run(module, cases, fresh=False, certificates=False):
        if fresh and module in drivers:
            drivers.pop(module).close()
        if module not in drivers:
            drivers[module] = _Driver(module, tmp_path_factory.mktemp("driver"), _price_folder)
        try:
            return drivers[module].run(cases, certificates)
        except BaseException:
            drivers.pop(module).close()
            raise

    yield run
    for driver in drivers.values():
        driver.close()


@pytest.fixture(autouse=True)
def _no_certificates(request, monkeypatch):
    """Releases are saved without a search for their proof, but where a file asks for it."""
    certifying = sys.modules.get("dpjax.tuning.certifying")
    if certifying is not None and not hasattr(request.module, "WRITES_CERTIFICATES"):
        monkeypatch.setattr(certifying, "found", lambda statement: None)
