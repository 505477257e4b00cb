"""Runs many command lines of one binary in one fresh process: importing JAX is the slow part."""

import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]

_DRIVER = """
import contextlib, importlib, io, json, sys
from absl import flags
from absl.testing import flagsaver
from experiments import command_line

module = importlib.import_module(sys.argv[1])
results = []
for arguments in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with flagsaver.flagsaver(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            command_line.parse([module.__name__, *arguments])
            code = command_line.guarded(module.main)
        except SystemExit as stop:
            code = stop.code
    results.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(results))
"""


@pytest.fixture(scope="session")
def run_cases():
    """run_cases(module, list of argument lists) -> list of (exit code, stdout, stderr)."""

    def run(module, cases):
        done = subprocess.run(
            [sys.executable, "-c", _DRIVER, module],
            input=json.dumps(cases),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return [tuple(result) for result in json.loads(done.stdout.splitlines()[-1])]

    return run
