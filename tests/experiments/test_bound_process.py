"""A bound child ends with its parent, whatever ended that; nothing else ends it."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from experiments.benchmarks import bound_process

ROOT = pathlib.Path(__file__).parents[2]
CHILD = """
import os, sys, time
from experiments.benchmarks import bound_process
bound_process.end_with_parent()
print(os.getpid(), file=open(sys.argv[1] + ".partial", "w"), flush=True)
os.rename(sys.argv[1] + ".partial", sys.argv[1])
time.sleep(float(sys.argv[2]))
print("done")
sys.exit(sys.argv[3] if len(sys.argv) > 3 else 0)
"""
# A suite started in the background hands "ignore SIGINT" down to its children.
PARENT = """
import os, signal, sys
from experiments.benchmarks import bound_process
signal.signal(signal.SIGINT, signal.default_int_handler)
command = [sys.executable, "-c", sys.argv[1], sys.argv[2], "100"]
bound_process.output_of(command, os.environ)
"""


def is_running(process_id):
    """Whether a process runs; one that ended and was not waited for does not."""
    try:
        state = pathlib.Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="processes are looked up in /proc")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGKILL"])
def test_a_child_ends_with_its_parent(tmp_path, name):
    started = tmp_path / "started"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD, str(started)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(started.exists)
        child = int(started.read_text())
        assert is_running(child)
        parent.send_signal(getattr(signal, name))
        assert parent.wait(timeout=60) != 0
        wait_until(lambda: not is_running(child))
    finally:
        parent.kill()
        parent.wait()


def test_a_child_says_what_it_has_to_say(tmp_path):
    command = [sys.executable, "-c", CHILD, str(tmp_path / "started"), "0.3"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    assert bound_process.output_of(command, environment) == "done\n"
    with pytest.raises(RuntimeError, match="^it broke$"):
        bound_process.output_of([*command, "it broke"], environment)
