"""Which tests a tier has follows from the record of durations, by a rule that can be said."""

import json
import pathlib
import subprocess
import sys

import pytest
import tiers

SECONDS = {"a.py::one": 5.0, "a.py::two": 7.0, "b.py::one": 0.2, "b.py::two": 0.3, "c.py::one": 2.0}


def _within(budget, *, of_each_file=True):
    return tiers.within(budget, SECONDS, of_each_file=of_each_file)


def test_a_budget_pays_for_the_cheapest_of_each_file_and_then_for_the_cheapest():
    assert _within(0.0) == {"a.py::one", "b.py::one", "c.py::one"}
    assert _within(7.6) == {"a.py::one", "b.py::one", "b.py::two", "c.py::one"}
    assert _within(14.6) == set(SECONDS)
    assert tiers.within(1.0, {}, of_each_file=True) == set()


def test_or_for_the_cheapest_alone():
    assert _within(0.1, of_each_file=False) == set()
    assert _within(2.6, of_each_file=False) == {"b.py::one", "b.py::two", "c.py::one"}
    assert _within(14.6, of_each_file=False) == set(SECONDS)


def test_the_tiers_are_nested_and_fit_their_budgets():
    seconds = tiers.read()
    fast, quick = tiers.chosen("test_fast", seconds), tiers.chosen("test", seconds)
    assert fast < quick < set(seconds)
    for tier, chosen in (("test_fast", fast), ("test", quick)):
        assert sum(map(seconds.get, chosen)) <= tiers.BUDGETS[tier]
    assert {name.split("::")[0] for name in quick} == {name.split("::")[0] for name in seconds}


@pytest.mark.skipif(not pathlib.Path("/proc/self/stat").exists(), reason="there is no /proc")
def test_what_a_living_process_took_is_known():
    burning = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True), input()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", burning], stdin=pipe, stdout=pipe) as process:
        process.stdout.readline()
        assert 0.25 < tiers.seconds_of(process.pid) < 10.0
        process.communicate(b"\n")
    assert tiers.seconds_of(process.pid) == 0.0


def test_what_ran_replaces_what_was_known_of_its_file(tmp_path):
    record = tmp_path / "tests" / "durations.json"
    (tmp_path / "tests").mkdir()
    for name in ("a.py", "b.py"):
        (tmp_path / "tests" / name).touch()
    one = {"tests/a.py::x": 1.0, "tests/a.py::renamed": 2.0, "tests/gone.py::x": 3.0}
    tiers.write(one, workers=2, record=record)
    tiers.write({"tests/a.py::x": 4.004, "tests/b.py::x": 5.0}, workers=2, record=record)
    assert tiers.read(record) == {"tests/a.py::x": 4.0, "tests/b.py::x": 5.0}
    words = json.loads(record.read_text())
    assert words["total"] == 9 and "2 workers" in words["machine"] and "jax" in words["versions"]


def test_what_the_record_does_not_know_is_in_every_tier(request):
    """As this test, when it was new."""
    known = tiers.read()
    chosen = {tier: tiers.chosen(tier, known) for tier in tiers.BUDGETS}
    for item in request.session.items:
        name = tiers.function_of(item.nodeid)
        marks = {mark.name for mark in item.iter_markers()}
        assert ("slow" in marks) == (name in known and name not in chosen["test"]), name
        assert ("fast" in marks) == (name not in known or name in chosen["test_fast"]), name
