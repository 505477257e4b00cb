"""`dpjax accelerator` writes its page, resumes, and ends in red where a check fails."""

import csv

import pytest
from absl import flags
from absl.testing import flagsaver

from dpjax.commands import command_line
from experiments.accelerator import checks as accelerator
from experiments.accelerator import device_checks
from experiments.accelerator.device_checks import Found

GOOD, BAD = Found(0.5, 1.0, "clip norms"), Found(1.5, 1.0, "clip norms")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """run(checks, *flags) -> exit code; nothing is timed."""
    parsed = flags.FLAGS.is_parsed()

    def call(checks, *arguments):
        monkeypatch.setattr(accelerator, "checks", lambda quick: checks)
        with flagsaver.flagsaver():
            command_line.parse(["accelerator", f"--out_dir={tmp_path}", "--nospeed", *arguments])
            return command_line.guarded(accelerator.main)

    yield call
    if not parsed:
        flags.FLAGS.unparse_flags()


def _rows(folder):
    with open(folder / "checks.csv", newline="") as file:
        return {row["check"]: row for row in csv.DictReader(file)}


def test_a_failure_is_a_red_line_and_is_checked_again(run, tmp_path, capsys):
    calls = []

    def check(name, found):
        return lambda: calls.append(name) or found

    assert run({"first": check("first", GOOD), "second": check("second", BAD)}) == 1
    text = (tmp_path / "accelerator.md").read_text()
    assert accelerator.RED in text and "**failed** clip norms" in text
    assert "DO NOT USE THIS DEVICE" in capsys.readouterr().out.replace("\n", " ")
    assert run({"first": check("first", GOOD), "second": check("second", GOOD)}) == 0
    assert calls == ["first", "second", "second"]
    assert {row["passed"] for row in _rows(tmp_path).values()} == {"yes"}
    text = (tmp_path / "accelerator.md").read_text()
    assert (
        "All 2 checks that returned passed" in text
        and "jaxlib" in text
        and "matmul precision" in text
    )
    # A rehearsal passes for nothing else.
    assert run({"first": check("quick", GOOD)}, "--quick") == 0 and calls[-1] == "quick"


def test_a_check_that_ended_the_process_is_named_and_passed_over(run, tmp_path):
    """As a compiler's fault does: no exception, no row of what was found."""
    path, kept = tmp_path / "checks.csv", []
    assert run({"first": lambda: GOOD, "second": lambda: kept.append(path.read_bytes()) or BAD})
    path.write_bytes(kept[0])  # What is there while it runs.
    assert _rows(tmp_path)["second"]["passed"] == "began"
    assert run({"first": lambda: BAD, "second": lambda: BAD, "third": lambda: GOOD}) == 1
    assert {row["passed"] for row in _rows(tmp_path).values()} == {"yes", "began"}
    text = (tmp_path / "accelerator.md").read_text()
    assert "All 2 checks that returned passed" in text
    assert "These ended the process; nothing was computed: second." in text
    assert accelerator.RED not in text


def test_an_exception_leaves_no_row(run, tmp_path):
    with pytest.raises(TypeError):
        run({"first": lambda: GOOD, "second": lambda: len(1)})
    assert list(_rows(tmp_path)) == ["first"]


def test_what_there_was_no_time_for_is_named(run, tmp_path):
    assert run({"first": lambda: GOOD}, "--minutes=0") == 1  # Nothing was checked: that is no pass.
    assert "Not measured, for want of time: first" in (tmp_path / "accelerator.md").read_text()


def test_the_models_of_the_benchmarks_are_checked():
    names = accelerator.checks(quick=True)
    assert {"contributions: mixture_of_experts", "formed once: mixture_of_experts"} <= set(names)
    every = list(accelerator.checks(quick=False))
    assert len(every) > 2 * 20
    # What is quick and tells most comes before speed is measured, random losses last.
    late = [accelerator.is_late(name) for name in every]
    assert late == sorted(late) and late.count(False) == 7 + 4 + 2 * 5
    assert every[0].startswith("draws") and every[-1] == device_checks.RANDOM_LOSSES
