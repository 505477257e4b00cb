"""The queue of long runs: what it names exists, and a kill costs what was in training."""

import pathlib
import signal
import subprocess
import sys

from processes import python

ROOT = pathlib.Path(__file__).parents[2]

# Three rates of two steps, and after them one run that cannot succeed.
_TINY = """
import dataclasses
from dpjax import models
from dpjax.commands import command_line
from experiments import long_runs
from experiments.figures.papernot_steinke import figure_7_runs
settings = figure_7_runs.SETTINGS["quick"]
figure_7_runs.SETTINGS["quick"] = dataclasses.replace(settings, test_records=30)
figure_7_runs.NETS[settings.model] = models.LogisticRegression  # Compiles in a second.
one = long_runs.LongRun(
    "papernot_steinke.figure_7", "quick", {"rates": 3, "steps": 2}, "", 1.0, 1.0, ""
)
impossible = dataclasses.replace(one, figure="dpareto.figure_8", options={"no": 1})
long_runs.QUEUE = (one, impossible, one)
command_line.run(long_runs.main)
"""

# Killed as soon as it says that the first rate is done: it would go on while a test reads that.
_KILLED = _TINY.replace(
    "command_line.run",
    """
import builtins, os, signal
said = print
def said_last(line, **how):
    said(line, **how)
    if "1 of 3 rates" in line:
        os.kill(os.getpid(), signal.SIGKILL)
builtins.print = said_last
command_line.run""",
)


# In a process of its own: other tests define flags of the same names.
_CHECKED = """
import dataclasses
import pytest
from experiments import long_runs
from experiments.figures import registry
for run in long_runs.QUEUE:
    spec = registry.load(run.figure)
    assert run.size in spec.takes, run
    options = dataclasses.replace(spec.options, **run.options)
    if run.figure.startswith("dp_hype"):
        assert options.chosen(spec.rows.studies(run.size)), run
    assert run.settles and run.measured and 0 < run.hours < 100, run
assert [run.size for run in long_runs.chosen(quick=True)] == ["quick"] * len(long_runs.QUEUE)
with pytest.raises(ValueError, match="figure_7: pass names of papernot_steinke.figure_7, "):
    long_runs.chosen(["figure_7"])
"""


def test_every_run_is_a_size_of_a_figure_with_options_that_it_has():
    done = subprocess.run(
        [sys.executable, "-c", _CHECKED], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_piece_ends_after_its_minutes_and_hands_out_its_rows(tmp_path):
    folders = f"--out_dir={tmp_path}/all", f"--rows_dir={tmp_path}/out"
    kept = tmp_path / "all" / "papernot" / "saves"
    kept.mkdir(parents=True)
    (kept / "keys.npz").write_bytes(b"")
    (kept.parent / "figure_7_runs.csv").write_text("rate\n")
    endless = _TINY.replace('"steps": 2', '"steps": 10**8')
    ended = python("-c", endless, *folders, "--minutes=0.1", cwd=ROOT)
    assert ended.returncode == 75, ended.stderr
    assert ended.stdout.splitlines()[-1] == "ended after 0.1 minutes: the same command goes on"
    copied = [path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("*.*")]
    assert copied == [pathlib.Path("papernot", "figure_7_runs.csv")]


def test_a_killed_queue_goes_on_where_it_was(tmp_path):
    given = (f"--out_dir={tmp_path}", "--minutes=60")
    first = python("-c", _KILLED, *given, cwd=ROOT)
    assert first.returncode == -signal.SIGKILL and "1 of 3 rates" in first.stdout, first.stderr
    (runs,) = tmp_path.glob("*/figure_7_runs.csv")
    kept = runs.read_text().splitlines()
    assert not list(tmp_path.glob("*/figure_7.png"))

    again = python("-c", _TINY, *given, cwd=ROOT)
    assert again.returncode == 1 and "FAILED: " in again.stdout
    assert "1 of 3 rates" not in again.stdout and "3 of 3 rates" in again.stdout
    # The run after the one that failed is the first again, which has its picture by now.
    assert again.stdout.splitlines()[-1] == "  finished"
    rows = runs.read_text().splitlines()
    assert set(kept) < set(rows) and len(rows) == 4
    assert {path.name for path in runs.parent.iterdir()} == {
        "figure_7_runs.csv", "figure_7.csv", "figure_7.png", "figure_7.svg",
    }  # fmt: skip
