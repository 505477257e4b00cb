"""Check a device, then measure it: is private training right there, and how fast?

  dpjax accelerator --out_dir=runs/accelerator
  dpjax accelerator --out_dir=runs/accelerator --minutes=5 --quick

First what privacy rests on (`device_checks`): draws, noise, sums of products under every default
matmul precision, then contributions of five nets and whether their values are formed once. A check
that fails is a red line: do not train privately on that device. Then the benchmark: steps of
everyone at their best, 1 to 1,024 candidates side by side, memory against lots. Then the other
models of the benchmarks, and random losses last.

Writes checks.csv, the benchmark's rows and accelerator.md, a page that names the device. What is
there is not measured again, but for checks that failed. Ends with 1 where one did. A check that
ended the process, as a fault of a compiler can, is passed over by the next call, unless its row
is deleted: nothing wrong was computed, but a model of its kind cannot be compiled there.
"""

from __future__ import annotations

import csv
import functools
import os
import pathlib
import platform
import time
from collections.abc import Callable
from typing import Any

import jax
import jaxlib
from absl import flags
from rich.console import Console

from dpjax import files
from dpjax.commands import command_line
from experiments.accelerator import device_checks, problems
from experiments.accelerator.device_checks import Found
from experiments.accelerator.jobs import ALL_CONV_IMPLICIT, FIGURE_7_IMPLICIT
from experiments.benchmarks import steps
from experiments.benchmarks.zoo import ZOO

_OUT_DIR = flags.DEFINE_string("out_dir", "runs/accelerator", "Folder of the page and its rows.")
_MINUTES = flags.DEFINE_float("minutes", 30.0, "Nothing is started after these.", lower_bound=0.0)
_SPEED = flags.DEFINE_bool("speed", True, "After the checks, measure speed and memory.")
_QUICK = flags.DEFINE_bool("quick", False, "Few random losses, tiny models: a rehearsal.")

COLUMNS = ("device", "check", "found", "allowed", "unit", "passed", "seconds")
RED = (
    "DO NOT USE THIS DEVICE FOR PRIVATE TRAINING: a check of what privacy rests on failed; report "
    "it with these rows"
)
_SHARE_UNTIL_SPEED = 0.6
"""Of the minutes; the rest is kept for the checks that come after speed."""
YES, NO, BEGAN = "yes", "no", "began"
"""Whether a check passed. A row that says that it began is replaced when it returns."""


def device() -> str:
    """Names the device, its driver and the versions that compile for it, in one line."""
    first = jax.devices()[0]
    kind = platform.processor() or platform.machine() if first.platform == "cpu" else ""
    driver = " ".join(first.client.platform_version.split())
    precision = jax.config.jax_default_matmul_precision or "default"
    return (
        f"{len(jax.devices())} x {first.device_kind} {kind}".rstrip() + f", {driver}, "
        f"jax {jax.__version__}, jaxlib {jaxlib.__version__}, matmul precision {precision}"
    )


_FIRST_NETS = ("mlp_784_128_64_10", "all_conv_net", "lstm", "vit_ti", "mixture_of_experts")


def is_late(name: str) -> bool:
    """Tells whether a check waits until speed was measured: it takes long, or is one of many."""
    model = name.split(": ")[-1]
    of_a_model = model in ZOO or model in (FIGURE_7_IMPLICIT, ALL_CONV_IMPLICIT)
    return name == device_checks.RANDOM_LOSSES or (of_a_model and model not in _FIRST_NETS)


def checks(quick: bool) -> dict[str, Callable[[], Found]]:
    """Returns all checks by name: of any model, of five nets, of the others, of random losses."""
    found = device_checks.checks(seconds=5.0 if quick else 120.0, most=3 if quick else 10**9)
    last = found.pop(device_checks.RANDOM_LOSSES)
    nets = (_FIRST_NETS[0], _FIRST_NETS[-1]) if quick else dict.fromkeys((*_FIRST_NETS, *ZOO))
    for name in nets:
        found[f"contributions: {name}"] = functools.partial(
            _of_model, device_checks.contributions, ZOO[name], 5
        )
        found[f"formed once: {name}"] = functools.partial(
            _of_model, device_checks.one_producer, ZOO[name], 3
        )
    # Other backends than a GPU do not have these kernels, or interpret them, which takes minutes.
    of_a_gpu = jax.default_backend() == "gpu"
    for name in (FIGURE_7_IMPLICIT, ALL_CONV_IMPLICIT) if of_a_gpu else ():
        build = functools.partial(problems.some, name)
        found[f"contributions: {name}"] = functools.partial(
            _of_model, device_checks.contributions, build, 5, quick
        )
        found[f"formed once: {name}"] = functools.partial(
            _of_model, device_checks.one_producer, build, 3, quick
        )
    return found | {device_checks.RANDOM_LOSSES: last}


def _of_model(
    check: Callable[..., Found], build: Callable[..., Any], rows: int, tiny: bool = True
) -> Found:
    """Runs a check on so many records of a model."""
    return check(*build(tiny, rows))


def read(path: str) -> list[dict[str, str]]:
    """Returns the rows of an earlier call, none if there is no such file."""
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write(path: str, rows: list[dict[str, str]]) -> None:
    """Writes the rows of all checks, whole."""
    with files.replacing(path) as partial, open(partial, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def row_of(where: str, check: str, passed: str) -> dict[str, str]:
    """Returns the row of a check, without what it found; a file says "" for what a row lacks."""
    return {"device": where, "check": check, "passed": passed}


def page(where: str, rows: list[dict[str, str]], missing: list[str], tables: str) -> str:
    """Returns the page of one device, a pure function of its rows."""
    failed = [row for row in rows if row["passed"] == NO]
    ended = [row["check"] for row in rows if row["passed"] == BEGAN]
    lines, returned = [f"# {where}", ""], len(rows) - len(ended)
    lines += [f"**{RED}.**" if failed else f"All {returned} checks that returned passed.", ""]
    if ended:
        lines += [f"These ended the process; nothing was computed: {', '.join(ended)}.", ""]
    if missing:
        lines += [f"Not measured, for want of time: {', '.join(missing)}.", ""]
    lines += ["| check | found | allowed | |", "|---|---|---|---|"]
    for row in rows:
        passed = {NO: "**failed** ", BEGAN: "ended the process"}.get(row["passed"], "")
        lines.append(
            f"| {row['check']} | {row['found']} | {row['allowed']} | {passed}{row['unit']} |"
        )
    return "\n".join(lines) + "\n" + (f"\n{tables}" if tables else "")


def main() -> int:
    """Checks, measures, writes; returns the exit code."""
    start, out_dir, quick = time.monotonic(), _OUT_DIR.value, _QUICK.value
    where = device() + (", rehearsed at tiny sizes" if quick else "")
    os.makedirs(out_dir, exist_ok=True)
    path, console = os.path.join(out_dir, "checks.csv"), Console()
    rows = [row for row in read(path) if row["device"] == where and row["passed"] != NO]
    done = {row["check"] for row in rows}
    wanted = {name: check for name, check in checks(quick).items() if name not in done}
    parts: list[Any] = []
    folder = steps.Folder(out_dir)
    if _SPEED.value:
        limits = steps.Limits(turns=2, seconds=5.0, tiny=True) if quick else steps.Limits()
        models = ["logistic_regression"] if quick else steps.MODELS
        lots = [8] if quick else [64, 256, 1024]
        parts = steps.parts(folder, ["candidates", "memory", "steps"], models, lots, limits)
    missing = []
    with command_line.progress_bar(console) as bar:
        task = bar.add_task("checks", total=len(wanted) + len(parts))

        def over(share: float = 1.0) -> bool:
            return time.monotonic() - start > share * 60 * _MINUTES.value

        def run(name: str, check: Callable[[], Found]) -> None:
            bar.update(task, description=name)
            if over():
                missing.append(name)
                return
            began = time.monotonic()
            rows.append(row_of(where, name, BEGAN))
            write(path, rows)
            try:
                found = check()
            except BaseException:
                write(path, rows[:-1])
                raise
            rows[-1] = row_of(where, name, YES if found.passed else NO) | {
                "found": f"{found.value:.6g}",
                "allowed": f"{found.allowed:.6g}",
                "unit": found.unit,
                "seconds": f"{time.monotonic() - began:.1f}",
            }
            write(path, rows)
            if not found.passed:
                console.print(f"{name}: {found.value:.6g} {found.unit}", style="red")
            bar.advance(task)

        for name in [name for name in wanted if not is_late(name)]:
            run(name, wanted[name])
        failed = any(row["passed"] == NO for row in rows)
        for name, model, lot, measure in parts:
            bar.update(task, description=f"{name}: {model}, lot {lot}")
            if failed or over(_SHARE_UNTIL_SPEED):
                missing.append(f"{name} of {model} at lot {lot}")
                continue
            measure()
            jax.clear_caches()
            bar.advance(task)
        for name in filter(is_late, wanted):
            run(name, wanted[name])
        failed = any(row["passed"] == NO for row in rows)
    tables = steps.tables(folder.own()) if _SPEED.value else ""
    target = pathlib.Path(out_dir, "accelerator.md")
    target.write_text(page(where, rows, missing, tables), encoding="utf-8")
    passed = sum(row["passed"] == YES for row in rows)
    others = len(rows) - passed + len(wanted.keys() - {row["check"] for row in rows})
    if failed:
        console.print(f"{RED}.", style="bold red")
    else:
        console.print(f"{passed} checks passed on {where}, {others} were not run or did not return")
    console.print(str(target))
    return int(failed or bool(others))


if __name__ == "__main__":
    command_line.run(main)
