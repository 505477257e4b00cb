"""What prices, calibrations and starts take, each in a process of its own, nothing compiled before.

  python -m experiments.benchmarks.prices --out=docs/benchmarks/prices.csv    # a minute or two

Processor seconds (user and system) of the whole process, the least of `REPEATS`. Rows also have
what each finds: an epsilon at delta 1e-5, or a noise multiplier; those that the file holds are not
made again. The page, prices.md, is written beside it. The aims were fixed before anything was made
faster.
"""

from __future__ import annotations

import pathlib
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.benchmarks.steps import met
from experiments.figures import row_program
from experiments.figures.rows import table

REPEATS = 3
AIMS = {"import": 1.2, "--help": 0.7, "price": 0.5, "calibration": 1.5}
"""Most processor seconds, by kind."""
COLUMNS = ("kind", "what", "processor_seconds", "found")

RUN = "a.dp_sgd(.01, 1, 1000)"
LAWS = (
    "Fixed(10)", "Geometric(10)", "Poisson(10)", "Poisson(1000)", "Binomial(200, 0.1)",
    "AtMost(a.Geometric(10), 64)", "AtMost(a.Poisson(10), 64)", "AtMost(a.Logarithmic(4), 40)",
)  # fmt: skip


def cases() -> dict[tuple[str, str], list[str]]:
    """Returns arguments of Python by kind and name of a case; what it prints is what it finds."""

    def priced(expression: str) -> list[str]:
        words = f"from dpjax import accounting as a; print(({expression}).epsilon(1e-5))"
        return ["-c", words]

    def calibrated(function: str) -> list[str]:
        found = f"a.calibrate({function}, epsilon=2.0, delta=1e-5)"
        return ["-c", f"from dpjax import accounting as a; print({found})"]

    one = {
        ("import", "dpjax.accounting"): ["-c", "import dpjax.accounting"],
        ("import", "dpjax.tuning"): ["-c", "import dpjax.tuning"],
        ("--help", "dpjax --help"): ["-m", "dpjax", "--help"],
        ("price", "one run"): priced(RUN),
        ("calibration", "one run"): calibrated("lambda z: a.dp_sgd(.01, z, 1000)"),
    }
    for law in LAWS:
        name = f"the best of {law.replace('a.', '')}"
        one["price", name] = priced(f"a.best_of({RUN}, a.{law})")
        one["calibration", name] = calibrated(
            f"lambda z: a.best_of(a.dp_sgd(.01, z, 1000), a.{law})"
        )
    one["price", "stop at a threshold"] = priced(f"a.stop_at_threshold({RUN}, .1)")
    one["calibration", "stop at a threshold"] = calibrated(
        "lambda z: a.stop_at_threshold(a.dp_sgd(.01, z, 1000), .1)"
    )
    return one


def taken(arguments: Sequence[str], repeats: int = REPEATS) -> tuple[float, float | None]:
    """Returns the processor seconds of a process, the least of some, and what it found."""
    least, found = float("inf"), None
    for _ in range(repeats):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        ran = subprocess.run(
            [sys.executable, *arguments], check=True, capture_output=True, text=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        least = min(least, seconds)
        if arguments[0] == "-c" and "print" in arguments[1]:
            found = float(ran.stdout)
    return least, found


def page(rows: Sequence[Mapping]) -> str:
    """Returns the page of the rows."""
    lines = [
        "# Prices and starts", "",
        "Times are processor seconds of a whole process with nothing compiled before, the least "
        f"of {REPEATS} tries ([rows](prices.csv), `python -m experiments.benchmarks.prices`). A "
        "run is DP-SGD with sampling probability 0.01, noise multiplier 1 and 1,000 steps. "
        "Calibrations are to epsilon 2. Delta is 1e-5.", "",
    ]  # fmt: skip
    cells = []
    for row in rows:
        aim, seconds = AIMS[row["kind"]], row["processor_seconds"]
        found = "" if row["found"] is None else f"{row['found']:.6f}"
        said = f"{aim}, {met(seconds <= aim)}"
        cells.append([row["kind"], row["what"], f"{seconds:.2f}", said, found])
    head = ["kind", "what", "seconds", "aim", "epsilon, or noise multiplier"]
    return "\n".join([*lines, table(head, cells)]) + "\n"


def settings() -> Iterator[dict[str, str]]:
    """What is measured, as the first columns of its row."""
    for kind, what in cases():
        yield {"kind": kind, "what": what}


def row_of(setting: Mapping[str, str]) -> dict[str, Any]:
    """Returns the row of a setting."""
    seconds, found = taken(cases()[setting["kind"], setting["what"]])
    return {**setting, "processor_seconds": round(seconds, 3), "found": found}


def main() -> None:
    """Measures what is missing, and writes the page."""
    out, rows = row_program.run(COLUMNS, settings, row_of)
    pathlib.Path(out).with_suffix(".md").write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
