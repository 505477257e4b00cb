"""How binaries end: an interrupt while they are still being imported."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest
from processes import python

ROOT = pathlib.Path(__file__).parents[2]
BINARIES = ["tune", "pareto", "epsilon", "figures.papernot_steinke.figure_3"]


# A suite started in the background hands "ignore SIGINT" down to its children.
_WITH_CTRL_C = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, "-m", sys.argv[1]])
"""


@pytest.mark.parametrize("binary", BINARIES)
def test_an_interrupt_during_imports_is_one_line(binary, tmp_path):
    """NumPy is replaced by a module that never finishes importing."""
    (tmp_path / "numpy.py").write_text(
        "import time\nprint('importing', flush=True)\ntime.sleep(900)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", _WITH_CTRL_C, f"experiments.{binary}"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert errors == "interrupted: nothing was begun\n"
    # The shell sees 130, as after any interrupt.
    assert process.returncode == -signal.SIGINT


def test_other_errors_keep_their_traceback_and_importers_their_hook(tmp_path):
    asking = "import sys, experiments; print(sys.excepthook is sys.__excepthook__)"
    done = python("-c", asking, cwd=ROOT)
    assert done.stdout == "True\n"
    (tmp_path / "numpy.py").write_text("raise RuntimeError('broken')\n")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = python("-m", "experiments.tune", cwd=ROOT, env=environment)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback") and "RuntimeError: broken" in done.stderr
