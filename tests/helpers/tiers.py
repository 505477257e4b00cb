"""Which tests `make test` and `make test_fast` run: the cheapest, by a committed record.

tests/durations.json has the processor seconds of every test function, all its parameters, its
subprocesses and what was set up for it together; `make durations` writes it, and other work on the
machine does not change it. A tier has a budget in seconds of that record, and the cheapest tests
are in it until the budget is spent; in that of `make test` the cheapest of each file come first, so
that nothing is left out as a whole. A test that the record does not know is in both.
Nothing here looks at a clock while tests run.
"""

import importlib.metadata
import json
import os
import pathlib
import platform

RECORD = pathlib.Path(__file__).parents[1] / "durations.json"

BUDGETS = {"test": 600.0, "test_fast": 90.0}
"""What a tier's tests may take together, in processor seconds of the record's machine."""


def chosen(tier: str, seconds: dict[str, float]) -> set[str]:
    """Names, `file::function`, of the known tests in a tier."""
    return within(BUDGETS[tier], seconds, of_each_file=tier == "test")


def within(budget: float, seconds: dict[str, float], *, of_each_file: bool) -> set[str]:
    """Names of the cheapest tests that a budget pays for, after the cheapest of each file."""
    by_cost = sorted(seconds, key=lambda name: (seconds[name], name))
    first: dict[str, str] = {}
    for name in by_cost if of_each_file else ():
        first.setdefault(name.split("::")[0], name)
    found = set(first.values())
    left = budget - sum(seconds[name] for name in found)
    for name in by_cost:
        if name not in found:
            left -= seconds[name]
            if left < 0:
                break
            found.add(name)
    return found


def seconds_of(process: int) -> float:
    """Processor seconds of a living process and of its children; 0 where there is no /proc."""
    try:
        words = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")


def function_of(nodeid: str) -> str:
    """Its name in the record: without parameters."""
    return nodeid.split("[")[0]


def read(record: pathlib.Path = RECORD) -> dict[str, float]:
    """Seconds of the record."""
    return json.loads(record.read_text())["seconds"] if record.exists() else {}


def write(seconds: dict[str, float], workers: int, record: pathlib.Path = RECORD) -> None:
    """Replaces what the record knows of the files that ran; of files that are gone it forgets."""
    ran = {name.split("::")[0] for name in seconds}
    root = record.parents[1]
    kept = {
        name: cost
        for name, cost in read(record).items()
        if name.split("::")[0] not in ran and (root / name.split("::")[0]).exists()
    }
    together = kept | {name: round(cost, 2) for name, cost in seconds.items()}
    words = {
        "machine": f"{_processor()}, {os.cpu_count()} cores, {workers} workers",
        "versions": f"Python {platform.python_version()}, "
        + ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "numpy")),
        "total": round(sum(together.values())),
        "seconds": dict(sorted(together.items())),
    }
    record.write_text(json.dumps(words, indent=1) + "\n")


def _processor() -> str:
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()
