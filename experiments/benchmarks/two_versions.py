"""Steps of the zoo by two checkouts of dpjax, in turn: what a change costs.

  python -m experiments.benchmarks.two_versions --before=../before --out=docs/benchmarks/sums.csv

Each checkout serves from a process of its own with one thread; the two are asked in turn, for steps
of the same lots. Rows that the file holds are not made again. The page, sums.md, is written beside
it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.benchmarks import contestants
from experiments.benchmarks.zoo import ZOO
from experiments.figures import row_program
from experiments.figures.rows import table

TURNS = 7
_LONG = 60.0
"""Seconds of a turn of both from which on three turns are taken."""
COLUMNS = (
    "model",
    "lot",
    "milliseconds_before",
    "milliseconds_now",
    "ratio",
    "scratch_mb_before",
    "scratch_mb_now",
    "rows_before",
    "rows_now",
)
"""Of a row: processor time of a step (medians), the median of the turns' ratios, what XLA reserves
beside arguments and results, and the rows of a micro-batch ("whole": at least the lot)."""
_ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
_SERVE = "--serve"


def serve(model: str, lot: int) -> None:
    """Compiles the step of the checkout that is imported; answers each line with its seconds."""
    from dpjax.training import micro_batches

    rule, rows = micro_batches.rows_at_once, []

    def noted(*given: Any) -> int:
        rows.append(rule(*given))
        return rows[-1]

    micro_batches.rows_at_once = noted
    problem = ZOO[model](False, 512)
    records = contestants.tiled(problem.records)
    setting = contestants.Setting(0, steps=contestants.STEPS_A_CALL)
    way = contestants.compiled(contestants.dpjax_auto, problem, records, lot, setting)
    print(json.dumps({"scratch_mb": way.scratch / 1e6, "rows": rows[-1]}), flush=True)
    for turn in sys.stdin:
        print(json.dumps(way.seconds(int(turn))), flush=True)


def _server(checkout: str | os.PathLike, model: str, lot: int) -> subprocess.Popen:
    """Starts one version's server; this program's own text, the checkout's packages."""
    started = "import sys; from runpy import run_path; run_path(sys.argv[1], run_name='__main__')"
    return subprocess.Popen(
        [sys.executable, "-c", started, __file__, _SERVE, model, str(lot)],
        cwd=checkout,
        env=os.environ | {"XLA_FLAGS": _ONE_THREAD, "PYTHONPATH": os.path.abspath(checkout)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def row_of(setting: Mapping[str, Any], before: str) -> dict[str, Any]:
    """Returns the row of a model and a lot size."""
    model, lot = setting["model"], setting["lot"]
    with contextlib.ExitStack() as both:
        servers = [both.enter_context(_server(each, model, lot)) for each in (before, os.curdir)]
        try:
            found = [json.loads(server.stdout.readline()) for server in servers]
            seconds: list[list[float]] = [[], []]
            turns, turn = TURNS, 0
            while turn < turns:
                for server, own in zip(servers, seconds, strict=True):
                    print(turn, file=server.stdin, flush=True)
                    own.append(json.loads(server.stdout.readline()))
                turn += 1
                if sum(own[-1] for own in seconds) * contestants.STEPS_A_CALL > _LONG:
                    turns = 3
        finally:
            for server in servers:
                server.terminate()
    ratios = [now / then for then, now in zip(*seconds, strict=True)]
    middle = [contestants.quartiles(own)[0] for own in seconds]
    rows = ["whole" if each["rows"] >= lot else each["rows"] for each in found]
    names = ("before", "now")
    return {
        **setting,
        **{f"milliseconds_{n}": round(1e3 * s, 3) for n, s in zip(names, middle, strict=True)},
        "ratio": round(contestants.quartiles(ratios)[0], 3),
        **{f"scratch_mb_{n}": round(f["scratch_mb"], 2) for n, f in zip(names, found, strict=True)},
        **{f"rows_{n}": each for n, each in zip(names, rows, strict=True)},
    }


def settings(before: str) -> Iterator[dict[str, Any]]:
    """Every model at lots of 64; the cheap ones at larger lots too."""
    del before
    for model in ZOO:
        yield {"model": model, "lot": 64}
    for model in ("logistic_regression", "mlp_784_128_64_10", "all_conv_net"):
        yield {"model": model, "lot": 256}
    for model in ("logistic_regression", "mlp_784_128_64_10"):
        yield {"model": model, "lot": 4096}


def page(rows: Sequence[Mapping]) -> str:
    """Returns the page of the rows."""
    ratios = sorted(row["ratio"] for row in rows if row["lot"] == 64)
    lines = [
        "# What proven sums cost", "",
        "dpjax now forms [sums in blocks, with records at random places](../proofs/sums.md). At "
        f"lots of 64 a step takes {contestants.quartiles(ratios)[0]:.2f} times as long as before "
        f"in the median of {len(ratios)} models, and {ratios[-1]:.2f} times at most.", "",
        "Both versions took their steps in turn on one core, in 3 or 7 rounds. Milliseconds are "
        "medians of processor time. **now / before** is the median of the rounds' ratios, and "
        "varies by a tenth. It is not the ratio of the two columns beside it. Scratch is the "
        "memory that XLA reserves beside arguments and results. The last two columns list the "
        "value before and the value now. [Rows](sums.csv), by `python -m "
        "experiments.benchmarks.two_versions --before=CHECKOUT --out=sums.csv`.", "",
    ]  # fmt: skip
    head = ["model", "lot", "before, ms", "now, ms", "now / before", "scratch, MB", "micro-batch"]
    cells = [
        [
            row["model"],
            str(row["lot"]),
            *(f"{float(format(row['milliseconds_' + n], '.3g')):,g}" for n in ("before", "now")),
            f"{row['ratio']:.2f}",
            *(
                ", ".join(f"{row[f'{what}_{name}']}" for name in ("before", "now"))
                for what in ("scratch_mb", "rows")
            ),
        ]
        for row in rows
    ]
    return "\n".join([*lines, table(head, cells)]) + "\n"


def main() -> None:
    """Measures what is missing, and writes the page."""
    out, rows = row_program.run(
        COLUMNS, settings, row_of, before="another checkout, whose steps come first"
    )
    pathlib.Path(out).with_suffix(".md").write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    if _SERVE in sys.argv:
        serve(sys.argv[-2], int(sys.argv[-1]))
    else:
        main()
