"""The parts of the benchmark: whole steps of everyone at their best, many candidates, memory.

`python -m experiments.benchmarks` runs them, and says what is measured and how.
"""

from __future__ import annotations

import functools
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from dpjax import training
from experiments.benchmarks import contestants
from experiments.benchmarks.contestants import Setting, Way, compiled, quartiles
from experiments.benchmarks.opacus_process import OpacusProcess
from experiments.benchmarks.zoo import ZOO
from experiments.figures.rows import Rows, read_rows, table, write_rows

MODELS = (
    *("logistic_regression", "mlp_784_128_64_10", "mlp_784_1000_10", "mixture_of_experts"),
    *("all_conv_net", "depthwise", "u_net", "lstm", "lora_merged"),
    *("wrn_16_4_standardised", "vit_ti", "gpt"),
)
AIM, AIM_OF_DENSE = 1.15, 1.5
"""Most that a whole private step takes, over the best plain one; fixed before it was measured."""
DENSE = ("logistic_regression", "mlp_784_128_64_10", "mlp_784_1000_10")
WITHIN = 1.1
"""Most that the micro-batches of "auto" take, over the best that the search found."""
OF_CANDIDATES = ("logistic_regression", "mlp_784_128_64_10", "all_conv_net")
OF_MEMORY = ("mlp_784_1000_10", "all_conv_net", "lstm")


class Limits(NamedTuple):
    """How far the benchmark goes."""

    turns: int = 7  # of the best ways
    gigabytes: float | None = None  # a trial that reserves more is not run; None: see `bytes`
    seconds: float = 20.0  # candidates side by side: no wider after a call that took as long
    tiny: bool = False  # models for a test
    opacus_python: str | None = None  # interpreter that has torch and opacus
    again: bool = False  # steps that have rows are timed again, by the settings found

    @property
    def bytes(self) -> float:
        """What a trial may reserve; unless said, half of an accelerator's memory, 8 GB on a CPU."""
        if self.gigabytes is not None:
            return self.gigabytes * GIGABYTE
        stats = jax.devices()[0].memory_stats() or {}
        return stats.get("bytes_limit", 16 * GIGABYTE) / 2


_KEYS = ("device", "model", "lot")
_SPREAD = ("median", "low", "high")
COLUMNS = {
    "search": (
        *(*_KEYS, "contestant", "micro_batch", "steps_a_call", "remat", "milliseconds"),
        *("scratch_mb", "compile_s"),
    ),
    "steps": (
        *(*_KEYS, "contestant", "micro_batch", "steps_a_call", "remat"),
        *("milliseconds", "milliseconds_low", "milliseconds_high"),
        *("over_plain", "over_plain_low", "over_plain_high"),
        *("over_dpjax", "over_dpjax_low", "over_dpjax_high", "scratch_mb", "compile_s", "turns"),
    ),
    "candidates": (*_KEYS, "side_by_side", "milliseconds", "scratch_mb", "rule"),
    "memory": (*_KEYS, "contestant", "micro_batch", "scratch_mb"),
}
TORCH = ("torch", "opacus-hooks", "opacus-ghost")
PEERS = ("vmap", "jax-privacy", "opacus-hooks", "opacus-ghost")
WIDTHS = (1, 4, 16, 64, 256, 1024)
WHOLE = "whole"
MEGABYTE, GIGABYTE = 2**20, 2**30


def device() -> str:
    """Names the machine that rows were taken on."""
    kind, number = jax.devices()[0].device_kind, len(jax.devices())
    if jax.default_backend() == "cpu":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return f"{platform.machine()} CPU, {cores} cores, jax {jax.__version__}"
    return f"{number} x {kind}, jax {jax.__version__}"


class Folder:
    """Rows of the benchmark on this device, in a folder or, without one, in memory alone."""

    def __init__(self, path: str | None) -> None:
        self.path, self.device = path, device()
        self.rows: dict[str, list[dict]] = {}
        for name in COLUMNS:
            file = self._file(name)
            self.rows[name] = read_rows(file) if file and os.path.exists(file) else []

    def _file(self, name: str) -> str | None:
        return self.path and os.path.join(self.path, f"{name}.csv")

    def has(self, name: str, model: str, lot: int) -> bool:
        """Tells whether this device has rows of this model and lot."""
        return any(_keys(row) == (self.device, model, lot) for row in self.rows[name])

    def own(self) -> dict[str, list[dict]]:
        """Returns the rows of this device."""
        return {
            name: [row for row in rows if row["device"] == self.device]
            for name, rows in self.rows.items()
        }

    def put(self, name: str, model: str, lot: int, found: Sequence[dict]) -> None:
        """Adds the rows of one part to a file."""
        rows = self.rows[name]
        rows[:] = [row for row in rows if _keys(row) != (self.device, model, lot)]
        rows += [{"device": self.device, "model": model, "lot": lot, **row} for row in found]
        if self.path:
            os.makedirs(self.path, exist_ok=True)
            write_rows(self._file(name), COLUMNS[name], rows)


def _keys(row: Any) -> tuple:
    return tuple(row[name] for name in _KEYS)


# The parts ---------------------------------------------------------------------------------------


def measure_steps(folder: Folder, model: str, lot: int, limits: Limits) -> None:
    """Searches every contestant, then times the best of each in turn.

    Where the folder has rows already, their settings are timed again, without a search.
    """
    problem = ZOO[model](limits.tiny, lot)
    records, log = contestants.tiled(problem.records), []
    known = [row for row in folder.rows["steps"] if _keys(row) == (folder.device, model, lot)]

    def note(name: str, setting: Setting, seconds: float | None, way: Way) -> None:
        milliseconds = None if seconds is None else _rounded(1e3 * seconds)
        log.append({**_setting(name, setting), "milliseconds": milliseconds, **_costs(way)})

    best: dict[str, Any] = {}
    if known:
        for name, build in contestants.contestants().items():
            for row in known:
                if row["contestant"] == name:
                    best[name] = compiled(build, problem, records, lot, _setting_of(row))
    else:
        best |= contestants.search(problem, records, lot, limits.bytes, note)
    setting = Setting(0, steps=contestants.STEPS_A_CALL)
    best["dpjax auto"] = compiled(contestants.dpjax_auto, problem, records, lot, setting)
    rows_of_torch = {_setting_of(row).rows for row in known if row["contestant"] in TORCH}
    sizes = [size for size in contestants.sizes(lot) if size in rows_of_torch or not known]
    process = _torch(model, problem, lot, limits, sizes)
    if process is not None:
        log += process.trials
        best |= process.ways
    seconds = contestants.in_turn(best, limits.turns)
    if process is not None:
        process.close()
    rows = []
    for name, way in best.items():
        row = {**_setting(name, way.setting), **_costs(way), "turns": limits.turns}
        if name == "dpjax auto":
            row["micro_batch"] = "auto"
        for what, values in (
            ("milliseconds", 1e3 * np.asarray(seconds[name])),
            ("over_plain", np.asarray(seconds[name]) / seconds["plain"]),
            ("over_dpjax", np.asarray(seconds[name]) / seconds["dpjax"]),
        ):
            names = (what, f"{what}_low", f"{what}_high")
            row |= dict(zip(names, map(_rounded, quartiles(values))))
        rows.append(row)
    if not known:
        folder.put("search", model, lot, log)
    folder.put("steps", model, lot, rows)


def _setting(name: str, setting: Setting) -> dict:
    return {
        "contestant": name,
        "micro_batch": setting.rows or WHOLE,
        "steps_a_call": setting.steps,
        "remat": int(setting.remat),
    }


def _setting_of(row: Any) -> Setting:
    rows = 0 if row["micro_batch"] in (WHOLE, "auto") else row["micro_batch"]
    return Setting(rows, bool(row["remat"]), row["steps_a_call"])


def _costs(way: Any) -> dict:
    scratch = None if way.scratch is None else _rounded(way.scratch / MEGABYTE)
    seconds = None if way.compile_seconds is None else _rounded(way.compile_seconds)
    return {"scratch_mb": scratch, "compile_s": seconds}


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _torch(
    model: str, problem: Any, lot: int, limits: Limits, sizes: Sequence[int]
) -> OpacusProcess | None:
    """Returns torch beside a model of the zoo; None, after saying so, if it does not start."""
    if not limits.opacus_python or not sizes:
        return None
    parameters = sum(leaf.size for leaf in jax.tree.leaves(problem.params))
    try:
        return OpacusProcess(limits.opacus_python, model, lot, parameters, sizes, limits.tiny)
    except (OSError, RuntimeError) as error:
        print(f"opacus left out for {model}: {error}")
        return None


def measure_candidates(folder: Folder, model: str, lot: int, limits: Limits) -> None:
    """Times a step of one candidate, so many of them side by side; wider ones until a limit.

    Compares with one by one, the width 1, and notes the width that placement "rule" takes.
    """
    problem = ZOO[model](limits.tiny, lot)
    records = contestants.tiled(problem.records)
    config = contestants.config_of_ours(problem, lot, Setting(0, steps=contestants.STEPS_A_CALL))
    touched = functools.partial(training.bytes_of_step, config, problem.params, records)
    ways: dict[int, Way] = {}

    def side_by_side(width: int) -> Way:
        build = functools.partial(contestants.dpjax_side_by_side, width=width)
        return compiled(build, problem, records, lot, Setting(0))

    for width, way in zip(WIDTHS, contestants.compiled_each(side_by_side, WIDTHS)):
        # A call takes so many steps of each of them.
        way = way._replace(setting=Setting(0, steps=contestants.STEPS_A_CALL * width))
        if way.scratch > limits.bytes:
            break
        ways[width] = way
        start = time.perf_counter()
        way.seconds()
        if time.perf_counter() - start > limits.seconds:
            break
    seconds = contestants.in_turn(ways, 3)
    rows = []
    for width, way in ways.items():
        rule = training.named_placement("rule", width, touched).width
        rows.append(
            {
                "side_by_side": width,
                "milliseconds": _rounded(1e3 * float(np.median(seconds[width]))),
                "scratch_mb": _rounded(way.scratch / MEGABYTE / width),
                "rule": rule,
            }
        )
    folder.put("candidates", model, lot, rows)


def measure_memory(folder: Folder, model: str, lot: int, limits: Limits) -> None:
    """Compiles steps of a lot, runs none: what XLA reserves."""
    problem = ZOO[model](limits.tiny, 8)
    records, rows = contestants.tiled(problem.records), []
    for name, build, micro_batch in (
        ("plain", contestants.plain, WHOLE),
        ("vmap", contestants.vmap, WHOLE),
        ("dpjax", contestants.dpjax, WHOLE),
        ("dpjax auto", contestants.dpjax_auto, "auto"),
    ):
        way = compiled(build, problem, records, lot, Setting(0))
        scratch = _rounded(way.scratch / MEGABYTE)
        rows.append({"contestant": name, "micro_batch": micro_batch, "scratch_mb": scratch})
    folder.put("memory", model, lot, rows)


Part = tuple[str, str, int, Callable[[], None]]
"""File of rows, model, lot, and what measures and puts them there."""


def parts(
    folder: Folder, names: Sequence[str], models: Sequence[str], lots: Sequence[int], limits: Limits
) -> list[Part]:
    """Returns what is not measured yet: first what is quick, since a call may end at any time."""
    found: list[Part] = []

    def add(name: str, model: str, lot: int, measure: Callable[..., None]) -> None:
        again = limits.again and name == "steps"
        if name in names and model in models and (again or not folder.has(name, model, lot)):
            found.append((name, model, lot, lambda: measure(folder, model, lot, limits)))

    for model in OF_CANDIDATES:
        add("candidates", model, lots[0], measure_candidates)
    for model in OF_MEMORY:
        for lot in (8,) if limits.tiny else (64, 256, 1024):
            add("memory", model, lot, measure_memory)
    for lot in lots:
        for model in models:
            add("steps", model, lot, measure_steps)
    return found


# What is read off --------------------------------------------------------------------------------


def is_searched(log: Rows, contestant: str, device: str, model: str, lot: int) -> bool:
    """Tells whether a search log holds every micro-batch, several steps a call, and remat."""
    trials = [
        row for row in log if row["contestant"] == contestant and _keys(row) == (device, model, lot)
    ]
    wanted = {rows or WHOLE for rows in contestants.sizes(lot)}

    def tried(**fixed: int) -> set:
        return {
            row["micro_batch"]
            for row in trials
            if all(row[name] == value for name, value in fixed.items())
        }

    if contestant in TORCH:  # Nothing is compiled there, and Opacus refuses checkpoints.
        return wanted <= tried()
    calls = {row["steps_a_call"] for row in trials}
    whole = any(wanted <= tried(steps_a_call=number, remat=0) for number in calls)
    return whole and len(calls) > 1 and bool(tried(remat=1))


def ratio(log: Rows, row: Any, to: str) -> str:
    """Returns a step's time over that of "plain" or "dpjax", with quartiles, as text.

    "not searched" where the log does not hold the search of either.
    """
    own = "dpjax" if row["contestant"] == "dpjax auto" else row["contestant"]
    if not all(is_searched(log, name, *_keys(row)) for name in (own, to)):
        return "not searched"
    middle, low, high = (row[f"over_{to}{end}"] for end in ("", "_low", "_high"))
    return f"{middle:.2f} ({low:.2f}-{high:.2f})" if middle < 10 else f"{middle:.0f}"


def page(rows: Mapping[str, Rows]) -> str:
    """Returns the page that the documentation shows."""
    devices = dict.fromkeys(row["device"] for name in COLUMNS for row in rows[name])
    return f"# The benchmark's tables\n\n{'; '.join(devices)}.\n\n{tables(rows)}"


def tables(rows: Mapping[str, Rows]) -> str:
    """Returns the rows of steps, candidates and memory as Markdown tables; a function of them."""
    log = rows["search"]
    of_steps: dict[tuple, dict[Any, Any]] = {}
    for row in rows["steps"]:
        of_steps.setdefault(_keys(row), {})[row["contestant"]] = row
    of_widths: dict[tuple, dict[Any, Any]] = {}
    for row in rows["candidates"]:
        of_widths.setdefault(_keys(row), {})[row["side_by_side"]] = row
    peers = [name for name in PEERS if any(name in of for of in of_steps.values())]
    made = []
    if of_steps:
        made = [_of_steps(of_steps, log, peers), _of_aims(of_steps, log, peers)]
    if of_widths:
        made.append(_of_candidates(of_widths))
    if rows["memory"]:
        made.append(_of_memory(rows["memory"]))
    return "\n\n".join(made) + "\n"


def _of_steps(found: Mapping[tuple, Mapping], log: Rows, peers: Sequence[str]) -> str:
    """Returns times, settings, memory and compile times of the steps as a table."""
    head = ["model", "lot", "plain, ms", "dpjax / plain", "auto / dpjax"]
    head += [f"{name} / dpjax" for name in peers]
    head += ["micro-batch: plain, dpjax, " + ", ".join(peers)]
    head += ["MB: plain, dpjax, " + ", ".join(peers), "compile s: plain, dpjax"]
    shown, lines = ["plain", "dpjax", *peers], []
    for (_, model, lot), of in found.items():
        cells = [model, str(lot), f"{of['plain']['milliseconds']:.3g}"]
        cells += [ratio(log, of["dpjax"], "plain"), ratio(log, of["dpjax auto"], "dpjax")]
        cells += [ratio(log, of[name], "dpjax") if name in of else "-" for name in peers]
        cells += [", ".join(_shown_setting(of.get(name)) for name in shown)]
        cells += [", ".join(_number(of.get(name), "scratch_mb") for name in shown)]
        cells += [", ".join(_number(of.get(name), "compile_s") for name in shown[:2])]
        lines.append(cells)
    return table(head, lines)


def _of_aims(found: Mapping[tuple, Mapping], log: Rows, peers: Sequence[str]) -> str:
    """Returns the aims and what became of them as a table; medians decide."""
    head = ["model", "lot", "auto / plain", "aim", "fastest peer / dpjax", "dpjax is ahead"]
    lines = []
    for (_, model, lot), of in found.items():
        auto, aim = of["dpjax auto"], AIM_OF_DENSE if model in DENSE else AIM
        cells = [model, str(lot), ratio(log, auto, "plain")]
        cells.append(f"{aim}, {met(auto['over_plain'] <= aim)}")
        rivals = [of[name] for name in peers if name in of]
        if rivals:
            fastest = min(rivals, key=lambda row: row["over_dpjax"])
            cells.append(f"{fastest['contestant']} {ratio(log, fastest, 'dpjax')}")
            cells.append(met(fastest["over_dpjax"] >= 1))
        else:
            cells += "-", "-"
        lines.append([*cells, met(auto["over_dpjax"] <= WITHIN)])
    return table([*head, "auto within 10% of the search"], lines)


def _of_candidates(found: Mapping[tuple, Mapping]) -> str:
    """Returns time and memory of one of so many candidates side by side as a table."""
    lines = []
    for (_, model, lot), of in found.items():
        cells = [
            f"{of[width]['milliseconds']:.3g} ms, {of[width]['scratch_mb']:.3g} MB"
            if width in of
            else "-"
            for width in WIDTHS
        ]
        lines.append([model, str(lot), *cells, str(of[max(of)]["rule"])])
    return table(["model", "lot", *(f"{width} side by side" for width in WIDTHS), "rule"], lines)


def _of_memory(rows: Rows) -> str:
    """Returns what XLA reserves for steps of several lots as a table."""
    lots = sorted({row["lot"] for row in rows})
    names = list(dict.fromkeys(row["contestant"] for row in rows))
    by_place = {(row["model"], row["contestant"], row["lot"]): row for row in rows}
    lines = [
        [
            *(model, ", ".join(map(str, lots))),
            *(
                ", ".join(_number(by_place.get((model, name, lot)), "scratch_mb") for lot in lots)
                for name in names
            ),
        ]
        for model in dict.fromkeys(row["model"] for row in rows)
    ]
    return table(["MB", "lots", *names], lines)


def met(is_met: bool) -> str:
    """Returns what a table says of an aim."""
    return "met" if is_met else "**missed**"


def _shown_setting(row: Any) -> str:
    if row is None:
        return "-"
    return str(row["micro_batch"]) + (" remat" if row["remat"] else "")


def _number(row: Any, column: str) -> str:
    return "-" if row is None or row[column] is None else f"{row[column]:.3g}"
